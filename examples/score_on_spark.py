"""Score a folder of Parquet files with pairs on Spark, a job per file; files with scores are skipped.

    spark-submit examples/score_on_spark.py RUN PAIRS SCORES

Needs `pip install 'dyg-mamba[spark]'` and Java 17. Every machine must be able to read the three folders; RUN may be the
address of a shared run instead, such as s3://bucket/run. Spark repeats the tasks of an executor that was killed. If the
script is stopped, start it again: only files without scores are left to do.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import dygmamba as dm

BATCH = 1 << 16  # pairs, about 2 MB; a worker takes memory for one batch, beside the run


def main(run: str, pairs: str, scores: str) -> None:
    """Write SCORES/NAME.parquet, a folder, for each file PAIRS/NAME.parquet."""
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH)
    out, scorer = Path(scores).absolute(), dm.open(run).scorer()
    parts = sorted(Path(pairs).absolute().glob("*.parquet"))
    # Spark writes this file when all tasks of a job are done
    left = [part for part in parts if not (out / part.name / "_SUCCESS").exists()]
    print(f"{len(left)} of {len(parts)} files to score")

    def score_file(part: Path) -> None:
        table = spark.read.parquet(str(part))
        schema = StructType([*table.schema])
        for name, kind in scorer.columns.items():
            schema = schema.add(name, kind)
        scored = table.mapInArrow(scorer.map_batches, schema)
        scored.write.parquet(str(out / part.name), mode="overwrite")
        print(f"{part.name} is scored", flush=True)

    # a small file is one task, so as many jobs run side by side as there are cores
    with ThreadPoolExecutor(spark.sparkContext.defaultParallelism) as threads:
        list(threads.map(score_file, left))


if __name__ == "__main__":
    main(*sys.argv[1:])
