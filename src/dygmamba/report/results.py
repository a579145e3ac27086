"""Results of runs and baselines as tables: metrics of pairs or labels, ranks and calibration, and by query type.

Rows are plain dictionaries, as `RunDirectory.results` returns them. Rows of one evaluation that differ in their seed
share a line. A terminal, a report and a notebook show the same tables.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from dygmamba.report.document import Cell, Document, ReportTable, Section
from dygmamba.tasks.metric_names import (
    CONSTANT_PREFIX,
    CONSTANT_TITLES,
    ERROR_SUFFIX,
    NODE_METRICS,
    QUERY_TYPE_LABELS,
    SCOPE_LABELS,
    find_metric,
    format_metric,
    format_seeds,
    get_metric_title,
    is_rank_metric,
    list_changes,
    list_metrics,
)

Row = dict[str, Any]
Rows = list[Row]
Baselines = Sequence[Row]

MIN_EVENTS = 50  # with fewer, a figure may be chance: a table says so, and no chart is drawn
SHOWN_BASELINES = 3  # of each evaluation, in a terminal; the report of a run has all of them
VISIBILITY_TITLES = {
    "strict": "only strictly earlier events are visible",
    "batch": "all events of earlier batches are visible",
}
PAIR_KEYS = ("split", "setting", "negatives")  # what a row of pairs was evaluated on
SIZE_TITLES = {"n": "events", "ranked": "ranked events"}  # by key of the values of a query type
BEST_BASELINE = "AP of the best baseline"
TYPE_EXPLANATION = (
    "by what happened before: the two nodes had an event with each other, both had events but none with each other, or "
    "one of them had none at all. AP compares the events of a type with their own negatives, all at once; MRR ranks a "
    "sample of them among random destinations"
)


def build_results_document(
    rows: Rows,
    baselines: Baselines = (),
    verdicts: Sequence[str] = (),
    selections: Sequence[Section] = (),
    ranking: Sequence[Row] = (),
) -> Document:
    """Build the results of a training or an evaluation, with the best baselines.

    Args:
        rows: Result rows of one model, of one seed or several.
        baselines: Result rows of baselines on the same pairs.
        verdicts: Sentences that compare the model with the best baseline.
        selections: What was tried within a budget.
        ranking: Rows of ranks among all destinations, of the model and of baselines.
    """
    tables = build_result_tables(rows, baselines, SHOWN_BASELINES)
    tables += build_ranking_tables(ranking, rows[0]["model"], SHOWN_BASELINES)
    typed = filter(None, map(select_typed_rows, split_ranked(rows)))
    tables += tuple(build_type_table(own, baselines) for own in typed)
    results = Section("Results", "\n".join(verdicts), tables)
    return Document(_describe_model(rows), "; ".join(describe_evaluation(rows)), (*selections, results))


def build_result_tables(
    rows: Rows, baselines: Baselines = (), most_baselines: int | None = None
) -> tuple[ReportTable, ...]:
    """Build the tables of an evaluation; `most_baselines` limits the baselines of each line, best AP first.

    That by query type is `build_type_table`.
    """
    others, ranked = split_ranked(rows)
    judged = [row for row in others if row.get("setting") and (row.get("mrr") or row.get("ece")) is not None]
    best_first = sorted(baselines, key=lambda row: row.get("ap") or 0.0, reverse=True)
    tables = []
    if others:
        tables.append(build_metric_table(others, best_first, most_baselines))
    if judged:
        tables.append(build_rank_table(judged, best_first, most_baselines))
    if ranked:
        tables.append(_build_candidate_table(ranked))
    return tuple(tables)


def split_ranked(rows: Rows) -> tuple[Rows, Rows]:
    """Return the rows of pairs and labels, and those of ranks among candidates that were asked for."""
    return [row for row in rows if "ties" not in row], [row for row in rows if "ties" in row]


def build_metric_table(
    rows: Rows, baselines: Baselines = (), most_baselines: int | None = None
) -> ReportTable:
    """Build the table of a node task, or of pairs: a line per split, nodes and negatives, then the baselines."""
    if "setting" not in rows[0]:  # a node task
        return _build_node_table(rows)
    counts = {"events": _count("n")}
    if any("activity_weight" in row for row in rows):
        counts |= {"activity weight": lambda row: f"{row.get('activity_weight', 0):.2g}"}
    beside = _group_baselines(baselines, PAIR_KEYS, most_baselines)
    return _build_table(group_rows(rows, PAIR_KEYS), list_metrics("pairs"), counts, beside=beside)


def build_rank_table(rows: Rows, baselines: Baselines = (), most_baselines: int | None = None) -> ReportTable:
    """Build a table of ranks among candidates and of calibration errors, a line per split and nodes.

    Ranks do not depend on the kind of negatives, so of several kinds the first one with a value counts.
    """
    keys, among = PAIR_KEYS[:2], next((row["candidates"] for row in rows if row.get("candidates")), None)
    metrics, groups = _list_known(rows, list_metrics("ranks", "probabilities")), group_rows(rows, keys)
    ranked = [row for row in baselines if row.get("mrr") is not None]
    about = [] if among is None else [f"ranks among {among} random destinations"]
    is_one_seed = all(len(_select_negatives(own, name)) < 2 for own in groups.values() for name in metrics)
    if is_one_seed and any(row.get(f"{name}{ERROR_SUFFIX}") for row in rows for name in metrics):
        about.append("± standard error")
    if any(find_metric(name).group == "probabilities" for name in metrics):
        about.append("calibration error (ECE) against random pairs")
    counts = {} if among is None else {"ranked events": _count_ranked}
    beside = _group_baselines(ranked, keys, most_baselines)
    return _build_table(groups, metrics, counts, about, beside, "ranks and calibration")


def build_ranking_tables(
    ranking: Sequence[Row], model: str, most_baselines: int | None = None
) -> tuple[ReportTable, ...]:
    """Build the table of ranks among all destinations, of a model and of baselines; none without such rows."""
    own = [row for row in ranking if row["model"] == model]
    others = [row for row in ranking if row["model"] != model]
    title = "ranks among all destinations"
    return (_build_candidate_table(own, others, most_baselines, title),) if own else ()


def _build_candidate_table(
    rows: Rows, baselines: Baselines = (), most_baselines: int | None = None, title: str = ""
) -> ReportTable:
    """Build a table of the ranking metrics that were asked for, a line per split and nodes, then the baselines."""
    first, groups = rows[0], group_rows(rows, PAIR_KEYS[:2])
    among = f"among {first['candidates']} destinations{', filtered' if first['filtered'] else ''}"
    among = f"among the candidates of {first['board']}" if first.get("board") else among
    about = [f"ranks {among}", f"ties: {first['ties']}"]
    about += ["± standard error"] * (len(rows) == len(groups))
    metrics = tuple(filter(is_rank_metric, first))
    beside = _group_baselines(baselines, PAIR_KEYS[:2], most_baselines)
    return _build_table(groups, metrics, {"events": _count("n")}, about, beside, title)


def _build_node_table(rows: Rows) -> ReportTable:
    """Build the table of a node task; the note says whether the backbone was trained too."""
    first, groups = rows[0], group_rows(rows, ("split",))
    target = first.get("target", "binary")
    about = ["no backbone"]
    if "finetune" in first:
        about = [f"backbone {'fine-tuned' if first['finetune'] else 'frozen'}"]
    about += ["classes weighed the same"] * bool(first.get("balance"))
    names = (*NODE_METRICS[target], *_list_known(rows, list_metrics("probabilities")))
    counts = {name: _count(name) for name in ("positives", "classes") if name in first}
    constants = {
        label: [(f"always the {CONSTANT_TITLES[target]}", constant)]
        for label, own in groups.items()
        if (constant := _find_constant(own[0]))
    }
    return _build_table(groups, names, counts | {"events": _count("n")}, about, constants)


def _find_constant(row: Row) -> Row:
    """Return the metrics of the best constant prediction; empty if the run has none."""
    prefix = CONSTANT_PREFIX
    return {
        name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix) and value
    }


def select_typed_rows(rows: Rows) -> Rows:
    """Return the rows that the table by query type shows: all nodes, of the test if it was evaluated."""
    typed = [row for row in rows if "by_type" in row and row["setting"] == "transductive"]
    return [row for row in typed if row["split"] == "test"] or typed


def build_type_table(rows: Rows, baselines: Baselines = ()) -> ReportTable:
    """Build a table with a line per negatives and query type, for all nodes."""
    names = dict.fromkeys(name for row in rows for one in row["by_type"].values() for name in one)
    metrics = [name for name in names if name not in SIZE_TITLES]
    counts = {title: _count(name) for name, title in SIZE_TITLES.items() if name in names}
    lines = []
    for about, own in group_rows(rows, ("split", "negatives")).items():
        best = _find_best_by_type(own[0], baselines)
        groups = {
            f"{about}: {label}": [row["by_type"][name] for row in own]
            for name, label in QUERY_TYPE_LABELS.items()
        }
        own_lines = _build_lines(groups, metrics, counts)
        lines += [(*line, Cell(best[name], "soft")) for line, name in zip(own_lines, best, strict=True)]
    columns = ("query type", *map(get_metric_title, metrics), *counts, BEST_BASELINE)
    note = "; ".join([TYPE_EXPLANATION, *describe_evaluation(rows)])
    table = ReportTable("by query type, all nodes", note, columns, tuple(lines), (BEST_BASELINE,))
    return table.drop_empty_columns()


def _find_best_by_type(own: Row, baselines: Baselines) -> dict[str, str]:
    """Return the AP and the name of the best baseline on the same pairs by query type; empty without baselines."""
    same = [
        row
        for row in baselines
        if "by_type" in row and _label_row(row, PAIR_KEYS) == _label_row(own, PAIR_KEYS)
    ]
    best = {}
    for name in QUERY_TYPE_LABELS:
        known = [(row["by_type"][name].get("ap"), row["model"]) for row in same]
        ap, model = max(((ap, model) for ap, model in known if ap is not None), default=(None, ""))
        best[name] = f"{format_metric('ap', ap)} {model}" if model else ""
    return best


def find_best_value(metric: str, values: Iterable[float | None]) -> float | None:
    """Return the best value of a metric: the lowest of an error, else the highest; None without values."""
    known = [value for value in values if value is not None]
    return (min if find_metric(metric).lower_is_better else max)(known, default=None)


def describe_evaluation(rows: Rows) -> list[str]:
    """Return which events are visible, and what is not as usual."""
    return [
        *dict.fromkeys(VISIBILITY_TITLES[row["visible"]] for row in rows if "visible" in row),
        *list_changes(rows),
    ]


def _describe_model(rows: Rows) -> str:
    """Return the model, the dataset and the number of runs behind a line, for the title of a table."""
    seeds = max(len(own) for own in group_rows(rows, PAIR_KEYS).values())
    spread = f", mean ± std of {seeds}" if seeds > 1 else ""
    # rows of earlier versions have no dataset
    dataset = f" on {rows[0]['dataset']}" if "dataset" in rows[0] else ""
    return f"{rows[0]['model']}{dataset}{spread}"


def _describe_lines(groups: Mapping[str, Rows], about: Iterable[str] = ()) -> str:
    """Return the note of a table: what is special about it, lines with few events, and how it was evaluated."""
    sizes = {label: own[0].get("n", MIN_EVENTS) for label, own in groups.items()}
    few = [
        f"{label} has only {events} events, so its figures say little"
        for label, events in sizes.items()
        if events < MIN_EVENTS
    ]
    if len(few) == len(sizes) > 1 == len(set(sizes.values())):
        few = [f"each evaluation has only {max(sizes.values())} events, so its figures say little"]
    return "; ".join([*about, *few, *describe_evaluation([row for own in groups.values() for row in own])])


def group_rows(rows: Rows, keys: Sequence[str]) -> dict[str, Rows]:
    """Group rows by what they were evaluated on, in the order in which that first appears."""
    groups: dict[str, Rows] = {}
    for row in rows:
        groups.setdefault(_label_row(row, keys), []).append(row)
    return groups


def _label_row(row: Row, keys: Sequence[str]) -> str:
    values = {key: str(row[key]) for key in keys if row.get(key)}
    return ", ".join(
        SCOPE_LABELS.get(value, value) if key == "setting" else value for key, value in values.items()
    )


def _group_baselines(
    baselines: Baselines, keys: Sequence[str], most: int | None
) -> dict[str, list[tuple[str, Row]]]:
    """Return baselines on the test, best AP first, by what they were evaluated on."""
    groups = group_rows([row for row in baselines if row["split"] == "test"], keys)
    found = {label: {f"baseline {row['model']}": row for row in own} for label, own in groups.items()}
    return {label: list(own.items())[:most] for label, own in found.items()}


def _list_known(rows: Rows, metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the metrics that a row has."""
    return tuple(name for name in metrics if any(row.get(name) is not None for row in rows))


def _count(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row[name]:,}" if row.get(name) is not None else ""


def _count_ranked(row: Row) -> str:
    return f"{row['ranked']:,} of {row['n']:,}" if row.get("ranked") else "-"


def _build_table(
    groups: Mapping[str, Rows],
    metrics: Sequence[str],
    counts: Mapping[str, Callable[[Row], str]],
    about: Iterable[str] = (),
    beside: Mapping[str, list[tuple[str, Row]]] | None = None,
    title: str = "",
) -> ReportTable:
    """Build a table with a line per group of rows, followed by the lines `beside` it."""
    columns = ("evaluation", *map(get_metric_title, metrics), *counts)
    title = title or _describe_model([row for own in groups.values() for row in own])
    lines = _build_lines(groups, metrics, counts, beside)
    details = tuple(get_metric_title(name) for name in metrics if find_metric(name).shown == "table")
    return ReportTable(title, _describe_lines(groups, about), columns, lines, details)


def _build_lines(
    groups: Mapping[str, Rows],
    metrics: Sequence[str],
    counts: Mapping[str, Callable[[Row], str]],
    beside: Mapping[str, list[tuple[str, Row]]] | None = None,
) -> tuple[tuple[Cell, ...], ...]:
    """Return a line per group of rows, followed by the lines `beside` it; the best value of each metric is marked."""
    lines = []
    for label, own in groups.items():
        others = (beside or {}).get(label, [])
        values = {name: [row[name] for row in _select_negatives(own, name)] for name in metrics}
        best = {
            name: find_best_value(
                name, [mean(values[name]) if values[name] else None, *(row.get(name) for _, row in others)]
            )
            for name in metrics
        }
        cells = [
            Cell(
                format_seeds(name, values[name], own[0].get(f"{name}{ERROR_SUFFIX}")),
                "best" if others and values[name] and mean(values[name]) == best[name] else "",
            )
            for name in metrics
        ]
        lines.append((Cell(label), *cells, *(Cell(format_count(own[0])) for format_count in counts.values())))
        for name, row in others:
            cells = [
                Cell(
                    format_metric(metric, row.get(metric), row.get(f"{metric}{ERROR_SUFFIX}")),
                    "best" if row.get(metric) == best[metric] is not None else "soft",
                )
                for metric in metrics
            ]
            lines.append((Cell(name, "soft"), *cells, *(Cell("") for _ in counts)))
    return tuple(lines)


def _select_negatives(rows: Rows, metric: str) -> Rows:
    """Return the rows with a value, of one kind of negatives: ranks do not depend on it, and each kind repeats them."""
    known = [row for row in rows if row.get(metric) is not None]
    return [row for row in known if row.get("negatives") == known[0].get("negatives")]
