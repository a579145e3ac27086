"""One file over HTTP: whole or not at all, and resumed where it stopped."""

import hashlib
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
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

RETRYABLE_STATUS = {408, 425, 429, 500, 502, 503, 504}  # answers that a later try may not get again
MIN_PROGRESS_BYTES = (
    2**20
)  # a try that brought this much is no failure, so long files survive a restless line
MAX_BYTES = 2**37  # the largest public archive has a tenth of it
MAX_SECONDS = 24 * 3600.0  # a server that drips byte by byte is left then; what came is kept


def fetch_file(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    progress: DownloadProgress | None = None,
    timeout: float = 30.0,
    retries: int = 5,
    most_bytes: int = MAX_BYTES,
    most_seconds: float = MAX_SECONDS,
) -> Path:
    """The file at `url` as `target`, which exists only once it is whole.

    Bytes gather in `target.part`, and a later call goes on from there if the server still has the same file.
    `checksum` is "md5:..." or "sha256:...". `progress(added, total)` is called as bytes arrive; what is added
    sums to the size, and is negative where the server makes us start again. A server that stalls for
    `timeout` seconds, breaks off or says it is busy is asked again, at most `retries` times without progress.
    More than `most_bytes` are refused; after `most_seconds` in all the download is left for another call.
    """
    address = RequestUrl.of(url)
    if target.exists():
        verify_checksum(target, checksum)
        return target
    with PartialDownload(address, target, checksum is not None, progress, most_bytes) as part:
        if not target.exists():  # another process may have finished it while we waited for the lock
            _complete_download(part, checksum, timeout, retries, most_seconds)
            part.promote()
    return target


@contextmanager
def open_download(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    progress: DownloadProgress | None = None,
    most_bytes: int = MAX_BYTES,
    otherwise: str = "",
) -> Iterator[PartialDownload]:
    """The file at `url` while it is looked into: whole and checked, but not yet `target`, and it need never be.

    Whoever has used it, or found it of no use, discards it; left as it is, a later call need not download it again.
    `otherwise` is said where the checksum is another.
    """
    with PartialDownload(RequestUrl.of(url), target, checksum is not None, progress, most_bytes) as part:
        _complete_download(part, checksum, 30.0, 5, MAX_SECONDS, otherwise)
        yield part


def _complete_download(
    part: PartialDownload,
    checksum: str | None,
    timeout: float,
    retries: int,
    most_seconds: float,
    otherwise: str = "",
) -> None:
    _download_with_retries(part, timeout, retries, time.monotonic() + most_seconds)
    part.seal()
    if (found := compute_checksum(part.path, checksum)) != checksum:
        part.discard()
        was = f"{part.target.name} arrived corrupt ({found} instead of {checksum}) and was deleted"
        raise DownloadError(f"{was}; {part.by_hand}{otherwise}")


def compute_checksum(path: Path, checksum: str | None) -> str | None:
    """The file's checksum by the algorithm of `checksum`, None where there is none to compare with."""
    if checksum is None:
        return None
    algorithm = checksum.partition(":")[0]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{found.hexdigest()}"


def verify_checksum(path: Path, checksum: str | None, otherwise: str = "") -> None:
    """Refuse a file that is there but is not the one meant; it may be the user's, so it is not touched."""
    if (found := compute_checksum(path, checksum)) != checksum:
        raise DownloadError(
            f"{path} is not the published file ({found} instead of {checksum}); "
            f"move it away and run the command again{otherwise}"
        )


def _download_with_retries(part: PartialDownload, timeout: float, retries: int, end: float) -> None:
    """Ask until the part is whole; each try without progress is waited for a little longer, up to a bound."""
    best, failures = part.size, 0
    while True:
        reason, wait = _attempt_request(part, timeout, end)
        if part.whole:
            return
        gained, best = part.size - best, max(best, part.size)
        if gained >= MIN_PROGRESS_BYTES:
            continue
        failures += 1
        if failures > retries:
            if gained == 0 and part.ended:
                part.discard()  # it keeps ending short of its own promise: what it sent cannot be trusted
            raise DownloadError(f"{part.target.name} did not arrive: {reason}; {part.advice}")
        _check_deadline(part, end)
        time.sleep(min(timeout, max(wait, timeout / 60 * 2**failures)))


def _check_deadline(part: PartialDownload, end: float) -> None:
    if time.monotonic() > end:
        raise DownloadError(f"{part.target.name} did not arrive: it took too long; {part.advice}")


def _attempt_request(part: PartialDownload, timeout: float, end: float) -> tuple[str, float]:
    """One request; what went wrong, if anything did, and how long the server asks to be left alone."""
    host = urlsplit(part.url).netloc
    part.ended = False
    try:
        with open_response(part.address.request(part.headers), timeout, end) as response:
            if not part.begin(response):
                return f"the file at {host} has changed", 0.0
            while chunk := response.read1(CHUNK_BYTES):
                part.write(chunk)
                _check_deadline(part, end)
            part.ended = True
    except HTTPError as error:
        return _handle_http_error(part, error, host)
    except URLError as error:
        return _describe_url_error(part, error, host, timeout), 0.0
    except TimeoutError:
        return f"{host} sent nothing for {timeout:g} s", 0.0
    except (HTTPException, OSError) as error:
        return f"the connection to {host} broke ({type(error).__name__})", 0.0
    return f"{host} promised {part.total or 0:,} bytes and sent {part.size:,}", 0.0


def _handle_http_error(part: PartialDownload, error: HTTPError, host: str) -> tuple[str, float]:
    reason = f"{host} answered {error.code} {error.reason}"
    part.answered = True
    with error:
        if error.code == 416:
            part.beyond(error.headers.get("Content-Range", ""))
        elif error.code not in RETRYABLE_STATUS:
            raise DownloadError(f"{part.target.name} did not arrive: {reason}; {part.advice}") from error
    return reason, float(parse_header_number(error.headers.get("Retry-After", "")) or 0)


def _describe_url_error(part: PartialDownload, error: URLError, host: str, timeout: float) -> str:
    if isinstance(error.reason, socket.gaierror):
        reason = f"the host {host} cannot be found from here"
    elif isinstance(error.reason, TimeoutError):
        return f"{host} sent nothing for {timeout:g} s"
    elif isinstance(error.reason, ConnectionRefusedError):
        reason = f"{host} refused the connection"
    else:
        reason = f"{host} cannot be reached ({error.reason})"
    if not part.answered:  # waiting helps a server that has stumbled, not a line that is not there
        raise DownloadError(f"{part.target.name} did not arrive: {reason}; {part.advice}") from error
    return reason
