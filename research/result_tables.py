"""Tables that compare stored results with simple rules and published values, as Markdown; `results_page` inserts them.

Results of the shipped settings are expected in `defaults.json`: what `dygmamba reproduce link` writes for the models of
HEADLINE_MODELS and the heuristics on STREAMS. The tables take a model's records on a stream from the first file of
HEADLINE_FILES that has any, and mark records whose settings differ from the shipped ones. A stream without any record
has no row, so a table is complete as soon as its records are stored.
"""

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from dygmamba.core.choices import PUBLISHED_NEGATIVES
from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.models import MODELS
from dygmamba.models.stored_settings import update_stored_settings
from dygmamba.report.published import published_values
from dygmamba.report.published_leaks import (
    PROGRAMS,
    PUBLISHED_BATCH,
    JudgedValue,
    LeakLabel,
    judge_published_values,
    load_channels,
)
from dygmamba.report.result_records import ResultRecord, SeedValues, StudyResults
from dygmamba.report.short_training import (
    NEUTRAL_SETTINGS,
    describe_training,
    format_setting,
    get_shipped_settings,
    name_label,
)
from dygmamba.studies.studies import FULL, PUBLISHED_HEURISTICS
from dygmamba.tasks.metric_names import EARLIER_EVENTS, SCOPE_LABELS

DEFAULTS_FILE = "defaults"
HEADLINE_MODELS = ("trees", "walk-trees", "dyg-mamba-counts", "dyg-mamba")
RULES_FILE = "heuristics"  # all models without training on all streams, with every strictly earlier event
PAPER_FILE = "link"  # what `dygmamba reproduce link` writes for the paper's models
HEADLINE_FILES = ("paper", DEFAULTS_FILE, "fading-mamba", "all-uci", "all-four", "trees", "walk-trees")
STREAMS = {
    "uci": "UCI (messages)",
    "wikipedia": "Wikipedia (edits), no features",
    "enron": "Enron (e-mail)",
    "CanParl": "Can. Parl. (votes)",
    "USLegis": "US Legis. (co-sponsors)",
    "mooc": "MOOC (actions of students)",
    "x_bitcoin_otc": "Bitcoin OTC (ratings)",
    "x_sp_workplace": "contacts in a workplace",
}
TIME_STREAMS = ("x_bitcoin_otc", "x_sp_workplace")  # of the protocol `time`
OLD_DRAW = "negatives of the whole stream"  # of records from before `time` drew them from earlier events
PARTS = (FULL, "counts", "counts-head", "walks", "counts-walks")
MEMORY_MODELS = ("jodie", "dyrep", "tgn")
NOT_SHIPPED = "†"
EDGE_UNITS = "edge_units"
# Settings, channels and pair features of inputs that no stored stream has, categories of events and node tables:
# without effect on it.
ABSENT_INPUTS = ("event_types", "association_types", "node_columns", "event-types", "node-features")


def build_headline_table(folder: Path, setting: str = "transductive", only_shipped: bool = True) -> str:
    """Build the table of the main models: test AP with random negatives, mean and standard deviation over seeds.

    Bold is a value that is above all others of its row by more than two standard errors of the difference.

    Args:
        folder: Folder of the stored results.
        setting: "transductive" or "inductive".
        only_shipped: Whether to leave out records whose settings are not the shipped ones; otherwise they are marked.
    """
    streams = {data: _find_headline_records(folder, data, only_shipped) for data in STREAMS}
    models = [model for model in HEADLINE_MODELS if any(groups[model] for groups in streams.values())]
    rows, notes = [], {}
    for data, groups in streams.items():
        title, values = STREAMS[data], {model: collect_ap(groups[model], setting) for model in models}
        if not any(value.by_seed for value in values.values()):
            continue
        rule, rule_ap = _find_best_rule(folder, data, setting)
        comparable = {model: value for model, value in values.items() if has_present_draw(groups[model])}
        leader = _find_leader({**comparable, rule: SeedValues({None: rule_ap} if rule else {})})
        cells = []
        for model, value in values.items():
            text = f"**{value}**" if model == leader else str(value)
            group = groups[model]
            if group and "length" in group[0].settings:
                text += f", L = {group[0].settings['length']}"
            if changed := _describe_changed_settings(group):
                text += f" {NOT_SHIPPED}"
                notes.setdefault((model, changed), []).append(title.partition(" (")[0])
            cells.append(text)
        rule_cell = f"{100 * rule_ap:.2f} `{rule}`" if rule else "-"
        cells.append(f"**{rule_cell}**" if rule == leader else rule_cell)
        seeds = sorted({len(value.by_seed) for value in values.values() if value.by_seed})
        rows.append([title, *cells, format_best_published(data, setting), ", ".join(map(str, seeds))])
    head = [*(f"`{model}`" for model in models), "best baseline", "best published without leaks", "seeds"]
    table = format_rows(["stream", *head], rows)
    if not notes:
        return table
    texts = [
        f"`{model}` on {', '.join(streams)} with {changed}" for (model, changed), streams in notes.items()
    ]
    return f"{table}\n\n{NOT_SHIPPED} not the shipped settings: {'; '.join(texts)}."


def _find_leader(values: dict[str, SeedValues]) -> str | None:
    """Return the name of the value that two standard errors separate from every other; None if there is none.

    The spread of a single trained seed is not known: it counts as the largest of the row.
    """
    known = {name: value for name, value in values.items() if value.by_seed}
    spread = max((value.std or 0.0 for value in known.values()), default=0.0)

    def get_variance(value: SeedValues) -> float:
        if None in value.by_seed:  # a model without training
            return 0.0
        return (spread if value.std is None else value.std) ** 2 / len(value.by_seed)

    best, *others = sorted(known, key=lambda name: known[name].mean, reverse=True)
    for other in others:
        error = math.sqrt(get_variance(known[best]) + get_variance(known[other]))
        if known[best].mean - known[other].mean <= 2 * error:
            return None
    return best


def _find_headline_records(folder: Path, data: str, only_shipped: bool) -> dict[str, list[ResultRecord]]:
    found = {model: find_records(folder, data, model) for model in HEADLINE_MODELS}
    if not only_shipped:
        return found
    return {model: [] if _describe_changed_settings(group) else group for model, group in found.items()}


def build_rules_table(folder: Path, setting: str = "transductive", negatives: str = "random") -> str:
    """Build the table of models without training, EdgeBank also as published, and the best trained model."""
    rules = [name for name, spec in MODELS.items() if not spec.trainable]
    rows, shown = [], set()
    for data, title in STREAMS.items():
        found = {
            rule: collect_ap(_find_rule_records(folder, data, rule), setting, negatives) for rule in rules
        }
        lagging = collect_ap(_find_rule_records(folder, data, "edgebank"), setting, negatives, "batch")
        groups = {model: find_records(folder, data, model) for model in HEADLINE_MODELS}
        trained = {
            model: collect_ap(group, setting, negatives)
            for model, group in groups.items()
            if has_present_draw(group)
        }
        known = {model: value.mean for model, value in trained.items() if value.by_seed}
        if not any(value.by_seed for value in found.values()):
            continue
        # half a point is the AP of a rule that gives a pair and its negative the same score
        telling = {rule: value for rule, value in found.items() if value.by_seed and value.mean != 0.5}
        shown |= set(telling)
        best_rule = max(telling, key=lambda rule: telling[rule].mean)
        cells = {rule: str(value) for rule, value in telling.items()}
        cells[best_rule] = f"**{cells[best_rule]}**"
        best = max(known, key=lambda model: known[model]) if known else None
        model_cell = f"{trained[best]} `{best}`" if best else "-"
        rows.append((title.partition(" (")[0], str(lagging) if lagging.by_seed else "-", cells, model_cell))
    columns = [rule for rule in rules if rule in shown]
    head = ["stream", "`edgebank` as published", *(f"`{rule}`" for rule in columns), "best trained model"]
    return format_rows(
        head,
        [
            [title, lagging, *(cells.get(rule, "-") for rule in columns), model]
            for title, lagging, cells, model in rows
        ],
    )


def _find_rule_records(folder: Path, data: str, rule: str) -> list[ResultRecord]:
    """Return all records of a model without training on a stream."""
    return [
        record
        for record in read_records(folder, RULES_FILE)
        if (record.work, record.data, record.model) == ("heuristic", data, rule)
    ]


def build_negatives_table(folder: Path) -> str:
    """Build the table of trees trained with random and with mixed negatives, by the negatives of the test."""
    head = ["stream", "trained with", "random", "new nodes, random", "historical", "inductive", "seeds"]
    rows, shown = [], []
    for data, title in STREAMS.items():
        for trained_with, file in (("random", "trees"), ("mixed", "trees-mixed")):
            group = [record for record in read_records(folder, file) if record.data == data]
            if not group or not find_records(folder, data, "trees", ("trees-mixed",)):
                continue
            values = [
                collect_ap(group, "transductive"),
                collect_ap(group, "inductive"),
                *(collect_ap(group, "transductive", negatives) for negatives in PUBLISHED_NEGATIVES[1:]),
            ]
            rows.append([title, trained_with, *map(str, values), str(len(values[0].by_seed))])
            shown += group
        published = [
            format_best_published(data, *evaluation)
            for evaluation in (
                ("transductive", "random"),
                ("inductive", "random"),
                ("transductive", "historical"),
                ("transductive", "inductive"),
            )
        ]
        if rows and rows[-1][0] == title:
            rows.append([title, "best published without leaks", *published, ""])
    return format_rows(head, rows, shown)


def build_parts_table(folder: Path) -> str:
    """Build the table of counts and walks inside DyG-Mamba: test AP of all nodes and of new nodes."""
    rows, shown = [], []
    for data, title in STREAMS.items():
        records = [
            record
            for file in ("parts-uci", "parts")
            for record in read_records(folder, file)
            if record.data == data
        ]
        if not records:
            continue
        cells = []
        for part in PARTS:
            group = [record for record in records if record.about.get("variant") == part]
            values = [collect_ap(group, setting) for setting in SCOPE_LABELS]
            seeds = len(values[0].by_seed)
            cells.append(f"{values[0]} / {values[1]} ({seeds})" if seeds else "-")
        rows.append([title, *cells])
        shown += records
    return format_rows(["stream", *(f"`{part}`" for part in PARTS)], rows, shown)


def build_memory_table(folder: Path) -> str:
    """Build the table of models with a memory: continued, replayed, and with published visibility."""
    rows, shown = [], []
    for data in ("uci", "enron", "wikipedia", "USLegis", "CanParl"):
        published = {
            normalize_name(model): value
            for model, value in published_values(data, "transductive", "random").items()
        }
        for model in MEMORY_MODELS:
            groups = [
                (find_records(folder, data, model, files), visible)
                for files, visible in (
                    (("all-uci", "all-four"), "strict"),
                    (("replayed",), "strict"),
                    (("visible",), "batch"),
                )
            ]
            values = [collect_ap(group, "transductive", visible=visible) for group, visible in groups]
            shown += [record for group, _ in groups for record in group]
            value = published[model]
            cells = [str(one) if one.by_seed else "" for one in values]
            rows.append(
                [f"{STREAMS[data].partition(' (')[0]} {model}", *cells, f"{value.mean:.2f} ± {value.std:.2f}"]
            )
    head = ["dataset and model", "continued", "replayed", "continued, published visibility", "published"]
    return format_rows(head, rows, shown)


def build_best_published_table(_: Path) -> str:
    """Build the table of the best published values without leaks, for every kind of negatives."""
    rows = []
    for data, title in STREAMS.items():
        for setting, label in SCOPE_LABELS.items():
            cells = [format_best_published(data, setting, negatives) for negatives in PUBLISHED_NEGATIVES]
            if any(cell != "none" for cell in cells):
                rows.append([title.partition(" (")[0], label, *cells])
    return format_rows(["stream", "nodes", *PUBLISHED_NEGATIVES], rows)


def build_paper_table(folder: Path, data: str) -> str:
    """Build the table of the models with a published AP on a dataset: ours / published, a dash without a record."""
    evaluations = [
        *(("transductive", negatives) for negatives in PUBLISHED_NEGATIVES),
        ("inductive", PUBLISHED_NEGATIVES[0]),
    ]
    published = [
        {normalize_name(model): value for model, value in published_values(data, *evaluation).items()}
        for evaluation in evaluations
    ]
    rows, shown = [], []
    for model in MODELS:
        printed = [values.get(normalize_name(model)) for values in published]
        if not any(printed):
            continue
        # a rule of the paper was told of events in batches, and its own record is of that visibility
        visible = "batch" if model in PUBLISHED_HEURISTICS else "strict"
        group = find_records(folder, data, model, (PAPER_FILE, *HEADLINE_FILES, RULES_FILE))
        shown += group
        cells = []
        for evaluation, value in zip(evaluations, printed, strict=True):
            ours = collect_ap(group, *evaluation, visible)
            theirs = "-" if value is None else f"{value.mean:.2f}"
            cells.append(f"{ours} / {theirs}" if ours.by_seed or value is not None else "-")
        seeds = "-" if not group else str(len({record.seed for record in group}))
        rows.append([f"`{model}`", *cells, seeds])
    head = [*(f"{negatives} negatives" for negatives in PUBLISHED_NEGATIVES), "new nodes, random negatives"]
    return format_rows(["model", *head, "seeds"], rows, shown)


def build_programs_table(_: Path) -> str:
    """Build the table of what published programs do that can leak."""
    words = {True: "yes", False: "no", None: "not known"}
    rows = [
        [model, words[program.has_memory], words[program.reads_padding]]
        for model, program in PROGRAMS.items()
    ]
    return format_rows(
        ["program", "memory updated after each batch", "reads padding of separate calls"], rows
    )


def build_channels_table(_: Path) -> str:
    """Build the table of the measured channels with random negatives and all nodes."""
    rows = []
    for data, title in STREAMS.items():
        channels = load_channels().get(normalize_name(data))
        if channels is None:
            continue
        aucs = [
            f"{dst:.3f} (L = {key.split()[2]}, calls of {key.split()[3]})"
            for key, (dst, _) in channels["padding"].items()
            if key.startswith("transductive random ")
        ]
        share = 100 * channels["own_time"]["transductive"]
        rows.append([title.partition(" (")[0], f"{share:.2f} %", ", ".join(aucs)])
    return format_rows(
        ["stream", "events after a batch with their own time", "ROC-AUC of the padded length"], rows
    )


def find_records(
    folder: Path, data: str, model: str, files: Iterable[str] = HEADLINE_FILES
) -> list[ResultRecord]:
    """Return the records of a model on a stream from the first file that has any; may be empty."""
    for file in files:
        records = [
            record
            for record in read_records(folder, file)
            if (record.data, record.model) == (data, model) and _is_main_result(record)
        ]
        if records:
            return records
    return []


def _is_main_result(record: ResultRecord) -> bool:
    """Return whether a record is of a model as it is, not of an ablation or another part of the paper's plan."""
    about = record.about
    if "variant" in about or about.get("study", "link") != "link":
        return False
    return (
        "cell" not in about or record.data in TIME_STREAMS
    )  # which have one cell, as no length is published


def collect_ap(
    records: Iterable[ResultRecord], setting: str, negatives: str = "random", visible: str = "strict"
) -> SeedValues:
    """Return the test AP by seed."""
    wanted = {"split": "test", "setting": setting, "negatives": negatives, "visible": visible}
    return SeedValues(
        {
            record.seed: row["ap"]
            for record in records
            for row in record.rows
            if all(row.get(key) == value for key, value in wanted.items())
        }
    )


def format_best_published(data: str, setting: str, negatives: str = "random") -> str:
    """Format the best published value without leaks; a higher one of which leaks are not known is added."""
    best = best_published_without_leaks(data, setting, negatives)
    unknown = best_published_not_known(data, setting, negatives)
    parts = [_format_judged(one) for one in (best, unknown) if one is not None]
    return "; ".join(parts) or "none"


def _format_judged(judged: JudgedValue) -> str:
    batches = "" if judged.batch == PUBLISHED_BATCH else f", batches of {judged.batch}"
    return f"{judged.value.mean:.2f} {judged.model} ({judged.label}{batches})"


def _find_best_rule(folder: Path, data: str, setting: str) -> tuple[str, float]:
    """Return the name and the AP of the best heuristic with a stored result; "" and 0 without one."""
    for file in (RULES_FILE, *HEADLINE_FILES):
        values = {
            record.model: collect_ap([record], setting)
            for record in read_records(folder, file)
            if record.work == "heuristic" and record.data == data
        }
        means = {model: value.mean for model, value in values.items() if value.by_seed}
        if means:
            best = max(means, key=lambda model: means[model])
            return best, means[best]
    return "", 0.0


def _describe_changed_settings(records: list[ResultRecord]) -> str:
    """Return the settings of stored runs that are not those the package ships for this stream."""
    if not records:
        return ""
    first = records[0]
    shipped = get_shipped_settings(first.model, first.data)
    stored = update_stored_settings(first.model, first.settings)
    if EDGE_UNITS not in first.settings:  # records from before it are of streams where it changes nothing
        stored.pop(EDGE_UNITS, None)
    changed = {
        name: value
        for name, value in stored.items()
        if name in shipped
        and name not in (*NEUTRAL_SETTINGS, *ABSENT_INPUTS)
        and _drop_absent(shipped[name]) != _drop_absent(value)
    }
    texts = [f"{name} = {format_setting(value)}" for name, value in sorted(changed.items())]
    return ", ".join(texts if has_present_draw(records) else [*texts, OLD_DRAW])


def has_present_draw(records: Iterable[ResultRecord]) -> bool:
    """Return whether the negatives of records are drawn as today, so that figures of a stream can be compared."""
    rows = (row for record in records if record.data in TIME_STREAMS for row in record.rows)
    return all(row.get("drawn_from") == EARLIER_EVENTS for row in rows if row.get("visible") == "strict")


def _drop_absent(value: Any) -> str:
    kept = [one for one in value if one not in ABSENT_INPUTS] if isinstance(value, list | tuple) else value
    return json.dumps(kept)


def read_records(folder: Path, file: str) -> tuple[ResultRecord, ...]:
    """Return the records of a file; none if it does not exist."""
    path = folder / f"{file}.json"
    if not path.exists():
        return ()
    return _read_file(path, path.stat().st_mtime_ns)


@cache
def _read_file(path: Path, _: int) -> tuple[ResultRecord, ...]:
    return StudyResults.read(path).records


def format_rows(head: list[str], rows: list[list[str]], records: Iterable[ResultRecord] = ()) -> str:
    """Format a table as Markdown; a sentence below names those that are not as published."""
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
    note = describe_by_model(records)
    return f"{table}\n\n{note}" if note else table


def best_published_without_leaks(dataset: str, setting: str, negatives: str) -> JudgedValue | None:
    """Return the highest published AP that was retrained with leaks closed or is free of the known leaks."""
    return next((one for one in judge_published_values(dataset, setting, negatives) if one.is_free), None)


def best_published_not_known(dataset: str, setting: str, negatives: str) -> JudgedValue | None:
    """Return the highest published AP of which leaks are not known, if it is above the best without leaks."""
    for one in judge_published_values(dataset, setting, negatives):
        if one.is_free:
            return None
        if one.label is LeakLabel.NOT_KNOWN:
            return one
    return None


def describe_by_model(records: Iterable[ResultRecord]) -> str:
    """Return a Markdown sentence that names the changes by model and dataset; "" if there are none."""
    records = list(records)
    found: dict[str, dict[str, dict[str, None]]] = {}
    for record in records:
        if text := describe_training(record):
            found.setdefault(text, {}).setdefault(record.model, {})[record.data] = None
    parts = []
    for text, models in found.items():
        where = (f"`{model}` on {', '.join(datasets)}" for model, datasets in models.items())
        parts.append(f"{text} ({', '.join(where)})")
    return f"{name_label(records).capitalize()}: {' / '.join(parts)}." if parts else ""
