"""A search for settings, from Python and for the command line."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from dygmamba.data.library import open_dataset
from dygmamba.data.store import Dataset
from dygmamba.door.choosing import pick_model
from dygmamba.engine.fit import Fit, Interrupted, Reporter
from dygmamba.errors import ConfigError
from dygmamba.report.sheet_page import write_sheet
from dygmamba.runs.opening import choose_device
from dygmamba.runs.splitting import Cuts, split_by
from dygmamba.studies.trials import FILE
from dygmamba.studies.tune_page import tune_sheet
from dygmamba.studies.tuned import PAGE, Tuning, require_file_name, summed_up
from dygmamba.studies.tuning import Bound, Search, Watching, search, study_folder

TRIALS = 30  # where nothing bounds a search


def tune(
    data: Dataset | str,
    model: str | None = None,
    *,
    trials: int | None = None,
    hours: float | None = None,
    out: Path | str | None = None,
    resume: bool = False,
    seed: int = 0,
    preset: str | None = None,
    split: Cuts | None = None,
    device: str = "auto",
    studies: Path | str = "studies",
    data_dir: Path | str | None = None,
    progress: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Tuning:
    """Search for better settings: short trainings, judged on validation alone, the best of them kept as a preset.

    `trials` are counted over the whole study, 30 unless `hours` bound it; the first is the model as it is. The study is
    the folder `studies`/tune-DATA-MODEL: killed, stopped or to be made longer, the same call goes on, and with `resume`
    it is an error if there is nothing to go on with. `settings` are fixed and not searched; epochs and patience are
    those of a trial. `train(data, preset=tuning.preset)` takes what was found, and is the first to see the test;
    `tuning.page` shows all trials.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> found = dm.tune(data, "trees", trials=2, epochs=1, rounds=2, neighbors=0, scales=4)
    >>> len(found.trials), found.preset.name
    (2, 'preset.toml')
    """
    folder = None if data_dir is None else Path(data_dir)
    dataset = open_dataset(data, folder) if isinstance(data, str) else data
    where = choose_device(device)
    chosen = (model, preset)
    if model is None:
        pick = pick_model(where, "link", settings, preset)
        chosen = (pick.model, pick.size)
    what = Search(dataset, str(chosen[0]), where, seed, settings, chosen[1], split_by(dataset, split))
    watching = _silent if progress is None else _Told(progress)
    return watched_tune(
        what, Path(studies), watching, trials, hours, None if out is None else Path(out), resume
    )


def watched_tune(
    what: Search,
    studies: Path,
    watching: Watching,
    trials: int | None = None,
    hours: float | None = None,
    out: Path | None = None,
    resume: bool = False,
) -> Tuning:
    """The search, followed by `watching`; stopped before the first trial was done, an Interrupted."""
    check_bound(trials, hours)
    require_file_name(out)
    folder = study_folder(studies, what.dataset.name, what.model)
    if resume and not (folder / FILE).exists():
        raise ConfigError(f"there is no study in {folder} to go on with; leave out `resume` to begin one")
    most = TRIALS if trials is None and hours is None else trials
    until = None if hours is None else time.monotonic() + 3600 * hours
    journal, ended = search(what, folder, Bound(most, until), watching)
    found = summed_up(what, journal, ended, out)
    if found is None:
        raise Interrupted(
            f"stopped before a trial was finished, so there is no preset yet; the same call goes on in {folder}"
        )
    write_sheet(tune_sheet(what, found), folder, PAGE)
    return found


def check_bound(trials: int | None, hours: float | None) -> None:
    """Refuse a bound that leaves no time for a trial."""
    if trials is not None and trials < 1:
        raise ConfigError(f"`trials` must be at least 1, got {trials}")
    if hours is not None and not 0 < hours <= 24 * 365:
        raise ConfigError(f"`hours` must be above 0 and at most a year's, got {hours:g}")


def _silent(fit: Fit, name: str) -> AbstractContextManager[Reporter]:
    return nullcontext(Reporter())


class _Told:
    """A function is told of every epoch of every trial."""

    def __init__(self, progress: Callable[[dict[str, Any]], None]) -> None:
        self.progress = progress

    def __call__(self, fit: Fit, name: str) -> AbstractContextManager[Reporter]:
        """The trial's name beside each epoch's entry."""
        return nullcontext(Reporter(epoch=lambda entry: self.progress({"trial": name, **entry})))
