"""A dataset of the catalogue onto this machine, so that `open_dataset` finds it."""

import csv
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dygmamba.data.address import public
from dygmamba.data.archive import intact, unpack
from dygmamba.data.catalogue import Entry, difference
from dygmamba.data.download import arrived, check_sum, digest
from dygmamba.data.formats import read_dataset
from dygmamba.data.ledger import ledger_of, record, recorded
from dygmamba.data.library import data_folder
from dygmamba.data.part import Progress
from dygmamba.data.places import has_dataset
from dygmamba.errors import ConfigError, DownloadError, DygError, FileError

MIRROR = "DYGMAMBA_MIRROR"


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where a dataset is now, and how it came: "present", from an "archive" found there, or by "download".

    `warning` says how it differs from what is published, where it was opened and does.
    """

    entry: Entry
    folder: Path
    how: str
    warning: str | None = None


def fetch_dataset(entry: Entry, folder: Path, *, progress: Progress | None = None) -> Fetched:
    """Have the dataset in `folder`/NAME; nothing is done where it is there and whole.

    It gets its name once it was opened: what arrives is a part until its checksum is right, and its files are out of
    sight until they are read. Where no checksum is published, the first archive that opens is remembered (`ledger`).
    An archive that a user has put into `folder` is used without a network, and kept. Behind a firewall, set
    DYGMAMBA_MIRROR to the address of a folder of the same archives: it replaces all of an archive's address
    but its file name.
    """
    place = folder / entry.name
    if on_disk(entry, folder) and intact(place) is not False:
        return Fetched(entry, place, "present")
    archive, how = folder / entry.archive, "archive"
    known = Known.of(entry, archive)
    if archive.exists():
        check_sum(archive, known.checksum, known.otherwise)
        warning = _unpack(entry, archive, place, known)
    else:
        how, warning = "download", _download(entry, archive, known, progress)
    return Fetched(entry, place, how, warning)


@dataclass(frozen=True, slots=True)
class Known:
    """Which archive is the right one: the published checksum, or that of the first one that was of use here."""

    archive: Path
    checksum: str | None
    published: bool

    @staticmethod
    def of(entry: Entry, archive: Path) -> "Known":
        """What the catalogue says, else what the ledger does."""
        return Known(archive, entry.checksum or recorded(archive), entry.checksum is not None)

    @property
    def otherwise(self) -> str:
        """What else can be done about another archive than the first one."""
        if self.published or self.checksum is None:
            return ""
        return f", or delete {ledger_of(self.archive)} if the publisher has changed it"

    def remember(self, path: Path) -> None:
        """The archive in this file was of use."""
        if self.checksum is None and (found := digest(path, "sha256:")) is not None:
            record(self.archive, found)


def on_disk(entry: Entry, folder: Path) -> bool:
    """Whether the dataset is in the folder, as it was published or in another form that is read."""
    published = all((folder / entry.name / name).is_file() for name in entry.members)
    return published or has_dataset([folder], entry.name)


def sources(entry: Entry) -> tuple[str, ...]:
    """The addresses to try, in order; the user's mirror alone where one is set."""
    mirror = os.environ.get(MIRROR, "").rstrip("/")
    if not mirror:
        return entry.urls
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise ConfigError(
            f"{MIRROR} is {public(mirror)!r}; it must start with http:// or https://, or be unset"
        )
    return (f"{mirror}/{entry.archive}",)


def import_line(fetched: Fetched) -> str | None:
    """The command that makes a dataset of a fetched folder, its split and negatives beside it.

    None where there is nothing left to do, or the file does not look as TGB's loaders expect.
    """
    entry, events = fetched.entry, fetched.folder / fetched.entry.members[0]
    if entry.readable or not events.is_file() or has_dataset([fetched.folder.parent], entry.name):
        return None
    if len(_header(events)) <= max(entry.columns, default=0):
        return None
    words = [str(fetched.folder)]
    if fetched.folder.parent != data_folder():
        words += ["--data-dir", str(fetched.folder.parent)]
    return f"dygmamba data import {shlex.join(words)}"


def _download(entry: Entry, archive: Path, known: Known, progress: Progress | None) -> str | None:
    failure, about = None, {"checksum": known.checksum, "otherwise": known.otherwise, "progress": progress}
    for url in sources(entry):
        try:
            with arrived(url, archive, most_bytes=entry.archive_limit, **about) as part:
                try:
                    warning = _unpack(entry, part.path, archive.with_name(entry.name), known)
                except FileError as error:
                    part.discard()
                    raise DownloadError(f"what arrived is of no use: {error}") from error
                part.discard()
                return warning
        except DownloadError as error:
            failure = failure or error
            if archive.with_name(f"{archive.name}.part").exists():
                break  # bytes that this address can go on from are worth more than another address
    assert failure is not None
    raise failure


def _unpack(entry: Entry, archive: Path, place: Path, known: Known) -> str | None:
    """The files of an archive in their place, once they were read; how they differ from what is published."""
    said: list[str | None] = []

    def check(staging: Path) -> None:
        try:
            said.append(_read(entry, staging / entry.members[0]))
        except (DygError, UnicodeDecodeError, csv.Error) as error:
            raise FileError(f"{archive} does not hold {entry.name}: {error}") from error
        known.remember(archive)

    unpack(archive, place, entry.members, entry.extras, entry.unpacked_limit, check)
    return said[0]


def _read(entry: Entry, events: Path) -> str | None:
    if entry.readable:
        return difference(entry, read_dataset(events).store)
    if len(header := _header(events)) <= max(entry.columns, default=0):
        raise FileError(f"{events.name} has the columns {header[:9]}; more are needed")
    return None


def _header(events: Path) -> list[str]:
    with events.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])
