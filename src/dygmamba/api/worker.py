"""One of the processes that `dygmamba.train(..., processes=N)` starts.

`python -m dygmamba.api.worker train REQUEST MORE`, both as JSON.
"""

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


def main(name: str, arguments: str, more: str) -> int:
    """Do what a request asks for together with the other workers; returns the exit code."""
    use_passive_wait_policy()  # before torch is imported
    limit_process_memory(get_memory_limit())
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else prints to stdout must not mix with the JSON lines

    def send(line: dict[str, Any]) -> None:
        pipe.write(json.dumps(line) + "\n")
        pipe.flush()

    from dygmamba.api.processes import PipeProgress, encode_error
    from dygmamba.api.requests.training import RefitRequest, ResumeRequest, TrainRequest
    from dygmamba.api.training import Runs, run_refit, run_resume, run_training
    from dygmamba.api.trusted_code import import_if_trusted
    from dygmamba.data.storage.dataset import load_dataset

    redirect_warnings(DygWarning, lambda text: send({"warning": text}))
    progress, given, found = PipeProgress(send), json.loads(arguments), json.loads(more)
    if "stored" in found:  # data that no name leads to
        given["data"] = replace(load_dataset(Path(found["stored"])), name=given["data"])
    try:
        import_if_trusted(True, found.get("trusted"))
        with Interrupts(progress.message):
            if name == "train":
                done = run_training(TrainRequest(**given), progress)
            elif name == "resume":
                done = run_resume(ResumeRequest(**given), progress)
            else:
                done = run_refit(RefitRequest(**given), progress)
    except DygError as error:
        send(encode_error(error))
        return error.exit_code
    runs = list(done) if isinstance(done, Runs) else [done]
    send({"runs": [str(run.path) for run in runs]})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
