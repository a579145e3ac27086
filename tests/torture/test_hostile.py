"""Hostile archives, dataset files and servers: data or an error, nothing out of place, nothing endless."""

import random
import resource
import time

import pytest

from downloads import fetch_file
from dygmamba.core.errors import DownloadError, DygError, FileError
from dygmamba.data.catalogue.archive import unpack_archive
from dygmamba.data.events.statistics import compute_statistics
from dygmamba.data.storage.dataset import load_dataset
from hostile_cases import (
    ABOUT,
    ABOUT_LIES,
    ARCHIVES,
    COLUMN_LIES,
    absurd_store,
    bomb,
    columns,
    overlapping,
    store_of,
)
from raising import raises
from raw_server import ANSWERS, answering
from torture_cases import seeds, tally

MEMBERS = ("ml_uci.csv", "ml_uci.npy", "ml_uci_node.npy")
LIMIT = 10**7  # bytes out of an archive


def refused(work, *words, **named) -> bool:
    """Whether it was one sentence; any other error is none."""
    said = ""
    try:
        work(*words, **named)
    except DygError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1
    return bool(said)


def test_a_hostile_archive_is_files_in_their_folder_or_one_sentence(tmp_path):
    """For all archives: the asked files under their own names, or nothing at all beside the archive."""
    archive, out = tmp_path / "a.zip", tmp_path / "out"
    out.mkdir()
    for seed in seeds("archives", 30):
        rng = random.Random(seed)
        archive.write_bytes(rng.choice(ARCHIVES)(rng))
        lost = refused(unpack_archive, archive, out / str(seed), MEMBERS, (), LIMIT)
        left = {path.name for path in (out / str(seed)).iterdir()} if (out / str(seed)).exists() else set()
        assert left == (set() if lost else {*MEMBERS}), f"seed {seed}"
        assert {path.name for path in tmp_path.iterdir()} == {"a.zip", "out"}
        assert not any(path.is_symlink() for path in out.rglob("*"))
        tally("archives", "refused" if lost else "done")


def test_an_archive_that_would_unpack_to_far_more_is_refused_by_its_own_word(tmp_path):
    """A bomb is not lit: what it says it holds is compared with the limit first."""
    (tmp_path / "a.zip").write_bytes(bomb(random.Random(0)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with raises("archive-too-large", FileError):
        unpack_archive(tmp_path / "a.zip", tmp_path / "out", MEMBERS, (), LIMIT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("lie", [*COLUMN_LIES, *ABOUT_LIES])
def test_a_store_with_right_digests_and_an_absurd_content_is_one_sentence(lie, tmp_path):
    """For all lies that an attacker can seal: refused, and the same store without the lie is taken."""
    path = tmp_path / "x.safetensors"
    for seed in range(12 if lie in ("another type", "a column less") else 1):
        own, about = columns(), dict(ABOUT)
        if lie in COLUMN_LIES:
            COLUMN_LIES[lie](own, random.Random(seed))
        else:
            about = ABOUT_LIES[lie](about)
        path.write_bytes(store_of(own, about))
        with raises("file-damaged", FileError):
            load_dataset(path)
    path.write_bytes(store_of(columns(), ABOUT))
    assert len(load_dataset(path)) == 12


def test_columns_that_overlap_are_one_sentence(tmp_path):
    """Two columns in the same bytes."""
    (tmp_path / "x.safetensors").write_bytes(overlapping())
    with raises("file-damaged", FileError):
        load_dataset(tmp_path / "x.safetensors")


def test_mutants_of_sealed_stores_are_data_or_one_sentence(tmp_path):
    """For all lies, sealed and then damaged."""
    path = tmp_path / "x.safetensors"
    for seed in seeds("sealed stores", 20):
        name, content = absurd_store(random.Random(seed))
        path.write_bytes(content)
        lost = refused(lambda: compute_statistics(load_dataset(path).store))
        assert lost, f"{name}, seed {seed}"


def test_a_broken_server_is_a_file_or_one_sentence(tmp_path):
    """For all answers: the file, or a DygError; no other exception."""
    for seed in seeds("servers", 14):
        rng, target = random.Random(seed), tmp_path / f"{seed}.zip"
        draw, start = ANSWERS[seed % len(ANSWERS)], time.monotonic()
        with answering(draw, rng) as url:
            lost = refused(fetch_file, url, target, timeout=0.3, retries=1)
        assert time.monotonic() - start < 30, f"seed {seed}, {draw.__name__}"
        assert lost or target.exists()
        for path in tmp_path.iterdir():
            path.unlink()
        tally("servers", "refused" if lost else "done")


def test_a_redirect_to_a_file_of_this_machine_is_refused(tmp_path):
    """A server cannot make the client read what is local."""

    def to_a_file(_):
        yield b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"

    with answering(to_a_file, random.Random(0)) as url, raises("http-error", DownloadError):
        fetch_file(url, tmp_path / "x", timeout=0.3, retries=1)
    assert not (tmp_path / "x").exists()
