"""Exact Shapley values of the features of boosted trees."""

from dataclasses import replace

import pytest
import torch

from contract_cases import build, questions, snapshots
from dygmamba.core.errors import ConfigError
from dygmamba.engine.scoring import Ranker
from dygmamba.explain.shapley import attribute_trees
from dygmamba.history.view import PairBatch
from raising import raises
from streams import unsplit


@pytest.mark.parametrize("walks", [0, 2])
def test_contributions_add_up_to_the_logit_of_a_prediction(walks):
    """For all pairs, each with its own history: base plus contributions is the logit, up to rounding."""
    store = snapshots()
    scorer, asked = build(("trees", {"walks": walks}), store), questions(store)
    found = attribute_trees(scorer, unsplit(store), PairBatch.from_pairs(asked.src, asked.dst, asked.time))
    logit = Ranker(scorer, unsplit(store), 0).logits(asked.src, asked.dst, asked.time)
    torch.testing.assert_close(found.base + found.contribution.sum(dim=1), logit, rtol=1e-9, atol=1e-9)
    assert float(logit.std()) > 1e-3
    assert found.contribution.shape == (len(asked), len(found.names))


def test_the_strongest_features_are_named_and_in_order():
    """Distinct kinds for each pair, the largest amounts first, with their sign; all kinds add up to the whole."""
    store = snapshots()
    scorer, asked = build(("trees", {}), store), questions(store)
    found = attribute_trees(scorer, unsplit(store), PairBatch.from_pairs(asked.src, asked.dst, asked.time))
    for row, listed in enumerate(found.strongest(5)):
        amounts = [abs(by) for _, by in listed]
        assert amounts == sorted(amounts, reverse=True)
        assert len({name for name, _ in listed}) == 5
        for kind, by in listed:
            own = [at for at, name in enumerate(found.names) if name.split(", fading over ")[0] == kind]
            assert by == pytest.approx(float(found.contribution[row, own].sum()))
    assert len(set(found.names)) == len(found.names)
    assert any("followed the source's last destination" in name for name in found.names)
    totals = torch.tensor([sum(by for _, by in listed) for listed in found.strongest(len(found.names))])
    expected = found.contribution.sum(dim=1)
    torch.testing.assert_close(totals.double(), expected, rtol=1e-5, atol=1e-5)


def test_where_times_are_seconds_a_scale_is_a_duration():
    """With epoch seconds the name has a duration, such as 1 h; with plain numbers it has the number."""
    store = snapshots(gap=3600.0)
    for moved, said in ((store, True), (replace(store, time=store.time - 1.08e9), False)):
        scorer, asked = build(("trees", {}), moved), questions(moved)
        found = attribute_trees(
            scorer, unsplit(moved), PairBatch.from_pairs(asked.src, asked.dst, asked.time)
        )
        scales = [name.split(", fading over ")[1] for name in found.names if ", fading over " in name]
        assert scales
        assert all(scale.split()[-1].isalpha() == said for scale in scales)


def test_other_models_have_no_features():
    """A network is refused."""
    store = snapshots()
    with raises("model-without-features", ConfigError):
        attribute_trees(
            build(("tgat", {}), store), unsplit(store), PairBatch.from_pairs(store.src, store.dst, store.time)
        )
