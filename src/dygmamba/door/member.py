"""One of the processes that `dygmamba.train(..., processes=N)` starts.

The first says on stdout, a JSON line each, how it goes: epochs, then the folders of the runs, or an error.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dygmamba.errors import DygError
from dygmamba.process_wide import sleep_while_waiting


def main(name: str, told: str) -> int:
    """Do the job with all others that were told the same; the exit code."""
    sleep_while_waiting()
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is no word of this conversation

    def say(**what: Any) -> None:
        said.write(json.dumps(what) + "\n")
        said.flush()

    from dygmamba.data.store import load_dataset
    from dygmamba.door.runs import resume, train

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
