"""A slip is told at once: a hundred of them, each one sentence and exit code 2, before anything heavy is imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from commands import invoke
from dygmamba.cli import app
from dygmamba.models import MODELS

CASES = """
train
train nothing-here
train nothing.csv
train nowhere/data.safetensors
train folder
train generated --resume folder
train --resume nowhere
train --resume folder
train --resume damaged
train --resume folder --model trees
train generated --model nothing
train generated --model dygmamba
train generated --model edgebank
train generated --model recency --set x=1
train generated --set lenght=3
train generated --set length=0
train generated --set length=x
train generated --set length=1e400
train generated --set length
train generated --set =3
train generated --set epochs=0
train generated --set epochs=1.5
train generated --set lr=0
train generated --set lr=nan
train generated --set dropout=1
train generated --set precision=float16
train generated --set graphs=3
train generated --set channels=5
train generated --set leaves=1
train generated --model trees --set length=3
train generated --model trees --set rate=2
train generated --model tgat --set walks=3
train generated --model dyg-mamba --set step=none
train generated --model dyg-mamba --device cpu --set blocks=101
train generated --device tpu
train generated --device CUDA
train generated --device
train generated --budget soon
train generated --budget 0s
train generated --budget 1m --seeds 0-2
train generated --budget 1m --task node
train generated --budget 1m --processes 2
train generated --budget 1m --set lenght=3
train --resume folder --budget 1m
train generated --seeds x
train generated --seeds 3-1
train generated --seeds 0-99999999
train generated --seeds 99999999999999999999
train generated --epochs 0
train generated --epochs many
train generated --negatives nobody
train generated --negatives ,
train generated --train-negatives inductive
train generated --visible tomorrow
train generated --preset large
train generated --preset nowhere.toml
train generated --preset bad.toml
train generated --preset empty.toml
train generated --model trees --preset small
train generated --model trees --preset tgat.toml
train generated --split 0.5
train generated --split 0.5,0.5,0.5
train generated --split a,b,c
train generated --task edge
train generated --finetune
train generated --balance
train generated --backbone folder
train generated --task node --backbone nowhere
train generated --task node --backbone folder --preset small
train generated --task node --set lenght=3
train generated --refit some
train generated --task node --refit all
train generated --nonsense
fit generated
tune
tune nothing-here
tune generated --model nothing
tune generated --model edgebank
tune generated --trials 0
tune generated --hours 0
tune generated --hours soon
tune generated --set rate=2 --model trees
tune generated --device tpu
evaluate
evaluate nothing-here
evaluate generated --model trees
evaluate generated --model nothing
evaluate generated --negatives nobody
evaluate generated --split train
evaluate generated --setting new
evaluate generated --visible tomorrow
evaluate generated --metrics map
evaluate generated --metrics hits@0
evaluate generated --candidates 5
evaluate generated --metrics mrr --candidates none
evaluate generated --draws 0
evaluate generated --set window=2
evaluate generated --set lenght=2
evaluate damaged
evaluate damaged --seed 3
audit nothing-here
audit generated nowhere
audit generated --model nothing
audit generated --set length=3
audit damaged --model trees
predict nowhere --pairs pairs.csv
predict folder
predict folder --pairs pairs.csv
predict folder --sources a
predict damaged --pairs pairs.csv --device tpu
predict folder --pairs pairs.csv --out nowhere/scores.csv
report nowhere
report folder
compare
explain nowhere --pair a,b
explain folder --pair a,b
explain folder
explain damaged --pair a,b --out picture.png
data import pairs.csv --out a/b
compare nowhere
compare folder damaged
reproduce nothing
reproduce link --models nothing
reproduce link --datasets nothing-here
reproduce link --seeds x
reproduce link --device tpu
reproduce link --workers 0
models nothing
models --data nothing-here
demo --epochs 0
data import nowhere.csv
data import folder
data import pairs.csv --format word
data import pairs.csv --time-unit weeks
data describe nothing-here
data fetch nothing-here
data generate
data generate --out a/b
data generate --out new --law linear
data generate --out new --nodes 1
data generate --out new --set lenght=3
data nonsense
""".strip().splitlines()

RUN_ALL = """
import contextlib, io, json, sys
class Guard:
    seen = []
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "pyarrow", "numba", "pandas", "optuna"):
            self.seen.append(name)
            raise ImportError(f"{name} is heavy")
sys.meta_path.insert(0, Guard())
from dygmamba.cli import main
found = []
for line in json.load(sys.stdin):
    sys.argv, Guard.seen[:] = ["dygmamba", *line.split()], []
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code
        except BaseException as error:
            code = repr(error)
    found.append([code, out.getvalue(), err.getvalue(), list(Guard.seen)])
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each case is answered, all in one process whose imports are watched."""
    folder = tmp_path_factory.mktemp("slips")
    for name in ("folder", "damaged"):
        (folder / name).mkdir()
    (folder / "damaged" / "config.toml").write_text("[run]\n")
    (folder / "bad.toml").write_text("= =\n")
    (folder / "empty.toml").write_text("")
    (folder / "tgat.toml").write_text('[preset]\nmodel = "tgat"\n[settings]\nneighbors = 4\n')
    (folder / "pairs.csv").write_text("src,dst\na,b\n")
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"DYGMAMBA_DATA": str(folder), "PYTHONPATH": source, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL], input=json.dumps(CASES), capture_output=True, text=True, cwd=folder,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(CASES, json.loads(done.stdout), strict=True))


def test_a_hundred_slips_are_each_one_sentence_and_no_heavy_import(answers):
    assert len(set(CASES)) >= 100
    wrong = {
        case: answer
        for case, answer in answers.items()
        if answer[0] != 2
        or answer[1]
        or answer[3]
        or answer[2].count("\n") != 1
        or not answer[2].startswith("error: ")
    }
    assert not wrong


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("train generated --model dygmamba", "did you mean 'dyg-mamba'?"),
        ("train generated --set lenght=3", "did you mean 'length'?"),
        ("train generated --epochs 0", "see 'dygmamba train --help'"),
        ("evaluate generated --model trees", "must be trained first: dygmamba train generated --model trees"),
        ("train generated --model trees --preset tgat.toml", "preset for 'tgat', not for 'trees'"),
        ("train generated --device tpu", "--device takes auto, cpu or cuda"),
    ],
)
def test_a_slip_is_told_what_to_do(answers, case, words):
    assert words in answers[case][2]


def test_models_and_version_tell_what_they_are_asked(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = invoke(monkeypatch, capsys, "models", "dyg-mamba")
    assert code == 0
    assert all(name in out for name in MODELS["dyg-mamba"].settings)
    assert "1 to 1,000,000" in out
    assert "tokens per sequence, including the query node" in out
    code, out, _ = invoke(monkeypatch, capsys, "models", "dyg-mamba", "--json")
    assert json.loads(out)["settings"]["length"]["default"] == 32
    code, out, _ = invoke(monkeypatch, capsys, "--version")
    assert (code, out.split()[0]) == (0, "dygmamba")


def test_help_shows_a_default_for_every_option(monkeypatch, capsys):
    """Whatever is left out, `--help` says what holds, for all commands; flags that are off say so by their name."""
    group = typer.main.get_command(app)
    names = [name for name in group.commands if name != "data"]
    commands = [group.get_command(None, name) for name in names]
    commands += group.get_command(None, "data").commands.values()
    assert len(commands) >= 16
    for command in commands:
        for option in (
            one for one in command.params if one.param_type_name == "option" and one.name != "help"
        ):
            shown = option.default is not None or option.required or isinstance(option.show_default, str)
            assert shown, (command.name, option.name)
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = invoke(monkeypatch, capsys, "train", "--help")
    assert "[default: (0.7,0.15,0.15)]" in out
    assert "[default: (dyg-mamba-counts on a GPU, else trees)]" in out
