"""Graphs that somebody holds, as columns: PyG's TemporalData and NetworkX; none of the two is imported here.

What this package made of a dataset carries whose nodes they are, so that coming back changes nothing; any other graph
is read as a table of its edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from dygmamba.data.formats.told import KEY, Told, told_by
from dygmamba.data.ids import NodeIds
from dygmamba.errors import FileError

if TYPE_CHECKING:
    from dygmamba.data.store import Dataset

ENDS = ("src", "dst")
SIDE, OWN = "bipartite", "id"  # what NetworkX calls the side of a node; its own id, where two sides share one


@dataclass(frozen=True, slots=True)
class Nodes:
    """Whose node each number is, and its features; nodes without an event among them."""

    ids: NodeIds
    features: np.ndarray


def is_a(source: Any, package: str, name: str) -> bool:
    """Whether the object's class is, or descends from, that package's class of that name."""
    return any(
        kind.__name__ == name and kind.__module__.split(".")[0] == package for kind in type(source).__mro__
    )


def pyg_told(source: Any, names: Sequence[str]) -> Told:
    """TemporalData's own names: the messages `msg` as features, `y` as label.

    Its nodes are numbered; where every source comes before every destination there are two sides.
    """
    told = told_by(vars(source))
    if KEY in vars(source):
        return replace(told, features=tuple(n for n in ("msg",) if n in names), label="y")
    sides = bool(len(source.src)) and bool(source.src.max() < source.dst.min())
    return Told(("msg",) if "msg" in names else (), "y", sides)


def pyg_nodes(source: Any) -> Nodes | None:
    """Whose nodes they are; None of data that this package did not make."""
    ids = vars(source).get("ids")
    if not isinstance(ids, NodeIds):
        return None
    features = vars(source).get("x")
    return Nodes(ids, _no_features(ids) if features is None else features.detach().cpu().numpy())


def graph_columns(graph: Any) -> tuple[dict[str, Any], Told, Nodes | None]:
    """The edges as columns, one per attribute; None where an edge lacks one."""
    if KEY in graph.graph:
        return _own_columns(graph)
    edges = [(u, v, facts) for u, v, facts in graph.edges(data=True)]
    side = {node: facts.get(SIDE) for node, facts in graph.nodes(data=True)}
    sides = bool(edges) and all({side[u], side[v]} == {0, 1} for u, v, _ in edges)
    if sides and not graph.is_directed():  # an edge has no direction, but its ends have sides
        edges = [(u, v, facts) if side[u] == 0 else (v, u, facts) for u, v, facts in edges]
    sides = sides and all(side[u] == 0 for u, _, _ in edges)
    return _edge_columns(edges), Told(bipartite=sides), None


def _own_columns(graph: Any) -> tuple[dict[str, Any], Told, Nodes]:
    """A graph that this package made: edges in the order of their events, nodes by the order they stand in."""
    told = told_by(graph.graph)
    place = {node: number for number, node in enumerate(graph)}
    edges = [(key, place[u], place[v], facts) for u, v, key, facts in graph.edges(keys=True, data=True)]
    edges.sort(key=lambda edge: edge[0] if isinstance(edge[0], int) else len(edges))
    names = [facts.get(OWN, node) for node, facts in graph.nodes(data=True)]
    is_source = [facts.get(SIDE, 0) == 0 for _, facts in graph.nodes(data=True)] if told.bipartite else None
    features = [facts.get("x", ()) for _, facts in graph.nodes(data=True)]
    ids = _node_ids(names, is_source)
    table = np.array(features, np.float32).reshape(len(ids), -1) if len(ids) else _no_features(ids)
    return _edge_columns([edge[1:] for edge in edges]), told, Nodes(ids, table)


def _edge_columns(edges: list[tuple[Any, Any, dict[Any, Any]]]) -> dict[str, Any]:
    names = dict.fromkeys(str(name) for _, _, facts in edges for name in facts)
    ends = {"src": [edge[0] for edge in edges], "dst": [edge[1] for edge in edges]}
    return {name: [edge[2].get(name) for edge in edges] for name in names if name not in ENDS} | ends


def _node_ids(names: list[Any], is_source: list[bool] | None) -> NodeIds:
    whole = all(isinstance(name, int) and not isinstance(name, bool) for name in names)
    values = pa.array(names, pa.int64()) if whole else pa.array(map(str, names), pa.large_string())
    if is_source is None:
        return NodeIds(values)
    return NodeIds(values, sum(is_source), pa.array(is_source, pa.bool_()))


def _no_features(ids: NodeIds) -> np.ndarray:
    return np.zeros((len(ids), 0), np.float32)


def owned(dataset: "Dataset", nodes: Nodes) -> "Dataset":
    """A dataset whose ids are numbers of nodes, with the nodes in their place: whose they are, and their features."""
    import torch

    from dygmamba.data.events import FeatureTable
    from dygmamba.data.store import Dataset

    number = dataset.ids.values.to_numpy(zero_copy_only=False)
    if len(number) and not 0 <= number.min() <= number.max() < len(nodes.ids):
        raise FileError(
            f"the events are of nodes {number.min()} to {number.max()}, but {len(nodes.ids):,} have an id; "
            "delete its `ids`, or give it one for each node"
        )
    src, dst = (torch.from_numpy(number[column.numpy()]) for column in (dataset.store.src, dataset.store.dst))
    features = FeatureTable(
        torch.from_numpy(np.ascontiguousarray(nodes.features, np.float32)), dataset.store.features.edge
    )
    store = replace(
        dataset.store,
        src=src,
        dst=dst,
        features=features,
        num_nodes=len(nodes.ids),
        bipartite=nodes.ids.sources is not None,
    )
    return Dataset.of(dataset.name, store, nodes.ids, dataset.origin)
