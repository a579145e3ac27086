"""Runs to others and from others: a folder in the layout of the Hugging Face Hub, here or there."""

import tempfile
from pathlib import Path

from dygmamba.door.hub import download, place_of, require_client, upload
from dygmamba.door.run import Run
from dygmamba.door.states import tell_unfinished
from dygmamba.engine.folder import RunFolder
from dygmamba.runs.opening import open_data
from dygmamba.runs.sharing import KNOWN, LIST, MOST_LISTED, pack, unpack


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
    path, place = Path(run) if isinstance(run, str | Path) else run.path, place_of(target)
    if isinstance(place, str):
        require_client()
    tell_unfinished(path)
    folder = None if data_dir is None else Path(data_dir)
    dataset = open_data(RunFolder(path), folder) if data else None
    if isinstance(place, Path):
        return str(pack(path, place, dataset))
    with tempfile.TemporaryDirectory() as packed:
        return upload(pack(path, Path(packed) / "run", dataset, place), place, not public)


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
    place, root = place_of(source), Path(out)
    folder = None if data_dir is None else Path(data_dir)
    if isinstance(place, Path):
        return Run(unpack(place, root, folder).path, device, folder)
    require_client()
    bounds = {name: most for name, (_, most) in KNOWN.items()} | {LIST: MOST_LISTED}
    with tempfile.TemporaryDirectory() as fetched:
        download(place, revision, bounds, Path(fetched))
        return Run(unpack(Path(fetched), root, folder).path, device, folder)
