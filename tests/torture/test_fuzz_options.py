"""Absurd options: for every set of them a command works or gives one sentence, in time and within its memory."""

import random

import pytest

from limited_process import run_in_parallel, run_limited_command
from option_cases import option_set, scene
from torture_cases import seeds, tally


@pytest.fixture(scope="module")
def stage(whole, tmp_path_factory):
    """A folder in which the commands are called, and what they are told of the machine."""
    folder = tmp_path_factory.mktemp("stage")
    scene(folder, whole.path)
    return folder


def test_every_option_set_works_or_is_one_sentence(stage):
    """For all option sets: exit code 0, or 2 with one sentence; no traceback, no hang, no gigabytes."""
    environment = {"DYGMAMBA_DATA": str(stage), "DYGMAMBA_MIRROR": "http://127.0.0.1:9", "COLUMNS": "200"}
    calls = ((option_set(random.Random(seed)), environment, stage) for seed in seeds("option sets", 6))
    wrong = []
    for end in run_in_parallel(calls, run_limited_command):
        tally("option sets", end.verdict)
        if end.verdict not in ("done", "refused"):
            wrong.append(end)
    assert not wrong, "\n\n".join(map(str, wrong))
