"""Batches for a loop of one's own: what the package's own loop asks, and nothing of the present or the future."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import dygmamba as dm
from dygmamba.data.events.splits import chronological_split
from dygmamba.models.base import DatasetFacts

DATA = dm.generate(nodes=40, events=600, communities=4)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_everything_seen_is_strictly_earlier(split):
    """For all pairs of all batches: each looked-up event is of an earlier instant; in training, of that period."""
    last = -torch.inf
    for step in dm.batches(DATA, 37, split, neighbors=8, device="cpu"):
        (past,) = step.view[dm.NeighborRequest((8,))]
        assert bool((past.time < past.query_time[:, None])[past.mask].all())
        assert float(step.label.sum()) == len(step.events) == len(step.label) / 2
        assert float(step.events.time[0]) >= last
        last = float(step.events.time[-1])
        positive = step.label == 1
        assert torch.equal(step.view.pairs.src[positive], step.events.src)
        assert torch.equal(step.view.pairs.dst[positive], step.events.dst)


def test_batches_cover_a_period_once():
    """The events of a period, in order; a seed draws the negatives."""
    stream = dm.batches(DATA, 50, device="cpu")
    events = torch.cat([step.events.event for step in stream])
    assert torch.equal(events, events.unique())
    first, again, other = (
        next(dm.batches(DATA, 50, seed=seed, device="cpu")).view.pairs.dst for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_models_own_requests_are_answered():
    """A model of the registry trains in a loop of five lines."""
    spec = dm.models()["graphmixer"]
    torch.manual_seed(0)
    model = spec.build(
        spec.config(neighbors=4, window=6, time_dim=4, dropout=0.0), DatasetFacts.of(DATA.store)
    )
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for epoch in range(3):
        for step in dm.batches(DATA, 100, seed=epoch, neighbors=model.requests, device="cpu"):
            loss = binary_cross_entropy_with_logits(model(step.view), step.label)
            optimizer.zero_grad(), loss.backward(), optimizer.step()
            losses.append(loss.item())
    assert sum(losses[-4:]) < sum(losses[:4])


def test_a_table_is_taken_where_a_dataset_is():
    """`evaluate` and `batches` read a data frame, a dict or rows as `read` does; `train` uses the same function."""
    events = dm.generate(nodes=20, events=200, communities=2)
    frame, rows = events.to_pandas(), [tuple(row.values()) for row in events.to_arrow().to_pylist()]
    expected = dm.evaluate(events, "recency", protocol="time").column("ap").to_pylist()
    for table in (frame, {"src": frame.src, "dst": frame.dst, "time": frame.time}, [row[:3] for row in rows]):
        assert dm.evaluate(table, "recency").column("ap").to_pylist() == expected
    assert next(dm.batches(frame, 10, device="cpu")).label.sum() == 10


def test_batches_have_the_queries_of_an_evaluation():
    """Other negatives give other pairs for the same events; the training split has its own negatives."""
    found = [
        next(dm.batches(DATA, 20, "test", device="cpu", negatives=name)).view.pairs
        for name in ("random", "historical")
    ]
    assert torch.equal(found[0].src[:20], found[1].src[:20])
    assert not torch.equal(found[0].dst[20:], found[1].dst[20:])


@pytest.mark.parametrize(
    ("protocol", "setting"),
    [("time", "transductive"), ("benchmark", "transductive"), ("benchmark", "inductive")],
)
def test_batches_have_the_queries_of_a_protocol(protocol, setting):
    """The pairs are those of `list_queries`, and only the benchmark protocol holds nodes out of training."""
    options = {"split": "test", "setting": setting, "protocol": protocol}
    listed = dm.list_queries(DATA, **options).to_pydict()
    steps = list(dm.batches(DATA, 1000, device="cpu", **options))
    assert [len(step.label) for step in steps] == [len(listed["src"])]
    for side in ("src", "dst"):
        nodes = getattr(steps[0].view.pairs, side)
        assert DATA.ids.to_user(nodes.numpy()).to_pylist() == listed[side]
    events = {len(step.events) for step in dm.batches(DATA, 1000, device="cpu", protocol=protocol)}
    assert (max(events) == len(chronological_split(DATA.store).train)) == (protocol == "benchmark")
