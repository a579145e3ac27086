"""Search for the settings that suit a dataset, judged on its validation period, and save them as a preset."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dygmamba.api.datasets import Source, open_data, resolve_data
from dygmamba.api.requests.training import TuneRequest
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.errors import ConfigError, Interrupted, ScoreError
from dygmamba.core.progress import EpochFunction, Progress, as_progress
from dygmamba.data.events.split_spec import AUTO_PROTOCOL, SplitSpec
from dygmamba.data.storage.dataset import Dataset
from dygmamba.report.html import write_document
from dygmamba.report.tuning_document import build_tuning_document
from dygmamba.report.tuning_document import summarize_tuning as summarize_tuning
from dygmamba.runs.default_model import choose_model
from dygmamba.runs.opening import choose_device, parse_split
from dygmamba.runs.tuning import (
    PAGE_NAME,
    Tuning,
    TuningBudget,
    TuningRequest,
    require_preset_path,
    run_search,
    study_folder,
    write_tuning_result,
)
from dygmamba.runs.tuning_trials import JOURNAL_FILE

DEFAULT_TRIALS = 30  # if neither trials nor hours are given


@check_arguments
def tune(
    data: "Dataset | Source",
    model: str | None = None,
    *,
    trials: int | None = None,
    hours: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    seed: int = 0,
    preset: str | None = None,
    split: SplitSpec | None = None,
    protocol: str = AUTO_PROTOCOL,
    device: str = "auto",
    studies: Path | str = "studies",
    data_dir: Path | str | None = None,
    progress: Progress | EpochFunction | None = None,
    train_command: Callable[[Path], str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Tuning:
    """Search for better settings in short trainings that are judged on validation alone, and save the best as a preset.

    The study is the folder `studies`/tune-DATA-MODEL. The same call continues a study that was stopped or killed, or
    makes it longer. `train(data, preset=tuning.preset)` uses the result, and is the first to see the test period.
    `tuning.page` shows all trials.

    Args:
        data: A dataset, its name, or anything that `read` takes.
        model: A registered model; chosen as in `train` by default.
        trials: Trials of the whole study, 30 unless `hours` is given. The first one is the model as it is.
        hours: Stop after this time.
        out: The preset file, NAME.toml; by default preset.toml in the folder of the study.
        resume: Raise an error if there is no study to continue.
        seed: Seed of the search and of every training in it.
        preset: Start from "small", "short", "paper" or a file NAME.toml.
        split: As in `train`.
        protocol: As in `train`.
        device: "auto", "cpu" or "cuda".
        studies: Where studies go.
        data_dir: Where datasets are.
        progress: Called with every epoch's entry, or a `dygmamba.core.progress.Progress`.
        train_command: Returns the command that trains with a preset file, to be shown on the page.
        overrides: Further settings, for those whose names are arguments here.
        **settings: Fixed, not searched; epochs and patience are those of a trial.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> found = dm.tune(data, "trees", trials=2, epochs=1, rounds=2, neighbors=0, scales=4)
    >>> len(found.trials), found.preset.name
    (2, 'preset.toml')
    """
    request = TuneRequest.from_arguments(
        locals(), data=resolve_data(data), settings=settings | dict(overrides or {})
    )
    return run_tuning(request.check(), as_progress(progress), train_command)


def run_tuning(
    request: TuneRequest, progress: Progress, train_command: Callable[[Path], str] | None = None
) -> Tuning:
    """Search as a request says, and write the preset and the page."""
    dataset, device = open_data(request.data, request.data_dir), choose_device(request.device)
    settings, model, preset = dict(request.settings), request.model, request.preset
    if model is None:
        choice = choose_model(device.type, "link", settings, preset)
        model, preset = choice.model, choice.preset
        progress.message(choice.sentence)
    split = parse_split(dataset, request.split, request.protocol)
    search = TuningRequest(dataset, model, device, request.seed, settings, preset, split, train_command)
    require_preset_path(request.out)
    folder = study_folder(request.studies, dataset.name, model)
    if request.resume and not (folder / JOURNAL_FILE).exists():
        raise ConfigError(
            f"there is no study in {folder} to resume; leave out `resume` to start one",
            code="no-study-to-resume",
        )
    trials = DEFAULT_TRIALS if request.trials is None and request.hours is None else request.trials
    deadline = None if request.hours is None else time.monotonic() + 3600 * request.hours
    journal, ended = run_search(search, folder, TuningBudget(trials, deadline), progress)
    tuning = write_tuning_result(search, journal, ended, request.out)
    if tuning is None and journal.rows:
        raise ScoreError(
            f"none of {len(journal.rows)} trials could be trained; the first: {journal.rows[0]['why']}. Repeat the "
            "search with other settings and in another folder of `studies`",
            code="no-trained-trial",
        )
    if tuning is None:
        raise Interrupted(
            f"stopped before a trial was finished, so there is no preset yet; the same call continues in {folder}"
        )
    write_document(build_tuning_document(search, tuning), folder, PAGE_NAME)
    return tuning
