"""Fetch datasets of the catalogue, so that `open_dataset` finds them."""

import csv
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dygmamba.core.errors import ConfigError, DownloadError, DygError, FileError, WriteError
from dygmamba.core.files.locking import hold_lock
from dygmamba.core.files.writing import make_folder
from dygmamba.data.catalogue.archive import unpack_archive
from dygmamba.data.catalogue.download import (
    DownloadProgress,
    compute_checksum,
    open_download,
    strip_credentials,
)
from dygmamba.data.catalogue.known_datasets import CatalogueEntry, describe_difference
from dygmamba.data.readers import read_dataset
from dygmamba.data.storage.locations import data_folder, get_former_data_folder, has_dataset

MIRROR_VARIABLE = "DYGMAMBA_MIRROR"


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Folder of a fetched dataset and how it got there."""

    entry: CatalogueEntry
    folder: Path
    how: str  # "present", unpacked from an "archive" of the user, or by "download"
    warning: str | None = None  # how it differs from the published statistics


def fetch_dataset(
    entry: CatalogueEntry, folder: Path, *, progress: DownloadProgress | None = None
) -> FetchResult:
    """Fetch a dataset to `folder`/NAME unless it is there.

    The files get their final names only after the checksum was verified and the events were read. An archive that the
    user has put into `folder` is used without a network, and kept. Behind a firewall, set DYGMAMBA_MIRROR to the URL of
    a folder with the same archives; it replaces everything but the file name of an archive's URL.
    """
    place, archive = folder / entry.name, folder / entry.archive
    if is_fetched(entry, folder):
        return FetchResult(entry, place, "present")
    make_folder(folder)
    with hold_lock(folder / f".{entry.archive}.lock"):
        if not archive.exists():
            return FetchResult(entry, place, "download", _download_archive(entry, archive, progress))
        if (actual := compute_checksum(archive, entry.checksum)) != entry.checksum:
            # it may be the user's file, so it is not touched
            raise DownloadError(
                f"{archive} is not the published file ({actual} instead of {entry.checksum}); "
                "move it away and run the command again",
                code="checksum-mismatch",
            )
        return FetchResult(entry, place, "archive", _unpack_validated(entry, archive, place))


def is_fetched(entry: CatalogueEntry, folder: Path) -> bool:
    """Return whether the dataset is in the folder, as published or in another readable format."""
    is_unpacked = all((folder / entry.name / name).is_file() for name in entry.members)
    return is_unpacked or has_dataset([folder], entry.name)


def get_download_urls(entry: CatalogueEntry) -> tuple[str, ...]:
    """Return the URLs to try in order; only the user's mirror if one is set."""
    mirror = os.environ.get(MIRROR_VARIABLE, "").rstrip("/")
    if not mirror:
        return entry.urls
    if urlsplit(mirror).scheme not in ("http", "https"):
        raise ConfigError(
            f"{MIRROR_VARIABLE} is {strip_credentials(mirror)!r}; it must start with http:// or https://, or be unset",
            code="invalid-mirror",
        )
    return (f"{mirror}/{entry.archive}",)


def format_import_command(fetched: FetchResult) -> str | None:
    """Return the command that imports a fetched folder with its split and negatives.

    None if the dataset is usable already, or its file does not have the expected columns.
    """
    entry, events, folder = fetched.entry, fetched.folder / fetched.entry.members[0], fetched.folder.parent
    if entry.readable or not events.is_file() or has_dataset([folder], entry.name):
        return None
    if len(_read_header(events)) <= max(entry.columns, default=0):
        return None
    words = [str(fetched.folder)]
    if folder not in (data_folder(), get_former_data_folder()):  # to the latter nothing is written any more
        words += ["--data-dir", str(folder)]
    return f"dygmamba data import {shlex.join(words)}"


def _download_archive(entry: CatalogueEntry, archive: Path, progress: DownloadProgress | None) -> str | None:
    failure: DownloadError | None = None
    for url in get_download_urls(entry):
        try:
            with open_download(url, archive, checksum=entry.checksum, progress=progress) as part:
                return _unpack_validated(entry, part, archive.with_name(entry.name))
        except WriteError:
            raise
        except FileError as error:
            message = f"the downloaded file is not usable: {error}"
            failure = failure or DownloadError(message, code="download-unusable")
        except DownloadError as error:
            failure = failure or error
            if archive.with_name(f"{archive.name}.part").exists():
                break  # resuming from this URL later is better than starting over from the next one
    assert failure is not None
    raise failure


def _unpack_validated(entry: CatalogueEntry, archive: Path, place: Path) -> str | None:
    """Unpack an archive after reading its events; return how they differ from the published statistics."""
    warnings: list[str | None] = []

    def check(staging: Path) -> None:
        try:
            warnings.append(_validate_events(entry, staging / entry.members[0]))
        except (DygError, UnicodeDecodeError, csv.Error) as error:
            raise FileError(
                f"{archive} does not contain {entry.name}: {error}", code="archive-unreadable"
            ) from error

    unpack_archive(archive, place, entry.members, entry.extras, entry.unpacked_limit, check)
    return warnings[0]


def _validate_events(entry: CatalogueEntry, events: Path) -> str | None:
    if entry.readable:
        return describe_difference(entry, read_dataset(events).store)
    if len(header := _read_header(events)) <= max(entry.columns, default=0):
        raise FileError(
            f"{events.name} has only the columns {header[:9]}; fetch it again", code="columns-missing"
        )
    return None


def _read_header(events: Path) -> list[str]:
    with events.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])
