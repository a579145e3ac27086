"""What a table that this package made says of itself, so that reading it again needs no options.

It travels beside the columns: in an Arrow schema (and so in Parquet and Arrow files), in the `attrs` of a data frame.
What the reader is told goes before it; a note that does not fit its table is as good as none.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dygmamba.data.formats.options import TIME_UNITS, ReadOptions

KEY = "dygmamba"


@dataclass(frozen=True, slots=True)
class Told:
    """Which columns are features and which the label, whether there are two sides, what numbers of time count."""

    features: tuple[str, ...] = ()
    label: str | None = None
    bipartite: bool = False
    time_unit: str = "auto"

    def note(self) -> str:
        """As it travels."""
        about = {"features": list(self.features), "label": self.label, "bipartite": self.bipartite}
        return json.dumps(about | {"time_unit": self.time_unit})

    def fill(self, options: ReadOptions, names: Sequence[str], bipartite: bool | None = None) -> ReadOptions:
        """The options, what was left open in them as the table says; `bipartite` is what the reader was told of it."""
        features = tuple(name for name in self.features if name in names)
        label = self.label if self.label in names else None
        return replace(
            options,
            features=options.features or features,
            label=options.label or label,
            bipartite=options.bipartite or (self.bipartite and bipartite is None),
            time_unit=self.time_unit if options.time_unit == "auto" else options.time_unit,
        )


def told_by(metadata: Mapping[Any, Any] | None) -> Told:
    """What a schema's metadata, or a frame's attrs, say; nothing where they say nothing that can be understood."""
    held = metadata or {}
    note = held.get(KEY.encode(), held.get(KEY))
    try:
        about = json.loads(note) if isinstance(note, str | bytes) else {}
        unit = about.get("time_unit", "auto")
        return Told(
            tuple(map(str, about.get("features", ()))),
            None if about.get("label") is None else str(about["label"]),
            about.get("bipartite") is True,
            unit if unit in TIME_UNITS else "auto",
        )
    except (ValueError, TypeError, AttributeError, RecursionError):
        return Told()
