"""Record what the package computes: weights, metrics, scores, imported files and command output as digests.

The recorder uses only the public surface (`import dygmamba as dm`, the command line, files of a run directory), so the
same file records any version of the package:

    python tests/golden_cases.py --out goldens.json [--device cuda]
    make goldens AT=COMMIT                           # compare the working tree with a commit (compare_goldens.py)
"""

import argparse
import contextlib
import hashlib
import io
import json
import math
import os
import re
import sqlite3
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("NUMBA_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import torch
from safetensors import safe_open

import dygmamba as dm

HERE = Path(__file__).resolve().parent / "goldens"
ABLATIONS = Path(__file__).resolve().parents[1] / "src" / "dygmamba" / "presets" / "ablations.toml"
PAIRS = [(3, 17), (5, 2), (11, 30), (0, 39), (21, 8), (7, 7)]
SMALL = {"epochs": 2, "batch": 100}
# Sizes that keep one training under a second without leaving out a code path. They are given as a preset file, because
# the setting `out` has the name of an argument of `dygmamba.train`.
MAMBA = {"length": 8, "width": 8, "time_dim": 8, "out": 8, "states": 4}
DENSE = {"time_dim": 8, "out": 8}
SIZES: dict[str, dict[str, Any]] = {
    "dyg-mamba": MAMBA,
    "mamba": MAMBA,
    "dyg-mamba-counts": MAMBA | {"walk_dim": 16},
    "tgat": DENSE | {"neighbors": 4},
    "cawn": DENSE | {"walks": 4, "heads": 2},
    "graphmixer": DENSE | {"neighbors": 6},
    "tcl": DENSE | {"neighbors": 6},
    "dygformer": DENSE | {"length": 8, "width": 8},
    "freedyg": DENSE | {"length": 8, "count_dim": 8},
    "jodie": DENSE,
    "dyrep": DENSE | {"neighbors": 4},
    "tgn": DENSE | {"neighbors": 4},
    "tpnet": DENSE | {"neighbors": 6, "dim": 16},
    "trees": {"trees": 20, "rounds": 10},
    "walk-trees": {"trees": 20, "rounds": 10},
}


def stream(name: str = "small") -> dm.Dataset:
    """A generated stream of 600 events."""
    return dm.generate(name=name, nodes=40, events=600, communities=4, seed=3)


def labelled_stream() -> dm.Dataset:
    """A stream with edge features and labels, for node classification."""
    rng = np.random.default_rng(5)
    count = 500
    src, dst = rng.integers(0, 20, count), rng.integers(20, 40, count)
    columns = {
        "src": src,
        "dst": dst,
        "time": 1.0e9 + np.cumsum(rng.integers(0, 90, count)).astype(float),
        "amount": rng.random(count).round(3),
        "label": (src % 3 == 0) & (rng.random(count) < 0.7),
    }
    table = pa.table({**columns, "label": columns["label"].astype(np.int64)})
    return dm.read(table, features=["amount"], label="label", name="labelled")


def training_cases() -> dict[str, dict[str, Any]]:
    """Every model, every ablation, and the other ways to train."""
    cases: dict[str, dict[str, Any]] = {name: {"model": name, **sizes} for name, sizes in SIZES.items()}
    # of the working tree, also where another version is recorded: both train the same cases
    for name, parts in tomllib.loads(ABLATIONS.read_text("utf-8")).items():
        walks = {"walk_dim": 16} if parts.get("walk_dim") == 120 else {}
        # a variant of another model is trained as the paper's model is, not by the preset of that model
        alike = {"lr": 1e-4, "order": "time"} if "model" in parts else {}
        cases[f"dyg-mamba {name}"] = {"model": "dyg-mamba", **MAMBA, **parts, **walks, **alike}
    base = cases["dyg-mamba"]
    cases["dyg-mamba historical"] = base | {"train_negatives": "historical"}
    cases["dyg-mamba activity"] = base | {
        "train_negatives": "mixed",
        "activity": True,
        "negatives": "historical",
    }
    cases["dyg-mamba ranking"] = base | {"loss": "ranking", "train_candidates": 5}
    cases["tgn batch"] = cases["tgn"] | {"visible": "batch"}
    return cases


def train(data: dm.Dataset, arguments: dict[str, Any], folder: Path, **more: Any) -> dm.Run:
    """Train once with settings in a preset file."""
    model, negatives = arguments["model"], arguments.get("negatives", "random")
    settings = SMALL | {key: value for key, value in arguments.items() if key not in ("model", "negatives")}
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    preset = folder / "golden.toml"
    preset.write_text("\n".join(["[preset]", f'model = "{model}"', "[settings]", *lines]) + "\n")
    more |= {"negatives": negatives, "protocol": "benchmark"}
    (run,) = dm.train(data, model, preset=str(preset), out=folder, **more)
    return run


def record_training(data: dm.Dataset, arguments: dict[str, Any], folder: Path, device: str) -> dict[str, Any]:
    """Train once; digests of weights, metrics, results, calibration and scores."""
    return describe_run(train(data, arguments, folder, device=device))


def describe_run(run: dm.Run) -> dict[str, Any]:
    """What a finished run holds, without seconds and paths."""
    calibration = run.path / "calibration.json"
    table = run.classify([3, 5, 11]) if run.task == "node" else run.score(PAIRS)
    scores = [float(value) for value in table[table.column_names[-1]].to_pylist()]
    return {
        "best": digest_tensors(run.path / "checkpoint" / "best.safetensors"),
        "last": digest_newest(run.path / "checkpoint"),
        "metrics": digest_json(run.metrics.to_pylist()),
        "results": digest_json(run.results.to_pylist()),
        "calibration": digest_json(json.loads(calibration.read_text())) if calibration.exists() else None,
        "scores": scores,
    }


def digest_newest(folder: Path) -> str | None:
    """The digest of the model's weights in the newest checkpoint."""
    names = sorted(path for path in folder.glob("*.safetensors") if path.name != "best.safetensors")
    return digest_tensors(max(names, key=lambda path: path.stat().st_mtime_ns)) if names else None


def digest_tensors(path: Path) -> str | None:
    """A digest of every tensor in a file, by name."""
    if not path.exists():
        return None
    sha = hashlib.sha256()
    with safe_open(path, "pt") as file:
        # "mark" identifies the events that a memory has observed; it is a checksum of data, not a weight
        for name in sorted(name for name in file.keys() if not name.endswith(".mark")):  # noqa: SIM118
            value = file.get_tensor(name).contiguous()
            sha.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            sha.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]


def digest_json(value: Any) -> str:
    """A digest of plain values, without timings, paths and sentences."""
    return hashlib.sha256(json.dumps(normalise(value), sort_keys=True).encode()).hexdigest()[:16]


LEFT_OUT = re.compile(
    r"second|memory_|^run$|path|folder|^id$|sha256|made_with|peak|^size$|^weights$|^of$|^bond$|wall|elapsed|^code$|version$|^unused_columns$"
)


def normalise(value: Any) -> Any:
    """Plain values with floats to the last bit, and a placeholder for sentences, paths and timings."""
    if isinstance(value, dict):
        return {key: normalise(part) for key, part in value.items() if not LEFT_OUT.search(str(key))}
    if isinstance(value, list | tuple):
        return [normalise(part) for part in value]
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value.hex()
    if isinstance(value, str) and (" " in value or "/" in value or os.sep in value):
        return "<text>"
    return value


# What `--json` cannot print twice: measured times and memory, and the hour that names a run.
MEASURED = re.compile(r"second|memory_|peak|wall|elapsed|^started$|^sqlite$")
STAMP = re.compile(r"\b\d{8}-\d{6}-(seed\d+)(-\d+)?")


def mask(value: Any, folder: Path) -> Any:
    """The same values without what depends on the clock, the machine's speed and the temporary folder."""
    if isinstance(value, dict):
        return {
            k: "<measured>" if MEASURED.search(str(k)) else mask(part, folder) for k, part in value.items()
        }
    if isinstance(value, list):
        return [mask(part, folder) for part in value]
    return STAMP.sub(r"STAMP-\1", value.replace(str(folder), "/FOLDER")) if isinstance(value, str) else value


def record_readers(folder: Path) -> dict[str, Any]:
    """What each kind of source becomes: a digest of the events in the user's ids, and the saved file's own words."""
    sources = reader_fixtures(folder)
    return {
        name: attempt(record_reader, source, options, folder) for name, (source, options) in sources.items()
    }


def record_reader(source: Any, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read and save one source; the stored file has the content hash and the origin."""
    dataset = dm.read(source, **options)
    table = dataset.to_arrow()
    columns = [(name, str(table[name].type), repr(table[name].to_pylist())) for name in table.column_names]
    saved = dm.save(dataset, data_dir=folder / "saved")
    with safe_open(saved, "pt") as file:
        about = file.metadata()
    about["about"] = mask(json.loads(about["about"]), folder)
    return {
        "events": hashlib.sha256(repr(columns).encode()).hexdigest()[:16],
        "tensors": digest_tensors(saved),
        "stored": about,
    }


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, or its error: a version that lacks a feature is recorded all the same."""
    try:
        return function(*arguments)
    except Exception as error:
        return {"error": f"{type(error).__name__} {getattr(error, 'code', error)}"}


def reader_fixtures(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Small files and tables of every kind that the package reads, with the options each needs."""
    import board_cases

    rng = np.random.default_rng(11)
    count = 80
    src, dst = rng.integers(0, 9, count), rng.integers(0, 9, count)
    when = 1.5e9 + np.cumsum(rng.integers(0, 5000, count))
    amount = rng.random(count).round(2)
    rows = list(zip(src, dst, when, amount, strict=True))
    found: dict[str, tuple[Any, dict[str, Any]]] = {}

    def write(name: str, text: str, **options: Any) -> None:
        path = folder / name
        path.write_text(text, encoding=options.get("encoding", "utf-8"))
        found[name] = (path, options)

    header = "src,dst,time,amount"
    write("plain.csv", "\n".join([header, *(f"{a},{b},{t},{x}" for a, b, t, x in rows)]) + "\n")
    features = {"features": ["amount"]}
    write(
        "features.csv", "\n".join([header, *(f"{a},{b},{t},{x}" for a, b, t, x in rows)]) + "\n", **features
    )
    write(
        "semicolons.csv",
        "\n".join(
            [
                "from;to;date",
                *(
                    f"n{a};n{b};2024-05-{1 + k % 28:02d} 10:{k % 60:02d}"
                    for k, (a, b, _, _) in enumerate(rows)
                ),
            ]
        ),
    )
    write("tabs.tsv", "\n".join(["user\titem\ttimestamp", *(f"{a}\t{b}\t{t}" for a, b, t, _ in rows)]))
    write("no-header.txt", "\n".join(f"{a} {b} {t}" for a, b, t, _ in rows))
    write(
        "lines.jsonl",
        "\n".join(
            json.dumps({"src": f"u{a}", "dst": f"u{b}", "time": float(t), "amount": x}) for a, b, t, x in rows
        ),
        **features,
    )
    write(
        "latin.csv",
        "\n".join(["src,dst,time", *(f"é{a},ü{b},{t}" for a, b, t, _ in rows)]),
        encoding="latin-1",
    )
    write("millis.csv", "\n".join(["src,dst,time", *(f"{a},{b},{int(1000 * t)}" for a, b, t, _ in rows)]))
    table = pa.table({"src": src, "dst": dst, "time": when, "amount": amount})
    pa.parquet.write_table(table, folder / "table.parquet")
    pa.feather.write_feather(table, folder / "table.feather", compression="uncompressed")
    with pa.OSFile(str(folder / "table.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    found["table.parquet"] = (folder / "table.parquet", features)
    found["table.arrow"] = (folder / "table.arrow", features)
    write(
        "ml_jodie.csv",
        "\n".join(
            [
                "user_id,item_id,timestamp,state_label,comma_separated_list_of_features",
                *(f"{a},{b},{t - 1.5e9},{int(x > 0.9)},{x},{1 - x}" for a, b, t, x in rows),
            ]
        ),
    )
    for board in ("tgbl-wiki", "tgbl-coin", "tgbl-flight", "tgbn-trade"):
        name = board.replace("-", "_")
        board_cases.tgb_folder(folder / name, board)
        found[board] = (folder / name, {})
    board_cases.seq_folder(folder / "GoogleLocal")
    found["tgb-seq"] = (folder / "GoogleLocal", {})
    return found | table_fixtures(folder, table)


def table_fixtures(folder: Path, table: pa.Table) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Tables with bad rows, types, labels, duplicates and node features; in memory, in a database, in two files."""
    import pandas as pd

    rows = table.to_pylist()
    texts = ["from;to;date;amount"]
    for k, row in enumerate(rows):
        texts.append(f"{row['src']};{row['dst']};{k % 28 + 1}.3.2024;{row['amount']}".replace(";0.", ";0,"))
    (folder / "dates.csv").write_text("\n".join(texts))
    (folder / "bad.csv").write_text("\n".join([*texts[:9], "a;;soon;1", *texts[9:], texts[-1]]))
    frame = pd.DataFrame(rows).assign(kind=["buy", "sell", None, "buy"] * 20, label=["yes", "no"] * 40)
    frame[:40].to_csv(folder / "half-1.csv", index=False)
    frame[40:].to_csv(folder / "half-2.csv", index=False)
    nodes = pd.DataFrame({"node": range(9), "age": range(20, 29), "city": list("abcabcabc")})
    with contextlib.closing(sqlite3.connect(folder / "mail.sqlite")) as base, base:
        frame.to_sql("mail", base, index=False)
    day_first = {"time_format": "%d.%m.%Y"}
    return {
        "dates.csv": (folder / "dates.csv", day_first),
        "bad.csv": (folder / "bad.csv", day_first | {"skip_bad": True, "drop_duplicates": True}),
        "two files": ([folder / "half-1.csv", folder / "half-2.csv"], {"name": "halves"}),
        "frame": (frame, {"types": "kind", "fill": 0.0, "name": "frame"}),
        "labelled frame": (frame, {"label": "label", "columns": False, "bipartite": True, "name": "labels"}),
        "node features": (frame, {"features": "amount", "node_features": nodes, "name": "nodes"}),
        "rows": ([(f"a{row['src']}", f"b{row['dst']}", row["time"]) for row in rows], {"name": "rows"}),
        "dict": (frame[["src", "dst", "time"]].to_dict("list"), {"time_unit": "plain", "name": "dict"}),
        "sqlite": (folder / "mail.sqlite", {"query": "SELECT src, dst, time, kind FROM mail"}),
    }


def record_commands(folder: Path, *, all_commands: bool = False) -> dict[str, Any]:
    """The `--json` output and the exit code of the commands, on one small stream."""
    data, runs = folder / "data", folder / "runs"
    where = ["--data-dir", str(data), "--json"]
    os.environ.pop("DYGMAMBA_DATA", None)  # `data list` also looks there, and in the user's cache
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.environ["XDG_DATA_HOME"] = str(folder / "home")
    log = folder / "log.csv"
    rng = np.random.default_rng(2)
    rows = [f"a{rng.integers(12)},b{rng.integers(9)},{1.6e9 + 600 * k}" for k in range(300)]
    log.write_text("\n".join(["src,dst,time", *rows]) + "\n")
    found: dict[str, Any] = {}

    def call(name: str, *words: str) -> Any:
        code, out = run_command(*words)
        value = json.loads(out) if out.strip() else None
        found[name] = {"exit": code, "json": mask(value, folder)}
        return value

    call("data import", "data", "import", str(log), "--out", "mail", *where)
    call("data list", "data", "list", "--runs", str(runs), *where)
    call("data describe", "data", "describe", "mail", *where)
    call("data export", "data", "export", "mail", "--to", str(folder / "out.csv"), *where)
    call(
        "data generate",
        "data",
        "generate",
        "--out",
        "made",
        "--nodes",
        "30",
        "--events",
        "200",
        "--communities",
        "3",
        *where,
    )
    trained = call("train", "train", "mail", "--model", "trees", "--epochs", "1", "--out", str(runs), *where)
    first = trained["results"][0]["run"]
    second = call(
        "train seeds", "train", "mail", "--model", "graphmixer", "--epochs", "1", "--out", str(runs), *where
    )
    other = second["results"][0]["run"]
    call("evaluate", "evaluate", "mail", "--model", "edgebank", *where)
    call("evaluate run", "evaluate", first, "--metrics", "mrr,hits@10", "--candidates", "5", *where)
    pairs = folder / "pairs.csv"
    pairs.write_text("src,dst\na1,b2\na3,b4\n")
    call("predict", "predict", first, "--pairs", str(pairs), *where)
    call("predict top", "predict", first, "--sources", "a1", "--top", "3", *where)
    call("explain", "explain", first, "--pair", "a1,b2", "--orders", "4", *where)
    call("blend", "blend", first, other, "--out", str(runs), *where)
    call("audit", "audit", "mail", *where)
    call("push", "push", first, str(folder / "share"), *where)
    call("pull", "pull", str(folder / "share"), "--out", str(folder / "pulled"), *where)
    tuning = ["--model", "graphmixer", "--trials", "2", "--epochs", "1", "--studies", str(folder / "tuning")]
    call("tune", "tune", "mail", *tuning, "--out", str(folder / "best.toml"), *where)
    call("data remove", "data", "remove", "made", "--runs", str(runs), *where)
    call("models", "models", "tgn", *where)
    call(
        "reproduce",
        "reproduce",
        "link",
        "--datasets",
        "mail",
        "--models",
        "edgebank",
        "--seeds",
        "0",
        "--out",
        str(folder / "studies"),
        *where,
    )
    if all_commands:
        call_more(call, folder, first, where)
    return found


def call_more(call: Callable[..., Any], folder: Path, run: str, where: list[str]) -> None:
    """The commands that `make goldens` alone compares; `data fetch` needs a network, `bench` measures time."""
    runs, later, labels = folder / "runs", folder / "later.csv", folder / "labels.csv"
    rows = [f"a{k % 12},b{k % 9},{1.6e9 + 600 * (300 + k)}" for k in range(40)]
    later.write_text("\n".join(["src,dst,time", *rows]) + "\n")
    columns = labelled_stream().to_arrow().to_pylist()
    lines = [",".join(str(value) for value in row.values()) for row in columns]
    labels.write_text("\n".join([",".join(columns[0]), *lines]) + "\n")
    trees = ["--model", "trees", "--out", str(runs)]
    short = ["--epochs", "1", "--set", "trees=6", "--set", "rounds=3"]
    call("error", "train", "absent", *where)
    call("evaluate events", "evaluate", run, "--events", str(later), *where)
    call("data import label", "data", "import", str(labels), "--label", "label", "--out", "labels", *where)
    nodes = call("train node", "train", "labels", "--task", "node", *trees, *short, *where)
    node_run = nodes["results"][0]["run"]
    (folder / "nodes.csv").write_text("node\n3\n5\n")
    call("predict node", "predict", node_run, "--nodes", str(folder / "nodes.csv"), *where)
    call("explain node", "explain", node_run, "--node", "3", *where)
    call("train budget", "train", "mail", "--budget", "1h", "--out", str(runs), *short, *where)
    call("train refit", "train", "mail", "--refit", "all", *trees, *short, *where)
    periods = ["--every", "12h", "--out", str(folder / "backtest")]
    call("backtest", "backtest", "mail", "--model", "trees", *periods, *short, *where)
    call("export", "export", run, "--to", str(folder / "trees.zip"), *where)
    call("audit model", "audit", "mail", "--model", "trees", *where)
    call("models all", "models", "--data", "mail", *where)
    call("reproduce plan", "reproduce", "link", "--datasets", "mail", "--dry-run", *where)
    call("data append", "data", "import", str(later), "--append", "mail", *where)
    call("runs", "runs", "--best", "--runs", str(runs), "--json")
    call("demo", "demo", "--epochs", "1", "--out", str(folder / "demo"), "--json")


def run_command(*words: str) -> tuple[int, str]:
    """`dygmamba` in this process: exit code and stdout; stderr is dropped."""
    from dygmamba.cli import main

    before, out = sys.argv, io.StringIO()
    sys.argv = ["dygmamba", *words]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            main()
    except SystemExit as left:
        code = left.code
    finally:
        sys.argv = before
    return int(code or 0), out.getvalue()


def record_nodes(folder: Path, device: str) -> dict[str, Any]:
    """Train a node classifier on a labelled stream, its backbone first."""
    arguments = {"model": "dyg-mamba", **MAMBA}
    return describe_run(train(labelled_stream(), arguments, folder, task="node", device=device))


def fingerprint() -> dict[str, str]:
    """What decides the last bit besides the code: library versions and the kind of processor."""
    import numba

    return {
        "torch": torch.__version__,
        "numba": numba.__version__,
        "numpy": np.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": str(numba.core.config.CPU_NAME or _host()),
    }


def _host() -> str:
    import llvmlite.binding

    return llvmlite.binding.get_host_cpu_name()


def record(device: str = "cpu", *, exact: bool = False) -> dict[str, Any]:
    """Everything, as one object; `exact` keeps sentences and adds the commands that no test calls."""
    from old_runs import record_kinds, record_old_runs

    torch.set_num_threads(1)
    found: dict[str, Any] = {"fingerprint": fingerprint(), "training": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, arguments in training_cases().items():
            place = folder / "training" / case.replace(" ", "-")
            found["training"][case] = attempt(record_training, stream(), arguments, place, device)
        found["training"]["node"] = attempt(record_nodes, folder / "nodes", device)
        if device == "cpu":
            for part in ("files", "commands", "old", "kinds"):
                (folder / part).mkdir()
            found["readers"] = record_readers(folder / "files")
            commands = record_commands(folder / "commands", all_commands=exact)
            found["commands"] = (
                commands if exact else {key: normalise(value) for key, value in commands.items()}
            )
            found["old_runs"] = record_old_runs(folder / "old") | record_kinds(folder / "kinds")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "goldens.json")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exact", action="store_true")
    chosen = parser.parse_args()
    content = record(chosen.device, exact=chosen.exact)
    if chosen.exact:
        content["sources"] = str(Path(dm.__file__).parent)
    chosen.out.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
