"""The rule that labels published values: memory, padding, what was retrained, and what is not known."""

import json
from itertools import product

import pytest

from dygmamba.report import published, published_leaks
from dygmamba.report.published import load_table, published_values, retrained_values
from dygmamba.report.published_leaks import (
    PROGRAMS,
    LeakLabel,
    judge_published_values,
    list_padded_calls,
    load_channels,
)
from research.result_tables import best_published_not_known, best_published_without_leaks

DATASETS = [row["dataset"] for row in load_table("dataset_statistics").rows]
SETTINGS, NEGATIVES = ("transductive", "inductive"), ("random", "historical", "inductive")


def get_labels(
    dataset: str, setting: str = "transductive", negatives: str = "random"
) -> dict[str, LeakLabel]:
    """Labels of the values that were not retrained."""
    judged = judge_published_values(dataset, setting, negatives)
    return {one.model: one.label for one in judged if one.label is not LeakLabel.RETRAINED}


def test_only_retrained_cells_are_labelled_as_retrained():
    """For all cells: the label is `retrained` exactly where the correction says so."""
    cells = 0
    for dataset, negatives in product(DATASETS, NEGATIVES):
        judged = judge_published_values(dataset, "transductive", negatives)
        retrained = {one.model for one in judged if one.label is LeakLabel.RETRAINED}
        assert retrained == set(retrained_values(dataset, "transductive", negatives))
        cells += len(retrained)
    raw = published.load_json(published.CORRECTION)["cells"]
    flags = [cell[2] for by_dataset in raw.values() for row in by_dataset.values() for cell in row if cell]
    assert cells == sum(flags) > 0


def test_every_published_value_has_a_label():
    """For all evaluations: every published value is judged once, and one that is not examined is not known."""
    for dataset, setting, negatives in product(DATASETS, SETTINGS, NEGATIVES):
        labels = get_labels(dataset, setting, negatives)
        assert set(labels) == set(published_values(dataset, setting, negatives))


def test_an_open_padding_channel_leaks_and_a_closed_one_does_not():
    """Two models that read padding leak on Can. Parl. and are free on Enron and US Legis."""
    for model in ("DyGFormer", "DyG-Mamba"):
        assert get_labels("CanParl")[model] is LeakLabel.LEAKS
        assert get_labels("enron")[model] is get_labels("USLegis")[model] is LeakLabel.FREE


def test_a_memory_leaks_where_batches_share_a_time():
    """Models with a memory leak on snapshots and are free where timestamps hardly repeat."""
    for model in ("JODIE", "DyRep", "TGN", "EdgeBank"):
        assert get_labels("USLegis")[model] is get_labels("CanParl")[model] is LeakLabel.LEAKS
        assert get_labels("uci")[model] is get_labels("wikipedia")[model] is LeakLabel.FREE
    assert get_labels("USLegis")["GraphMixer"] is LeakLabel.FREE


def test_the_length_must_be_known():
    """Paper and release name 32 and 1024 on UCI; only the value that the paper prints beside its length is free."""
    assert get_labels("uci")["DyG-Mamba"] is LeakLabel.FREE
    assert get_labels("uci", "inductive")["DyG-Mamba"] is LeakLabel.NOT_KNOWN
    assert get_labels("uci", negatives="historical")["DyG-Mamba"] is LeakLabel.NOT_KNOWN


def test_what_was_not_measured_or_examined_is_not_known(monkeypatch):
    assert get_labels("reddit")["DyGFormer"] is get_labels("reddit")["TGN"] is LeakLabel.NOT_KNOWN
    assert get_labels("uci")["NAT"] is LeakLabel.NOT_KNOWN  # its padding was not examined
    others = {name: program for name, program in PROGRAMS.items() if name != "TCL"}
    monkeypatch.setattr(published_leaks, "PROGRAMS", others)
    assert get_labels("enron")["TCL"] is LeakLabel.NOT_KNOWN


@pytest.mark.parametrize(
    ("dataset", "setting", "model", "mean", "label"),
    [
        ("USLegis", "transductive", "DyG-Mamba", 74.11, LeakLabel.FREE),
        ("enron", "transductive", "DyG-Mamba", 93.22, LeakLabel.FREE),
        ("enron", "inductive", "DyG-Mamba", 90.97, LeakLabel.FREE),
        ("wikipedia", "inductive", "FreeDyG", 98.97, LeakLabel.FREE),
        ("CanParl", "transductive", "TPNet", 80.06, LeakLabel.RETRAINED),
    ],
)
def test_the_best_value_without_leaks(dataset, setting, model, mean, label):
    best = best_published_without_leaks(dataset, setting, "random")
    assert best is not None
    assert (best.model, best.value.mean, best.label) == (model, mean, label)
    assert best.value.source


def test_a_higher_value_that_is_not_known_is_reported_beside_the_best():
    """On Reddit TPNet is above the best value without leaks; on Enron nothing is not known."""
    best, unknown = (
        find("reddit", "transductive", "random")
        for find in (best_published_without_leaks, best_published_not_known)
    )
    assert best is not None
    assert unknown is not None
    assert unknown.value.mean > best.value.mean
    assert unknown.label is LeakLabel.NOT_KNOWN
    assert best_published_not_known("enron", "transductive", "random") is None
    assert best_published_without_leaks("my-mail", "transductive", "random") is None


def test_batches_other_than_those_of_the_protocol_are_named():
    best = best_published_without_leaks("USLegis", "transductive", "random")
    assert best is not None
    assert best.batch == 20


def test_every_padded_call_was_measured():
    """For all datasets that were measured: the file has every length and batch size that the rule asks for."""
    for dataset, channels in load_channels().items():
        for setting, negatives in product(SETTINGS, NEGATIVES):
            for length, batch in list_padded_calls(dataset, negatives):
                assert len(channels["padding"][f"{setting} {negatives} {length} {batch}"]) == 2


def test_the_label_follows_the_measurement(monkeypatch):
    """The same program on the same dataset leaks if the measured channel is open, and is not known in between."""
    raw = json.loads(json.dumps(load_channels()))
    monkeypatch.setattr(published_leaks, "load_channels", lambda: raw)
    for auc, label in ((0.5, LeakLabel.FREE), (0.53, LeakLabel.NOT_KNOWN), (0.4, LeakLabel.LEAKS)):
        raw["enron"]["padding"]["transductive random 256 200"] = [0.5, auc]
        assert get_labels("enron")["DyGFormer"] is label
