"""What a search may change: ranges by the name of a setting, as data, held to the bounds of the model's own config."""

from dataclasses import dataclass
from typing import Any

from dygmamba.config import presets
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.errors import ConfigError
from dygmamba.models import find_model
from dygmamba.settings import checked, declared


@dataclass(frozen=True, slots=True)
class Range:
    """Where a number may lie; whole numbers where both ends are."""

    low: float
    high: float
    log: bool = False

    def holding(self, value: Any) -> "Range":
        """The range, widened to hold the value."""
        return Range(min(self.low, value), max(self.high, value), self.log and value > 0)

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that must be legal for all others to be."""
        return (self.low, self.high)


@dataclass(frozen=True, slots=True)
class Choices:
    """Single values."""

    ends: tuple[Any, ...]

    def holding(self, value: Any) -> "Choices":
        """The choices, the value among them."""
        return self if value in self.ends else Choices((value, *self.ends))


@dataclass(frozen=True, slots=True)
class Space:
    """Ranges and choices by setting, what each is without a search, and how long a trial trains."""

    parts: dict[str, Range | Choices]
    usual: dict[str, Any]
    trial: dict[str, Any]


def space_of(model: str, settings: dict[str, Any], fixed: dict[str, Any]) -> Space:
    """What is searched for a model: all that the table knows of its settings, but for those that are `fixed`.

    `settings` are what the model would be trained with otherwise; every one of them lies in the space.
    """
    table, config = presets("spaces.toml"), find_model(model).config
    own = table["model"].get(model, {})
    hints = declared(LinkFitConfig) | declared(config)
    usual = _defaults(LinkFitConfig) | _defaults(config) | settings
    parts = {}
    for name, words in (table["setting"] | own.get("setting", {})).items():
        if name in hints and name not in fixed and name not in own.get("leave", ()):
            part = _legal(name, _part(words), usual[name], hints[name])
            parts |= {} if part is None else {name: part}
    if not parts:
        raise ConfigError(
            f"nothing is left to search for '{model}'; fix fewer settings, or choose another model"
        )
    return Space(parts, {name: usual[name] for name in parts}, table["trial"] | own.get("trial", {}))


def _legal(name: str, part: Range | Choices, usual: Any, hint: Any) -> Range | Choices | None:
    """The part with what is usual in it; None where this model means something else by that name."""
    try:
        checked(name, usual, hint)
        for end in part.ends:
            checked(name, end, hint)
        return part.holding(usual)
    except (ConfigError, TypeError):
        return None


def _part(words: dict[str, Any]) -> Range | Choices:
    return Choices(tuple(words["choices"])) if "choices" in words else Range(**words)


def _defaults(config: type) -> dict[str, Any]:
    return {name: part.default for name, part in config.__dataclass_fields__.items()}
