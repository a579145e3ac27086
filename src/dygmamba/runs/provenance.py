"""What was chosen for a run where its user said nothing, and why, in words that config.toml keeps.

A job that torchrun starts again goes on with the run it began, instead of beginning another.

torchrun ends all processes where one is lost, and gives the same command again if it was told to. Who asks finds the
run by the name that torchrun has for the job, which the run's configuration holds.

What a run's bits depend on beside its settings: written down when it begins, compared when it goes on.

torch cuts some sums and products by the number of threads, and processors differ in how wide they compute. Such a
difference is in the last bits only, but a run that promised every bit must not go on with others in silence.

More epochs for a run that was stopped or is finished: exactly the run that would have been started with them.
"""

import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dygmamba._version import __version__
from dygmamba.config import build_config, find_preset, find_size_preset, load_presets, to_settings
from dygmamba.core.errors import ConfigError, DygWarning, FileError
from dygmamba.core.process_settings import set_thread_count
from dygmamba.data.events.splits import PUBLISHED_SPLIT, SplitRule
from dygmamba.data.events.statistics import format_duration, looks_like_epoch_seconds
from dygmamba.data.storage.dataset import Dataset
from dygmamba.engine.checkpoint import read_newest
from dygmamba.engine.distributed import current_group
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.models.base import RoundLearner, Scorer
from dygmamba.sampling.counts import CountRequest

PRESET_KEYS = (
    "preset",
    "published",
)  # where it is said what these changed: the preset asked for, that of the data
LENGTH_SETTINGS = ("length", "neighbors", "walks")  # what models call how far they look back


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What a run begins with beside model, seed and settings: its cuts, the size asked for, and why what was chosen."""

    by: SplitRule = PUBLISHED_SPLIT
    size: str | None = None  # a preset that goes before the published one
    why: dict[str, str] = field(
        default_factory=dict
    )  # of choices that were made before: the model, the device
    of: Path | None = None  # the run whose settings these are, trained again on everything


def collect_settings(
    model: str, dataset: str, beginning: StartOptions, asked: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Settings by where they come from; each goes before those after it."""
    size = {} if beginning.size is None else find_size_preset(beginning.size, model)
    return {
        "asked for": asked,
        f"preset {beginning.size}": size,
        f"preset for {dataset if dataset in load_presets().get(model, {}) else model}": find_preset(
            model, dataset
        ),
    }


def merge_settings(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All settings that anything says."""
    return {name: value for part in reversed(found.values()) for name, value in part.items()}


def explain_choices(
    dataset: Dataset,
    stream: Stream,
    scorer: Scorer,
    how: FitConfig,
    config: Any,
    found: dict[str, dict[str, Any]],
) -> dict[str, str]:
    """How far it looks back, in how large steps, how exactly and on which scales of time, each with the reason."""
    own = to_settings(config)
    usual = _defaults(how) | _defaults(config)

    def of(name: str, value: Any) -> str:
        source = next((layer for layer, settings in found.items() if name in settings), "the default")
        return f"{value} ({source})"

    said = describe_preset_changes(found, usual)
    for name in (name for name in LENGTH_SETTINGS if own.get(name)):
        said[name] = f"{of(name, own[name])}; {_describe_history(stream)}"
    if isinstance(scorer, RoundLearner):
        said["batch"] = "none: every round learns from all training events"
        said["precision"] = "float64, as sums of trees are"
    else:
        said["batch"] = of("batch", how.batch)
        on_cpu = stream.device.type == "cpu" and how.precision == "tf32"
        said["precision"] = (
            f"{of('precision', how.precision)}{'; on a CPU this is float32' if on_cpu else ''}"
        )
    scales = [request.scales for request in scorer.requests if isinstance(request, CountRequest)]
    if scales:
        first, last = (_format_span(span, dataset) for span in (scales[0][0], scales[0][-1]))
        said["time_scales"] = (
            f"{len(scales[0])} from {first}, the typical gap of a node, to {last}, the training period"
        )
    return said


def describe_preset_changes(found: dict[str, dict[str, Any]], usual: dict[str, Any]) -> dict[str, str]:
    """What each preset changed, and from what: of values that hold in the end, those that differ without it."""
    said, below, over = {}, dict(usual), [*found.items()]
    for place in range(len(over) - 1, 0, -1):
        name, settings = over[place]
        above = {key for _, layer in over[:place] for key in layer}
        parts = [
            f"{key} {_format_value(value)} instead of {_format_value(below.get(key))}"
            for key, value in settings.items()
            if key not in above and _format_value(value) != _format_value(below.get(key))
        ]
        below |= settings
        if parts:
            said[PRESET_KEYS[place - 1]] = f"{name}: {', '.join(parts)}"
    return said


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _defaults(config: Any) -> dict[str, Any]:
    return {field.name: field.default for field in fields(config)}


def _describe_history(stream: Stream) -> str:
    store, train = stream.store, stream.split.train
    count = torch.bincount(torch.cat([store.src[train], store.dst[train]]))
    return f"half of the nodes have at most {int(count[count > 0].median()):,} events in training"


def _format_span(seconds: float, dataset: Dataset) -> str:
    first, last = float(dataset.store.time[0]), float(dataset.store.time[-1])
    dated = dataset.origin.time_origin or looks_like_epoch_seconds(first, last)
    return format_duration(float(f"{seconds:.3g}")) if dated else f"{seconds:.3g}"


def torchrun_job() -> dict[str, str]:
    """What torchrun calls this job, the same each time it starts its processes; nothing without it.

    Where it was given no name, the process number of torchrun itself is one.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return {}
    return {"job": f"torchrun {os.getppid()}" if name == "none" else name}


def find_restarted_run(root: Path, data: str, model: str, seed: int) -> Path | None:
    """The run that this job began before it was started again, if it was."""
    if not torchrun_job() or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    for path in sorted((root / data / model).glob(f"*-seed{seed}*"), reverse=True):
        try:
            made = RunDirectory(path).config().get("made_with", {})
        except FileError:
            continue
        if made.get("job") == torchrun_job()["job"]:
            return path
    return None


COMPARED_KEYS = ("device", "processes", "threads", "processor", "torch", "numba", "dygmamba")


def describe_environment(device: torch.device) -> dict[str, Any]:
    """The versions and the device of a run; on the CPU also its threads and the kind of processor."""
    common = {
        "dygmamba": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
    }
    common |= {"processes": current_group().size} if current_group().several else {}
    if device.type != "cpu":
        return common
    own = {"threads": torch.get_num_threads(), "numba": version("numba"), "processor": _describe_processor()}
    return common | own


def create_run(create: Callable[[], RunDirectory], sections: dict[str, dict[str, Any]]) -> RunDirectory:
    """A new run folder with its configuration in it; of several processes the first one makes it."""

    def made() -> Path:
        run = create()
        run.write_config(sections | {"made_with": sections["made_with"] | torchrun_job()})
        return run.path

    return RunDirectory(current_group().led(made), current_group().leads)


def check_environment(run: RunDirectory, device: torch.device) -> None:
    """See that a run goes on with the bits it would have had; where that cannot be, refuse or, unless asked, warn.

    In deterministic mode (`process_wide.repeat_every_bit`) the threads are made those of the run, and any other
    difference is an error. On a GPU outside of that mode no bits are promised, and nothing is said.
    """
    begun, exact = run.config().get("made_with", {}), torch.are_deterministic_algorithms_enabled()
    if not exact and device.type != "cpu":
        return
    if exact and device.type == "cpu" and begun.get("threads"):
        set_thread_count(int(begun["threads"]))
    begun, now = ({"processes": 1} | about for about in (begun, describe_environment(device)))
    other = [key for key in COMPARED_KEYS if key in begun and key in now and begun[key] != now[key]]
    if not other:
        return
    then, here = (", ".join(f"{key} {side[key]}" for key in other) for side in (begun, now))
    what = f"{run.path} was begun with {then} and would go on with {here}"
    if exact:
        raise ConfigError(
            f"{what}, which gives other bits; restore that, or resume without deterministic mode"
        )
    mend = f"set OMP_NUM_THREADS={begun['threads']}" if other == ["threads"] else "restore that"
    warnings.warn(DygWarning(f"{what}: its last bits will be others; {mend} to have the same"), stacklevel=2)


def _describe_processor() -> str:
    """What Numba compiles for, and which of its own kernels torch takes."""
    from llvmlite.binding import get_host_cpu_name

    return f"{get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()}"


EXTENDABLE_SETTINGS = (
    "epochs",
    "patience",
    "save_every",
)  # all else decides what a step computes, and the steps that are done cannot change


def extend_run(run: RunDirectory, changes: dict[str, Any]) -> str | None:
    """Give a run other epochs or patience; what cannot change is refused. What the user may not expect, as a sentence.

    A setting that the run has already may be said again.
    """
    sections = run.config()
    begun = sections.get("train", {}) | {
        name: value
        for name, value in sections.get("model", {}).items()
        if name not in sections.get("train", {})
    }
    fixed = [
        name
        for name, value in changes.items()
        if name not in EXTENDABLE_SETTINGS and begun.get(name) != value
    ]
    if fixed:
        name = fixed[0]
        what = f"it is {begun[name]!r}" if name in begun else "the run has no such setting"
        raise ConfigError(
            f"`{name}` cannot change in a run that has begun ({what}, got {changes[name]!r}); leave it out"
        )
    more = {
        name: changes[name]
        for name in EXTENDABLE_SETTINGS
        if name in changes and changes[name] != begun[name]
    }
    if not more:
        return None
    build_config(FitConfig, more)
    done = read_newest(run)[1] if run.started else None
    for name, least in (
        ("epochs", done.epoch + (done.step > 0) if done else 1),
        ("patience", begun["patience"]),
    ):
        if name in more and more[name] < least:
            why = (
                f"{least} are done or under way"
                if name == "epochs"
                else f"it has had {least} from the beginning"
            )
            raise ConfigError(f"`{name}` must be at least {least}, as {why}; got {more[name]}")
    run.lock()
    try:
        run.extend(more)
    finally:
        run.unlock()
    patience = more.get("patience", begun["patience"])
    if done is not None and done.stale >= patience:
        return (
            f"validation has not improved for {done.stale} epochs, so {run.path} ends where it is, as it would have "
            f"with more epochs from the beginning; give it more `patience={2 * patience}`, too"
        )
    return None
