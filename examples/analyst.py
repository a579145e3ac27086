"""An analyst's log: who wrote to whom in February, who will write next, and what one more message changes.

It makes its own log of 600 messages; give a folder to keep the runs and the page, else they go to a temporary one.
"""

import sys
import tempfile

import numpy as np
import pandas as pd

import dygmamba as dm

rng = np.random.default_rng(0)
people = np.array(["alice", "bob", "carol", "dora", "eve", "fred", "gus", "hal"])
sender = rng.integers(0, 8, 600)
others = (sender + rng.integers(1, 8, 600)) % 8
receiver = np.where(
    rng.random(600) < 0.75, sender ^ 1, others
)  # everyone has a favourite: alice and bob, carol and dora
hours = np.sort(rng.uniform(0, 28 * 24, 600))
sent = pd.Timestamp("2024-02-01", tz="UTC") + pd.to_timedelta(hours, unit="h")
frame = pd.DataFrame({"from": people[sender], "to": people[receiver], "sent": sent})

folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
data = dm.read(frame, src="from", dst="to", time="sent", name="mail")
rules = dm.evaluate(data, "recency").to_pandas()  # what a rule without training reaches
small = {"length": 8, "width": 8, "blocks": 1}  # for a CPU; left out, it is the paper's size
runs = dm.train(data, epochs=10, batch=20, lr=0.01, device="cpu", out=folder, **small)
found = pd.concat([rules, runs.results.to_pandas().query("split == 'test'")])
sys.stdout.write(
    found[["model", "setting", "negatives", "visible", "ap", "auc"]].to_string(index=False) + "\n\n"
)

run = dm.open(runs[0].path)
sys.stdout.write(run.rank(["alice", "bob"], k=3).to_pandas().to_string(index=False) + "\n\n")
before = run.score([("alice", "hal")]).to_pandas()
after = run.observe([("alice", "hal", "2024-02-29T01:00")]).score([("alice", "hal")]).to_pandas()
sys.stdout.write(f"alice to hal: {before['score'][0]:.3f}, after one message {after['score'][0]:.3f}\n")
sys.stdout.write(f"the page: {run.report()}\n")
