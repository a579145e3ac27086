"""Tables of the ablations of DyG-Mamba next to the paper's, as Markdown; `results_page` inserts them."""

from math import sqrt
from pathlib import Path

from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.report.published import load_table
from dygmamba.report.result_records import SeedValues
from dygmamba.studies.studies import ABLATION_DATASETS, FULL
from research.result_tables import STREAMS, collect_ap, format_rows, read_records

# names of the ablations in the paper's tables
PAPER_ABLATIONS = {
    "no-timespan": "w/o timespan",
    "no-time-encoding": "w/o Time-encoding",
    "no-time": "w/o Time",
    "no-selective": "w/o Selective",
    "no-data-dependent": "w/o Data-dependent",
    "no-cooccurrence": "w/o Co-occurrence",
    "no-skip": "w/o skip-connection",
    "step-linear": "Linear",
    "step-logarithmic": "Logarithmic",
    "step-sigmoid": "Sigmoid",
    "step-exponential": "Exponential",
    "step-absolute": "w/o tau - t_1",
}
PAPER_ABLATION_TABLES = ("ablation_time_information", "ablation_delta_t", "ablation_skip_connection")
TIMESPAN_FILES = {
    "uci": "ablation-uci",
    "enron": "ablation-enron",
    "USLegis": "ablation-snapshots",
    "CanParl": "ablation-snapshots",
}
# In standard errors, for two groups of three seeds: the critical value of a t test (two-sided, 5 %, four degrees of
# freedom), and the difference that it finds with probability 0.8 (noncentral t).
DETECTED, FOUND_IN_80_PERCENT = 2.776, 3.76


def build_ablation_table(folder: Path) -> str:
    """Build the table of differences to the full model, ours and published, random negatives and all nodes.

    A dataset without records has no column, a variant without records has a dash.
    """
    published = _read_published_ablations()
    records = read_records(folder, "ablation")
    values = {
        (data, variant): collect_ap(
            [record for record in records if (record.data, record.about["variant"]) == (data, variant)],
            "transductive",
        )
        for data in ABLATION_DATASETS
        for variant in (FULL, *PAPER_ABLATIONS)
    }
    shown = [data for data in ABLATION_DATASETS if values[data, FULL].by_seed]
    rows = []
    for variant, paper_name in PAPER_ABLATIONS.items():
        cells = [f"`{variant}`"]
        for data in shown:
            text = _format_ablation_difference(values[data, variant], values[data, FULL])
            paper = published.get((normalize_name(data), paper_name))
            reference = published.get((normalize_name(data), "DyG-Mamba"))
            if paper is not None and reference is not None:
                text += f" / {paper - reference:+.2f}"
            cells.append(text)
        rows.append(cells)
    return format_rows(["", *(STREAMS[data].partition(" (")[0] for data in shown)], rows, records)


def _format_ablation_difference(own: SeedValues, full: SeedValues) -> str:
    """Format a difference in points, bold beyond two standard deviations over seeds; one seed has none."""
    if not own.by_seed:
        return "-"
    difference, spreads = 100 * (own.mean - full.mean), [own.std, full.std]
    text = f"{difference:+.2f}"
    known = [100 * spread for spread in spreads if spread is not None]
    return f"**{text}**" if known and abs(difference) > 2 * max(known) else text


def build_power_table(folder: Path) -> str:
    """Build the table of what three seeds can tell about the time span in the step: difference, error, interval."""
    published = _read_published_ablations()
    rows, shown = [], []
    for data, file in TIMESPAN_FILES.items():
        records = [record for record in read_records(folder, file) if record.data == data]
        full, without = (
            collect_ap([record for record in records if record.about["variant"] == name], "transductive")
            for name in (FULL, "no-timespan")
        )
        if full.std is None or without.std is None:  # one seed says nothing about chance
            continue
        shown += records
        difference = 100 * (full.mean - without.mean)
        error = 100 * sqrt(full.std**2 / len(full.by_seed) + without.std**2 / len(without.by_seed))
        detected = DETECTED * error
        name = normalize_name(data)
        paper = (published.get((name, "DyG-Mamba")), published.get((name, PAPER_ABLATIONS["no-timespan"])))
        rows.append(
            [
                STREAMS[data].partition(" (")[0],
                f"{difference:+.2f}",
                f"{error:.2f}",
                f"{detected:.2f}",
                f"{FOUND_IN_80_PERCENT * error:.2f}",
                f"{difference - detected:+.2f} to {difference + detected:+.2f}",
                "no claim" if paper[0] is None or paper[1] is None else f"{paper[0] - paper[1]:+.2f}",
            ]
        )
    head = [
        "difference, points",
        "standard error",
        "smallest detected",
        "found in 80 %",
        "95 % interval",
        "published",
    ]
    return format_rows(["", *head], rows, shown)


def _read_published_ablations() -> dict[tuple[str, str], float]:
    return {
        (normalize_name(row["dataset"]), row["model"]): row["mean"]
        for name in PAPER_ABLATION_TABLES
        for row in load_table(name).rows
        if row["mean"] is not None
    }
