"""Every mistake of `mistakes.py` is answered with its code, in one sentence, and before anything heavy is imported."""

import hashlib
import inspect
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import dygmamba as dm
import mistakes
from command_runner import HEAVY, Answer, run_lines
from commands import error_code, invoke
from dygmamba.config import build_config
from dygmamba.core.argument_types import describe, fits
from dygmamba.core.errors import ConfigError, DygError
from dygmamba.models import MODELS
from letters import make_letters
from mistakes import CALLS, FILES, OTHER_KINDS, QUERIES, SETTINGS, Given
from raising import raises


def split_rows(text: str, columns: int = 2) -> list[list[str]]:
    return [row.split(maxsplit=columns - 1) for row in text.strip().splitlines()]


COMMANDS, RUN_COMMANDS = split_rows(mistakes.COMMANDS), split_rows(mistakes.RUN_COMMANDS)


class Scene(NamedTuple):
    """What the calls are made with."""

    folder: Path
    data: dm.Dataset
    mail: dm.Dataset
    run: dm.Run
    mail_run: dm.Run


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Scene:
    folder = tmp_path_factory.mktemp("scene")
    data = dm.generate(nodes=20, events=200, communities=2, name="tiny")
    mail = dm.read(make_letters(), src="who", dst="whom", time="when", features=["words"], name="mail")
    runs = [dm.train(one, "trees", epochs=1, rounds=1, out=folder / "runs")[0] for one in (data, mail)]
    for one in (data, mail):
        dm.save(one, data_dir=folder / "data")
    return Scene(folder, data, mail, *runs)


def find_wrong(rows: list, answers: list[Answer]) -> list:
    """Rows, code first, whose answer is not one sentence with that code."""
    pairs = zip(rows, answers, strict=True)
    return [(row, answer) for row, answer in pairs if not answer.is_one_sentence or answer.code != row[0]]


def find_without_advice(rows: list, answers: list[Answer]) -> list:
    """Rows whose answer does not say what `mistakes.ADVICE` wants it to."""
    said = [(line, answer.err) for (_, line), answer in zip(rows, answers, strict=True)]
    return [(line, err) for line, err in said if mistakes.ADVICE.get(line, "") not in err]


def test_commands_import_nothing_heavy(tmp_path):
    """All in one process whose imports are watched."""
    for name in ("folder", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "damaged" / "config.toml").write_text("[run]\n")
    (tmp_path / "bad.toml").write_text("= =\n")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "tgat.toml").write_text('[preset]\nmodel = "tgat"\n[settings]\nneighbors = 4\n')
    (tmp_path / "pairs.csv").write_text("src,dst\na,b\n")
    lines = [line for _, line in COMMANDS]
    assert len(lines) == len(set(lines))
    answers = run_lines((line.split() for line in lines), tmp_path, forbidden=HEAVY)
    assert find_wrong(COMMANDS, answers) == []
    assert find_without_advice(COMMANDS, answers) == []
    assert not (tmp_path / "state").exists()


def test_a_process_of_its_own_exits_with_2_and_without_torch(tmp_path):
    """By Python's own record of its imports."""
    words = ["-X", "importtime", "-m", "dygmamba", "train", "generated", "--set", "lenght=3"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path)
    imports = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "import time:" in line]
    assert (done.returncode, done.stdout) == (2, "")
    assert "dygmamba.cli" in imports
    assert "torch" not in imports


def test_commands_with_a_run(scene, tmp_path):
    """All in one process; no file is written."""
    (tmp_path / "p.csv").write_text("src,dst\nann,bob\n")
    lines = [line.replace("RUN", str(scene.mail_run.path)).split() for _, line in RUN_COMMANDS]
    answers = run_lines(lines, tmp_path, environment={"DYGMAMBA_DATA": str(scene.folder / "data")})
    assert find_wrong(RUN_COMMANDS, answers) == []
    assert find_without_advice(RUN_COMMANDS, answers) == []
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_bad_files_do_not_import_torch(tmp_path):
    """Nothing is written, and the sentence shows where the trouble is."""
    lines = []
    for number, (_, content, options, _) in enumerate(FILES):
        content = content if isinstance(content, bytes) else content.encode()
        is_gzip = content.startswith(b"\x1f\x8b")
        path = tmp_path / f"bad{number}.csv{'.gz' if is_gzip else ''}"
        path.write_bytes(content)
        lines.append(["data", "import", path, "--out", "x", "--data-dir", "data", *options.split()])
    answers = run_lines(lines, tmp_path, forbidden=("torch",))
    assert find_wrong(FILES, answers) == []
    shown = zip(FILES, answers, strict=True)
    assert [(row, answer) for row, answer in shown if not re.search(row[3], answer.err)] == []
    assert not (tmp_path / "data").exists()


@pytest.mark.e2e
@pytest.mark.parametrize(("code", "pairs", "events", "options", "named"), QUERIES)
def test_wrong_queries(scene, tmp_path, monkeypatch, capsys, code, pairs, events, options, named):
    """One line on stderr that names the trouble, and the code in JSON."""
    monkeypatch.chdir(tmp_path)
    Path("p.csv").write_text(pairs)
    Path("new.csv").write_text(events)
    words = ["predict", str(scene.mail_run.path), "--pairs", "p.csv", *options.split(), "--device", "cpu"]
    words += [
        "--data-dir",
        str(scene.folder / "data"),
        "--json",
        *(["--events", "new.csv"] if events else []),
    ]
    exit_code, out, err = invoke(monkeypatch, capsys, *words)
    assert (exit_code, error_code(out), err.count("\n")) == (2, code, 1), err
    assert named in err


@pytest.mark.parametrize(("code", "model", "settings"), SETTINGS)
def test_settings_that_exclude_each_other(code, model, settings):
    with raises(code, ConfigError):
        build_config(MODELS[model].config, settings)


@pytest.mark.parametrize("row", CALLS, ids=lambda row: row.code)
def test_wrong_calls(scene, tmp_path, monkeypatch, row):
    """An error with its code, and no run, result or study is left behind."""
    monkeypatch.chdir(tmp_path)
    given = {Given.DATA: scene.data, Given.MAIL: scene.mail, Given.RUN: scene.run, Given.PATH: scene.run.path}
    function = getattr(scene.run, row.function) if isinstance(row.function, str) else row.function
    arguments = [given[one] if isinstance(one, Given) else one for one in row.arguments]
    options = {key: given[one] if isinstance(one, Given) else one for key, one in row.options.items()}
    with raises(row.code, OTHER_KINDS.get(row.code, ConfigError)):
        function(*arguments, **options)
    # a training that is refused leaves a copy of its dataset, a backtest the lock of its folder
    left = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock")
    assert [path for path in left if path.suffix != ".safetensors"] == []


def read_files(folder: Path) -> dict[Path, str]:
    """The hash of every file; who holds a lock is no matter."""
    kept = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


@pytest.fixture
def place(scene, tmp_path) -> Path:
    """A folder with a dataset, a run, a table, and places to write to."""
    place = Path(shutil.copytree(scene.folder, tmp_path / "place"))
    (place / "log.csv").write_text("src,dst,time\n" + "".join(f"{k % 9},{k % 7},{k}\n" for k in range(500)))
    (place / "to").mkdir()
    return place


def check_lines(place: Path, scene: Scene, rows: list[list[str]], **limits) -> None:
    """Check the code of every line, whose words in capitals are places."""
    run = place / scene.run.path.relative_to(scene.folder)
    names = {"DATA": place / "data", "RUN": run, "LOG": place / "log.csv", "TO": place / "to"}
    lines = [re.sub("DATA|RUN|LOG|TO", lambda word: str(names[word[0]]), line).split() for _, line in rows]
    environment = {
        "DYGMAMBA_MIRROR": "http://127.0.0.1:9/",
        "XDG_CACHE_HOME": str(place / "cache"),
        "XDG_DATA_HOME": str(place / "home"),
    }
    answers = run_lines(lines, place, environment=environment, **limits)
    for (code, line), answer in zip(rows, answers, strict=True):
        assert (answer.exit_code, answer.code) == (2, code), (line, answer)
        assert answer.err.splitlines()[-1].startswith("error: "), (line, answer)


WRITERS, READERS = split_rows(mistakes.WRITERS, 3), split_rows(mistakes.READERS)


@pytest.mark.e2e
def test_nothing_may_be_written(scene, place):
    """For all commands that write: every file is as it was."""
    before = read_files(place)
    run = place / scene.run.path.relative_to(scene.folder)
    for folder in (place / "to", run):
        folder.chmod(0o555)
    check_lines(place, scene, [[code, line] for code, _, line in WRITERS], has_rights=False)
    run.chmod(0o755)
    assert read_files(place) == before


@pytest.mark.e2e
def test_no_space_is_left(scene, place):
    """No file may be longer than twenty bytes."""
    before = read_files(place)
    check_lines(place, scene, [[code, line] for _, code, line in WRITERS if code != "-"], file_limit=20)
    assert read_files(place) == before


@pytest.mark.e2e
def test_nothing_may_be_read(scene, place):
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0)
    check_lines(place, scene, READERS, has_rights=False)


# For all public functions, parameters and wrong values: an answer, or an error of one sentence with a code.
WRONG = (None, object(), 1.5, -1, math.nan, True, "", "\0", "no such", [], {}, b"x", (None,), lambda: None)
FUNCTIONS = sorted(
    name for name in dir(dm) if inspect.isfunction(getattr(dm, name)) and name not in ("ops", "models")
)
# values that are right for these parameters, and take long
RIGHT = {"reproduce": ("datasets", "models", "seeds", "variants"), "datasets": ("runs", "data_dir")}
METHODS = {
    "score": {"pairs": [(1, 2)]},
    "rank": {"sources": [1]},
    "embed": {"nodes": [1]},
    "classify": {},
    "explain": {"pair": (1, 2)},
    "observe": {"events": [(1, 2, 2e9)]},
    "evaluate": {},
    "export": {"to": "x.pt2"},
    "inputs": {"pairs": [(1, 2)]},
    "report": {},
    "save": {"to": "x.safetensors"},
}
LIVE_METHODS = {
    "append": {"events": [(1, 2, 1e12)]},
    "score": {"pairs": [(1, 2)], "timeout": 0.0},
    "rank": {"sources": [1], "timeout": 0.0},
    "switch": {"run": "none"},
    "backup": {"to": "saved.zip"},
}


class ReachedError(DygError):
    """Raised instead of a training: all arguments were accepted."""

    code = "reached"


@pytest.fixture
def good(scene, tmp_path, monkeypatch):
    """Arguments of each function that work; trainings only begin."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path / "data"))

    def reach(*_, **__):
        raise ReachedError("reached")

    for name in (
        *("training.train_link_run", "training.train_node_run", "training.resume_run"),
        *("training.refit_link_run", "training.blend_runs", "training.run_in_processes"),
        *("tuning.choose_device", "backtesting.run_backtest", "studies.run_study", "studies.audit_stream"),
        *("sharing.download_files", "sharing.upload_folder"),
    ):
        monkeypatch.setattr(f"dygmamba.api.{name}", reach)
    monkeypatch.setattr("dygmamba.api.models.check_contract", reach)
    monkeypatch.setattr("dygmamba.models.REGISTERED", {})  # of models that are registered here
    monkeypatch.setattr("dygmamba.api.training.enable_determinism", lambda: None)
    data, run = scene.data, scene.run
    return {
        "audit": {"data": data},
        "backtest": {"data": data, "model": "trees", "every": "1d"},
        "batches": {"data": data},
        "blend": {"runs": [run.path, run.path]},
        "check_model": {"name": "trees"},
        "compare": {"runs": [run.path]},
        "datasets": {},
        "evaluate": {"data": data, "model": "recency"},
        "evaluate_scores": {"scores": [0.5] * 60, "data": data},
        "generate": {"nodes": 20, "events": 50, "communities": 2},
        "list_queries": {"data": data},
        "list_runs": {},
        "load": {"name": "generated"},
        "load_program": {"path": tmp_path / "none.onnx"},
        "open": {"folder": run.path},
        "pull": {"source": "./none"},
        "push": {"run": run, "target": "./shared"},
        "read": {"source": [("a", "b", 1), ("b", "c", 2)]},
        "refit": {"folder": run.path},
        "register": {"name": "x", "config": type(run), "build": lambda config, facts: None},
        "remove": {"name": "none"},
        "reproduce": {"study": "link"},
        "restore": {"backup": "./none", "path": "./state"},
        "resume": {"folder": run.path},
        "save": {"dataset": data},
        "train": {"data": data, "model": "trees"},
        "tune": {"data": data, "model": "trees"},
    }


def find_raw_errors(function, arguments: dict, skip: tuple[str, ...] = ()) -> dict:
    """Every wrong value of every parameter that is neither answered nor refused in one sentence with a code."""
    raw = {}
    for parameter in [name for name in inspect.signature(function).parameters if name not in skip]:
        for value in WRONG:
            problem = None
            try:
                result = function(**arguments | {parameter: value})
                if inspect.isgenerator(result):
                    next(result)
            except DygError as error:
                is_sentence = error.code != "error" and str(error) and "\n" not in str(error)
                problem = None if is_sentence else repr(error)
            except Exception as error:
                problem = repr(error)
            if problem is not None:
                raw[parameter, repr(value)[:20]] = problem
    return raw


@pytest.mark.filterwarnings("ignore::dygmamba.core.errors.DygWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_wrong_values_of_functions(good, name):
    assert find_raw_errors(getattr(dm, name), good[name], RIGHT.get(name, ())) == {}


@pytest.mark.filterwarnings("ignore::dygmamba.core.errors.DygWarning")
@pytest.mark.parametrize("name", METHODS)
def test_wrong_values_of_methods(good, scene, name):
    assert find_raw_errors(getattr(scene.run, name), METHODS[name]) == {}


@pytest.mark.filterwarnings("ignore::dygmamba.core.errors.DygWarning")
def test_wrong_values_of_a_live_run(scene, tmp_path, monkeypatch):
    """For all methods of a live run, and for opening one."""
    monkeypatch.chdir(tmp_path)
    with dm.live(scene.run, "state") as live:
        for name, arguments in LIVE_METHODS.items():
            assert find_raw_errors(getattr(live, name), arguments, ("timeout", "path")) == {}
        locked = {"run": scene.run, "path": "state"}
        assert find_raw_errors(dm.live, locked, ("timeout", "path")) == {}


def test_numbers_of_numpy_fit_and_strings_are_no_lists():
    assert fits(np.int64(3), int)
    assert fits(np.float32(3), float)
    assert not fits(np.bool_(True), int)
    assert not fits("abc", Sequence[str])
    assert not fits([1, "a"], Sequence[int])
    assert describe(int | Sequence[int] | None) == "an integer or a list of integers or None"
