"""What the README and the first page of the documentation show, runs: every block of bash and Python, as it stands."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from pyarrow import parquet

import dygmamba
from commands import invoke
from dygmamba.cli import app

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
README, TEN_MINUTES = "README.md", "docs/tutorials/ten-minutes.md"
INTEROPERATE, LIVE = "docs/how-to/interoperate.md", "docs/how-to/live.md"
PAGES = (README, TEN_MINUTES, INTEROPERATE, LIVE)
MANUAL = [README, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").glob("*/*.md")))]
ELSEWHERE = {  # tests/e2e/test_demo.py and tests/runs/test_export.py run all of it
    "dygmamba demo": "dygmamba demo --help",
    "dygmamba export $NET --to scorer.pt2": "dygmamba export --help",
}


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    found = re.findall(r"^```(.*)\n((?:.*\n)*?)```$", (ROOT / page).read_text(), flags=re.MULTILINE)
    return [block for name, block in found if name == language]


@pytest.fixture
def place(tmp_path):
    """A folder with the files that the pages speak of."""
    (tmp_path / "examples").mkdir()
    for name in ("mail", "new_mail", "pairs"):
        for copy in (tmp_path / "examples", tmp_path):
            shutil.copy(ROOT / "examples" / f"{name}.csv", copy)
    return tmp_path


@pytest.fixture
def typed(place, monkeypatch, capsys):
    """What all blocks of bash of a page print; bash works out the lines, and `dygmamba` is called in this process."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("DYGMAMBA_DATA", str(place / "data"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    port = find_free_port()
    servers = []

    def printed(page: str, without: str | None = None) -> str:
        known, said = dict(os.environ), ""
        for line in "".join(blocks(page, "bash")).replace("\\\n", " ").splitlines():
            if without is not None and without in line:
                continue
            line = ELSEWHERE.get(line, line).replace("8000", str(port))
            if line.startswith("python "):
                said += bash(line.replace("python", shlex.quote(sys.executable), 1), known)
            elif found := re.fullmatch(r"(\w+)=(\$\(.*\))", line):
                known[found[1]] = bash(f'echo "{found[2]}"', known).strip()
            else:
                program, *words = bash(f"printf '%s\\n' {line}", known).splitlines()
                if program == "curl":
                    said += bash(line, known)
                    continue
                assert program == "dygmamba"
                if words[0] == "serve":
                    servers.append(start_server(monkeypatch, words, port))
                    continue
                code, out, err = invoke(monkeypatch, capsys, *words)
                assert code == 0, line + err
                said += out
        return said

    yield printed
    for stop in servers:
        stop()


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(monkeypatch, words: list[str], port: int) -> Callable[[], None]:
    """Run `dygmamba serve` in a thread until it is ready; returns what stops it."""
    from dygmamba.server import app as serving

    running = []

    class Noted(serving.LiveServer):
        def __init__(self, *how):
            super().__init__(*how)
            running.append(self)

    monkeypatch.setattr(serving, "LiveServer", Noted)
    monkeypatch.setattr(serving, "configure_logs", lambda: None)
    thread = threading.Thread(target=app, args=(words,), kwargs={"standalone_mode": False})
    thread.start()
    with dygmamba.Client(f"http://127.0.0.1:{port}") as client:
        while not client.health():
            assert thread.is_alive()
            time.sleep(0.05)

    def stop() -> None:
        running[0].handle_exit(15, None)
        thread.join()

    return stop


def bash(line: str, known: dict[str, str]) -> str:
    """What a line of bash prints."""
    command = ["bash", "-euo", "pipefail", "-c", line]
    return subprocess.run(command, env=known, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def executed(place, monkeypatch, capsys):
    """What all blocks of Python of a page print, one after another, without a GPU.

    Those with a client need a server; tests/server/test_server.py runs them.
    """
    monkeypatch.chdir(place)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def printed(page: str) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyG's own, of torch.jit
            own = [block for block in blocks(page, "python") if "dm.Client(" not in block]
            exec("\n".join(own), {"__name__": "__main__"})
        return capsys.readouterr().out

    return printed


@pytest.mark.timeout(300)
def test_the_commands_of_the_readme_run(place, typed):
    """From the import of a log to a ranking, as printed."""
    out = typed(README)
    assert "mean ± std of 3" in out
    assert '"accepted":1' in out
    assert '"scores":[{"src":"alice","dst":"dora"' in out
    assert (place / "scores.csv").read_text().count("\n") == 3


@pytest.mark.timeout(300)
def test_the_python_of_the_readme_runs(place, executed):
    """A log is read and trained on; an observed event changes what is ranked and explained."""
    out = executed(README)
    assert "ap_std" in out
    assert "dora" in out
    assert list(place.glob("runs/mail/trees/*/report.html"))


@pytest.mark.timeout(300)
def test_the_commands_of_ten_minutes_run(place, typed):
    """From the import of a log to a page, a ranking and scores, as printed."""
    out = typed(TEN_MINUTES)
    assert list(place.glob("runs/mail/trees/*/report.html"))
    assert "alice" in out
    assert (place / "scores.csv").read_text().count("\n") == 3


@pytest.mark.timeout(300)
def test_the_python_of_ten_minutes_runs(executed):
    """The same by Python; one more message is enough to ask about a pair."""
    out = executed(TEN_MINUTES)
    assert "transductive" in out
    assert "2024-03-01T10:00" in out


@pytest.mark.timeout(300)
def test_the_commands_of_interoperate_run(place, typed):
    """A log out and in again, predictions as Parquet and JSON lines, a run pushed and pulled."""
    out = typed(INTEROPERATE)
    assert "unchanged" not in out
    assert parquet.read_table(place / "scores.parquet").num_rows == 2
    assert (place / "best.jsonl").read_text().count("\n") == 6
    assert (place / "trees.onnx").stat().st_size > 1000
    assert (place / "scores.csv").read_text().count("\n") == 3
    assert list(place.glob("elsewhere/mail/trees/*/checkpoint/best.safetensors"))


def test_the_python_of_interoperate_runs(executed):
    """Every way out leads back, as the page asserts."""
    assert "200" in executed(INTEROPERATE)


@pytest.mark.timeout(300)
def test_the_page_on_live_events_runs(place, executed, typed):
    """Events are judged as the page says, a newer run takes over, and the commands find what Python left.

    tests/server/test_server.py runs the requests to the server.
    """
    assert "late" in executed(LIVE)
    assert "every event matches its checksum" in typed(LIVE, without="curl ")
    assert (place / "mail-copy" / "events.sqlite").is_file()


@pytest.mark.parametrize("page", [README, TEN_MINUTES, INTEROPERATE])
def test_what_is_not_run_is_a_target_of_make_or_an_installation(page):
    """For all lines in blocks without a language: each is a target of make or an installation."""
    makefile, project = (ROOT / "Makefile").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())
    for block in blocks(page, ""):
        for line in block.splitlines():
            command = line.split("#")[0].strip()
            if found := re.fullmatch(r"make (\S+)", command):
                assert re.search(rf"^{found[1]}:", makefile, flags=re.MULTILINE)
            elif found := re.fullmatch(r"pip install '?\.(?:\[(\w+)\])?'?", command):
                assert found[1] is None or found[1] in project["project"]["optional-dependencies"]
            else:
                assert not command, line


@pytest.mark.parametrize("page", MANUAL)
def test_commands_and_their_options_exist(page):
    """For all lines of all blocks that call `dygmamba` or make: the command, its options and the target exist."""
    makefile, commands = (ROOT / "Makefile").read_text(), typer.main.get_command(app)
    for block in blocks(page, "bash") + blocks(page, ""):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"make (\w[\w-]*)", line):
                assert re.search(rf"^{found[1]}:", makefile, flags=re.MULTILINE), line
            if found := re.search(r"(?:^|-m )dygmamba (.*)", line.split(" #")[0]):
                assert not find_unknown_words(commands, found[1].split()), line


def find_unknown_words(command: Any, words: list[str]) -> list[str]:
    """The first word that is no subcommand where one is needed, and all options that the command lacks."""
    while hasattr(command, "get_command") and words and not words[0].startswith("--"):
        name, *words = words
        if (command := command.get_command(typer.Context(command), name)) is None:
            return [name]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    return [word for word in words if re.match(r"--\w", word) and word not in known | {"--help"}]


def test_there_is_something_to_run():
    """All pages have both kinds of blocks and no third kind, and speak of no module that does not exist."""
    package = Path(dygmamba.__file__).parent
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert set(re.findall(r"^```(.+)$", text, flags=re.MULTILINE)) == {"bash", "python"}
        assert blocks(page, "bash")
        assert blocks(page, "python")
        for name in re.findall(r"from dygmamba\.(\w+)", text):
            assert (package / name).is_dir() or (package / f"{name}.py").exists()
