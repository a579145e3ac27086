"""Audit a stream before you trust a score on it: how easy is its test, and does a model leak the future?

Run it with `python examples/audit_a_stream.py`; it takes a few seconds on a CPU.
"""

import dygmamba as dm

data = dm.generate(nodes=30, events=800, seed=1)

# If nearly all events repeat an earlier pair, remembering the pairs is enough for a high score.
facts = data.describe()
print(
    f"{facts.repeats:.0%} of the events repeat an earlier pair, {facts.surprise:.0%} of the test pairs are new"
)

# A baseline that remembers pairs, against three kinds of negatives. Random pairs are easy to tell from events,
# historical ones (pairs with earlier events) are hard.
table = dm.evaluate(data, "edgebank", negatives=["random", "historical", "inductive"], setting="transductive")
for row in table.to_pylist():
    print(f"edgebank, {row['negatives']:10} negatives: AP {row['ap']:.3f}")

# The audit of the data: statistics of the test period, and what rules without training reach.
audit = dm.audit(data, "edgebank")
test = next(period for period in audit.periods if period.split == "test")
print(
    f"test: {test.events} events of {test.nodes} nodes, {test.tied:.0%} share their timestamp with another event"
)
for row in audit.rules:
    if (row["split"], row["setting"], row["negatives"]) == ("test", "transductive", "random"):
        print(f"baseline '{row['rule']}': AP {row['ap']:.3f}")

# The audit of the model: no score may depend on the future, on the batch, on the order of rows or on padding.
for check in audit.checks:
    print(f"check '{check.name}': {'passed' if check.passed else 'failed ' + check.detail}")
