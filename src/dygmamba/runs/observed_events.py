"""Save what a run has observed since its training, and open the run with it again.

The file is a dataset of all known events, so that nodes keep their numbers and scores their bits.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.events.event_store import EventStore
from dygmamba.data.storage.dataset import Dataset, load_dataset, save_dataset
from dygmamba.data.storage.locations import DATASET_SUFFIX, check_dataset_name
from dygmamba.runs.predictor import Predictor


def save_observed(predictor: Predictor, path: Path) -> Path:
    """Write all events that the run knows to a file NAME.safetensors; returns its path."""
    if path.suffix != DATASET_SUFFIX:
        raise ConfigError(
            f"the events of a run are saved as NAME{DATASET_SUFFIX}; got {path}", code="unknown-file-suffix"
        )
    return save_dataset(replace(predictor.dataset, name=check_dataset_name(path.stem)), path.parent)


def load_observed(predictor: Predictor, path: Path) -> Predictor:
    """Return a predictor that knows the events of a file that `save_observed` wrote; of this run, or FileError."""
    known, own = load_dataset(path), predictor.run.dataset
    if not _continues(known, own):
        raise FileError(
            f"{path} does not hold the events of {predictor.run.folder.path} and later ones; give a file that `save` "
            "of this run wrote",
            code="events-of-another-run",
        )
    return predictor.with_dataset(replace(known, name=own.name, origin=own.origin))


def _continues(known: Dataset, own: Dataset) -> bool:
    """Return whether a dataset has the nodes, columns and events of another one, as `extend_dataset` merges them."""
    count = len(own.ids)
    new, old = known.store.features, own.store.features
    return (
        len(known.store) >= len(own.store)
        and known.store.bipartite == own.store.bipartite
        and _as_text(known)[:count].equals(_as_text(own))
        and new.edge.shape[1] == old.edge.shape[1]
        and [category.name for category in new.categories] == [category.name for category in old.categories]
        and _holds_events(known.store, own.store)
    )


def _holds_events(known: EventStore, own: EventStore) -> bool:
    """Return whether the events of `own` are in `known`, before the others of the same time."""
    before = torch.arange(len(own)) - torch.searchsorted(own.time, own.time)
    rows = (torch.searchsorted(known.time, own.time) + before).clamp(max=len(known) - 1)
    columns = (
        [store.src, store.dst, store.time, store.features.edge, store.features.codes, store.label]
        for store in (known, own)
    )
    return all(
        (more is None) == (fewer is None)
        and (more is None or fewer is None or np.array_equal(more[rows], fewer, equal_nan=True))
        for more, fewer in zip(*columns, strict=True)
    )


def _as_text(dataset: Dataset) -> pa.Array:
    return dataset.ids.values.cast(pa.large_string())  # integer ids become text where text was added
