"""The card of a shared run, as the Hugging Face Hub reads it: facts as YAML on top, then words for people.

A run as a folder that others can have: weights, settings, results, a card; no pickle, no path, nobody's ids.

The layout is that of a model on the Hugging Face Hub. config.json lists every file with its size and sha256, and what
is not in that list is not there. What comes in is checked before any of it lies where runs lie.
"""

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dygmamba._version import __version__
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.untrusted import (
    copy_file,
    is_valid_folder_name,
    read_regular_file,
    read_verified_file,
)
from dygmamba.core.files.writing import make_folder, publish_path, write_file, write_text
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.engine.checkpoint import read_checkpoint, save_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import find_model
from dygmamba.runs.calibration import load_saved_calibration, save_calibration
from dygmamba.runs.opening import read_split, store_run_dataset

METRIC_NAMES = {"ap": "average_precision", "auc": "roc_auc", "mrr": "mrr", "hits@10": "hits@10"}
PAPER_URL = "https://openreview.net/forum?id=ja2wA4UncJ"


def render_card(run: RunDirectory, called: str, with_data: bool) -> str:
    """README.md; `called` is where the run is pulled from."""
    sections = run.config()
    about, tests = sections["run"], [row for row in run.results() if row["split"] == "test"]
    title = f"{about['model']} on {about['data']}"
    parts = [
        _render_metadata(about, run.task, tests),
        f"# {title}\n",
        _render_task(about, run.task),
        "## Results\n",
        _render_results(run, tests),
        "## Use\n",
        _render_usage(called, run.task, about, with_data),
        "## What it is\n",
        _render_details(sections, run, with_data),
    ]
    return "\n".join(parts)


def _render_metadata(about: dict[str, Any], task: str, tests: list[dict[str, Any]]) -> str:
    """The block that the Hub reads; every value is JSON, which YAML reads too."""
    kind = "node-classification" if task == "node" else "link-prediction"
    tags = ["temporal-graph", "dynamic-graph", kind, about["model"]]
    found = sorted({METRIC_NAMES[key] for row in tests for key in METRIC_NAMES if row.get(key) is not None})
    facts: dict[str, Any] = {"library_name": "dygmamba", "pipeline_tag": "graph-ml", "tags": tags}
    facts |= {"datasets": [about["data"]], "metrics": found}
    if tests:
        results = [_model_index_entry(about, kind, row) for row in tests]
        facts["model-index"] = [{"name": f"{about['model']} on {about['data']}", "results": results}]
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    return "\n".join(["---", *(line.replace('"', "", 2) for line in lines), "---", ""])


def _model_index_entry(about: dict[str, Any], kind: str, row: dict[str, Any]) -> dict[str, Any]:
    shown = ", ".join(str(row[key]) for key in ("split", "setting", "negatives") if row.get(key) is not None)
    metrics = [
        {"type": METRIC_NAMES[key], "value": round(row[key], 6), "name": f"{METRIC_NAMES[key]} ({shown})"}
        for key in METRIC_NAMES
        if row.get(key) is not None
    ]
    dataset = {"type": about["data"], "name": about["data"], "revision": about["digest"]}
    return {"task": {"type": "graph-ml", "name": kind}, "dataset": dataset, "metrics": metrics}


def _render_task(about: dict[str, Any], task: str) -> str:
    if task == "node":
        return f"Gives the risk of nodes in `{about['data']}` at any time, by strictly earlier events.\n"
    return f"Scores who meets whom next in `{about['data']}`, by strictly earlier events.\n"


def _render_results(run: RunDirectory, tests: list[dict[str, Any]]) -> str:
    if not tests:
        return "None: this run was trained on every event, or not evaluated.\n"
    keys = [key for key in (*METRIC_NAMES, "ece") if any(row.get(key) is not None for row in tests)]
    heads = [key for key in ("split", "setting", "negatives", "visible", "batch") if key in tests[0]]
    lines = [_table_row([*heads, *(key.upper() if key != "hits@10" else key for key in keys), "events"])]
    lines.append(_table_row(["---"] * (len(heads) + len(keys) + 1)))
    for row in tests:
        cells = ["-" if row.get(key) is None else f"{100 * row[key]:.2f}" for key in keys]
        lines.append(_table_row([*(str(row.get(key)) for key in heads), *cells, f"{row['n']:,}"]))
    verdict = run.verdict().get("sentence", "")
    said = "In per cent. AP and AUC are means over batches of the test; `visible` is what a memory may have seen.\n"
    return "\n".join([*lines, "", said, *([verdict + "\n"] if verdict else [])])


def _table_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _render_usage(called: str, task: str, about: dict[str, Any], with_data: bool) -> str:
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


def _render_details(sections: dict[str, dict[str, Any]], run: RunDirectory, with_data: bool) -> str:
    about, train = sections["run"], sections["train"]
    split = (
        read_split(run).said
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
    paper = f"\nThe model and its protocol: {PAPER_URL}. Written by dygmamba {__version__}.\n"
    return "\n".join([*listed, paper])


FORMAT = "dygmamba-run-1"
MANIFEST_FILE = "config.json"
CARD_FILE, WEIGHTS_FILE, DATA_FILE = "README.md", "model.safetensors", "data.safetensors"
# every name that a shared run may have, where it lies in a run folder, and how many bytes it has at most
SHARED_FILES = {
    CARD_FILE: (None, 1 << 20),
    "config.toml": ("config.toml", 1 << 20),
    "metrics.jsonl": ("metrics.jsonl", 1 << 26),
    "results.json": ("results.json", 1 << 26),
    "calibration.json": ("calibration.json", 1 << 24),
    WEIGHTS_FILE: ("checkpoint/best.safetensors", 1 << 36),
    DATA_FILE: (None, 1 << 40),
}
REQUIRED_FILES = ("config.toml", WEIGHTS_FILE)
MAX_MANIFEST_BYTES = 1 << 16  # bytes of config.json
RUN_REFERENCES = (
    "backbone",
    "refit_of",
)  # settings that name another run: its name is kept, its folder is not


@dataclass(frozen=True, slots=True)
class Manifest:
    """What config.json says: the run's name, its model and data, and its files."""

    name: str
    model: str
    data: dict[str, str]
    files: dict[str, dict[str, Any]]


def pack_run(run: Path, target: Path, dataset: Dataset | None = None, called: str | None = None) -> Path:
    """Write a run into a folder for others; with its data only where they are given. `called` is how it is pulled."""
    if target.exists() and not target.is_dir():
        raise FileError(f"{target} is a file; give a folder to push into")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST_FILE).is_file():
        raise FileError(f"{target} is not empty and holds no shared run; give a new folder, or empty it")
    with tempfile.TemporaryDirectory() as place:
        own = RunDirectory(Path(place) / run.resolve().name)
        make_folder(own.path)
        _copy_without_paths(RunDirectory(run), own)
        write_text(own.path / CARD_FILE, render_card(own, called or f"./{target.name}", dataset is not None))
        files = {name: own.path / (inside or name) for name, (inside, _) in SHARED_FILES.items()}
        if dataset is not None:
            save_dataset(replace(dataset, name=Path(DATA_FILE).stem), own.path)
        files = {name: path for name, path in files.items() if path.exists()}
        make_folder(target)
        listed = {name: copy_file(path, target / name) for name, path in files.items()}
        for gone in set(SHARED_FILES) - set(listed):
            (target / gone).unlink(missing_ok=True)
        about = own.config()["run"]
        write_text(target / MANIFEST_FILE, json.dumps(_build_manifest(own, about, listed), indent=1) + "\n")
    return target


def unpack_run(source: Path, root: Path, data_dir: Path | None = None) -> RunDirectory:
    """A shared run as a run folder under `root`, every file checked before it has its name there."""
    shared = read_manifest(source)
    parent = root / shared.data["name"] / shared.model
    make_folder(parent)
    with tempfile.TemporaryDirectory(prefix=".pulling-", dir=parent) as place:
        own = RunDirectory(Path(place) / shared.name)
        make_folder(own.path / "checkpoint")
        for name, facts in shared.files.items():
            inside = SHARED_FILES[name][0] or name
            write_file(own.path / inside, read_verified_file(source / name, facts["bytes"], facts["sha256"]))
        _check_shared_run(own, shared)
        if DATA_FILE in shared.files:
            dataset = load_dataset(own.path / DATA_FILE)
            if dataset.digest != shared.data["digest"]:
                raise FileError(
                    f"{source / DATA_FILE} holds other events than the run was trained on; pull it again"
                )
            store_run_dataset(replace(dataset, name=shared.data["name"]), root, data_dir)
            (own.path / DATA_FILE).unlink()
        target, number = parent / shared.name, 1
        while target.exists():
            if (target / "config.toml").read_bytes() == (own.path / "config.toml").read_bytes():
                return RunDirectory(target)  # it is here already
            number += 1
            target = parent / f"{shared.name}-{number}"
        publish_path(own.path, target)
    return RunDirectory(target)


def read_manifest(source: Path) -> Manifest:
    """What config.json of a shared run lists: known names only, of sizes within their bounds."""
    path = source / MANIFEST_FILE
    if not source.is_dir():
        raise FileError(f"{source} is no folder; give one that a run was pushed to")
    try:
        about = json.loads(b"".join(read_regular_file(path, MAX_MANIFEST_BYTES)).decode("utf-8"))
        if about["format"] != FORMAT:
            raise ValueError(f"format {str(about['format'])[:40]!r}")
        found = Manifest(about["name"], about["folder"], about["data"], about["files"])
        names = (found.name, found.model, found.data["name"])
        sizes = all(
            type(facts["bytes"]) is int
            and 0 <= facts["bytes"] <= SHARED_FILES[name][1]
            and isinstance(facts["sha256"], str)
            for name, facts in found.files.items()
        )
        good = all(
            isinstance(name, str) and is_valid_folder_name(name) and not name.startswith(".")
            for name in names
        )
        digest = re.fullmatch("[0-9a-f]{64}", found.data["digest"])
    except FileNotFoundError as error:
        raise FileError(
            f"{source} is no shared run: it has no {MANIFEST_FILE}; give one that a run was pushed to"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is not the list of a shared run ({error!r:.80}); pull or push it again"
        ) from error
    if not (good and sizes and digest) or not set(REQUIRED_FILES) <= set(found.files):
        raise FileError(f"{path} lists what no shared run has; pull or push it again")
    return found


def _copy_without_paths(run: RunDirectory, own: RunDirectory) -> None:
    """The run again, without what only its maker's machine knows; its weights are bound to the new settings."""
    sections = run.config()
    about = {key: value for key, value in sections["run"].items() if key != "file"}
    about |= {key: Path(about[key]).name for key in RUN_REFERENCES if key in about}
    folder = sections.pop("folder")
    own.write_config(sections | {"run": about}, folder["id"])
    tensors, progress = read_checkpoint(run, run.best)
    save_checkpoint(own.best, tensors, progress, own.fingerprint)
    own.write_metrics(run.metrics())
    kept = load_saved_calibration(run)
    if kept is not None:
        save_calibration(own, kept)
    if run.finished:
        found = json.loads((run.path / "results.json").read_text("utf-8"))
        paths = {value for key, value in sections["run"].items() if key in RUN_REFERENCES}
        paths |= {row["run"] for row in found["results"] if "run" in row}
        own.write_results(**_replace_paths(found, paths))


def _replace_paths(found: dict[str, Any], paths: set[str]) -> dict[str, Any]:
    """Results that call runs by their names alone."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, list):
            return [plain(one) for one in value]
        for path in sorted(paths, key=len, reverse=True) if isinstance(value, str) else ():
            value = value.replace(path, Path(path).name)
        return value

    named = plain(found)
    return {"rows": named.pop("results"), **named}


def _build_manifest(
    own: RunDirectory, about: dict[str, Any], files: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    data = {"name": about["data"], "digest": about["digest"], "version": about.get("version", "")}
    what = {"format": FORMAT, "library_name": "dygmamba", "model_type": about["model"], "task": own.task}
    return what | {"name": own.path.name, "folder": _model_folder(own), "data": data, "files": files}


def _check_shared_run(own: RunDirectory, shared: Manifest) -> None:
    """As strictly as any run folder: seals, bonds and what is read of each file; and nothing of another machine."""
    about = own.config().get("run", {})
    if (about.get("data"), about.get("digest"), _model_folder(own)) != (
        *_dataset_identity(shared),
        shared.model,
    ):
        raise FileError(f"config.toml and {MANIFEST_FILE} of the shared run disagree; pull or push it again")
    if "file" in about or any(
        Path(str(about[key])).name != about[key] for key in RUN_REFERENCES if key in about
    ):
        raise FileError("config.toml of the shared run names files of another machine; have it pushed again")
    source = about.get("source")
    if source is not None and _find_registered_source(about["model"]) != source:
        raise ConfigError(
            f"the run is of the model '{about['model']}', which is not dygmamba's own but of {source}; "
            "import what registers it first, for nothing is imported because a download says so"
        )
    read_checkpoint(own, own.best)
    load_saved_calibration(own)
    own.results(), own.metrics()


def _model_folder(own: RunDirectory) -> str:
    """The folder of its model's runs."""
    model = own.config()["run"].get("model")
    return f"{model}-node" if own.task == "node" else str(model)


def _dataset_identity(shared: Manifest) -> tuple[str, str]:
    return shared.data["name"], shared.data["digest"]


def _find_registered_source(model: str) -> str | None:
    """Where a model that is known here already comes from."""
    return find_model(model).source
