"""The card of a shared run, as the Hugging Face Hub reads it: facts as YAML on top, then words for people."""

import json
from typing import Any

from dygmamba._version import __version__
from dygmamba.engine.folder import RunFolder
from dygmamba.runs.opening import split_of

METRICS = {"ap": "average_precision", "auc": "roc_auc", "mrr": "mrr", "hits@10": "hits@10"}
PAPER = "https://openreview.net/forum?id=ja2wA4UncJ"


def card_of(run: RunFolder, called: str, with_data: bool) -> str:
    """README.md; `called` is where the run is pulled from."""
    sections = run.config()
    about, tests = sections["run"], [row for row in run.results() if row["split"] == "test"]
    title = f"{about['model']} on {about['data']}"
    parts = [
        _metadata(about, run.task, tests),
        f"# {title}\n",
        _task(about, run.task),
        "## Results\n",
        _results(run, tests),
        "## Use\n",
        _use(called, run.task, about, with_data),
        "## What it is\n",
        _what(sections, run, with_data),
    ]
    return "\n".join(parts)


def _metadata(about: dict[str, Any], task: str, tests: list[dict[str, Any]]) -> str:
    """The block that the Hub reads; every value is JSON, which YAML reads too."""
    kind = "node-classification" if task == "node" else "link-prediction"
    tags = ["temporal-graph", "dynamic-graph", kind, about["model"]]
    found = sorted({METRICS[key] for row in tests for key in METRICS if row.get(key) is not None})
    facts: dict[str, Any] = {"library_name": "dygmamba", "pipeline_tag": "graph-ml", "tags": tags}
    facts |= {"datasets": [about["data"]], "metrics": found}
    if tests:
        results = [_indexed(about, kind, row) for row in tests]
        facts["model-index"] = [{"name": f"{about['model']} on {about['data']}", "results": results}]
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    return "\n".join(["---", *(line.replace('"', "", 2) for line in lines), "---", ""])


def _indexed(about: dict[str, Any], kind: str, row: dict[str, Any]) -> dict[str, Any]:
    shown = ", ".join(str(row[key]) for key in ("split", "setting", "negatives") if row.get(key) is not None)
    metrics = [
        {"type": METRICS[key], "value": round(row[key], 6), "name": f"{METRICS[key]} ({shown})"}
        for key in METRICS
        if row.get(key) is not None
    ]
    dataset = {"type": about["data"], "name": about["data"], "revision": about["digest"]}
    return {"task": {"type": "graph-ml", "name": kind}, "dataset": dataset, "metrics": metrics}


def _task(about: dict[str, Any], task: str) -> str:
    if task == "node":
        return f"Gives the risk of nodes in `{about['data']}` at any time, by strictly earlier events.\n"
    return f"Scores who meets whom next in `{about['data']}`, by strictly earlier events.\n"


def _results(run: RunFolder, tests: list[dict[str, Any]]) -> str:
    if not tests:
        return "None: this run was trained on every event, or not evaluated.\n"
    keys = [key for key in (*METRICS, "ece") if any(row.get(key) is not None for row in tests)]
    heads = [key for key in ("split", "setting", "negatives", "visible", "batch") if key in tests[0]]
    lines = [_row([*heads, *(key.upper() if key != "hits@10" else key for key in keys), "events"])]
    lines.append(_row(["---"] * (len(heads) + len(keys) + 1)))
    for row in tests:
        cells = ["-" if row.get(key) is None else f"{100 * row[key]:.2f}" for key in keys]
        lines.append(_row([*(str(row.get(key)) for key in heads), *cells, f"{row['n']:,}"]))
    verdict = run.verdict().get("sentence", "")
    said = "In per cent. AP and AUC are means over batches of the test; `visible` is what a memory may have seen.\n"
    return "\n".join([*lines, "", said, *([verdict + "\n"] if verdict else [])])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _use(called: str, task: str, about: dict[str, Any], with_data: bool) -> str:
    asked = "run.classify(k=10)" if task == "node" else 'run.score([("SOURCE", "DESTINATION")])'
    data = "" if with_data else f"  # needs the dataset `{about['data']}`, see below"
    lines = [
        "```python",
        "import dygmamba as dm",
        "",
        f"run = dm.pull({json.dumps(called)}){data}",
        f"print({asked})",
        "```",
    ]
    return "\n".join([*lines, ""])


def _what(sections: dict[str, dict[str, Any]], run: RunFolder, with_data: bool) -> str:
    about, train = sections["run"], sections["train"]
    split = (
        split_of(run).said
        if "split_by" in about
        else "the published one, 70, 15 and 15 % of the events by time"
    )
    beside = (
        ""
        if with_data
        else f"; have it in the data folder under that name (`dygmamba.save`), version {about.get('version', '?')}"
    )
    rows = {
        "trained on": f"`{about['data']}`, sha256 of its events `{about['digest']}`{beside}",
        "split": f"{split}, sha256 `{about['split']}`",
        "seed": str(about["seed"]),
        "negatives in training": str(train.get("train_negatives", "random")),
        "memory sees": str(train.get("visible", "strict")),
        "made with": ", ".join(f"{key} {value}" for key, value in sections.get("made_with", {}).items()),
        "settings": ", ".join(f"{key} = {value}" for key, value in sections["model"].items()),
    }
    listed = [f"- {key}: {value}" for key, value in rows.items()]
    paper = f"\nThe model and its protocol: {PAPER}. Written by dygmamba {__version__}.\n"
    return "\n".join([*listed, paper])
