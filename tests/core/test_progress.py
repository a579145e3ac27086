"""One protocol for everybody who follows a computation."""

import os
import signal
from contextlib import contextmanager

import pytest

from dygmamba.api.processes import PipeProgress, replay_progress
from dygmamba.core.interrupts import Interrupts, allow_interrupts, defer_interrupts, interrupt_requested
from dygmamba.core.progress import (
    SILENT,
    EpochCallback,
    ForwardingProgress,
    LabelledProgress,
    LoggedProgress,
    Progress,
    as_progress,
)


class Recorder(Progress):
    """Writes down what it is told, with the names of the open stages."""

    def __init__(self, events=None, path=()):
        self.events, self.path = [] if events is None else events, path

    @contextmanager
    def stage(self, name, total=None, *, done=0, unit=""):
        self.events.append(("open", *self.path, name, total, done, unit))
        yield Recorder(self.events, (*self.path, name))
        self.events.append(("close", *self.path, name))

    def advance(self, count=1):
        self.events.append(("advance", *self.path, count))

    def epoch(self, entry):
        self.events.append(("epoch", *self.path, entry))

    def message(self, text):
        self.events.append(("message", text))


def work(progress: Progress) -> None:
    """A computation with a stage in a stage."""
    progress.message("begin")
    with progress.stage("training", 4, done=1) as training:
        training.advance(2)
        with training.stage("validation", 10, unit="bytes") as validation:
            validation.advance(10)
        training.epoch({"epoch": 0, "loss": 0.5})
    progress.message("end")


EXPECTED = [
    ("message", "begin"),
    ("open", "training", 4, 1, ""),
    ("advance", "training", 2),
    ("open", "training", "validation", 10, 0, "bytes"),
    ("advance", "training", "validation", 10),
    ("close", "training", "validation"),
    ("epoch", "training", {"epoch": 0, "loss": 0.5}),
    ("close", "training"),
    ("message", "end"),
]


def test_the_silent_default_accepts_everything():
    work(SILENT)
    with SILENT.stage("anything") as stage:
        assert stage is SILENT


def test_a_plain_function_gets_every_epoch_and_nothing_else():
    entries = []
    work(as_progress(entries.append))
    assert entries == [{"epoch": 0, "loss": 0.5}]
    assert type(as_progress(None)) is LoggedProgress
    recorder = Recorder()
    assert as_progress(recorder) is recorder
    assert isinstance(as_progress(print), EpochCallback)


def test_a_forwarding_progress_passes_everything_on_from_every_stage():
    recorder = Recorder()
    work(ForwardingProgress(recorder))
    assert recorder.events == EXPECTED


def test_labels_are_added_to_epochs_in_stages_too():
    entries = []
    work(LabelledProgress(EpochCallback(entries.append), seed=3))
    assert entries == [{"seed": 3, "epoch": 0, "loss": 0.5}]


def test_what_a_worker_sends_is_replayed():
    """For all events: the parent's progress gets what the worker's got; the last line is the result."""
    lines, recorder = [], Recorder()
    work(PipeProgress(lines.append))
    last = replay_progress([*lines, {"runs": ["a"]}], recorder)
    assert recorder.events == EXPECTED
    assert last == {"runs": ["a"]}


def test_a_worker_that_dies_leaves_no_stage_open():
    lines, recorder = [], Recorder()
    work(PipeProgress(lines.append))
    opened = next(number for number, line in enumerate(lines) if "advance" in line)
    assert replay_progress(lines[: opened + 1], recorder) == {}
    assert recorder.events[-1] == ("close", "training")


def test_a_signal_waits_for_the_end_of_a_step_and_a_second_one_does_not():
    announced = []
    with Interrupts(announced.append):
        with defer_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupt_requested()
            os.kill(os.getpid(), signal.SIGTERM)  # sent by who ends several processes
            with pytest.raises(KeyboardInterrupt), allow_interrupts():
                pytest.fail("the signal is delivered where it may be")
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert len(announced) == 1
    assert not interrupt_requested()


def test_without_handlers_nothing_is_deferred():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt), defer_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
