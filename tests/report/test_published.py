"""The published tables: names match in any spelling, values are as printed, gaps are None."""

import pytest

from dygmamba.core.errors import NotFoundError
from dygmamba.report.published import (
    PublishedValue,
    list_tables,
    load_table,
    published_values,
    retrained_values,
)
from raising import raises


@pytest.mark.parametrize("name", ["CanParl", "Can. Parl.", "can-parl", "CANPARL"])
def test_dataset_names_match_in_any_spelling(name):
    """Case and punctuation are ignored."""
    cells = published_values(name, "transductive", "random", "ap")
    assert cells["DyG-Mamba"][:2] == (98.37, 0.07)
    assert cells["DyGFormer"].mean == 97.36
    assert retrained_values(name, "transductive", "random", "ap")["DyGFormer"] == PublishedValue(
        61.99, 1.66, "arXiv 2610.04869, October 2026, retrained"
    )


def test_every_evaluation_has_published_values():
    """Two settings, three kinds of negatives and two metrics on twelve datasets; the DyG-Mamba column is complete."""
    names = [row["dataset"] for row in load_table("dataset_statistics").rows]
    assert len(names) == 12
    for name in names:
        for setting in ("transductive", "inductive"):
            for negatives in ("random", "historical", "inductive"):
                for metric in ("ap", "auc"):
                    assert "DyG-Mamba" in published_values(name, setting, negatives, metric)


def test_quoted_values_name_their_source():
    """NAT and TPNet are not in the paper; a retrained value is never returned as a published one, nor the reverse."""
    cells = published_values("USLegis", "transductive", "random", "ap")
    assert (cells["NAT"].mean, cells["TPNet"].mean) == (78.71, 80.58)
    assert all("quoted by arXiv 2610.04869" in cells[model].source for model in ("NAT", "TPNet"))
    own = published_values("uci", "inductive", "random", "ap")["TPNet"]
    assert own == PublishedValue(95.74, None, "Lu et al., NeurIPS 2024")
    assert "GRN" not in cells
    assert "quoted" not in cells["SFS"].source
    retrained = retrained_values("USLegis", "transductive", "random", "ap")
    assert {model: value.mean for model, value in retrained.items()} == {
        "TPNet": 68.73,
        "GRN": 66.24,
        "DSRD": 65.54,
    }


def test_unpublished_evaluations_are_empty():
    """Unknown datasets, settings and metrics have no values; AUC and new nodes have no corrected values."""
    assert published_values("my-mail", "transductive", "random", "ap") == {}
    assert published_values("uci", "transductive", "random", "mrr") == {}
    assert (
        retrained_values("uci", "inductive", "random", "ap")
        == {}
        == retrained_values("uci", "transductive", "random", "auc")
    )


def test_every_table_loads_and_an_unknown_one_is_an_error():
    """Rows of a table have the same columns; a cell that the paper prints as N/A is None."""
    for name in list_tables():
        found = load_table(name)
        assert found.rows
        assert len({tuple(row) for row in found.rows}) == 1
    nodes = {
        (row["dataset"], row["model"]): row["mean"] for row in load_table("node_classification_auc").rows
    }
    assert nodes["Wikipedia", "DyG-Mamba"] == 88.58
    assert nodes["Wikipedia", "EdgeBank"] is None
    with raises("unknown-paper-table", kind=NotFoundError):
        load_table("nope")
