"""Ray: a cluster of two nodes with one CPU each gives the scores of one process, also if a worker is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine_cases import read_scores

pytest.importorskip("ray", reason="Ray is not installed: pip install 'dyg-mamba[ray]'")
EXAMPLE = Path(__file__).parents[2] / "examples" / "score_on_ray.py"
DRIVER = """\
import os, runpy, sys, threading, time
from contextlib import suppress
from pathlib import Path
import psutil, ray
from ray.cluster_utils import Cluster

def kill_a_worker(scores):
    while not list(scores.glob("*.parquet")):
        time.sleep(0.05)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # others end meanwhile
            if process.cmdline()[:1] == ["ray::score_file"]:
                process.kill()
                print("killed")
                return

run, pairs, scores, kill = sys.argv[1:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False)
assert len(ray.nodes()) == 2
if kill == "data":
    import dygmamba as dm
    table = ray.data.read_parquet(pairs).map_batches(dm.open(run).scorer(), batch_format="pyarrow")
    table.write_parquet(scores)
else:
    if kill == "kill":
        threading.Thread(target=kill_a_worker, args=[Path(scores)], daemon=True).start()
    sys.argv = [sys.argv[0], run, pairs, scores]
    runpy.run_path(os.environ["EXAMPLE"], run_name="__main__")
ray.shutdown()
cluster.shutdown()
"""


def score(job, scores: Path, kill: str = "") -> str:
    line = [sys.executable, "-c", DRIVER, str(job.run), str(job.pairs), str(scores), kill]
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=280, env=os.environ | {"EXAMPLE": str(EXAMPLE)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_killed_worker_and_a_restart_change_no_bit(job, tmp_path):
    """A worker is killed half-way; then two files are lost, and a restart scores these and no others."""
    scores = tmp_path / "scores"
    assert "killed" in score(job, scores, "kill")
    assert read_scores(scores) == job.expected
    names = sorted(path.name for path in scores.glob("*.parquet"))
    before = {name: (scores / name).stat().st_mtime_ns for name in names}
    for name in names[1:3]:
        (scores / name).unlink()
    assert "2 of 6 files to score" in score(job, scores)
    assert read_scores(scores) == job.expected
    changed = [name for name in names if (scores / name).stat().st_mtime_ns != before[name]]
    assert changed == names[1:3]


def test_the_function_is_one_for_map_batches(job, tmp_path):
    """Ray Data: read, `map_batches`, write; equal bits."""
    score(job, tmp_path / "scores", "data")
    assert read_scores(tmp_path / "scores") == job.expected
