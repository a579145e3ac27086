"""A partial download: NAME.part with the bytes so far, and NAME.part.json with the file they belong to.

A download is resumed only if the server proves that it still has the same file, by a strong ETag or a modification date
(RFC 9110, 13.1.5), or if a checksum will be compared at the end.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from io import FileIO
from pathlib import Path

from dygmamba.core.errors import DownloadError, WriteError
from dygmamba.core.files.writing import sync_file, write_text
from dygmamba.data.catalogue.http import RequestUrl, strip_credentials

try:
    import fcntl
except ImportError:  # on Windows two downloads of one file at the same time are not kept apart
    fcntl = None

DownloadProgress = Callable[[int, int | None], None]

CHUNK_BYTES = 2**16
# "identity": with a compressed body, Content-Length and ranges would not refer to the bytes of the file.
REQUEST_HEADERS = {"User-Agent": "dygmamba", "Accept-Encoding": "identity"}


def parse_header_number(value: str) -> int | None:
    """Parse a number in an HTTP header; None if it is not one, or longer than Python converts."""
    return int(value) if re.fullmatch(r"[0-9]{1,300}", value) else None


class PartialDownload:
    """Context manager: the partial file of a download, locked against other processes.

    Args:
        address: Where the file comes from.
        target: Final path; the partial file is next to it.
        has_checksum: Whether the caller compares a checksum at the end, which detects two files joined into one.
        progress: Called with the bytes added and the total size.
        max_bytes: Largest size accepted.
    """

    def __init__(
        self,
        address: RequestUrl,
        target: Path,
        has_checksum: bool,
        progress: DownloadProgress | None,
        max_bytes: int,
    ) -> None:
        self.address, self.url, self.target, self.max_bytes = address, address.url, target, max_bytes
        self.path = target.with_name(f"{target.name}.part")
        self.stamp_path = target.with_name(f"{target.name}.part.json")
        self.total: int | None = None
        self.answered = False  # whether the server has answered at all
        self.ended = False  # whether the last response ended regularly
        self._has_checksum, self._progress, self._reported = has_checksum, progress, 0
        self._validator: str | None = None

    def __enter__(self) -> "PartialDownload":
        with self._translate_disk_errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(self.path)
        self.size = self._file.seek(0, os.SEEK_END)
        self._read_stamp()
        return self

    def __exit__(self, *_: object) -> None:
        if self.size == 0 or self.target.exists():
            self.discard()
        self._file.close()

    @property
    def headers(self) -> dict[str, str]:
        """Request headers for the rest of the same file, or for all of it."""
        if not self.size or not self._is_resumable:
            return REQUEST_HEADERS
        condition = {"If-Range": self._validator} if self._validator else {}
        return REQUEST_HEADERS | {"Range": f"bytes={self.size}-"} | condition

    @property
    def is_complete(self) -> bool:
        """Whether all announced bytes are here; without a length, whether the response ended regularly."""
        return self.ended if self.total is None else self.size == self.total

    @property
    def manual_advice(self) -> str:
        """Advice on how to get the file without this program."""
        return f"put {self.target.name} from {self.url} into {self.target.parent} and run the command again"

    @property
    def advice(self) -> str:
        """Return the advice for the message of a failed download."""
        if self.size and self._is_resumable:
            return f"run the command again to resume from {self.size:,} bytes, or {self.manual_advice}"
        return self.manual_advice

    @property
    def _is_resumable(self) -> bool:
        return self._has_checksum or self._validator is not None

    def begin(self, response: HTTPResponse) -> bool:
        """Accept a response, resuming or starting again; return False if it is the rest of another file."""
        self.answered = True
        if self.url.startswith("https:") and not response.url.startswith("https:"):
            raise DownloadError(
                f"{self.url} redirects to {strip_credentials(response.url)}, which is not encrypted; "
                f"{self.manual_advice}",
                code="insecure-redirect",
            )
        validator = _get_validator(response)
        if response.status == 206 and not self._continues(response, validator):
            self._restart()
            return False
        if response.status != 206:
            self._restart()
            self.total = parse_header_number(response.headers.get("Content-Length", ""))
            self._validator = validator
            self._write_stamp()
        self._check_size(self.total or 0)
        self._check_disk_space()
        self._report_progress()
        return True

    def handle_range_error(self, content_range: str) -> None:
        """Handle status 416: either all bytes are here already, or the server has another file."""
        match = re.fullmatch(r"bytes \*/(\d+)", content_range)
        size = parse_header_number(match[1]) if match else None
        if size == self.size and self.total in (None, size):
            self.total = size
            self._report_progress()
        else:
            self._restart()

    def write(self, chunk: bytes) -> None:
        """Append bytes."""
        rest = memoryview(chunk)
        with self._translate_disk_errors():
            while rest:
                written = self._file.write(rest)
                self.size += written
                rest = rest[written:]
        self._check_size(self.size)
        if self.total is not None and self.size > self.total:
            self.discard()
            raise DownloadError(
                f"{self.url} sent more than the {self.total:,} bytes it announced; {self.manual_advice}",
                code="download-overlong",
            )
        self._report_progress()

    def flush(self) -> None:
        """Flush the file to the disk."""
        with self._translate_disk_errors():
            sync_file(self._file.fileno(), self.path)

    def discard(self) -> None:
        """Delete the partial file."""
        if fcntl is None:
            self._file.close()  # Windows cannot delete an open file
        self.path.unlink(missing_ok=True)
        self.stamp_path.unlink(missing_ok=True)
        self.size = 0

    def _continues(self, response: HTTPResponse, validator: str | None) -> bool:
        """Return whether a response with status 206 is the rest of the same file, from the requested byte on."""
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if span is None or parse_header_number(span[1]) != self.size or validator != self._validator:
            return False
        if span[2] != "*" and self.total is None:
            self.total = parse_header_number(span[2])
        return span[2] in ("*", str(self.total))

    def _restart(self) -> None:
        with self._translate_disk_errors():
            if self.size:
                self._file.truncate(0)
                self._file.seek(0)
        self.size, self.total, self._validator = 0, None, None

    def _read_stamp(self) -> None:
        try:
            stamp = json.loads(self.stamp_path.read_text(encoding="utf-8"))
            is_same = stamp["url"] == self.url
            self.total, self._validator = stamp["total"], stamp["validator"]
        except (OSError, ValueError, KeyError, TypeError):
            is_same = False
        if not is_same:
            self._restart()

    def _write_stamp(self) -> None:
        stamp = {"url": self.url, "validator": self._validator, "total": self.total}
        with self._translate_disk_errors():
            write_text(self.stamp_path, json.dumps(stamp))

    def _report_progress(self) -> None:
        if self._progress is not None and self.size != self._reported:
            self._progress(self.size - self._reported, self.total)
            self._reported = self.size

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            self.discard()
            raise DownloadError(
                f"{self.url} is larger than expected: at least {size:,} bytes, allowed are {self.max_bytes:,}; "
                f"{self.manual_advice}",
                code="download-too-large",
            )

    def _check_disk_space(self) -> None:
        free, need = shutil.disk_usage(self.path.parent).free, (self.total or 0) - self.size
        if need > free:
            raise DownloadError(
                f"{self.target.name} needs {need:,} more bytes and {self.target.parent} has {free:,} free; "
                "free some space or choose another folder, and run the command again",
                code="disk-too-small",
            )

    @contextmanager
    def _translate_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except WriteError as error:
            raise DownloadError(f"{error}, and run the command again", code="write-failed") from error
        except OSError as error:
            raise DownloadError(
                f"{self.target.name} cannot be written to {self.target.parent} ({error.strerror}); "
                "free some space or choose another folder, and run the command again",
                code="write-failed",
            ) from error


def _get_validator(response: HTTPResponse) -> str | None:
    """Return what identifies this version of the file: a strong ETag or a modification date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _open_locked(path: Path) -> FileIO:
    """Open and lock the partial file, so that two processes never write it at the same time."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        file = FileIO(os.open(path, flags, 0o666), "r+b")
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise DownloadError(
                f"another process is downloading {path}; wait until it is done", code="download-locked"
            ) from error
        except OSError:  # a file system without locks is no reason to fail
            return file
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # another process deleted or renamed the file between opening and locking
