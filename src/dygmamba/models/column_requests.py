"""Requests for the columns of events and for node features, of a dataset that may have neither."""

from dygmamba.data.events.columns import MAX_CODE_COLUMNS
from dygmamba.history.column_sums import ColumnLookup
from dygmamba.history.columns import ColumnFeatures
from dygmamba.history.node_features import NodeFeatures
from dygmamba.models.base import DatasetFacts

COLUMNS = 8  # numeric columns that are read by default, of events and of nodes
VALUES = 8  # frequent values of a categorical column that are told apart by default
COLUMN_SCALES = 2  # time scales of columns: the training period, and one towards the time gap of a node


def request_columns(
    facts: DatasetFacts, query: bool, numeric: int = COLUMNS, values: int = VALUES
) -> tuple[ColumnFeatures, ...]:
    """Return a request for the columns of events, none if the dataset has no columns.

    Args:
        facts: What is known of the dataset.
        query: Whether queries carry columns, which are read too.
        numeric: Most numeric columns.
        values: Most values of a categorical column that are told apart; 0: no categorical column.
    """
    columns = facts.columns.first(numeric, MAX_CODE_COLUMNS, values)
    return (ColumnFeatures(columns, facts.scales(COLUMN_SCALES + 1)[1:], query),) if columns else ()


def request_column_sums(facts: DatasetFacts, numeric: int = COLUMNS) -> ColumnLookup | None:
    """Return a request for the numeric columns of events on the device; None if the dataset has none."""
    columns = facts.columns.first(numeric, 0, 0)
    return ColumnLookup(ColumnFeatures(columns, facts.scales(COLUMN_SCALES + 1)[1:])) if columns else None


def request_node_features(facts: DatasetFacts, numeric: int = COLUMNS) -> tuple[NodeFeatures, ...]:
    """Return a request for the node features of both ends of a pair, none if the dataset has no node features."""
    columns = facts.node_columns.first(numeric, MAX_CODE_COLUMNS, VALUES)
    return (NodeFeatures(columns),) if columns else ()
