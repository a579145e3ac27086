"""Why the trees score a pair as they do."""

import pytest
import torch

from contract_cases import build, questions, snapshots
from dygmamba.engine.rank import Ranker
from dygmamba.errors import ConfigError
from dygmamba.explain.reasons import reasons
from dygmamba.sampling.view import PairBatch
from streams import unsplit


@pytest.mark.parametrize("walks", [0, 2])
def test_reasons_add_up_to_the_logit_that_a_prediction_gives(walks):
    """For all pairs, each with its own past: base and contributions are the score, to rounding."""
    store = snapshots()
    scorer, asked = build(("trees", {"walks": walks}), store), questions(store)
    found = reasons(scorer, unsplit(store), PairBatch.of(asked.src, asked.dst, asked.time))
    logit = Ranker(scorer, unsplit(store), 0).logits(asked.src, asked.dst, asked.time)
    torch.testing.assert_close(found.logit, logit, rtol=1e-9, atol=1e-9)
    assert float(logit.std()) > 1e-3
    assert found.contribution.shape == (len(asked), len(found.names))


def test_the_strongest_reasons_are_named_and_in_order():
    """Each pair's list is of distinct names, the largest amounts first, signs kept."""
    store = snapshots()
    scorer, asked = build(("trees", {}), store), questions(store)
    found = reasons(scorer, unsplit(store), PairBatch.of(asked.src, asked.dst, asked.time))
    for row, listed in enumerate(found.strongest(5)):
        amounts = [abs(by) for _, by in listed]
        assert amounts == sorted(amounts, reverse=True)
        assert len({name for name, _ in listed}) == 5
        for name, by in listed:
            assert by == float(found.contribution[row, found.names.index(name)])
    assert len(set(found.names)) == len(found.names)


def test_other_models_have_no_exact_reasons():
    """A network is refused in one sentence."""
    store = snapshots()
    with pytest.raises(ConfigError, match="trees"):
        reasons(build(("tgat", {}), store), unsplit(store), PairBatch.of(store.src, store.dst, store.time))
