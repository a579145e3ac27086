"""Predict the state of nodes from their events: train an encoder, then a classifier on top of it.

Run it with `python examples/node_classification.py`; it takes a few seconds on a CPU.
"""

import random

import dygmamba as dm

# Users edit pages, and the label of an edit says whether the user was banned after it.
# Here users with an odd number edit three pages only and are banned sometimes; the others never are.
rng = random.Random(0)
log = {"user": [], "page": [], "time": [], "banned": []}
for time in range(800):
    user = rng.randrange(20)
    suspicious = user % 2 == 1
    log["user"].append(user)
    log["page"].append(rng.randrange(3) if suspicious else rng.randrange(3, 30))
    log["time"].append(float(time))
    log["banned"].append(int(suspicious and rng.random() < 0.4))

data = dm.read(log, src="user", dst="page", time="time", label="banned", bipartite=True, name="edits")

# In real streams labels are rare, so the encoder is trained on the events first (link prediction) ...
(encoder,) = dm.train(data, "dyg-mamba", epochs=1, length=8, width=8, blocks=1, device="cpu")

# ... and the classifier is trained on its embeddings. `balance` gives the rare label a larger weight.
(run,) = dm.train(data, task="node", backbone=encoder.path, epochs=3, balance=True, device="cpu")
for row in run.results.to_pylist():
    print(
        f"{row['split']:4} AUC {row['auc']:.3f}, AP {row['ap']:.3f}, {row['positives']} of {row['n']} positive"
    )

# The three users with the highest scores, right after the last event.
for row in run.classify(k=3).to_pylist():
    print(f"user {row['node']}: score {row['score']:.2f}")
