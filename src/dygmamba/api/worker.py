"""One of the processes that `dygmamba.train(..., processes=N)` starts: `python -m dygmamba.api.worker train JOB`."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError, DygWarning
from dygmamba.core.interrupts import Interrupts
from dygmamba.core.memory_budget import get_memory_limit
from dygmamba.core.process_settings import limit_process_memory, redirect_warnings, use_passive_wait_policy


def main(name: str, encoded: str) -> int:
    """Do the job together with the other workers; returns the exit code."""
    use_passive_wait_policy()  # before torch is imported
    limit_process_memory(get_memory_limit())
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints to stdout must not mix with the JSON lines

    def send(line: dict[str, Any]) -> None:
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    from dygmamba.api.processes import PipeProgress, encode_error
    from dygmamba.api.training import Runs, refit, resume, train
    from dygmamba.api.trusted_code import import_if_trusted
    from dygmamba.data.storage.dataset import load_dataset

    redirect_warnings(DygWarning, lambda text: send({"warning": text}))
    progress, job = PipeProgress(send), json.loads(encoded)
    if "stored" in job:  # data that no name leads to
        job["data"] = replace(load_dataset(Path(job.pop("stored"))), name=job["data"])
    try:
        import_if_trusted(True, job.pop("trusted", None))
        with Interrupts(progress.message):
            done = {"train": train, "resume": resume, "refit": refit}[name](**job, progress=progress)
    except DygError as error:
        send(encode_error(error))
        return error.exit_code
    runs = list(done) if isinstance(done, Runs) else [done]
    send({"runs": [str(run.path) for run in runs]})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
