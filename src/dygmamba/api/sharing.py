"""Share runs: pack them into a folder in the layout of the Hugging Face Hub, here or there, and unpack them."""

import tempfile
from pathlib import Path

from dygmamba.api.evaluation import warn_if_unfinished
from dygmamba.api.hub import download_files, parse_target, require_hub_client, upload_folder
from dygmamba.api.run import Run
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.opening import open_run_dataset
from dygmamba.runs.sharing import MANIFEST_FILE, MAX_MANIFEST_BYTES, SHARED_FILES, pack_run, unpack_run


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
    place, root = parse_target(source), Path(out)
    folder = None if data_dir is None else Path(data_dir)
    if isinstance(place, Path):
        return Run(unpack_run(place, root, folder).path, device, folder)
    require_hub_client()
    limits = {name: limit for name, (_, limit) in SHARED_FILES.items()} | {MANIFEST_FILE: MAX_MANIFEST_BYTES}
    with tempfile.TemporaryDirectory() as fetched:
        download_files(place, revision, limits, Path(fetched))
        return Run(unpack_run(Path(fetched), root, folder).path, device, folder)
