"""Live runs: a trained run that takes events as they happen, with its log on the disk; backup and restoring."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dygmamba.api.run import Run
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.errors import ConfigError, FileError
from dygmamba.data.readers import ReadOptions
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.live.backup import FolderCheck as FolderCheck
from dygmamba.live.backup import check_folder as check_folder
from dygmamba.live.backup import restore_backup
from dygmamba.live.backup import write_backup as write_backup
from dygmamba.live.event_log import LogReader
from dygmamba.live.live_run import LiveRun
from dygmamba.live.verdicts import Acknowledgement
from dygmamba.runs.opening import warn_if_unfinished
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.run_names import get_run_path

if TYPE_CHECKING:
    RunLike = Run | Path | str
else:
    RunLike = Any


@check_arguments
def live(
    run: "RunLike",
    path: Path | str,
    *,
    late: str | float | None = None,
    on_late: str | None = None,
    max_ahead: str | float | None = None,
    fill: float | None = None,
    device: str = "auto",
    data_dir: Path | str | None = None,
) -> LiveRun:
    """Open a run for live use: append events as they happen, and score with all of them.

    The folder `path` keeps the events on the disk; it is created if it does not exist. Opened again, also after a
    crash, it gives the same scores to the bit. One process at a time has it open.

    Args:
        run: A `Run` or the path of its directory.
        path: The state folder.
        late: How much earlier than the latest event an event may be, such as "10m" or "7d", or a number in the unit of
            the stream. Default: as before, or "0s" in a new folder.
        on_late: What happens to an event that is earlier still: "refuse" (default) or "set-aside".
        max_ahead: How far ahead of the clock an event may be dated, such as "1h", or "off". One that is further ahead
            is set aside, because it would make all others late. In a stream whose times are plain numbers, how far
            after the latest event. Default: as before; in a new folder "1d" for dates, "off" for numbers.
        fill: Replaces missing numbers, also of features that events lack altogether.
        device: "cpu" or "auto", which is the CPU: the state that grows with the events is in its memory.
        data_dir: Where to look for the dataset of the run first.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1, rounds=2)
    >>> with dm.live(run, "state", late="1h") as live:
    ...     answer = live.append([{"id": "a1", "src": 3, "dst": 39, "time": 1.8e9}])
    ...     live.score([(3, 39)], min_sequence=answer.sequence).num_rows
    1
    >>> with dm.live(run, "state") as live:
    ...     live.sequence
    1
    """
    folder = RunDirectory(get_run_path(run))
    warn_if_unfinished(folder)
    time_unit, time_format = "auto", None
    if isinstance(run, Run):
        if run._extended is not None:
            raise ConfigError(
                "`run` observed events that the log would not hold; give the run as it was trained, and append them",
                code="run-observed-events",
            )
        time_unit, time_format = run.time_unit, run.time_format
        data_dir = data_dir or run.data_dir
    data_dir = None if data_dir is None else Path(data_dir)
    options = ReadOptions(time_unit=time_unit, time_format=time_format)
    predictor = Predictor.open(folder, "cpu" if device == "auto" else device, data_dir, options)
    return LiveRun(
        predictor, Path(path), late=late, on_late=on_late, max_ahead=max_ahead, fill=fill, data_dir=data_dir
    )  # fmt: skip


@check_arguments
def restore(backup: Path | str, path: Path | str) -> Path:
    """Write a backup of a live run, the file of `live.backup`, into a new state folder; returns the folder.

    Every part of the backup is checked first.

    >>> import dygmamba as dm
    >>> (run,) = dm.train(dm.generate(nodes=40, events=600, communities=4), "trees", epochs=1, rounds=2)
    >>> with dm.live(run, "kept") as live:
    ...     answer = live.append([(3, 39, 1.8e9)])
    ...     saved = live.backup("kept.zip")
    >>> with dm.live(run, dm.restore("kept.zip", "copy")) as live:
    ...     live.sequence
    1
    """
    restore_backup(Path(backup), Path(path))
    return Path(path)


def accept_set_aside(
    folder: Path,
    *,
    late: str | None = None,
    max_ahead: str | None = None,
    run: Path | None = None,
    data_dir: Path | None = None,
) -> tuple[Acknowledgement, int]:
    """Judge the events that a state folder set aside again; return the verdicts, and how many are still there.

    Args:
        folder: The state folder; no other process may have it open.
        late: How much earlier than the latest event they may be, this time.
        max_ahead: How far ahead they may be dated, this time.
        run: Run directory; by default the one that the folder was last opened with.
        data_dir: Where to look for the dataset of the run first.
    """
    with LogReader(folder) as log:
        runs = log.read_runs()
    if run is None and not runs:
        raise FileError(f"{folder} was never opened with a run; delete it", code="not-a-log")
    with live(run or runs[-1].path, folder, data_dir=data_dir) as opened:
        return opened.accept_set_aside(late=late, max_ahead=max_ahead), opened.set_aside.num_rows
