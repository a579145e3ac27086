"""Download a file over HTTP with retries, resuming and limits.

No library of the field (pooch 1.9 was measured) resumes a broken download and bounds its size and time.
"""

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from dygmamba.core.errors import DownloadError
from dygmamba.data.catalogue.http import RequestUrl, open_response
from dygmamba.data.catalogue.partial_download import (
    CHUNK_BYTES,
    DownloadProgress,
    PartialDownload,
    parse_header_number,
)

RETRYABLE_STATUS = {408, 425, 429, 500, 502, 503, 504}
MIN_PROGRESS_BYTES = 2**20  # an attempt that gained this much does not count as a failure


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """Limits of the time and the size of a download."""

    timeout: float = 30.0  # seconds without a byte
    retries: int = 5  # attempts without progress, after the first
    max_bytes: int = 2**37  # the largest public archive has a tenth of it
    max_seconds: float = 24 * 3600.0  # in all, against servers that send a byte now and then


@contextmanager
def open_download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    checksum_hint: str = "",
    progress: DownloadProgress | None = None,
    limits: DownloadLimits = DownloadLimits(),
) -> Iterator[PartialDownload]:
    """Download a file to `target.part` and yield it once it is complete and its checksum is right.

    The caller uses the file and then calls `discard`. If it does not, a later call finds the file complete. After an
    error the received bytes stay, and a later call resumes from them if the server still has the same file.

    Args:
        url: HTTP or HTTPS; credentials in it are sent to this host only.
        target: Names the partial file.
        checksum: "md5:..." or "sha256:...".
        checksum_hint: Appended to the message about a wrong checksum.
        progress: Called with the bytes added and the total size. What is added sums to the size; it is negative if the
            download has to start again.
        limits: Timeout, retries, size and total time.

    Raises:
        DownloadError: The file could not be downloaded; the message says what to do.
    """
    with PartialDownload(
        RequestUrl.parse(url), target, checksum is not None, progress, limits.max_bytes
    ) as part:
        _download_with_retries(part, limits)
        part.flush()
        if (actual := compute_checksum(part.path, checksum)) != checksum:
            part.discard()
            raise DownloadError(
                f"{part.target.name} arrived corrupt ({actual} instead of {checksum}) and was deleted; "
                f"{part.manual_advice}{checksum_hint}",
                code="checksum-mismatch",
            )
        yield part


def compute_checksum(path: Path, checksum: str | None) -> str | None:
    """Return the checksum of a file by the algorithm of `checksum`, such as "md5:..."; None without one."""
    if checksum is None:
        return None
    algorithm = checksum.partition(":")[0]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def verify_checksum(path: Path, checksum: str | None, hint: str = "") -> None:
    """Raise DownloadError if an existing file has another checksum; it may be the user's, so it is not touched."""
    if (actual := compute_checksum(path, checksum)) != checksum:
        raise DownloadError(
            f"{path} is not the published file ({actual} instead of {checksum}); "
            f"move it away and run the command again{hint}",
            code="checksum-mismatch",
        )


def _download_with_retries(part: PartialDownload, limits: DownloadLimits) -> None:
    deadline = time.monotonic() + limits.max_seconds
    best, failures = part.size, 0
    while True:
        reason, wait = _attempt_request(part, limits.timeout, deadline)
        if part.is_complete:
            return
        gained, best = part.size - best, max(best, part.size)
        if gained >= MIN_PROGRESS_BYTES:
            continue
        failures += 1
        if failures > limits.retries:
            if gained == 0 and part.ended:
                part.discard()  # the server keeps ending before the length it announced; its bytes are not trusted
            raise DownloadError(
                f"{part.target.name} was not downloaded: {reason}; {part.advice}", code="download-failed"
            )
        _check_deadline(part, deadline)
        # Exponential backoff, at most as long as the timeout.
        time.sleep(min(limits.timeout, max(wait, limits.timeout / 60 * 2**failures)))


def _check_deadline(part: PartialDownload, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise DownloadError(
            f"{part.target.name} was not downloaded: it took too long; {part.advice}", code="download-timeout"
        )


def _attempt_request(part: PartialDownload, timeout: float, deadline: float) -> tuple[str, float]:
    """Send one request; return what went wrong, if anything, and how long the server asks to wait."""
    host = urlsplit(part.url).netloc
    part.ended = False
    try:
        with open_response(part.address.make_request(part.headers), timeout, deadline) as response:
            if not part.begin(response):
                return f"the file at {host} has changed", 0.0
            while chunk := response.read1(CHUNK_BYTES):
                part.write(chunk)
                _check_deadline(part, deadline)
            part.ended = True
    except HTTPError as error:
        return _handle_http_error(part, error, host)
    except URLError as error:
        return _describe_url_error(part, error, host, timeout), 0.0
    except TimeoutError:
        return f"{host} sent nothing for {timeout:g} s", 0.0
    except (HTTPException, OSError) as error:
        return f"the connection to {host} broke ({type(error).__name__})", 0.0
    return f"{host} announced {part.total or 0:,} bytes and sent {part.size:,}", 0.0


def _handle_http_error(part: PartialDownload, error: HTTPError, host: str) -> tuple[str, float]:
    reason = f"{host} answered {error.code} {str(error.reason).partition(chr(10))[0]}"  # redirect loops: three lines
    part.answered = True
    with error:
        if error.code == 416:
            part.handle_range_error(error.headers.get("Content-Range", ""))
        elif error.code not in RETRYABLE_STATUS:
            raise DownloadError(
                f"{part.target.name} was not downloaded: {reason}; {part.advice}", code="http-error"
            ) from error
    return reason, float(parse_header_number(error.headers.get("Retry-After", "")) or 0)


def _describe_url_error(part: PartialDownload, error: URLError, host: str, timeout: float) -> str:
    if isinstance(error.reason, socket.gaierror):
        reason = f"the host {host} cannot be found"
    elif isinstance(error.reason, TimeoutError):
        return f"{host} sent nothing for {timeout:g} s"
    elif isinstance(error.reason, ConnectionRefusedError):
        reason = f"{host} refused the connection"
    else:
        reason = f"{host} cannot be reached ({error.reason})"
    if not part.answered:  # waiting helps if a server answered before, not if there is no connection at all
        raise DownloadError(
            f"{part.target.name} was not downloaded: {reason}; {part.advice}", code="host-unreachable"
        ) from error
    return reason
