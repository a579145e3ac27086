"""Oracles and bounds of the published evaluation sets, and the published values above them.

    python -m research.ceilings_page docs/research/results DATA_DIR

The command reads the streams from DATA_DIR and writes ceilings.json; `make results` copies its tables to
docs/research/findings.md. Nothing is trained.
"""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dygmamba.auditing.audit import list_published_above
from dygmamba.auditing.oracles import Ceiling, EventsByTime, compute_ceiling
from dygmamba.core.choices import PUBLISHED_NEGATIVES, SCOPES
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.events.splits import Split, chronological_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metric_names import SCOPE_LABELS
from research.ceiling_bounds import compute_bounds

FILE = "ceilings"
STREAMS = {
    "USLegis": "US Legis.",
    "CanParl": "Can. Parl.",
    "enron": "Enron",
    "mooc": "MOOC",
    "uci": "UCI",
    "wikipedia": "Wikipedia",
}
SEEDS = range(10)
DIGITS = 6
LIMITS = ("edge_oracle", "moment_oracle", "posterior_oracle", "expected_bound", "likely_bound", "bound")


def compute_records(data_dir: Path) -> StudyResults:
    """Compute oracles and bounds of the test split of every stream."""
    records = []
    for data in STREAMS:
        store = open_dataset(data, data_dir).store
        split = chronological_split(store)
        records.append(ResultRecord("ceiling", data, "oracles", None, {}, _compute_rows(data, store, split)))
    command = "python -m research.ceilings_page docs/research/results DATA_DIR"
    return StudyResults(FILE, command, tuple(records))


def _compute_rows(data: str, store: EventStore, split: Split) -> list[dict[str, Any]]:
    """Return the fields of `Ceiling`, the published values above the edge oracle, and the oracles over other draws."""
    events_by_time, rows = EventsByTime(store), []
    for setting in SCOPES:
        for negatives in PUBLISHED_NEGATIVES:
            evaluation_set = build_link_set(store, split, "test", setting, negatives)
            ceiling = compute_ceiling(events_by_time, evaluation_set)
            values = asdict(ceiling) | compute_bounds(events_by_time, evaluation_set)
            row: dict[str, Any] = {
                name: round(value, DIGITS) if isinstance(value, float) else value
                for name, value in values.items()
            }
            above = [asdict(value) for value in list_published_above(data, ceiling)]
            names = ("model", "metric", "value", "source")
            row["published_above"] = [{name: value[name] for name in names} for value in above]
            if above:
                row["draws"] = _evaluate_draws(events_by_time, split, ceiling)
            rows.append(row)
    return rows


def _evaluate_draws(events_by_time: EventsByTime, split: Split, ceiling: Ceiling) -> dict[str, list[float]]:
    """Return the lowest and the highest metric of the best oracle over draws of the negatives."""
    store, found = events_by_time.store, []
    for seed in SEEDS:
        evaluation_set = build_link_set(store, split, "test", ceiling.setting, ceiling.negatives, seed=seed)
        one = compute_ceiling(events_by_time, evaluation_set)
        found.append((one.reference_ap, one.reference_auc))
    return {
        metric: [round(limit(values), DIGITS) for limit in (min, max)]
        for metric, values in zip(("ap", "auc"), zip(*found, strict=True), strict=True)
    }


def build_ceiling_table(folder: Path) -> str:
    """Build the table of oracles and bounds: AP / AUC on the test split, mean over batches of 200."""
    heads = ("stream", "nodes", "negatives", "negatives that are events", *LIMITS)
    lines = _start_table(heads)
    for record in _read_records(folder, {}):
        for row in record.rows:
            cells = (STREAMS[record.data], SCOPE_LABELS[row["setting"]], row["negatives"])
            lines.append(
                _join([*cells, f"{100 * row['true_share']:.1f} %", *(_format(row, name) for name in LIMITS)])
            )
    return "\n".join(lines)


def build_published_table(folder: Path) -> str:
    """Build the list of published values above the edge oracle, and of the limits that they exceed."""
    heads = ("stream", "evaluation", "model", "value", "edge oracle", "best oracle", "in ten draws")
    lines = _start_table((*heads, "likely bound", "exceeds"))
    for data, row, value in _list_above(folder):
        metric = value["metric"]
        limits = [row[f"{name}_{metric}"] for name in ("edge_oracle", "reference", "likely_bound", "bound")]
        low, high = row["draws"][metric]
        cells = (
            STREAMS[data],
            f"{SCOPE_LABELS[row['setting']]}, {row['negatives']}",
            value["model"],
            f"{metric.upper()} {value['value']:.2f}",
            *(f"{100 * limit:.2f}" for limit in limits[:2]),
            f"{100 * low:.2f} to {100 * high:.2f}",
            f"{100 * limits[2]:.2f}",
            EXCEEDED[sum(value["value"] > 100 * limit for limit in limits)],
        )
        lines.append(_join(cells))
    return "\n".join(lines)


EXCEEDED = {1: "edge oracle", 2: "best oracle", 3: "likely bound", 4: "bound"}


def build_count_table(folder: Path) -> str:
    """Build the table of the numbers of published values above each limit."""
    lines = _start_table(("stream", "edge oracle", "best oracle", "likely bound", "bound"))
    for data in STREAMS:
        counts = [
            sum(
                value["value"] > 100 * row[f"{name}_{value['metric']}"]
                for stream, row, value in _list_above(folder)
                if stream == data
            )
            for name in ("edge_oracle", "reference", "likely_bound", "bound")
        ]
        lines.append(_join([STREAMS[data], *map(str, counts)]))
    return "\n".join(lines)


def _read_records(folder: Path, about: dict[str, str]) -> list[ResultRecord]:
    records = StudyResults.read(folder / f"{FILE}.json").records
    return [record for record in records if record.about == about]


def _list_above(folder: Path) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return stream, row and published value of every value above the edge oracle."""
    return [
        (record.data, row, value)
        for record in _read_records(folder, {})
        for row in record.rows
        for value in row["published_above"]
    ]


def _start_table(heads: tuple[str, ...]) -> list[str]:
    names = {"reference": "best oracle"}
    return [_join([names.get(head, head).replace("_", " ") for head in heads]), "|---" * len(heads) + "|"]


def _join(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _format(row: dict[str, Any], name: str) -> str:
    return f"{100 * row[f'{name}_ap']:.2f} / {100 * row[f'{name}_auc']:.2f}"


BLOCKS: dict[str, Callable[[Path], str]] = {
    "ceilings": build_ceiling_table,
    "ceilings_published": build_published_table,
    "ceilings_counts": build_count_table,
}


if __name__ == "__main__":
    compute_records(Path(sys.argv[2])).write(Path(sys.argv[1]) / f"{FILE}.json")
