"""The public surface, pinned: a name added, dropped or changed changes this file and CHANGELOG.md, or nothing."""

import doctest
import importlib
import inspect
import os
import pydoc
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import dygmamba as dm
from dygmamba import api
from thread_worker import use_thread_workers

FUNCTIONS = {
    "audit": "(data: Dataset | Source, model: str | None = None, *, run: Run | Path | str | None = None, protocol: "
    "str = auto, data_dir: Path | str | None = None, progress: Progress | None = None, overrides: "
    "Mapping[str, Any] | None = None, **settings: Any) -> Audit",
    "backtest": "(data: Dataset | Source, model: str | None = None, *, every: str | float, window: str | float | None "
    "= None, start: str | float | None = None, variants: str | Sequence[str] = (frozen, warm, refit), seed: int = 0, "
    "preset: str | None = None, device: str = auto, out: Path | str | None = None, data_dir: Path | str | None = None, "
    "progress: Progress | Callable[[dict[str, Any]], None] | None = None, overrides: Mapping[str, Any] | None = None, "
    "**settings: Any) -> Backtest",
    "batches": "(data: Dataset | Stream | Source, size: int = 200, split: str = train, seed: int = 0, *, neighbors: "
    "int | tuple[NeighborRequest, ...] = 20, device: str = auto, negatives: str = random, setting: str = transductive, "
    "protocol: str = auto) -> Iterator[Step]",
    "blend": "(runs: Sequence[Path | str], *, device: str = auto, out: Path | str = runs, negatives: str | "
    "Sequence[str] = random, data_dir: Path | str | None = None, progress: Progress | Callable[[dict[str, Any]], None] "
    "| None = None, trust: bool = False) -> Run",
    "check_model": "(name: str, **settings: Any) -> Table",
    "compare": "(runs: Sequence[Path | str], *, out: Path | str | None = None) -> Document",
    "datasets": "(*, data_dir: Path | str | None = None, runs: Path | str = runs) -> Table",
    "evaluate": "(data: Dataset | Source, model: str = edgebank, *, negatives: str | Sequence[str] = random, split: "
    "str | Sequence[str] = test, setting: str | Sequence[str] = (transductive, inductive), visible: "
    "str | None = None, metrics: str | Sequence[str] | None = None, candidates: int | str | None = None, "
    "filtered: bool = False, seeds: Sequence[int] | None = None, activity: bool = False, protocol: str = auto, "
    "data_dir: Path | str | None = None, **settings: Any) -> Table",
    "evaluate_scores": "(scores: Scores, data: Dataset | Source, *, split: str = test, setting: str = transductive, "
    "negatives: str = random, candidates: int | str | None = None, protocol: str = auto, "
    "data_dir: Path | str | None = None) -> Table",
    "generate": "(*, name: str = generated, scratch: Path | str | None = None, **settings: Any) -> Dataset",
    "list_queries": "(data: Dataset | Source, *, split: str = test, setting: str = transductive, "
    "negatives: str = random, candidates: int | str | None = None, protocol: str = auto, "
    "data_dir: Path | str | None = None) -> Table",
    "list_runs": "(data: str = latest, *, folder: Path | str = runs) -> Table",
    "live": "(run: object, path: Path | str, *, late: str | float | None = None, on_late: str | None = None, "
    "max_ahead: str | float | None = None, fill: float | None = None, device: str = auto, "
    "data_dir: Path | str | None = None) -> LiveRun",
    "load": "(name: str, data_dir: Path | str | None = None) -> Dataset",
    "load_program": "(path: Path | str) -> Program",
    "open": "(folder: Path | str, *, device: str = auto, data_dir: Path | str | None = None, time_unit: str = "
    "auto, time_format: str | None = None, trust: bool = False, observed: Path | str | None = None) -> Run",
    "push": "(run: Run | Path | str, target: Path | str, *, data: bool = False, public: bool = False, data_dir: "
    "Path | str | None = None) -> str",
    "pull": "(source: Path | str, *, out: Path | str = runs, revision: str | None = None, device: str = auto, "
    "data_dir: Path | str | None = None) -> Run",
    "read": "(source: Source, *, src: str | int | None = None, dst: str | int | None = None, time: str | int | None = "
    "None, features: str | int | Sequence[str | int] = (), types: str | int | Sequence[str | int] = (), columns: "
    "bool = True, label: str | int | None = None, name: str | None = None, "
    "bipartite: bool | None = None, time_unit: str = auto, time_format: str | None = None, fill: float | None = None, "
    "format: str = auto, header: bool | None = None, delimiter: str | None = None, encoding: str = utf-8, query: str | "
    "None = None, skip_bad: bool = False, memory: float = 1.0, scratch: Path | str | None = None, "
    "decimal: str | None = None, drop_duplicates: bool = False, node_features: Source | None = None, node_time: str | "
    "None = None) -> Dataset",
    "refit": "(folder: Path | str, *, device: str = auto, data_dir: Path | str | None = None, progress: Progress | "
    "Callable[[dict[str, Any]], None] | None = None, processes: int = 1, trust: bool = False) -> Run",
    "register": "(name: str, config: type, build: Callable[[Any, DatasetFacts], Encoder | Scorer], *, title: str "
    "= , looks_at: str = , cost: str = , trainable: bool = True) -> ModelSpec",
    "reproduce": "(study: str, *, datasets: Sequence[str] | None = None, models: Sequence[str] | None = None, seeds: "
    "Sequence[int] | None = None, variants: Sequence[str] | None = None, out: Path | str = studies, device: str = auto"
    ", workers: int | None = None, protocol: str = auto, data_dir: Path | str | None = None, progress: Progress | "
    "Callable[[JobEvent], None] | None = None, **settings: Any) -> StudyResults",
    "remove": "(name: str, *, data_dir: Path | str | None = None, runs: Path | str = runs, force: bool = False) -> "
    "list[str]",
    "restore": "(backup: Path | str, path: Path | str) -> Path",
    "resume": "(folder: Path | str, *, device: str = auto, negatives: str | Sequence[str] = random, data_dir: "
    "Path | str | None = None, progress: Progress | Callable[[dict[str, Any]], None] | None = None, log: str | "
    "Sequence[str] | None = None, processes: int = 1, deterministic: bool | None = None, trust: bool = False, "
    "overrides: Mapping[str, Any] | None = None, **settings: Any) -> Run",
    "save": "(dataset: Dataset, *, data_dir: Path | str | None = None) -> Path",
    "train": "(data: Dataset | Source, model: str | None = None, *, seeds: int | Sequence[int] = (0,), task: str = "
    "link, budget: str | float | None = None, start_from: Run | Path | str | None = None, device: str = auto, out: "
    "Path | str = runs, negatives: str | Sequence[str] = random, "
    "backbone: Path | str | None = None, finetune: bool = False, balance: bool = False, preset: str | None = None, "
    "split: str | Sequence[float | str] | None = None, protocol: str = auto, data_dir: Path | str | None = None, "
    "progress: Progress | Callable[[dict[str, Any]], None] | None = None, log: str | Sequence[str] | None = None, "
    "processes: int = 1, deterministic: bool = False, overrides: Mapping[str, Any] | None = None, **settings: Any) -> "
    "Runs",
    "tune": "(data: Dataset | Source, model: str | None = None, *, trials: int | None = None, hours: float | None = "
    "None, out: Path | str | None = None, resume: bool = False, seed: int = 0, preset: str | None = None, split: "
    "str | Sequence[float | str] | None = None, protocol: str = auto, device: str = auto, studies: Path | str = "
    "studies, data_dir: Path | str | None = None, progress: Progress | Callable[[dict[str, Any]], None] | None = None, "
    "train_command: Callable[[Path], str] | None = None, overrides: Mapping[str, Any] | None = None, **settings: Any) "
    "-> Tuning",
}
CLASSES = {
    "Client": {
        "append": "(self, events: Iterable[Mapping[str, Any] | Sequence[Any]]) -> dict[str, Any]",
        "score": "(self, pairs: Iterable[Sequence[Any] | Mapping[str, Any]], at: str | float | None = None, *, "
        "min_sequence: int | None = None) -> list[dict[str, Any]]",
        "rank": "(self, sources: Iterable[str | int] | None = None, k: int = 10, at: str | float | None = None, *, "
        "candidates: Iterable[str | int] | None = None, only_new: bool = False, destinations: Iterable[str | int] | "
        "None = None, min_sequence: int | None = None) -> list[dict[str, Any]]",
        "classify": "(self, nodes: Iterable[str | int] | None = None, at: str | float | None = None, k: int | None = "
        "None, *, min_sequence: int | None = None) -> list[dict[str, Any]]",
        "explain": "(self, src: str | int, dst: str | int | None = None, at: str | float | None = None, *, orders: "
        "int = 4, top: int = 20, columns: Mapping[str, Any] | None = None, min_sequence: int | None = None) -> "
        "dict[str, Any]",
        "status": "(self) -> dict[str, Any]",
        "health": "(self) -> bool",
        "close": "(self) -> None",
    },
    "Dataset": {
        "from_events": "(name: str, store: EventStore, ids: NodeIds, origin: Origin | None = None) -> Dataset",
        "content": "",
        "is_dated": "",
        "version": "",
        "path": "",
        "describe": "(self) -> Statistics",
        "export": "(self, to: Path | str, raw: bool = False) -> ExportResult",
        "to_arrow": "(self) -> Table",
        "to_pandas": "(self) -> DataFrame",
        "digest": "",
        "ids": "",
        "name": "",
        "origin": "",
        "store": "",
    },
    "NeighborRequest": {
        "tokens": "",
        "longest": "(requests: tuple[Request, ...]) -> int",
        "cut": "(self, length: int | None) -> NeighborRequest",
        "prepare": "(self, index: Any) -> None",
        "look_up": "(self, index: Any, pairs: Any, draws: Any) -> tuple[NeighborSequence, ...]",
        "fanout": "",
        "on_host": "",
        "scale": "",
        "strategy": "",
    },
    "Progress": {
        "stage": "(self, name: str, total: int | None = None, *, done: int = 0, unit: str = ) -> "
        "AbstractContextManager[Progress]",
        "advance": "(self, count: int = 1) -> None",
        "epoch": "(self, entry: dict[str, Any]) -> None",
        "message": "(self, text: str) -> None",
    },
    "Run": {
        "device": "",
        "data_dir": "",
        "time_unit": "",
        "time_format": "",
        "observed": "",
        "address": "",
        "config": "",
        "task": "",
        "finished": "",
        "data": "",
        "metrics": "",
        "results": "",
        "rules": "",
        "ranking": "",
        "selection": "",
        "score": "(self, pairs: Source, at: str | float | None = None) -> Table",
        "features": "(self, pairs: Source, at: str | float | None = None) -> Table",
        "rank": "(self, sources: Nodes | None = None, k: int = 10, at: str | float | None = None, candidates: "
        "Iterable[str | int] | Path | None = None, only_new: bool = False, *, destinations: Nodes | None = None) -> "
        "Table",
        "embed": "(self, nodes: Nodes, at: str | float | None = None) -> Table",
        "classify": "(self, nodes: Nodes | None = None, at: str | float | None = None, k: int | None = None) -> "
        "Table",
        "explain": "(self, pair: tuple[str | int, str | int] | str | int, at: str | float | None = None, *, "
        "orders: int = 4, columns: Mapping[str, Any] | None = None) -> Explanation",
        "observe": "(self, events: Source, fill: float | None = None, **options: Any) -> Run",
        "save": "(self, to: Path | str) -> Path",
        "scorer": "(self, *, features: bool = False, at: str | float | None = None, src: str | None = None, dst: str | "
        "None = None, time: str | None = None) -> BatchScorer",
        "evaluate": "(self, negatives: str | Sequence[str] | None = None, split: str | Sequence[str] = test, "
        "setting: str | Sequence[str] = (transductive, inductive), visible: str | None = None, *, metrics: "
        "str | Sequence[str] | None = None, candidates: int | str | None = None, filtered: bool = False, "
        "activity: bool = False, events: Source | None = None, period: str = auto, **options: Any) -> Table",
        "export": "(self, to: Path | str) -> Path",
        "inputs": "(self, pairs: Source, at: str | float | None = None) -> dict[str, Tensor]",
        "report": "(self, out: Path | str | None = None, costs: str | None = None, real_share: float | None = None) "
        "-> Path",
    },
    "Runs": {"metrics": "", "results": "", "summary": ""},
    "Step": {"label": "", "events": "", "view": ""},
}
# base classes, requests, views and settings of models of one's own; their members are in "add a model"
OF_MODELS = (
    "Bounds", "Builder", "ColumnLookup", "CountFeatures", "DatasetFacts", "DecayedCountLookup", "Encoder",
    "Heuristic", "ModelSpec", "NeighborSequence", "NodeEncoder", "NodeFeatures", "PairBatch", "PairView",
    "Scorer", "Settings", "TransitionLookup", "TransitionFeatures", "WalkRequest",
)  # fmt: skip
ERRORS = ("ContractError", "DygError")
OPS = (
    "add_layer_norm", "add_rms_norm", "conv_silu", "count_pair_tokens", "gated_sum", "gather_rows", "masked_softmax",
    "pair_attention", "selective_scan", "selective_scan_fn", "span_scan", "spectral_bound", "split_projection",
)  # fmt: skip


def signature(function) -> str:
    """Parameters and types, without the modules the types come from."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", str(inspect.signature(function)).replace("'", ""))


def members(kind: type) -> dict[str, str]:
    """The public methods with their signatures; of properties and fields the name."""
    found = {}
    for name, value in vars(kind).items():
        if not name.startswith("_"):
            function = value.__func__ if isinstance(value, staticmethod) else value
            found[name] = signature(function) if inspect.isfunction(function) else ""
    return found


def test_the_names_are_these_and_no_others():
    """For all public names: functions, classes, the two packages, the version."""
    assert set(dir(dm)) == {*FUNCTIONS, *CLASSES, *OF_MODELS, *ERRORS, "models", "ops", "__version__"}
    for name in dir(dm):
        assert getattr(dm, name) is not None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_signature_that_users_rely_on(name):
    """A change of a parameter or a type is a change of the public surface."""
    assert signature(getattr(dm, name)) == FUNCTIONS[name]


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_methods_that_users_rely_on(name):
    """The same of methods."""
    assert members(getattr(dm, name)) == CLASSES[name]


def test_the_public_packages_can_be_called():
    """`dm.models()` is callable however the package was imported; `dm.ops` has both scans."""
    importlib.import_module("dygmamba.models")
    assert "dyg-mamba" in dm.models()
    assert signature(dm.ops.selective_scan_fn) == (
        "(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None, "
        "delta_bias: Tensor | None = None, delta_softplus: bool = False, return_last_state: bool = False) "
        "-> Tensor | tuple[Tensor, Tensor]"
    )
    assert dir(dm.ops) == sorted(OPS)
    assert all(callable(getattr(dm.ops, name)) for name in OPS)
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        _ = dm.predict


def test_the_import_is_light():
    """`import dygmamba` takes less than 0.3 s and brings in neither torch nor pyarrow."""
    code = (
        "import sys, time; start = time.perf_counter(); import dygmamba; took = time.perf_counter() - start;"
        "print(took, {'torch', 'pyarrow', 'numpy', 'numba', 'typer'} & set(sys.modules))"
    )
    for _ in range(3):  # the machine may be busy
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, modules = done.stdout.split(" ", 1)
        assert modules.strip() == "set()"
        if float(seconds) < 0.3:
            return
    pytest.fail(f"the import takes {seconds} s")


def test_help_of_the_command_is_quick():
    """`dygmamba --help` imports no torch and is there within a second of one core."""
    code = (
        "import sys; sys.argv = ['dygmamba', '--help']\n"
        "from dygmamba.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    print({'torch', 'pyarrow', 'numpy', 'numba'} & set(sys.modules), file=sys.stderr)"
    )
    for _ in range(3):  # the machine may be busy
        start = os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        end = os.times()
        took = end.children_user + end.children_system - start.children_user - start.children_system
        assert done.stderr.strip() == "set()"
        if took < 1.0:
            return
    pytest.fail(f"the help takes {took} s")


def test_the_version_is_written_once():
    """The build reads it from where the package does."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert (
        f'__version__ = "{dm.__version__}"'
        in (root / project["tool"]["hatch"]["version"]["path"]).read_text()
    )


def test_other_files_state_the_same_version():
    """A citation needs the version as text; it is that of the package."""
    root = Path(__file__).parents[1]
    assert f"\nversion: {dm.__version__}\n" in (root / "CITATION.cff").read_text()


def test_dependencies_have_upper_bounds_that_the_tested_versions_meet():
    """For all dependencies, optional ones too: a lower and an upper bound, and the version in use between them."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = [item for own in project["optional-dependencies"].values() for item in own]
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        assert {bound.operator for bound in requirement.specifier} == {">=", "<"}, requirement
        with suppress(PackageNotFoundError):
            assert version(requirement.name) in requirement.specifier


def test_help_fits_on_a_screen():
    """`help(dygmamba)` is one table of names and what they are for."""
    lines = pydoc.plain(pydoc.render_doc(dm)).splitlines()
    assert len(lines) <= 70
    assert max(map(len, lines)) <= 110


def test_everything_public_is_typed():
    """The package says so, and every parameter and result of a public function has a type."""
    assert (Path(dm.__file__).parent / "py.typed").exists()
    for name in FUNCTIONS:
        found = inspect.signature(getattr(dm, name))
        assert found.return_annotation is not inspect.Signature.empty
        assert all(part.annotation is not inspect.Parameter.empty for part in found.parameters.values())


MODULES = sorted(path.stem for path in Path(api.__path__[0]).glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", [*(f"api.{name}" for name in MODULES), "models", "ops.mamba"])
def test_examples_run(name, tmp_path, monkeypatch):
    """Every example of a docstring gives what it says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYGMAMBA_DATA", str(tmp_path))
    use_thread_workers(monkeypatch)
    module = importlib.import_module(f"dygmamba.{name}")
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for test in finder.find(module, globs={}):
        runner.run(test)
    if name == "models":
        called = type(module).__call__
        for test in finder.find(called, globs={}, module=False):
            runner.run(test)
        assert runner.tries >= 3
    assert runner.failures == 0


def test_every_function_has_an_example():
    """No public function without one that runs."""
    assert [name for name in FUNCTIONS if ">>> " not in (inspect.getdoc(getattr(dm, name)) or "")] == []


def test_the_help_of_the_package_shows_every_function_with_its_parameters():
    """Parameters in the order of the signature; names of all public functions are there."""
    calls = dict(re.findall(r"(\w+)\(([^)]*)\)", dm.__doc__.split("`help")[0]))
    functions = {name for name in dir(dm) if inspect.isfunction(getattr(dm, name))}
    assert functions - set(calls) == set()
    for name in functions:
        shown = [part.strip(" *") for part in calls[name].split(",")]
        shown = [part for part in shown if part not in ("", "...")]
        known = [part for part in inspect.signature(getattr(dm, name)).parameters if part in shown]
        assert shown == known, name
