"""Event streams in memory: the events, node ids, splits, statistics, and checks for suspicious data.

`EventStore`, `EventBatch` and `FeatureTable` can be imported from here. They are loaded on first use, because they need
torch and some modules of this package must not wait for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dygmamba.data.events.event_store import EventBatch as EventBatch
    from dygmamba.data.events.event_store import EventStore as EventStore
    from dygmamba.data.events.event_store import FeatureTable as FeatureTable


def __getattr__(name: str) -> Any:
    if name not in ("EventBatch", "EventStore", "FeatureTable"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("dygmamba.data.events.event_store"), name)
