"""Columns that queries carry: what is known of the event in question, such as its amount.

Legend: p queries, r rows of columns.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from dygmamba.data.events.event_store import FeatureTable
from dygmamba.history.columns import ColumnValues


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Columns that queries carry: `row` is the row of each query in the numbers and codes.

    The columns are those of the stream's features, in the same order.
    """

    row: Int64[Tensor, "p"]
    edge: Float32[Tensor, "r de"]
    codes: Int32[Tensor, "r dc"] | None = None

    @staticmethod
    def of_events(features: FeatureTable, events: Int64[Tensor, "p"]) -> "QueryColumns | None":
        """Return queries that carry the columns of these events; None if the stream has no columns."""
        return QueryColumns(events, features.edge, features.codes) if features.has_columns else None

    @property
    def values(self) -> ColumnValues:
        """Numbers and codes of each query, on the host."""
        edge, codes = self.edge[self.row.to(self.edge.device)].cpu().numpy(), self.codes
        return ColumnValues(edge, None if codes is None else codes[self.row.to(codes.device)].cpu().numpy())

    def select(self, chosen: Int64[Tensor, "k"]) -> "QueryColumns":
        return replace(self, row=self.row[chosen])

    def to(self, device: torch.device | str) -> "QueryColumns":
        """Move the row numbers; the columns stay where they are."""
        return replace(self, row=self.row.to(device))
