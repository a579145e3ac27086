"""Formats that are folders, as public scoreboards give them: known by their files, without reading any."""

import re
from pathlib import Path

from dygmamba.core.errors import FileError

LEADERBOARD_FORMATS = ("tgb", "tgb-seq", "relbench")
TGB_EDGE_LIST = re.compile(r"(tgb[ln]-[a-z]+)_edgelist(?:_v(\d+))?\.csv")
RELBENCH_EVENTS = Path("db") / "events.parquet"


def detect_folder_format(path: Path) -> str | None:
    """Which scoreboard's a folder is, None where it is no known one's."""
    try:
        if not path.is_dir():
            return None
        if any(TGB_EDGE_LIST.fullmatch(file.name) for file in path.iterdir()):
            return "tgb"
        if (path / RELBENCH_EVENTS).is_file():
            return "relbench"
        return "tgb-seq" if _find_tables_with_split(path) else None
    except (OSError, ValueError):  # a name no folder can have, or one that may not be looked into
        return None


def find_tgb_edge_list(path: Path) -> tuple[Path, str, str]:
    """TGB's table of events in a folder, or the file itself; its name, and the end that its companions share."""
    files = [path] if path.is_file() else sorted(path.iterdir())
    found = [(match, file) for file in files if (match := TGB_EDGE_LIST.fullmatch(file.name))]
    if not found:
        raise FileError(
            f"{path} holds no table of TGB's; give a folder with NAME_edgelist.csv or NAME_edgelist_v2.csv"
        )
    match, file = max(found, key=lambda one: int(one[0][2] or 1))
    return file, match[1], "" if match[2] is None else f"_v{match[2]}"


def find_tgb_seq_table(path: Path) -> Path:
    """TGB-Seq's table of events in a folder, or the file itself."""
    if path.is_file():
        return path
    found = _find_tables_with_split(path)
    if not found:
        raise FileError(
            f"{path} holds no table of TGB-Seq's; give a folder with NAME.csv of src, dst, time and split"
        )
    return found[-1]


def _find_tables_with_split(path: Path) -> list[Path]:
    """Tables that say of each event which period it is of."""
    found = []
    for file in sorted(path.glob("*.csv")):
        with file.open("rb") as stream:
            first = stream.readline(4096).decode("utf-8", "replace")
        names = [name.strip().strip('"') for name in first.split(",")]
        if {"src", "dst", "time", "split"} <= set(names):
            found.append(file)
    return found
