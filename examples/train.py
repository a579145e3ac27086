"""Train DyG-Mamba on a small generated stream and read the results.

Run it with `python examples/train.py`; it takes a few seconds on a CPU. To use your own events, replace the call of
`dm.generate` with `dm.read("events.csv", src="from", dst="to", time="sent")`.
"""

import dygmamba as dm

# In this stream a node returns to a neighbor more likely the more recently they had an event.
data = dm.generate(nodes=40, events=1_500, seed=1)
facts = data.describe()
print(f"{facts.events} events among {facts.nodes} nodes; {facts.repeats:.0%} repeat an earlier pair")

# The split is chronological: 70 % of the events to train on, 15 % to select the best epoch, 15 % to test on.
# The model is tiny so that the example is quick; without these settings you train the published configuration.
(run,) = dm.train(
    data,
    "dyg-mamba",
    epochs=5,
    lr=0.01,
    length=8,
    width=8,
    blocks=1,
    device="cpu",
    progress=lambda epoch: print(f"epoch {epoch['epoch'] + 1}: loss {epoch['loss']:.3f}"),
)

# Baselines that need no training are tested on the same events. A model that does not beat them is not worth its cost.
for row in run.results.to_pylist() + run.rules.to_pylist():
    if (row["split"], row["setting"], row["negatives"]) == ("test", "transductive", "random"):
        print(f"{row['model']:14} test AP {row['ap']:.3f}, AUC {row['auc']:.3f}")

# The run directory holds everything you need to use or to repeat the run. Its report is one HTML page.
print(f"run directory: {run.path}")
print(f"report:        {run.path / 'report.html'}")
