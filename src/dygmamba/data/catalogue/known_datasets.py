"""The public datasets that are known by name: where they are, what they hold, what to expect of them."""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dygmamba.core.errors import NotFoundError

if TYPE_CHECKING:  # listing the catalogue must not wait for torch
    from dygmamba.data.events.event_store import EventStore


@dataclass(frozen=True, slots=True)
class PublishedCounts:
    """What a stream holds; None where nobody publishes the figure."""

    nodes: int | None
    events: int | None
    edge_features: int | None
    unique_times: int | None


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One public dataset; `counts[0]` is the published table, further counts are also right.

    `members` must be in the archive (the events first), `extras` are taken where they are there; `readable`
    says whether `open_dataset` reads them as they are. `columns` are the places of source, destination and
    time in a csv that must be imported, empty where its layout is JODIE's. A checksum is "md5:..." or "sha256:...",
    None where none is published.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    home: str
    urls: tuple[str, ...]
    members: tuple[str, ...]
    counts: tuple[PublishedCounts, ...]
    readable: bool
    row_bytes: int
    extras: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()
    checksum: str | None = None
    licence: str | None = None
    note: str | None = None

    @property
    def archive(self) -> str:
        """The file name of the archive."""
        return urlsplit(self.urls[0]).path.rpartition("/")[2]

    @property
    def unpacked_limit(self) -> int:
        """The most bytes its files can honestly take; more is a broken or hostile archive."""
        expected = max((counts.nodes or 0) + (counts.events or 0) for counts in self.counts)
        return expected * self.row_bytes + 2**24

    @property
    def archive_limit(self) -> int:
        """The most bytes its archive can honestly have: what is taken from it, and as much again three times over."""
        return 4 * self.unpacked_limit


@cache
def load_catalogue() -> dict[str, CatalogueEntry]:
    """All known datasets by name, in the order of the paper and then of TGB."""
    text = resources.files("dygmamba.data").joinpath("catalogue.toml").read_text(encoding="utf-8")
    entries = {}
    for collection in tomllib.loads(text).values():
        sets = collection.pop("sets")
        entries |= {name: _parse_entry(name, collection | facts) for name, facts in sets.items()}
    return entries


def _parse_entry(name: str, facts: dict[str, Any]) -> CatalogueEntry:
    archive = facts.pop("archive", None)
    for key in ("urls", "members", "extras"):
        facts[key] = tuple(text.format(name=name, archive=archive) for text in facts.get(key, ()))
    counts = tuple(PublishedCounts(*(None if n < 0 else n for n in row)) for row in facts.pop("counts"))
    columns, tasks = tuple(facts.pop("columns", ())), tuple(facts.pop("tasks"))
    return CatalogueEntry(name=name, tasks=tasks, counts=counts, columns=columns, **facts)


def find_entry(name: str) -> CatalogueEntry:
    """The dataset of this name, whatever its case."""
    by_lower = {known.lower(): entry for known, entry in load_catalogue().items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    guess = " or ".join(by_lower[match].name for match in close)
    hint = f"did you mean {guess}?" if guess else "see `dygmamba data list`"
    raise NotFoundError(f"no known dataset is called {name!r}; {hint}")


def describe_difference(entry: CatalogueEntry, store: "EventStore") -> str | None:
    """One sentence on how a stream differs from what its entry expects, None where it does not.

    Feature columns that are all zero count as none, and both the declared nodes and those that occur are
    accepted: the published tables count them either way.
    """
    occurring = {*store.src.unique().tolist(), *store.dst.unique().tolist()}
    found = {
        "nodes": {store.num_nodes, len(occurring)},
        "events": {len(store)},
        "edge feature columns": {store.features.edge.shape[1] if store.features.edge.any() else 0},
        "distinct times": {int(store.time.unique().numel())},
    }
    misses = [_list_differences(counts, found) for counts in entry.counts]
    if not all(misses):
        return None
    told = ", ".join(min(misses, key=len))
    return f"{entry.name} differs from its published table: {told}; check that it is the file you meant"


def _list_differences(expected: PublishedCounts, found: dict[str, set[int]]) -> list[str]:
    wanted = (expected.nodes, expected.events, expected.edge_features, expected.unique_times)
    return [
        f"{max(got):,} {what} instead of {want:,}"
        for want, (what, got) in zip(wanted, found.items(), strict=True)
        if want is not None and want not in got
    ]
