"""Spark: two executors with one core each give the scores of one process, also if one of them is killed."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from engine_cases import read_scores

pyspark = pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'dyg-mamba[spark]'")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17, which is not installed", allow_module_level=True)
EXAMPLE = Path(__file__).parents[2] / "examples" / "score_on_spark.py"
EXECUTOR = "CoarseGrainedExecutorBackend"


def kill_an_executor(script: psutil.Process) -> None:
    for process in script.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # others end meanwhile
            if EXECUTOR in " ".join(process.cmdline()):
                process.kill()
                return
    pytest.fail("no executor runs")


def score(job, scores: Path, kill: bool = False) -> str:
    home = str(Path(pyspark.__file__).parent)
    line = [f"{home}/bin/spark-submit", "--master", "local-cluster[2,1,1024]", str(EXAMPLE)]
    line += [str(job.run), str(job.pairs), str(scores)]
    log = scores.with_suffix(".log")
    with log.open("w") as out:
        places = {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}
        script = subprocess.Popen(line, stdout=out, stderr=out, env=os.environ | places, cwd=scores.parent)
        while kill and script.poll() is None:
            if list(scores.glob("*/_SUCCESS")):
                kill_an_executor(psutil.Process(script.pid))
                kill = False
            time.sleep(0.05)
        code = script.wait(280)
    text = log.read_text()
    assert code == 0, text[-5000:]
    return text


@pytest.mark.timeout(900)
def test_a_killed_executor_and_a_restart_change_no_bit(job, tmp_path):
    """An executor is killed half-way; then two files are not complete, and a restart scores these and no others."""
    scores = tmp_path / "scores"
    assert "Lost executor" in score(job, scores, kill=True)
    assert read_scores(scores) == job.expected
    names = sorted(path.name for path in scores.glob("*.parquet"))
    before = {name: (scores / name / "_SUCCESS").stat().st_mtime_ns for name in names}
    shutil.rmtree(scores / names[1])
    (scores / names[2] / "_SUCCESS").unlink()
    assert "2 of 6 files to score" in score(job, scores)
    assert read_scores(scores) == job.expected
    changed = [name for name in names if (scores / name / "_SUCCESS").stat().st_mtime_ns != before[name]]
    assert changed == names[1:3]
