"""Recognise folders of public leaderboards (TGB, TGB-Seq), or in their layout, without reading the events."""

import re
from pathlib import Path

from dygmamba.core.errors import FileError

LEADERBOARD_FORMATS = ("tgb", "tgb-seq")
TGB_EDGE_LIST = re.compile(r"(\w[\w-]*)_edgelist(?:_v(\d+))?\.csv")


def detect_folder_format(path: Path) -> str | None:
    """Return the leaderboard format of a folder, or None."""
    try:
        if not path.is_dir():
            return None
        if any(TGB_EDGE_LIST.fullmatch(file.name) for file in path.iterdir()):
            return "tgb"
        return "tgb-seq" if _find_tables_with_split(path) else None
    except (OSError, ValueError):  # not a possible folder name, or no permission
        return None


def find_tgb_edge_list(path: Path) -> tuple[Path, str, str]:
    """Find TGB's table of events in a folder, or take the file itself.

    Returns:
        The file, the name of the dataset, and the version suffix that its companion files share.
    """
    files = [path] if path.is_file() else sorted(path.iterdir())
    matches = [(match, file) for file in files if (match := TGB_EDGE_LIST.fullmatch(file.name))]
    if not matches:
        raise FileError(
            f"{path} has no event table of TGB; give a folder with NAME_edgelist.csv or NAME_edgelist_v2.csv",
            code="leaderboard-table-missing",
        )
    if len(names := {match[1] for match, _ in matches}) > 1:
        raise FileError(
            f"{path} has the event tables of {', '.join(sorted(names))}; give each a folder of its own",
            code="several-leaderboard-tables",
        )
    match, file = max(matches, key=lambda candidate: int(candidate[0][2] or 1))  # the latest version
    return file, match[1], "" if match[2] is None else f"_v{match[2]}"


def find_tgb_seq_table(path: Path) -> Path:
    """Find TGB-Seq's table of events in a folder, or take the file itself."""
    if path.is_file():
        return path
    tables = _find_tables_with_split(path)
    if not tables:
        raise FileError(
            f"{path} has no event table of TGB-Seq; give a folder with NAME.csv of src, dst, time and split",
            code="leaderboard-table-missing",
        )
    return tables[-1]


def _find_tables_with_split(path: Path) -> list[Path]:
    """Find CSV files with the columns of TGB-Seq, by their header lines."""
    tables = []
    for file in filter(Path.is_file, sorted(path.glob("*.csv"))):  # opening a named pipe would wait for ever
        with file.open("rb") as stream:
            header = stream.readline(4096).decode("utf-8", "replace")
        names = [name.strip().strip('"') for name in header.split(",")]
        if {"src", "dst", "time", "split"} <= set(names):
            tables.append(file)
    return tables
