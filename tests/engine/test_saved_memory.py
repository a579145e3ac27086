"""Memory saved after training: stored with the weights and used by later queries only."""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from dygmamba.core.errors import Interrupted
from dygmamba.core.progress import SILENT, Progress
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.events.stream_prefix import SAMPLED_EVENTS, StreamPrefix
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.storage.dataset import Dataset, Origin, save_dataset
from dygmamba.data.storage.library import open_dataset
from dygmamba.engine.evaluation import score_evaluation_set
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import FitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.scoring import Ranker, StreamScorer
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import MemorySchedule, VisibilityRule
from dygmamba.explain.event_removal import StreamRemoval
from dygmamba.explain.shapley import CachedGame, estimate_shapley
from dygmamba.history.view import PairBatch
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.models.blend import Blend
from dygmamba.runs.evaluation import evaluate_link_scorer
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import open_run, resume_training
from dygmamba.tasks.link import LinkTask, build_link_set
from dygmamba.tasks.metrics import PUBLISHED_BATCH, link_metrics
from observers import StepCounter
from recording_model import RecordingModel
from streams import split_stream

CPU = torch.device("cpu")
TINY = {"out": 8, "time_dim": 4, "epochs": 2, "batch": 50, "lr": 0.01}
MODELS = ("jodie", "dyrep", "tgn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data folder with one small dataset."""
    path = tmp_path_factory.mktemp("data")
    store = generate_stream(GeneratorConfig(seed=3, nodes=40, events=700))
    save_dataset(Dataset.from_events("small", store, NodeIds.identity(store.num_nodes), Origin()), path)
    return path


@pytest.fixture(scope="module")
def fits(folder, tmp_path_factory):
    """Finished runs of the models with a memory."""
    made = {}
    for name in MODELS:
        made[name] = start_link_run(
            open_dataset("small", folder), name, 0, TINY, CPU, tmp_path_factory.mktemp("runs")
        )
        made[name]()
    return made


every_model = pytest.mark.parametrize("name", MODELS)


def forgetful(scorer):
    """The same weights without the saved memory."""
    other = deepcopy(scorer)
    other.delete_saved_memory()
    return other


def asked_at(stream, rows):
    """The events at these rows as queries, and how many events of the schedule each may see."""
    store = stream.store
    clock = MemorySchedule.from_periods(store, (torch.arange(len(store)),), 50)
    pairs = PairBatch.from_pairs(store.src[rows], store.dst[rows], store.time[rows])
    return clock, pairs, clock.count_earlier(pairs.time)


class Witness(RecordingModel):
    """Also saves what it observed."""

    saves_memory = True
    saved_prefix = None

    def __init__(self):
        super().__init__()
        self.left, self.times = [], 0

    def save_memory(self, mark):
        self.left, self.saved_prefix, self.times = list(self.seen), mark, self.times + 1

    def load_saved_memory(self):
        self.seen = list(self.left)

    def delete_saved_memory(self):
        self.saved_prefix = None


@pytest.mark.parametrize("visible", ["strict", "batch"])
@pytest.mark.parametrize("batch", [10, 47])
def test_saved_memory_observed_every_training_event_once(visible, batch, tmp_path):
    """For strict and batch visibility, a full or short last batch, and ties across batches."""
    store = generate_stream(GeneratorConfig(nodes=30, events=400, seed=1))
    store = replace(store, time=(store.time / 2e4).floor())
    stream, witness = split_stream(store), Witness()
    task = LinkTask.create(store, stream.split, stream.device)
    fit = Trainer(task, witness, stream, FitConfig(batch=batch, visible=visible), RunDirectory(tmp_path), 0)
    for number in (1, 2):
        fit.train_epoch()
        fit.state.step = 0
        assert witness.times == number
        assert witness.left == stream.split.train.tolist()
        assert witness.saved_prefix == StreamPrefix.from_store(store, int(stream.split.val[0]))


@every_model
def test_evaluation_starts_from_the_saved_memory(fits, name):
    """The saved memory, advanced by hand through validation, gives the evaluation's scores; a replay does not."""
    fit = fits[name]
    evaluation_set = build_link_set(fit.stream.store, fit.stream.split, "val", "transductive", "random")
    scores = score_evaluation_set(fit.scorer, fit.stream, evaluation_set, fit.config.rule, fit.seed)
    scorer = deepcopy(fit.scorer).eval()
    scorer.load_saved_memory()
    first = (
        evaluation_set.event_index < 50
    )  # the questions beside the first cell see the training events and nothing else
    pairs = PairBatch.from_pairs(
        evaluation_set.pairs.src[first], evaluation_set.pairs.dst[first], evaluation_set.pairs.time[first]
    )
    with torch.no_grad():
        view = fit.stream.view(pairs, scorer.requests, StreamScorer(scorer, fit.stream, fit.seed).draws)
        torch.testing.assert_close(scorer(view), scores[first], rtol=0, atol=1e-5)
    again = score_evaluation_set(forgetful(fit.scorer), fit.stream, evaluation_set, fit.config.rule, fit.seed)
    assert float((again - scores).abs().max()) > 1e-4


@every_model
def test_earlier_queries_do_not_see_the_saved_memory(fits, name):
    """For queries before and after the end of training, in any order: the earlier ones are scored as by a replay.

    And the later ones as when they are asked alone.
    """
    fit = fits[name]
    trained = fit.scorer.saved_prefix.rows
    rows = torch.tensor([trained + 40, trained - 60, trained + 5, trained - 3, trained + 90])
    clock, pairs, seen = asked_at(fit.stream, rows)
    mixed = StreamScorer(deepcopy(fit.scorer), fit.stream, 0, clock)
    scores = torch.stack([mixed(pairs, seen)[k] for k in range(len(rows))])
    for k in (3, 0, 1, 4, 2):  # one walk, its memory going forward and back
        alone = PairBatch.from_pairs(pairs.src[[k]], pairs.dst[[k]], pairs.time[[k]])
        torch.testing.assert_close(mixed(alone, seen[[k]])[0], scores[k], rtol=0, atol=1e-6)
    replay = StreamScorer(forgetful(fit.scorer), fit.stream, 0, clock)(pairs, seen)
    early = rows < trained
    torch.testing.assert_close(scores[early], replay[early], rtol=0, atol=1e-6)
    assert float((scores - replay)[~early].abs().max()) > 1e-4


@every_model
def test_another_stream_replays_the_memory(fits, name):
    """On a stream that begins differently, a memory observes every event from the first."""
    fit = fits[name]
    store = fit.stream.store
    other = Stream(replace(store, dst=store.dst.roll(1)), fit.stream.split, CPU)
    rows = torch.arange(len(store) - 20, len(store))
    clock, pairs, seen = asked_at(other, rows)
    found = StreamScorer(deepcopy(fit.scorer), other, 0, clock)(pairs, seen)
    assert torch.equal(found, StreamScorer(forgetful(fit.scorer), other, 0, clock)(pairs, seen))


@pytest.mark.parametrize("rows", [1, 700, 2 * SAMPLED_EVENTS])
def test_a_prefix_recognises_its_stream(rows):
    """A stream that has grown is recognised; one with a moved, changed or missing event is not."""
    store = generate_stream(GeneratorConfig(seed=1, nodes=40, events=3 * SAMPLED_EVENTS))
    mark = StreamPrefix.from_store(store, rows)
    assert mark.matches(store)
    assert mark.matches(store[: rows + 5])
    assert not mark.matches(store[: rows - 1])
    assert not mark.matches(store[1:])
    for name in ("src", "dst"):
        assert not mark.matches(replace(store, **{name: getattr(store, name).roll(1)}))
    assert not mark.matches(replace(store, time=store.time + 1))


class StoppingObserver(StepCounter):
    """Counts steps; presses Ctrl-C in the validation of an epoch."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch_to_stop, self.validations = epoch, 0

    def stage(self, name, total=None, *, done=0, unit=""):
        if name != "validation":
            return super().stage(name, total)
        self.validations += 1
        return nullcontext(Interrupting() if self.validations == self.epoch_to_stop else SILENT)


class Interrupting(Progress):
    def advance(self, count=1):
        raise KeyboardInterrupt


@pytest.mark.parametrize("stop_after", [9, 12, "validation"])
def test_a_resumed_run_equals_an_uninterrupted_one(fits, folder, tmp_path, stop_after):
    """Stopped after k steps, at the end of an epoch or in validation: the saved memory is bit-identical."""
    fit = start_link_run(open_dataset("small", folder), "tgn", 0, TINY, CPU, tmp_path)
    observer = StoppingObserver(TINY["epochs"] if stop_after == "validation" else None)
    with pytest.raises(Interrupted):
        fit(observer, stop=lambda: stop_after != "validation" and observer.steps >= stop_after)
    again = resume_training(fit.run.path, CPU, folder)
    again()
    ours, whole = load_file(again.run.best), load_file(fits["tgn"].run.best)
    assert any("kept" in key for key in whole)
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[key], whole[key]) for key in whole)


@every_model
def test_an_opened_run_has_the_same_scores(fits, folder, name):
    """The checkpoint holds the saved memory: an opened run scores as after training."""
    fit, run = fits[name], open_run(fits[name].run.path, CPU, folder)
    evaluation_set = build_link_set(fit.stream.store, fit.stream.split, "test", "transductive", "random")
    asked = (evaluation_set, fit.config.rule, fit.seed)
    assert run.scorer.saved_prefix == fit.scorer.saved_prefix
    assert torch.equal(
        score_evaluation_set(run.scorer, run.stream, *asked),
        score_evaluation_set(fit.scorer, fit.stream, *asked),
    )


@every_model
def test_only_events_after_training_are_explained(fits, name):
    """Contributions and base sum to the logit, and no explained event is a training event."""
    fit = fits[name]
    store, trained = fit.stream.store, fit.scorer.saved_prefix.rows
    for row, saved_events in ((len(store) - 1, trained), (trained - 10, 0)):
        pair = PairBatch.from_pairs(store.src[[row]], store.dst[[row]], store.time[[row]])
        logit = Ranker(fit.scorer, fit.stream, 0, batch_size=50).logits(pair.src, pair.dst, pair.time)
        game = StreamRemoval(fit.scorer, fit.stream, pair, 0, batch_size=50)
        found = estimate_shapley(CachedGame(game), 1, seed=0)
        assert game.saved_events == saved_events
        assert all(event >= saved_events for player in game.players for event in player.events)
        assert game.players
        assert found.logit == pytest.approx(float(logit[0]), abs=1e-5)
        assert found.base + float(found.value.sum()) == pytest.approx(found.logit, abs=1e-9)


def test_a_blend_starts_from_the_memories_of_its_parts(fits):
    """Two memories saved at the same event continue together; the blend is the weighted sum."""
    parts = [fits[name] for name in ("jodie", "tgn")]
    blend = Blend([deepcopy(fit.scorer) for fit in parts], (0.25, 0.75)).eval()
    assert blend.saved_prefix == parts[0].scorer.saved_prefix
    stream = parts[0].stream
    evaluation_set = build_link_set(stream.store, stream.split, "test", "transductive", "random")
    own = [score_evaluation_set(fit.scorer, stream, evaluation_set, fit.config.rule, 0) for fit in parts]
    found = score_evaluation_set(blend, stream, evaluation_set, parts[0].config.rule, 0)
    torch.testing.assert_close(found, (0.25 * own[0] + 0.75 * own[1]).double(), rtol=0, atol=1e-5)
    blend.parts[0].delete_saved_memory()
    assert blend.saved_prefix is None


@every_model
def test_replayed_memory_is_not_saved(name):
    """With `memory='replayed'` nothing is saved, in the checkpoint neither."""
    store = generate_stream(GeneratorConfig(seed=3, nodes=40, events=100))
    spec = find_model(name)
    scorer = spec.build(spec.config(memory="replayed"), DatasetFacts.of(store))
    assert not scorer.saves_memory
    scorer.save_memory(StreamPrefix.from_store(store, 50))
    assert scorer.saved_prefix is None
    assert not any("kept" in key for key in scorer.state_dict())


def test_training_and_evaluation_have_batches_of_their_own(folder, tmp_path):
    """Evaluation is a function of weights, saved memory and `evaluation_batch`, not of the training batch."""
    dataset = open_dataset("small", folder)
    fit = start_link_run(dataset, "tgn", 0, TINY | {"evaluation_batch": 20}, CPU, tmp_path)
    fit()
    test = build_link_set(fit.stream.store, fit.stream.split, "test")
    by_size = {
        size: score_evaluation_set(fit.scorer, fit.stream, test, VisibilityRule("strict", size), 0)
        for size in (20, TINY["batch"])
    }
    assert not torch.equal(by_size[20], by_size[TINY["batch"]])
    assert torch.equal(fit.score(test), by_size[20])
    assert fit.steps_per_epoch == -(-len(fit.stream.train) // TINY["batch"])
    opened = open_run(fit.run.path, CPU, folder)
    (row,) = evaluate_link_scorer(
        opened.scorer, opened.stream, {"seed": 0}, [("random", "test", "transductive")], opened.rule
    )
    assert row["batch"] == 20
    assert row["ap"] == link_metrics(by_size[20], test.pairs.label, test.pairs.group, PUBLISHED_BATCH)["ap"]
