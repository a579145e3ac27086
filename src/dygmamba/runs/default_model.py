"""The model that is trained if the user names none; imports no torch."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dygmamba.config import get_training_hints, is_preset_file, read_preset_file

DEFAULT_NETWORK, DEFAULT_CPU_MODEL = "dyg-mamba", "trees"
DEFAULT_GPU_MODEL = "dyg-mamba-counts"  # for links


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model that was chosen for the user, its preset if not the published one, and the reason."""

    model: str
    preset: str | None
    sentence: str
    surprising: bool = False  # whether a reader of the paper would expect another one


def choose_model(
    device_type: str, task: str, settings: dict[str, Any], preset: str | None, finetune: bool = False
) -> ModelChoice:
    """Choose a model for a user who named none.

    For links with a GPU, DyG-Mamba with decayed counts. The paper's network for its preset, for labels of nodes with a
    GPU, and without one if only it has a setting or a backbone to finetune. Otherwise boosted trees, which finish in
    minutes on a CPU.
    """
    network, trees = DEFAULT_NETWORK, f"`model='{DEFAULT_CPU_MODEL}'`"
    if preset is not None and is_preset_file(preset):
        model = read_preset_file(Path(preset)).model
        return ModelChoice(model, preset, f"model {model}, because the preset {preset} is for it")
    budget = "`budget='10m'` tries several models" if task == "link" else ""
    if device_type != "cpu":
        model = DEFAULT_GPU_MODEL if task == "link" and preset is None else network
        parts = [f"model {model}, because there is a GPU; {trees} needs none and finishes sooner"]
        parts += [f"the paper's network is `model='{network}'`"] if model != network else []
        return ModelChoice(model, preset, "; ".join([*parts, *filter(None, [budget])]), model != network)
    setting = _find_network_setting(settings, task) or ("finetune" if finetune else None)
    if task == "node" and (preset is not None or setting is not None):
        small = preset or "small"
        why = "the one for CPUs (`preset='paper'` is the published size)" if preset is None else "as given"
        cause = f"it has the setting {setting}" if preset is None else f"the preset {preset} is for it"
        reason = (
            f"no GPU in use: model {network}, because {cause}; preset {small}, {why}; {trees} finishes sooner"
        )
        return ModelChoice(network, small, reason, surprising=preset is None)
    if preset is not None:
        reason = f"model {network}, because the preset {preset} is for it; {trees} finishes sooner"
        return ModelChoice(network, preset, reason)
    if setting is not None:
        reason = (
            f"model {network}, because it has the setting {setting}; without a GPU {trees} finishes sooner"
        )
        return ModelChoice(network, preset, reason)
    parts = (
        f"no GPU in use: model {DEFAULT_CPU_MODEL}, boosted trees that finish in minutes on a CPU",
        budget,
        f"the paper's network is `model='{network}'`, hours on a CPU, or with `preset='small'` less",
    )
    reason = "; ".join(filter(None, parts))
    return ModelChoice(DEFAULT_CPU_MODEL, None, reason, surprising=True)


def _find_network_setting(settings: dict[str, Any], task: str) -> str | None:
    """Return the first setting that the network has and the trees have not, even if it is misspelt."""
    from dygmamba.models import MODELS

    loop, spec = set(get_training_hints("node")), MODELS[DEFAULT_CPU_MODEL]
    network, quick = loop | set(MODELS[DEFAULT_NETWORK].settings), loop | set(spec.settings)
    if task == "node" and spec.for_nodes is not None:
        quick = loop | set(spec.for_nodes.settings)
    for name in settings:
        if name not in quick and (
            name in network or _find_closest_name(name, network | quick) in network - quick
        ):
            return name
    return None


def _find_closest_name(name: str, known: set[str]) -> str | None:
    return next(iter(get_close_matches(name, sorted(known), n=1)), None)
