"""Mutation test: small faults are put into the source one at a time, and the tests that reach each must fail.

    python tests/mutants.py record FOLDER                      # run all tests once, note which lines each one reaches
    python tests/mutants.py run FOLDER --count 80 --seed 1     # draw faults, run the tests that reach them
    python tests/mutants.py again FOLDER                       # whether the present tests find what was found then

Everything is written into FOLDER: `tests.jsonl` (seconds of every test and the fixtures it uses), `lines.*` (which test
or fixture runs which lines, also in processes that it starts) and `mutants.json`. Kernels that Numba or Triton compiles
are never drawn, because Python does not see their lines run.
"""

import argparse
import ast
import copy
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from coverage import Coverage, CoverageData

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "dygmamba"
PARTS = ("data", "engine", "history", "live", "runs", "server", "tasks")
PRELOADED = ("torch", "numba", "pandas", "pyarrow.csv", "pyarrow.parquet", "rich", "typer", "sklearn.metrics")
COVERAGE = """[run]
data_file = {folder}/lines
parallel = true
include = {package}/*
context = ${{PYTEST_CURRENT_TEST-}}
disable_warnings = no-data-collected,couldnt-parse,module-not-imported,already-imported,module-not-measured
"""

# ----------------------------------------------------------------------------- the plugin of `record`


class Recorder:
    """Notes for every test how long it takes, which fixtures it uses and which lines it reaches."""

    def __init__(self, folder: Path):
        self.folder, self.context, self.seconds, self.passed = folder, "", 0.0, True
        self.coverage = Coverage(config_file=str(folder / "coveragerc"))
        self.coverage.start()
        os.environ["COVERAGE_PROCESS_START"] = str(folder / "coveragerc")

    def switch(self, context: str) -> str:
        """Let lines count for this context; returns the one before."""
        before, self.context = self.context, context
        self.coverage.switch_context(context)
        return before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.switch(item.nodeid)
        self.seconds, self.passed = 0.0, True
        done = yield
        row = {"test": item.nodeid, "seconds": round(self.seconds, 3), "passed": self.passed}
        row["fixtures"] = shared_fixtures(item)
        self.switch("")
        with (self.folder / "tests.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any):
        """What many tests share is not counted for the first of them, nor are its seconds."""
        if fixturedef.scope == "function" or self.context.startswith("fixture"):
            return (yield)
        before, began = self.switch(name_fixture(fixturedef)), time.perf_counter()
        try:
            return (yield)
        finally:
            self.switch(before)
            self.seconds -= time.perf_counter() - began

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        self.passed &= not report.failed

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()


def name_fixture(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


def shared_fixtures(item: pytest.Item) -> list[str]:
    found = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009 - private to pytest
    return [name_fixture(fixtures[-1]) for fixtures in found if fixtures and fixtures[-1].scope != "function"]


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that runs the tests: a worker of xdist, or the only one."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Recorder(Path(os.environ["MUTANTS_FOLDER"])), "recorder")


# ----------------------------------------------------------------------------- faults

PAIRS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
PAIRS += [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or)]
SWAPS: dict[type, type] = dict(PAIRS) | {other: one for one, other in PAIRS} | {ast.FloorDiv: ast.Mult}
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
# messages; pieces of f-strings have no positions of their own; functions inside functions are walked by themselves
SKIPPED = ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments | ast.ClassDef | FUNCTIONS


class Fault(NamedTuple):
    """A piece of a file, by its bytes, and what stands there instead."""

    file: str
    line: int
    start: int
    stop: int
    text: str


def mutate_expression(node: ast.AST) -> Iterator[ast.AST]:
    """The faults of one expression: another comparison, operator, condition or number."""
    other = copy.copy(node)
    match node, other:
        case ast.Compare(ops=[op]), ast.Compare():
            other.ops = [SWAPS[type(op)]()]
            yield other
        case ((ast.BinOp(op=op) | ast.BoolOp(op=op)), (ast.BinOp() | ast.BoolOp())) if type(op) in SWAPS:
            other.op = SWAPS[type(op)]()
            yield other
        case ast.UnaryOp(op=ast.Not(), operand=operand), _:
            yield operand
        case ast.IfExp(test=test), ast.IfExp():
            other.test = ast.UnaryOp(ast.Not(), test)
            yield other
        case ast.Constant(value=bool(value)), _:
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)), _:
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)


def mutate_statement(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """The faults of one statement: left out, its condition turned, its result lost."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.If(test=test) | ast.While(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value, "None"


def walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a statement, without annotations, messages and the functions inside it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SKIPPED) and child is not getattr(node, "annotation", None):
            yield from walk_code(child)


def find_faults(path: Path) -> list[Fault]:
    """All faults of a file's functions, in order."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTIONS)]
    statements = [one for function in functions for one in function.body if not isinstance(one, SKIPPED)]
    found = set()
    for node in (node for statement in statements for node in walk_code(statement)):
        pieces = [(node, f"({ast.unparse(other)})") for other in mutate_expression(node)]
        for piece, text in pieces + list(mutate_statement(node)):
            start = starts[piece.lineno - 1] + piece.col_offset
            stop = starts[piece.end_lineno - 1] + piece.end_col_offset
            found.add(Fault(path.relative_to(PACKAGE).as_posix(), node.lineno, start, stop, text))
    return sorted(found)


# ----------------------------------------------------------------------------- which tests reach which lines


class Record(NamedTuple):
    """What `record` wrote: seconds and shared fixtures of the tests that passed, and the tests that reach a line."""

    seconds: dict[str, float]
    reaching: dict[tuple[str, int], set[str]]


def load_record(folder: Path) -> Record:
    rows = [json.loads(line) for line in (folder / "tests.jsonl").read_text().splitlines()]
    seconds = {row["test"]: row["seconds"] for row in rows if row["passed"]}
    users: dict[str, set[str]] = {}  # of a shared fixture
    for row in rows:
        for fixture in row["fixtures"]:
            users.setdefault(fixture, set()).add(row["test"])
    reaching: dict[tuple[str, int], set[str]] = {}
    for path in folder.glob("lines.*"):
        data = CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            name = file.partition("/src/dygmamba/")[2]
            if name.startswith(PARTS):
                for line, contexts in data.contexts_by_lineno(file).items():
                    tests = reaching.setdefault((name, line), set())
                    for context in contexts:  # a process that a test starts adds the phase to the test's name
                        context = context.rpartition(" (")[0] or context
                        tests |= users.get(context, {context}) & seconds.keys()
    return Record(seconds, reaching)


def draw_faults(record: Record, count: int, seed: int) -> list[Fault]:
    """Draw lines that some test reaches, each once, and one fault of each."""
    faults: dict[tuple[str, int], list[Fault]] = {}
    for part in PARTS:
        for path in sorted((PACKAGE / part).rglob("*.py")):
            for fault in find_faults(path):
                if record.reaching.get((fault.file, fault.line)):
                    faults.setdefault((fault.file, fault.line), []).append(fault)
    generator = random.Random(seed)
    return [generator.choice(faults[place]) for place in generator.sample(sorted(faults), count)]


# ----------------------------------------------------------------------------- running tests on a fault


def copy_tree(to: Path, *names: str) -> None:
    """Copy what the repository holds, or these folders of it, so that work can go on while tests run."""
    for name in names:
        shutil.rmtree(to / name, ignore_errors=True)
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *names]
    for file in subprocess.run(
        listed, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if (ROOT / file).is_file():
            (to / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, to / file)
    if (ROOT / ".venv").exists() and not (to / ".venv").exists():
        (to / ".venv").symlink_to((ROOT / ".venv").resolve())


def run_pytest(tree: Path, words: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    own = {"PYTHONPATH": f"{tree}/src:{tree}/tests", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    data = {"DYGMAMBA_DATA": os.environ.get("DYGMAMBA_DATA", str(ROOT.parent / "shared" / "data"))}
    command = [sys.executable, "-m", "pytest", *words]
    return subprocess.run(command, cwd=tree, env=os.environ | data | own, text=True, **options)


def find_killer(tree: Path, fault: Fault, tests: list[str], seconds: float) -> str | None:
    """Run the tests on the fault and return the first that fails, or none."""
    path, listed = tree / "src" / "dygmamba" / fault.file, tree / "mutant-tests.txt"
    source, times = path.read_bytes(), path.stat()
    listed.write_text("\n".join(tests))
    path.write_bytes(source[: fault.start] + fault.text.encode() + source[fault.stop :])
    try:
        code, said = fork_pytest(tree, ["-x", "-q", "--tb=no", f"@{listed}"], seconds)
    finally:
        path.write_bytes(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if code in {0, 5}:
        return None
    if code == -signal.SIGKILL:
        return "time limit"
    failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if not failed:
        raise SystemExit(f"pytest said neither which test failed nor that all passed:\n{said}")
    return failed[0].partition(" ")[2].partition(" - ")[0]


def fork_pytest(tree: Path, words: list[str], seconds: float) -> tuple[int, str]:
    """Run pytest in a child of this process, which has imported what is not the package; returns its code and words."""
    for name in PRELOADED:
        importlib.import_module(name)
    said = tree / "mutant-tests.log"
    child = os.fork()
    if not child:
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os.chdir(tree)
        os.setpgid(0, 0)
        sys.path[:0] = [str(tree / "src"), str(tree / "tests")]
        os.environ |= {"PYTHONPATH": f"{tree}/src:{tree}/tests", "OMP_NUM_THREADS": "1"}
        sys.dont_write_bytecode = True
        os._exit(int(pytest.main(words)))
    end = time.monotonic() + seconds
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(ended[1]), said.read_text(errors="replace")


# ----------------------------------------------------------------------------- commands


def record(folder: Path, words: list[str]) -> None:
    """Run the tests once; two at a time take twice what `make test` takes."""
    tree = folder / "tree"
    copy_tree(tree)
    (folder / "tests.jsonl").unlink(missing_ok=True)
    for old in folder.glob("lines.*"):
        old.unlink()
    (folder / "coveragerc").write_text(COVERAGE.format(folder=folder, package=tree / "src" / "dygmamba"))
    os.environ["MUTANTS_FOLDER"] = str(folder)
    run_pytest(tree, ["-n", "2", "--dist", "load", "--timeout", "900", "-p", "mutants", *words])


def find_reaching(record: Record, fault: Fault, present: set[str], limit: float) -> list[str]:
    """The tests that reach a fault, fastest first, as many as take `limit` seconds; new ones of their files too."""
    reaching = record.reaching[fault.file, fault.line]
    files = {test.partition("::")[0] for test in reaching}
    new = {test for test in present - record.seconds.keys() if test.partition("::")[0] in files}
    chosen, total = [], 0.0
    for test in sorted((reaching & present) | new, key=lambda test: record.seconds.get(test, 0)):
        total += record.seconds.get(test, 0)
        if total < limit or not chosen:
            chosen.append(test)
    return chosen


def list_tests(tree: Path) -> set[str]:
    done = run_pytest(tree, ["--collect-only"], capture_output=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def run(folder: Path, count: int, seed: int, limit: float) -> None:
    """Draw faults and note for each which test finds it."""
    recorded, tree = load_record(folder), folder / "mutant"
    copy_tree(tree)
    path = folder / "mutants.json"
    rows = json.loads(path.read_text()) if path.exists() else []  # go on where an earlier call ended
    for fault in draw_faults(recorded, count, seed)[len(rows) :]:
        tests = find_reaching(recorded, fault, set(recorded.seconds), limit)
        killer = find_killer(tree, fault, tests, 3 * limit)
        rows.append(fault._asdict() | {"tests": len(tests), "killer": killer})
        path.write_text(json.dumps(rows, indent=1))
        print(json.dumps(rows[-1]), flush=True)


def again(folder: Path, limit: float) -> None:
    """Run the present tests on the faults that were found: the test that found one, where there still is that test."""
    recorded, tree = load_record(folder), folder / "mutant"
    copy_tree(tree, "tests")
    present = list_tests(tree)
    present |= {
        test.partition("::")[0] for test in present
    }  # what a file computes when it is imported may find a fault
    rows = [row for row in json.loads((folder / "mutants.json").read_text()) if row["killer"]]
    for row in rows:
        fault = Fault(*(row[name] for name in Fault._fields))
        tests = (
            [row["killer"]] if row["killer"] in present else find_reaching(recorded, fault, present, limit)
        )
        row["killer now"] = find_killer(tree, fault, tests, 3 * limit) if tests else None
        print(json.dumps(row), flush=True)
    (folder / "again.json").write_text(json.dumps(rows, indent=1))
    lost = sum(row["killer now"] is None for row in rows)
    print(f"{len(rows)} faults were found before, {len(rows) - lost} are now")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=["record", "run", "again"])
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=120, help="of the reaching tests that are run on a fault"
    )
    options, words = parser.parse_known_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.command == "record":
        record(options.folder, words)
    elif options.command == "run":
        run(options.folder, options.count, options.seed, options.seconds)
    else:
        again(options.folder, options.seconds)


if __name__ == "__main__":
    main()
