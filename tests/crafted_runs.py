"""Crafted run directories: one value of a run is replaced by an absurd one, and everything is sealed again."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dygmamba.data.storage.tensor_file import read_seal, read_sealed_tensors, write_sealed_tensors
from dygmamba.engine.run_directory import RunDirectory

HUGE = 10**30
VALUES: tuple[Any, ...] = (
    -1, 0, HUGE, 2**63, 1e308, float("nan"), float("inf"), True, "", "x\n[y](z)", [], [1e308], ["x"], [[1]], {"a": 1},
)  # fmt: skip


def replace_json(name: str, content: Any, way: tuple[Any, ...], value: Any) -> Callable[[Path], Any]:
    def apply(copy: Path) -> None:
        changed = json.loads(json.dumps(content))
        one = changed
        for key in way[:-1]:
            one = one[key]
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
