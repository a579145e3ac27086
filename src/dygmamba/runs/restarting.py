"""A job that torchrun starts again goes on with the run it began, instead of beginning another.

torchrun ends all processes where one is lost, and gives the same command again if it was told to. Who asks finds the
run by the name that torchrun has for the job, which the run's configuration holds.
"""

import os
from pathlib import Path

from dygmamba.engine.folder import RunFolder
from dygmamba.errors import FileError


def job() -> dict[str, str]:
    """What torchrun calls this job, the same each time it starts its processes; nothing without it.

    Where it was given no name, the process number of torchrun itself is one.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name is None:
        return {}
    return {"job": f"torchrun {os.getppid()}" if name == "none" else name}


def begun_before(root: Path, data: str, model: str, seed: int) -> Path | None:
    """The run that this job began before it was started again, if it was."""
    if not job() or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        return None
    for path in sorted((root / data / model).glob(f"*-seed{seed}*"), reverse=True):
        try:
            made = RunFolder(path).config().get("made_with", {})
        except FileError:
            continue
        if made.get("job") == job()["job"]:
            return path
    return None
