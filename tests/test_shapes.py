"""The checks of annotated shapes, on which all other tests rely, find what is wrong."""

from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from dygmamba.nn.attention import lookup
from shapes import check

checked = jaxtyping.jaxtyped(typechecker=check)


@checked
def scale(
    rows: Float[Tensor, "q d"], weight: Float[Tensor, " d"], wide: bool = False
) -> Float[Tensor, "q d"]:
    return (rows * weight).repeat(1, 1 + wide)


@checked
@dataclass
class Pair:
    left: Float[Tensor, " q"]
    right: Float[Tensor, " q"]

    @classmethod
    @checked
    def of(cls, left: Float[Tensor, " q"]) -> "Pair":
        return cls(left, left)


def test_a_wrong_shape_is_an_error():
    """Of an argument alone, of two that share an axis, of the result, and of the fields of a dataclass."""
    assert scale(torch.ones(2, 3), torch.ones(3)).shape == (2, 3)
    for rows, weight, wide in (
        (torch.ones(2), torch.ones(3), False),
        (torch.ones(2, 3), torch.ones(1), False),
        (torch.ones(2, 3).long(), torch.ones(3), False),
        (torch.ones(2, 3), torch.ones(3), True),
    ):
        with pytest.raises(TypeError, match="violates type hint"):
            scale(rows, weight, wide)
    assert Pair.of(torch.ones(2)).right.shape == (2,)
    with pytest.raises(TypeError, match="violates type hint"):
        Pair(torch.ones(2), torch.ones(3))
    with pytest.raises(TypeError, match="violates type hint"):
        Pair.of(torch.ones(2, 2))


def test_an_axis_has_a_new_size_in_every_call():
    """Calls share no sizes, also after an error and from within each other."""
    with pytest.raises(TypeError, match="violates type hint"):
        scale(torch.ones(2, 3), torch.ones(1))
    for size in (1, 4):
        scale(torch.ones(size, 2), scale(torch.ones(1, 2), torch.ones(2))[0])


def test_the_package_is_checked():
    """A function of it refuses a mask of another length than its index has."""
    with pytest.raises(TypeError, match="violates type hint"):
        lookup(torch.zeros(2, 3), torch.zeros(4, dtype=torch.int32), torch.ones(5, dtype=torch.bool))
