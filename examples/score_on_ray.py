"""Score a folder of Parquet files with pairs on a Ray cluster, a task per file; files with scores are skipped.

    python examples/score_on_ray.py RUN PAIRS SCORES

Needs `pip install 'dyg-mamba[ray]'`. Every machine must be able to read the three folders; RUN may be the address of a
shared run instead, such as s3://bucket/run. Ray repeats the task of a worker that was killed. If the script is stopped,
start it again: only files without scores are left to do.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import ray
from pyarrow import parquet

import dygmamba as dm

BATCH = 1 << 16  # pairs, about 2 MB; a worker takes memory for one batch, beside the run


@ray.remote
def score_file(scorer: Callable[[pa.RecordBatch], pa.RecordBatch], part: Path, scores: Path) -> Path:
    """Write the scores of a file, in its order, under the same name in the folder `scores`."""
    done = scores / part.name
    handle, unfinished = tempfile.mkstemp(dir=scores, prefix=f".{part.name}.")
    os.close(handle)
    writer = None
    for batch in parquet.ParquetFile(part).iter_batches(BATCH):
        scored = scorer(batch)
        writer = writer or parquet.ParquetWriter(unfinished, scored.schema)
        writer.write_batch(scored)
    if writer is not None:
        writer.close()
        os.replace(unfinished, done)  # a file with this name is complete
    return done


def main(run: str, pairs: str, scores: str) -> None:
    """Write SCORES/NAME.parquet for each file PAIRS/NAME.parquet."""
    ray.init(ignore_reinit_error=True)
    out = Path(scores).absolute()
    out.mkdir(parents=True, exist_ok=True)
    parts = sorted(Path(pairs).absolute().glob("*.parquet"))
    left = [part for part in parts if not (out / part.name).exists()]
    print(f"{len(left)} of {len(parts)} files to score")
    scorer = ray.put(dm.open(run).scorer())
    tasks = [score_file.remote(scorer, part, out) for part in left]
    while tasks:
        (task,), tasks = ray.wait(tasks)
        print(f"{ray.get(task).name} is scored", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
