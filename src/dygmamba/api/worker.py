"""One of the processes that `dygmamba.train(..., processes=N)` starts.

The first says on stdout, a JSON line each, how it goes: epochs, then the folders of the runs, or an error.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError
from dygmamba.core.process_settings import use_passive_wait_policy


def main(name: str, told: str) -> int:
    """Do the job with all others that were told the same; the exit code."""
    use_passive_wait_policy()
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no word of this conversation

    def say(**what: Any) -> None:
        said.write(json.dumps(what) + "\n")
        said.flush()

    from dygmamba.api.training import resume, train
    from dygmamba.data.storage.dataset import load_dataset

    job = json.loads(told)
    if "kept" in job:  # data that no name leads to
        job["data"] = replace(load_dataset(Path(job.pop("kept"))), name=job["data"])
    try:
        made = {"train": train, "resume": resume}[name](**job, progress=lambda entry: say(epoch=entry))
    except DygError as error:
        say(error=str(error), kind=type(error).__name__)
        return error.exit_code
    say(runs=[str(run.path) for run in (made if name == "train" else [made])])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
