"""The Hugging Face Hub, through its own client: a folder up, the known files of a repository down."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dygmamba.errors import ConfigError, DownloadError, first_line

PREFIX = "hf://"
REPOSITORY = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"


def place_of(target: Path | str) -> Path | str:
    """A folder as a path, a repository as its name; user/name is a folder where it or its parent is one here."""
    if isinstance(target, Path):
        return target
    if not target.isprintable() or not target.strip():
        raise ConfigError(
            f"{target!r:.80} names neither a folder nor a repository; write ./name or user/name"
        )
    name = target.removeprefix(PREFIX)
    if re.fullmatch(REPOSITORY, name):
        here = Path(name)
        if target.startswith(PREFIX) or not (here.exists() or here.parent.is_dir()):
            return name
    elif target.startswith(PREFIX):
        raise ConfigError(f"{target!r:.80} names no repository; write hf://user/name")
    return Path(target).expanduser()


def require_client() -> None:
    """Refuse a repository where its client is missing."""
    if find_spec("huggingface_hub") is None:
        raise ConfigError(
            "a repository needs the package huggingface_hub; pip install huggingface_hub, or give a folder "
            "(./name is one)"
        )


def upload(folder: Path, repository: str, private: bool) -> str:
    """The folder's files as a commit of a model repository, which is made if there is none; its address."""
    client = _client()
    try:
        client.create_repo(repo_id=repository, repo_type="model", private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repository, repo_type="model", folder_path=str(folder), commit_message="dygmamba push"
        )
    except Exception as error:  # whatever the client and what it stands on raise
        raise _told("push to", repository, error) from error
    return f"{PREFIX}{repository}"


def download(repository: str, revision: str | None, bounds: dict[str, int], folder: Path) -> None:
    """The files of these names into a folder, none larger than its bound, all of one commit."""
    client = _client()
    try:
        info = client.model_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings or [] if file.rfilename in bounds}
    except Exception as error:
        raise _told("pull from", repository, error) from error
    for name, size in sizes.items():
        if size is None or size > bounds[name]:
            raise DownloadError(
                f"{name} of {repository} has {size} bytes, at most {bounds[name]:,} are taken; pull another"
            )
    try:
        client.snapshot_download(
            repository, revision=info.sha, allow_patterns=list(sizes), local_dir=str(folder)
        )
    except Exception as error:
        raise _told("pull from", repository, error) from error


def _client() -> Any:
    require_client()
    from huggingface_hub import HfApi  # pyright: ignore[reportMissingImports]

    return HfApi()


def _told(what: str, repository: str, error: Exception) -> DownloadError:
    return DownloadError(
        f"cannot {what} {repository} ({type(error).__name__}: {first_line(error)}); check its name, the "
        "network, and `hf auth login`"
    )
