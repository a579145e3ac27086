"""Arguments of public functions are checked against their annotations."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dygmamba.core.argument_types import ArgumentTypeError, check_arguments, fits


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        (True, {bool}),
        (np.True_, {bool}),
        (3, {int, float}),
        (np.int32(3), {int, float}),
        (0.5, {float}),
        (np.float32(0.5), {float}),
        (torch.tensor(0.5), {float}),
        ("3", set()),
        (np.zeros(2), set()),
    ],
)
def test_numbers_of_numpy_and_torch_are_numbers_and_booleans_are_not(value, kinds):
    assert {kind for kind in (bool, int, float) if fits(value, kind)} == kinds


def test_a_wrong_type_is_one_sentence():
    """It names the argument, what it takes and what was given; a string is no list of strings."""

    @check_arguments
    def draw(names: Sequence[str], size: int | None = None) -> int:
        return len(names)

    assert draw(["a", "b"], 3) == 2
    with pytest.raises(
        ArgumentTypeError, match=r"`size` of draw\(\) takes an integer or None; got '3' \(str\)"
    ):
        draw(["a"], "3")  # type: ignore[arg-type]
    for names in ("ab", ["a", 1]):
        with pytest.raises(ArgumentTypeError, match="takes a list of strings"):
            draw(names)  # type: ignore[arg-type]
