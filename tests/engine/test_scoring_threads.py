"""Scores are functions of the model and the query: several threads get the scores that each would get alone."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dygmamba.config import build_config
from dygmamba.engine.scoring import Ranker
from dygmamba.models import MODELS
from dygmamba.models.base import DatasetFacts
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
