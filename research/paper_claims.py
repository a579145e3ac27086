"""Verdicts about the claims of the paper, as Markdown tables of docs/research/paper.md; `results_page` inserts them.

They come from the records of `dygmamba reproduce paper` alone. The rules of decision stand on that page.
"""

from math import sqrt
from pathlib import Path
from statistics import mean, stdev

from dygmamba.core.choices import SCOPES
from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.data.events.times import format_rough_duration
from dygmamba.report.published import PublishedValue, published_values
from dygmamba.report.result_records import ResultRecord, SeedValues
from dygmamba.runs.training_cost import estimate_training
from dygmamba.studies.paper_plan import PAPER_PLAN, STEPS, PlannedStudy
from dygmamba.studies.studies import FULL, STUDIES
from research.result_tables import STREAMS, collect_ap, format_rows, get_shipped_settings, read_records

FILE = "paper"
ERRORS = 2  # standard errors beyond which our mean and the published one differ
PUBLISHED_SEEDS = 5
# Two-sided 5 % of Student's t, by degrees of freedom.
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
EVENTS = {
    "USLegis": 60_396,
    "uci": 59_835,
    "wikipedia": 157_474,
    "enron": 125_235,
    "mooc": 411_749,
    "CanParl": 74_478,
    "x_bitcoin_otc": 35_592,
    "x_sp_workplace": 9_827,
}


def build_main_table(folder: Path) -> str:
    """Build the table of test AP with random negatives beside the published values, with a verdict each."""
    rows = []
    for entry in (entry for entry in PAPER_PLAN if entry.study == "link"):
        for model in entry.models:
            records = _find_records(folder, entry, model)
            settings = get_shipped_settings(model, entry.data) | entry.settings
            cells = [_name_stream(entry), f"`{model}`", f"{settings['length']}", f"{settings['batch']}"]
            cells += [f"{len(records)} of {entry.seeds}", _format_epochs(records)]
            values = [collect_ap(records, setting) for setting in SCOPES]
            published = [_find_published(entry.data, setting, model) for setting in SCOPES]
            for own, other in zip(values, published, strict=True):
                cells += [str(own), _format_published(other)]
            rows.append([*cells, _judge_mean(values[0], published[0], entry.seeds)])
    head = ["stream", "model", "L", "training batch", "seeds", "epochs", "AP, all nodes", "published"]
    return format_rows([*head, "AP, new nodes", "published", "verdict (all nodes)"], rows)


def build_step_table(folder: Path) -> str:
    """Build the table of the default step against the other ones: paired difference over seeds and its interval."""
    rows = []
    for entry in (entry for entry in PAPER_PLAN if entry.variants == STEPS):
        full = collect_ap(_find_records(folder, entry, variant=FULL), "transductive")
        for variant in STEPS[1:]:
            other = collect_ap(_find_records(folder, entry, variant=variant), "transductive")
            shared = [seed for seed in full.by_seed if seed in other.by_seed]
            differences = [100 * (full.by_seed[seed] - other.by_seed[seed]) for seed in shared]
            rows.append(
                [
                    _name_stream(entry),
                    f"`{variant}`",
                    f"{len(shared)} of {entry.seeds}",
                    *_judge_difference(differences, entry.seeds),
                ]
            )
    return format_rows(
        ["stream", "variant", "seeds", "default minus variant, points", "95 % interval", "verdict"], rows
    )


def build_progress_table(folder: Path) -> str:
    """Build the table of what is trained and what is missing, with its estimated time on one NVIDIA H200."""
    rows, total = [], 0.0
    for entry in PAPER_PLAN:
        variants = (
            entry.variants if STUDIES[entry.study].has_variants and entry.study != "robustness" else None
        )
        missing, planned, seconds = 0, 0, 0.0
        for model in entry.models:
            for variant in variants or ("",):
                done = len(_find_records(folder, entry, model, variant))
                planned += entry.seeds
                missing += entry.seeds - done
                seconds += (entry.seeds - done) * _estimate_seconds(entry, model, variant)
        total += seconds
        cells = [STUDIES[entry.study].title.partition(" (")[0], _name_stream(entry), entry.cell]
        time = format_rough_duration(seconds) if missing else "-"
        rows.append([*cells, f"{planned - missing} of {planned}", time])
    table = format_rows(["study", "stream", "other settings", "trained", "missing, estimate"], rows)
    return (
        f"{table}\n\nEverything that is missing takes about {format_rough_duration(total)}; trainings that two rows "
        "share are counted twice."
    )


def _find_records(
    folder: Path, entry: PlannedStudy, model: str = "dyg-mamba", variant: str = ""
) -> list[ResultRecord]:
    """Return the records of the trainings of one cell."""
    return [
        record
        for record in read_records(folder, FILE)
        if record.work == "link"
        and (record.data, record.model) == (entry.data, model)
        and (record.about["study"], record.about.get("cell", "")) == (entry.study, entry.cell)
        and variant in ("", str(record.about.get("variant", record.about.get("length", ""))))
        and not record.changed.keys() - entry.settings.keys()
    ]


def _name_stream(entry: PlannedStudy) -> str:
    return STREAMS[entry.data].partition(" (")[0]


def _format_epochs(records: list[ResultRecord]) -> str:
    epochs = sorted(record.cost["epochs"] for record in records)
    return "-" if not epochs else f"{epochs[0]} to {epochs[-1]}"


def _find_published(data: str, setting: str, model: str) -> PublishedValue | None:
    values = published_values(data, setting, "random")
    return next(
        (value for name, value in values.items() if normalize_name(name) == normalize_name(model)), None
    )


def _format_published(value: PublishedValue | None) -> str:
    return "-" if value is None else f"{value.mean:.2f} ± {value.std or 0:.2f}"


def _judge_mean(values: SeedValues, published: PublishedValue | None, seeds: int) -> str:
    if published is None or len(values.by_seed) < seeds or values.std is None:
        return "no published value" if published is None else "open"
    difference = 100 * values.mean - published.mean
    error = sqrt((100 * values.std) ** 2 / seeds + (published.std or 0) ** 2 / PUBLISHED_SEEDS)
    verdict = "contradicted" if difference < -ERRORS * error else "reproduced"
    return f"{verdict} ({difference:+.2f} ± {ERRORS * error:.2f})"


def _judge_difference(differences: list[float], seeds: int) -> list[str]:
    """Return mean, interval and verdict; open while seeds are missing."""
    if len(differences) < 2:
        return [f"{mean(differences):+.2f}" if differences else "-", "-", "open"]
    half = T_95[len(differences) - 1] * stdev(differences) / sqrt(len(differences))
    center = mean(differences)
    verdict = "open" if len(differences) < seeds else "no effect shown"
    if len(differences) == seeds and abs(center) > half:
        verdict = "default better" if center > 0 else "variant better"
    return [f"{center:+.2f}", f"{center - half:+.2f} to {center + half:+.2f}", verdict]


def _estimate_seconds(entry: PlannedStudy, model: str, variant: str) -> float:
    settings = get_shipped_settings(model, entry.data) | entry.settings
    length = float(variant) if entry.study == "length" else float(settings.get("length", 1))
    size = {"events": float(EVENTS[entry.data]), "length": length, "patch": float(settings.get("patch", 1))}
    cost = estimate_training(model, entry.data, "cuda", size)
    return 0.0 if cost is None else cost.epoch_seconds * min(cost.epochs, settings["epochs"])
