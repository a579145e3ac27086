"""The Hugging Face Hub, through its own client: upload a folder, download known files of a repository.

Free of torch, so that the command line can check a target at once.
"""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError, DownloadError, first_line

HUB_PREFIX = "hf://"
REPOSITORY_PATTERN = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"


def parse_target(target: Path | str) -> Path | str:
    """Return a folder as a path and a repository as its name; user/name is a folder if it or its parent exists here."""
    if isinstance(target, Path):
        return target
    if not target.isprintable() or not target.strip():
        raise ConfigError(
            f"{target!r:.80} names neither a folder nor a repository; write ./name or user/name",
            code="malformed-target",
        )
    name = target.removeprefix(HUB_PREFIX)
    if re.fullmatch(REPOSITORY_PATTERN, name):
        local = Path(name)
        if target.startswith(HUB_PREFIX) or not (local.exists() or local.parent.is_dir()):
            return name
    elif target.startswith(HUB_PREFIX):
        raise ConfigError(
            f"{target!r:.80} is not a repository; write hf://user/name", code="malformed-target"
        )
    return Path(target).expanduser()


def check_target(target: Path | str) -> None:
    """Raise ConfigError if a target is malformed, or is a repository and the client of the Hub is missing."""
    if isinstance(parse_target(target), str):
        require_hub_client()


def require_hub_client() -> None:
    """Raise ConfigError if the client of the Hub is not installed."""
    if find_spec("huggingface_hub") is None:
        raise ConfigError(
            "a repository needs the package huggingface_hub; pip install huggingface_hub, or give a folder "
            "(./name is one)",
            code="hub-client-missing",
        )


def upload_folder(folder: Path, repository: str, private: bool) -> str:
    """Upload a folder as a commit of a model repository, which is created if it does not exist; returns its address."""
    client = _open_client()
    try:
        client.create_repo(repo_id=repository, repo_type="model", private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repository, repo_type="model", folder_path=str(folder), commit_message="dygmamba push"
        )
    except Exception as error:  # the client and the packages below it raise many kinds
        raise _make_hub_error("push to", repository, error) from error
    return f"{HUB_PREFIX}{repository}"


def download_files(repository: str, revision: str | None, limits: dict[str, int], folder: Path) -> None:
    """Download the files named in `limits`, all of one commit; a file above its limit in bytes is an error."""
    client = _open_client()
    try:
        info = client.model_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings or [] if file.rfilename in limits}
    except Exception as error:
        raise _make_hub_error("pull from", repository, error) from error
    for name, size in sizes.items():
        if size is None or size > limits[name]:
            raise DownloadError(
                f"{name} of {repository} has {size} bytes, at most {limits[name]:,} are accepted; pull another run",
                code="shared-file-too-large",
            )
    try:
        client.snapshot_download(
            repository, revision=info.sha, allow_patterns=list(sizes), local_dir=str(folder)
        )
    except Exception as error:
        raise _make_hub_error("pull from", repository, error) from error


def _open_client() -> Any:
    require_hub_client()
    from huggingface_hub import HfApi  # pyright: ignore[reportMissingImports]

    return HfApi()


def _make_hub_error(action: str, repository: str, error: Exception) -> DownloadError:
    return DownloadError(
        f"cannot {action} {repository} ({type(error).__name__}: {first_line(error)}); check its name, the "
        "network, and `hf auth login`",
        code="hub-failed",
    )
