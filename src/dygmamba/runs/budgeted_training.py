"""Training within a time budget: candidates in the order of cost, then the best by validation, or a blend of them.

If the best one is a network and time is left, it is trained with further seeds, for the blend.

The clock decides which candidates are tried and after how many epochs they end. It does not decide what a run is: a run
that ended at the deadline has the number of its epochs as a setting, and these settings give the same bits again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.core.deadline import Deadline
from dygmamba.core.errors import ConfigError, DygError, Interrupted
from dygmamba.core.memory_budget import (
    describe_shortage,
    get_peak_memory,
    is_out_of_memory,
    reset_peak_memory,
)
from dygmamba.core.progress import Progress
from dygmamba.data.events.times import format_rough_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.fit import StopCondition, Trainer, never_stop
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.blending import (
    BLEND,
    MAX_RUNS,
    check_blendable,
    create_blend,
    find_best_weights,
    open_part,
    score_validation,
)
from dygmamba.runs.candidates import (
    Candidate,
    estimate_seconds,
    find_refused,
    format_candidate_name,
    list_candidates,
)
from dygmamba.runs.evaluation import Queries, Scored
from dygmamba.runs.opening import open_link_dataset, resume_training
from dygmamba.runs.pipeline import (
    MIN_SECONDS,
    MIN_STEPS,
    TrainingPlan,
    finish_run,
    report_resume,
    start_or_restart,
    train_without_evaluation,
)
from dygmamba.runs.recipes import OpenRun
from dygmamba.runs.run_config import RunConfig
from dygmamba.runs.selection import (
    SKIPPED,
    STARTED,
    TRAINED,
    WAITING,
    CandidateRecord,
    SelectionRecord,
    compare_blend,
    describe_blend_choice,
    describe_choice,
    get_runs_folder,
    load_selection,
)
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import build_validation_set

MIN_SHARE = 0.4  # of its expected training; a candidate that is trained for less rarely wins
EVALUATION_SHARE, MAX_RESERVE = 0.3, 0.5  # time of the final evaluation: of a training, at most of the budget
FURTHER_SEEDS = 2  # of the best network; with the next best model they fill a blend
SLOWNESS_RANGE = (0.2, 10.0)  # at most 5 times faster, 10 times slower than the measured machine
START_SECONDS = (
    5.0  # of any training: indices, compiled kernels; a training as short says nothing about the machine
)


def train_within_budget(
    dataset: Dataset, plan: TrainingPlan, seed: int, deadline: Deadline, progress: Progress
) -> Trainer:
    """Train candidates until the deadline and evaluate the best one on the test.

    Returns:
        The chosen run. The other runs are trained, but not evaluated.
    """
    candidates = list_candidates(plan.device.type, plan.model, plan.preset)
    refused = find_refused(candidates, plan.settings)
    records = [
        CandidateRecord(
            one.model, one.preset, SKIPPED if one in refused else WAITING, reason=refused.get(one)
        )
        for one in candidates
    ]
    record = SelectionRecord(round(deadline.left, 1), plan.settings, tuple(records))
    return Selector(dataset, plan, seed, record, deadline, progress).run()


def find_unfinished_selection(path: Path) -> SelectionRecord | None:
    """Return the record of a choice that was interrupted, given the directory of any run in it; otherwise None."""
    folder = RunDirectory(path)
    record = load_selection(folder)
    if record is None or (
        record.run is not None and RunDirectory(get_runs_folder(folder) / record.run).finished
    ):
        return None
    return record


def resume_selection(
    path: Path,
    record: SelectionRecord,
    plan: TrainingPlan,
    data_dir: Path | None,
    deadline: Deadline,
    progress: Progress,
) -> Trainer:
    """Continue a choice that was interrupted; candidates that are trained are not trained again."""
    folder = RunDirectory(path)
    config = RunConfig.read(folder)
    dataset, root = open_link_dataset(config, data_dir), get_runs_folder(folder)
    plan = replace(plan, settings=record.settings, out=root, split=config.rule)
    # a further seed of the best network may be given; the other runs have the seed of the choice
    first = next(one.run for one in record.candidates if one.run is not None and one.seed is None)
    seed = int(RunDirectory(root / first).config()["run"]["seed"])
    return Selector(dataset, plan, seed, record, deadline, progress).run()


def count_spent_seconds(record: SelectionRecord) -> float:
    return sum(candidate.seconds or 0.0 for candidate in record.candidates)


@dataclass(slots=True)
class _Pace:
    """Stop condition of a candidate: its first epoch will not end before the deadline."""

    fit: Trainer
    deadline: Deadline
    marks: list[float] = field(default_factory=list)  # ends of steps; the first step compiles kernels
    is_too_slow: bool = False

    def __call__(self) -> bool:
        if self.fit.state.epoch > 0:
            return False
        self.marks.append(self.deadline.clock())
        steps, spent = len(self.marks) - 1, self.marks[-1] - self.marks[0]
        rest = 0.0
        if steps >= MIN_STEPS and spent >= MIN_SECONDS and not self.fit.scorer.rounds_per_epoch:
            rest = spent / steps * (self.fit.steps_per_epoch - len(self.marks))
        self.is_too_slow = self.deadline.left < rest or self.deadline.is_over
        return self.is_too_slow


class Selector:
    """Trains the candidates of a record that are not trained yet, and chooses among all of them."""

    def __init__(
        self,
        dataset: Dataset,
        plan: TrainingPlan,
        seed: int,
        record: SelectionRecord,
        deadline: Deadline,
        progress: Progress,
    ) -> None:
        self.dataset, self.plan, self.seed, self.progress = dataset, plan, seed, progress
        self.record, self.deadline = record, deadline
        self.slowness = 1.0  # of this machine: seconds per expected second
        self.best: tuple[float, Trainer] | None = None  # the only trained run that is kept open
        # the same pairs for all candidates, though the task of trees that rank has further ones
        self.validation: EvaluationSet | None = None
        self.scores: dict[int, Scored] = {}  # of the validation, by number of the candidate
        self.postponed: list[int] = []  # candidates that were expected to take too long
        self.errors: list[DygError] = []

    def run(self) -> Trainer:
        """Train, choose and evaluate."""
        if self.record.chosen is None:
            self._announce()
            for number, candidate in enumerate(self.record.candidates):
                if candidate.state in (WAITING, STARTED):
                    self._try(number, self._estimate(candidate))
            self._try_further_seeds()
            for number in self.postponed:
                # an estimate must not leave most of the budget unused; the first steps tell
                if self.deadline.left > MAX_RESERVE * self.record.budget:
                    self._try(number, None)
            fit = self._choose()
        else:
            fit = resume_training(
                self.plan.out / str(self.record.run), self.plan.device, dataset=self.dataset
            )
            report_resume(fit, self.progress)
        return finish_run(fit, self.dataset, self.plan.finish, self.progress)

    def _try_further_seeds(self) -> None:
        """Train the best network with further seeds while whole trainings fit.

        Networks with different seeds make different errors, so a blend of them gains; trees make the same ones. A model
        that the user named is trained once.
        """
        while sum(one.seed is None for one in self.record.candidates) > 1 and self._trained:
            best = self._best_trained
            same = [one for one in self.record.candidates if one.is_same_model(best)]
            is_enough = len(same) > FURTHER_SEEDS or self._open_best().scorer.rounds_per_epoch > 0
            if is_enough or not self._fits_again(best):
                return
            self.record = self.record.add(
                CandidateRecord(best.model, best.preset, seed=self.seed + len(same))
            )
            self._try(len(self.record.candidates) - 1, self._estimate(best))

    def _fits_again(self, candidate: CandidateRecord) -> bool:
        """Return whether there is time to train a candidate once more and to evaluate a blend with it."""
        return self.deadline.left > (candidate.seconds or 0.0) + self._reserve(candidate.seconds)

    @property
    def _trained(self) -> list[CandidateRecord]:
        return [one for one in self.record.candidates if one.state == TRAINED]

    @property
    def _best_trained(self) -> CandidateRecord:
        return max(self._trained, key=lambda one: one.val_ap or 0.0)

    def _open_best(self) -> Trainer:
        """Return the run of the best trained candidate, which is open already unless it was trained before a stop."""
        best = self._best_trained
        path = self.plan.out / str(best.run)
        if self.best is None or self.best[1].run.path != path:
            fit = resume_training(path, self.plan.device, dataset=self.dataset)
            self.best = (best.val_ap or 0.0, fit)
        return self.best[1]

    def _announce(self) -> None:
        for candidate in self.record.candidates:
            if candidate.state == SKIPPED:
                self.progress.message(f"skipped {_format_name(candidate)}: {candidate.reason}")
        names = [_format_name(one) for one in self.record.candidates if one.state != SKIPPED]
        if len(names) > 1:
            self.progress.message(
                f"choosing among {', '.join(names)} by validation within {format_rough_duration(self.record.budget)}"
            )

    def _update(self, number: int, **changes: Any) -> None:
        self.record = self.record.update(number, **changes)
        self.record.save(self.plan.out)

    def _skip(self, number: int, reason: str) -> None:
        self._update(number, state=SKIPPED, reason=reason)
        self.progress.message(f"skipped {_format_name(self.record.candidates[number])}: {reason}")

    def _reserve(self, expected: float | None) -> float:
        """Return the time to keep for the final evaluation, which may be that of a blend of the longest trainings."""
        longest = sorted([expected or 0.0, *(one.seconds or 0.0 for one in self.record.candidates)])[
            -MAX_RUNS:
        ]
        return min(EVALUATION_SHARE * sum(longest), MAX_RESERVE * self.record.budget)

    def _try(self, number: int, expected: float | None) -> None:
        """Train a candidate if there is time for it; `expected` are its seconds if they are known."""
        candidate = self.record.candidates[number]
        is_first = all(one.state != TRAINED for one in self.record.candidates)
        training = replace(self.deadline, at=self.deadline.at - self._reserve(None if is_first else expected))
        left, needed = training.left, 0.0 if expected is None else MIN_SHARE * expected
        if not is_first and (left <= 0 or needed > left):
            rest = f"{format_rough_duration(left)} are left" if left > 0 else "the time is used up"
            needs = "" if expected is None else f"it needs {format_rough_duration(needed)} or more, "
            self.postponed += [number] if left > 0 else []
            return self._skip(number, f"{needs}{rest}")
        if len(self.record.candidates) > 1:
            about = "" if expected is None else f", about {format_rough_duration(expected)}"
            self.progress.message(
                f"training {_format_name(candidate)}{about}; {format_rough_duration(left)} are left"
            )
        pace = None
        try:
            fit = self._open(number, candidate)
            path = fit.run.path.relative_to(self.plan.out).as_posix()
            self._update(number, state=STARTED, run=path, expected_seconds=expected, reason=None)
            pace = None if is_first else _Pace(fit, training)
            self._train(number, fit, training, pace or never_stop, expected)
        except Interrupted:
            if pace is None or not pace.is_too_slow:
                raise  # by the user
            self._skip(
                number, f"its first epoch would not end in the {format_rough_duration(left)} that were left"
            )
        except DygError as error:
            self.errors.append(error)
            self._skip(number, str(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self.errors.append(ConfigError(describe_shortage(error), code="out-of-memory"))
            self._skip(number, describe_shortage(error))

    def _open(self, number: int, candidate: CandidateRecord) -> Trainer:
        """Start the run of a candidate, or open the one that was interrupted."""
        if candidate.run is not None:
            fit = resume_training(self.plan.out / candidate.run, self.plan.device, dataset=self.dataset)
            report_resume(fit, self.progress)
            return fit
        budget, count = format_rough_duration(self.record.budget), len(self.record.candidates)
        place = f"candidate {number + 1} of {count}, " if count > 1 else ""
        why = self.plan.why | {"budget": f"{place}within {budget}"}
        plan = replace(self.plan, model=candidate.model, preset=candidate.preset, why=why)
        seed = self.seed if candidate.seed is None else candidate.seed
        return start_or_restart(self.dataset, plan, seed, self.progress)

    def _train(
        self, number: int, fit: Trainer, deadline: Deadline, stop: StopCondition, expected: float | None
    ) -> None:
        """Train a run and record its cost and its validation."""
        start, epochs = self.deadline.clock(), fit.config.epochs
        before = sum(entry["seconds"] for entry in fit.state.entries)  # of an interrupted training
        with _measure_peak(self.plan.device) as peak:
            train_without_evaluation(fit, self.progress, self.plan.finish.log, deadline, stop)
            validation = self._build_validation(fit)
            scored = Scored(Queries(validation), fit.score(validation).double())
        state, seconds = fit.state, before + self.deadline.clock() - start
        if expected and expected > 2 * START_SECONDS and not before and self.plan.device.type == "cpu":
            ratio = (seconds - START_SECONDS) / (expected - START_SECONDS)
            self.slowness = min(max(self.slowness * ratio, SLOWNESS_RANGE[0]), SLOWNESS_RANGE[1])
        is_cut = fit.config.epochs < epochs
        ended = "time" if is_cut else "validation" if state.stale >= fit.config.patience else "epochs"
        self.scores[number] = scored
        self._update(
            number,
            state=TRAINED,
            seconds=seconds,
            peak_mb=peak[0] if peak else None,
            epochs=state.epoch,
            best_epoch=state.best_epoch + 1,
            ended=ended,
            val_ap=scored.link["ap"],
            val_ap_error=scored.row(("ap_se",))["ap_se"],
        )
        if self.best is None or scored.link["ap"] > self.best[0]:
            self.best = (scored.link["ap"], fit)

    def _build_validation(self, fit: Trainer) -> EvaluationSet:
        if self.validation is None:
            negatives = self.record.settings.get("train_negatives", LinkFitConfig().train_negatives)
            self.validation = build_validation_set(fit.stream.store, fit.stream.split, negatives)
        return self.validation

    def _estimate(self, candidate: CandidateRecord) -> float | None:
        same = [one.seconds for one in self._trained if one.is_same_model(candidate)]
        if same:
            return same[0]
        store = self.dataset.store
        size = {"name": self.dataset.name, "events": len(store), "types": bool(store.features.categories)}
        expected = estimate_seconds(
            Candidate(candidate.model, candidate.preset), self.plan.device.type, self.record.settings, **size
        )
        return None if expected is None else START_SECONDS + expected * self.slowness

    def _choose(self) -> Trainer:
        """Choose among the trained candidates, and return the run of the chosen one."""
        numbers = [number for number, one in enumerate(self.record.candidates) if one.state == TRAINED]
        if not numbers:
            raise self.errors[0]
        rows = [self.record.candidates[number] for number in numbers]
        paths, aps = [self.plan.out / str(row.run) for row in rows], [row.val_ap or 0.0 for row in rows]
        best, names = aps.index(max(aps)), [_format_name(row) for row in rows]
        fit = self._open_best()
        if len(rows) == 1:
            reason = describe_choice(names, aps, [], best)
            self.record = replace(self.record, chosen=rows[best].model, run=rows[best].run, reason=reason)
        else:
            validation = self._build_validation(fit)
            scores = [
                # those of candidates that were trained before an interruption are missing
                self.scores[number]
                if number in self.scores
                else Scored(
                    Queries(validation),
                    score_validation(self._open_part(path, fit), validation, self.progress),
                )
                for number, path in zip(numbers, paths, strict=True)
            ]
            differences = [scores[best].difference(score) for score in scores]
            reason = describe_choice(names, aps, differences, best)
            self.record = replace(self.record, chosen=rows[best].model, run=rows[best].run, reason=reason)
            first = sorted(range(len(rows)), key=lambda place: -aps[place])[:MAX_RUNS]
            fit = (
                self._blend([paths[place] for place in first], [scores[place] for place in first], fit) or fit
            )
        self.record.save(self.plan.out)
        self.progress.message(f"chosen: {self.record.reason}")
        return fit

    def _open_part(self, path: Path, fit: Trainer) -> OpenRun:
        return open_part(RunDirectory(path), self.dataset, fit.stream)

    def _blend(self, paths: list[Path], scores: list[Scored], fit: Trainer) -> Trainer | None:
        """Return the blend of these runs if it is better than the best of them by more than chance."""
        evaluation_set = scores[0].queries.pairs
        try:
            check_blendable([RunDirectory(path) for path in paths], is_evaluated=False)
            difference = compare_blend(scores)
            refusal = "the validation period has too few events to judge it"
        except ConfigError as error:
            difference, refusal = None, str(error)
        if difference is None or not difference.is_significant:
            if difference is not None:
                refusal = f"its difference to the best run alone, {difference.format()}, is within chance"
            return self._refuse_blend(refusal)
        weights, metrics = find_best_weights([one.score for one in scores], evaluation_set)
        if sum(weight > 0 for weight in weights) == 1:
            return self._refuse_blend("its best weights leave one run")
        parts = [self._open_part(path, fit) for path in paths]
        blend = create_blend(parts, weights, metrics, self.plan.out)
        path = blend.run.path.relative_to(self.plan.out).as_posix()
        formula = blend.run.config()["chosen"]["weights"].partition(":")[0]
        found = Scored(Queries(evaluation_set), blend.score(evaluation_set).double()).row(("ap", "ap_se"))
        ap, error = found["ap"], found["ap_se"]
        row = CandidateRecord(BLEND, state=TRAINED, run=path, val_ap=ap, val_ap_error=error)
        reason = describe_blend_choice(formula, ap, difference)
        self.record = replace(self.record.add(row), chosen=BLEND, run=path, reason=reason)
        return blend

    def _refuse_blend(self, reason: str) -> None:
        self.record = self.record.add(CandidateRecord(BLEND, state=SKIPPED, reason=reason))


@contextmanager
def _measure_peak(device: torch.device) -> Iterator[list[float]]:
    """Fill the list, on exit, with the largest memory inside in megabytes; it stays empty where that is not known."""
    peak: list[float] = []
    is_known = True
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        is_known = reset_peak_memory()
    yield peak
    used = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else get_peak_memory()
    if is_known and used:
        peak.append(used / 1e6)


def _format_name(candidate: CandidateRecord) -> str:
    return format_candidate_name(asdict(candidate))
