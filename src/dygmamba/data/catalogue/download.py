"""Download a file over HTTP: resumed, retried, and compared with its checksum.

NAME.part has the bytes so far and NAME.part.json the file they belong to. A download is resumed only if the server
proves that it still has the same file, by a strong ETag or a modification date (RFC 9110, 13.1.5), or if a checksum
will be compared at the end. No library of the field (pooch 1.9 was measured) resumes a broken download.
"""

import base64
import hashlib
import json
import re
import shutil
import time
import urllib.request as http
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

from dygmamba.core.errors import ConfigError, DownloadError, FileError
from dygmamba.core.files.writing import translate_os_errors, write_text

DownloadProgress = Callable[[int, int | None], None]

CHUNK_BYTES = 2**16
RETRYABLE_STATUS = {408, 416, 425, 429, 500, 502, 503, 504}
# "identity": with a compressed body, Content-Length and ranges would not refer to the bytes of the file.
REQUEST_HEADERS = {"User-Agent": "dygmamba", "Accept-Encoding": "identity"}


@contextmanager
def open_download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    progress: DownloadProgress | None = None,
    timeout: float = 30.0,
    retries: int = 5,
) -> Iterator[Path]:
    """Download a file to `target.part`, and yield its path once it is complete and its checksum is right.

    The partial file is deleted at the end of the block, also if the block raises FileError: the file is unusable. After
    other errors it stays, and a later call resumes from it if the server still has the same file.

    Args:
        url: HTTP or HTTPS; credentials in it are sent to this host only.
        target: Names the partial file; its folder exists, and no other process downloads the file.
        checksum: "md5:..." or "sha256:...".
        progress: Called with the bytes added and the total size. What is added sums to the size; it is negative if the
            download has to start again.
        timeout: Seconds without a byte.
        retries: Attempts after the first.

    Raises:
        DownloadError: The file could not be downloaded; the message says what to do.
    """
    part = PartialDownload(url, target, checksum is not None, progress, timeout)
    part.download(retries)
    if (actual := compute_checksum(part.path, checksum)) != checksum:
        part.discard()
        raise DownloadError(
            f"{target.name} arrived corrupt ({actual} instead of {checksum}) and was deleted; {part.manual_advice}",
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


def check_disk_space(folder: Path, size: int, name: str) -> None:
    """Raise DownloadError if a file of this size does not fit."""
    if size > (free := shutil.disk_usage(folder).free):
        raise DownloadError(
            f"{name} needs {size:,} bytes and {folder} has {free:,} free; free some space or choose another folder, "
            "and run the command again",
            code="disk-too-small",
        )


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
        # without a stamp for this URL the size stays 0, and what is there is overwritten
        with suppress(OSError, ValueError, KeyError, TypeError):
            stamp = json.loads(self._stamp_path.read_text(encoding="utf-8"))
            if stamp["url"] == self.url:
                self._total, self._validator = stamp["total"], stamp["validator"]
                self._size = self.path.stat().st_size

    @property
    def manual_advice(self) -> str:
        """Advice on how to get the file without this program."""
        return f"put {self.target.name} from {self.url} into {self.target.parent} and run the command again"

    @property
    def _is_resumable(self) -> bool:
        return self._size > 0 and (self._has_checksum or self._validator is not None)

    def download(self, retries: int) -> None:
        """Request the file until all of it is here."""
        attempt, reason = 0, ""
        try:
            while attempt <= retries:
                try:
                    return self._request_rest()
                except (HTTPException, OSError, ValueError) as error:  # ValueError: a redirect to no URL
                    reason = self._explain(error, is_first=attempt == 0)
                attempt += 1
                time.sleep(min(self._timeout, self._timeout / 60 * 2**attempt))  # exponential backoff
            raise self._make_error(reason, "download-failed")
        except DownloadError:
            if not self._size:  # nothing to resume
                self.discard()
            raise

    def discard(self) -> None:
        """Delete the partial file."""
        self.path.unlink(missing_ok=True)
        self._stamp_path.unlink(missing_ok=True)

    def _request_rest(self) -> None:
        """Request what is missing; raise an error unless the file is complete then."""
        if not self._is_resumable or self._size != self._total:
            with http.urlopen(self._make_request(), timeout=self._timeout) as response:
                self._begin(response)
                while chunk := response.read1(CHUNK_BYTES):
                    with translate_os_errors(self.path), self.path.open("ab") as file:
                        file.write(chunk)
                    self._size += len(chunk)
                    self._report_progress()
        if self._total not in (None, self._size):
            raise HTTPException(f"{self._size:,} of {self._total:,} bytes")

    def _make_request(self) -> http.Request:
        request = http.Request(self.url, headers=REQUEST_HEADERS)
        if self._credentials:  # not sent to another host after a redirect
            pair = base64.b64encode(unquote(self._credentials).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {pair}")
        if self._is_resumable:
            request.add_header("Range", f"bytes={self._size}-")
            if self._validator is not None:
                request.add_header("If-Range", self._validator)
        return request

    def _begin(self, response: HTTPResponse) -> None:
        """Go on behind the bytes that are here if the response is the rest of the same file, else start again."""
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
            write_text(self._stamp_path, json.dumps(stamp))
        elif not is_rest:
            self._restart()
            raise HTTPException("another part of the file")
        check_disk_space(self.target.parent, (self._total or 0) - self._size, self.target.name)
        self._report_progress()

    def _restart(self) -> None:
        with translate_os_errors(self.path):
            self.path.write_bytes(b"")
        self._size, self._total, self._validator = 0, None, None

    def _report_progress(self) -> None:
        if self._progress is not None and self._size != self._reported:
            added, self._reported = self._size - self._reported, self._size
            self._progress(added, self._total)

    def _explain(self, error: Exception, is_first: bool) -> str:
        """Return what went wrong; raise DownloadError if asking again does not help."""
        if isinstance(error, HTTPError):
            error.close()
            reason = f"{self._host} answered {error.code} {str(error.reason).partition(chr(10))[0]}"  # loops: 3 lines
            if error.code not in RETRYABLE_STATUS:
                raise self._make_error(reason, "http-error") from error
            if error.code == 416:  # nothing is behind the bytes that are here, so they are of another file
                self._restart()
            return reason
        if isinstance(error, URLError):
            reason = f"{self._host} cannot be reached ({error.reason})"
            if is_first:  # waiting helps if a server answered before, not if there is no connection
                raise self._make_error(reason, "host-unreachable") from error
            return reason
        if isinstance(error, TimeoutError):
            return f"{self._host} sent nothing for {self._timeout:g} s"
        return f"the connection to {self._host} broke ({error or type(error).__name__})"

    def _make_error(self, reason: str, code: str) -> DownloadError:
        resume = (
            f"run the command again to resume from {self._size:,} bytes, or " if self._is_resumable else ""
        )
        message = f"{self.target.name} was not downloaded: {reason}; {resume}{self.manual_advice}"
        return DownloadError(message, code=code)
