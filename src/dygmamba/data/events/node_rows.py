"""Node features as rows (node, time, columns): for a query, the last row of its node before the query time counts.

Legend: r rows, c numeric columns, k categorical columns, p queries, m rows of the training period.
"""

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float32, Float64, Int32, Int64
from torch import Tensor

from dygmamba.core.errors import EventError
from dygmamba.data.events.categories import Category, recode
from dygmamba.data.events.column_facts import ColumnFacts, NumericColumn
from dygmamba.data.events.columns import MAX_SEPARATE_COLUMNS, compute_moments, rank_types

STATIC_TIME = torch.finfo(torch.float64).min  # time of a row that is known from the start


@dataclass(frozen=True, slots=True)
class NodeRows:
    """Rows of node features, sorted by node and then by time; tensors are on the host.

    Attributes:
        node: Node of each row.
        time: Time from which a row counts, for strictly later queries; `STATIC_TIME` if it always does.
        value: Numeric columns, 0 where a value is missing.
        known: Where a numeric value is not missing.
        codes: Codes of the categorical columns.
        names: Names of the numeric columns.
        categories: Names and values of the categorical columns.

    Raises:
        EventError: Rows are not sorted, or columns differ in length.
    """

    node: Int64[Tensor, "r"]
    time: Float64[Tensor, "r"]
    value: Float32[Tensor, "r c"]
    known: Bool[Tensor, "r c"]
    codes: Int32[Tensor, "r k"]
    names: tuple[str, ...] = ()
    categories: tuple[Category, ...] = ()
    _instants: Float64[Tensor, "_"] = field(init=False, repr=False, compare=False)
    _key: Int64[Tensor, "r"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for column in self.columns:
            if len(column) != len(self.node):
                raise EventError(
                    f"node features have {len(self.node):,} nodes but {len(column):,} rows in another column; "
                    "give columns of one length",
                    code="column-length",
                )
        instants, rank = torch.unique(self.time, return_inverse=True)
        key = self.node * (len(instants) + 1) + rank
        if len(key) and (bool((key[1:] < key[:-1]).any()) or int(self.node[0]) < 0):
            raise EventError(
                "rows of node features are not sorted by node and time; call NodeRows.from_unsorted(...)",
                code="unsorted-node-rows",
            )
        object.__setattr__(self, "_instants", instants)
        object.__setattr__(self, "_key", key)

    @staticmethod
    def from_unsorted(
        node: Int64[Tensor, "r"],
        time: Float64[Tensor, "r"],
        value: Float32[Tensor, "r c"],
        known: Bool[Tensor, "r c"],
        codes: Int32[Tensor, "r k"],
        names: tuple[str, ...] = (),
        categories: tuple[Category, ...] = (),
    ) -> "NodeRows":
        """Create the table from rows in any order; of two rows of a node at one time, the later one counts."""
        order = torch.argsort(time, stable=True)
        order = order[torch.argsort(node[order], stable=True)]
        columns = (column[order] for column in (node, time, value, known, codes))
        return NodeRows(*columns, names=names, categories=categories)

    def __len__(self) -> int:
        return len(self.node)

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All tensors, in the order of the fields."""
        return self.node, self.time, self.value, self.known, self.codes

    @property
    def is_static(self) -> bool:
        """Whether all rows are known from the start."""
        return bool((self.time == STATIC_TIME).all())

    @property
    def column_names(self) -> tuple[str, ...]:
        return (*self.names, *(category.name for category in self.categories))

    def find_last_before(self, node: Int64[Tensor, "p"], time: Float64[Tensor, "p"]) -> Int64[Tensor, "p"]:
        """Return the last row of each node strictly before each time, -1 if there is none."""
        # strict '<': a row at the query time is not visible, as an event is not (decision 003)
        earlier = torch.searchsorted(self._instants, time.contiguous())
        row = torch.searchsorted(self._key, node * (len(self._instants) + 1) + earlier) - 1
        is_own = (row >= 0) & (node >= 0)
        if not len(self):
            return row
        return torch.where(is_own & (self.node[row.clamp(min=0)] == node), row, -1)

    def renumber(self, number: Int64[Tensor, "n"]) -> "NodeRows":
        """Return the table with other numbers of the nodes."""
        _, *columns = self.columns
        return NodeRows.from_unsorted(
            number[self.node], *columns, names=self.names, categories=self.categories
        )

    def recode(self, categories: tuple[Category, ...]) -> "NodeRows":
        """Return the table with the codes of these categories of the same columns; unknown values get the next ones."""
        codes, extended = recode(self.codes.numpy(), self.categories, categories)
        return replace(self, codes=torch.from_numpy(codes), categories=extended)


def select_node_columns(rows: NodeRows | None, end: float) -> ColumnFacts:
    """Return the columns of node features that a model may read, with statistics of the rows before the time `end`.

    Columns that are constant in these rows are left out. More than `MAX_SEPARATE_COLUMNS` numeric columns count as one
    vector, and none of them is used. A categorical column comes first if its eight most frequent values cover
    most rows.
    """
    if rows is None:
        return ColumnFacts()
    early = rows.time < end
    numeric = []
    if len(rows.names) <= MAX_SEPARATE_COLUMNS:
        for index, name in enumerate(rows.names):
            value = rows.value[early & rows.known[:, index], index].double()
            mean, deviation = compute_moments(value)
            if deviation > 0:
                numeric.append(NumericColumn(index, name, mean, deviation))
    return ColumnFacts(tuple(numeric), rank_types(rows.codes[early], rows.categories))
