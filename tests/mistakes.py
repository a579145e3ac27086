"""Mistakes of users and the code of the error that answers each; `test_mistakes.py` makes them all.

A new mistake is a new row here, whatever it is made with: a command line, a file, a setting or a call.
"""

import gzip
import io
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dygmamba as dm
from dygmamba.api.prediction import select_alerts
from dygmamba.cli.options import parse_seeds
from dygmamba.core.errors import EventError, FileError, NotFoundError
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.models.configs import BlendConfig
from dygmamba.runs.opening import choose_device, parse_split
from dygmamba.runs.queries import Predictions
from dygmamba.server.settings import ServerSettings

# code, command line: each is answered without importing torch, pyarrow or another heavy package
COMMANDS = """
dataset-or-resume           train
unknown-dataset             train nothing-here
file-missing                train nothing.csv
file-missing                train nowhere/data.safetensors
unknown-dataset             train folder
dataset-or-resume           train generated --resume folder
not-a-run                   train --resume nowhere
not-a-run                   train --resume folder
damaged-config              train --resume damaged
not-a-run                   train --resume folder --model trees
unknown-model               train generated --model nothing
unknown-model               train generated --model dygmamba
model-needs-no-training     train generated --model edgebank
model-needs-no-training     train generated --model recency --set x=1
unknown-setting             train generated --set lenght=3
setting-out-of-bounds       train generated --set length=0
setting-of-wrong-type       train generated --set length=x
setting-of-wrong-type       train generated --set length=1e400
malformed-setting           train generated --set length
malformed-setting           train generated --set =3
setting-out-of-bounds       train generated --set epochs=0
setting-of-wrong-type       train generated --set epochs=1.5
setting-out-of-bounds       train generated --set lr=0
setting-of-wrong-type       train generated --set lr=nan
setting-out-of-bounds       train generated --set dropout=1
setting-of-wrong-type       train generated --set precision=float16
setting-of-wrong-type       train generated --set graphs=3
setting-of-wrong-type       train generated --set channels=5
setting-out-of-bounds       train generated --set leaves=1
unknown-setting             train generated --model trees --set length=3
setting-out-of-bounds       train generated --model trees --set rate=2
unknown-setting             train generated --model tgat --set walks=3
setting-of-wrong-type       train generated --model dyg-mamba --set step=none
setting-out-of-bounds       train generated --model dyg-mamba --device cpu --set blocks=101
unknown-device              train generated --device tpu
unknown-device              train generated --device CUDA
malformed-command-line      train generated --device
invalid-budget              train generated --budget soon
invalid-budget              train generated --budget 0s
budget-of-seeds             train generated --budget 1m --seeds 0-2
budget-of-node-task         train generated --budget 1m --task node
budget-of-processes         train generated --budget 1m --processes 2
unknown-setting             train generated --budget 1m --set lenght=3
not-a-run                   train --resume folder --budget 1m
malformed-seeds             train generated --seeds x
malformed-seeds             train generated --seeds 3-1
too-many-seeds              train generated --seeds 0-99999999
seed-too-large              train generated --seeds 99999999999999999999
malformed-command-line      train generated --epochs 0
malformed-command-line      train generated --epochs many
unknown-negatives           train generated --negatives nobody
unknown-negatives           train generated --negatives ,
setting-of-wrong-type       train generated --train-negatives inductive
setting-of-wrong-type       train generated --visible tomorrow
unknown-preset              train generated --preset large
file-missing                train generated --preset nowhere.toml
malformed-preset            train generated --preset bad.toml
malformed-preset            train generated --preset empty.toml
preset-of-other-model       train generated --model trees --preset small
preset-of-other-model       train generated --model trees --preset tgat.toml
invalid-split               train generated --split 0.5
invalid-split               train generated --split 0.5,0.5,0.5
invalid-split               train generated --split a,b,c
unknown-task                train generated --task edge
option-of-node-task         train generated --finetune
option-of-node-task         train generated --balance
option-of-node-task         train generated --backbone folder
not-a-run                   train generated --task node --backbone nowhere
decided-by-backbone         train generated --task node --backbone folder --preset small
unknown-setting             train generated --task node --set lenght=3
unknown-refit               train generated --refit some
refit-of-node-task          train generated --task node --refit all
malformed-command-line      train generated --nonsense
not-a-run                   train --resume nowhere --task node
model-needs-no-training     train generated --task node --model edgebank
malformed-command-line      train generated --processes 0
malformed-command-line      tune
unknown-dataset             tune nothing-here
unknown-model               tune generated --model nothing
model-needs-no-training     tune generated --model edgebank
malformed-command-line      tune generated --trials 0
hours-out-of-range          tune generated --hours 0
malformed-command-line      tune generated --hours soon
setting-out-of-bounds       tune generated --set rate=2 --model trees
unknown-device              tune generated --device tpu
malformed-command-line      evaluate
unknown-dataset             evaluate nothing-here
model-needs-training        evaluate generated --model trees
unknown-model               evaluate generated --model nothing
unknown-negatives           evaluate generated --negatives nobody
unknown-split               evaluate generated --split train
unknown-setting             evaluate generated --setting new
setting-of-wrong-type       evaluate generated --visible tomorrow
unknown-metric              evaluate generated --metrics map
unknown-metric              evaluate generated --metrics hits@0
filtered-board              evaluate generated --metrics mrr --candidates board --filtered
candidates-without-ranking  evaluate generated --candidates 5
unknown-candidates          evaluate generated --metrics mrr --candidates none
malformed-command-line      evaluate generated --draws 0
setting-out-of-bounds       evaluate generated --set window=2
unknown-setting             evaluate generated --set lenght=2
damaged-config              evaluate damaged
option-of-untrained-model   evaluate damaged --seed 3
model-needs-training        evaluate generated --model dyg-mamba
unknown-dataset             audit nothing-here
not-a-run                   audit generated nowhere
unknown-model               audit generated --model nothing
settings-without-model      audit generated --set length=3
model-and-run               audit damaged --model trees
invalid-every               backtest generated --every often --model trees
not-a-run                   predict nowhere --pairs pairs.csv
not-a-run                   predict folder
not-a-run                   predict folder --pairs pairs.csv
top-missing                 predict folder --sources a
damaged-config              predict damaged --pairs pairs.csv --device tpu
folder-not-found            predict folder --pairs pairs.csv --out nowhere/scores.csv
unknown-file-suffix         predict folder --pairs pairs.csv --out a.xls
not-a-run                   explain nowhere --pair a,b
not-a-run                   explain folder --pair a,b
pair-or-node                explain folder
unknown-picture-format      explain damaged --pair a,b --out picture.png
malformed-pair              explain folder --pair a
not-a-run                   report nowhere
not-a-run                   report folder
malformed-command-line      compare
not-a-run                   compare nowhere
not-a-run                   compare folder damaged
unknown-study               reproduce nothing
unknown-model               reproduce link --models nothing
unknown-dataset             reproduce link --datasets nothing-here
malformed-seeds             reproduce link --seeds x
unknown-device              reproduce link --device tpu
malformed-command-line      reproduce link --workers 0
unknown-model               models nothing
unknown-dataset             models --data nothing-here
malformed-command-line      demo --epochs 0
malformed-command-line      fit generated
invalid-dataset-name        data import pairs.csv --out a/b
append-and-name             data import pairs.csv --append mail --out new
file-missing                data import nowhere.csv
is-a-folder                 data import folder
unknown-format              data import pairs.csv --format word
unknown-time-unit           data import pairs.csv --time-unit weeks
unknown-dataset             data describe nothing-here
unknown-dataset             data fetch nothing-here
malformed-command-line      data generate
invalid-dataset-name        data generate --out a/b
setting-of-wrong-type       data generate --out new --law linear
setting-out-of-bounds       data generate --out new --nodes 1
unknown-setting             data generate --out new --set lenght=3
malformed-command-line      data nonsense
file-missing                data describe nowhere/x.safetensors
not-a-run                   serve nothing --state state
token-required              serve nothing --state state --host 0.0.0.0
weak-token                  serve nothing --state state --token short
port-out-of-range           serve nothing --state state --port 99999
unknown-log                 train generated --log wandb
"""

# code, command line with a finished run of trees: RUN
RUN_COMMANDS = """
pair-or-node            explain RUN
malformed-pair          explain RUN --pair ann
malformed-pair          explain RUN --pair a,b,c
not-a-pair              explain RUN --node ann
unknown-picture-format  explain RUN --pair ann,bob --out x.png
no-earlier-events       explain RUN --pair ann,bob --at 2001-01-01
invalid-time            explain RUN --pair ann,bob --at noon
pairs-missing           predict RUN
option-of-node-task     predict RUN --nodes ann
top-missing             predict RUN --sources ann
top-missing             predict RUN --sources ann --candidates bob
top-missing             predict RUN --pairs p.csv --only-new
unknown-candidate       predict RUN --sources ann --top 3 --candidates nobody
option-without-events   evaluate RUN --fail-below ap=90
option-without-events   evaluate RUN --fail-above ece=1
repeated-limit          evaluate RUN --events p.csv --fail-below ap=90 --fail-below ap=80
limit-out-of-range      evaluate RUN --events p.csv --fail-below ap=0.9
limit-out-of-range      evaluate RUN --events p.csv --fail-below auc=101
limit-out-of-range      evaluate RUN --events p.csv --fail-below lead=-101
limit-out-of-range      evaluate RUN --events p.csv --fail-above ece=-1
limit-out-of-range      evaluate RUN --events p.csv --fail-above log_loss=inf
malformed-limit         evaluate RUN --events p.csv --fail-above ap=90
malformed-limit         evaluate RUN --events p.csv --fail-below ap=nan
fixed-by-run            train --resume RUN --model trees
fixed-by-run            train --resume RUN --seeds 0
fixed-by-run            train --resume RUN --split 0.7,0.2,0.1
fixed-by-run            train --resume RUN --out x
fixed-by-run            train --resume RUN --preset small
fixed-by-run            train --resume RUN --budget 1h
fixed-by-run            train --resume RUN --from RUN
setting-fixed           train --resume RUN --set leaves=4
unknown-model-format    export RUN --to x.txt
"""

# what the sentence must say to some of them
ADVICE = {
    "train": "--resume",
    "train generated --model dygmamba": "did you mean 'dyg-mamba'?",
    "train generated --set lenght=3": "did you mean 'length'?",
    "train generated --task node --set lenght=3": "did you mean 'length'?",
    "train generated --epochs 0": "see 'dygmamba train --help'",
    "train generated --finetune": "--finetune",
    "train generated --balance": "--balance",
    "train generated --backbone folder": "--backbone",
    "evaluate generated --model trees": "must be trained first: dygmamba train generated --model trees",
    "train generated --model trees --preset tgat.toml": "preset for 'tgat', not for 'trees'",
    "train generated --device tpu": "--device takes auto, cpu or cuda",
    "explain RUN": "--pair a,b",
    "explain RUN --pair a,b,c": "in double quotes",
    "explain RUN --pair ann,bob --at noon": "--at",
    "predict RUN": "--pairs",
    "predict RUN --nodes ann": "give --pairs instead of --nodes",
    "predict RUN --pairs p.csv --only-new": "--only-new",
    "train --resume RUN --model trees": "leave out --model",
    "train --resume RUN --seeds 0": "leave out --seeds",
    "train --resume RUN --split 0.7,0.2,0.1": "leave out --split",
    "train --resume RUN --out x": "leave out --out",
    "train --resume RUN --preset small": "leave out --preset",
    "train --resume RUN --budget 1h": "leave out --budget",
    "train --resume RUN --set leaves=4": "`leaves`",
    "export RUN --to x.txt": ".pt2, .onnx, .zip",
}


def corrupt_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, src=np.arange(99), dst=np.arange(99), t=np.arange(99.0))
    content = bytearray(buffer.getvalue())
    content[len(content) // 2] ^= 255
    return bytes(content)


def pickled_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, src=np.array([{}], dtype=object))
    return buffer.getvalue()


def parquet(**columns) -> bytes:
    """One event, some of its columns replaced."""
    buffer = io.BytesIO()
    pq.write_table(pa.table({"src": [1], "dst": [2], "time": [3]} | columns), buffer)
    return buffer.getvalue()


def npz(**arrays) -> bytes:
    """Two events, some of their arrays replaced."""
    buffer = io.BytesIO()
    np.savez(buffer, **{"src": np.arange(2), "dst": np.arange(2), "t": np.arange(2.0)} | arrays)
    return buffer.getvalue()


def half_gzip() -> bytes:
    rows = "".join(f"{k * 7919 % 99991},{k},{k}\n" for k in range(150_000))
    content = gzip.compress(("src,dst,time\n" + rows).encode(), 1)
    return content[: len(content) * 3 // 4]


def other_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "hello")
    return buffer.getvalue()


HEAD, WIDE, OBJECT = "src,dst,time\n", "src,dst,time,w\n", '{"src":1,"dst":2,"time":3}\n'
# code, content of a file, options of `data import`, pattern of what the sentence shows: answered without torch
FILES = [
    ("empty-file", "", "", ""),
    ("empty-file", "\n\n  \n", "", ""),
    ("empty-file", "# a\n# b\n", "", ""),
    ("no-rows", HEAD, "", ""),
    ("no-rows", "src,dst,time", "", ""),
    ("no-rows", other_zip(), "", "no data rows|no rows|header"),
    ("no-rows", parquet(src=pa.array([], pa.int64()), dst=pa.array([], pa.int64()), time=[]), "", ""),
    ("no-rows", HEAD + "a,b,\n", "--skip-bad", "data row 1"),
    (
        "unknown-column",
        "who,dst,time\n1,2,3\n",
        "--src whoo",
        "'whoo'.*'who', 'dst', 'time'.*did you mean 'who'",
    ),
    ("unknown-column", WIDE + "1,2,3,4\n", "--features weight", "'weight'"),
    ("unknown-column", HEAD + "1,2,3\n", "--label y", "'y'"),
    ("unknown-column", "1,2,3\n4,5,6\n", "--src 7", "no column '7', .*--header"),
    ("unknown-column", "1,2,3\n4,5,6\n", "--src who", "no column 'who', .*give --header"),
    ("column-not-recognized", "a,b,time\n1,2,3\n", "", "--src .*'a', 'b'"),
    ("column-not-recognized", "src;dst;time\n1;2;3\n", "--delimiter ,", "--delimiter"),
    ("column-not-recognized", "5,6,7\n1,2,3\n", "--header", "--src.*'5', '6', '7'"),
    ("duplicate-column", "src,dst,time,time\n1,2,3,4\n", "", "'time'"),
    ("columns-not-distinct", "a,b,time\n1,2,3\n", "--src a --dst a", "'a'"),
    ("too-few-columns", "1,2\n4,5\n", "", "2 columns"),
    ("too-few-columns", HEAD + "1,2,1\n", "--format jodie", "at least 4"),
    ("bad-rows", HEAD + "1,2,1\n1,2,nan\n", "", "data row 2, column 'time' is nan"),
    ("bad-rows", HEAD + "1,2,inf\n", "", "data row 1, column 'time' is inf"),
    ("bad-rows", HEAD + "1,2,1\n1,2,\n", "", "data row 2, column 'time' is empty"),
    ("bad-rows", HEAD + "1,2,\n", "", "data row 1, column 'time' is empty"),
    ("bad-rows", HEAD + "1,2,2024-02-28\n1,2,2024-02-30\n", "", "data row 2, .*'2024-02-30'"),
    ("bad-rows", HEAD + "1,2,5\n1,2,2024-02-28\n", "", "data row 2, .*'2024-02-28'"),
    ("bad-rows", HEAD + "1,2,2024-02-28\n1,2,x5\n", "", "data row 2, .*'x5'"),
    ("bad-rows", HEAD + "1,2,1\n,2,2\n", "", "data row 2, column 'src' is empty"),
    ("bad-rows", WIDE + "1,2,1,3\n1,2,2,red\n", "--features w", "column 'w' is 'red'"),
    ("bad-rows", WIDE + "1,2,1,3\n1,2,2,\n", "--features w", "data row 2, column 'w'"),
    ("bad-rows", WIDE + "1,2,1,1e99\n", "--features w", "data row 1, column 'w' is 1e.99"),
    ("bad-rows", HEAD + "1,2,1\n1,2\n", "", "data row 2 has 2 columns instead of 3"),
    ("bad-rows", parquet(time=[None]), "", "data row 1, column 'time' is empty"),
    ("bad-rows", parquet(w=pa.array([None], pa.int8())), "--features w", "data row 1, column 'w'"),
    ("bad-rows", parquet(src=pa.array([None], pa.int64())), "", "data row 1, column 'src' is empty"),
    ("bad-rows", HEAD + "1,2,2024-01-01\n", "--time-format %d.%m.%Y", "data row 1, .*'2024-01-01'.*%d.%m.%Y"),
    ("bad-rows", HEAD + "1,2,01.03.24\n", "", "data row 1, .*'01.03.24'"),
    ("bad-rows", HEAD + "1,2,31.02.2024\n", "", "data row 1, .*'31.02.2024'"),
    ("bad-rows", HEAD + "1,2,13.02.2024 13:00 PM\n", "", "data row 1, .*13:00 PM"),
    ("bad-rows", HEAD + "1,2,1\nNaN,2,2\n", "", "data row 2, column 'src' is 'NaN'"),
    ("bad-rows", HEAD + "ann,NULL,1\n", "", "data row 1, column 'dst' is 'NULL'"),
    ("bad-rows", HEAD + 'ann,"  ",1\n', "", "data row 1, column 'dst' is empty"),
    (
        "bad-rows",
        HEAD + "a,b,\n" * 6,
        "",
        "has 6 bad rows: data row 1, .*data row 5, .*and 1 more; .*--skip-bad",
    ),
    ("bad-rows", "1 2 1400000000\n1 2\n3 4 1400000001\n", "", "data row 2 has 2 columns instead of 3"),
    ("bad-rows", HEAD + "1,2,1\n1,2,3,4\n", "", "data row 2 has 4 columns instead of 3"),
    ("bad-rows", OBJECT + '{"src":1\n', "--format jsonl", "data row 2 "),
    ("bad-rows", OBJECT + "[1,2,3]\n", "", "data row 2 "),
    ("bad-rows", '{"src":{"a":1},"dst":2,"time":3}\n', "", "data row 1 has .*'src'"),
    ("bad-rows", OBJECT + '{"dst":2,"time":3}\n', "", "data row 2, column 'src' is empty"),
    ("bad-rows", '{"src":1,"dst":2,"time":NaN}\n', "", "data row 1, column 'time' is nan"),
    ("bad-rows", b'{"src":1,"dst":2,"time":3}\n{"src":"\xe9","dst":2,"time":3}\n', "", "data row 2 .*UTF-8"),
    (
        "wrong-encoding",
        "src,dst,time\n1,2,1\né,2,1\n".encode("latin-1"),
        "",
        r"byte 19 \(line 3\).*--encoding",
    ),
    ("wrong-encoding", "src,dst,time,é\n1,2,1,1\n".encode("latin-1"), "", "byte 13 .line 1.*iconv"),
    ("wrong-encoding", (HEAD + "1,2,1\n").encode("utf-16"), "", "--encoding utf-16"),
    ("unknown-encoding", HEAD + "1,2,1\n", "--encoding klingon", "'klingon'"),
    ("unsupported-file", bytes(range(256)) * 9, "", ""),
    ("unsupported-file", gzip.compress(bytes(range(256)) * 9), "", ""),
    ("unsupported-file", "%PDF-1.7 rubbish", "", "PDF"),
    ("unknown-decimal-mark", HEAD + "1,2,1\n", "--decimal ;", "--decimal"),
    ("file-damaged", corrupt_npz(), "", "npz"),
    ("file-damaged", parquet()[:-40], "", "Parquet"),
    ("file-damaged", HEAD + "1,2,1\n", "--format parquet", "Parquet"),
    ("file-damaged", HEAD + "1,2,1\n", "--format npz", "npz"),
    ("file-damaged", ";u;i;ts;label;idx\n0;1;2;3.0;0;1\n", "", "DyGLib"),
    ("file-damaged", parquet().replace(b"src", b"s\xedc"), "", "Parquet"),
    ("file-damaged", b"SQLite format 3\x00" + b"x" * 50, "", "SQLite"),
    ("missing-array", pickled_npz(), "", "'dst'"),
    ("node-numbers-too-sparse", npz(src=np.array([0, 200000000])), "", "200,000,000"),
    ("node-numbers-too-sparse", npz(node_feat=np.empty((10**12, 0), "f4")), "", "up to 999,999,999,999"),
    ("node-numbers-too-sparse", ",u,i,ts,label,idx\n0,1,200000000,1,0,1\n", "", "up to 199,999,999"),
    ("row-count-differs", npz(edge_feat=np.empty((10**12, 0), "f4")), "", "1000000000000 rows for 2"),
    ("wrong-array-type", npz(t=np.ones(2, complex)), "", "t is complex128.2."),
    ("wrong-array-type", npz(t=np.zeros(2, [("a", "f8")])), "", "t is "),
    ("wrong-array-type", npz(label=np.ones((2, 2))), "", "label is float64.2, 2."),
    ("file-unreadable", half_gzip(), "", "Truncated"),
    ("file-unreadable", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x01", "", ""),
    ("column-not-ids", parquet(src=[1.5]), "", "'src'.*1.5"),
    ("column-not-ids", parquet(src=[True]), "", "'src' has type bool"),
    ("column-not-times", parquet(time=[True]), "", "'time' has type bool"),
    ("column-not-numeric", parquet(w=[[1]]), "--features w", "'w' has type list"),
    ("wrong-columns", HEAD + "1,2,1\n", "--format dyglib", "u, i, ts, label, idx"),
    ("conflicting-time-options", HEAD + "1,2,2024-01-01\n", "--time-unit ms", "--time-unit"),
    (
        "conflicting-time-options",
        HEAD + "1,2,1\n",
        "--time-format %d.%m.%Y --time-unit ms",
        "--time-format .*--time-unit",
    ),
    ("ambiguous-header", "0,1,2\n3,4,5\n", "", "--header or --no-header"),
    ("ambiguous-time-column", "1,2,9,8\n3,4,7,9\n5,6,8,7\n", "", "--time 2 or --time 3"),
    (
        "ambiguous-time-column",
        "1,2,1400000000,1500000000\n3,4,1400000001,1500000001\n",
        "",
        "--time 2 or --time 3",
    ),
    (
        "ambiguous-date-order",
        HEAD + "1,2,03/01/2024\n",
        "",
        "--time-format %d/%m/%Y or --time-format %m/%d/%Y",
    ),
    (
        "mixed-date-order",
        HEAD + "1,2,13/01/2024\n1,2,01/13/2024\n",
        "",
        "day first .'13/01/2024'. and with the month first .'01/13/2024'.; write them alike",
    ),
    ("bad-time-format", HEAD + "1,2,1\n", "--time-format %Q", "'%Q'"),
    ("bad-time-format", HEAD + "1,2,1\n", "--time-format %H:%M", "'%H:%M'"),
    ("no-json-objects", "hello\n", "--format jsonl", ""),
    ("option-not-applicable", OBJECT, "--delimiter ,", "--delimiter"),
    ("bad-delimiter", HEAD + "1,2,1\n", '--delimiter "', "'\"'"),
]

# code, table of pairs, table of new events, further options of `predict`, what the sentence names
QUERIES = [
    ("file-missing", "src,dst\nann,bob\n", "", "--events missing.csv", "missing.csv"),
    ("empty-file", "", "", "", "p.csv"),
    ("no-rows", "src,dst\n", "", "", "p.csv"),
    ("column-not-recognized", "a,b\nann,bob\n", "", "", "a, b"),
    ("duplicate-column", "src,dst,words,words\nann,bob,1,2\n", "", "", "'words'"),
    ("duplicate-column", "src,dst,src\nann,bob,cid\n", "", "", "'src'"),
    ("column-not-recognized", "src,when\nann,2024-05-01\n", "", "", "dst"),
    ("bad-value", "src,dst,time\nann,bob,nan\n", "", "", "data row 1, column 'time' is nan"),
    ("bad-value", "src,dst,time\na,b,2024-05-01\na,b,soon\n", "", "", "data row 2, column 'time' is 'soon'"),
    ("time-out-of-range", "src,dst,time\nann,bob,1714550400000\n", "", "", "--time-unit ms"),
    ("bad-value", "src,dst\nann,\n", "", "", "data row 1, column 'dst'"),
    ("invalid-time", "src,dst\nann,bob\n", "", "--at soon", "--at"),
    ("invalid-time", "src,dst\nann,bob\n", "", "--at 2024-05-20 --time-format %d.%m.%Y", "%d.%m.%Y"),
    ("bad-time-format", "src,dst\nann,bob\n", "", "--time-format %H:%M", "%H:%M"),
    ("bad-value", "src,dst,time\nann,bob,2024-05-20\n", "", "--time-format %d.%m.%Y", "--time-format"),
    (
        "conflicting-time-options",
        "src,dst,time\na,b,5\n",
        "",
        "--time-format %Y.%m.%d --time-unit s",
        "--time-unit",
    ),
    ("time-given-twice", "src,dst,time\nann,bob,2024-05-01\n", "", "--at 2024-05-02", "--at"),
    ("folder-not-found", "src,dst\nann,bob\n", "", "--out none/scores.csv", "none"),
    ("pairs-and-sources", "src,dst\nann,bob\n", "", "--sources ann", "--sources"),
    ("unknown-column", "src,dst\nann,bob\n", "who,whom,when\na,b,2024-05-20\n", "", "words"),
    ("bad-rows", "src,dst\nann,bob\n", "who,whom,when,words\na,b,2024-05-20,\n", "", "words"),
    (
        "feature-count",
        "src,dst\na,b\n",
        "who,whom,when,a,b\na,b,2024-05-20,1,2\n",
        "--features a,b",
        "2 features",
    ),
]

# code where nothing may be written, code where no space is left (-: little is written), command line
WRITERS = """
write-failed         write-failed      train tiny --data-dir DATA --device cpu --model trees --set rounds=1 --out TO
write-failed         write-failed      evaluate tiny --data-dir DATA --store-negatives TO
write-failed         write-failed      predict RUN --data-dir DATA --device cpu --sources 1 --top 2 --out TO/s.csv
write-failed         -                 report RUN --data-dir DATA --out TO/page.html
write-failed         -                 report RUN --data-dir DATA
write-failed         -                 demo --epochs 1 --out TO
folder-not-lockable  write-failed      data import LOG --out log --data-dir TO
write-failed         write-failed      data generate --events 400 --nodes 30 --out gen --data-dir TO
folder-not-lockable  host-unreachable  data fetch uci --data-dir TO
"""
# code where nothing may be read, command line
READERS = """
file-unreadable         data describe tiny --data-dir DATA
malformed-command-line  data import LOG --out x --data-dir TO
file-unreadable         train tiny --data-dir DATA
file-unreadable         train --resume RUN --data-dir DATA
file-unreadable         evaluate RUN --data-dir DATA
file-unreadable         predict RUN --data-dir DATA --sources 1 --top 2
file-unreadable         report RUN --data-dir DATA
"""

# code, model, settings that are each possible alone; single numbers out of bounds are in core/test_settings.py
SETTINGS = [
    ("bad-channels", "dyg-mamba", {"channels": []}),
    ("bad-channels", "dyg-mamba", {"channels": ["nodes"]}),
    ("bad-channels", "dyg-mamba", {"channels": ["node", "place"]}),
    ("bad-channels", "dyg-mamba", {"channels": ["node", "node"]}),
    ("bad-channels", "dyg-mamba", {"channels": ["time", "walks"]}),
    ("bad-channels", "mamba", {"channels": ["node", "edge", "node"]}),
    ("bad-channels", "dyg-mamba-counts", {"channels": []}),
    ("bad-channels", "dyg-mamba-counts", {"channels": ["nodes"]}),
    ("bad-channels", "dyg-mamba-counts", {"channels": ["node", "node"]}),
    ("bad-channels", "dyg-mamba-counts", {"channels": ["walks", "decayed-counts"]}),
    ("bad-pair-features", "dyg-mamba-counts", {"pair_features": ["time"]}),
    ("bad-decays", "dyg-mamba-counts", {"walk_decay": 0.1}),
    ("bad-decays", "tpnet", {"decay": 0.5, "decays": 2}),
    ("bad-patch", "dygformer", {"length": 4, "patch": 5}),
    ("bad-heads", "dygformer", {"heads": 3}),
    ("bad-heads", "tcl", {"heads": 3}),
    ("too-many-neighbors", "tgat", {"layers": 5}),
    ("too-many-neighbors", "tgat", {"neighbors": 1_000_000, "layers": 100}),
]


@dataclass(frozen=True)
class NoSettings:
    """The config of a model without settings."""


class Given(Enum):
    """Stands in a row for what the test has prepared."""

    DATA = "a stream of numbers"
    MAIL = "a stream of names and dates"
    RUN = "a run of trees on DATA"
    PATH = "the directory of RUN"


class WrongCall(NamedTuple):
    """A call and the code of its error; a function that is a name is a method of RUN."""

    code: str
    function: Callable | str
    arguments: tuple
    options: dict[str, Any]


def wrong(code: str, function: Callable | str, *arguments: Any, **options: Any) -> WrongCall:
    return WrongCall(code, function, arguments, options)


def alerts(**options):
    """Select among the predictions of a stream of plain numbers."""
    columns = {"src": list("ab"), "dst": list("xy"), "time": [1.0, 2.0], "score": [0.2, 0.9]}
    return select_alerts(Predictions(pa.table(columns), None, ()), **options)


DATA, MAIL, RUN, PATH = Given
# the class of the error, where it is not a ConfigError
OTHER_KINDS = {
    "backtest-too-few-events": EventError,
    "not-a-folder": FileError,
    "one-destination": EventError,
    "dates-for-plain-times": FileError,
    "invalid-preset-path": FileError,
    "not-a-run": FileError,
    "unknown-candidate": NotFoundError,
    "unknown-model": NotFoundError,
    "file-missing": FileError,
}
TRAIN = {"device": "cpu", "out": "runs"}
RANKING = TRAIN | {"loss": "ranking"}
ONE_DESTINATION = dm.read([(k % 5, 9, k) for k in range(200)], name="one")
CALLS = [
    wrong("unknown-split", dm.batches, DATA, split="future"),
    wrong("size-not-positive", dm.batches, DATA, 0),
    wrong("unknown-negatives", dm.batches, DATA, split="test", negatives="hard"),
    wrong("option-of-evaluation", dm.batches, DATA, negatives="historical"),
    wrong("unknown-protocol", dm.batches, DATA, protocol="none"),
    wrong("invalid-dataset-name", dm.generate, name="../x", events=10),
    wrong("too-few-nodes", dm.generate, nodes=3, communities=2),
    wrong("drift-too-large", dm.generate, drift=1e9),
    wrong("origin-too-large", dm.generate, origin=1e15, pace=1e-6),
    wrong("unknown-setting", dm.generate, node=3),
    wrong("model-name-taken", dm.register, "tgn", NoSettings, print),
    wrong("malformed-model-name", dm.register, "a/b", NoSettings, print),
    wrong("config-not-a-dataclass", dm.register, "mine", dict, print),
    wrong("unknown-model", dm.check_model, "nobody"),
    wrong("not-a-run", dm.open, "."),
    wrong("k-not-positive", "classify", k=0),
    wrong("model-without-encoder", "embed", [3]),
    wrong("unknown-negatives", "evaluate", "hard"),
    wrong("setting-of-wrong-type", "evaluate", visible="all"),
    wrong("unknown-candidate", "rank", 1, candidates=["nobody"]),
    wrong("no-ids", "rank", 1, candidates=[]),
    wrong("unknown-option", "observe", [(1, 2, 2e9)], nonsense=1),
    wrong("unknown-option", "evaluate", events=[(1, 2, 2e9)], nonsense=1),
    wrong("unknown-candidates", "evaluate", metrics="mrr", candidates=0),
    wrong("filtered-board", "evaluate", metrics="mrr", candidates="board", filtered=True),
    wrong("no-leaderboard", "evaluate", metrics="mrr", candidates="board"),
    wrong("one-destination", dm.evaluate, ONE_DESTINATION, "recency", metrics="mrr"),
    wrong("no-runs", dm.compare, []),
    wrong("malformed-target", dm.push, RUN, "hf://x"),
    wrong("not-a-folder", dm.push, RUN, __file__),
    wrong("not-a-folder", dm.pull, __file__),
    wrong("unknown-variant", dm.reproduce, "link", variants=["x"]),
    wrong("unknown-variant", dm.reproduce, "ablation", variants=["x"]),
    wrong("varied-setting", dm.reproduce, "length", length=3),
    wrong("blend-length-mismatch", BlendConfig, ("trees", "tgn"), ("{}",), ("", ""), (0.5, 0.5)),
    wrong("not-a-node-run", "classify", [1]),
    wrong("option-of-node-task", dm.train, DATA, backbone=PATH),
    wrong("scores-do-not-fit", dm.evaluate_scores, [0.5], DATA, split="val"),
    wrong("budget-of-seeds", dm.train, DATA, budget="1m", seeds=(0, 1), **TRAIN),
    wrong("budget-of-node-task", dm.train, DATA, budget="1m", task="node", **TRAIN),
    wrong("budget-of-processes", dm.train, DATA, budget="1m", processes=2, **TRAIN),
    wrong("unknown-setting", dm.train, DATA, budget="1m", leafs=3, **TRAIN),
    wrong("setting-of-wrong-type", dm.train, DATA, "tgn", processes=2, overrides={"out": object()}, **TRAIN),
    wrong("processes-not-positive", dm.train, DATA, "tgn", processes=0, **TRAIN),
    wrong("unknown-setting", dm.train, DATA, "dyg-mamba", lenght=3, **TRAIN),
    wrong("unknown-model", dm.train, DATA, "dygmamba", **TRAIN),
    wrong("model-needs-no-training", dm.train, DATA, "edgebank", **TRAIN),
    wrong("unknown-device", choose_device, "gpu"),
    wrong("no-query-columns", dm.train, DATA, "trees", query_columns=True, **TRAIN),
    wrong("no-query-columns", dm.train, DATA, "dyg-mamba-counts", query_columns=True, **TRAIN),
    wrong("loss-needs-random-negatives", dm.train, DATA, "trees", train_negatives="mixed", **RANKING),
    wrong("loss-needs-random-negatives", dm.train, DATA, "jodie", train_negatives="mixed", **RANKING),
    wrong("former-negatives", dm.train, DATA, "jodie", train_negatives="mixed-odds", **TRAIN),
    wrong("setting-out-of-bounds", dm.train, DATA, "jodie", train_candidates=0, **RANKING),
    wrong("invalid-every", dm.backtest, DATA, "trees", every="often", out="out"),
    wrong("invalid-window", dm.backtest, DATA, "trees", every="1d", window="0d", out="out"),
    wrong("invalid-start", dm.backtest, DATA, "trees", every="1d", start="soon", out="out"),
    wrong("too-many-periods", dm.backtest, DATA, "trees", every=1, out="out"),
    wrong("backtest-without-period", dm.backtest, DATA, "trees", every="1d", start="2200-01-01", out="out"),
    wrong("backtest-too-few-events", dm.backtest, DATA, "trees", every="1d", window="1s", out="out"),
    wrong("unknown-setting", dm.backtest, DATA, "trees", every="1d", no_such_setting=3, out="out"),
    wrong("trials-not-positive", dm.tune, DATA, "trees", trials=0),
    wrong("hours-out-of-range", dm.tune, DATA, "trees", hours=-1.0),
    wrong("no-study-to-resume", dm.tune, DATA, "trees", trials=1, resume=True),
    wrong("invalid-preset-path", dm.tune, DATA, "trees", trials=1, out="preset.txt"),
    wrong("model-needs-no-training", dm.tune, DATA, "edgebank", trials=1),
    wrong("unknown-setting", dm.tune, DATA, "trees", trials=1, lenght=3),
    wrong("setting-out-of-bounds", dm.tune, DATA, "trees", trials=1, leaves=0),
    wrong("file-missing", dm.tune, DATA, "trees", trials=1, preset="nowhere.toml"),
    *(
        wrong("invalid-split", parse_split, MAIL, split)
        for split in ("", "0.7", "0.7,0.2,0.2", "0.5,x,0.1", "1,0,0", "0.2,0.2,0.2,0.4", "2024-05-05,soon")
    ),
    wrong("split-order", parse_split, MAIL, "2024-05-08,2024-05-05"),
    wrong("split-outside-stream", parse_split, MAIL, "2020-01-01,2024-05-05"),
    wrong("split-outside-stream", parse_split, MAIL, "2024-05-05,2031-01-01"),
    wrong("dates-for-plain-times", parse_split, dm.read([(1, 2, 1), (2, 3, 2)]), "2024-05-05,2024-05-06"),
    *(wrong("bad-delimiter", ReadOptions, delimiter=mark) for mark in (", ", "é", "")),
    *(wrong("bad-time-format", ReadOptions, time_format=form) for form in ("%H:%M", "%d.%m.", "%Q", "%", "")),
    wrong("unknown-time-unit", ReadOptions, time_unit="h"),
    wrong("unknown-decimal-mark", ReadOptions, decimal=";"),
    wrong("unknown-format", read_dataset, __file__, format="excel"),
    *(wrong("malformed-seeds", parse_seeds, text) for text in ("", "-", "5-1", "1e3", "0-9,", "9" * 5000)),
    *(wrong("too-many-seeds", parse_seeds, text) for text in ("0-10000", "0-400000000")),
    *(wrong("seed-too-large", parse_seeds, text) for text in ("99999999999999999999", str(2**63))),
    wrong("times-without-days", alerts, per_day=1),
    wrong("malformed-costs", alerts, costs="1"),
    wrong("threshold-and-costs", alerts, costs="1,2", threshold=0.5),
    wrong("share-out-of-range", alerts, costs="1,2", real_share=1.0),
    wrong("share-without-costs", alerts, real_share=0.1),
    wrong("share-out-of-range", "report", costs="1,2", real_share=-0.1),
    *(wrong("token-required", ServerSettings, host=host) for host in ("0.0.0.0", "", "example.org")),
    *(wrong("weak-token", ServerSettings, token=token) for token in ("short", "0123456789abcde\n")),
    wrong("port-out-of-range", ServerSettings, port=70000),
    wrong("tls-half-given", ServerSettings, tls_cert=__file__),
    *(
        wrong("invalid-late", dm.live, RUN, "state", late=late)
        for late in ("soon", "-1s", "1 parsec", math.nan)
    ),
    wrong("invalid-on-late", dm.live, RUN, "state", on_late="forget"),
    wrong("invalid-max-ahead", dm.live, RUN, "state", max_ahead="soon"),
    wrong("memory-needs-time-order", dm.train, DATA, "tgn", order="random", **TRAIN),
    *(
        wrong("wrong-argument-type", "rank", **{"sources": [1], name: ids})
        for ids in ([None], [math.nan], [1.5], [b"x"], [True], 1.5, object())
        for name in ("sources", "candidates")
    ),
]
