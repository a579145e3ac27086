"""Choice among trained runs by validation: their figures with a spread, the best one, and whether a blend is better.

The validation events are cut into consecutive blocks, as in the final evaluation. A figure varies from block to block;
its standard error says how much of it may be chance. The record of a choice is the file selection.json, which lies in
every run that was tried, so that any of them can be given to continue an interrupted choice.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.core.files.untrusted import locate_inside
from dygmamba.core.files.writing import write_text
from dygmamba.core.settings import load
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.blending import BLEND, enumerate_shares
from dygmamba.runs.evaluation import Scored
from dygmamba.runs.run_names import SELECTION_NAME
from dygmamba.tasks.statistics import Difference, standard_error

MIN_BLEND_BLOCKS = 6  # half of the blocks choose the weights of a blend, the other half judge it
WAITING, STARTED, TRAINED, SKIPPED = "waiting", "started", "trained", "skipped"


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """State, cost and validation of one candidate. The field names are keys of selection.json and results.json.

    Attributes:
        model: Name of the model.
        preset: Its preset, if not the published settings.
        seed: Its seed, if not that of the other candidates.
        state: "waiting", "started", "trained" or "skipped".
        run: Its run directory, relative to the folder of all runs.
        expected_seconds: Estimated before the training; None if nothing comparable was measured.
        seconds: Duration of the training.
        peak_mb: Largest memory of the process during it (of the GPU, if there is one), if it can be measured.
        epochs: Number of epochs that were trained.
        best_epoch: Number of epochs of the best weights.
        ended: Why the training ended: "validation", "epochs" or "time".
        val_ap: AP of the best weights on the validation period.
        val_ap_error: Standard error of it over the blocks.
        reason: Why it was skipped.
    """

    model: str
    preset: str | None = None
    state: str = WAITING
    run: str | None = None
    expected_seconds: float | None = None
    seconds: float | None = None
    peak_mb: float | None = None
    epochs: int | None = None
    best_epoch: int | None = None
    ended: str | None = None
    val_ap: float | None = None
    val_ap_error: float | None = None
    reason: str | None = None
    seed: int | None = None

    def is_same_model(self, other: "CandidateRecord") -> bool:
        """Return whether both have the same model and preset, whatever their seeds."""
        return (self.model, self.preset) == (other.model, other.preset)


@dataclass(frozen=True, slots=True)
class SelectionRecord:
    """The candidates tried within a time budget, and the chosen one; the keys of selection.json and results.json.

    Attributes:
        budget: Seconds that the user gave.
        settings: What the user set, for candidates that are not started yet.
        candidates: In the order in which they are trained.
        chosen: Name of the chosen model; None while candidates are trained.
        run: Its run directory, relative to the folder of all runs.
        reason: Why it was chosen, a sentence.
    """

    budget: float
    settings: dict[str, Any] = field(default_factory=dict)
    candidates: tuple[CandidateRecord, ...] = ()
    chosen: str | None = None
    run: str | None = None
    reason: str | None = None

    def update(self, number: int, **changes: Any) -> "SelectionRecord":
        """Return the record with changed fields of one candidate."""
        changed = list(self.candidates)
        changed[number] = replace(changed[number], **changes)
        return replace(self, candidates=tuple(changed))

    def add(self, candidate: CandidateRecord) -> "SelectionRecord":
        return replace(self, candidates=(*self.candidates, candidate))

    @property
    def runs(self) -> list[str]:
        """Directories of all runs in it, relative to the folder of all runs."""
        named = (*(candidate.run for candidate in self.candidates), self.run)
        return list(dict.fromkeys(run for run in named if run is not None))

    def save(self, root: Path) -> None:
        """Write the record into the directory of every run in it; the first one is read when it is continued."""
        for run in self.runs:
            write_text(root / run / SELECTION_NAME, json.dumps(asdict(self), indent=1) + "\n")


def load_selection(run: RunDirectory) -> SelectionRecord | None:
    """Read the record of the choice that a run was part of; None if it was trained alone."""
    path = run.path / SELECTION_NAME
    record = _read_record(path)
    started = [] if record is None else [one.run for one in record.candidates if one.run is not None]
    # the first run's copy is written first, so it is the newest if a write was interrupted
    first = path if not started else get_runs_folder(run) / started[0] / SELECTION_NAME
    return _read_record(first) or record


def describe_selection(run: RunDirectory) -> dict[str, Any]:
    """Return the field "selection" of the results of a chosen run; nothing for any other run."""
    record = load_selection(run)
    if record is None or record.run is None or (get_runs_folder(run) / record.run) != run.path:
        return {}
    return {"selection": asdict(record)}


def get_runs_folder(run: RunDirectory) -> Path:
    """Return the folder of all runs: the `out` of <out>/<dataset>/<model>/<run>."""
    return run.path.parent.parent.parent


def _read_record(path: Path) -> SelectionRecord | None:
    try:
        record = load(SelectionRecord, json.loads(path.read_bytes().decode("utf-8")))
        for run in record.runs:
            locate_inside(get_runs_folder(RunDirectory(path.parent)), run, path)
        return record
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, ConfigError, RecursionError) as error:
        raise FileError(
            f"{path} is damaged ({type(error).__name__}); delete it to continue the run alone, or train again",
            code="damaged-selection",
        ) from error


def compare_blend(candidates: Sequence[Scored]) -> Difference | None:
    """Compare the best blend of several scores of the same pairs with the best of them, on blocks that chose neither.

    Every second block chooses the weights and the best score for the others, and the other way round. Comparing on the
    blocks that chose the weights would favour the blend, because each score alone is one of the blends; comparing with
    the score that is best on all blocks would favour the luckiest of several seeds.

    Returns:
        The difference; None if there are too few events.
    """
    shares = enumerate_shares(len(candidates))
    stacked = torch.stack([one.score for one in candidates])
    blends = ((torch.tensor(weights, dtype=torch.float64)[:, None] * stacked).sum(0) for weights in shares)
    # a row per weights, a column per block
    table = np.array([replace(candidates[0], score=blend).block_ap for blend in blends])
    if table.shape[1] < MIN_BLEND_BLOCKS:
        return None
    alone = np.array([max(weights) == 1 for weights in shares])
    gaps, fold = np.zeros(table.shape[1]), np.arange(table.shape[1]) % 2
    for part in (0, 1):
        others = table[:, fold != part].mean(axis=1)
        best = int(np.where(alone, others, -np.inf).argmax())
        gaps[fold == part] = (table[int(others.argmax())] - table[best])[fold == part]
    return Difference(float(gaps.mean()), standard_error(gaps))


def describe_choice(
    names: Sequence[str], aps: Sequence[float], differences: Sequence[Difference], best: int
) -> str:
    """Say why the best of several runs was chosen; `differences` are those of the best to each of the others."""
    text = f"{names[best]} has the best validation AP, {100 * aps[best]:.2f}"
    others = [place for place in range(len(names)) if place != best]
    if not others:
        return f"{names[best]} is the only model that was trained; validation AP {100 * aps[best]:.2f}"
    parts = []
    for place in others:
        difference = differences[place]
        if difference.error is None:
            parts.append(f"{difference.format()} above {names[place]}, with too few events for an error")
        elif difference.is_significant:
            parts.append(f"{difference.format()} above {names[place]}")
        else:
            parts.append(f"its difference to {names[place]}, {difference.format()}, is within chance")
    return f"{text}: {'; '.join(parts)}"


def describe_blend_choice(formula: str, ap: float, difference: Difference) -> str:
    return (
        f"the {BLEND} {formula} has the best validation AP, {100 * ap:.2f}: {difference.format()} above the best run "
        "alone, on events that chose neither"
    )
