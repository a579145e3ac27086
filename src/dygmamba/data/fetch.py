"""A dataset of the catalogue onto this machine, so that `open_dataset` finds it."""

import csv
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dygmamba.data.archive import intact, unpack
from dygmamba.data.catalogue import Entry
from dygmamba.data.download import check_sum, fetch_file
from dygmamba.data.library import data_folder, dataset_files
from dygmamba.data.part import Progress
from dygmamba.errors import ConfigError, DownloadError, FileError

MIRROR = "DYGMAMBA_MIRROR"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a dataset is now, and how it came: "present", from an "archive" found there, or by "download"."""

    entry: Entry
    folder: Path
    how: str


def fetch_dataset(entry: Entry, folder: Path, *, progress: Progress | None = None) -> Fetched:
    """Have the dataset in `folder`/NAME; nothing is done where it is there and whole.

    An archive that a user has put into `folder` is used without a network, and kept. Behind a firewall, set
    DYGMAMBA_MIRROR to the address of a folder of the same archives: it replaces all of an archive's address
    but its file name.
    """
    place = folder / entry.name
    if on_disk(entry, folder) and intact(place) is not False:
        return Fetched(entry, place, "present")
    archive = folder / entry.archive
    given = archive.exists()
    if given:
        check_sum(archive, entry.checksum)
    else:
        _download(entry, archive, progress)
    try:
        unpack(archive, place, entry.members, entry.extras, entry.unpacked_limit)
    except FileError as error:
        if given:
            raise
        archive.unlink()
        raise DownloadError(f"what arrived is of no use: {error}") from error
    if not given:
        archive.unlink()
    return Fetched(entry, place, "archive" if given else "download")


def on_disk(entry: Entry, folder: Path) -> bool:
    """Whether the dataset is in the folder, as it was published or in another form that is read."""
    published = all((folder / entry.name / name).is_file() for name in entry.members)
    return published or _opens(entry, folder)


def sources(entry: Entry) -> tuple[str, ...]:
    """The addresses to try, in order; the user's mirror alone where one is set."""
    mirror = os.environ.get(MIRROR, "").rstrip("/")
    if not mirror:
        return entry.urls
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise ConfigError(f"{MIRROR} is {mirror!r}; it must start with http:// or https://, or be unset")
    return (f"{mirror}/{entry.archive}",)


def import_line(fetched: Fetched) -> str | None:
    """The command that makes a dataset of a fetched csv, with the column names of its own first line.

    None where there is nothing left to do, or the file does not look as TGB's loaders expect.
    """
    entry, events = fetched.entry, fetched.folder / fetched.entry.members[0]
    if entry.readable or not events.is_file() or _opens(entry, fetched.folder.parent):
        return None
    with events.open(newline="", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
    if entry.columns and len(header) <= max(entry.columns):
        return None
    words = [str(events), "--out", entry.name]
    for option, place in zip(("--src", "--dst", "--time"), entry.columns, strict=False):
        words += [option, header[place]]
    words += ["--bipartite"] if entry.bipartite else []
    if fetched.folder.parent != data_folder():
        words += ["--data-dir", str(fetched.folder.parent)]
    return f"dygmamba data import {shlex.join(words)}"


def _opens(entry: Entry, folder: Path) -> bool:
    return any(name == entry.name for name, _ in dataset_files(folder))


def _download(entry: Entry, archive: Path, progress: Progress | None) -> None:
    failure = None
    for url in sources(entry):
        try:
            fetch_file(url, archive, checksum=entry.checksum, progress=progress)
            return
        except DownloadError as error:
            failure = failure or error
            if archive.with_name(f"{archive.name}.part").exists():
                break  # bytes that this address can go on from are worth more than another address
    assert failure is not None
    raise failure
