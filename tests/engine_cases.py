"""Pairs in files, for engines that score them: how many there are, and how their scores are read."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

FILES, ROWS = 6, 40_000


def read_scores(folder: Path) -> list[float]:
    """The scores of all files, in the order of the keys; every pair has one."""
    files = [path for path in sorted(folder.rglob("*.parquet")) if path.is_file()]
    table = pa.concat_tables(map(parquet.read_table, files)).sort_by("key")
    assert table["key"].to_pylist() == list(range(FILES * ROWS))
    assert len(table["run_digest"].unique()) == len(table["known_until"].unique()) == 1
    return table["score"].to_pylist()
