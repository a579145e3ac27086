"""Nothing that the package computes changes unless a change is meant: every model, reader, command and old run folder.

`tests/goldens/goldens.json` was recorded with version 0.1.0 by `tests/golden_cases.py`. On the kind of processor and
with the library versions it was recorded with, digests must agree to the last bit; elsewhere scores must agree to
rounding. After an intended change record again, and change `CODE_VERSION` in `dygmamba/studies/job.py`. Elsewhere
`make goldens AT=COMMIT` compares the working tree with a commit on the machine at hand, to the last bit.
"""

import json

import pytest

from golden_cases import (
    HERE,
    fingerprint,
    labelled_stream,
    normalise,
    record_commands,
    record_nodes,
    record_readers,
    record_training,
    stream,
    training_cases,
)
from old_runs import OLD, record_kinds, record_old_runs
from thread_worker import use_thread_workers
from torture_cases import SECONDS

pytestmark = pytest.mark.usefixtures("rank_all_events")  # the recorded figures are a user's

GOLDENS = json.loads((HERE / "goldens.json").read_text())
SAME_MACHINE = fingerprint() == GOLDENS["fingerprint"]


# Every model runs in each test run, the ablations of DyG-Mamba in `make torture`.
QUICK = [name for name in training_cases() if not name.startswith("dyg-mamba ")] + [
    "dyg-mamba release",
    "dyg-mamba counts-walks",
    "dyg-mamba activity",
    "dyg-mamba ranking",
]
long_run = pytest.mark.skipif(not SECONDS, reason="every ablation is trained by make torture")


def check(found: dict, expected: dict) -> None:
    """Digests and scores to the last bit on the recording machine; elsewhere scores to rounding."""
    if SAME_MACHINE:
        assert found == expected
    else:
        assert found["scores"] == pytest.approx(expected["scores"], abs=2e-3)


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=[] if name in QUICK else [long_run]) for name in training_cases()]
)
def test_training_is_unchanged(case, tmp_path):
    """For all models and ablations: weights, metrics, results, calibration and scores are those recorded."""
    check(record_training(stream(), training_cases()[case], tmp_path, "cpu"), GOLDENS["training"][case])


def test_node_classification_is_unchanged(tmp_path):
    assert len(labelled_stream()) == 500
    check(record_nodes(tmp_path, "cpu"), GOLDENS["training"]["node"])


def test_readers_are_unchanged(tmp_path):
    """For all kinds of files: the imported dataset is the one recorded."""
    assert record_readers(tmp_path) == GOLDENS["readers"]


def test_commands_are_unchanged(tmp_path, monkeypatch):
    """For all commands: exit code and `--json` output, but for sentences, paths and timings."""
    use_thread_workers(monkeypatch)
    found = record_commands(tmp_path)
    expected = GOLDENS["commands"]
    assert list(found) == sorted(expected, key=list(found).index)
    for name, value in expected.items():
        assert found[name]["exit"] == value["exit"], name
        if SAME_MACHINE:
            assert normalise(found[name]["json"]) == value["json"], name


@pytest.mark.filterwarnings("ignore:.*was started with processor")  # one is resumed on another processor
def test_old_run_folders_still_work(tmp_path):
    """Run folders and dataset files of version 0.1.0 open, resume and predict to the same bits."""
    found = record_old_runs(tmp_path)
    for name, value in found.items():
        check(value, GOLDENS["old_runs"][name])


@pytest.mark.filterwarnings("ignore:.*was started with processor")  # some are resumed on another one
def test_old_runs_of_every_kind_still_work(tmp_path):
    """A blend, a node run, a choice within a budget, a backtest, an export and a live state, finished or stopped."""
    found = record_kinds(tmp_path)
    for name, value in found.items():
        check(value, GOLDENS["old_runs"][name])
    assert found.keys() | set(OLD) | {"stopped"} == GOLDENS["old_runs"].keys()
