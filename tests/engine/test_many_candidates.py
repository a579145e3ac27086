"""Ranking among many candidates: neither memory nor encoded nodes of a pass grow with the candidates."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contract_cases import TINY
from dygmamba.config import build_config
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.evaluation import MAX_HELD_SCORES, rank_evaluation_set
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.candidates import SampledCandidates
from dygmamba.tasks.link import build_link_set
from streams import split_stream

EVENTS, PASS = 4, 300  # events that are ranked, tokens of a pass


class Largest(TorchDispatchMode):
    """Records the largest float32 tensor that is created inside."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.numbers = max(self.numbers, tensor.numel())
        return made


@pytest.fixture(scope="module")
def stream():
    """A stream with far more destinations than fit a pass."""
    store = generate_stream(GeneratorConfig(nodes=200, events=900, communities=5, seed=1))
    return split_stream(store)


def scorer_of(name, stream):
    spec = find_model(name)
    torch.manual_seed(0)
    config = build_config(spec.config, TINY[name])
    return spec.build(config, DatasetFacts.of(stream.store, stream.split.train))


def ranked(scorer, stream, count, tokens=PASS):
    evaluation_set = build_link_set(stream.store, stream.split, "test")
    among = SampledCandidates.create(stream.store, count, 0)
    return rank_evaluation_set(
        scorer, stream, evaluation_set, among, chosen=torch.arange(EVENTS), tokens=tokens
    )


@pytest.mark.parametrize("name", ["dyg-mamba", "graphmixer", "tgn"])
def test_memory_of_a_pass_does_not_grow_with_the_candidates(stream, name):
    """The largest tensor is the same for 120 candidates and for 40; a single pass would need a larger one."""
    sizes = {}
    for count in (40, 120):
        scorer = scorer_of(name, stream)
        ranked(scorer, stream, 2)  # what is made once is made
        with Largest() as largest:
            ranked(scorer, stream, count)
        sizes[count] = largest.numbers
    pairs = EVENTS * 121  # whose scores are held
    assert sizes[120] <= max(1.1 * sizes[40], pairs)
    scorer = scorer_of(name, stream)
    with Largest() as whole:
        ranked(scorer, stream, 120, tokens=1 << 30)
    assert whole.numbers > 2 * sizes[120]
    assert MAX_HELD_SCORES < 1 << 20, "scores of so many pairs are held at once, whatever the model"


@pytest.mark.parametrize("name", ["tgat", "graphmixer", "tgn", "jodie"])
def test_a_node_is_encoded_once_per_pass(stream, name, monkeypatch):
    """For all node encoders: no (node, time) occurs twice in a pass, and the source's row is shared."""
    scorer = scorer_of(name, stream)
    seen, encode = [], scorer.encoder.forward

    def watched(view):
        rows = torch.stack([view.pairs.node.double(), view.pairs.when], dim=1)
        seen.append((len(rows), len(torch.unique(rows, dim=0)), len(view.pairs)))
        return encode(view)

    monkeypatch.setattr(scorer.encoder, "forward", watched)
    ranked(scorer, stream, 100)
    assert len(seen) > 1
    assert all(rows == distinct for rows, distinct, _ in seen)
    assert sum(pairs for *_, pairs in seen) == EVENTS * 101
    assert sum(rows for rows, *_ in seen) <= EVENTS * 101 + EVENTS + 2 * len(seen)
