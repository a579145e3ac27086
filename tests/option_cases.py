"""Sets of options for every command: each begins as one that works on a tiny stream, and some of it is made absurd.

What is left legal is small: an epoch of a few steps, a few draws. What is legal and huge must be refused for its size.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from dygmamba.config import get_setting_hints
from dygmamba.data.generate.stream import GeneratorConfig
from dygmamba.engine.fit_config import FitConfig
from dygmamba.models import MODELS

HUGE = ("1000000000000000000000000000000", "9" * 400, "1e400", "2147483648", "9223372036854775808", "1000000")
ODD = (
    *(
        "",
        " ",
        "nan",
        "-nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "-0",
        "0x10",
        "1e3",
        "1_0",
        "0.5",
        "1e-400",
        "٣",
        "½",
    ),
    *("a=b=c", "a\nb", "\x1b[2J", "[red]x[/red]", "é日本", "\u202e", "{}", "[]", "[1, 2]", "[[[["),
    *('"x"', "'", "`x`", "true", "none", "null", "-", "--", "--help", ",", ",,,", "../.."),
    *("x" * 5000, "%s%n", "2024-13-45", "\ud800"),
)
PATHS = (
    *("", ".", "/", "/dev/null", "/dev/zero", "/proc/self/mem", "/nowhere/x", "x" * 300, "a/" * 2000, "\n"),
    *("~", "~nobody", "tiny.safetensors", "table.csv", "empty", "pipe", "é"),
    *("con\x07trol", "run/config.toml", "link", "folder"),
)
SEEDS = (
    *("0-400000000", "", "1-", "5-2", "0,0,0", "-1", "1e3", "0-", "0--1"),
    *("9" * 400, "٣", "0,x", "0-10000", "18446744073709551616"),
)
SMALL = {"length": 4, "width": 4, "states": 2, "blocks": 1, "out": 4, "time_dim": 4, "batch": 100}
SMALL |= {"neighbors": 3, "walks": 2, "layers": 1, "heads": 2, "window": 5, "count_dim": 4, "taps": 2}
TRAINED = tuple(name for name, spec in MODELS.items() if spec.trainable)
UNTRAINED = tuple(name for name, spec in MODELS.items() if not spec.trainable)
NAMES = (
    *("random", "historical", "inductive", "random,random", "strict", "batch", "val,test"),
    *("cpu", "auto", "cuda", "cuda:99"),
)


def option_set(rng: random.Random) -> list[str]:
    """One call of the command line, most of it absurd in one to three places."""
    words = rng.choice(COMMANDS)(rng)
    for _ in range(rng.choice((0, 0, 0, 0, 0, 0, 0, 1))):  # now and then the line itself is torn
        at = rng.randrange(len(words))
        words[at : at + rng.randint(0, 1)] = [odd(rng)]
    return [word.replace("\0", "") for word in words]


def odd(rng: random.Random) -> str:
    """A value that hardly any option takes."""
    return rng.choice((*ODD, *ODD, *HUGE, *NAMES))


def train(rng: random.Random) -> list[str]:
    """An epoch on the tiny stream, its settings or its other options mutated."""
    model = rng.choice((*TRAINED, "dyg-mamba", "dyg-mamba"))
    known = {**get_setting_hints(MODELS[model].config), **get_setting_hints(FitConfig)}
    words = ["train", "tiny", "--epochs", "1", "--model", model, "--out", "out"]
    given = {key: str(value) for key, value in SMALL.items() if key in known}
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        key = rng.choice((*known, *known, *known, odd(rng)))
        given[key] = rng.choice((odd(rng), rng.choice(HUGE), "100", "99999", "100000", "1000000"))
    given = {key: value for key, value in given.items() if key != "epochs" or value != "1000000"}
    words += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    return words + some(
        rng,
        seeds=SEEDS,
        negatives=(*NAMES, *ODD),
        loss=("ranking", "pairwise", *ODD),
        train_candidates=("2", "1000000", *HUGE, *ODD[:12]),
        split=("board", "0.5,0.25,0.25", *ODD),
        protocol=("time", "benchmark", "auto", *ODD),
        visible=(*NAMES, *ODD),
        device=(*NAMES, *ODD),
        out=PATHS,
        data_dir=PATHS,
        resume=(*PATHS, "run"),
        backbone=(*PATHS, "run"),
        task=("node", "link", *ODD),
        model=(*MODELS, *ODD),
        epochs=("0", "-1", "1e3", "", "x", "nan", "1000001", "9" * 400, "0.5"),
        finetune=None,
        balance=None,
        deterministic=None,
        json=None,
    )


def evaluate(rng: random.Random) -> list[str]:
    """An exam of an untrained model or of a trained run."""
    words = ["evaluate", rng.choice(("tiny", "tiny", "run", "run", *PATHS))]
    words += ["--model", rng.choice((*UNTRAINED, *MODELS, odd(rng)))]
    keys = (*get_setting_hints(MODELS["edgebank"].config), odd(rng))
    words += [word for _ in range(rng.randint(0, 2)) for word in ("--set", f"{rng.choice(keys)}={odd(rng)}")]
    return words + some(
        rng,
        negatives=(*NAMES, *ODD),
        split=("val", "test", *NAMES, *ODD),
        setting=("transductive", "inductive", *ODD),
        protocol=("time", "benchmark", *ODD),
        draws=("0", "-1", "2", *HUGE, *ODD[:12]),
        seed=("-1", "7", *HUGE, *ODD[:12]),
        visible=(*NAMES, *ODD),
        store_negatives=PATHS,
        device=(*NAMES, *ODD),
        data_dir=PATHS,
        json=None,
    )


def predict(rng: random.Random) -> list[str]:
    """Scores or a ranking by the trained run."""
    words = ["predict", rng.choice(("run", "run", "run", *PATHS))]
    words += rng.choice(
        (
            ["--pairs", rng.choice(("table.csv", *PATHS))],
            ["--sources", rng.choice(("0,1", odd(rng))), "--top", "3"],
        )
    )
    return words + some(
        rng,
        top=("0", "-1", "3", *HUGE, *ODD[:12]),
        at=("1e300", "2024-01-01", "9999-12-31T23:59:59Z", "0001-01-01", *HUGE, *ODD),
        events=PATHS,
        sources=("0", "0," * 3000, *ODD),
        candidates=("0", "table.csv", *PATHS, *ODD),
        nodes=("0", *PATHS),
        only_new=None,
        out=PATHS,
        src=("dst", "time", *ODD),
        time=("src", *ODD),
        features=("w", "src,src", *ODD),
        time_unit=("ms", "ns", "days", *ODD),
        time_format=("%d.%m.%Y", "%Y", "%s", *ODD),
        fill=("0", *HUGE, *ODD[:12]),
        delimiter=(";", "tab", "\\t", "ab", "\r", "\n", '"', *ODD[:8]),
        encoding=("latin-1", "utf-16", "hex", "idna", "punycode", "undefined", *ODD),
        device=(*NAMES, *ODD),
        data_dir=PATHS,
        json=None,
    )


def import_(rng: random.Random) -> list[str]:
    """A table read in."""
    words = ["data", "import", rng.choice(("table.csv", "table.csv", "table.csv", *PATHS))]
    words += ["--data-dir", "made"]
    return words + some(
        rng,
        src=("dst", "time", *ODD),
        dst=("src", *ODD),
        time=("src", "w", *ODD),
        features=("w", "src,src", *ODD),
        label=("w", "src", *ODD),
        bipartite=None,
        time_unit=("s", "ns", "days", *ODD),
        fill=("0", *HUGE, *ODD[:12]),
        format=("csv", "parquet", "jodie", "dyglib", "npz", "tgb", "tgb-seq", *ODD),
        delimiter=(";", "tab", "ab", "\r", "\n", '"', *ODD[:8]),
        encoding=("latin-1", "utf-16", "utf-32", "cp500", "hex", "idna", "undefined", *ODD),
        out=("x", *PATHS, *ODD),
        data_dir=PATHS,
        json=None,
    )


def generate(rng: random.Random) -> list[str]:
    """A small stream, its parameters mutated."""
    keys = tuple(get_setting_hints(GeneratorConfig))
    values = ("0", "1", "0.99", "1e-9", "1e9", "1e15", "4096", "2147483647", *HUGE)
    words = ["data", "generate", "--events", "500", "--nodes", "40", "--data-dir", "made"]
    words += ["--out", rng.choice(("x", "x", odd(rng)))]
    words += [
        word
        for _ in range(rng.randint(1, 3))
        for word in ("--set", f"{rng.choice((*keys, odd(rng)))}={rng.choice((rng.choice(values), odd(rng)))}")
    ]
    flags = dict.fromkeys(
        ("nodes", "events", "communities", "half_life", "novelty", "noise", "drift"), (*values, *ODD)
    )
    return words + some(
        rng, **flags, law=("power", "never", *ODD), seed=(*HUGE, *ODD), data_dir=PATHS, json=None
    )


def others(rng: random.Random) -> list[str]:
    """The commands with few options."""
    report = ["report", rng.choice(("run", "run", *PATHS))]
    report += some(rng, out=("page.html", *PATHS), data_dir=PATHS)
    describe = ["data", "describe", rng.choice(("tiny", "table.csv", *PATHS, odd(rng)))]
    describe += some(rng, data_dir=PATHS, json=None)
    listing = ["data", "list", *some(rng, data_dir=PATHS, json=None)]
    fetch = ["data", "fetch", rng.choice(("uci", "wikipedia", *PATHS, odd(rng)))]
    fetch += some(rng, data_dir=("made", *PATHS))
    models = ["models", *some(rng, data=("tiny", *PATHS, odd(rng)), data_dir=PATHS, json=None)]
    return rng.choice((report, describe, listing, fetch, models, [odd(rng), odd(rng)]))


COMMANDS = (*[train] * 3, *[evaluate] * 2, *[predict] * 2, *[import_] * 2, *[generate] * 2, *[others] * 2)


def some(rng: random.Random, **pools: Sequence[str] | None) -> list[str]:
    """At most two of these options, each with a value of its pool; None is a flag."""
    chosen = rng.sample(sorted(pools), min(len(pools), rng.choice((0, 0, 1, 1, 2))))
    words = []
    for name in chosen:
        pool = pools[name]
        words += [f"--{name.replace('_', '-')}", *([] if pool is None else [rng.choice(pool)])]
    return words


def scene(folder: Path, run: Path) -> None:
    """What the calls find: the tiny stream, a table, a finished run, and things that are no files."""
    import os
    import shutil

    from torture_cases import tiny_dataset

    tiny_dataset(folder)
    rows = "".join(f"{n},{n % 4},{n},{n}.5\n" for n in range(9))
    (folder / "table.csv").write_text(f"src,dst,time,w\n{rows}")
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("link")
    shutil.copytree(run, folder / "run")
