"""Scores are functions of the model and the query: several threads get the scores that each would get alone."""

import multiprocessing
import os
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import dygmamba as dm
from dygmamba.config import build_config
from dygmamba.engine.scoring import Ranker
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
from dygmamba.runs.recipes import build_link_stream
from memory_cases import SETTINGS, ten_events
from streams import unsplit

CASES = SETTINGS | {
    "graphmixer": {"neighbors": 3, "window": 5, "time_dim": 3},
    "walk-trees": {"neighbors": 3},
    "pair-recency": {},
}
THREADS = 4


@pytest.fixture(autouse=True)
def _switch_often():
    """Threads take turns at every chance."""
    before, cores = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-6)
    torch.set_num_threads(1)
    yield
    sys.setswitchinterval(before)
    torch.set_num_threads(cores)


@pytest.mark.parametrize("name", CASES)
def test_threads_that_share_a_ranker_get_the_scores_of_one_thread(name):
    """For all times, in any order of the queries: a thread's scores do not depend on what the others ask."""
    store, spec = ten_events(), MODELS[name]
    torch.manual_seed(0)
    ranker = Ranker(
        spec.build(build_config(spec.config, CASES[name]), DatasetFacts.of(store)), unsplit(store), 0
    )
    times = [1e9 + after for after in (0.5, 2.0, 2.7, 3.0, 5.0, 7.5, 9.0, 12.0)]
    src, dst = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0])

    def score(time):
        return ranker.logits(src, dst, torch.full((3,), time, dtype=torch.float64))

    alone = {time: score(time) for time in times}

    def work(number):
        order = times[number:] + times[:number]  # a memory has to go back and forth
        return all(torch.equal(score(time), alone[time]) for _ in range(2) for time in order)

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(0, 2 * THREADS, 2)))


FORKED = {"trees": {"neighbors": 3}, "dyg-mamba": {"length": 8, "width": 16, "blocks": 1, "time_dim": 16}}
PATIENCE = 60.0  # seconds; a child that waits for threads of its parent never ends


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.parametrize("name", FORKED)
def test_a_forked_process_scores_as_its_parent_did_with_several_threads(name):
    """A child ends, as servers fork their workers after a first score, and its one thread gives the same scores.

    Of trees to the bit. On some processors MKL rounds the products of a network differently with other threads.
    """
    data, spec = dm.generate(nodes=60, events=1500, communities=3), MODELS[name]
    torch.manual_seed(0)
    scorer = spec.build(build_config(spec.config, FORKED[name]), DatasetFacts.of(data.store))
    ranker = Ranker(scorer, build_link_stream(data, torch.device("cpu")), 0)
    src, dst = data.store.src.repeat(4), data.store.dst.repeat(4)
    torch.set_num_threads(2)

    def score():
        return ranker.logits(src, dst, data.store.time[-1:].repeat(len(src)) + 60)

    def work(pipe):
        pipe.send(score().numpy())

    expected = score()
    receiving, sending = multiprocessing.Pipe(duplex=False)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # a fork of a process with threads, which is the case
        child = multiprocessing.get_context("fork").Process(target=work, args=(sending,))
        child.start()
    try:
        assert receiving.poll(PATIENCE)
        tolerance = {"rtol": 0.0, "atol": 0.0} if name == "trees" else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(torch.from_numpy(receiving.recv()), expected, **tolerance)
    finally:
        child.kill()
        child.join()
