"""Share runs: pack them into a folder in the layout of the Hugging Face Hub, here or there, and unpack them.

The Hub is used through its own client. Modules that need torch are imported where they are used, so that the command
line can check a target at once.
"""

import re
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.core.argument_types import check_arguments
from dygmamba.core.errors import (
    ConfigError,
    DownloadError,
    DygWarning,
    FileError,
    WriteError,
    first_line,
    make_package_error,
)
from dygmamba.core.files.untrusted import describe_file
from dygmamba.core.files.writing import create_temporary_folder, publish_path
from dygmamba.data.storage.locations import get_former_data_folder
from dygmamba.runs.run_names import get_run_path, iterate_runs

if TYPE_CHECKING:
    from dygmamba.api.run import Run
else:
    Run = Any

HUB_PREFIX = "hf://"
REPOSITORY_PATTERN = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"


def check_target(target: Path | str) -> Path | str:
    """Return a folder as a path and a repository as its name; user/name is a folder if it or its parent exists here.

    Raises:
        ConfigError: The target is malformed, or it is a repository and the client of the Hub is missing.
    """
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
            require_hub_client()
            return name
    elif target.startswith(HUB_PREFIX):
        raise ConfigError(
            f"{target!r:.80} is not a repository; write hf://user/name", code="malformed-target"
        )
    return Path(target).expanduser()


def require_hub_client() -> None:
    """Raise ConfigError if the client of the Hub is not installed."""
    if find_spec("huggingface_hub") is None:
        raise make_package_error(
            "a Hub repository (a folder is written ./name)", "huggingface_hub", "huggingface_hub"
        )


def upload_folder(folder: Path, repository: str, private: bool) -> str:
    """Upload a folder as a commit of a model repository, which is created if it does not exist; returns its address."""
    with _open_client("push to", repository) as client:
        client.create_repo(repo_id=repository, repo_type="model", private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repository, repo_type="model", folder_path=str(folder), commit_message="dygmamba push"
        )
    return f"{HUB_PREFIX}{repository}"


def download_files(repository: str, revision: str | None, limits: dict[str, int], folder: Path) -> None:
    """Download the files named in `limits`, all of one commit; a file above its limit in bytes is an error."""
    with _open_client("pull from", repository) as client:
        info = client.model_info(repository, revision=revision, files_metadata=True)
        sizes = {file.rfilename: file.size for file in info.siblings or [] if file.rfilename in limits}
        for name, size in sizes.items():
            check_size(name, repository, size, limits[name])
        client.snapshot_download(
            repository, revision=info.sha, allow_patterns=list(sizes), local_dir=str(folder)
        )


def download_from_store(address: str, limits: dict[str, int], folder: Path) -> None:
    """Download the files named in `limits` from an object store; a file above its limit in bytes is an error."""
    if find_spec("fsspec") is None:
        raise make_package_error(address, "fsspec", "fsspec")
    import fsspec

    with _translate_errors(
        f"read {address}", "check the address, the network and your access", "store-failed"
    ):
        store, root = fsspec.url_to_fs(address)
        for name, limit in limits.items():
            path = f"{root}/{name}"
            if store.exists(path):
                check_size(name, address, store.size(path), limit)
                store.get_file(path, str(folder / name))


def check_size(name: str, source: str, size: int | None, limit: int) -> None:
    """Raise DownloadError for a file of a shared run that is too large, or of unknown size."""
    if size is None or size > limit:
        raise DownloadError(
            f"{name} of {source} has {size} bytes, at most {limit:,} are accepted; pull another run",
            code="shared-file-too-large",
        )


def fetch_shared_run(address: str) -> Path:
    """Return the copy of a shared run in the user's cache, in a folder per content; it is fetched if there is none."""
    from dygmamba.runs.sharing import MANIFEST_FILE, MAX_MANIFEST_BYTES, SHARED_FILES, unpack_run

    limits = {name: limit for name, (_, limit) in SHARED_FILES.items()}
    cache = get_former_data_folder() / "shared-runs"
    download = partial(download_from_store, address)
    if address.startswith(HUB_PREFIX):
        download = partial(download_files, str(check_target(address)), None)
    with create_temporary_folder(cache) as scratch:
        manifest = scratch / MANIFEST_FILE
        download({MANIFEST_FILE: MAX_MANIFEST_BYTES}, scratch)
        if not manifest.is_file():
            raise FileError(
                f"{address} is not a shared run: it has no {MANIFEST_FILE}; give an address that a run was pushed to",
                code="not-a-shared-run",
            )
        root = cache / describe_file(manifest)["sha256"][:32]
        if not root.is_dir():
            download(limits, scratch)
            unpack_run(scratch, scratch / "runs")
            with suppress(WriteError):  # another process was faster
                publish_path(scratch / "runs", root)
    return next(iterate_runs(root))


@contextmanager
def _open_client(action: str, repository: str) -> Iterator[Any]:
    """Context manager: the client of the Hub, whose errors become DownloadErrors."""
    from huggingface_hub import HfApi  # pyright: ignore[reportMissingImports]

    advice = "check its name, the network, and `hf auth login`"
    with _translate_errors(f"{action} {repository}", advice, "hub-failed"):
        yield HfApi()


@contextmanager
def _translate_errors(action: str, advice: str, code: str) -> Iterator[None]:
    try:
        yield
    except DownloadError:
        raise
    except Exception as error:  # stores, clients and the packages below them raise many kinds
        raise DownloadError(
            f"cannot {action} ({type(error).__name__}: {first_line(error)}); {advice}", code=code
        ) from error


@check_arguments
def push(
    run: "Run | Path | str",
    target: Path | str,
    *,
    data: bool = False,
    public: bool = False,
    data_dir: Path | str | None = None,
) -> str:
    """Write a run into a folder for others, or to a repository of the Hugging Face Hub; returns where it is.

    It holds weights, settings, results and a card (README.md), each with its checksum; no pickle, no local path and no
    ids. With `data` also the events it was trained on, ids included. "user/name" is a repository unless that folder,
    or a folder "user", exists here; "hf://user/name" always is. A new repository is private unless `public`.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1, rounds=2, out="runs")
    >>> dm.push(run, "./shared")
    'shared'
    """
    from dygmamba.engine.run_directory import RunDirectory
    from dygmamba.runs.opening import open_run_dataset, warn_if_unfinished
    from dygmamba.runs.run_config import RunConfig
    from dygmamba.runs.sharing import pack_run

    path, place = get_run_path(run), check_target(target)
    warn_if_unfinished(path)
    folder = None if data_dir is None else Path(data_dir)
    dataset = open_run_dataset(RunConfig.read(RunDirectory(path)), folder) if data else None
    if isinstance(place, Path):
        return str(pack_run(path, place, dataset))
    with tempfile.TemporaryDirectory() as packed:
        return upload_folder(pack_run(path, Path(packed) / "run", dataset, place), place, not public)


@check_arguments
def pull(
    source: Path | str,
    *,
    out: Path | str = "runs",
    revision: str | None = None,
    device: str = "auto",
    data_dir: Path | str | None = None,
) -> "Run":
    """Fetch a pushed run into a run directory under `out`; every file is checked before it is placed there.

    Only known file names are accepted, with their sizes and checksums; nothing is imported or unpickled. The run
    predicts exactly as the pushed one. It needs the same dataset; if that did not come with it, the first query
    names it.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1, rounds=2, out="runs")
    >>> pulled = dm.pull(dm.push(run, "./shared", data=True), out="elsewhere")
    >>> pulled.score([(3, 5)]) == run.score([(3, 5)])
    True
    """
    from dygmamba.api.run import Run
    from dygmamba.runs.sharing import MANIFEST_FILE, MAX_MANIFEST_BYTES, SHARED_FILES, unpack_run

    place, root = check_target(source), Path(out)
    folder = None if data_dir is None else Path(data_dir)
    if isinstance(place, Path):
        return Run(unpack_run(place, root, folder).path, device, folder)
    if not str(source).startswith(HUB_PREFIX):
        note = f"{source} is not a folder here, so it is pulled from the Hugging Face Hub; ./{source} is a folder"
        warnings.warn(DygWarning(note), stacklevel=3)
    limits = {name: limit for name, (_, limit) in SHARED_FILES.items()} | {MANIFEST_FILE: MAX_MANIFEST_BYTES}
    with tempfile.TemporaryDirectory() as fetched:
        download_files(place, revision, limits, Path(fetched))
        return Run(unpack_run(Path(fetched), root, folder).path, device, folder)
