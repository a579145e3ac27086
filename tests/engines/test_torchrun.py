"""Two torchrun agents, as on two machines: each with a folder of its own, and one is killed and started again."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

import dygmamba as dm

SETTINGS = {
    "neighbors": 4,
    "time_dim": 4,
    "blocks": 1,
    "dropout": 0.0,
    "batch": 60,
    "epochs": 12,
    "patience": 100,
}
SECONDS = 240
# without it an agent that stays does not tell a new one the address of the store (torch 2.13)
ENVIRONMENT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def start_agent(number: int, folder: Path, port: int) -> subprocess.Popen:
    """Start the torchrun of a machine, in a folder of its own; the machines share the data and `out` alone."""
    own = folder / f"machine-{number}"
    own.mkdir(exist_ok=True)
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    line = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    line += ["--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    line += ["--rdzv-id", "mine", "--rdzv-conf", "timeout=200,is_host=0", "-m", "dygmamba", "train", "stream"]
    line += ["--model", "graphmixer", "--device", "cpu", "--out", str(folder / "out"), *settings]
    own_settings = {"TMPDIR": str(own), "DYGMAMBA_DATA": str(folder), "OMP_NUM_THREADS": "1", **ENVIRONMENT}
    with (own / "log").open("a") as log:
        return subprocess.Popen(line, cwd=own, env=os.environ | own_settings, stdout=log, stderr=log)


def lose(agent: subprocess.Popen) -> None:
    """End an agent and its workers, which have sessions of their own, as a power cut of their machine would."""
    for process in [*psutil.Process(agent.pid).children(recursive=True), agent]:
        process.kill()
    agent.wait()


def count_epochs(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("out/stream/*/*/metrics.jsonl"))


@pytest.mark.parametrize("lost", [0, 1], ids=["first", "second"])
@pytest.mark.timeout(2 * SECONDS)
def test_a_machine_that_is_lost_and_comes_back_changes_no_loss(lost, tmp_path):
    """An agent and its worker are killed, a new agent joins: one run, resumed, with the losses of one process."""
    data = dm.generate(nodes=30, events=400, communities=3, name="stream")
    dm.save(data, data_dir=tmp_path)
    # as a service beside the machines: the agent that hosts the rendezvous must not be lost
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    port = store.port
    agents = [start_agent(number, tmp_path, port) for number in range(2)]
    try:
        end = time.monotonic() + SECONDS
        while count_epochs(tmp_path) < 3:
            assert time.monotonic() < end, (tmp_path / "machine-0" / "log").read_text()
            assert all(agent.poll() is None for agent in agents), (tmp_path / "machine-0" / "log").read_text()
            time.sleep(0.05)
        others = psutil.Process(agents[1 - lost].pid).children(recursive=True)
        lose(agents[lost])
        psutil.wait_procs(others, SECONDS)  # they end first: else torchrun counts no restart
        at = count_epochs(tmp_path)
        agents[lost] = start_agent(lost, tmp_path, port)
        codes = [agent.wait(SECONDS) for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                lose(agent)
    logs = "\n".join((tmp_path / f"machine-{number}" / "log").read_text() for number in range(2))
    assert codes == [0, 0], logs
    assert at < SETTINGS["epochs"]
    (run,) = tmp_path.glob("out/stream/*/*-seed0")
    there = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    (alone,) = dm.train(data, "graphmixer", out=tmp_path / "one", device="cpu", **SETTINGS)
    assert there == pytest.approx(alone.metrics["loss"].to_pylist(), abs=1e-6)
