"""What an archive was the first time it could be used: NAME.sha256 beside it, checked ever after.

Nobody publishes the digests of some archives. The first one that opens is trusted, and no other under its name. A file
per archive, as `sha256sum -c` reads it: fetches at the same time need no lock.

A dataset of the catalogue onto this machine, so that `open_dataset` finds it.
"""

import csv
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dygmamba.core.errors import ConfigError, DownloadError, DygError, FileError
from dygmamba.core.files.writing import write_text
from dygmamba.data.catalogue.archive import is_intact, unpack_archive
from dygmamba.data.catalogue.download import compute_checksum, open_download, verify_checksum
from dygmamba.data.catalogue.http import strip_credentials
from dygmamba.data.catalogue.known_datasets import CatalogueEntry, describe_difference
from dygmamba.data.catalogue.partial_download import DownloadProgress
from dygmamba.data.readers import read_dataset
from dygmamba.data.storage.library import data_folder
from dygmamba.data.storage.locations import has_dataset


def get_trusted_hash_path(archive: Path) -> Path:
    """Where the digest of this archive is kept."""
    return archive.with_name(f"{archive.name}.sha256")


def read_trusted_hash(archive: Path) -> str | None:
    """The digest of the first archive of this name, "sha256:...", None where there was none."""
    path = get_trusted_hash_path(archive)
    try:
        text = path.read_bytes().decode("ascii", "replace")
    except (FileNotFoundError, NotADirectoryError):  # the latter is said when something is written
        return None
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); allow it, or delete it") from error
    found = re.fullmatch(r"([0-9a-f]{64})  [^\n]*\n?", text)
    if found is None:
        raise FileError(f"{path} holds no digest; delete it to trust the next {archive.name} that opens")
    return f"sha256:{found[1]}"


def pin_hash(archive: Path, digest: str) -> None:
    """From now on the archive of this name is this one."""
    write_text(get_trusted_hash_path(archive), f"{digest.removeprefix('sha256:')}  {archive.name}\n")


MIRROR_VARIABLE = "DYGMAMBA_MIRROR"


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Where a dataset is now, and how it came: "present", from an "archive" found there, or by "download".

    `warning` says how it differs from what is published, where it was opened and does.
    """

    entry: CatalogueEntry
    folder: Path
    how: str
    warning: str | None = None


def fetch_dataset(
    entry: CatalogueEntry, folder: Path, *, progress: DownloadProgress | None = None
) -> FetchResult:
    """Have the dataset in `folder`/NAME; nothing is done where it is there and whole.

    It gets its name once it was opened: what arrives is a part until its checksum is right, and its files are out of
    sight until they are read. Where no checksum is published, the first archive that opens is remembered (`ledger`).
    An archive that a user has put into `folder` is used without a network, and kept. Behind a firewall, set
    DYGMAMBA_MIRROR to the address of a folder of the same archives: it replaces all of an archive's address
    but its file name.
    """
    place = folder / entry.name
    if is_fetched(entry, folder) and is_intact(place) is not False:
        return FetchResult(entry, place, "present")
    archive, how = folder / entry.archive, "archive"
    known = ExpectedArchive.of(entry, archive)
    if archive.exists():
        verify_checksum(archive, known.checksum, known.otherwise)
        warning = _unpack_validated(entry, archive, place, known)
    else:
        how, warning = "download", _download_archive(entry, archive, known, progress)
    return FetchResult(entry, place, how, warning)


@dataclass(frozen=True, slots=True)
class ExpectedArchive:
    """Which archive is the right one: the published checksum, or that of the first one that was of use here."""

    archive: Path
    checksum: str | None
    published: bool

    @staticmethod
    def of(entry: CatalogueEntry, archive: Path) -> "ExpectedArchive":
        """What the catalogue says, else what the ledger does."""
        return ExpectedArchive(
            archive, entry.checksum or read_trusted_hash(archive), entry.checksum is not None
        )

    @property
    def otherwise(self) -> str:
        """What else can be done about another archive than the first one."""
        if self.published or self.checksum is None:
            return ""
        return f", or delete {get_trusted_hash_path(self.archive)} if the publisher has changed it"

    def remember(self, path: Path) -> None:
        """The archive in this file was of use."""
        if self.checksum is None and (found := compute_checksum(path, "sha256:")) is not None:
            pin_hash(self.archive, found)


def is_fetched(entry: CatalogueEntry, folder: Path) -> bool:
    """Whether the dataset is in the folder, as it was published or in another form that is read."""
    published = all((folder / entry.name / name).is_file() for name in entry.members)
    return published or has_dataset([folder], entry.name)


def get_download_urls(entry: CatalogueEntry) -> tuple[str, ...]:
    """The addresses to try, in order; the user's mirror alone where one is set."""
    mirror = os.environ.get(MIRROR_VARIABLE, "").rstrip("/")
    if not mirror:
        return entry.urls
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise ConfigError(
            f"{MIRROR_VARIABLE} is {strip_credentials(mirror)!r}; it must start with http:// or https://, or be unset"
        )
    return (f"{mirror}/{entry.archive}",)


def format_import_command(fetched: FetchResult) -> str | None:
    """The command that makes a dataset of a fetched folder, its split and negatives beside it.

    None where there is nothing left to do, or the file does not look as TGB's loaders expect.
    """
    entry, events = fetched.entry, fetched.folder / fetched.entry.members[0]
    if entry.readable or not events.is_file() or has_dataset([fetched.folder.parent], entry.name):
        return None
    if len(_read_header(events)) <= max(entry.columns, default=0):
        return None
    words = [str(fetched.folder)]
    if fetched.folder.parent != data_folder():
        words += ["--data-dir", str(fetched.folder.parent)]
    return f"dygmamba data import {shlex.join(words)}"


def _download_archive(
    entry: CatalogueEntry, archive: Path, known: ExpectedArchive, progress: DownloadProgress | None
) -> str | None:
    failure, about = None, {"checksum": known.checksum, "otherwise": known.otherwise, "progress": progress}
    for url in get_download_urls(entry):
        try:
            with open_download(url, archive, most_bytes=entry.archive_limit, **about) as part:
                try:
                    warning = _unpack_validated(entry, part.path, archive.with_name(entry.name), known)
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


def _unpack_validated(
    entry: CatalogueEntry, archive: Path, place: Path, known: ExpectedArchive
) -> str | None:
    """The files of an archive in their place, once they were read; how they differ from what is published."""
    said: list[str | None] = []

    def check(staging: Path) -> None:
        try:
            said.append(_validate_events(entry, staging / entry.members[0]))
        except (DygError, UnicodeDecodeError, csv.Error) as error:
            raise FileError(f"{archive} does not hold {entry.name}: {error}") from error
        known.remember(archive)

    unpack_archive(archive, place, entry.members, entry.extras, entry.unpacked_limit, check)
    return said[0]


def _validate_events(entry: CatalogueEntry, events: Path) -> str | None:
    if entry.readable:
        return describe_difference(entry, read_dataset(events).store)
    if len(header := _read_header(events)) <= max(entry.columns, default=0):
        raise FileError(f"{events.name} has the columns {header[:9]}; more are needed")
    return None


def _read_header(events: Path) -> list[str]:
    with events.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])
