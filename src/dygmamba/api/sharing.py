"""The Hugging Face Hub, through its own client: a folder up, the known files of a repository down.

Runs to others and from others: a folder in the layout of the Hugging Face Hub, here or there.
"""

import re
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dygmamba.api.evaluation import warn_if_unfinished
from dygmamba.api.run import Run
from dygmamba.core.errors import ConfigError, DownloadError, first_line
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.opening import open_run_dataset
from dygmamba.runs.sharing import MANIFEST_FILE, MAX_MANIFEST_BYTES, SHARED_FILES, pack_run, unpack_run

HUB_PREFIX = "hf://"
REPOSITORY_PATTERN = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"


def parse_target(target: Path | str) -> Path | str:
    """A folder as a path, a repository as its name; user/name is a folder where it or its parent is one here."""
    if isinstance(target, Path):
        return target
    if not target.isprintable() or not target.strip():
        raise ConfigError(
            f"{target!r:.80} names neither a folder nor a repository; write ./name or user/name"
        )
    name = target.removeprefix(HUB_PREFIX)
    if re.fullmatch(REPOSITORY_PATTERN, name):
        here = Path(name)
        if target.startswith(HUB_PREFIX) or not (here.exists() or here.parent.is_dir()):
            return name
    elif target.startswith(HUB_PREFIX):
        raise ConfigError(f"{target!r:.80} names no repository; write hf://user/name")
    return Path(target).expanduser()


def require_hub_client() -> None:
    """Refuse a repository where its client is missing."""
    if find_spec("huggingface_hub") is None:
        raise ConfigError(
            "a repository needs the package huggingface_hub; pip install huggingface_hub, or give a folder "
            "(./name is one)"
        )


def upload_folder(folder: Path, repository: str, private: bool) -> str:
    """The folder's files as a commit of a model repository, which is made if there is none; its address."""
    client = _open_client()
    try:
        client.create_repo(repo_id=repository, repo_type="model", private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repository, repo_type="model", folder_path=str(folder), commit_message="dygmamba push"
        )
    except Exception as error:  # whatever the client and what it stands on raise
        raise _make_hub_error("push to", repository, error) from error
    return f"{HUB_PREFIX}{repository}"


def download_files(repository: str, revision: str | None, bounds: dict[str, int], folder: Path) -> None:
    """The files of these names into a folder, none larger than its bound, all of one commit."""
    client = _open_client()
    try:
        info = client.model_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings or [] if file.rfilename in bounds}
    except Exception as error:
        raise _make_hub_error("pull from", repository, error) from error
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
        raise _make_hub_error("pull from", repository, error) from error


def _open_client() -> Any:
    require_hub_client()
    from huggingface_hub import HfApi  # pyright: ignore[reportMissingImports]

    return HfApi()


def _make_hub_error(what: str, repository: str, error: Exception) -> DownloadError:
    return DownloadError(
        f"cannot {what} {repository} ({type(error).__name__}: {first_line(error)}); check its name, the "
        "network, and `hf auth login`"
    )


def push(
    run: "Run | Path | str",
    target: Path | str,
    *,
    data: bool = False,
    public: bool = False,
    data_dir: Path | str | None = None,
) -> str:
    """Write a run into a folder for others, or a repository of the Hugging Face Hub; where it is.

    Weights, settings, results and a card (README.md), each with its checksum; no pickle, no path, nobody's ids. With
    `data` also the events it was trained on, ids included. "user/name" is a repository unless there is such a folder,
    or one called user, here; "hf://user/name" always is. One that is made is private unless `public`.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1, rounds=2, out="runs")
    >>> dm.push(run, "./shared")
    'shared'
    """
    path, place = Path(run) if isinstance(run, str | Path) else run.path, parse_target(target)
    if isinstance(place, str):
        require_hub_client()
    warn_if_unfinished(path)
    folder = None if data_dir is None else Path(data_dir)
    dataset = open_run_dataset(RunDirectory(path), folder) if data else None
    if isinstance(place, Path):
        return str(pack_run(path, place, dataset))
    with tempfile.TemporaryDirectory() as packed:
        return upload_folder(pack_run(path, Path(packed) / "run", dataset, place), place, not public)


def pull(
    source: Path | str,
    *,
    out: Path | str = "runs",
    revision: str | None = None,
    device: str = "auto",
    data_dir: Path | str | None = None,
) -> Run:
    """A run that was pushed, as a run folder under `out`: every file is checked before it lies there.

    Sizes, checksums, seals, known names only; nothing is imported or unpickled. It predicts exactly as the one that was
    pushed, given the data; where they did not come with it, the first question says which are needed.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1, rounds=2, out="runs")
    >>> pulled = dm.pull(dm.push(run, "./shared", data=True), out="elsewhere")
    >>> pulled.score([(3, 5)]) == run.score([(3, 5)])
    True
    """
    place, root = parse_target(source), Path(out)
    folder = None if data_dir is None else Path(data_dir)
    if isinstance(place, Path):
        return Run(unpack_run(place, root, folder).path, device, folder)
    require_hub_client()
    bounds = {name: most for name, (_, most) in SHARED_FILES.items()} | {MANIFEST_FILE: MAX_MANIFEST_BYTES}
    with tempfile.TemporaryDirectory() as fetched:
        download_files(place, revision, bounds, Path(fetched))
        return Run(unpack_run(Path(fetched), root, folder).path, device, folder)
