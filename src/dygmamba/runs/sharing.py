"""Sharing of runs: a run as a folder for others, with weights, settings, results and a model card.

The folder has the layout of a model on the Hugging Face Hub. It contains no pickle, no path of the machine it comes
from and no ids of the dataset (unless the dataset is included). Its manifest, config.json, lists every file with size
and SHA-256; other files are ignored. A run that is pulled is checked before it gets its name among the runs.
"""

import json
import re
import tempfile
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from dygmamba._version import __version__
from dygmamba.core.errors import ConfigError, FileError, make_unreadable_error
from dygmamba.core.files.untrusted import (
    describe_file,
    escape_markdown,
    format_markdown_code,
    is_valid_folder_name,
    read_regular_file,
)
from dygmamba.core.files.writing import create_temporary_folder, make_folder, publish_path, write_text
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.engine.checkpoint import read_checkpoint, save_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.run_section import RUN_REFERENCES
from dygmamba.models import find_model
from dygmamba.runs.calibration import load_saved_calibration, save_calibration
from dygmamba.runs.opening import store_run_dataset
from dygmamba.runs.run_config import RunConfig, read_split
from dygmamba.runs.shared_folder import (
    copy_shared_file,
    is_empty_or_unfinished,
    read_unchanged,
    replace_shared_files,
)
from dygmamba.runs.trusted_code import list_run_models
from dygmamba.tasks.metric_names import METRICS, format_metric, get_metric_title, list_metrics

FORMAT = "dygmamba-run-1"
MANIFEST_FILE = "config.json"
CARD_FILE, WEIGHTS_FILE, DATA_FILE = "README.md", "model.safetensors", "data.safetensors"
# files of a shared run: path in a run directory (None: not there) and maximum size in bytes
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
MAX_MANIFEST_BYTES = 1 << 16

PROTOCOL_NOTES = {
    "benchmark": "with a tenth of the nodes held out of training and negatives drawn from the whole stream (the "
    "benchmark protocol of DyGLib)",
    "time": "no training event removed",
}
HUB_NAMES = {name: one.hub_name for name, one in METRICS.items() if one.hub_name}
CARD_TEMPLATE = "model_card.md.jinja"
PAPER_URL = "https://openreview.net/forum?id=ja2wA4UncJ"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of config.json."""

    name: str  # of the run
    model: str  # name of the folder of its model's runs
    data: dict[str, str]  # name, digest and version of the dataset
    files: dict[str, dict[str, Any]]  # size and SHA-256 by name


def pack_run(run: Path, target: Path, dataset: Dataset | None = None, address: str | None = None) -> Path:
    """Write a run into a folder for others.

    Args:
        run: The run directory.
        target: A new or empty folder, or one with a shared run, which is replaced.
        dataset: The dataset, if it is to be included.
        address: Where others pull the run from, for the card; default: the folder.
    """
    if target.exists() and not target.is_dir():
        raise FileError(f"{target} is a file; give a folder to push into", code="not-a-folder")
    is_share = (target / MANIFEST_FILE).is_file()
    if target.is_dir() and not is_share and not is_empty_or_unfinished(target):
        raise FileError(
            f"{target} is not empty and is not a shared run; give a new folder, or empty it",
            code="folder-not-empty",
        )
    with tempfile.TemporaryDirectory() as scratch:
        copy = RunDirectory(Path(scratch) / run.resolve().name)
        make_folder(copy.path)
        _copy_without_paths(RunDirectory(run), copy)
        card = render_card(copy, address or f"./{target.name}", dataset is not None)
        write_text(copy.path / CARD_FILE, card)
        files = {name: copy.path / (inside or name) for name, (inside, _) in SHARED_FILES.items()}
        if dataset is not None:
            save_dataset(replace(dataset, name=Path(DATA_FILE).stem), copy.path)
        files = {name: path for name, path in files.items() if path.exists()}
        make_folder(target)
        entries = {name: describe_file(path) for name, path in files.items()}
        manifest = json.dumps(_build_manifest(copy, entries), indent=1) + "\n"
        replace_shared_files(target, files, entries, (MANIFEST_FILE, manifest.encode()), SHARED_FILES)
    return target


def unpack_run(source: Path, root: Path, data_dir: Path | None = None) -> RunDirectory:
    """Copy a shared run into a run directory below `root`, after checking every file.

    If another run is pushed meanwhile, the copy is the earlier one or the later one.
    """
    return read_unchanged(
        lambda: read_manifest(source), lambda manifest: _unpack_files(source, manifest, root, data_dir)
    )


def _unpack_files(source: Path, manifest: Manifest, root: Path, data_dir: Path | None) -> RunDirectory:
    parent = root / manifest.data["name"] / manifest.model
    with create_temporary_folder(parent) as scratch:
        copy = RunDirectory(scratch / manifest.name)
        make_folder(copy.path / "checkpoint")
        for name, entry in manifest.files.items():
            # the dataset is not part of the run, and Windows renames no folder with a file that is mapped
            place = scratch / name if name == DATA_FILE else copy.path / (SHARED_FILES[name][0] or name)
            copy_shared_file(source, name, entry, place)
        _check_shared_run(copy, manifest)
        if DATA_FILE in manifest.files:
            dataset = load_dataset(scratch / DATA_FILE)
            if dataset.digest != manifest.data["digest"]:
                raise FileError(
                    f"{source / DATA_FILE} has other events than the run was trained on; pull it again",
                    code="shared-run-inconsistent",
                )
            store_run_dataset(replace(dataset, name=manifest.data["name"]), root, data_dir)
        target, number = parent / manifest.name, 1
        while target.exists():
            if (target / "config.toml").read_bytes() == (copy.path / "config.toml").read_bytes():
                return RunDirectory(target)  # pulled before
            number += 1
            target = parent / f"{manifest.name}-{number}"
        publish_path(copy.path, target)
    return RunDirectory(target)


def read_manifest(source: Path) -> Manifest:
    """Read and check config.json of a shared run, which may come from anybody.

    Raises:
        FileError: It names unknown files, files that are too large, or names that could leave the folder.
    """
    path = source / MANIFEST_FILE
    if not source.is_dir():
        raise FileError(f"{source} is not a folder; give one that a run was pushed to", code="not-a-folder")
    try:
        content = json.loads(b"".join(read_regular_file(path, MAX_MANIFEST_BYTES)).decode("utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"format {str(content['format'])[:40]!r}")
        manifest = Manifest(content["name"], content["folder"], content["data"], content["files"])
        has_valid_files = all(
            type(entry["bytes"]) is int
            and 0 <= entry["bytes"] <= SHARED_FILES[name][1]
            and re.fullmatch("[0-9a-f]{64}", entry["sha256"]) is not None
            for name, entry in manifest.files.items()
        )
        has_valid_names = all(
            isinstance(name, str) and is_valid_folder_name(name) and not name.startswith(".")
            for name in (manifest.name, manifest.model, manifest.data["name"])
        )
        has_valid_digest = re.fullmatch("[0-9a-f]{64}", manifest.data["digest"]) is not None
    except FileNotFoundError as error:
        raise FileError(
            f"{source} is not a shared run: it has no {MANIFEST_FILE}; give a folder that a run was pushed to",
            code="not-a-shared-run",
        ) from error
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is not the manifest of a shared run ({error!r:.80}); pull or push it again",
            code="damaged-manifest",
        ) from error
    is_valid = has_valid_names and has_valid_files and has_valid_digest
    if not is_valid or not set(REQUIRED_FILES) <= set(manifest.files):
        raise FileError(
            f"{path} has entries that no shared run has; pull or push it again", code="damaged-manifest"
        )
    return manifest


def _copy_without_paths(run: RunDirectory, copy: RunDirectory) -> None:
    """Copy a run without paths of this machine; its weights are bound to the changed configuration."""
    sections = run.config()
    paths = set(_list_references(sections["run"]))
    folder = sections.pop("folder")
    sections["run"].pop("file", None)
    copy.write_config(_replace_paths(sections, paths), folder["id"])
    tensors, state = read_checkpoint(run, run.best)
    save_checkpoint(copy.best, tensors, state, copy.fingerprint)
    copy.write_metrics(run.metrics())
    calibration = load_saved_calibration(run)
    if calibration is not None:
        save_calibration(copy, calibration)
    if run.finished:
        rows = [*run.results(), *run.rules(), *run.ranking(), run.verdict()]  # raises if the file is damaged
        results = json.loads((run.path / "results.json").read_text("utf-8"))
        paths |= {row["run"] for row in rows if "run" in row}
        content = _replace_paths(results, paths)
        copy.write_results(content.pop("results"), **content)


def _list_references(about: dict[str, Any]) -> list[str]:
    """Return the paths of other runs in the section [run]."""
    values = [about[name] for name in RUN_REFERENCES if name in about]
    return [str(path) for value in values for path in (value if isinstance(value, list) else [value])]


def _replace_paths(content: dict[str, Any], paths: set[str]) -> dict[str, Any]:
    """Replace paths of runs by their names: whole values, and whole words of sentences such as reasons."""
    # a run was stored as it was given, once even as ".", which has no name and is part of other values
    names = {path: Path(path).name if is_valid_folder_name(Path(path).name) else "run" for path in paths}
    found = re.compile(rf"(?<!\S)(?:{'|'.join(map(re.escape, names))})(?![^\s,;:])")

    def replace_in(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replace_in(item) for key, item in value.items()}
        if isinstance(value, list):
            return [replace_in(item) for item in value]
        return found.sub(lambda match: names[match[0]], value) if isinstance(value, str) else value

    return replace_in(content) if names else content


def _build_manifest(copy: RunDirectory, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    about = copy.config()["run"]
    return {
        "format": FORMAT,
        "library_name": "dygmamba",
        "model_type": about["model"],
        "task": copy.task,
        "name": copy.path.name,
        "folder": _model_folder(copy),
        "data": {"name": about["data"], "digest": about["digest"], "version": about.get("version", "")},
        "files": files,
    }


def _check_shared_run(copy: RunDirectory, manifest: Manifest) -> None:
    """Check a copied run like any run directory, and that it refers to nothing outside of itself."""
    about = copy.config().get("run", {})
    identity = (manifest.data["name"], manifest.data["digest"], manifest.model)
    if (about.get("data"), about.get("digest"), _model_folder(copy)) != identity:
        raise FileError(
            f"config.toml and {MANIFEST_FILE} of the shared run disagree; pull or push it again",
            code="shared-run-inconsistent",
        )
    if "file" in about or not all(map(is_valid_folder_name, _list_references(about))):
        raise FileError(
            "config.toml of the shared run has paths of another machine; ask for it to be pushed again",
            code="shared-run-has-paths",
        )
    for name, source in list_run_models(copy.config()):
        if source and find_model(name, source).source != source:
            raise ConfigError(
                f"the model '{name}' of the shared run is registered by {source!r:.120}, not by dygmamba; import that "
                "module first if you trust it (a pulled run imports nothing by itself)",
                code="unregistered-model",
            )
    # each of these raises for a damaged file
    read_checkpoint(copy, copy.best)
    load_saved_calibration(copy)
    copy.results()
    copy.metrics()


def _model_folder(run: RunDirectory) -> str:
    """Return the name of the folder in which the runs of this model are."""
    model = run.config()["run"].get("model")
    return f"{model}-node" if run.task == "node" else str(model)


def render_card(run: RunDirectory, address: str, with_data: bool) -> str:
    """Render the model card (README.md): metadata for the Hub as YAML, then text for people.

    Args:
        run: The run directory.
        address: Where others pull the run from.
        with_data: Whether the dataset is included.
    """
    from jinja2 import Environment, StrictUndefined

    RunConfig.read(run)  # raises if it is incomplete
    tests = [row for row in run.results() if row.get("split") == "test"]
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"json": json.dumps, "text": escape_markdown, "code": format_markdown_code}
    template = files("dygmamba.runs").joinpath(CARD_TEMPLATE).read_text("utf-8")
    return environment.from_string(template).render(
        about=run.config()["run"],
        task=run.task,
        metadata=_build_metadata(run, tests),
        results=_list_results(tests),
        verdict=run.verdict().get("sentence", ""),
        details=_describe_details(run, with_data),
        address=address,
        with_data=with_data,
        paper=PAPER_URL,
        version=__version__,
    )


def _build_metadata(run: RunDirectory, tests: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the metadata that the Hub reads; their values are JSON in the card, which is also YAML."""
    about = run.config()["run"]
    kind = "node-classification" if run.task == "node" else "link-prediction"
    tags = ["temporal-graph", "dynamic-graph", kind, about["model"]]
    metrics = sorted({HUB_NAMES[key] for row in tests for key in HUB_NAMES if row.get(key) is not None})
    metadata: dict[str, Any] = {"library_name": "dygmamba", "pipeline_tag": "graph-ml", "tags": tags}
    metadata |= {"datasets": [about["data"]], "metrics": metrics}
    if tests:
        results = [_model_index_entry(about, kind, row) for row in tests]
        metadata["model-index"] = [{"name": f"{about['model']} on {about['data']}", "results": results}]
    return metadata


def _model_index_entry(about: dict[str, Any], kind: str, row: dict[str, Any]) -> dict[str, Any]:
    what = ", ".join(str(row[key]) for key in ("split", "setting", "negatives") if row.get(key) is not None)
    metrics = [
        {"type": HUB_NAMES[key], "value": round(row[key], 6), "name": f"{HUB_NAMES[key]} ({what})"}
        for key in HUB_NAMES
        if row.get(key) is not None
    ]
    dataset = {"type": about["data"], "name": about["data"], "revision": about["digest"]}
    return {"task": {"type": "graph-ml", "name": kind}, "dataset": dataset, "metrics": metrics}


def _list_results(tests: list[dict[str, Any]]) -> list[list[str]]:
    """Return the cells of the table of results, its heading first."""
    if not tests:
        return []
    keys = [key for key in list_metrics(shown="summary") if any(row.get(key) is not None for row in tests)]
    heads = [key for key in ("split", "setting", "negatives", "visible", "batch") if key in tests[0]]
    rows = [[*heads, *map(get_metric_title, keys), "events"]]
    rows.append(["---"] * len(rows[0]))
    for row in tests:
        cells = [format_metric(key, row.get(key)) for key in keys]
        rows.append([*(escape_markdown(row.get(key)) for key in heads), *cells, f"{row.get('n', 0):,}"])
    return rows


def _describe_details(run: RunDirectory, with_data: bool) -> dict[str, str]:
    """Return how a run was trained, as Markdown."""
    sections, rule = run.config(), read_split(run)
    about, train = sections["run"], sections["train"]
    shares = "70, 15 and 15 % of the events by time" if rule.has_published_shares else rule.description
    version = escape_markdown(about.get("version", "?"))
    where = "" if with_data else f"; store it under that name with `dygmamba.save`, version {version}"
    split = escape_markdown(f"{shares}, {PROTOCOL_NOTES[rule.protocol]}")
    name, digest = format_markdown_code(about["data"]), format_markdown_code(about["digest"])
    return {
        "dataset": f"{name}, sha256 of its events {digest}{where}",
        "split": f"{split}, sha256 {format_markdown_code(about.get('split', '?'))}",
        "seed": str(about["seed"]),
        "negatives in training": escape_markdown(train.get("train_negatives", "random")),
        "events visible to a memory": escape_markdown(train.get("visible", "strict")),
        "environment": _list_settings(sections.get("made_with", {}), " "),
        "settings": _list_settings(sections["model"], " = "),
    }


def _list_settings(settings: dict[str, Any], sign: str) -> str:
    return escape_markdown(", ".join(f"{key}{sign}{value}" for key, value in settings.items()))
