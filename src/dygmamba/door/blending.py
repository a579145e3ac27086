"""Several finished runs as one, from Python."""

from collections.abc import Sequence
from pathlib import Path

import torch

from dygmamba.door.asking import Names, chosen_names
from dygmamba.door.run import Run
from dygmamba.door.training import Watcher, finish_link
from dygmamba.engine.fit import Fit
from dygmamba.runs.blending import blend_runs
from dygmamba.runs.opening import choose_device
from dygmamba.sampling.negatives import SAMPLERS


def blend(
    runs: Sequence[Path | str],
    *,
    device: str = "auto",
    out: Path | str = "runs",
    negatives: Names = "random",
    data_dir: Path | str | None = None,
) -> Run:
    """Finished link runs of one stream as one: the sum of their logits that is best on validation, then evaluated.

    Nothing is trained. The new run holds all it needs and is used like any other. Two to four runs, of different models
    or of different seeds.

    >>> import dygmamba as dm
    >>> data = dm.generate(nodes=40, events=600, communities=4)
    >>> parts = [dm.train(data, name, epochs=1)[0] for name in ("trees", "tgn")]
    >>> both = dm.blend([part.path for part in parts])
    >>> both.config["run"]["model"], sum(both.config["model"]["weights"])
    ('blend', 1.0)
    """
    strategies = chosen_names("negatives", negatives, SAMPLERS)
    where, folder = choose_device(device), None if data_dir is None else Path(data_dir)
    made = watched_blend([Path(run) for run in runs], where, Path(out), strategies, Watcher(), folder)
    return Run(made.run.path, device, folder)


def watched_blend(
    runs: list[Path],
    device: torch.device,
    out: Path,
    strategies: tuple[str, ...],
    watcher: Watcher,
    data_dir: Path | None,
) -> Fit:
    """The same, somebody following."""
    fit, dataset = blend_runs(runs, device, out, data_dir, watcher.stage)
    watcher.say(f"run: {fit.run.path}")
    watcher.say(fit.run.config()["chosen"]["weights"])
    return finish_link(fit, dataset, strategies, watcher)
