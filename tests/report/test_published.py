"""The published tables: found by any spelling, as printed, and honest about what they lack."""

import pytest

from dygmamba.core.errors import NotFoundError
from dygmamba.report.published import PublishedValue, corrected_values, list_tables, published_values, table


@pytest.mark.parametrize("name", ["CanParl", "Can. Parl.", "can-parl", "CANPARL"])
def test_a_dataset_is_found_whatever_its_spelling(name):
    """Case and punctuation are not part of a name."""
    cells = published_values(name, "transductive", "random", "ap")
    assert cells["DyG-Mamba"][:2] == (98.37, 0.07)
    assert cells["DyGFormer"].mean == 97.36
    assert corrected_values(name, "transductive", "random", "ap")["DyGFormer"] == PublishedValue(
        61.99, 1.66, "arXiv 2610.04869, October 2026, retrained"
    )


def test_every_protocol_of_the_field_has_its_figures():
    """Two settings, three kinds of negatives and two metrics on twelve datasets; the DyG-Mamba column is complete."""
    names = [row["dataset"] for row in table("dataset_statistics").rows]
    assert len(names) == 12
    for name in names:
        for setting in ("transductive", "inductive"):
            for negatives in ("random", "historical", "inductive"):
                for metric in ("ap", "auc"):
                    assert "DyG-Mamba" in published_values(name, setting, negatives, metric)


def test_figures_quoted_elsewhere_name_their_source():
    """NAT and TPNet are not in the paper; a retrained figure never passes for a published one."""
    cells = published_values("USLegis", "transductive", "random", "ap")
    assert (cells["NAT"].mean, cells["TPNet"].mean) == (78.71, 80.58)
    assert all("quoted by arXiv 2610.04869" in cells[model].source for model in ("NAT", "TPNet"))
    assert "GRN" not in cells
    assert corrected_values("USLegis", "transductive", "random", "ap")["TPNet"].mean == 68.73


def test_what_was_not_published_is_empty():
    """An unknown dataset, setting or metric has no figures; there is no correction of AUC or of new nodes."""
    assert published_values("my-mail", "transductive", "random", "ap") == {}
    assert published_values("uci", "transductive", "random", "mrr") == {}
    assert (
        corrected_values("uci", "inductive", "random", "ap")
        == {}
        == corrected_values("uci", "transductive", "random", "auc")
    )


def test_every_table_opens_and_an_unknown_one_is_said():
    """Rows of a table have the same columns; a cell that the paper prints as N/A is None."""
    for name in list_tables():
        found = table(name)
        assert found.rows
        assert len({tuple(row) for row in found.rows}) == 1
    nodes = {(row["dataset"], row["model"]): row["mean"] for row in table("node_classification_auc").rows}
    assert nodes["Wikipedia", "DyG-Mamba"] == 88.58
    assert nodes["Wikipedia", "EdgeBank"] is None
    with pytest.raises(NotFoundError, match="choose from transductive_ap_rnd"):
        table("nope")
