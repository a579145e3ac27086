"""The list of runs on disk."""

from pathlib import Path

import pyarrow as pa

from dygmamba.core.argument_types import check_arguments
from dygmamba.runs.run_list import list_runs as find_summaries
from dygmamba.runs.run_names import LATEST

RUN_COLUMNS = {
    **{name: pa.string() for name in ("path", "data", "model")},
    "seed": pa.int64(),
    **{name: pa.string() for name in ("task", "started")},
    "finished": pa.bool_(),
    "rejected": pa.bool_(),
    "metric": pa.string(),
    "val": pa.float64(),
    "test": pa.float64(),
    "best": pa.bool_(),
}


@check_arguments
def list_runs(data: str = LATEST, *, folder: Path | str = "runs") -> pa.Table:
    """List the runs below a folder, or those of one dataset, the newest first, with a metric on validation and test.

    `rejected` is a candidate of a `budget` that another one was chosen over; it has no test, and is complete without.

    The metric is "ap" for links; for nodes "auc" (two states), "macro_f1" (classes) or "mae" (numbers). `best` marks
    the best by validation among the runs with the same metric on the same split of the same events. `open` takes a path
    of the list, or the name of a dataset for its newest finished run.

    >>> import dygmamba as dm
    >>> _ = dm.train(dm.generate(nodes=40, events=600, communities=4, name="mail"), "trees", epochs=1, rounds=2)
    >>> dm.list_runs("mail").select(["data", "model", "seed", "finished", "best"]).to_pylist()
    [{'data': 'mail', 'model': 'trees', 'seed': 0, 'finished': True, 'best': True}]
    """
    rows = [one.to_dict() for one in find_summaries(data, Path(folder))]
    return pa.Table.from_pylist(rows, pa.schema(RUN_COLUMNS))
