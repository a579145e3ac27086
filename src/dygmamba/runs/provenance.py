"""Provenance of a run: the settings it starts with and why, the environment it runs in, and what may change later.

All of it is recorded in config.toml. Three situations use the record:

- A run is resumed. torch splits some sums by the number of threads and processors differ in vector width, which changes
  the last bits. A run that promised to be reproducible to the bit must not continue with other bits silently.
- torchrun restarts a job after it lost a process. The job finds the run that it had started by its job id.
- A run is extended by more epochs: the result is exactly the run that would have been started with them.
"""

import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dygmamba._version import __version__
from dygmamba.config import (
    build_config,
    find_preset,
    find_size_preset,
    get_default_settings,
    load_presets,
    to_settings,
)
from dygmamba.core.errors import ConfigError, DygWarning, FileError
from dygmamba.core.process_settings import set_thread_count
from dygmamba.data.events.splits import SplitRule
from dygmamba.data.events.times import format_duration
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import read_newest
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.history.counts import CountFeatures
from dygmamba.models.base import Scorer

if TYPE_CHECKING:
    from dygmamba.runs.warm_start import WarmStart

# keys of [chosen]: what the size preset and the dataset's preset changed
PRESET_KEYS = ("preset", "published")
LENGTH_SETTINGS = ("length", "neighbors", "walks")  # what models call the length of the history they read
# everything else decides what a training step computes, and steps that are done cannot change
EXTENDABLE_SETTINGS = ("epochs", "patience", "save_every")
MAX_THREADS = 1_024  # a number beyond it was not written by a training
COMPARED_KEYS = ("device", "processes", "threads", "processor", "torch", "numba", "dygmamba")

SettingLayers = dict[str, dict[str, Any]]  # settings by the name of their source, the first source wins


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a new run besides dataset, model, seed and settings."""

    split: SplitRule | None = None  # None: the default split of the dataset
    preset: str | None = None  # a size preset; takes precedence over the preset of the dataset
    reasons: dict[str, str] = field(default_factory=dict)  # why model, device, ... were chosen for the user
    refit_of: Path | None = None  # the run whose settings are trained again on all events
    start: "WarmStart | None" = None  # the run whose settings and weights it starts with


def collect_settings(
    model: str, dataset: str, options: StartOptions, settings: dict[str, Any]
) -> SettingLayers:
    """Return the settings of a new run by source: the user's, the size preset, the preset of dataset or model.

    A run that starts from another one has the settings of that one instead of presets.
    """
    if options.start is not None:
        return {"set": settings, f"as {options.start.folder.path}": options.start.settings}
    size = {} if options.preset is None else find_size_preset(options.preset, model)
    owner = dataset if dataset in load_presets().get(model, {}) else model
    return {
        "set": settings,
        f"preset {options.preset}": size,
        f"preset for {owner}": find_preset(model, dataset),
    }


def merge_settings(layers: SettingLayers) -> dict[str, Any]:
    return {name: value for layer in reversed(layers.values()) for name, value in layer.items()}


def explain_choices(
    dataset: Dataset,
    stream: Stream,
    scorer: Scorer,
    fit_config: FitConfig,
    model_config: Any,
    layers: SettingLayers,
) -> dict[str, str]:
    """Describe the settings that matter most (history length, batch, precision, time scales) and their source."""
    model_settings = to_settings(model_config)

    def describe(name: str, value: Any, note: str = "") -> str:
        source = next((layer for layer, settings in layers.items() if name in settings), "default")
        return f"{value} ({source}{note})"

    choices = describe_preset_changes(
        layers, get_default_settings(fit_config) | get_default_settings(model_config)
    )
    for name in (name for name in LENGTH_SETTINGS if model_settings.get(name)):
        choices[name] = f"{describe(name, model_settings[name])}; {_describe_history(stream)}"
    if scorer.rounds_per_epoch:
        choices["batch"] = "none: every round learns from all training events"
        choices["precision"] = "float64, as sums of trees are"
    else:
        choices["batch"] = describe("batch", fit_config.batch)
        is_float32 = stream.device.type == "cpu" and fit_config.precision == "tf32"
        note = "; float32 on a CPU" if is_float32 else ""
        choices["precision"] = describe("precision", fit_config.precision, note)
    scales = [request.scales for request in scorer.requests if isinstance(request, CountFeatures)]
    if scales:
        shortest, longest = (_format_span(span, dataset) for span in (scales[0][0], scales[0][-1]))
        choices["time_scales"] = (
            f"{len(scales[0])} from {shortest}, the typical time gap of a node, to {longest}, the training period"
        )
    return choices


def describe_preset_changes(layers: SettingLayers, defaults: dict[str, Any]) -> dict[str, str]:
    """Describe what each preset changed: of the values in force, those that would differ without the preset."""
    changes, below, ordered = {}, dict(defaults), [*layers.items()]
    for place in range(len(ordered) - 1, 0, -1):  # from the weakest layer up; the first one is the user's own
        name, settings = ordered[place]
        overridden = {key for _, layer in ordered[:place] for key in layer}
        parts = [
            f"{key} {_format_value(value)} instead of {_format_value(below.get(key))}"
            for key, value in settings.items()
            if key not in overridden and _format_value(value) != _format_value(below.get(key))
        ]
        below |= settings
        if parts:
            changes[PRESET_KEYS[place - 1]] = f"{name}: {', '.join(parts)}"
    return changes


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _describe_history(stream: Stream) -> str:
    store, train = stream.store, stream.split.train
    count = torch.bincount(torch.cat([store.src[train], store.dst[train]]))
    return f"half of the nodes have at most {int(count[count > 0].median()):,} events in training"


def _format_span(seconds: float, dataset: Dataset) -> str:
    return format_duration(float(f"{seconds:.3g}")) if dataset.is_dated else f"{seconds:.3g}"


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions and device; on the CPU also the threads and the kind of processor."""
    group = current_group()
    common = {
        "dygmamba": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
    }
    common |= {"processes": group.size} if group.is_distributed else {}
    common |= {"deterministic": True} if torch.are_deterministic_algorithms_enabled() else {}
    if device.type != "cpu":
        return common
    return common | {
        "threads": torch.get_num_threads(),
        "numba": version("numba"),
        "processor": _describe_processor(),
    }


def _describe_processor() -> str:
    """Return the processor that Numba compiles for and the vector width of torch's kernels."""
    from llvmlite.binding import get_host_cpu_name

    return f"{get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()}"


def create_run(create: Callable[[], RunDirectory], sections: dict[str, dict[str, Any]]) -> RunDirectory:
    """Create a run directory and write its configuration; of several processes the first one does."""
    group = current_group()

    def create_and_write() -> Path:
        run = create()
        run.write_config(sections | {"made_with": sections["made_with"] | torchrun_job()})
        return run.path

    return RunDirectory(group.run_on_first(create_and_write), group.is_first)


def is_deterministic(run: RunDirectory) -> bool:
    """Return whether a run was started in deterministic mode."""
    return run.config().get("made_with", {}).get("deterministic") is True


def check_environment(run: RunDirectory, device: torch.device) -> None:
    """Compare the environment of a run that is resumed with the one it started in.

    In deterministic mode (`process_settings.enable_determinism`) the number of threads is set to that of the run, and
    any other difference raises ConfigError. Otherwise a difference on the CPU is a warning; a GPU promises no bits.
    """
    started, exact = run.config().get("made_with", {}), torch.are_deterministic_algorithms_enabled()
    if not exact and device.type != "cpu":
        return
    threads = started.get("threads")
    if exact and device.type == "cpu" and type(threads) is int and 0 < threads <= MAX_THREADS:
        set_thread_count(threads)
    started, now = ({"processes": 1} | about for about in (started, describe_environment(device)))
    changed = [key for key in COMPARED_KEYS if key in started and key in now and started[key] != now[key]]
    if not changed:
        return
    before, after = (", ".join(f"{key} {side[key]}" for key in changed) for side in (started, now))
    what = f"{run.path} was started with {before} and would continue with {after}"
    if exact:
        raise ConfigError(
            f"{what}, which changes its bits; restore the environment, or resume without deterministic mode",
            code="environment-changed",
        )
    hint = (
        f"set OMP_NUM_THREADS={started['threads']}" if changed == ["threads"] else "restore the environment"
    )
    warnings.warn(DygWarning(f"{what}: the last bits will differ; {hint} to keep them"), stacklevel=2)


def torchrun_job() -> dict[str, str]:
    """Return the id of the torchrun job, which stays the same when torchrun restarts its processes; else nothing.

    A job without an id of its own is identified by the process id of torchrun.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return {}
    return {"job": f"torchrun {os.getppid()}" if name == "none" else name}


def find_restarted_run(root: Path, data: str, model: str, seed: int) -> Path | None:
    """Find the run that this torchrun job had started before it was restarted."""
    if not torchrun_job() or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    for path in sorted((root / data / model).glob("*-seed*"), reverse=True):
        try:
            config = RunDirectory(path).config()
        except FileError:
            continue
        # from the config: names may have a suffix, and the pattern `*-seed1*` also matches seed 10
        begun = config.get("run", {}).get("seed"), config.get("made_with", {}).get("job")
        if begun == (seed, torchrun_job()["job"]):
            return path
    return None


def extend_run(run: RunDirectory, changes: dict[str, Any]) -> str | None:
    """Give a run more epochs or patience; a setting that keeps its value may be passed again.

    Returns:
        A note for the user if the run stops early even so, otherwise None.

    Raises:
        ConfigError: A setting cannot change any more, or the new value is less than what is done already.
    """
    sections = run.config()
    settings = sections.get("model", {}) | sections.get("train", {})
    fixed = [
        name
        for name, value in changes.items()
        if name not in EXTENDABLE_SETTINGS and settings.get(name) != value
    ]
    if fixed:
        name = fixed[0]
        what = f"it is {settings[name]!r}" if name in settings else "the run has no such setting"
        raise ConfigError(
            f"`{name}` cannot change in a run that has started ({what}, got {changes[name]!r}); leave it out",
            code="setting-fixed",
        )
    new = {
        name: changes[name]
        for name in EXTENDABLE_SETTINGS
        if name in changes and changes[name] != settings[name]
    }
    if not new:
        return None
    build_config(FitConfig, new)  # checks the values
    state = read_newest(run)[1] if run.started else None
    done = state.epoch + (state.step > 0) if state else 1
    for name, least, why in (
        ("epochs", done, f"{done} are done or under way"),
        ("patience", settings["patience"], f"the run started with {settings['patience']}"),
    ):
        if name in new and new[name] < least:
            raise ConfigError(
                f"`{name}` must be at least {least}, as {why}; got {new[name]}", code="extension-too-short"
            )
    run.lock()
    try:
        run.extend(new)
    finally:
        run.unlock()
    patience = new.get("patience", settings["patience"])
    if state is not None and state.stale >= patience:
        return (
            f"validation has not improved for {state.stale} epochs, so {run.path} stops where it is, as it would have "
            f"with more epochs from the start; to train further, also set `patience={2 * patience}`"
        )
    return None
