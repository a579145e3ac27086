"""Tables of results for a terminal: a line per evaluation; several seeds become mean ± standard deviation."""

from typing import TYPE_CHECKING, Any

from dygmamba.api.formatting import (
    CONSTANT_PREFIX,
    CONSTANT_TITLES,
    NODE_METRICS,
    QUERY_TYPE_LABELS,
    SETTING_LABELS,
    format_candidate_name,
    format_metric,
    format_rough_duration,
    format_seeds,
    get_metric_title,
    is_rank_metric,
    list_changes,
    list_metrics,
)
from dygmamba.cli.console import plain_table, print_line, print_note, stdout
from dygmamba.cli.messages import escape_text, translate_message

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.api.reports import Document, ReportTable

Rows = list[dict[str, Any]]
MEASURED_KEYS = list_metrics("pairs")
# columns of the second table of link prediction, if the rows have them
SCORE_TITLES = {name: get_metric_title(name) for name in list_metrics("ranks", "probabilities")}
SIZE_TITLES = {"n": "events", "ranked": "ranked events"}  # by key of the values of a query type
TYPE_TITLES = {"ap": "AP", "mrr": "MRR", **SIZE_TITLES}
VISIBILITY_TITLES = {
    "strict": "only strictly earlier events are visible",
    "batch": "all events of earlier batches are visible",
}
# Columns that a narrow terminal does without, dropped in this order.
OPTIONAL_COLUMNS = (
    "AP pooled",
    "AUC",
    "retrained with leaks closed",
    "published: leaks",
    "rank",
    "seeds",
    "vs. published",
    "published AP",
)
COLUMN_GAP = 2
SHOWN_RULES = 3  # heuristics below each line of the test; the report has all of them


def make_result_tables(rows: Rows, rules: Rows | None = None) -> "list[Table]":
    """Make the tables of an evaluation: results, ranks and calibration, ranking metrics, and both by query type."""
    ranks = [row for row in rows if "ties" in row]
    rest = [row for row in rows if "ties" not in row]
    judged = [row for row in rest if row.get("setting") and (row.get("mrr") or row.get("ece")) is not None]
    kinds = (
        (lambda own: make_task_table(own, rules), rest),
        (make_score_table, judged),
        (make_rank_table, ranks),
        *((make_type_table, own) for own in map(_select_typed_rows, (rest, ranks))),
    )
    return [table(own) for table, own in kinds if own]


def make_task_table(rows: Rows, rules: Rows | None = None) -> "Table":
    """Make the table of link prediction or of a node task."""
    return make_node_table(rows) if rows[0].get("task") == "node" else make_link_table(rows, rules or [])


def make_link_table(rows: Rows, rules: Rows | None = None) -> "Table":
    """Make a table with a line per split, setting and negatives; the best heuristics follow each line of the test."""
    keys = ("split", "setting", "negatives")
    best_first = sorted(rules or (), key=lambda rule: rule["ap"], reverse=True)
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    seeds = max(len(own) for own in groups.values())
    title = f"{rows[0]['model']} on {rows[0]['dataset']}" + (f", mean ± std of {seeds}" if seeds > 1 else "")
    title += _describe_evaluation(rows)
    figures = ("AP", "AUC", "AP pooled", "AUC pooled", *(() if seeds > 1 else ("events",)))
    weighed = ("activity weight",) if any("activity_weight" in row for row in rows) else ()
    table = plain_table("split", "nodes", "negatives", title=title, figures=(*figures, *weighed))
    for about, own in groups.items():
        cells = [format_seeds(key, [row[key] for row in own]) for key in MEASURED_KEYS]
        count = () if seeds > 1 else (f"{own[0]['n']:,}",)
        weights = sorted({f"{row.get('activity_weight', 0):.2g}" for row in own}) if weighed else ()
        table.add_row(
            about[0],
            SETTING_LABELS[about[1]],
            about[2],
            *cells,
            *count,
            *([", ".join(weights)] * len(weighed)),
        )
        same = [rule for rule in best_first if about == tuple(rule[key] for key in keys)]
        for rule in same[:SHOWN_RULES] if about[0] == "test" else ():
            table.add_row("", rule["model"], "", *(format_metric(key, rule[key]) for key in MEASURED_KEYS))
    return table


def make_score_table(rows: Rows) -> "Table":
    """Make a table with a line per split and setting: ranks among candidates, and the calibration error.

    The ranks of one run have their standard errors, those of several the standard deviation over the runs.
    """
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault((row["split"], row["setting"]), []).append(row)
    among = next((row["candidates"] for row in rows if row.get("candidates")), None)
    keys = [key for key in SCORE_TITLES if any(row.get(key) is not None for row in rows)]
    known = {about: {key: _select_one_kind(own, key) for key in keys} for about, own in groups.items()}
    is_one_run = all(len(own) < 2 for by_key in known.values() for own in by_key.values())
    spread = " (± standard error)" if is_one_run else ""
    ranking = "" if among is None else f"ranks among {among} random destinations{spread}, "
    figures = (*(SCORE_TITLES[key] for key in keys), *(() if among is None else ("ranked events",)))
    title = f"{ranking}calibration error (ECE) against random pairs{_describe_evaluation(rows)}"
    table = plain_table("split", "nodes", title=title, figures=figures)
    for (split, setting), own in groups.items():
        cells = [
            format_seeds(key, [row[key] for row in rows], rows[0].get(f"{key}_se") if rows else None)
            for key, rows in known[split, setting].items()
        ]
        ranked = [f"{row['ranked']:,} of {row['n']:,}" for row in own if row.get("ranked")]
        count = [] if among is None else [ranked[0] if ranked else "-"]
        table.add_row(split, SETTING_LABELS[setting], *cells, *count)
    return table


def _describe_evaluation(rows: Rows) -> str:
    """Return which events are visible, and what is not as usual, for the title of a table."""
    visible = dict.fromkeys(VISIBILITY_TITLES[row["visible"]] for row in rows if "visible" in row)
    parts = [*visible, *map(escape_text, list_changes(rows))]
    return f" ({'; '.join(parts)})" if parts else ""


def _select_one_kind(rows: Rows, key: str) -> Rows:
    """Return the rows with a value, of one kind of negatives: ranks do not depend on it, and each kind repeats them."""
    known = [row for row in rows if row.get(key) is not None]
    return [row for row in known if row.get("negatives") == known[0].get("negatives")]


def make_rank_table(rows: Rows) -> "Table":
    """Make a table of ranking metrics with a line per split and setting."""
    first = rows[0]
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault((row["split"], row["setting"]), []).append(row)
    seeds = max(len(own) for own in groups.values())
    among = f"among {first['candidates']} destinations{', filtered' if first['filtered'] else ''}"
    among = f"among the candidates of {first['board']}" if first.get("board") else among
    title = f"{first['model']} on {first['dataset']}, ranks {among}, ties: {first['ties']}"
    title += f", mean ± std of {seeds}" if seeds > 1 else ", ± standard error"
    title += _describe_evaluation(rows)
    keys = [key for key in first if is_rank_metric(key)]
    figures = (*(key.upper() if key == "mrr" else key for key in keys), "events")
    table = plain_table("split", "nodes", title=title, figures=figures)
    for about, own in groups.items():
        table.add_row(
            about[0],
            SETTING_LABELS[about[1]],
            *(format_seeds(key, [row[key] for row in own], own[0].get(f"{key}_se")) for key in keys),
            f"{own[0]['n']:,}",
        )
    return table


def _select_typed_rows(rows: Rows) -> Rows:
    """Return the rows that the table by query type shows: all nodes, of the test if it was evaluated."""
    typed = [row for row in rows if "by_type" in row and row["setting"] == "transductive"]
    return [row for row in typed if row["split"] == "test"] or typed


def make_type_table(rows: Rows) -> "Table":
    """Make a table with a line per negatives and query type, for all nodes; several seeds become mean ± std."""
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault((row["split"], row.get("negatives", "")), []).append(row)
    first = rows[0]["by_type"]
    names: list[str] = list(next(iter(first.values())))
    sizes = [name for name in names if name in SIZE_TITLES]
    keys = [name for name in names if name not in SIZE_TITLES]
    figures = tuple(TYPE_TITLES.get(key, key.capitalize()) for key in (*keys, *sizes))
    title = f"by query type, all nodes{_describe_evaluation(rows)}"
    table = plain_table("split", "negatives", "query type", title=title, figures=figures)
    for (split, negatives), own in groups.items():
        for name, label in QUERY_TYPE_LABELS.items():
            values = [row["by_type"][name] for row in own]
            known = {key: [one[key] for one in values if one.get(key) is not None] for key in keys}
            counts = [f"{values[0][key]:,}" for key in sizes]
            table.add_row(
                split,
                negatives,
                label,
                *(format_seeds(key, values) for key, values in known.items()),
                *counts,
            )
    return table


def make_node_table(rows: Rows) -> "Table":
    """Make a table of a node task with a line per split; runs with a backbone say whether it was trained too."""
    first, groups = rows[0], {}
    for row in rows:
        groups.setdefault(row["split"], []).append(row)
    seeds = len(groups[first["split"]])
    title = f"{first['model']} on {first['dataset']}" + (f", mean ± std of {seeds}" if seeds > 1 else "")
    title += _describe_evaluation(rows)
    how = [("fine-tuned" if first["finetune"] else "frozen")] if "finetune" in first else ["none"]
    how += ["balanced"] * first["balance"]
    names = [*NODE_METRICS[first.get("target", "binary")], *(["ece"] if "ece" in first else [])]
    counts = [name for name in ("positives", "classes") if name in first]
    figures = (*map(get_metric_title, names), *counts, "events")
    table = plain_table("split", "backbone", title=title, figures=figures)
    for split, own in groups.items():
        cells = [format_seeds(name, [row[name] for row in own if row[name] is not None]) for name in names]
        sizes = (f"{own[0][name]:,}" for name in (*counts, "n"))
        table.add_row(split, ", ".join(how), *cells, *sizes)
        if constant := _list_constant_cells(own[0], names):
            table.add_row("", CONSTANT_TITLES[own[0]["target"]], *constant, *("" for _ in (*counts, "n")))
    return table


def _list_constant_cells(row: dict[str, Any], names: list[str]) -> list[str]:
    """Return the metrics of the best constant prediction; none if the run has none."""
    values = [row.get(f"{CONSTANT_PREFIX}{name}") for name in names]
    if all(value is None for value in values):
        return []
    return [
        "" if value is None else format_metric(name, value) for name, value in zip(names, values, strict=True)
    ]


def print_selection(selection: dict[str, Any]) -> None:
    """Print what was tried within a time budget: the trained models, those that were skipped, and the reason."""
    title = f"models tried within {format_rough_duration(selection['budget'])} (validation AP ± two standard errors)"
    table = plain_table("model", title=title, figures=("val AP", "epochs", "time", "memory"))
    table.add_column("ended by")
    skipped = []
    for row in selection["candidates"]:
        name = format_candidate_name(row)
        if row["state"] == "skipped":
            skipped.append(f"skipped {name}: {row['reason']}")
            continue
        spread = "" if row["val_ap_error"] is None else f" ± {200 * row['val_ap_error']:.2f}"
        table.add_row(
            name,
            f"{100 * row['val_ap']:.2f}{spread}",
            "" if row["epochs"] is None else str(row["epochs"]),
            "" if row["seconds"] is None else format_rough_duration(row["seconds"]),
            "" if row["peak_mb"] is None else f"{row['peak_mb'] / 1000:.1f} GB",
            row["ended"] or "",
        )
    stdout().print(table)
    for line in (*skipped, f"chosen: {selection['reason']}"):
        print_line(translate_message(line))


def print_document(document: "Document") -> None:
    """Print the tables of a page, none wider than the terminal; columns that do not fit are named on stderr."""
    console, dropped = stdout(), {}
    for section in document.sections:
        for table in section.tables:
            fitting, left_out = fit_table(table, console.width)
            console.print(make_rich_table(fitting, console.width))
            dropped |= dict.fromkeys(left_out)
    if dropped:
        print_note(f"left out, too wide for this terminal: {', '.join(dropped)}")


def fit_table(table: "ReportTable", width: int) -> "tuple[ReportTable, list[str]]":
    """Drop optional columns until a table fits; returns it and the names of the dropped columns."""
    dropped = []
    for name in OPTIONAL_COLUMNS:
        if sum(_narrowest_widths(table)) + COLUMN_GAP * (len(table.columns) - 1) <= width:
            break
        if name in table.columns:
            table = table.drop_column(name)
            dropped.append(name)
    return table, dropped


def _narrowest_widths(table: "ReportTable", break_cells: bool = False) -> list[int]:
    """Return how wide each column must be: headings and cells of text break between words, others if `break_cells`."""
    widths = []
    for index, name in enumerate(table.columns):
        parts = name.split()
        for cell in (row[index] for row in table.rows):
            parts += cell.text.split() if break_cells or cell.tone == "words" else [cell.text]
        widths.append(max(map(len, parts), default=0))
    return widths


def make_rich_table(table: "ReportTable", width: int) -> "Table":
    """Make a terminal table: headings stay on one line if there is room, and cells break if there is none."""
    from rich.text import Text

    styles = {"best": "bold", "good": "green", "bad": "red", "soft": "dim"}
    rich_table = plain_table(table.columns[0], title=table.title, figures=table.columns[1:])
    for index, column in enumerate(rich_table.columns):
        if table.rows and table.rows[0][index].tone == "words":
            column.justify = "left"
    widths, gaps = _narrowest_widths(table), COLUMN_GAP * (len(table.columns) - 1)
    if sum(widths) + gaps > width:
        widths = _narrowest_widths(table, break_cells=True)
    room = width - sum(widths) - gaps
    if room >= 0:
        for index, (column, narrowest) in enumerate(zip(rich_table.columns, widths, strict=True)):
            widest = max(map(len, [table.columns[index], *(row[index].text for row in table.rows)]))
            more = max(0, min(widest - narrowest, room))
            column.width, room = narrowest + more, room - more
    for row in table.rows:
        rich_table.add_row(*(Text(escape_text(cell.text), style=styles.get(cell.tone, "")) for cell in row))
    return rich_table
