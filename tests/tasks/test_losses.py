"""Ranking loss: torch's cross-entropy for every model, networks and trees."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import dygmamba as dm
from contract_cases import TINY, TRAINABLE
from dygmamba.config import build_config
from dygmamba.core.errors import Interrupted
from dygmamba.data.events.splits import chronological_split
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.engine.checkpoint import read_checkpoint
from dygmamba.engine.executor import Epoch, choose_executor
from dygmamba.engine.executor.eager import Batch, BatchExecutor, BucketedExecutor
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule
from dygmamba.history.draws import Draws
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.models.configs import TreesConfig
from dygmamba.models.objectives import LogisticObjective, SoftmaxObjective
from dygmamba.runs.link_training import resolve_ranking, start_link_run
from dygmamba.runs.opening import resume_training, store_run_dataset
from dygmamba.tasks.link import LinkTask
from dygmamba.tasks.losses import RankingLoss
from dygmamba.tasks.training_negatives import CandidateDestinations, RandomDestinations
from observers import StepCounter

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def stream():
    """A small stream with busy and idle nodes."""
    store = generate_stream(GeneratorConfig(nodes=40, events=600, seed=3))
    return Stream(store, chronological_split(store), CPU)


@settings(deadline=None, max_examples=20)
@given(b=st.integers(1, 7), c=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_ranking_loss_is_softmax_cross_entropy(b, c, seed):
    """For all events and candidates: the mean over pairs equals torch's mean over events, with its gradient."""
    logits = torch.randn((1 + c) * b, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    label = (torch.arange((1 + c) * b) < b).float()
    ours = RankingLoss(c)(logits, label) / len(logits)
    (grad,) = torch.autograd.grad(ours, logits)
    rows = torch.stack([torch.stack([logits[k * b + event] for k in range(1 + c)]) for event in range(b)])
    theirs = cross_entropy(rows, torch.zeros(b, dtype=torch.int64))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(grad, torch.autograd.grad(theirs, logits)[0])


def test_candidates_share_the_source_and_exclude_the_true_destination(stream):
    """For all training events: training destinations at the event's time, as a function of (seed, epoch, event)."""
    store, train = stream.store, stream.split.train
    task = LinkTask.create(store, stream.split, CPU, loss_function=RankingLoss(7))
    keys = task.draw_negatives(3, 1)
    whole = task.build_queries(store.select(train), keys)
    b = len(train)
    assert len(whole) == 8 * b
    assert torch.equal(whole.label, (torch.arange(8 * b) < b).float())
    assert torch.equal(whole.src.view(8, b), store.src[train].expand(8, b))
    assert torch.equal(whole.time.view(8, b), store.time[train].expand(8, b))
    dst = whole.dst.view(8, b)
    assert torch.equal(dst[0], store.dst[train])
    assert not bool((dst[1:] == dst[0]).any())
    assert bool(torch.isin(dst, store.dst[train]).all())
    for chosen in torch.arange(b).split(37):
        part = task.build_queries(store.select(train[chosen]), keys[chosen])
        assert torch.equal(part.dst.view(8, -1), dst[:, chosen])
    assert not torch.equal(task.build_queries(store.select(train), task.draw_negatives(3, 2)).dst, whole.dst)
    counts = torch.bincount(dst[1:].flatten(), minlength=store.num_nodes)[store.dst[train].unique()]
    assert float(counts.float().std()) < 5 * float(counts.float().mean()) ** 0.5


@settings(deadline=None, max_examples=10)
@given(b=st.integers(1, 5), c=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_objectives_of_trees_have_the_derivatives_of_the_losses(b, c, seed):
    """For all scores: loss, gradient and diagonal of the Hessian equal those that autograd finds."""
    score = torch.randn((1 + c) * b, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    label = (torch.arange(len(score)) % (1 + c) == 0).double()

    def softmax(score):
        return cross_entropy(score.view(b, 1 + c), torch.zeros(b, dtype=torch.int64), reduction="sum")

    def logistic(score):
        return binary_cross_entropy_with_logits(score, label, reduction="sum")

    for objective, loss, count in (
        (SoftmaxObjective(1 + c), softmax, b),
        (LogisticObjective(label), logistic, len(score)),
    ):
        torch.testing.assert_close(objective.loss(score[:, None]), loss(score) / count)
        wanted = (
            torch.autograd.functional.jacobian(loss, score),
            torch.autograd.functional.hessian(loss, score),
        )
        found = objective.derivatives(score[:, None])
        torch.testing.assert_close(found[:, 0], torch.stack([wanted[0], wanted[1].diagonal()], dim=1))


def test_trees_learn_to_rank_and_resume_to_the_same_bits(tmp_path):
    """The best epoch has the best validation MRR; a resumed run, an exported, explained and blended one work."""
    data = dm.generate(nodes=40, events=900, communities=4)
    tiny = {"trees": 12, "rounds": 4, "least": 5, "scales": 3, "neighbors": 4, "epochs": 3}
    how = {"loss": "ranking"} | tiny
    whole = start_link_run(data, "trees", 0, how, CPU, tmp_path)
    whole()
    entries = whole.run.metrics()
    assert max(entry["val_mrr"] for entry in entries) == entries[whole.state.best_epoch]["val_mrr"]
    losses = [entry["loss"] for entry in entries]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == pytest.approx(math.log(21), abs=0.5)  # 20 candidates, before the first trees
    fit, counter = start_link_run(data, "trees", 0, how, CPU, tmp_path / "stopped"), StepCounter()
    with pytest.raises(Interrupted):
        fit(counter, stop=lambda: counter.steps >= 6)
    fit.run.unlock()
    store_run_dataset(data, tmp_path / "stopped")
    again = resume_training(fit.run.path, CPU)
    again()
    first, second = (read_checkpoint(run, run.best)[0] for run in (whole.run, again.run))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again.state.best == whole.state.best


def test_ranking_trees_are_blended_exported_and_explained(tmp_path):
    """A ranking run beside a pairwise one; Shapley values add up to the logit."""
    data = dm.generate(nodes=40, events=900, communities=4)
    how = {"out": tmp_path, "device": "cpu", "epochs": 1}
    how |= {"trees": 4, "rounds": 4, "least": 5, "scales": 3, "neighbors": 4}
    (pairwise,) = dm.train(data, "trees", **how)
    (ranking,) = dm.train(data, "trees", loss="ranking", **how)
    train = ranking.config["train"]
    assert (train["best_metric"], train["train_candidates"], train["loss"]) == ("mrr", 20, "ranking")
    assert pairwise.config["train"]["best_metric"] == "ap"
    blend = dm.blend([ranking.path, pairwise.path], out=tmp_path, device="cpu")
    assert blend.config["train"]["loss"] == "pairwise"
    row = ranking.results.to_pylist()[0]
    assert (row["loss"], row["train_candidates"]) == ("ranking", 20)
    assert 0 <= ranking.score([("0", "1")]).to_pylist()[0]["score"] <= 1
    assert ranking.explain(("0", "1")).reasons
    assert ranking.export(tmp_path / "trees.onnx").exists()


@pytest.mark.parametrize(
    ("events", "given", "candidates"),
    [(1_000, {}, 20), (50_000, {}, 11), (10**7, {}, 3), (10**7, {"train_candidates": 20}, 20)],
)
def test_trees_rank_among_fewer_candidates_on_long_streams(events, given, candidates):
    """The table stays within three times `max_rows`, with three candidates at least, unless the number is set."""
    config = resolve_ranking(LinkFitConfig(loss="ranking"), given, TreesConfig(), events)
    assert (config.train_candidates, config.best_metric) == (candidates, "mrr")
    network = resolve_ranking(
        LinkFitConfig(loss="ranking"), {}, build_config(find_model("jodie").config, {}), 1
    )
    assert (network.train_candidates, network.best_metric) == (20, "ap")


@pytest.mark.parametrize("name", TRAINABLE)
def test_every_gradient_model_trains_with_the_ranking_loss(stream, name):
    """For all of them: a step has the loss of its scores and changes the weights."""
    spec = find_model(name)
    torch.manual_seed(0)
    scorer = spec.build(
        build_config(spec.config, TINY[name]), DatasetFacts.of(stream.store, stream.split.train)
    )
    if scorer.rounds_per_epoch:
        return
    how = LinkFitConfig(batch=50, loss="ranking", train_candidates=3)
    task = LinkTask.create(stream.store, stream.split, CPU, loss_function=how.loss_function)

    def epoch(number):
        return Epoch(number, stream.train, task.draw_negatives(0, number), Draws.from_seed(0, number))

    executor = choose_executor(task, scorer, stream, how, epoch)
    assert isinstance(executor, BatchExecutor)
    assert not isinstance(executor, BucketedExecutor), "an event's candidates would be in several parts"
    told = (
        MemorySchedule.from_periods(stream.store, (stream.split.train,), 50).visible_batches("strict")
        if scorer.stateful
        else [0, 0]
    )
    before = [weight.detach().clone() for weight in scorer.parameters()]
    scorer.train()
    scorer.reset()
    loss = executor.step(Batch(epoch(0), 1, range(told[1])))
    assert 0 < float(loss) < 20
    moved = zip(before, scorer.parameters(), strict=True)
    assert any(not torch.equal(old, new) for old, new in moved)


def test_the_default_loss_is_the_published_one(stream):
    """One random destination per event and binary cross-entropy."""
    task = LinkTask.create(stream.store, stream.split, CPU, loss_function=LinkFitConfig().loss_function)
    assert isinstance(task.negatives, RandomDestinations)
    assert not task.needs_joint_pairs
    pool = stream.store.dst[stream.split.train].unique()
    rng = torch.Generator().manual_seed((5 << 20) + 2)
    assert torch.equal(
        task.draw_negatives(5, 2), pool[torch.randint(len(pool), (len(stream.split.train),), generator=rng)]
    )
    logits, label = torch.randn(9), torch.randint(2, (9,)).float()
    assert torch.equal(
        task.loss(logits, label), binary_cross_entropy_with_logits(logits, label, reduction="sum")
    )
    assert isinstance(
        LinkTask.create(stream.store, stream.split, CPU, loss_function=RankingLoss(2)).negatives,
        CandidateDestinations,
    )


def test_config_and_result_rows_hold_the_loss(tmp_path):
    """config.toml and result rows hold both settings; rows of the published loss hold neither."""
    data = dm.generate(nodes=40, events=600, communities=4)
    how = {"out": tmp_path, "device": "cpu", "epochs": 1, "time_dim": 6}
    (run,) = dm.train(data, "jodie", loss="ranking", train_candidates=4, **how)
    config = (run.path / "config.toml").read_text()
    assert 'loss = "ranking"' in config
    assert "train_candidates = 4" in config
    rows = run.evaluate(metrics="ap,mrr", candidates=5).to_pylist()
    assert {(row["loss"], row["train_candidates"], row["visible"]) for row in rows} == {
        ("ranking", 4, "strict")
    }
