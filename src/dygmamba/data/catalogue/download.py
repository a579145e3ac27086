"""Download a file over HTTP with retries, resuming and a checksum.

NAME.part has the bytes so far and NAME.part.json the file they belong to. A download is resumed only if the server
proves that it still has the same file, by a strong ETag or a modification date (RFC 9110, 13.1.5), or if a checksum
will be compared at the end. No library of the field (pooch 1.9 was measured) resumes a broken download.
"""

import base64
import hashlib
import json
import re
import shutil
import socket
import time
import urllib.request as http
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from dygmamba.core.errors import ConfigError, DownloadError, FileError, LockedError, WriteError
from dygmamba.core.files.locking import acquire_lock, release_and_remove
from dygmamba.core.files.writing import write_text

DownloadProgress = Callable[[int, int | None], None]

CHUNK_BYTES = 2**16
MIN_PROGRESS_BYTES = 2**20  # an attempt that gained this much does not count as a failure
RETRYABLE_STATUS = {408, 416, 425, 429, 500, 502, 503, 504}
# "identity": with a compressed body, Content-Length and ranges would not refer to the bytes of the file.
REQUEST_HEADERS = {"User-Agent": "dygmamba", "Accept-Encoding": "identity"}
DISK_ADVICE = "free some space or choose another folder, and run the command again"


@contextmanager
def open_download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    checksum_hint: str = "",
    progress: DownloadProgress | None = None,
    timeout: float = 30.0,
    retries: int = 5,
) -> Iterator[Path]:
    """Download a file to `target.part`, and yield its path once it is complete and its checksum is right.

    The partial file is deleted at the end of the block, also if the block raises FileError: the file is unusable. After
    other errors it stays, and a later call resumes from it if the server still has the same file.

    Args:
        url: HTTP or HTTPS; credentials in it are sent to this host only.
        target: Names the partial file.
        checksum: "md5:..." or "sha256:...".
        checksum_hint: Appended to the message about a wrong checksum.
        progress: Called with the bytes added and the total size. What is added sums to the size; it is negative if the
            download has to start again.
        timeout: Seconds without a byte.
        retries: Attempts without progress, after the first.

    Raises:
        DownloadError: The file could not be downloaded; the message says what to do.
    """
    part = PartialDownload(url, target, checksum is not None, progress, timeout)
    with _lock_download(target):
        part.download(retries)
        if (actual := compute_checksum(part.path, checksum)) != checksum:
            part.discard()
            raise DownloadError(
                f"{target.name} arrived corrupt ({actual} instead of {checksum}) and was deleted; "
                f"{part.manual_advice}{checksum_hint}",
                code="checksum-mismatch",
            )
        try:
            yield part.path
        except FileError:
            part.discard()
            raise
        part.discard()


def compute_checksum(path: Path, checksum: str | None) -> str | None:
    """Return the checksum of a file by the algorithm of `checksum`, such as "md5:..."; None without one."""
    if checksum is None:
        return None
    algorithm = checksum.partition(":")[0]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def strip_credentials(url: str) -> str:
    """Return the URL without user name and password, safe to log and store."""
    return re.sub(r"^(\w[\w+.-]*:)?(//)?[^/?#]*@", r"\1\2", url)


@contextmanager
def translate_disk_errors(target: Path) -> Iterator[None]:
    """Context manager: raise DownloadError if the disk is full or cannot be written."""
    try:
        yield
    except WriteError as error:
        raise DownloadError(f"{error}, and run the command again", code="write-failed") from error
    except OSError as error:
        raise DownloadError(
            f"{target.name} cannot be written to {target.parent} ({error.strerror}); {DISK_ADVICE}",
            code="write-failed",
        ) from error


def check_disk_space(folder: Path, size: int, name: str) -> None:
    """Raise DownloadError if a file of this size does not fit."""
    if size > (free := shutil.disk_usage(folder).free):
        raise DownloadError(
            f"{name} needs {size:,} bytes and {folder} has {free:,} free; {DISK_ADVICE}",
            code="disk-too-small",
        )


@contextmanager
def _lock_download(target: Path) -> Iterator[None]:
    with translate_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = acquire_lock(target.with_name(f"{target.name}.lock"))
    except LockedError as error:
        message = f"another process is downloading {target}; wait until it is done"
        raise DownloadError(message, code="download-locked") from error
    except FileError as error:
        raise DownloadError(f"{error}, and run the command again", code="write-failed") from error
    try:
        yield
    finally:
        release_and_remove(lock)


class PartialDownload:
    """The partial file of a download, and what is known of the file at its URL."""

    def __init__(
        self, url: str, target: Path, has_checksum: bool, progress: DownloadProgress | None, timeout: float
    ) -> None:
        self.url, self.target = strip_credentials(url), target
        if urlsplit(self.url).scheme not in ("http", "https"):
            message = f"cannot download {self.url!r}: the URL must start with http:// or https://"
            raise ConfigError(message, code="invalid-url")
        self.path = target.with_name(f"{target.name}.part")
        self._stamp_path = target.with_name(f"{target.name}.part.json")
        self._host, self._credentials = urlsplit(self.url).netloc, urlsplit(url).netloc.rpartition("@")[0]
        self._has_checksum, self._progress, self._timeout = has_checksum, progress, timeout
        self._size = self._reported = 0
        self._total: int | None = None
        self._validator: str | None = None
        self._has_answered = False

    @property
    def manual_advice(self) -> str:
        """Advice on how to get the file without this program."""
        return f"put {self.target.name} from {self.url} into {self.target.parent} and run the command again"

    @property
    def _is_resumable(self) -> bool:
        return self._size > 0 and (self._has_checksum or self._validator is not None)

    def download(self, retries: int) -> None:
        """Request the file until all of it is here."""
        self._read_stamp()
        failures, size = 0, self._size
        try:
            while (reason := self._attempt_request()) is not None:
                failures += self._size - size < MIN_PROGRESS_BYTES
                size = self._size
                if failures > retries:
                    raise self._make_error(reason, "download-failed")
                time.sleep(min(self._timeout, self._timeout / 60 * 2**failures))  # exponential backoff
        except DownloadError:
            if not self._size:  # nothing to resume
                self.discard()
            raise

    def discard(self) -> None:
        """Delete the partial file."""
        self.path.unlink(missing_ok=True)
        self._stamp_path.unlink(missing_ok=True)

    def _read_stamp(self) -> None:
        # without a stamp for this URL the size stays 0, and what is there is overwritten
        with suppress(OSError, ValueError, KeyError, TypeError):
            stamp = json.loads(self._stamp_path.read_text(encoding="utf-8"))
            if stamp["url"] == self.url:
                self._total, self._validator = stamp["total"], stamp["validator"]
                self._size = self.path.stat().st_size

    def _attempt_request(self) -> str | None:
        """Request what is missing; return what went wrong, None if the file is complete."""
        try:
            with http.urlopen(self._make_request(), timeout=self._timeout) as response:
                self._begin(response)
                while chunk := response.read1(CHUNK_BYTES):
                    self._write(chunk)
        except HTTPError as error:
            return self._handle_status(error)
        except URLError as error:
            return self._describe_url_error(error)
        except TimeoutError:
            return f"{self._host} sent nothing for {self._timeout:g} s"
        except (
            HTTPException,
            OSError,
            ValueError,
        ) as error:  # ValueError: a redirect to something that is no URL
            return f"the connection to {self._host} broke ({type(error).__name__})"
        if self._total in (None, self._size):
            return None
        return f"{self._host} announced {self._total:,} bytes and sent {self._size:,}"

    def _make_request(self) -> http.Request:
        request = http.Request(self.url, headers=REQUEST_HEADERS)
        if self._credentials:  # not sent to another host after a redirect
            name, _, password = self._credentials.partition(":")
            pair = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {pair}")
        if self._is_resumable:
            request.add_header("Range", f"bytes={self._size}-")
            if self._validator is not None:
                request.add_header("If-Range", self._validator)
        return request

    def _begin(self, response: HTTPResponse) -> None:
        """Go on behind the bytes that are here if the response is the rest of the same file, else start again."""
        self._has_answered = True
        if urlsplit(response.url).scheme not in ("https", urlsplit(self.url).scheme):
            to = strip_credentials(response.url)
            raise self._make_error(f"it redirects to {to}, which is not encrypted", "insecure-redirect")
        span = f"bytes {self._size}-"
        is_rest = self._is_resumable and response.headers.get("Content-Range", "").startswith(span)
        if response.status != 206:
            self._restart()
            tag = response.headers.get("ETag", "")
            self._validator = tag if tag.startswith('"') else response.headers.get("Last-Modified")
            self._total = response.length
            stamp = {"url": self.url, "validator": self._validator, "total": self._total}
            with translate_disk_errors(self.target):
                write_text(self._stamp_path, json.dumps(stamp))
        elif not is_rest:
            self._restart()
            raise HTTPException("another part of the file")
        check_disk_space(self.target.parent, (self._total or 0) - self._size, self.target.name)
        self._report_progress()

    def _write(self, chunk: bytes) -> None:
        with translate_disk_errors(self.target), self.path.open("ab") as file:
            file.write(chunk)
        self._size += len(chunk)
        self._report_progress()

    def _restart(self) -> None:
        with translate_disk_errors(self.target):
            self.path.write_bytes(b"")
        self._size, self._total, self._validator = 0, None, None

    def _report_progress(self) -> None:
        if self._progress is not None and self._size != self._reported:
            added, self._reported = self._size - self._reported, self._size
            self._progress(added, self._total)

    def _handle_status(self, error: HTTPError) -> str | None:
        self._has_answered = True
        reason = f"{self._host} answered {error.code} {str(error.reason).partition(chr(10))[0]}"  # loops: three lines
        with error:
            if error.code not in RETRYABLE_STATUS:
                raise self._make_error(reason, "http-error") from error
            if (
                error.code == 416
            ):  # nothing is behind the bytes that are here: they are all, or of another file
                is_end = error.headers.get("Content-Range") == f"bytes */{self._size}"
                if is_end and self._size and self._total in (None, self._size):
                    return None
                self._restart()
        return reason

    def _describe_url_error(self, error: URLError) -> str:
        if isinstance(error.reason, TimeoutError):
            return f"{self._host} sent nothing for {self._timeout:g} s"
        reason = f"{self._host} cannot be reached ({error.reason})"
        if isinstance(error.reason, socket.gaierror):
            reason = f"the host {self._host} cannot be found"
        elif isinstance(error.reason, ConnectionRefusedError):
            reason = f"{self._host} refused the connection"
        if not self._has_answered:  # waiting helps if a server answered before, not if there is no connection
            raise self._make_error(reason, "host-unreachable") from error
        return reason

    def _make_error(self, reason: str, code: str) -> DownloadError:
        resume = (
            f"run the command again to resume from {self._size:,} bytes, or " if self._is_resumable else ""
        )
        message = f"{self.target.name} was not downloaded: {reason}; {resume}{self.manual_advice}"
        return DownloadError(message, code=code)
