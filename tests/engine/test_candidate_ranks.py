"""Ranks among sampled candidates: equal to TGB's evaluator, in any cut of the work; fields of result rows."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dygmamba as dm
import dygmamba.engine.evaluation as examining
from commands import invoke
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.engine.evaluation import rank_evaluation_set, score_evaluation_set
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.view import PairBatch
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import SampledCandidates
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import rank_metrics
from raising import raises
from strategies import event_streams
from streams import split_stream

TINY = {
    "dyg-mamba": {"length": 6, "width": 4, "states": 4, "time_dim": 6, "blocks": 1},
    "tgn": {"neighbors": 4, "time_dim": 6},
    "edgebank": {},
}


def stream_of(events=400, nodes=14, ties=3):
    rng = torch.Generator().manual_seed(5)
    src, dst = (torch.randint(nodes, (events,), generator=rng) for _ in range(2))
    time = torch.arange(events).div(ties, rounding_mode="floor").double()
    return split_stream(EventStore.from_columns(src, dst, time, num_nodes=nodes))


def scorer_of(name, stream):
    from dygmamba.config import build_config

    spec = find_model(name)
    torch.manual_seed(0)
    return spec.build(
        build_config(spec.config, TINY[name]), DatasetFacts.of(stream.store, stream.split.train)
    )


def asked_one_by_one(scorer, stream, evaluation_set, dst, rule):
    """Scores of every event with these destinations, as an evaluation set."""
    store, (k, c) = stream.store, dst.shape
    number = torch.arange(k).repeat_interleave(c)
    pairs = PairBatch.from_pairs(
        store.src[evaluation_set.events][number], dst.flatten(), store.time[evaluation_set.events][number]
    )
    return score_evaluation_set(
        scorer,
        stream,
        EvaluationSet(
            evaluation_set.about,
            evaluation_set.events,
            evaluation_set.earlier,
            pairs.with_labels(torch.ones(len(pairs))),
            number,
        ),
        rule,
    ).view(k, c)


@pytest.mark.parametrize("visible", ["strict", "batch"])
@pytest.mark.parametrize("name", TINY)
def test_ranks_equal_tgb(name, visible):
    """Stateless, stateful and heuristic models: ranks equal TGB's evaluator on the same scores."""
    evaluate = pytest.importorskip("tgb.linkproppred.evaluate", reason="py-tgb is not installed")
    judge = evaluate.Evaluator(name="tgbl-wiki", k_value=3)
    stream, rule = stream_of(), VisibilityRule(visible, batch_size=20)
    evaluation_set, among = (
        build_link_set(stream.store, stream.split, "test"),
        SampledCandidates.create(stream.store, 8, seed=1),
    )
    rank = rank_evaluation_set(scorer_of(name, stream), stream, evaluation_set, among, rule)
    others, real = among.for_events(evaluation_set.events)
    assert bool(real.all())
    dst = torch.cat([stream.store.dst[evaluation_set.events][:, None], others], dim=1)
    score = asked_one_by_one(scorer_of(name, stream), stream, evaluation_set, dst, rule).double().numpy()
    for one, row in zip(rank.tolist(), score, strict=True):
        found = judge.eval({"y_pred_pos": row[:1], "y_pred_neg": row[1:], "eval_metric": ["mrr"]})
        assert abs(float(found["mrr"]) - float(np.float32(1 / one))) < 1e-12
        assert float(found["hits@3"]) == (one <= 3)
    ranks = 1 + 0.5 * ((score[:, 1:] > score[:, :1]).sum(1) + (score[:, 1:] >= score[:, :1]).sum(1))
    found = rank_metrics(rank, ("mrr", "hits@3"))
    assert abs(found["mrr"] - (1 / ranks).mean()) < 1e-12
    assert found["hits@3"] == (ranks <= 3).mean()


@pytest.mark.parametrize("name", TINY)
def test_ranks_do_not_depend_on_how_the_work_is_cut(monkeypatch, name):
    """Seven pairs at a time, which cuts candidates too, or all at once: equal ranks."""
    stream = stream_of(events=200)
    evaluation_set, among = (
        build_link_set(stream.store, stream.split, "test"),
        SampledCandidates.create(stream.store, None, 0),
    )
    whole = rank_evaluation_set(
        scorer_of(name, stream), stream, evaluation_set, among, VisibilityRule(batch_size=20)
    )
    monkeypatch.setattr(examining, "MAX_HELD_SCORES", 7)
    assert torch.equal(
        rank_evaluation_set(
            scorer_of(name, stream), stream, evaluation_set, among, VisibilityRule(batch_size=20)
        ),
        whole,
    )


@settings(deadline=None, max_examples=40)
@given(
    store=event_streams(min_events=3, max_events=30),
    count=st.sampled_from([1, 2, 5, None]),
    filtered=st.booleans(),
    seed=st.integers(-3, 2**63),
)
def test_candidates_are_a_function_of_seed_and_event(store, count, filtered, seed):
    """For all streams: distinct destinations without the true ones; a row has their true number."""
    others = len(store.dst.unique()) - 1
    if others < 1:
        return
    among, events = SampledCandidates.create(store, count, seed, filtered), torch.arange(len(store))
    assert among.about["candidates"] == ("all" if count is None else min(count, others))
    node, real = among.for_events(events)
    for event in range(len(store)):
        own = node[event][real[event]].tolist()
        same = (store.src == store.src[event]) & (store.time == store.time[event])
        true = set(store.dst[same].tolist()) if filtered else {int(store.dst[event])}
        free = set(store.dst.tolist()) - true
        assert len(own) == len(set(own)) == (len(free) if count is None else min(count, len(free)))
        assert set(own) <= free
        alone, there = among.for_events(events[event : event + 1])
        assert alone[0][there[0]].tolist() == own


@given(store=event_streams(min_events=3), count=st.none() | st.integers(1, 9), filtered=st.booleans())
def test_earlier_candidates_are_destinations_of_earlier_events(store, count, filtered):
    """With `earlier_than`: distinct, not true, known before the event, and the same whatever happens later."""
    events = torch.arange(len(store) - 1)
    if len(store.dst[:-1].unique()) < 2 or store.time[-1] == store.time[-2]:
        return
    among = SampledCandidates.create(store, count, 3, filtered, earlier_than=events)
    node, real = among.for_events(events)
    alone = SampledCandidates.create(store[: len(events)], count, 3, filtered, earlier_than=events)
    assert all(map(torch.equal, alone.for_events(events), (node, real)))
    for event in range(len(events)):
        own = node[event][real[event]].tolist()
        same = (store.src == store.src[event]) & (store.time == store.time[event])
        true = set(store.dst[same].tolist()) if filtered else {int(store.dst[event])}
        free = {int(store.dst[0]), *store.dst[store.time < store.time[event]].tolist()} - true
        assert len(own) == len(set(own)) == (len(free) if count is None else min(count, len(free)))
        assert set(own) <= free


def test_an_event_without_candidates_has_rank_one():
    """A source that meets every destination at once has no filtered candidates."""
    store = EventStore.from_columns(
        torch.zeros(40).long(), torch.arange(40) % 4, torch.arange(40).div(4, rounding_mode="floor")
    )
    stream = split_stream(store)
    evaluation_set = build_link_set(store, stream.split, "test")
    rank = rank_evaluation_set(
        scorer_of("edgebank", stream),
        stream,
        evaluation_set,
        SampledCandidates.create(store, None, 0, filtered=True),
    )
    assert rank.tolist() == [1.0] * len(evaluation_set.events)


def test_a_result_row_describes_its_candidates(monkeypatch, capsys, tmp_path):
    """From Python and the command line, trained or not: candidates, ties, seeds, visibility and metrics."""
    data = dm.generate(nodes=40, events=600, communities=4, name="small")
    save_dataset(data, tmp_path)
    settings = TINY["tgn"] | {"epochs": 1, "out": tmp_path / "runs", "device": "cpu", "data_dir": tmp_path}
    (run,) = dm.train(data, "tgn", protocol="benchmark", **settings)
    table = run.evaluate(metrics="mrr,hits@10", candidates=20).to_pylist()
    code, out, _ = invoke(
        *(monkeypatch, capsys, "evaluate", str(run.path), "--metrics", "mrr,hits@10", "--candidates", "20"),
        *("--json", "--data-dir", str(tmp_path), "--device", "cpu"),
    )
    assert code == 0
    assert json.loads(out)["results"] == table
    about = {
        key: table[0][key] for key in ("candidates", "ties", "filtered", "candidate_seed", "visible", "batch")
    }
    assert about == {
        "candidates": 20,
        "ties": "mean rank",
        "filtered": False,
        "candidate_seed": 2,
        "visible": "strict",
        "batch": 200,
    }
    assert [row["setting"] for row in table] == ["transductive", "inductive"]
    assert all(0 < row["mrr"] <= row["hits@10"] + 0.1 <= 1.1 for row in table)
    code, out, _ = invoke(
        *(
            monkeypatch,
            capsys,
            "evaluate",
            "small",
            "--metrics",
            "mrr,ap",
            "--candidates",
            "all",
            "--draws",
            "2",
        ),
        *("--data-dir", str(tmp_path)),
    )
    assert code == 0
    assert "ranks among all destinations" in " ".join(out.split())
    assert "AUC pooled" in out
    both = dm.evaluate(data, "recency", metrics=["ap", "mrr"], candidates="all").to_pylist()
    assert [row["mrr"] is None for row in both] == [True, False]
    both = dm.evaluate(
        data, "recency", metrics=["ap", "mrr"], candidates="all", protocol="benchmark"
    ).to_pylist()
    assert [row["mrr"] is None for row in both] == [True, True, False, False]


def test_mistakes_have_one_line_messages(monkeypatch, capsys, tmp_path):
    """Unknown metric, invalid candidates, candidates without ranking metrics."""
    data = dm.generate(nodes=40, events=600, communities=4, name="small")
    save_dataset(data, tmp_path)
    for words in (
        ["--metrics", "mrr,hits@0"],
        ["--metrics", "mrr", "--candidates", "few"],
        ["--candidates", "9"],
    ):
        code, _, error = invoke(monkeypatch, capsys, "evaluate", "small", *words, "--data-dir", str(tmp_path))
        assert (code, error.count("\n")) == (2, 1)
    with raises("unknown-metric", ConfigError):
        dm.evaluate(data, metrics="precision")
