"""Number the nodes of two columns of ids as the readers do."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dygmamba.data.events.ids import NodeIds, NodeNumbering


def number_nodes(
    src: Sequence[pa.DictionaryArray], dst: Sequence[pa.DictionaryArray], bipartite: bool
) -> tuple[np.ndarray, np.ndarray, NodeIds]:
    """Number two columns that arrive in one part."""
    numbering = NodeNumbering(bipartite)
    codes = numbering.add(src, dst)
    node_of, ids = numbering.finish()
    return node_of["src"][codes[0]], node_of["dst"][codes[1]], ids
