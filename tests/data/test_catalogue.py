"""The catalogue against the published tables, and its look-ups."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

from dygmamba.core.errors import NotFoundError
from dygmamba.data.catalogue.known_datasets import (
    CatalogueEntry,
    PublishedCounts,
    describe_difference,
    find_entry,
    load_catalogue,
)
from dygmamba.data.events.event_store import EventStore, FeatureTable
from dygmamba.data.storage.library import open_dataset
from raising import raises

PAPER = """
wikipedia  9,227  157,474   172 152,757
reddit     10,984 672,447   172 669,065
mooc       7,144  411,749   4   345,600
lastfm     1,980  1,293,103 0   1,283,614
enron      184    125,235   0   22,632
SocialEvo  74     2,099,519 2   565,932
uci        1,899  59,835    0   58,911
CanParl    734    74,478    1   14
USLegis    225    60,396    1   12
UNtrade    255    507,497   1   32
UNvote     201    1,035,742 1   72
Contacts   692    2,426,279 1   8,064
"""
TGB = ["wiki", "review", "coin", "comment", "flight"], ["trade", "genre", "reddit", "token"]


def stream(nodes: int, events: int, width: int, times: int, value: float = 1.0) -> EventStore:
    """A stream with these counts, all of whose nodes occur."""
    row = torch.arange(events)
    time = (row * times // events).double()
    edge = torch.full((events, width), value)
    return EventStore.from_columns(
        row % nodes, row % nodes, time, features=FeatureTable(torch.zeros(nodes, 0), edge), num_nodes=nodes
    )


@pytest.fixture
def entry() -> CatalogueEntry:
    return replace(
        find_entry("uci"), name="tiny", counts=(PublishedCounts(4, 10, 2, 5), PublishedCounts(5, 10, None, 5))
    )


def test_the_counts_are_the_papers_table():
    """For all twelve sets: nodes, links, link features and unique steps as printed (appendix, statistics)."""
    for line in PAPER.strip().splitlines():
        name, *figures = line.split()
        expected = PublishedCounts(*(int(figure.replace(",", "")) for figure in figures))
        assert load_catalogue()[name].counts[0] == expected, name


def test_the_catalogue_is_the_paper_and_tgb():
    """Twelve sets of the paper, then TGB's five link and four node sets, each under its own name."""
    paper = [line.split()[0] for line in PAPER.strip().splitlines()]
    tgb = [f"tgb{letter}-{name}" for letter, names in zip("ln", TGB, strict=True) for name in names]
    assert list(load_catalogue()) == paper + tgb
    assert all(name == entry.name for name, entry in load_catalogue().items())


@pytest.mark.parametrize("name", list(load_catalogue()))
def test_every_entry_can_be_fetched(name):
    """An https archive, plain member names that are csv, npy or pkl, a well-formed checksum or none."""
    entry = load_catalogue()[name]
    assert all(urlsplit(url).scheme == "https" and url.endswith(f"/{entry.archive}") for url in entry.urls)
    assert entry.archive.endswith(".zip")
    assert entry.members[0].endswith(".csv")
    for member in (*entry.members, *entry.extras):
        assert Path(member).name == member
        assert Path(member).suffix in {".csv", ".npy", ".pkl"}
    if entry.checksum is not None:
        algorithm, digest = entry.checksum.split(":")
        assert len(bytes.fromhex(digest)) == {"md5": 16, "sha256": 32}[algorithm]
    assert set(entry.tasks) <= {"link", "node"}
    assert entry.readable or entry.columns or name == "tgbl-wiki"
    assert "{" not in repr(entry)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("wikiped", "wikipedia"),
        ("Social-Evo", "SocialEvo"),
        ("contact", "Contacts"),
        ("tgbl-wikii", "tgbl-wiki"),
    ],
)
def test_a_name_that_is_nearly_right_is_corrected(typed, meant):
    """A close name is suggested in its own spelling."""
    with raises("unknown-dataset", NotFoundError) as caught:
        find_entry(typed)
    assert re.search(rf"'{typed}'; did you mean .*{meant}", str(caught.value))


def test_a_name_that_is_like_none_points_to_the_list():
    """Without a close name the sentence says where the names are."""
    with raises("unknown-dataset", NotFoundError) as caught:
        find_entry("qqqq")
    assert "see `dygmamba data list`" in str(caught.value)


def test_a_stream_as_published_does_not_differ(entry):
    """Any one of the accepted counts will do; a figure that nobody publishes is not compared."""
    assert describe_difference(entry, stream(4, 10, 2, 5)) is None
    assert describe_difference(entry, stream(5, 10, 7, 5)) is None


def test_a_stream_that_differs_is_described(entry):
    """Each figure that differs is named with what was expected, against the nearest accepted counts."""
    assert describe_difference(entry, stream(4, 11, 2, 5)) == (
        "tiny differs from its published table: 11 events instead of 10; check that it is the right file"
    )


def test_features_that_are_all_zero_count_as_none():
    """Files pad with columns of zeros (enron 32, uci 100); the paper calls them N/A."""
    entry = replace(find_entry("uci"), counts=(PublishedCounts(4, 10, 0, 5),))
    assert describe_difference(entry, stream(4, 10, 100, 5, value=0.0)) is None
    assert "100 edge feature columns instead of 0" in str(describe_difference(entry, stream(4, 10, 100, 5)))


@pytest.mark.parametrize("name", ["enron", "uci", "CanParl", "USLegis"])
def test_the_real_streams_are_as_published(name, real_data):
    """Where the real files are at hand, they match the paper's table."""
    assert describe_difference(find_entry(name), open_dataset(name, real_data).store) is None
