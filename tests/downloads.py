"""Download a single file to its final name, as tests of the downloader need it."""

from pathlib import Path
from typing import Any

from dygmamba.data.catalogue.download import open_download


def fetch_file(url: str, target: Path, **how: Any) -> Path:
    """Download to `target`, which exists only when it is complete; `how` are arguments of `open_download`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_download(url, target, **how) as part:
        part.replace(target)
    return target
