"""Weights derived from parameters: once for many passes is the same as in each of them."""

import torch
from torch import nn

from dygmamba.nn.derived import DerivedWeights, derived


class Squared(nn.Module):
    """x times the square of its weight."""

    def __init__(self):
        super().__init__()
        self.weight, self.calls = nn.Parameter(torch.tensor([1.0, 2.0, 3.0])), 0

    @derived
    def square(self):
        """The weight as it is applied."""
        self.calls += 1
        return self.weight**2

    def forward(self, x):
        """The product."""
        return x * self.square()


class Bent(Squared):
    """The same after a sine; the derived weight is inherited."""

    def forward(self, x):
        """The product."""
        return super().forward(x).sin()


def test_a_derived_weight_is_computed_once_for_many_passes():
    """Inside `in_use` nothing is derived, values are those of the parameters at the last refresh; outside it is."""
    model = nn.Sequential(Squared(), Bent())
    weights, x = DerivedWeights(model), torch.tensor([0.1, 0.2, 0.3])
    before = model(x)
    with torch.no_grad():
        model[0].weight += 1
    after, calls = model(x), model[0].calls
    with weights.in_use():
        torch.testing.assert_close(model(x), before)
        assert model[0].calls == calls
    weights.refresh()
    with weights.in_use():
        for _ in range(2):
            torch.testing.assert_close(model(x), after)
        assert model[0].calls == calls + 1
    torch.testing.assert_close(model(x), after)


def test_the_leaves_stay_in_their_place():
    """A refresh writes into the same memory, as captured graphs want it, and leaves the state dict alone."""
    model = nn.Sequential(Squared(), Bent())
    keys, weights = list(model.state_dict()), DerivedWeights(model)
    places = [leaf.data_ptr() for leaf in weights.leaves]
    weights.refresh()
    assert [leaf.data_ptr() for leaf in weights.leaves] == places
    with weights.in_use():
        assert list(model.state_dict()) == keys
    assert len(places) == 2
