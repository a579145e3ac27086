"""What a run's bits depend on beside its settings: written down when it begins, compared when it goes on.

torch cuts some sums and products by the number of threads, and processors differ in how wide they compute. Such a
difference is in the last bits only, but a run that promised every bit must not go on with others in silence.
"""

import platform
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from dygmamba._version import __version__
from dygmamba.engine.folder import RunFolder
from dygmamba.engine.ranks import here
from dygmamba.errors import ConfigError, DygWarning
from dygmamba.process_wide import use_threads
from dygmamba.runs.restarting import job

MATTER = ("device", "processes", "threads", "processor", "torch", "numba", "dygmamba")


def made_with(device: torch.device) -> dict[str, Any]:
    """The versions and the device of a run; on the CPU also its threads and the kind of processor."""
    common = {
        "dygmamba": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
    }
    common |= {"processes": here().size} if here().several else {}
    if device.type != "cpu":
        return common
    own = {"threads": torch.get_num_threads(), "numba": version("numba"), "processor": _processor()}
    return common | own


def begin(create: Callable[[], RunFolder], sections: dict[str, dict[str, Any]]) -> RunFolder:
    """A new run folder with its configuration in it; of several processes the first one makes it."""

    def made() -> Path:
        run = create()
        run.write_config(sections | {"made_with": sections["made_with"] | job()})
        return run.path

    return RunFolder(here().led(made), here().leads)


def go_on_alike(run: RunFolder, device: torch.device) -> None:
    """See that a run goes on with the bits it would have had; where that cannot be, refuse or, unless asked, warn.

    In deterministic mode (`process_wide.repeat_every_bit`) the threads are made those of the run, and any other
    difference is an error. On a GPU outside of that mode no bits are promised, and nothing is said.
    """
    begun, exact = run.config().get("made_with", {}), torch.are_deterministic_algorithms_enabled()
    if not exact and device.type != "cpu":
        return
    if exact and device.type == "cpu" and begun.get("threads"):
        use_threads(int(begun["threads"]))
    begun, now = ({"processes": 1} | about for about in (begun, made_with(device)))
    other = [key for key in MATTER if key in begun and key in now and begun[key] != now[key]]
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


def _processor() -> str:
    """What Numba compiles for, and which of its own kernels torch takes."""
    from llvmlite.binding import get_host_cpu_name

    return f"{get_host_cpu_name()} {torch.backends.cpu.get_cpu_capability()}"
