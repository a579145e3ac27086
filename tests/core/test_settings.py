"""Every number a user may set has bounds, and they hold however the config is made."""

import math

import pytest

from dygmamba.config import build_config
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Bounds, Settings, get_setting_hints, split_bounds
from dygmamba.data.generate.stream import GeneratorConfig
from dygmamba.engine.fit_config import LinkFitConfig, NodeFitConfig
from dygmamba.models import MODELS
from raising import raises

CONFIGS = [*{spec.config: None for spec in MODELS.values()}, GeneratorConfig, LinkFitConfig, NodeFitConfig]
NUMBERS = [
    pytest.param(kind, name, hint, id=f"{kind.__name__}-{name}")
    for kind in CONFIGS
    for name, hint in get_setting_hints(kind).items()
    if split_bounds(hint)[0] in (int, float)
]


def outside(bounds: Bounds, whole: bool) -> list[float]:
    """Values beyond either end, near and far, and an end that is left out."""
    near = [] if whole else [math.nextafter(bounds.low, -math.inf), math.nextafter(bounds.high, math.inf)]
    ends = [bounds.low] * bounds.above + [bounds.high] * bounds.below
    return [bounds.low - 1, bounds.high + 1, *near, *ends]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_checks_itself(kind):
    """Every config of the registry, the generator and the training loop is made of `Settings`, with legal defaults."""
    assert issubclass(kind, Settings)
    assert build_config(kind, {}) == kind()


@pytest.mark.parametrize(("kind", "name", "hint"), NUMBERS)
def test_every_number_has_bounds_that_hold(kind, name, hint):
    """No value outside is built, by its name from a command line or directly; nor is NaN or an infinity."""
    number, bounds = split_bounds(hint)
    assert isinstance(bounds, Bounds)
    for value in outside(bounds, number is int):
        for build in (
            lambda value=value: build_config(kind, {name: value}),
            lambda value=value: kind(**{name: value}),
        ):
            with raises("setting-out-of-bounds", ConfigError) as error:
                build()
            assert str(error.value).startswith(name)
    for value in (math.nan, math.inf, -math.inf):
        with raises("setting-of-wrong-type", ConfigError) as error:
            build_config(kind, {name: value})
        assert str(error.value).startswith(name)
        with pytest.raises((ConfigError, TypeError), match=name):  # TypeError where annotations are checked
            kind(**{name: value})
