"""Download a single file to its final name, as tests of the downloader need it."""

from pathlib import Path

from dygmamba.data.catalogue.download import DownloadLimits, open_download, verify_checksum
from dygmamba.data.catalogue.partial_download import DownloadProgress


def fetch_file(
    url: str,
    target: Path,
    *,
    checksum: str | None = None,
    progress: DownloadProgress | None = None,
    **limits: float,
) -> Path:
    """Download to `target`, which exists only when it is complete; `limits` are fields of `DownloadLimits`."""
    if target.exists():
        verify_checksum(target, checksum)
        return target
    bounds = DownloadLimits(**limits)  # pyright: ignore[reportArgumentType]
    with open_download(url, target, checksum=checksum, progress=progress, limits=bounds) as part:
        part.path.replace(target)
    return target
