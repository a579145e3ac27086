"""What a stream's test allows, what was published above it, and what a model's score depends on."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dygmamba.data.library import open_dataset
from dygmamba.data.store import Dataset
from dygmamba.errors import ConfigError
from dygmamba.runs.opening import link_stream, open_run
from dygmamba.studies.audit import Audit, audit_stream
from dygmamba.studies.audit.model import by_name, of_run

if TYPE_CHECKING:
    from dygmamba.door.run import Run
else:
    Run = Any


def audit(
    data: "Dataset | str | Path",
    model: str | None = None,
    *,
    run: "Run | Path | str | None" = None,
    data_dir: Path | str | None = None,
    **settings: Any,
) -> Audit:
    """Hold a stream's test against oracles and simple rules, and a model or a trained run to what it may depend on.

    `data` is a dataset, its name, a file, or a run folder, which brings its own. The answer has `ceilings`, `checks`,
    `sound`, `to_dict()` and `page(out)`.

    >>> import dygmamba as dm
    >>> found = dm.audit(dm.generate(nodes=40, events=800, communities=4), "edgebank")
    >>> found.sound, [check.name for check in found.checks][:4]
    (True, ['future', 'batch', 'order', 'padding'])
    """
    return watched_audit(data, model, run=run, data_dir=data_dir, settings=settings)


def watched_audit(
    data: "Dataset | str | Path",
    model: str | None,
    *,
    run: "Run | Path | str | None",
    data_dir: Path | str | None,
    settings: dict[str, Any],
    watch: Any = lambda doing: None,
) -> Audit:
    """The same, with somebody told what is being done."""
    folder, cpu = None if data_dir is None else Path(data_dir), torch.device("cpu")
    if run is None and isinstance(data, str | Path) and (Path(data) / "config.toml").is_file():
        data, run = "", data
    if model is not None and run is not None:
        raise ConfigError("give a model by name or a run, not both; a run brings its own model")
    if model is None and settings:
        raise ConfigError(f"settings ({', '.join(settings)}) are of a model; name it with `model`")
    if run is not None:
        path = run if isinstance(run, str | Path) else run.path
        opened = open_run(Path(path), cpu, folder, None if data == "" else _dataset(data, folder))
        return audit_stream(opened.stream, opened.dataset.name, of_run(opened, Path(path)), watch=watch)
    dataset = _dataset(data, folder)
    stream = link_stream(dataset, cpu)
    subject = None if model is None else by_name(model, settings, stream, dataset.name)
    return audit_stream(stream, dataset.name, subject, watch=watch)


def _dataset(data: "Dataset | str | Path", folder: Path | None) -> Dataset:
    """A dataset, by name or in a file."""
    return data if isinstance(data, Dataset) else open_dataset(str(data), folder)
