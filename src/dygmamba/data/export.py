"""A dataset out into a file that others read, and what such a file cannot hold."""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.data.outgoing import LABEL, feature_names, to_arrow
from dygmamba.data.store import Dataset
from dygmamba.data.written import ENDINGS, Sink, write_table
from dygmamba.errors import ConfigError
from dygmamba.files.cells import FORMULAS
from dygmamba.files.writing import write_file

ARRAYS = ".npz"


@dataclass(frozen=True, slots=True)
class Exported:
    """Where a dataset went, what was lost on the way, and what `read` is to be told to have it back."""

    path: Path
    format: str
    lost: tuple[str, ...]
    options: dict[str, Any]


def check_ending(path: Path) -> str:
    """The format that a file's ending asks for, or a sentence."""
    kind = "npz" if path.suffix.lower() == ARRAYS else ENDINGS.get(path.suffix.lower())
    if kind is None:
        endings = ", ".join([*ENDINGS, ARRAYS])
        raise ConfigError(f"{path} does not say what to write; let its name end in one of {endings}")
    return kind


def export_dataset(dataset: Dataset, path: Path, raw: bool = False) -> Exported:
    """Write the events in the format of the file's ending, whole or not at all.

    In CSV an id that a spreadsheet would run gets a quote in front, unless `raw`.
    """
    kind = check_ending(path)
    if kind == "npz":
        write_file(path, _archive(_arrays(dataset)))
        return Exported(path, kind, (), {})
    write_table(path, to_arrow(dataset), raw)
    options: dict[str, Any] = {}
    if kind in ("csv", "jsonl"):  # Parquet and Arrow say it themselves
        options = {"features": feature_names(dataset), "bipartite": dataset.store.bipartite}
        options["label"] = None if dataset.store.label is None else LABEL
    return Exported(path, kind, _lost(dataset, kind, raw), {key: v for key, v in options.items() if v})


def _lost(dataset: Dataset, kind: str, raw: bool) -> tuple[str, ...]:
    """What a table of events does not hold of this dataset, in words."""
    store, said = dataset.store, []
    if store.features.node.shape[1]:
        said.append(f"the {store.features.node.shape[1]} features of each node are not in it")
    silent = np.ones(store.num_nodes, bool)
    silent[store.src.numpy()] = silent[store.dst.numpy()] = False
    if silent.any():
        said.append(f"{int(silent.sum()):,} nodes without an event are not in it")
    if kind == "csv" and not raw and dataset.ids.kind == "string":
        count = sum(name.startswith(FORMULAS) for name in dataset.ids.values.to_pylist())
        if count:
            said.append(
                f"{count:,} ids that a spreadsheet would run got a quote in front (`raw=True`: as they are)"
            )
    return tuple(said)


def _arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    """As the reader of npz files has them: nodes by number, and whose they are where that is not the number."""
    store, ids = dataset.store.unchanged(), dataset.ids
    arrays = {"src": store.src.numpy(), "dst": store.dst.numpy(), "t": store.time.numpy()}
    if store.label is not None:
        arrays["label"] = store.label.numpy()
    if store.features.edge.shape[1]:
        arrays["edge_feat"] = store.features.edge.numpy()
    if store.features.node.shape[1]:
        arrays["node_feat"] = store.features.node.numpy()
    arrays["ids"] = ids.values.to_numpy(zero_copy_only=False)
    if ids.kind == "string":
        arrays["ids"] = arrays["ids"].astype("U")
    if ids.is_source is not None:
        arrays["is_source"] = ids.is_source.to_numpy(zero_copy_only=False)
    return arrays


def _archive(arrays: dict[str, np.ndarray]) -> Iterator[bytes]:
    """What numpy.savez would write, a piece at a time."""
    sink = Sink()
    with zipfile.ZipFile(sink, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
                yield from sink.taken()
    yield from sink.taken()
