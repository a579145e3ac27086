"""Theorem 2 inside models: the output of the last scan at the query token is a sum over the past events."""

import pytest
import torch
from torch.nn.functional import silu

from contract_cases import build, questions, snapshots
from dygmamba.explain.hidden_states import compute_readout, read_last_scan, values_by_event
from dygmamba.history.view import PairBatch
from dygmamba.nn.ssm import Direction
from dygmamba.nn.steps import STEPS
from dygmamba.ops.scan.reference import scan
from streams import unsplit

VARIANTS = [
    *({"step": step} for step in STEPS),
    {"query": "first"},
    {"query": "absent"},
    {"span": "following", "skip": "none"},
    {"rule": "euler", "direction": "both"},
    {"encoders": "independent"},
]


def asked(store, scorer):
    """Queries with histories of several lengths, none of them an event."""
    found = questions(store)
    return unsplit(store).view(PairBatch.from_pairs(found.src, found.dst, found.time), scorer.requests)


@pytest.mark.parametrize("more", VARIANTS, ids=lambda more: "-".join(map(str, more.values())))
def test_the_parts_are_the_scan(more):
    """For all steps, rules and places of the query: the terms add up to the scan, in 64 bits and in the model.

    To float64 rounding against the definition on the same inputs, to float32 rounding against what the model computed.
    """
    store = snapshots()
    scorer = build(("dyg-mamba", more), store)
    seen = []
    paths = [part for part in scorer.modules() if isinstance(part, Direction) and not part.reverse]
    for path in paths:
        path.register_forward_hook(lambda path, given, gated: seen.append((path, given, gated)))
    with torch.no_grad():
        scorer(asked(store, scorer))
        for path, (x, z, tokens), gated in seen:
            found = compute_readout(path, x, z, tokens)
            m, system = path.system(x, z, tokens)
            delta, mask = path.step.size(tokens, m), tokens.mask
            inputs = (part.double() for part in (m, delta, system.A, system.B, system.C))
            y, _ = scan(*inputs, mask=mask, rule=path.step.rule)
            row, last = torch.arange(len(m)), (tokens.length - 1).clamp(min=0)
            torch.testing.assert_close(found.output, y[row, last], rtol=1e-12, atol=1e-14)
            skip = 0 if system.D is None else system.D * m[row, last]
            own = (found.output + skip) * silu(z[row, last].double()) * mask[row, last, None]
            torch.testing.assert_close(own.float(), gated[row, last], rtol=1e-4, atol=1e-6)


def test_shares_sum_to_one_and_older_events_have_less_left():
    """For all histories: shares sum to 1 with the query token; of an older event less is left."""
    store = snapshots()
    scorer = build(("dyg-mamba", {}), store)
    found = read_last_scan(scorer, asked(store, scorer))
    assert found is not None
    torch.testing.assert_close(found.share.sum(dim=1), torch.ones(len(found.share), dtype=torch.float64))
    for kept in values_by_event(found.left, found.tokens):
        in_order = list(kept.values())
        assert in_order == sorted(in_order)
        assert all(0 < value < 1 for value in in_order)


def test_a_model_without_a_scan_has_none():
    """None is returned."""
    store = snapshots()
    scorer = build(("dygformer", {}), store)
    assert read_last_scan(scorer, asked(store, scorer)) is None
