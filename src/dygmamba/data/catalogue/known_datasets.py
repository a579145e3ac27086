"""The catalogue of public datasets: names, URLs, files, and the statistics they should have."""

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dygmamba.core.errors import NotFoundError

ALIASES = {"contacts": "contact", "canadianparliament": "canparl", "socialevolution": "socialevo"}
# The thirteen datasets of DyGLib, on which this field publishes its results, as `normalize_name` returns them.
BENCHMARKS = (
    *("wikipedia", "reddit", "mooc", "lastfm", "enron", "socialevo", "uci", "flights", "canparl", "uslegis"),
    *("untrade", "unvote", "contact"),
)

if TYPE_CHECKING:  # listing the catalogue must not wait for torch
    from dygmamba.data.events.event_store import EventStore


@dataclass(frozen=True, slots=True)
class PublishedCounts:
    """Published statistics of a dataset; None if a figure is not published."""

    nodes: int | None
    events: int | None
    edge_features: int | None
    unique_times: int | None


# Benchmarks that the catalogue does not have, from the table of datasets of Yu et al. (DyGLib), NeurIPS 2023
OTHER_COUNTS = {"flights": PublishedCounts(nodes=13_169, events=1_927_145, edge_features=1, unique_times=122)}


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A public dataset.

    `counts[0]` is the published table; further counts are also accepted. `members` are the files that must be in the
    archive, the events first; `extras` are unpacked if they are there. `readable` says whether `open_dataset` reads
    them as they are. `columns` are the positions of source, destination and time in a CSV that must be imported; empty
    for the layout of JODIE. `checksum` is "md5:..." or "sha256:..." if one is published.
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
        """File name of the archive."""
        return urlsplit(self.urls[0]).path.rpartition("/")[2]

    @property
    def unpacked_limit(self) -> int:
        """Most bytes that its files can have; more means a broken or hostile archive."""
        expected = max((counts.nodes or 0) + (counts.events or 0) for counts in self.counts)
        return expected * self.row_bytes + 2**24


@cache
def load_catalogue() -> dict[str, CatalogueEntry]:
    """Return all known datasets by name, in the order of the paper and then of TGB."""
    text = resources.files("dygmamba.data.catalogue").joinpath("catalogue.toml").read_text(encoding="utf-8")
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
    """Return the dataset of this name, ignoring case; raise NotFoundError for an unknown one."""
    by_lower = {known.lower(): entry for known, entry in load_catalogue().items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    suggestion = " or ".join(by_lower[match].name for match in close)
    hint = f"did you mean {suggestion}?" if suggestion else "see `dygmamba data list`"
    raise NotFoundError(f"there is no public dataset {name!r}; {hint}", code="unknown-dataset")


def normalize_name(name: str) -> str:
    """Return the name of a dataset or model without case, punctuation and known aliases."""
    plain = "".join(letter for letter in name.casefold() if letter.isalnum())
    return ALIASES.get(plain, plain)


def is_benchmark(name: str, store: "EventStore") -> bool:
    """Return whether a dataset is one of DyGLib's: by its name in any spelling (`USLegis`, `us-legis`) and its size.

    Its numbers of events and nodes must be published ones, because a user's own data may well be called "contacts".
    """
    plain = normalize_name(name)
    expected = [counts for counts in _list_benchmark_counts(plain) if counts.events == len(store)]
    if not expected:  # before the nodes are counted, which reads the stream
        return False
    num_nodes = _count_nodes(store)
    return any(counts.nodes in num_nodes for counts in expected)


def _list_benchmark_counts(plain: str) -> tuple[PublishedCounts, ...]:
    if plain not in BENCHMARKS:
        return ()
    catalogue = {normalize_name(name): entry.counts for name, entry in load_catalogue().items()}
    return catalogue[plain] if plain in catalogue else (OTHER_COUNTS[plain],)


def _count_nodes(store: "EventStore") -> set[int]:
    """Return the numbers of declared nodes and of nodes with events, because published tables count either."""
    return {store.num_nodes, len({*store.src.unique().tolist(), *store.dst.unique().tolist()})}


def describe_difference(entry: CatalogueEntry, store: "EventStore") -> str | None:
    """Return a message about how a stream differs from the published statistics; None if it does not.

    Feature columns that are all zero count as none.
    """
    actual = {
        "nodes": _count_nodes(store),
        "events": {len(store)},
        "edge feature columns": {store.features.edge.shape[1] if store.features.edge.any() else 0},
        "distinct times": {int(store.time.unique().numel())},
    }
    differences = [_list_differences(counts, actual) for counts in entry.counts]
    if not all(differences):  # one of the accepted counts fits
        return None
    closest = ", ".join(min(differences, key=len))
    return f"{entry.name} differs from its published table: {closest}; check that it is the right file"


def _list_differences(expected: PublishedCounts, actual: dict[str, set[int]]) -> list[str]:
    figures = (expected.nodes, expected.events, expected.edge_features, expected.unique_times)
    return [
        f"{max(counts):,} {what} instead of {figure:,}"
        for figure, (what, counts) in zip(figures, actual.items(), strict=True)
        if figure is not None and figure not in counts
    ]
