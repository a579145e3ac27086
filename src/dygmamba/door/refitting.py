"""A run for use: the settings and the epochs that another run found best, trained on every event, the test's too."""

from pathlib import Path
from typing import Any

import torch

from dygmamba.data.splits import UNCUT
from dygmamba.door.training import Watcher, finish_link
from dygmamba.engine.checkpoint import read_checkpoint
from dygmamba.engine.fit import Fit
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError
from dygmamba.models import find_model
from dygmamba.runs.choosing import Beginning
from dygmamba.runs.link import start_link_run
from dygmamba.runs.opening import link_data, split_of


def refit_link(path: Path, device: torch.device, watcher: Watcher, data_dir: Path | None = None) -> Fit:
    """As many epochs as the best weights of a finished run had, on everything, in a folder beside it."""
    folder = RunFolder(path)
    dataset = link_data(folder, data_dir)
    if not split_of(folder).numbers:
        raise ConfigError(f"{path} was trained on every event already; give the run it was made of")
    if not folder.finished:
        raise ConfigError(f"{path} is not finished; go on with: `dygmamba.resume('{path}')`")
    about, settings = folder.config()["run"], _settings(folder)
    _, progress = read_checkpoint(folder, folder.best)
    epochs, had = progress.best_epoch + 1, len(folder.metrics())
    find_model(about["model"], about.get("source"))  # one from outside is imported from where the run says
    beginning = Beginning(
        by=UNCUT, of=path, why={"epochs": f"{epochs}: the best of the {had} that {path} had"}
    )
    more = {"epochs": epochs, "patience": max(epochs, settings["patience"])}
    root = path.parent.parent.parent
    fit = start_link_run(
        dataset, about["model"], int(about["seed"]), settings | more, device, root, beginning
    )
    watcher.say(f"refit on every event: {fit.run.path}")
    return finish_link(fit, dataset, (), watcher)


def _settings(folder: RunFolder) -> dict[str, Any]:
    sections = folder.config()
    return sections["model"] | sections["train"]
