"""Categorical columns of events and nodes; importable without torch, because readers use it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

MISSING_VALUE = ""  # value of a categorical column where the source has none


@dataclass(frozen=True)
class Category:
    """A categorical column: its name and its values; the code of a value is its position."""

    name: str
    values: tuple[str, ...]

    @cached_property
    def codes(self) -> dict[str, int]:
        """Code of each value."""
        return {value: code for code, value in enumerate(self.values)}

    def extend(self, values: tuple[str, ...]) -> "Category":
        """Return the column with those of the values that it lacks behind its own."""
        unknown = tuple(value for value in values if value not in self.codes)
        return Category(self.name, self.values + unknown) if unknown else self


def recode(
    codes: np.ndarray, categories: tuple[Category, ...], known: tuple[Category, ...]
) -> tuple[np.ndarray, tuple[Category, ...]]:
    """Return codes of the known categories for codes of other ones, and the known categories with the new values.

    Args:
        codes: A row per event or node, a column per category.
        categories: What the codes stand for.
        known: The same columns; unknown values get the next codes.
    """
    if categories == known:
        return codes, known
    extended = tuple(own.extend(given.values) for own, given in zip(known, categories, strict=True))
    recoded = np.empty_like(codes)
    for k, (own, given) in enumerate(zip(extended, categories, strict=True)):
        recoded[:, k] = np.array([own.codes[value] for value in given.values], codes.dtype)[codes[:, k]]
    return recoded, extended
