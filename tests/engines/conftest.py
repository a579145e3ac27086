"""A run, pairs in several files, and the scores that one process gives them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dygmamba.api.prediction import run_prediction
from dygmamba.api.requests.prediction import PredictRequest
from engine_cases import FILES, ROWS


class Job(NamedTuple):
    """What is scored, and the result by key."""

    run: Path
    pairs: Path
    expected: list[float]


@pytest.fixture(scope="session")
def job(trees_run, tmp_path_factory) -> Job:
    draw, folder = np.random.default_rng(0), tmp_path_factory.mktemp("job")
    pairs, expected, last = folder / "pairs", [], float(trees_run.data.store.time[-1])
    pairs.mkdir()
    for number in range(FILES):
        columns = {name: draw.integers(0, 32, ROWS) for name in ("src", "dst")}  # some of them are unknown
        columns["time"] = draw.uniform(0, 1.1 * last, ROWS).round()
        part = pairs / f"part-{number}.parquet"
        parquet.write_table(pa.table({"key": number * ROWS + np.arange(ROWS), **columns}), part)
        request = PredictRequest(run=trees_run.path, pairs=part, device="cpu")
        expected += run_prediction(request.check()).table["score"].to_pylist()
    return Job(trees_run.path, pairs, expected)
