"""A training run's whole state in one safetensors file: weights, optimizer, generators, position; no pickle."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from dygmamba.errors import FileError

FORMAT = "dygmamba-checkpoint-1"


@dataclass(slots=True)
class Progress:
    """Where a run stands: the next step of which epoch, and what early stopping remembers."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = -1
    best_ap: float = -1.0
    best_auc: float = -1.0
    stale: int = 0
    finished: bool = False
    losses: list[float] = field(default_factory=list)  # of the epoch under way

    def end_epoch(self, ap: float, auc: float, better: bool, epochs: int, patience: int) -> None:
        """Note whether validation was better, and whether that was the last epoch."""
        if better:
            self.best_epoch, self.best_ap, self.best_auc, self.stale = self.epoch, ap, auc, 0
        else:
            self.stale += 1
        self.epoch, self.step, self.losses = self.epoch + 1, 0, []
        self.finished = self.stale >= patience or self.epoch >= epochs


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, progress: Progress
) -> None:
    """Write atomically: a reader sees the old file or the new one, whole."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if optimizer is not None:
        for number, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
        tensors |= _generators()
    metadata = {"format": FORMAT, "progress": json.dumps(_plain(progress))}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        save_file(
            {name: value.detach().cpu().contiguous() for name, value in tensors.items()}, part, metadata
        )
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Progress:
    """Restore a model, and for a resumed run its optimizer and generators; says where the run stood."""
    tensors, metadata = _read(path)
    own = model.state_dict()
    stored = {
        name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")
    }
    wrong = [name for name in own if name not in stored or stored[name].shape != own[name].shape]
    if wrong or set(stored) - set(own):
        name = (wrong or sorted(set(stored) - set(own)))[0]
        raise FileError(
            f"{path} belongs to another model: '{name}' does not fit; use the settings the run was trained with"
        )
    model.load_state_dict(stored)
    if optimizer is not None:
        _restore_optimizer(optimizer, tensors, path)
        _restore_generators(tensors)
    return Progress(**json.loads(metadata["progress"]))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    if not path.exists():
        raise FileError(f"there is no checkpoint at {path}; give the folder of a run that was started")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is damaged ({error}); restore it or train again") from error
    if metadata.get("format") != FORMAT:
        raise FileError(f"{path} is not a checkpoint of this program; give the folder of a dygmamba run")
    return tensors, metadata


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    if not state and "generator.cpu" not in tensors:
        raise FileError(f"{path} holds weights only; resume from checkpoint/last.safetensors")
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _generators() -> dict[str, Tensor]:
    states = {"generator.cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["generator.cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_generators(tensors: dict[str, Tensor]) -> None:
    torch.set_rng_state(tensors["generator.cpu"])
    if "generator.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["generator.cuda"])


def _plain(progress: Progress) -> dict[str, Any]:
    return {name: getattr(progress, name) for name in Progress.__dataclass_fields__}
