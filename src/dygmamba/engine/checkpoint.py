"""Checkpoints: the complete state of a training run in one sealed safetensors file, without pickle.

`last` is the single point of commit: it holds weights, optimizer, generators and position, and also the metrics of all
epochs and the best weights, from which metrics.jsonl and `best` are rewritten if necessary. The `last` before it is
kept as `last.1`. Each file holds the fingerprint of its run.
"""

import json
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dygmamba.core.errors import ConfigError, DygWarning, FileError, first_line
from dygmamba.core.files.writing import make_folder
from dygmamba.core.settings import Bounds, load
from dygmamba.data.storage.tensor_file import DamagedFileError, read_sealed_tensors, write_sealed_tensors
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stored_values import is_result_row
from dygmamba.models.base import Model

FORMAT = "dygmamba-checkpoint-2"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # of torch.optim.Adam

MAX_COUNT = 2**63 - 1
Whole = Annotated[int, Bounds(0, MAX_COUNT)]
BestMetric = Annotated[float, Bounds(-1, 1, nan=True)]

Tensors = dict[str, Tensor]


@dataclass(slots=True)
class TrainingState:
    """Position of a run (epoch and next step), early stopping, and metrics.

    Stored as JSON in checkpoints, so the field names are part of the file format.
    """

    epoch: Whole = 0
    step: Whole = 0
    best_epoch: Annotated[int, Bounds(-1, MAX_COUNT)] = -1
    best_ap: BestMetric = -1.0
    best_auc: BestMetric = -1.0
    best_mrr: BestMetric = -1.0  # of runs whose best epoch has the best MRR
    stale: Whole = 0  # epochs since the best one
    finished: bool = False
    losses: list[float] = field(default_factory=list)  # of the current epoch
    entries: list[dict[str, Any]] = field(default_factory=list)  # metrics of the finished epochs

    @staticmethod
    def parse(text: str) -> "TrainingState":
        """Parse the JSON of a checkpoint; raise ConfigError or ValueError for a position that no training has."""
        state = load(TrainingState, json.loads(text))
        if not all(map(is_result_row, state.entries)):
            raise ValueError("its metrics have a value that no training has")
        return state

    @property
    def best(self) -> dict[str, float]:
        """Validation metrics of the best epoch; AP, AUC and MRR are -1 without one."""
        entry = self.entries[self.best_epoch] if 0 <= self.best_epoch < len(self.entries) else {}
        metrics = {key.removeprefix("val_"): entry[key] for key in entry if key.startswith("val_")}
        return {"ap": self.best_ap, "auc": self.best_auc, "mrr": self.best_mrr} | metrics

    def end_epoch(self, metrics: dict[str, Any], better: bool, epochs: int, patience: int) -> None:
        """Record the validation of an epoch and move on to the next one."""
        if better:
            self.best_ap, self.best_auc, self.best_mrr = (
                metrics.get(name, self.best[name]) for name in ("ap", "auc", "mrr")
            )
            self.best_epoch, self.stale = self.epoch, 0
        else:
            self.stale += 1
        self.epoch, self.step, self.losses = self.epoch + 1, 0, []
        self.update_finished(epochs, patience)

    def update_finished(self, epochs: int, patience: int) -> None:
        """Set `finished` by the number of epochs and the patience."""
        self.finished = self.stale >= patience or self.epoch >= epochs


class CheckpointManager:
    """Saves and restores the state of one run, and remembers its best weights."""

    def __init__(self, run: RunDirectory, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.run, self.model, self.optimizer = run, model, optimizer
        self._fingerprint = run.fingerprint
        self._best: Tensors = {}
        self._last_is_valid = False  # only a `last` known to be valid may replace the previous one

    def save(self, state: TrainingState, better: bool = False) -> None:
        """Write the state; with `better` the current weights become the best ones.

        In distributed training all processes have the same state and the first one writes it.
        """
        if better:
            self._best = {
                f"best.{name}": value.detach().cpu().clone() for name, value in _named_weights(self.model)
            }
        if not self.run.writes:
            return
        tensors = {f"model.{name}": value for name, value in _named_weights(self.model)} | self._best
        states = {} if self.optimizer is None else self.optimizer.state_dict()["state"]
        for number, values in states.items():
            tensors |= {f"optimizer.{number}.{key}": value for key, value in values.items()}
        keep = self.run.previous if self._last_is_valid else None
        save_checkpoint(self.run.last, tensors | _generator_states(), state, self._fingerprint, keep)
        self._last_is_valid = True
        if better:
            self._write_best(state)

    def restore(self) -> TrainingState:
        """Restore the newest valid checkpoint; rewrite `best` and metrics.jsonl from it if they differ."""
        if not self.run.started:
            self.run.write_metrics([])
            return TrainingState()
        tensors, state, path = read_newest(self.run)
        _load_weights(self.model, tensors, "model.", path)
        try:
            if self.optimizer is not None:
                _restore_optimizer(self.optimizer, tensors)
            _restore_generators(tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise _unusable_checkpoint(path, error) from error
        self._last_is_valid = path == self.run.last
        self._best = {name: value for name, value in tensors.items() if name.startswith("best.")}
        if self.run.writes and self._best and not self._best_is_current(state):
            self._write_best(state)
        self.run.write_metrics(state.entries)
        return state

    def load_best(self) -> None:
        """Load the best weights into the model, from memory or else from disk."""
        if not self._best:
            load_best(self.run, self.model)
        else:
            _load_weights(self.model, self._best, "best.", self.run.last)

    def _write_best(self, state: TrainingState) -> None:
        tensors = {f"model.{name.removeprefix('best.')}": value for name, value in self._best.items()}
        save_checkpoint(self.run.best, tensors, state, self._fingerprint)

    def _best_is_current(self, state: TrainingState) -> bool:
        try:
            _, best = read_checkpoint(self.run, self.run.best)
        except FileError:
            return False
        return best.best_epoch == state.best_epoch


def load_best(run: RunDirectory, model: nn.Module, part: str = "") -> TrainingState:
    """Load the best weights of a run into a model, or those of a part of its model (a prefix) into such a part."""
    try:
        tensors, state = read_checkpoint(run, run.best)
    except DamagedFileError as error:
        raise FileError(
            f"the best weights cannot be read ({error}); `dygmamba.resume({str(run.path)!r})` writes them again",
            code="damaged-checkpoint",
        ) from error
    _load_weights(model, tensors, f"model.{part}", run.best)
    return state


def load_newest(run: RunDirectory, model: nn.Module) -> TrainingState:
    """Load the weights from which training would continue into a model."""
    tensors, state, path = read_newest(run)
    _load_weights(model, tensors, "model.", path)
    return state


def read_newest(run: RunDirectory) -> tuple[Tensors, TrainingState, Path]:
    """Read the last checkpoint, or with a warning the previous one if the last is missing or damaged."""
    try:
        return *read_checkpoint(run, run.last), run.last
    except (DamagedFileError, CheckpointMissing) as error:
        if not run.previous.exists():
            raise FileError(
                f"the checkpoint cannot be read ({error}) and there is no previous one; restore it, or delete it to "
                "start the run again",
                code="damaged-checkpoint",
            ) from error
        try:
            tensors, state = read_checkpoint(run, run.previous)
        except DamagedFileError as other:
            raise FileError(
                f"neither the last checkpoint ({error}) nor the previous one ({other}) can be read; restore one of "
                "them, or train again",
                code="damaged-checkpoint",
            ) from other
        position = f"epoch {state.epoch}, step {state.step}"
        warnings.warn(
            DygWarning(
                f"the last checkpoint cannot be read ({error}); continuing from the previous one at {position}"
            ),
            stacklevel=2,
        )
        return tensors, state, run.previous


class CheckpointMissing(FileError):
    """There is no checkpoint file at the path."""

    code = "no-checkpoint"


def save_checkpoint(
    path: Path, tensors: Tensors, state: TrainingState, fingerprint: str, keep: Path | None = None
) -> None:
    """Write a sealed checkpoint with the fingerprint of its run; the file it replaces is kept as `keep`."""
    make_folder(path.parent)
    if path.parent.is_symlink():
        raise FileError(
            f"{path.parent} is a link, and checkpoints are not written through it; replace it by a folder",
            code="linked-checkpoint-folder",
        )
    metadata = {
        "format": FORMAT,
        "kind": _checkpoint_kind(path),
        "bond": fingerprint,
        "progress": json.dumps(asdict(state)),
    }
    write_sealed_tensors(path, tensors, metadata, keep)


def read_checkpoint(run: RunDirectory, path: Path) -> tuple[Tensors, TrainingState]:
    """Read a checkpoint; raise FileError if it is missing, damaged or belongs to another run."""
    if not path.exists():
        raise CheckpointMissing(
            f"there is no checkpoint at {path}; give the directory of a run that was started"
        )
    tensors, metadata = read_sealed_tensors(path)
    if metadata.get("format") != FORMAT:
        raise FileError(
            f"{path} is not a checkpoint of this version of dygmamba; train again",
            code="unknown-checkpoint-format",
        )
    if metadata.get("kind") != _checkpoint_kind(path):
        raise FileError(
            f"{path} is a copy of the run's {metadata.get('kind')!r:.40} checkpoint; restore the original, or "
            "train again",
            code="wrong-checkpoint",
        )
    if metadata.get("bond") != run.fingerprint:
        raise FileError(
            f"{path} belongs to another run or to other settings; restore the run's own checkpoint, or train again",
            code="wrong-checkpoint",
        )
    try:
        return tensors, TrainingState.parse(metadata["progress"])
    except (ConfigError, KeyError, ValueError, RecursionError) as error:
        raise _unusable_checkpoint(path, error) from error


def _unusable_checkpoint(path: Path, error: Exception) -> FileError:
    return FileError(
        f"{path} cannot be used ({first_line(error)}); restore the run's own checkpoint, or train again",
        code="damaged-checkpoint",
    )


def _checkpoint_kind(path: Path) -> str:
    """Return "last" (also for `last.1`) or "best"."""
    return path.name.partition(".")[0]


def _named_weights(model: nn.Module) -> list[tuple[str, Tensor]]:
    return list(model.state_dict().items())


def _load_weights(model: nn.Module, tensors: Tensors, prefix: str, path: Path) -> None:
    """Load the tensors with a prefix into the model; raise FileError unless names and shapes are the model's."""
    stored = _without_prefix(tensors, prefix)
    for name, module in model.named_modules():
        if isinstance(module, Model):
            module.allocate(_without_prefix(stored, f"{name}." if name else ""))
    own = model.state_dict()
    wrong = [
        name
        for name, tensor in own.items()
        if name not in stored or (stored[name].shape, stored[name].dtype) != (tensor.shape, tensor.dtype)
    ]
    if wrong or set(stored) - set(own):
        name = (wrong or sorted(set(stored) - set(own)))[0]
        raise FileError(
            f"{path} belongs to another model: tensor '{name}' does not fit; use the settings of the run",
            code="wrong-model",
        )
    for name, _ in model.named_parameters():
        if not bool(torch.isfinite(stored[name]).all()):
            raise FileError(
                f"{path} cannot be used: the weights '{name}' are not finite numbers; train again, with a smaller lr",
                code="not-finite",
            )
    model.load_state_dict(stored)
    for module in model.modules():
        if isinstance(module, Model):
            try:
                module.check_buffers()
            except ValueError as error:
                raise _unusable_checkpoint(path, error) from error


def _without_prefix(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Restore the moments of each parameter; raise ValueError for tensors that do not fit the parameters."""
    state: dict[int, Tensors] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            state.setdefault(int(number), {})[key] = value
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in state.items():
        if not 0 <= number < len(parameters) or set(values) != set(MOMENTS):
            raise ValueError(f"it has no complete state of parameter {number}")
        shape = parameters[number].shape
        if any(value.shape != (shape if key != "step" else ()) for key, value in values.items()) or not all(
            value.is_floating_point() and bool(torch.isfinite(value).all()) for value in values.values()
        ):
            raise ValueError(f"its state of parameter {number} does not fit")
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
