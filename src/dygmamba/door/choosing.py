"""Which model is trained where none was named: one that ends in minutes on the machine at hand."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol

from dygmamba.config import is_preset_file, preset_file
from dygmamba.known import known

NETWORK, QUICK = "dyg-mamba", "trees"


class Device(Protocol):
    """What is asked of a device here: cpu, or what else it is."""

    @property
    def type(self) -> str:
        """Its kind."""
        ...


@dataclass(frozen=True, slots=True)
class Pick:
    """A model, its size where that is not the published one, and why, in a sentence."""

    model: str
    size: str | None
    sentence: str
    surprising: bool = False  # whether someone who knows the paper would expect another


def pick_model(device: Device, task: str, settings: dict[str, Any], size: str | None) -> Pick:
    """DyG-Mamba on a GPU, or where only that can do what is asked; else boosted trees, which need no GPU."""
    if size is not None and is_preset_file(size):
        own = preset_file(Path(size)).model
        return Pick(own, size, f"model {own}, which the preset {size} is of")
    if device.type != "cpu":
        return Pick(
            NETWORK, size, f"model {NETWORK}, as there is a GPU; `model='{QUICK}'` needs none and ends sooner"
        )
    if task == "node":
        small = size or "small"
        why = "the one for CPUs; `preset='paper'` is the published size" if size is None else "as asked"
        said = (
            f"no GPU in use: model {NETWORK}, as {QUICK} make no vectors of nodes, with preset {small}, {why}"
        )
        return Pick(NETWORK, small, said, surprising=size is None)
    if size is not None:
        return Pick(
            NETWORK, size, f"model {NETWORK}, which the preset {size} is of; `model='{QUICK}'` ends sooner"
        )
    own = _meant(settings)
    if own is not None:
        said = f"model {NETWORK}, as {own} is a setting of it; without a GPU `model='{QUICK}'` ends sooner"
        return Pick(NETWORK, size, said)
    said = (
        f"no GPU in use: model {QUICK}, boosted trees that end in minutes on a CPU; the paper's network is "
        f"`model='{NETWORK}'`, hours on a CPU, or `preset='small'` of it"
    )
    return Pick(QUICK, None, said, surprising=True)


def _meant(settings: dict[str, Any]) -> str | None:
    """The first setting that is the network's and not the trees', also where it is misspelt."""
    table = known()
    loop = {name for kind in table["loops"].values() for name in kind["settings"]}
    network, quick = (loop | set(table["models"][name]["settings"]) for name in (NETWORK, QUICK))
    for name in settings:
        if name not in quick and (name in network or _nearest(name, network | quick) in network - quick):
            return name
    return None


def _nearest(name: str, known: set[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), n=1)), None)
