"""The bytes of a download so far: a file beside the target, and a stamp that says whose bytes they are."""

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
from dygmamba.core.files.writing import publish_path, sync_file, write_text
from dygmamba.data.catalogue.http import RequestUrl, strip_credentials

try:
    import fcntl
except ImportError:  # Windows: two fetches of one file at the same time are not kept apart there
    fcntl = None

DownloadProgress = Callable[[int, int | None], None]

CHUNK_BYTES = 2**16
REQUEST_HEADERS = {
    "User-Agent": "dygmamba",
    "Accept-Encoding": "identity",
}  # a packed body would make lengths lie


def parse_header_number(said: str) -> int | None:
    """A number in a header; what is none, or longer than a computer reads, is not known."""
    return int(said) if re.fullmatch(r"[0-9]{1,300}", said) else None


class PartialDownload:
    """An unfinished download, of at most `limit` bytes; it goes on only if the server still has the same file.

    `checked` says that a checksum will be compared at the end, which also finds two files spliced into one.
    """

    def __init__(
        self, address: RequestUrl, target: Path, checked: bool, progress: DownloadProgress | None, limit: int
    ) -> None:
        self.address, self.url, self.target, self.limit = address, address.url, target, limit
        self.path = target.with_name(f"{target.name}.part")
        self.stamp_path = target.with_name(f"{target.name}.part.json")
        self.total: int | None = None
        self.answered = self.ended = False
        self._checked, self._progress, self._reported = checked, progress, 0
        self._validator: str | None = None

    def __enter__(self) -> "PartialDownload":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open_locked(self.path)
        except OSError as error:
            raise self._disk(error) from error
        self.size = self._file.seek(0, os.SEEK_END)
        self._recall()
        return self

    def __exit__(self, *_: object) -> None:
        if self.size == 0 or self.target.exists():
            self.discard()
        self._file.close()

    @property
    def headers(self) -> dict[str, str]:
        """What to ask for: the rest of the same file, or all of it."""
        if not self.size or not self._resumable:
            return REQUEST_HEADERS
        same = {"If-Range": self._validator} if self._validator else {}
        return REQUEST_HEADERS | {"Range": f"bytes={self.size}-"} | same

    @property
    def whole(self) -> bool:
        """Whether all promised bytes are here; without a promise, whether the body ended in order."""
        return self.ended if self.total is None else self.size == self.total

    @property
    def by_hand(self) -> str:
        """What a user can do where the network does not."""
        return f"put {self.target.name} from {self.url} into {self.target.parent} and run the command again"

    @property
    def advice(self) -> str:
        """What to do after a failure: resume, or fetch the file by hand."""
        if self.size and self._resumable:
            return f"run the command again to go on from {self.size:,} bytes, or {self.by_hand}"
        return self.by_hand

    @property
    def _resumable(self) -> bool:
        return self._checked or self._validator is not None

    def begin(self, response: HTTPResponse) -> bool:
        """Take up an answer: go on, start again, or (False) refuse it because it is another file's rest."""
        self.answered = True
        if self.url.startswith("https:") and not response.url.startswith("https:"):
            raise DownloadError(
                f"{self.url} leads to {strip_credentials(response.url)}, which is not encrypted; {self.by_hand}"
            )
        proof = _get_validator(response)
        if response.status == 206 and not self._continues(response, proof):
            self._restart()
            return False
        if response.status != 206:
            self._restart()
            self.total, self._validator = (
                parse_header_number(response.headers.get("Content-Length", "")),
                proof,
            )
            self._remember()
        self._check_limit(self.total or 0)
        self._check_space()
        self._report()
        return True

    def beyond(self, content_range: str) -> None:
        """The server says that we ask beyond its end: the file is whole, or it is not this one."""
        known = re.fullmatch(r"bytes \*/(\d+)", content_range)
        size = parse_header_number(known[1]) if known else None
        if size == self.size and self.total in (None, size):
            self.total = size
            self._report()
        else:
            self._restart()

    def write(self, chunk: bytes) -> None:
        """Add bytes to the file."""
        rest = memoryview(chunk)
        try:
            while rest:
                written = self._file.write(rest)
                self.size += written
                rest = rest[written:]
        except OSError as error:
            raise self._disk(error) from error
        self._check_limit(self.size)
        if self.total is not None and self.size > self.total:
            self.discard()
            raise DownloadError(
                f"{self.url} sent more than the {self.total:,} bytes promised; {self.by_hand}"
            )
        self._report()

    def seal(self) -> None:
        """All bytes are on the disk."""
        with self._disk_errors():
            sync_file(self._file.fileno(), self.path)

    def promote(self) -> None:
        """The part becomes the target, in one step."""
        if fcntl is None:
            self._file.close()  # Windows renames no open file; elsewhere the lock is kept until it is done
        with self._disk_errors():
            publish_path(self.path, self.target)
        self.stamp_path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Nothing of this download is kept."""
        if fcntl is None:
            self._file.close()
        self.path.unlink(missing_ok=True)
        self.stamp_path.unlink(missing_ok=True)
        self.size = 0

    def _continues(self, response: HTTPResponse, proof: str | None) -> bool:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if span is None or parse_header_number(span[1]) != self.size or proof != self._validator:
            return False
        if span[2] != "*" and self.total is None:
            self.total = parse_header_number(span[2])
        return span[2] in ("*", str(self.total))

    def _restart(self) -> None:
        try:
            if self.size:
                self._file.truncate(0)
                self._file.seek(0)
        except OSError as error:
            raise self._disk(error) from error
        self.size, self.total, self._validator = 0, None, None

    def _recall(self) -> None:
        try:
            stamp = json.loads(self.stamp_path.read_text(encoding="utf-8"))
            same = stamp["url"] == self.url
            self.total, self._validator = stamp["total"], stamp["validator"]
        except (OSError, ValueError, KeyError, TypeError):
            same = False
        if not same:
            self._restart()

    def _remember(self) -> None:
        stamp = {"url": self.url, "validator": self._validator, "total": self.total}
        with self._disk_errors():
            write_text(self.stamp_path, json.dumps(stamp))

    def _report(self) -> None:
        if self._progress is not None and self.size != self._reported:
            self._progress(self.size - self._reported, self.total)
            self._reported = self.size

    def _check_limit(self, size: int) -> None:
        if size > self.limit:
            self.discard()
            raise DownloadError(
                f"{self.url} has {size:,} bytes or more, at most {self.limit:,} are right; {self.by_hand}"
            )

    def _check_space(self) -> None:
        free, need = shutil.disk_usage(self.path.parent).free, (self.total or 0) - self.size
        if need > free:
            raise DownloadError(
                f"{self.target.name} needs {need:,} more bytes and {self.target.parent} has {free:,} free; "
                "free some space or choose another folder, and run the command again"
            )

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except WriteError as error:
            raise DownloadError(f"{error}, and run the command again") from error

    def _disk(self, error: OSError) -> DownloadError:
        return DownloadError(
            f"{self.target.name} cannot be written into {self.target.parent} ({error.strerror}); "
            "free some space or choose another folder, and run the command again"
        )


def _get_validator(response: HTTPResponse) -> str | None:
    """What tells this version of the file from another: a strong ETag or a date (RFC 9110, 13.1.5)."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")


def _open_locked(path: Path) -> FileIO:
    """The part, open and locked, so that two processes never write one file."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        file = FileIO(os.open(path, flags, 0o666), "r+b")
        if fcntl is None:
            return file
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise DownloadError(f"another process is fetching {path}; wait until it is done") from error
        except OSError:  # a file system without locks is no reason not to fetch
            return file
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # the other process has just turned its part into the target
