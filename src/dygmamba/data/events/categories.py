"""Categorical columns of events; importable without torch, because readers use it."""

from dataclasses import dataclass

MISSING_VALUE = ""  # value of a categorical column where the source has none


@dataclass(frozen=True, slots=True)
class Category:
    """A categorical column: its name and its values; the code of a value is its position."""

    name: str
    values: tuple[str, ...]
