"""Worker process of a study: reads one job per line from stdin, writes one event per line to stdout, both JSON.

The first event is {"event": "ready"}. Each job sends {"event": "epoch", ...} while it trains and ends with "done",
"failed" (with a reason) or "crowded" (out of memory). After "crowded" the process exits, so that its memory is freed.
When stdin closes, the parent is gone: the current run is saved and the process exits.
"""

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from dygmamba.core.errors import DygError, Interrupted, first_line
from dygmamba.core.process_settings import use_passive_wait_policy
from dygmamba.core.progress import EpochCallback


def main(root: str, device: str, data_dir: str) -> None:
    """Run the jobs that arrive on stdin until it closes."""
    use_passive_wait_policy()  # must be set before torch is imported
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # anything a library prints goes to the log, not between the events
    stop = threading.Event()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the parent too, which then terminates the workers
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    serve_jobs(sys.stdin, events, (root, device, data_dir), stop)


def serve_jobs(lines: TextIO, events: TextIO, places: tuple[str, str, str], stop: threading.Event) -> None:
    """Run one job per line and write its events until the lines end or `stop` is set.

    Args:
        lines: Jobs as JSON.
        events: Where each event goes, as JSON.
        places: Folder of the results, device, and data folder or "".
        stop: Set when the run in progress should be saved and ended; also set at the end of `lines`.
    """
    import torch

    from dygmamba.lab.job import Job, ResultCache
    from dygmamba.lab.job_runners import JOB_RUNNERS, JobContext

    root, device, data_dir = places
    jobs, results = _read_jobs(lines, stop), ResultCache(Path(root))
    _send_event(events, event="ready")
    while (line := jobs.get()) is not None:
        job = Job.from_json(line)

        def send_epoch(entry: dict[str, Any]) -> None:
            _send_event(
                events, event="epoch", epoch=entry["epoch"] + 1, loss=entry["loss"], val_ap=entry["val_ap"]
            )

        context = JobContext(
            results, device, Path(data_dir) if data_dir else None, EpochCallback(send_epoch), stop.is_set
        )
        try:
            results.save(job, JOB_RUNNERS[job.work](job, context))
        except Interrupted:
            _send_event(events, event="stopped")
            return
        except DygError as error:
            _send_event(events, event="failed", why=first_line(error))
        except (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError) as error:
            _send_event(events, event="crowded", why=first_line(error))
            return
        except Exception as error:
            import traceback

            traceback.print_exc()
            _send_event(
                events,
                event="failed",
                why=f"{type(error).__name__}: {first_line(error)}; see the log of the worker",
            )
        else:
            _send_event(events, event="done")


def _read_jobs(lines: TextIO, stop: threading.Event) -> "queue.Queue[str | None]":
    """Queue the lines from a thread; at their end set `stop` and queue None."""
    jobs: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in lines:
            jobs.put(line)
        stop.set()
        jobs.put(None)

    threading.Thread(target=read, daemon=True).start()
    return jobs


def _send_event(out: TextIO, **event: Any) -> None:
    try:
        out.write(json.dumps(event) + "\n")
        out.flush()
    except BrokenPipeError:  # the parent was killed; there is nobody left to report to
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:4])
