"""A run as a folder that others can have: weights, settings, results, a card; no pickle, no path, nobody's ids.

The layout is that of a model on the Hugging Face Hub. config.json lists every file with its size and sha256, and what
is not in that list is not there. What comes in is checked before any of it lies where runs lie.
"""

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dygmamba.data.store import Dataset, load_dataset, save_dataset
from dygmamba.engine.checkpoint import read_checkpoint, save_checkpoint
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, FileError
from dygmamba.files.copying import checked_pieces, copied, plain_pieces
from dygmamba.files.names import can_name
from dygmamba.files.writing import make_folder, publish, write_file, write_text
from dygmamba.models import find_model
from dygmamba.runs.calibrating import load_kept, save_calibration
from dygmamba.runs.card import card_of
from dygmamba.runs.own_data import keep_dataset

FORMAT = "dygmamba-run-1"
LIST = "config.json"
CARD, WEIGHTS, DATA = "README.md", "model.safetensors", "data.safetensors"
# every name that a shared run may have, where it lies in a run folder, and how many bytes it has at most
KNOWN = {
    CARD: (None, 1 << 20),
    "config.toml": ("config.toml", 1 << 20),
    "metrics.jsonl": ("metrics.jsonl", 1 << 26),
    "results.json": ("results.json", 1 << 26),
    "calibration.json": ("calibration.json", 1 << 24),
    WEIGHTS: ("checkpoint/best.safetensors", 1 << 36),
    DATA: (None, 1 << 40),
}
NEEDED = ("config.toml", WEIGHTS)
MOST_LISTED = 1 << 16  # bytes of config.json
PATHS = ("backbone", "refit_of")  # settings that name another run: its name is kept, its folder is not


@dataclass(frozen=True, slots=True)
class Shared:
    """What config.json says: the run's name, its model and data, and its files."""

    name: str
    model: str
    data: dict[str, str]
    files: dict[str, dict[str, Any]]


def pack(run: Path, target: Path, dataset: Dataset | None = None, called: str | None = None) -> Path:
    """Write a run into a folder for others; with its data only where they are given. `called` is how it is pulled."""
    if target.exists() and not target.is_dir():
        raise FileError(f"{target} is a file; give a folder to push into")
    if target.is_dir() and any(target.iterdir()) and not (target / LIST).is_file():
        raise FileError(f"{target} is not empty and holds no shared run; give a new folder, or empty it")
    with tempfile.TemporaryDirectory() as place:
        own = RunFolder(Path(place) / run.resolve().name)
        make_folder(own.path)
        _without_paths(RunFolder(run), own)
        write_text(own.path / CARD, card_of(own, called or f"./{target.name}", dataset is not None))
        files = {name: own.path / (inside or name) for name, (inside, _) in KNOWN.items()}
        if dataset is not None:
            save_dataset(replace(dataset, name=Path(DATA).stem), own.path)
        files = {name: path for name, path in files.items() if path.exists()}
        make_folder(target)
        listed = {name: copied(path, target / name) for name, path in files.items()}
        for gone in set(KNOWN) - set(listed):
            (target / gone).unlink(missing_ok=True)
        about = own.config()["run"]
        write_text(target / LIST, json.dumps(_listed(own, about, listed), indent=1) + "\n")
    return target


def unpack(source: Path, root: Path, data_dir: Path | None = None) -> RunFolder:
    """A shared run as a run folder under `root`, every file checked before it has its name there."""
    shared = read_list(source)
    parent = root / shared.data["name"] / shared.model
    make_folder(parent)
    with tempfile.TemporaryDirectory(prefix=".pulling-", dir=parent) as place:
        own = RunFolder(Path(place) / shared.name)
        make_folder(own.path / "checkpoint")
        for name, facts in shared.files.items():
            inside = KNOWN[name][0] or name
            write_file(own.path / inside, checked_pieces(source / name, facts["bytes"], facts["sha256"]))
        _check_run(own, shared)
        if DATA in shared.files:
            dataset = load_dataset(own.path / DATA)
            if dataset.digest != shared.data["digest"]:
                raise FileError(
                    f"{source / DATA} holds other events than the run was trained on; pull it again"
                )
            keep_dataset(replace(dataset, name=shared.data["name"]), root, data_dir)
            (own.path / DATA).unlink()
        target, number = parent / shared.name, 1
        while target.exists():
            if (target / "config.toml").read_bytes() == (own.path / "config.toml").read_bytes():
                return RunFolder(target)  # it is here already
            number += 1
            target = parent / f"{shared.name}-{number}"
        publish(own.path, target)
    return RunFolder(target)


def read_list(source: Path) -> Shared:
    """What config.json of a shared run lists: known names only, of sizes within their bounds."""
    path = source / LIST
    if not source.is_dir():
        raise FileError(f"{source} is no folder; give one that a run was pushed to")
    try:
        about = json.loads(b"".join(plain_pieces(path, MOST_LISTED)).decode("utf-8"))
        if about["format"] != FORMAT:
            raise ValueError(f"format {str(about['format'])[:40]!r}")
        found = Shared(about["name"], about["folder"], about["data"], about["files"])
        names = (found.name, found.model, found.data["name"])
        sizes = all(
            type(facts["bytes"]) is int
            and 0 <= facts["bytes"] <= KNOWN[name][1]
            and isinstance(facts["sha256"], str)
            for name, facts in found.files.items()
        )
        good = all(isinstance(name, str) and can_name(name) and not name.startswith(".") for name in names)
        digest = re.fullmatch("[0-9a-f]{64}", found.data["digest"])
    except FileNotFoundError as error:
        raise FileError(
            f"{source} is no shared run: it has no {LIST}; give one that a run was pushed to"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{path} is not the list of a shared run ({error!r:.80}); pull or push it again"
        ) from error
    if not (good and sizes and digest) or not set(NEEDED) <= set(found.files):
        raise FileError(f"{path} lists what no shared run has; pull or push it again")
    return found


def _without_paths(run: RunFolder, own: RunFolder) -> None:
    """The run again, without what only its maker's machine knows; its weights are bound to the new settings."""
    sections = run.config()
    about = {key: value for key, value in sections["run"].items() if key != "file"}
    about |= {key: Path(about[key]).name for key in PATHS if key in about}
    folder = sections.pop("folder")
    own.write_config(sections | {"run": about}, folder["id"])
    tensors, progress = read_checkpoint(run, run.best)
    save_checkpoint(own.best, tensors, progress, own.bond)
    own.write_metrics(run.metrics())
    kept = load_kept(run)
    if kept is not None:
        save_calibration(own, kept)
    if run.finished:
        found = json.loads((run.path / "results.json").read_text("utf-8"))
        paths = {value for key, value in sections["run"].items() if key in PATHS}
        paths |= {row["run"] for row in found["results"] if "run" in row}
        own.write_results(**_renamed(found, paths))


def _renamed(found: dict[str, Any], paths: set[str]) -> dict[str, Any]:
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


def _listed(own: RunFolder, about: dict[str, Any], files: dict[str, dict[str, Any]]) -> dict[str, Any]:
    data = {"name": about["data"], "digest": about["digest"], "version": about.get("version", "")}
    what = {"format": FORMAT, "library_name": "dygmamba", "model_type": about["model"], "task": own.task}
    return what | {"name": own.path.name, "folder": _called(own), "data": data, "files": files}


def _check_run(own: RunFolder, shared: Shared) -> None:
    """As strictly as any run folder: seals, bonds and what is read of each file; and nothing of another machine."""
    about = own.config().get("run", {})
    if (about.get("data"), about.get("digest"), _called(own)) != (*_data(shared), shared.model):
        raise FileError(f"config.toml and {LIST} of the shared run disagree; pull or push it again")
    if "file" in about or any(Path(str(about[key])).name != about[key] for key in PATHS if key in about):
        raise FileError("config.toml of the shared run names files of another machine; have it pushed again")
    source = about.get("source")
    if source is not None and find_known(about["model"]) != source:
        raise ConfigError(
            f"the run is of the model '{about['model']}', which is not dygmamba's own but of {source}; "
            "import what registers it first, for nothing is imported because a download says so"
        )
    read_checkpoint(own, own.best)
    load_kept(own)
    own.results(), own.metrics()


def _called(own: RunFolder) -> str:
    """The folder of its model's runs."""
    model = own.config()["run"].get("model")
    return f"{model}-node" if own.task == "node" else str(model)


def _data(shared: Shared) -> tuple[str, str]:
    return shared.data["name"], shared.data["digest"]


def find_known(model: str) -> str | None:
    """Where a model that is known here already comes from."""
    return find_model(model).source
