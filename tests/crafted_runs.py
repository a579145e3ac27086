"""Crafted run directories: one value of a run is replaced by an absurd one, and everything is sealed again."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dygmamba.data.storage.tensor_file import read_seal, read_sealed_tensors, write_sealed_tensors
from dygmamba.engine.run_directory import RunDirectory
from forged_runs import forge_run

HUGE = 10**30
VALUES: tuple[Any, ...] = (
    -1, 0, HUGE, 2**63, 1e308, float("nan"), float("inf"), True, "", "x\n[y](z)", [], [1e308], ["x"], [[1]], {"a": 1},
)  # fmt: skip
ABSENT = object()


class Crafted(NamedTuple):
    """A change of a run directory, with a name for messages."""

    name: str
    apply: Callable[[Path], Any]  # takes the directory of the copy, which is a valid run


def craft_configs(run: Path) -> Iterator[Crafted]:
    """Every setting of config.toml with every value, or left out."""
    for section, settings in RunDirectory(run).config().items():
        if section == "folder":
            continue
        for key in settings:
            for value in (*VALUES, ABSENT):
                if not isinstance(value, dict):
                    name = f"config {section}.{key} = {_show(value)}"
                    yield Crafted(name, _replace_setting(run, section, key, value))
        yield Crafted(f"config without {section}", _drop_section(run, section))


def craft_json(run: Path, name: str) -> Iterator[Crafted]:
    """Every value of a JSON file (or of the first line of JSON lines) replaced, sealed where the file has a seal."""
    text = (run / name).read_text()
    content = json.loads(text if name.endswith(".json") else text.splitlines()[0])
    for way in _list_ways(content):
        for value in (*VALUES, ABSENT):
            yield Crafted(
                f"{name} {'.'.join(map(str, way))} = {_show(value)}", replace_json(name, content, way, value)
            )
    yield Crafted(f"{name} not JSON", lambda copy: (copy / name).write_text("[" * 100_000))


def craft_progress(run: Path) -> Iterator[Crafted]:
    """Every value of the position of the last checkpoint and of the best weights replaced."""
    folder = RunDirectory(run)
    for path in (folder.last, folder.best):
        progress = json.loads(read_sealed_tensors(path)[1]["progress"])
        for key in [*progress, "unknown"]:
            for value in (*VALUES, ABSENT):
                changed = {**progress, key: value}
                if value is ABSENT:
                    changed.pop(key)
                name = f"{path.stem} progress {key} = {_show(value)}"
                yield Crafted(name, change_checkpoint(path.name, progress=json.dumps(changed)))
        yield Crafted(f"{path.stem} progress is a list", change_checkpoint(path.name, progress="[]"))
        yield Crafted(f"{path.stem} progress is nothing", change_checkpoint(path.name, progress=None))
        yield Crafted(f"{path.stem} no kind", change_checkpoint(path.name, kind=None))


def craft_tensors(run: Path) -> Iterator[Crafted]:
    """Every tensor of the last checkpoint and of the best weights: absent, of another type or shape, absurd values."""
    folder = RunDirectory(run)
    for path in (folder.last, folder.best):
        tensors = read_sealed_tensors(path)[0]
        for name, tensor in tensors.items():
            for what, other in _distort(tensor).items():
                yield Crafted(
                    f"{path.stem} {name} {what}", change_checkpoint(path.name, tensors={name: other})
                )
        for name in ("optimizer.x.y", "optimizer", "generator.cuda", "model.", "best.nothing"):
            more = {name: torch.zeros(3)}
            yield Crafted(f"{path.stem} more {name}", change_checkpoint(path.name, tensors=more))


def _distort(tensor: torch.Tensor) -> dict[str, torch.Tensor | None]:
    flat = tensor.flatten()
    others = {
        "absent": None,
        "flat": flat[:-1] if flat.numel() else torch.zeros(1),
        "float16": tensor.to(torch.float16),
        "int64": torch.nan_to_num(tensor.double()).long() if tensor.dtype != torch.int64 else tensor.int(),
        "high": torch.full_like(tensor, 1e38) if tensor.is_floating_point() else torch.full_like(tensor, 101),
    }
    if tensor.is_floating_point():
        others |= {"nan": torch.full_like(tensor, torch.nan), "inf": torch.full_like(tensor, torch.inf)}
    elif tensor.dtype not in (torch.bool, torch.uint8):
        others |= {"negative": torch.full_like(tensor, -7), "far": torch.full_like(tensor, 2**30)}
    return others


def _show(value: Any) -> str:
    return "absent" if value is ABSENT else repr(value)[:20]


def _replace_setting(run: Path, section: str, key: str, value: Any) -> Callable[[Path], Any]:
    def apply(copy: Path) -> None:
        forge_run(run, copy, **{section: {key: None if value is ABSENT else value}})

    return apply


def _drop_section(run: Path, section: str) -> Callable[[Path], Any]:
    return lambda copy: forge_run(run, copy, without=(section,))


def _list_ways(content: Any, limit: int = 3) -> Iterator[tuple[Any, ...]]:
    """Where values are, at most `limit` levels deep; of a list the first element stands for all."""
    if limit == 0:
        return
    keys = (
        content
        if isinstance(content, dict)
        else range(min(1, len(content)))
        if isinstance(content, list)
        else ()
    )
    for key in keys:
        yield (key,)
        yield from ((key, *rest) for rest in _list_ways(content[key], limit - 1))


def replace_json(name: str, content: Any, way: tuple[Any, ...], value: Any) -> Callable[[Path], Any]:
    def apply(copy: Path) -> None:
        changed = json.loads(json.dumps(content))
        one = changed
        for key in way[:-1]:
            one = one[key]
        if value is ABSENT:
            del one[way[-1]]
        else:
            one[way[-1]] = value
        if isinstance(changed, dict) and "weights" in changed and way != ("weights",):
            changed["weights"] = read_seal(RunDirectory(copy).best)
        if isinstance(changed, dict) and changed.pop("sha256", None) is not None:
            changed["sha256"] = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
        (copy / name).write_text(json.dumps(changed) + "\n")

    return apply


def change_checkpoint(
    name: str, tensors: dict[str, torch.Tensor | None] | None = None, **metadata: Any
) -> Any:
    def apply(copy: Path) -> None:
        path = copy / "checkpoint" / name
        old, about = read_sealed_tensors(path)
        new = {key: value for key, value in {**old, **(tensors or {})}.items() if value is not None}
        about = {key: value for key, value in {**about, **metadata}.items() if value is not None}
        write_sealed_tensors(path, new, {key: value for key, value in about.items() if key != "sha256"})

    return apply


def craft(run: Path, target: Path, crafted: Crafted) -> Path:
    """Write the crafted copy of a run beside it."""
    shutil.rmtree(target, ignore_errors=True)
    forge_run(run, target)
    crafted.apply(target)
    return target


def craft_all(run: Path) -> list[Crafted]:
    """All changes of one value."""
    files = [name for name in ("calibration.json", "results.json", "metrics.jsonl") if (run / name).exists()]
    return [
        *craft_configs(run),
        *craft_progress(run),
        *craft_tensors(run),
        *(crafted for name in files for crafted in craft_json(run, name)),
    ]
