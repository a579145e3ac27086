"""Plain values as TOML (toml.io, v1.0): what is written is read back equal."""

import math
import re
from typing import Any

from dygmamba.errors import ConfigError

ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def to_toml(sections: dict[str, dict[str, Any]]) -> str:
    """One table per section."""
    lines = []
    for name, settings in sections.items():
        lines.append(f"[{_key(name)}]")
        lines += [f"{_key(key)} = {_value(value)}" for key, value in settings.items()]
        lines.append("")
    return "\n".join(lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _text(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)  # inf, -inf, nan are TOML's own words
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    raise ConfigError(f"a configuration holds no {type(value).__name__}, got {value!r}; give a plain value")


def _text(text: str) -> str:
    """A basic string: control characters escaped, everything else as it is."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{text!r} is not valid UTF-8 and cannot be kept in a configuration; rename it")
    return '"' + "".join(_letter(letter) for letter in text) + '"'


def _letter(letter: str) -> str:
    if letter in ESCAPES:
        return ESCAPES[letter]
    return f"\\u{ord(letter):04X}" if ord(letter) < 0x20 or ord(letter) == 0x7F else letter
