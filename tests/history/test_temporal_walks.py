"""Temporal walks: strictly earlier events, training events in training, the same in any batch."""

import zlib
from dataclasses import replace

import pytest
import torch

from contract_cases import change_events, sample_store, snapshots
from dygmamba.core.errors import ConfigError
from dygmamba.history.index import Index
from dygmamba.history.view import PairBatch
from dygmamba.history.walks import WalkRequest, sample_node_rows
from dygmamba.nn.history_features import pair_overlaps, token_overlaps, walk_overlaps
from raising import raises
from streams import split_stream

REQUEST = WalkRequest(layers=3, dim=6, decays=(0.9, 0.1))


def asked(store, walks):
    """Every event's pair, at its own time and after the last."""
    time = torch.cat([store.time, (store.time[-1:] + 1).expand(len(store))])
    return pair_overlaps(walks, store.src.repeat(2), store.dst.repeat(2), time)


@pytest.mark.parametrize("store", [sample_store(200), snapshots()], ids=["gaps", "snapshots"])
def test_training_never_sees_held_out_events(store):
    """Whatever the validation, test and held-out events are: the same bits."""
    stream = split_stream(store)
    train, pairs = stream.split.train, PairBatch.from_pairs(store.src, store.dst, store.time)
    walks = stream.training_view(pairs, (REQUEST,))[REQUEST]
    rest = torch.ones(len(store), dtype=torch.bool).index_fill(0, train, False)
    other = change_events(store, 0)
    changed = replace(
        store, src=torch.where(rest, other.src, store.src), dst=torch.where(rest, other.dst, store.dst)
    )
    moved = replace(stream, store=changed)
    again = moved.training_view(pairs, (REQUEST,))[REQUEST]
    assert torch.equal(asked(store, walks), asked(store, again))
    seen = stream.view(pairs, (REQUEST,))[REQUEST]
    assert not torch.equal(asked(store, walks), asked(store, seen))


def test_an_index_builds_the_walks_of_a_request_once():
    """The same object twice, on the index's device; another request has its own walks."""
    index = Index(sample_store())
    assert REQUEST.prepare(index) is REQUEST.prepare(index)
    assert REQUEST.prepare(index) is not replace(REQUEST, seed=1).prepare(index)
    assert REQUEST.prepare(index.to("cpu")).rows.device == index.entries.time.device


def test_random_rows_are_a_function_of_seed_and_node():
    """New nodes change no row; columns are normal with variance 1 / dim; seeds differ."""
    few, many = sample_node_rows(torch.arange(40), 120, 3), sample_node_rows(torch.arange(3000), 120, 3)
    assert torch.equal(few, many[:40])
    assert not torch.equal(few, sample_node_rows(torch.arange(40), 120, 4))
    scaled = many.double() * 120**0.5
    assert abs(float(scaled.mean())) < 0.01
    assert abs(float(scaled.std()) - 1) < 0.01
    assert abs(float((scaled**4).mean()) - 3) < 0.1
    gram = many[:400] @ many[:400].T
    assert float((gram - torch.eye(400)).abs().max()) < 0.7


def test_token_overlaps_equal_node_overlaps():
    """For all tokens, both endpoints and every decay: equal to `overlaps` of the two nodes."""
    rng = torch.Generator().manual_seed(0)
    token, ends = torch.randn(3, 5, 2, 4, 6, generator=rng), torch.randn(3, 2, 2, 4, 6, generator=rng)
    found = token_overlaps(token, ends)
    for end in range(2):
        expected = walk_overlaps(token, ends[:, None, end].expand_as(token))
        torch.testing.assert_close(found[:, :, end], expected)


def test_overlaps_of_a_bank_are_those_of_each_decay():
    """For all pairs and times: the features of a table of each decay, side by side, to the last bit."""
    store = sample_store(200)
    index = Index(store)
    single = [asked(store, replace(REQUEST, decays=(decay,)).prepare(index)) for decay in REQUEST.decays]
    found = asked(store, REQUEST.prepare(index))
    assert found.shape[1] == REQUEST.width == 2 * REQUEST.products
    assert torch.equal(found, torch.cat(single, dim=1))
    assert not torch.equal(*single)


@pytest.mark.parametrize("layers", [1, 3])
def test_overlap_kinds_are_all_distinct_features(layers):
    """Each feature is a kind, its mirror image, or an overlap of random rows; names are distinct."""
    request = WalkRequest(layers, dim=6)
    a, b = torch.rand(2, 1, 1, layers + 1, 6, generator=torch.Generator().manual_seed(1)).unbind(0)
    matrix = walk_overlaps(a, b).view(2 * layers + 2, 2 * layers + 2)
    kept = matrix.flatten()[[place for place, _ in request.kinds]]
    bare = [matrix[i, j] for i in (0, layers + 1) for j in (0, layers + 1)]
    assert len(kept) == len({name for _, name in request.kinds}) == (layers + 1) * (2 * layers + 3) - 3
    for value in matrix.flatten():
        assert bool((kept == value).any()) or any(value == other for other in bare)


def test_names_of_a_single_decay_do_not_name_it():
    """Checkpoints of trees hold a checksum of the names; those of a bank are distinct and in the order of decays."""
    single, bank = WalkRequest(3), WalkRequest(3, decays=(0.5, 0.25))
    names = [name for _, name in single.kinds]
    assert zlib.crc32("\n".join(names).encode()) == 1932263562
    places, labels = zip(*bank.kinds, strict=True)
    assert places == (*(place for place, _ in single.kinds), *(64 + place for place, _ in single.kinds))
    assert labels == tuple(
        f"{name}, decay {number} of 2: {decay}" for number, decay in ((1, 0.5), (2, 0.25)) for name in names
    )


def test_invalid_requests_are_an_error():
    """Invalid layers, dim and decays."""
    for wrong in (
        {"layers": 0},
        {"dim": 0},
        {"decays": ()},
        {"decays": (-1.0,)},
        {"decays": (0.1, float("nan"))},
        {"decays": (float("inf"),)},
    ):
        with raises("invalid-request", ConfigError):
            WalkRequest(**wrong)
