"""Check of published values for the two known leaks. docs/reference/protocol.md states the rule.

A published program can leak in two ways. It pads events and negatives in separate calls and reads the padding, so that
the padded length tells them apart; or it updates a memory after each batch, so that a query sees events of its own
time. Whether that helps depends on the dataset. `leak_channels.json` holds how much each channel reveals there, as
measured by `python -m research.leak_channels DATA_DIR`. What was not examined or not measured is "not known".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from dygmamba.data.catalogue.known_datasets import normalize_name
from dygmamba.report.published import (
    OWN_MODELS_OF_THE_CORRECTION,
    PublishedValue,
    load_json,
    load_table,
    published_values,
    retrained_values,
)

CHANNELS_FILE = "leak_channels.json"
PUBLISHED_BATCH = 200  # of DyGLib, in training and evaluation
# A channel is closed up to the first value and open from the second on; between them it is not known. The ROC-AUC is
# that of the padded length, as its distance from 0.5; the share is that of events which follow a batch with events of
# their own time.
AUC_LIMITS, SHARE_LIMITS = (0.02, 0.05), (0.005, 0.05)

# Lengths and batch sizes of the two programs that pad each call to its own longest history. The paper's lengths of
# DyG-Mamba are in its table; its release has other ones on these datasets.
DYGFORMER_LENGTHS = {
    "wikipedia": 32,
    "reddit": 64,
    "mooc": 256,
    "lastfm": 512,
    "enron": 256,
    "socialevo": 32,
    "uci": 32,
    "canparl": 2048,
    "uslegis": 256,
    "untrade": 256,
    "unvote": 128,
    "contact": 32,
}
RELEASED_LENGTHS = {"enron": 256, "uci": 1024}
RELEASED_BATCHES = {"lastfm": 100, "enron": 30, "uci": 20, "canparl": 30, "uslegis": 20, "untrade": 100}
RELEASED_EVALUATION_BATCH = 400  # with historical and inductive negatives


class LeakLabel(StrEnum):
    """Verdict whether a published value is free of the known leaks."""

    RETRAINED = "retrained with leaks closed"
    FREE = "free of the known leaks"
    LEAKS = "leaks"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Program:
    """Properties of a published program that can leak; None means not known.

    Attributes:
        reads_padding: It pads each call to its longest history and does not mask the padding.
        has_memory: It has a state that is updated after each batch.
        lengths: Length of the histories by dataset; None for those in the tables of the paper and in its release.
        batches: Batch size with random negatives by dataset, where it is not the usual one.
        other_batch: Batch size with historical and inductive negatives.
    """

    reads_padding: bool | None
    has_memory: bool | None
    lengths: Mapping[str, int] | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    other_batch: int = PUBLISHED_BATCH


STATELESS, MEMORY = Program(False, False), Program(False, True)
PROGRAMS = {
    "JODIE": MEMORY,
    "DyRep": MEMORY,
    "TGN": MEMORY,
    "EdgeBank": MEMORY,
    "TPNet": MEMORY,
    "NAT": Program(None, True),
    "PINT": Program(None, True),
    "TGAT": STATELESS,
    "CAWN": STATELESS,
    "GraphMixer": STATELESS,
    "TCL": STATELESS,
    "FreeDyG": STATELESS,
    "DyGFormer": Program(True, False, DYGFORMER_LENGTHS),
    "DyG-Mamba": Program(True, False, None, RELEASED_BATCHES, RELEASED_EVALUATION_BATCH),
}


@dataclass(frozen=True, slots=True)
class JudgedValue:
    """A published value, its label and the reason for the label."""

    model: str
    value: PublishedValue
    label: LeakLabel
    reason: str
    batch: int = PUBLISHED_BATCH  # over which its AP was averaged

    @property
    def is_free(self) -> bool:
        return self.label in (LeakLabel.RETRAINED, LeakLabel.FREE)


def judge_published_values(dataset: str, setting: str, negatives: str) -> list[JudgedValue]:
    """Return every published AP of an evaluation with its label, the highest first."""
    evaluation = (setting, negatives)
    judged = [
        _judge(dataset, evaluation, model, value)
        for model, value in published_values(dataset, setting, negatives).items()
    ]
    judged += [
        JudgedValue(model, value, LeakLabel.RETRAINED, "padding masked, events of the query's time hidden")
        for model, value in retrained_values(dataset, setting, negatives).items()
    ]
    return sorted(judged, key=lambda one: -one.value.mean)


def list_padded_calls(dataset: str, negatives: str) -> list[tuple[int, int]]:
    """Return the lengths and batch sizes with which published programs pad their calls on a dataset."""
    return sorted(
        {
            (length, _get_batch(model, dataset, negatives))
            for model, program in PROGRAMS.items()
            if program.reads_padding
            for length in _list_lengths(model, dataset)
        }
    )


def _judge(dataset: str, evaluation: tuple[str, str], model: str, value: PublishedValue) -> JudgedValue:
    """Label a value that was not retrained: open if a channel is open, not known if one is not known."""
    batch = _get_batch(model, dataset, evaluation[1])
    if model in OWN_MODELS_OF_THE_CORRECTION:
        return JudgedValue(model, value, LeakLabel.FREE, "model of the paper that closed both leaks")
    program = PROGRAMS.get(model)
    if program is None:
        return JudgedValue(model, value, LeakLabel.NOT_KNOWN, "the program was not examined")
    labels = {}
    if program.has_memory:
        labels["memory"] = _judge_memory(dataset, evaluation[0])
    if program.reads_padding is None:
        labels["padding"] = LeakLabel.NOT_KNOWN
    elif program.reads_padding:
        labels["padding"] = _judge_padding(dataset, evaluation, model)
    for label, reason in (
        (LeakLabel.LEAKS, "reveals labels on this dataset"),
        (LeakLabel.NOT_KNOWN, "not examined or not measured"),
    ):
        channels = [channel for channel, found in labels.items() if found is label]
        if channels:
            return JudgedValue(model, value, label, f"{' and '.join(channels)}: {reason}", batch)
    reason = (
        f"{' and '.join(labels)}: reveals nothing on this dataset" if labels else "no memory, fixed padding"
    )
    return JudgedValue(model, value, LeakLabel.FREE, reason, batch)


def _judge_memory(dataset: str, setting: str) -> LeakLabel:
    channels = load_channels().get(normalize_name(dataset))
    return LeakLabel.NOT_KNOWN if channels is None else _compare(channels["own_time"][setting], SHARE_LIMITS)


def _judge_padding(dataset: str, evaluation: tuple[str, str], model: str) -> LeakLabel:
    """Label the padding channel; it must agree at every length that the value may have been obtained with."""
    channels = load_channels().get(normalize_name(dataset))
    if channels is None:
        return LeakLabel.NOT_KNOWN
    setting, negatives = evaluation
    labels = set()
    for length in _list_lengths(model, dataset, evaluation):
        key = f"{setting} {negatives} {length} {_get_batch(model, dataset, negatives)}"
        distance = max(abs(auc - 0.5) for auc in channels["padding"][key])
        labels.add(_compare(distance, AUC_LIMITS))
    return labels.pop() if len(labels) == 1 else LeakLabel.NOT_KNOWN


def _compare(measured: float, limits: tuple[float, float]) -> LeakLabel:
    closed, open_ = limits
    if measured <= closed:
        return LeakLabel.FREE
    return LeakLabel.LEAKS if measured >= open_ else LeakLabel.NOT_KNOWN


def _list_lengths(model: str, dataset: str, evaluation: tuple[str, str] | None = None) -> list[int]:
    """Return the lengths that a value may have been obtained with; paper and release of DyG-Mamba do not agree.

    The paper's table of AP by length repeats its main values, for random negatives and all nodes, beside their length.
    """
    name = normalize_name(dataset)
    lengths = PROGRAMS[model].lengths
    if lengths is not None:
        return [lengths[name]] if name in lengths else []
    main = published_values(dataset, "transductive", "random").get(model)
    printed = {
        row["sequence_length"]
        for row in load_table("sequence_length_ap").rows
        if main is not None and normalize_name(row["dataset"]) == name and row["mean"] == main.mean
    }
    if printed and evaluation == ("transductive", "random"):
        return sorted(printed)
    settings = load_table("sequence_length_settings").rows
    listed = {row["sequence_length"] for row in settings if normalize_name(row["dataset"]) == name}
    released = {RELEASED_LENGTHS[name]} if name in RELEASED_LENGTHS else set()
    return sorted(printed | listed | released)


def _get_batch(model: str, dataset: str, negatives: str) -> int:
    """Return the batch size in which a program scored and averaged its test AP."""
    program = PROGRAMS.get(model, STATELESS)
    if negatives != "random":
        return program.other_batch
    return program.batches.get(normalize_name(dataset), PUBLISHED_BATCH)


@cache
def load_channels() -> dict[str, Any]:
    """Return the measured channels by normalized name of the dataset."""
    channels = load_json(CHANNELS_FILE)["datasets"]
    return {normalize_name(name): own for name, own in channels.items()}
