"""Files out of a zip archive: only those asked for, no more than expected, all of them or none."""

import contextlib
import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

from dygmamba.core.errors import DownloadError, FileError, NotFoundError, WriteError, first_line
from dygmamba.core.files.writing import publish_path, sync_file, write_text

RECEIPT = "source.json"
CHUNK_BYTES = 2**20
DEFLATE64 = 9  # a method of the zip format that Python does not read; one public archive uses it
# what the standard library raises where a zip archive is not what it says, and on sizes and names that are absurd
ZIP_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError, IndexError),
    *(struct.error, OverflowError),
)
UNPACKERS = {"unzip": ("-p",), "7z": ("x", "-so"), "7zz": ("x", "-so"), "7za": ("x", "-so")}


def unpack_archive(
    archive: Path,
    folder: Path,
    members: Sequence[str],
    extras: Sequence[str],
    limit: int,
    check: Callable[[Path], None] = lambda staging: None,
) -> None:
    """Put `members` of the archive (and `extras` where it has them) into `folder`, with a receipt.

    They are matched by file name alone and stored under the names asked for, so no path in the archive can
    lead anywhere else. More than `limit` bytes are refused, and what `check` says of the unpacked files before anybody
    else sees them. The folder appears complete; into one that is
    there already the files move one by one, the first member last.
    """
    staging = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    try:
        staging.mkdir(parents=True)
        with zipfile.ZipFile(archive) as bundle:
            chosen = _select_members(bundle, archive, members, extras)
            _check_size(archive, chosen, limit, staging)
            receipt = {name: _extract_member(bundle, info, staging / name) for name, info in chosen.items()}
        check(staging)
        named = archive.name.removesuffix(".part")
        write_text(staging / RECEIPT, json.dumps({"archive": named, "files": receipt}))
        _move_into_place(staging, folder, members[0])
    except ZIP_ERRORS as error:
        raise FileError(
            f"{archive} is not a whole zip archive ({first_line(error)}); fetch it again"
        ) from error
    except WriteError as error:
        raise DownloadError(f"{error}, and run the command again") from error
    except OSError as error:
        raise DownloadError(
            f"{archive.name} cannot be unpacked into {folder} ({error.strerror}); "
            "free some space or choose another folder, and run the command again"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def is_intact(folder: Path) -> bool | None:
    """Whether the files are still those of the receipt, by length and CRC; None where there is no receipt."""
    try:
        files = json.loads((folder / RECEIPT).read_text(encoding="utf-8"))["files"]
        return all(_compute_size_and_crc(folder / name) == list(wanted) for name, wanted in files.items())
    except FileNotFoundError:
        return None if not (folder / RECEIPT).exists() else False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _compute_size_and_crc(path: Path) -> list[int]:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return [path.stat().st_size, crc]


def _select_members(
    bundle: zipfile.ZipFile, archive: Path, members: Sequence[str], extras: Sequence[str]
) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for info in sorted(bundle.infolist(), key=lambda info: -info.filename.count("/")):  # the shallowest wins
        if not info.filename.endswith(("/", "\\")) and "__MACOSX" not in info.filename:
            found[PurePosixPath(info.filename).name] = info
    missing = [name for name in members if name not in found]
    if missing:
        raise FileError(f"{archive} holds no {' and no '.join(missing)}; it is not the published archive")
    return {name: found[name] for name in (*members, *extras) if name in found}


def _check_size(archive: Path, chosen: dict[str, zipfile.ZipInfo], limit: int, staging: Path) -> None:
    size = sum(info.file_size for info in chosen.values())
    if size > limit:
        raise FileError(
            f"{archive} would unpack to {size:,} bytes, at most {limit:,} are right; fetch it again"
        )
    free = shutil.disk_usage(staging).free
    if size > free:
        raise DownloadError(
            f"{archive.name} unpacks to {size:,} bytes and {staging.parent} has {free:,} free; "
            "free some space or choose another folder, and run the command again"
        )


def _extract_member(bundle: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> list[int]:
    """Copy one member out; its length and CRC, which must be those that the archive states."""
    size = crc = 0
    with _open_member(bundle, info) as source, target.open("wb") as file:
        while size <= info.file_size and (chunk := source.read(CHUNK_BYTES)):
            file.write(chunk)
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        file.flush()
        sync_file(file.fileno(), target)
    if (size, crc) != (info.file_size, info.CRC):
        raise zipfile.BadZipFile(f"{info.filename} is damaged")
    return [size, crc]


@contextlib.contextmanager
def _open_member(bundle: zipfile.ZipFile, info: zipfile.ZipInfo) -> Iterator[IO[bytes]]:
    if info.compress_type != DEFLATE64:
        with bundle.open(info) as source:
            yield source
        return
    tool = next((tool for tool in UNPACKERS if shutil.which(tool)), None)
    if tool is None or not re.fullmatch(r"\w[\w./-]*", info.filename):
        raise NotFoundError(
            f"{bundle.filename} is packed with Deflate64, which Python does not read; install unzip or 7z "
            "and run the command again"
        )
    command = [tool, *UNPACKERS[tool], str(bundle.filename), info.filename]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()  # done or damaged: what it still has to say is not wanted


def _move_into_place(staging: Path, folder: Path, last: str) -> None:
    if not folder.exists():
        publish_path(staging, folder)
        return
    (folder / RECEIPT).unlink(missing_ok=True)
    names = sorted(
        (path.name for path in staging.iterdir()), key=lambda name: (name == RECEIPT, name == last)
    )
    for name in names:
        publish_path(staging / name, folder / name)
