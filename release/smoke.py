"""Use the installed package as a stranger would: import, train, predict, explain, report, share.

`python release/smoke.py` works in a temporary folder, needs no network and takes about half a minute on a CPU.
"""

import os
import random
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Run every step; an error ends it."""
    import dygmamba as dm

    home = Path(str(files("dygmamba"))).resolve()
    if home.is_relative_to(ROOT / "src"):
        sys.exit("this is the checkout; install the wheel into an environment of its own first")
    print(f"dygmamba {dm.__version__} at {home}")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        os.environ["DYGMAMBA_DATA"] = str(Path(folder) / "data")
        use(dm)
        os.chdir(ROOT)  # Windows does not remove the folder of a running process
    print("the installed package works")


def use(dm) -> None:
    """Read a log, train, evaluate, predict, explain, and push and pull the run."""
    draw = random.Random(0)
    people = ["ann", "bob", "cid", "dora", "eve", "fred", "gus", "hedda"]
    rows = ["src,dst,time"]
    rows += [f"{','.join(draw.sample(people, 2))},{3600 * hour}" for hour in range(400)]
    Path("mail.csv").write_text("\n".join(rows) + "\n", "utf-8")
    data = dm.read("mail.csv")
    (run,) = dm.train(data, "trees", out="runs", device="cpu", epochs=1, rounds=20)
    print("trees:", run.results.num_rows, "rows of results")
    assert run.rank(["ann"], k=3).num_rows == 3
    assert run.explain(("ann", "bob")).table.num_rows
    assert (run.path / "report.html").stat().st_size > 10_000
    small = {"length": 8, "width": 8, "blocks": 1, "epochs": 1}
    (network,) = dm.train(data, "dyg-mamba", out="runs", device="cpu", **small)
    print("dyg-mamba:", network.score([("ann", "bob")]))
    pulled = dm.pull(dm.push(run, "./shared", data=True), out="elsewhere", device="cpu")
    assert pulled.score([("ann", "bob")]) == run.score([("ann", "bob")])


if __name__ == "__main__":  # Windows and macOS start worker processes by importing this file
    main()
