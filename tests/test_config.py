from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from dygmamba.cli.options import parse_overrides
from dygmamba.config import build_config, find_preset, to_settings
from dygmamba.core.errors import ConfigError
from dygmamba.core.settings import Bounds
from dygmamba.models.configs import TreesConfig
from raising import raises


@dataclass(frozen=True)
class Example:
    length: Annotated[int, Bounds(1, 1_000)] = 32
    rate: float = 0.1
    kind: Literal["a", "b"] = "a"
    parts: tuple[str, ...] = ("x",)
    on: bool = True
    share: Annotated[float, Bounds(0, 1, above=True, below=True)] = 0.5


@pytest.mark.parametrize(
    ("settings", "code", "value"),
    [
        ({"lenght": 3}, "unknown-setting", "did you mean 'length'"),
        ({"zzz": 3}, "unknown-setting", "length, rate, kind"),
        ({"length": "long"}, "setting-of-wrong-type", "length must be a whole number, got 'long'"),
        ({"length": True}, "setting-of-wrong-type", "whole number"),
        ({"kind": "c"}, "setting-of-wrong-type", "one of a, b"),
        ({"parts": [1]}, "setting-of-wrong-type", "a list, each item a word"),
        ({"rate": True}, "setting-of-wrong-type", "a finite number"),
        ({"rate": float("nan")}, "setting-of-wrong-type", "rate must be a finite number, got nan"),
        ({"rate": -float("inf")}, "setting-of-wrong-type", "a finite number"),
        ({"rate": 10**400}, "setting-of-wrong-type", "a finite number"),
        ({"length": 0}, "setting-out-of-bounds", "at least 1, got 0"),
        ({"length": 1001}, "setting-out-of-bounds", "at most 1,000, got 1001"),
        ({"share": 0}, "setting-out-of-bounds", "above 0, got 0"),
        ({"share": 1.0}, "setting-out-of-bounds", "below 1, got 1.0"),
    ],
)
def test_a_wrong_setting_is_one_clear_sentence(settings, code, value):
    """Unknown keys suggest a close one; wrong types and values say what was expected and got."""
    with raises(code, ConfigError) as error:
        build_config(Example, settings)
    assert value in str(error.value)


def test_settings_round_trip():
    """to_settings and build_config are inverse."""
    config = Example(length=7, rate=2.0, kind="b", parts=("p", "q"), on=False)
    assert build_config(Example, to_settings(config)) == config


def test_overrides_read_as_toml_and_bare_words_as_strings():
    """--set takes numbers, lists, booleans and plain words."""
    given = ["length=64", "rate=1", "kind=b", 'parts=["u","v"]', "on=false"]
    assert build_config(Example, parse_overrides(given)) == Example(64, 1.0, "b", ("u", "v"), False)
    with raises("malformed-setting", ConfigError):
        parse_overrides(["length"])


def test_a_number_of_too_many_digits_is_a_wrong_setting():
    """What Python will not read as a number is refused as what was written."""
    with raises("setting-of-wrong-type", ConfigError):
        build_config(Example, parse_overrides(["length=" + "9" * 5000]))


def test_the_more_specific_preset_wins():
    """[model] < [model.dataset] < [model.dataset.negatives]."""
    assert find_preset("edgebank", "uci", "random") == {"memory": "unlimited"}
    assert find_preset("edgebank", "uci", "historical") == {"memory": "window"}
    assert find_preset("edgebank", "no-such-data", "random") == {"memory": "unlimited"}


@pytest.mark.parametrize(
    ("events", "has_rules", "expected"),
    [
        (19_999, True, (1.0, 1_000_000, 1.0, 40)),
        (19_999, False, (0.6, 200_000, 0.3, 20)),
        (20_000, True, (0.6, 200_000, 0.3, 2)),
    ],
)
def test_trees_have_what_suits_the_stream_but_for_what_was_set(events, has_rules, expected):
    """Rows, rows at most, features and negatives by default; a value that was set stays."""
    names = ("rows", "max_rows", "columns", "others")
    for number, name in enumerate((None, *names)):
        given = {} if name is None else {name: (0.5, 9, 0.5, 9)[number - 1]}
        found = build_config(TreesConfig, given).resolve(events, has_rules)
        assert {own: getattr(found, own) for own in names} == dict(zip(names, expected, strict=True)) | given
