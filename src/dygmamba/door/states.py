"""How far a run is: finished, half-trained, or stopped before it had weights to keep; said before it is asked."""

import warnings
from pathlib import Path

from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError, DygWarning
from dygmamba.runs.opening import split_of


def tell_unfinished(path: Path) -> None:
    """Warn of a run that was stopped; refuse one that has no weights yet."""
    folder = RunFolder(path)
    sections = folder.config()
    if folder.finished or "train" not in sections:
        return
    most, mend = sections["train"]["epochs"], f"go on with: `dygmamba.resume('{path}')`"
    if not folder.best.exists():
        raise ConfigError(f"{path} was stopped in its first epoch and has no weights yet; {mend}")
    done = len(folder.metrics())
    how = "trained, but not evaluated" if done >= most else f"stopped after {done} of at most {most} epochs"
    warnings.warn(DygWarning(f"{path} is not finished ({how}); {mend}"), stacklevel=3)


def require_test(path: Path, asked: str) -> None:
    """Refuse to judge a run that was trained on everything."""
    folder = RunFolder(path)
    if not split_of(folder).numbers:
        of = folder.config()["run"].get("refit_of", "another run")
        raise ConfigError(
            f"{path} was trained on every event and has no test; {asked} {of}, whose settings it has"
        )
