"""The JODIE csv files (Kumar et al., KDD 2019): users, items, and more columns than column names."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dygmamba.data.formats.csv import read_header, read_rows
from dygmamba.data.formats.options import COLUMNS, ReadOptions, Roles
from dygmamba.data.formats.table import arranged, without_zeros
from dygmamba.errors import FileError

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

NAMES = ("user_id", "item_id", "timestamp", "state_label")
LAST = "comma_separated_list_of_features"


def matches(names: tuple[str, ...]) -> bool:
    """Whether these column names are JODIE's."""
    return names[:4] == NAMES and names[4:] in ((LAST,), ())


def read(path: Path, options: ReadOptions) -> "Dataset":
    """Users are the sources, items the destinations, what follows the label is the edge's features."""
    options.refuse("JODIE", *COLUMNS, "header")
    header = read_header(path, options)
    if header.width < len(NAMES):
        raise FileError(
            f"{path} has {header.width} columns, a JODIE file at least {len(NAMES)}; try `format='csv'`"
        )
    features = tuple(f"feature_{k}" for k in range(header.width - len(NAMES)))
    user, item, time, label = NAMES
    roles = Roles(user, item, time, features, label)
    header = replace(header, names=NAMES + features)
    options = replace(options, bipartite=True)
    columns, ids, origin = read_rows(path, "jodie", header, roles, options)
    columns = without_zeros(columns)
    return arranged(path, columns, ids, replace(origin, features=features[: columns.edge.shape[1]]))
