"""Result rows as tables: one line per evaluation; several seeds become mean ± standard deviation."""

from typing import TYPE_CHECKING, Any

from dygmamba.cli.console import mean_and_spread, plain_table
from dygmamba.tasks.asked import NODES

if TYPE_CHECKING:
    from rich.table import Table

MEASURED = ("ap", "auc", "ap_pooled", "auc_pooled")
# what the second table of link prediction shows, where the rows have it
SCORES = {"mrr": "MRR", "hits@10": "Hits@10", "ece_raw": "ECE of logits", "ece": "ECE"}


def tables_of(rows: list[dict[str, Any]], rules: list[dict[str, Any]] | None = None) -> "list[Table]":
    """The tables of an evaluation: ranks stand in one of their own, and so does what scores are worth."""
    if rows[0].get("task") == "property":
        return [property_table(rows)]
    ranks = [row for row in rows if "ties" in row]
    rest = [row for row in rows if "ties" not in row]
    judged = [row for row in rest if row.get("setting") and (row.get("mrr") or row.get("ece")) is not None]
    kinds = ((lambda own: any_table(own, rules), rest), (score_table, judged), (rank_table, ranks))
    return [table(own) for table, own in kinds if own]


def any_table(rows: list[dict[str, Any]], rules: list[dict[str, Any]] | None = None) -> "Table":
    """The table of a task's rows."""
    return node_table(rows) if rows[0].get("task") == "node" else link_table(rows, rules or [])


def link_table(rows: list[dict[str, Any]], rules: list[dict[str, Any]] | None = None) -> "Table":
    """One line per split, setting and negatives; below each of the test, what simple rules reach there."""
    keys = ("split", "setting", "negatives")
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    seeds = max(len(own) for own in groups.values())
    title = f"{rows[0]['model']} on {rows[0]['dataset']}" + (f", mean ± std of {seeds}" if seeds > 1 else "")
    title += f", memory sees {rows[0]['visible']}"
    figures = ("AP", "AUC", "AP pooled", "AUC pooled", *(() if seeds > 1 else ("events",)))
    weighed = ("activity weight",) if any("activity_weight" in row for row in rows) else ()
    table = plain_table("split", "nodes", "negatives", title=title, figures=(*figures, *weighed))
    for about, own in groups.items():
        cells = [mean_and_spread([row[key] for row in own]) for key in MEASURED]
        count = () if seeds > 1 else (f"{own[0]['n']:,}",)
        weights = sorted({f"{row.get('activity_weight', 0):.2g}" for row in own}) if weighed else ()
        table.add_row(
            about[0], NODES[about[1]], about[2], *cells, *count, *([", ".join(weights)] * len(weighed))
        )
        for rule in rules or ():
            if about == tuple(rule[key] for key in keys) and rule["split"] == "test":
                table.add_row("", rule["model"], "", *(f"{100 * rule[key]:.2f}" for key in MEASURED))
    return table


def score_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per split and setting: ranks among candidates, and how far the scores are off as probabilities."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["split"], row["setting"]), []).append(row)
    among = next((row["candidates"] for row in rows if row.get("candidates")), None)
    told = "" if among is None else f"ranks among {among} random destinations, "
    keys = [key for key in SCORES if any(row.get(key) is not None for row in rows)]
    figures = (*(SCORES[key] for key in keys), *(() if among is None else ("ranked",)))
    title = f"{told}calibration error (ECE) against random pairs"
    table = plain_table("split", "nodes", title=title, figures=figures)
    for (split, setting), own in groups.items():
        cells = [mean_and_spread([row[key] for row in own if row.get(key) is not None]) for key in keys]
        ranked = [row["ranked"] for row in own if row.get("ranked")]
        count = [] if among is None else [f"{ranked[0]:,}" if ranked else "-"]
        table.add_row(split, NODES[setting], *cells, *count)
    return table


def rank_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per split and setting."""
    first = rows[0]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["split"], row["setting"]), []).append(row)
    seeds = max(len(own) for own in groups.values())
    among = f"among {first['candidates']} destinations{', filtered' if first['filtered'] else ''}"
    among = f"among the candidates of {first['board']}" if first.get("board") else among
    title = f"{first['model']} on {first['dataset']}, ranks {among}, ties: {first['ties']}"
    title += f", mean ± std of {seeds}" if seeds > 1 else ""
    title += f", memory sees {first['visible']}"
    keys = [key for key in first if key == "mrr" or key.startswith("hits@")]
    figures = (*(key.upper() if key == "mrr" else key for key in keys), "events")
    table = plain_table("split", "nodes", title=title, figures=figures)
    for about, own in groups.items():
        table.add_row(
            about[0],
            NODES[about[1]],
            *(mean_and_spread([row[key] for row in own]) for key in keys),
            f"{own[0]['n']:,}",
        )
    return table


def property_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per period."""
    first = rows[0]
    title = f"{first['model']} on {first['dataset']}, node properties of {first['board']}, labels strictly earlier"
    table = plain_table("split", title=title, figures=("NDCG@10", "moments", "nodes asked"))
    for row in rows:
        table.add_row(row["split"], f"{100 * row['ndcg@10']:.2f}", f"{row['moments']:,}", f"{row['n']:,}")
    return table


def node_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per period."""
    first, groups = rows[0], {}
    for row in rows:
        groups.setdefault(row["split"], []).append(row)
    seeds = len(groups[first["split"]])
    title = f"{first['model']} on {first['dataset']}" + (f", mean ± std of {seeds}" if seeds > 1 else "")
    how = ("fine-tuned" if first["finetune"] else "frozen") + (", balanced" if first["balance"] else "")
    title += f", memory sees {first['visible']}"
    keys = {"auc": "AUC", "ap": "AP"} | ({"ece": "ECE"} if "ece" in first else {})
    table = plain_table("split", "backbone", title=title, figures=(*keys.values(), "positives", "events"))
    for name, own in groups.items():
        cells = [mean_and_spread([row[key] for row in own if row[key] is not None]) for key in keys]
        table.add_row(name, how, *cells, f"{own[0]['positives']:,}", f"{own[0]['n']:,}")
    return table
