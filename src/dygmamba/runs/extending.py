"""More epochs for a run that was stopped or is finished: exactly the run that would have been started with them."""

from typing import Any

from dygmamba.config import build_config
from dygmamba.engine.checkpoint import newest
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.folder import RunFolder
from dygmamba.errors import ConfigError

MORE = (
    "epochs",
    "patience",
    "save_every",
)  # all else decides what a step computes, and the steps that are done cannot change


def extend(run: RunFolder, changes: dict[str, Any]) -> str | None:
    """Give a run other epochs or patience; what cannot change is refused. What the user may not expect, as a sentence.

    A setting that the run has already may be said again.
    """
    sections = run.config()
    begun = sections.get("train", {}) | {
        name: value
        for name, value in sections.get("model", {}).items()
        if name not in sections.get("train", {})
    }
    fixed = [name for name, value in changes.items() if name not in MORE and begun.get(name) != value]
    if fixed:
        name = fixed[0]
        what = f"it is {begun[name]!r}" if name in begun else "the run has no such setting"
        raise ConfigError(
            f"`{name}` cannot change in a run that has begun ({what}, got {changes[name]!r}); leave it out"
        )
    more = {name: changes[name] for name in MORE if name in changes and changes[name] != begun[name]}
    if not more:
        return None
    build_config(FitConfig, more)
    done = newest(run)[1] if run.started else None
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
