"""Events that arrive in any order, at length: `make torture` only."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from live_machines import LiveMachine, MemoryMachine
from torture_cases import SECONDS


@pytest.mark.skipif(not SECONDS, reason="tests/live has the short form")
@pytest.mark.parametrize("machine", [LiveMachine, MemoryMachine])
def test_long_sequences_of_arrivals_give_the_scores_of_all_events_at_once(machine):
    """For all orders of arrival, bit for bit, of every trainable model."""
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=20))
