"""Why the trees score a pair as they do."""

from dataclasses import replace

import pytest
import torch

from contract_cases import build, questions, snapshots
from dygmamba.core.errors import ConfigError
from dygmamba.engine.scoring import Ranker
from dygmamba.explain.shapley import attribute_trees
from dygmamba.sampling.view import PairBatch
from raising import raises
from streams import unsplit


@pytest.mark.parametrize("walks", [0, 2])
def test_reasons_add_up_to_the_logit_that_a_prediction_gives(walks):
    """For all pairs, each with its own past: base and contributions are the score, to rounding."""
    store = snapshots()
    scorer, asked = build(("trees", {"walks": walks}), store), questions(store)
    found = attribute_trees(scorer, unsplit(store), PairBatch.from_pairs(asked.src, asked.dst, asked.time))
    logit = Ranker(scorer, unsplit(store), 0).logits(asked.src, asked.dst, asked.time)
    torch.testing.assert_close(found.logit, logit, rtol=1e-9, atol=1e-9)
    assert float(logit.std()) > 1e-3
    assert found.contribution.shape == (len(asked), len(found.names))


def test_the_strongest_reasons_are_named_and_in_order():
    """Each pair's list is of distinct kinds, the largest amounts first, signs kept; all kinds add up to the logit."""
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
    totals = torch.tensor([sum(by for _, by in listed) for listed in found.strongest(len(found.names))])
    torch.testing.assert_close(found.base + totals.double(), found.logit, rtol=1e-5, atol=1e-5)


def test_where_times_are_seconds_a_scale_is_a_duration():
    """Times of today make `fading over 1 h` of a scale, times that are mere numbers leave the number."""
    store = snapshots(gap=3600.0)
    for moved, said in ((store, True), (replace(store, time=store.time - 1.08e9), False)):
        scorer, asked = build(("trees", {}), moved), questions(moved)
        found = attribute_trees(
            scorer, unsplit(moved), PairBatch.from_pairs(asked.src, asked.dst, asked.time)
        )
        scales = [name.split(", fading over ")[1] for name in found.names if ", fading over " in name]
        assert scales
        assert all(scale.split()[-1].isalpha() == said for scale in scales)


def test_other_models_have_no_exact_reasons():
    """A network is refused in one sentence."""
    store = snapshots()
    with raises("model-without-features", ConfigError):
        attribute_trees(
            build(("tgat", {}), store), unsplit(store), PairBatch.from_pairs(store.src, store.dst, store.time)
        )
