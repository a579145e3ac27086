"""A training run's whole state in one sealed safetensors file: weights, optimizer, generators, position; no pickle.

`last` is the one point where a run is committed: it holds the epochs' entries and the best weights too, from which
metrics.jsonl and `best` are made. The `last` before it is kept. Each file names the run it belongs to.
"""

import json
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.core.errors import DygWarning, FileError
from dygmamba.core.files.writing import make_folder
from dygmamba.data.storage.tensor_file import DamagedFileError, read_sealed_tensors, write_sealed_tensors
from dygmamba.engine.run_directory import RunDirectory

FORMAT = "dygmamba-checkpoint-2"

Tensors = dict[str, Tensor]


@dataclass(slots=True)
class TrainingState:
    """Where a run stands: the next step of which epoch, and what early stopping remembers."""

    epoch: int = 0
    step: int = 0
    best_epoch: int = -1
    best_ap: float = -1.0
    best_auc: float = -1.0
    stale: int = 0
    finished: bool = False
    losses: list[float] = field(default_factory=list)  # of the epoch under way
    entries: list[dict[str, Any]] = field(default_factory=list)  # of the epochs that are done

    def end_epoch(self, ap: float, auc: float, better: bool, epochs: int, patience: int) -> None:
        """Note whether validation was better, and whether that was the last epoch."""
        if better:
            self.best_epoch, self.best_ap, self.best_auc, self.stale = self.epoch, ap, auc, 0
        else:
            self.stale += 1
        self.epoch, self.step, self.losses = self.epoch + 1, 0, []
        self.judge(epochs, patience)

    def judge(self, epochs: int, patience: int) -> None:
        """Whether that was the last epoch, of so many and with so much patience."""
        self.finished = self.stale >= patience or self.epoch >= epochs


class CheckpointManager:
    """Saves and restores the state of one run; keeps the best weights, which `last` holds beside its own."""

    def __init__(self, run: RunDirectory, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.run, self.model, self.optimizer = run, model, optimizer
        self._bond = run.fingerprint
        self._best: Tensors = {}
        self._whole = (
            False  # whether the `last` on disk is known to be good, and so worth keeping as the one before
        )

    def save(self, progress: TrainingState, better: bool = False) -> None:
        """Commit the state; with `better` its weights become the best ones.

        Of several processes all have the same state, and the first one writes it.
        """
        if better:
            self._best = {
                f"best.{name}": value.detach().cpu().clone() for name, value in _named_weights(self.model)
            }
        if not self.run.writes:
            return
        tensors = {f"model.{name}": value for name, value in _named_weights(self.model)} | self._best
        states = {} if self.optimizer is None else self.optimizer.state_dict()["state"]
        for number, state in states.items():
            tensors |= {f"optimizer.{number}.{key}": value for key, value in state.items()}
        keep = self.run.before_last if self._whole else None
        save_checkpoint(self.run.last, tensors | _generator_states(), progress, self._bond, keep)
        self._whole = True
        if better:
            self._write_best(progress)

    def restore(self) -> TrainingState:
        """The newest whole state, and what is made of it: `best` and metrics.jsonl."""
        if not self.run.started:
            self.run.write_metrics([])
            return TrainingState()
        tensors, progress, path = read_newest(self.run)
        _load_weights(self.model, tensors, "model.", path)
        if self.optimizer is not None:
            _restore_optimizer(self.optimizer, tensors)
        _restore_generators(tensors)
        self._whole = path == self.run.last
        self._best = {name: value for name, value in tensors.items() if name.startswith("best.")}
        if self.run.writes and self._best and not self._best_is_right(progress):
            self._write_best(progress)
        self.run.write_metrics(progress.entries)
        return progress

    def load_best(self) -> None:
        """The best weights into the model, from memory; a run that has found none says so."""
        if not self._best:
            load_best(self.run, self.model)
        else:
            _load_weights(self.model, self._best, "best.", self.run.last)

    def _write_best(self, progress: TrainingState) -> None:
        tensors = {f"model.{name.removeprefix('best.')}": value for name, value in self._best.items()}
        save_checkpoint(self.run.best, tensors, progress, self._bond)

    def _best_is_right(self, progress: TrainingState) -> bool:
        try:
            _, found = read_checkpoint(self.run, self.run.best)
        except FileError:
            return False
        return found.best_epoch == progress.best_epoch


def load_best(run: RunDirectory, model: nn.Module) -> TrainingState:
    """The best weights of a run into a model."""
    try:
        tensors, progress = read_checkpoint(run, run.best)
    except DamagedFileError as error:
        raise FileError(f"{error}; `dygmamba.resume('{run.path}')` writes it anew") from error
    _load_weights(model, tensors, "model.", run.best)
    return progress


def load_newest(run: RunDirectory, model: nn.Module) -> TrainingState:
    """The weights that training will go on from into a model."""
    tensors, progress, path = read_newest(run)
    _load_weights(model, tensors, "model.", path)
    return progress


def read_newest(run: RunDirectory) -> tuple[Tensors, TrainingState, Path]:
    """The last checkpoint or, where it is missing or damaged, the one before it; a warning says so."""
    try:
        return *read_checkpoint(run, run.last), run.last
    except (DamagedFileError, CheckpointMissing) as error:
        if not run.before_last.exists():
            mend = "restore it, or delete it to begin the run again"
            raise FileError(f"{error}, and there is none before it; {mend}") from error
        try:
            found = read_checkpoint(run, run.before_last)
        except DamagedFileError as other:
            raise FileError(f"{error}, and so is the one before it; restore one or train again") from other
        at = f"epoch {found[1].epoch}, step {found[1].step}"
        warnings.warn(DygWarning(f"{error}; the run goes on from the one before it, at {at}"), stacklevel=2)
        return *found, run.before_last


class CheckpointMissing(FileError):
    """There is no checkpoint of that name."""


def save_checkpoint(
    path: Path, tensors: Tensors, progress: TrainingState, fingerprint: str, keep: Path | None = None
) -> None:
    """A sealed file, bound to its run; what it replaces is kept under another name if one is given."""
    make_folder(path.parent)
    metadata = {
        "format": FORMAT,
        "kind": _checkpoint_kind(path),
        "bond": fingerprint,
        "progress": json.dumps(asdict(progress)),
    }
    write_sealed_tensors(path, tensors, metadata, keep)


def read_checkpoint(run: RunDirectory, path: Path) -> tuple[Tensors, TrainingState]:
    """What save_checkpoint wrote, unless it is damaged or another run's."""
    if not path.exists():
        raise CheckpointMissing(
            f"there is no checkpoint at {path}; give the folder of a run that was started"
        )
    tensors, metadata = read_sealed_tensors(path)
    if metadata.get("format") != FORMAT:
        raise FileError(f"{path} is not a checkpoint of this program's version; train again")
    if metadata["kind"] != _checkpoint_kind(path):
        raise FileError(f"{path} is a copy of the run's {metadata['kind']}; restore its own, or train again")
    if metadata["bond"] != run.fingerprint:
        raise FileError(
            f"{path} belongs to another run or other settings; restore the run's own, or train again"
        )
    return tensors, TrainingState(**json.loads(metadata["progress"]))


def _checkpoint_kind(path: Path) -> str:
    """`last` or `best`, whichever generation."""
    return path.name.partition(".")[0]


def _named_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(model.state_dict().items())


def _load_weights(model: nn.Module, tensors: Tensors, prefix: str, path: Path) -> None:
    """The tensors under a prefix into the model, if they are all it has and no more."""
    own = model.state_dict()
    stored = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    wrong = [name for name in own if name not in stored or stored[name].shape != own[name].shape]
    if wrong or set(stored) - set(own):
        name = (wrong or sorted(set(stored) - set(own)))[0]
        raise FileError(
            f"{path} belongs to another model: '{name}' does not fit; use the settings the run was trained with"
        )
    model.load_state_dict(stored)


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    state: dict[int, Tensors] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _generator_states() -> Tensors:
    states = {"generator.cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["generator.cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_generators(tensors: Tensors) -> None:
    torch.set_rng_state(tensors["generator.cpu"])
    if "generator.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["generator.cuda"])
