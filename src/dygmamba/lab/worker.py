"""A process that does jobs: one JSON line per job on stdin, one per happening on stdout.

Says {"event": "ready"}, then for each job {"event": "epoch", ...} as it trains and at last "done" or "failed" with a
sentence; "crowded" where memory did not suffice, and then it ends, so that what it held is free. When stdin ends,
whoever sent the jobs is gone: the run under way is saved and the process ends.
"""

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from dygmamba.core.errors import DygError, first_line
from dygmamba.core.process_settings import use_passive_wait_policy


def main(root: str, device: str, data_dir: str) -> None:
    """Do what comes until nothing more does."""
    use_passive_wait_policy()
    import torch

    from dygmamba.engine.fit import Interrupted, Reporter
    from dygmamba.lab.job import Job, Results
    from dygmamba.lab.job_runners import JOB_RUNNERS, JobContext

    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed goes to the log
    stop = threading.Event()
    jobs = _read_jobs(stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who asks hears Ctrl-C and ends us
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    results = Results(Path(root))
    _send_event(said, event="ready")
    while (line := jobs.get()) is not None:
        job = Job.from_json(line)

        def told(entry: dict[str, Any]) -> None:
            _send_event(
                said, event="epoch", epoch=entry["epoch"] + 1, loss=entry["loss"], val_ap=entry["val_ap"]
            )

        place = JobContext(
            results, device, Path(data_dir) if data_dir else None, Reporter(epoch=told, stop=stop.is_set)
        )
        try:
            results.keep(job, JOB_RUNNERS[job.work](job, place))
        except Interrupted:
            _send_event(said, event="stopped")
            return
        except DygError as error:
            _send_event(said, event="failed", why=first_line(error))
        except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError) as error:
            _send_event(said, event="crowded", why=first_line(error))
            return
        except Exception as error:
            import traceback

            traceback.print_exc()
            _send_event(
                said,
                event="failed",
                why=f"{type(error).__name__}: {first_line(error)}; the log of the worker has more",
            )
        else:
            _send_event(said, event="done")


def _read_jobs(stop: threading.Event) -> "queue.Queue[str | None]":
    """What comes in on stdin; its end stops what is under way."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        stop.set()
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _send_event(out: TextIO, **what: Any) -> None:
    try:
        out.write(json.dumps(what) + "\n")
        out.flush()
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:4])
