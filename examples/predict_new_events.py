"""Score, rank and explain events that have not happened yet, and add new events without training again.

Run it with `python examples/predict_new_events.py`; it takes a few seconds on a CPU.
"""

import random

import dygmamba as dm

# A log of messages: who wrote to whom, and when. Most messages answer the last message that the sender received.
rng = random.Random(0)
people = ["alice", "bob", "carol", "dora", "eve", "fred"]
log, last_from = {"from": [], "to": [], "sent": []}, {}
for hour in range(600):
    sender = rng.choice(people)
    others = [person for person in people if person != sender]
    receiver = last_from.get(sender) if sender in last_from and rng.random() < 0.8 else rng.choice(others)
    last_from[receiver] = sender
    log["from"].append(sender)
    log["to"].append(receiver)
    log["sent"].append(f"2024-02-{1 + hour // 24:02}T{hour % 24:02}:00:00")

# Boosted trees on decayed counts train in a second and need no GPU.
data = dm.read(log, src="from", dst="to", time="sent", name="mail")
(run,) = dm.train(data, "trees", device="cpu")

# A run is a directory: you can open it in another process, at any later time.
run = dm.open(run.path, device="cpu")

# `rank` returns the most likely destinations of a source. By default, right after the last known event.
for row in run.rank(["alice"], k=3).to_pylist():
    print(f"alice -> {row['dst']:6} probability {row['probability']:.2f}")

# `observe` returns a run that knows more events. The weights and the original run stay as they are.
# `score` compares a pair with a random one: a score of 0.5 means that it is as likely.
before = run.score([("alice", "fred")]).to_pylist()[0]["score"]
newer = run.observe([("fred", "alice", "2024-02-26T01:00:00")])
after = newer.score([("alice", "fred")]).to_pylist()[0]["score"]
print(f"alice -> fred: score {before:.3f}, after a message from fred to alice {after:.3f}")

# `explain` lists the past events that changed the score most, with their contributions to the logit.
for row in newer.explain(("alice", "fred")).table.to_pylist()[:3]:
    print(f"{row['src']} -> {row['dst']} at {row['time']}: {row['contribution']:+.2f}")
