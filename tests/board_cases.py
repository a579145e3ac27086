"""Tiny folders as TGB and TGB-Seq publish them, written with other code than reads them."""

import csv
import pickle
from pathlib import Path

import numpy as np

HEADERS = {
    "tgbl-wiki": "user_id,item_id,timestamp,state_label,comma_separated_list_of_features",
    "tgbl-coin": "time,src,dst,weight",
    "tgbl-review": "ts,source,target,weight",
    "tgbl-comment": "ts,src,dst,num_words,score",
    "tgbl-flight": "day,src,dst,callsign,typecode",
    "tgbn-trade": "year,nation,trading nation,weight",
    "tgbn-genre": "time,user_id,genre,weight",
    "tgbn-reddit": "ts,src,subreddit,num_words,score",
    "tgbn-token": "timestamp,user_address,token_address,value,IsSender",
}
VERSION = dict.fromkeys(("tgbl-wiki", "tgbl-coin", "tgbl-review", "tgbl-flight"), "_v2")


def table_rows(name, events=120, seed=0):
    """Rows of text as the table of a set has them, in the order of time."""
    rng = np.random.default_rng(seed)
    rows = []
    for k in range(events):
        when = 1_500_000_000 + 10 * (k // 2)
        user, item = int(rng.integers(9)), int(rng.integers(7))
        if name == "tgbl-wiki":
            user, item = (8, 6) if k == 0 else (user, item)  # so that the highest are there
            rows.append([user, item, f"{10.0 * (k // 2)}", 0, 0.5, k / 8, -1.0])
        elif name == "tgbl-flight":
            rows.append(
                [
                    when,
                    f"A{user}",
                    f"B{item}",
                    ["", "ab12", "XYZ45678"][k % 3],
                    ["", "b738", "toolongtype"][k % 3],
                ]
            )
        else:
            ends = [
                f"0x{user}",
                f"0x{item}" if name.startswith("tgbl") or name == "tgbn-trade" else f"kind{item}",
            ]
            ends = [{"0x3": "none", "kind2": "NULL"}.get(end, end) for end in ends]  # ids like any other
            rest = {
                "tgbl-comment": [50 * k, k - 3],
                "tgbn-reddit": [9, k - 2],
                "tgbn-token": [1.5 * k, k % 2],
            }
            rows.append([when, *ends, *rest.get(name, [float(k % 5)])])
    return rows


def numbered(name, rows):
    """TGB's numbers of both ends, row by row, by a dictionary as its loaders have it."""
    if name == "tgbl-wiki":
        highest = max(row[0] for row in rows)
        return [(row[0], row[1] + highest + 1, int(float(row[2]))) for row in rows]
    known, found = {}, []
    for row in rows:
        for end in row[1:3]:
            known.setdefault(end, len(known))
        found.append((known[row[1]], known[row[2]], int(row[0])))
    return found


def periods(rows):
    """TGB's masks: by quantiles of the times."""
    time = np.array([row[2] for row in rows])
    val, test = np.quantile(time, [0.7, 0.85])
    return {"val": (time > val) & (time <= test), "test": time > test}


def negatives_of(rows, mask, count=5, seed=1):
    """A dictionary as TGB pickles it: numpy's integers as keys, an array each, some of floats as theirs are."""
    rng, nodes = np.random.default_rng(seed), 1 + max(max(row[:2]) for row in rows)
    found = {}
    for k in np.flatnonzero(mask):
        drawn = rng.choice(nodes, count - k % 2, replace=False)
        found[tuple(np.int64(part) for part in rows[k])] = drawn.astype(np.float64) if k % 3 == 0 else drawn
    return found


def write_table(path: Path, header, rows):
    """A csv with its line of names."""
    with path.open("w", newline="") as file:
        file.write(header + "\n")
        csv.writer(file, lineterminator="\n").writerows(rows)


def tgb_folder(folder: Path, name="tgbl-wiki", events=120, protocol=5):
    """A set's folder; what its rows are, and what its negatives are by period."""
    folder.mkdir(parents=True, exist_ok=True)
    version, rows = VERSION.get(name, ""), table_rows(name, events)
    write_table(folder / f"{name}_edgelist{version}.csv", HEADERS[name], rows)
    if name.startswith("tgbn"):
        return rows, {}
    if name == "tgbl-flight":
        write_table(
            folder / "airport_node_feat_v2.csv",
            "airport_code,type,continent,iso_region,longitude,latitude",
            [
                ["A0", "small", "EU", "DE-BE", 13.5, 52.5],
                ["B3", "large", "NA", "US-NY", -73.75, 40.5],
                ["ZZ", "x", "y", "z", 0, 0],
            ],
        )
    own = numbered(name, rows)
    negatives = {period: negatives_of(own, mask) for period, mask in periods(own).items()}
    for period, found in negatives.items():
        (folder / f"{name}_{period}_ns{version}.pkl").write_bytes(pickle.dumps(found, protocol=protocol))
    return own, negatives


def seq_folder(folder: Path, name="GoogleLocal", events=100, width=4):
    """A set of TGB-Seq: periods in the table, the test's negatives in an array."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    rows = [
        [int(rng.integers(8)), int(8 + rng.integers(6)), float(k // 3), 0 if k < 70 else 1 if k < 85 else 2]
        for k in range(events)
    ]
    write_table(folder / f"{name}.csv", "src,dst,time,split", rows)
    drawn = rng.integers(8, 14, (events - 85, width))
    np.save(folder / f"{name}_test_ns.npy", drawn)
    return rows, drawn
