"""Unpack chosen files of a zip archive: verified, all of them or none."""

import lzma
import re
import shutil
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from dygmamba.core.errors import FileError, NotFoundError, first_line
from dygmamba.core.files.writing import create_temporary_folder, publish_path, sync_file, translate_os_errors
from dygmamba.data.catalogue.download import check_disk_space

CHUNK_BYTES = 2**20
DEFLATE64 = 9  # compression method that Python cannot read; the archive of reddit uses it
# What the standard library raises for damaged archives and absurd sizes or names.
ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, IndexError),
    *(struct.error, OverflowError, OSError, subprocess.CalledProcessError),
)
# Command-line programs that read Deflate64, with the options to write one member to stdout.
UNPACKERS = {"unzip": ("-p",), "7z": ("x", "-so"), "7zz": ("x", "-so"), "7za": ("x", "-so")}


def unpack_archive(
    archive: Path,
    folder: Path,
    members: Sequence[str],
    extras: Sequence[str],
    limit: int,
    check: Callable[[Path], None] = lambda staging: None,
) -> None:
    """Unpack files of an archive into a folder.

    Members are matched by file name alone and stored under the requested names, so no path in the archive can lead
    outside the folder. A new folder appears complete. Into an existing folder the files are moved one by one, the first
    member last.

    `limit` bounds the bytes of all files together, and `check` is called with the temporary folder before they are
    moved.

    Raises:
        FileError: The archive is damaged, too large, or lacks a member.
        DownloadError: They do not fit on the disk.
    """
    try:
        with create_temporary_folder(folder.parent) as staging:
            with zipfile.ZipFile(archive) as bundle:
                chosen = _select_members(bundle, archive, members, extras)
                _check_size(archive, chosen, limit, staging)
                for name, info in chosen.items():
                    _extract_member(bundle, info, staging / name)
            check(staging)
            if not folder.exists():
                publish_path(staging, folder)
                return
            for name in reversed(chosen):
                publish_path(staging / name, folder / name)
    except ZIP_ERRORS as error:
        raise FileError(
            f"{archive} is not a complete zip archive ({first_line(error)}); fetch it again",
            code="archive-damaged",
        ) from error


def _select_members(
    bundle: zipfile.ZipFile, archive: Path, members: Sequence[str], extras: Sequence[str]
) -> dict[str, zipfile.ZipInfo]:
    by_name: dict[str, zipfile.ZipInfo] = {}
    # Deepest first, so that of two files with the same name the one closest to the top wins.
    for info in sorted(bundle.infolist(), key=lambda info: -info.filename.count("/")):
        if not info.filename.endswith(("/", "\\")) and "__MACOSX" not in info.filename:
            by_name[PurePosixPath(info.filename).name] = info
    missing = [name for name in members if name not in by_name]
    if missing:
        raise FileError(
            f"{archive} does not contain {' and '.join(missing)}; it is not the published archive",
            code="archive-members-missing",
        )
    return {name: by_name[name] for name in (*members, *extras) if name in by_name}


def _check_size(archive: Path, chosen: dict[str, zipfile.ZipInfo], limit: int, staging: Path) -> None:
    size = sum(info.file_size for info in chosen.values())
    if size > limit:
        raise FileError(
            f"{archive} would unpack to {size:,} bytes, more than the {limit:,} it can have; fetch it again",
            code="archive-too-large",
        )
    check_disk_space(staging.parent, size, archive.name)


def _extract_member(bundle: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> None:
    """Unpack one member, whose CRC must be the one stated in the archive."""
    with translate_os_errors(target), target.open("wb") as file:
        if info.compress_type == DEFLATE64:
            subprocess.run(_find_unpacker(bundle, info), stdout=file, stderr=subprocess.DEVNULL, check=True)
        else:
            with bundle.open(info) as source:
                shutil.copyfileobj(source, file, CHUNK_BYTES)
        file.flush()
        sync_file(file.fileno(), target)


def _find_unpacker(bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> list[str]:
    """Return the command that writes a member to stdout."""
    tool = next((tool for tool in UNPACKERS if shutil.which(tool)), None)
    if tool is None or not re.fullmatch(r"\w[\w./-]*", info.filename):
        raise NotFoundError(
            f"{bundle.filename} is compressed with Deflate64, which Python cannot read; install unzip or 7z "
            "and run the command again",
            code="deflate64-unsupported",
        )
    return [tool, *UNPACKERS[tool], str(bundle.filename), info.filename]
