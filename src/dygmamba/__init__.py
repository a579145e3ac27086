"""Learn from timestamped interactions: DyG-Mamba, its baselines, evaluation without leaks.

DyG-Mamba here is the NeurIPS 2025 paper (openreview ja2wA4UncJ), not DyGMamba (arXiv 2408.04713).

    read(source, *, src, dst, ...) -> Dataset   events from a file, several files, a data frame, rows ...
    load(name, data_dir) -> Dataset             a dataset by name; save(dataset), datasets(), remove(name)
    generate(*, name, ...) -> Dataset           a stream whose decay law is known
    train(data, model, *, seeds, ...) -> Runs   train a model on a dataset, one run per seed
    tune(data, model, *, trials) -> Tuning      search for better settings, as a preset for train
    backtest(data, model, *, every, ...)        frozen, warm-started and refitted models, period by period
    resume(folder), refit(folder) -> Run        continue a stopped run; train it on all events
    open(folder, *, device, ...) -> Run         a run directory, or the newest run of a dataset, to use it
    live(run, path, *, late, ...) -> LiveRun    a run that events are appended to; restore(backup, path)
    Client(url, token)                          append events to a server and ask it for scores, over HTTP
    list_runs(data, *, folder) -> table         the runs on disk, with their results
    load_program(path) -> function              an exported scorer, after checking its digest
    push(run, target), pull(source)             share a run through a folder or the Hugging Face Hub
    evaluate(data, model, ...) -> table         evaluate a model without training
    evaluate_scores(scores, data) -> table      evaluate your own scores of list_queries(data)
    reproduce(study, ...) -> StudyResults       run a study of the paper
    compare(runs), blend(runs) -> Run           compare finished runs; combine them into one
    audit(data, model, ...) -> Audit            what a test can show, and what a score depends on
    models(), register(name, config, build)     list all models; add your own; check_model(name) tests it
    batches(data, ...)                          causal batches for your own training loop
    Encoder, Scorer, NeighborRequest, Settings  what a model of your own is written with; dir(dm) has more
    ops                                         selective_scan, span_scan (Eq. 11) and others

`help(dm.train)` says more about a function, `help(dm.Run)` what a run can do.

    import dygmamba as dm
    runs = dm.train(dm.read(frame, src="sender", dst="receiver", time="sent"))
    runs[0].rank(["alice"], k=5).to_pandas()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dygmamba._version import __version__ as __version__

if TYPE_CHECKING:
    from dygmamba import ops as ops
    from dygmamba.api.backtesting import backtest as backtest
    from dygmamba.api.batches import Step as Step
    from dygmamba.api.batches import batches as batches
    from dygmamba.api.client import Client as Client
    from dygmamba.api.datasets import datasets as datasets
    from dygmamba.api.datasets import generate as generate
    from dygmamba.api.datasets import load as load
    from dygmamba.api.datasets import read as read
    from dygmamba.api.datasets import remove as remove
    from dygmamba.api.datasets import save as save
    from dygmamba.api.evaluation import evaluate as evaluate
    from dygmamba.api.live import live as live
    from dygmamba.api.live import restore as restore
    from dygmamba.api.models import check_model as check_model
    from dygmamba.api.models import register as register
    from dygmamba.api.own_scores import evaluate_scores as evaluate_scores
    from dygmamba.api.own_scores import list_queries as list_queries
    from dygmamba.api.reports import compare as compare
    from dygmamba.api.run import Run as Run
    from dygmamba.api.run import load_program as load_program
    from dygmamba.api.run import open as open
    from dygmamba.api.run_list import list_runs as list_runs
    from dygmamba.api.sharing import pull as pull
    from dygmamba.api.sharing import push as push
    from dygmamba.api.studies import audit as audit
    from dygmamba.api.studies import reproduce as reproduce
    from dygmamba.api.training import Runs as Runs
    from dygmamba.api.training import blend as blend
    from dygmamba.api.training import refit as refit
    from dygmamba.api.training import resume as resume
    from dygmamba.api.training import train as train
    from dygmamba.api.tuning import tune as tune
    from dygmamba.core.errors import DygError as DygError
    from dygmamba.core.progress import Progress as Progress
    from dygmamba.core.settings import Bounds as Bounds
    from dygmamba.core.settings import Settings as Settings
    from dygmamba.data.storage.dataset import Dataset as Dataset
    from dygmamba.history.column_sums import ColumnLookup as ColumnLookup
    from dygmamba.history.counts import CountFeatures as CountFeatures
    from dygmamba.history.decayed_counts import DecayedCountLookup as DecayedCountLookup
    from dygmamba.history.node_features import NodeFeatures as NodeFeatures
    from dygmamba.history.transition_counts import TransitionLookup as TransitionLookup
    from dygmamba.history.transitions import TransitionFeatures as TransitionFeatures
    from dygmamba.history.view import NeighborRequest as NeighborRequest
    from dygmamba.history.view import NeighborSequence as NeighborSequence
    from dygmamba.history.view import PairBatch as PairBatch
    from dygmamba.history.view import PairView as PairView
    from dygmamba.history.walks import WalkRequest as WalkRequest
    from dygmamba.models import all_models
    from dygmamba.models.base import DatasetFacts as DatasetFacts
    from dygmamba.models.base import Encoder as Encoder
    from dygmamba.models.base import Heuristic as Heuristic
    from dygmamba.models.base import NodeEncoder as NodeEncoder
    from dygmamba.models.base import Scorer as Scorer
    from dygmamba.models.spec import Builder as Builder
    from dygmamba.models.spec import ModelSpec as ModelSpec
    from dygmamba.testing import ContractError as ContractError

    models = all_models  # at run time this is the callable package dygmamba.models

# Public name -> module. A module is imported when one of its names is first used, so that `import dygmamba` does not
# import torch. There is no `__all__`, because help() would then document every module instead of the table above.
_PUBLIC = {
    "Bounds": "core.settings",
    "Builder": "models.spec",
    "Client": "api.client",
    "ColumnLookup": "history.column_sums",
    "ContractError": "testing",
    "CountFeatures": "history.counts",
    "Dataset": "data.storage.dataset",
    "DatasetFacts": "models.base",
    "DecayedCountLookup": "history.decayed_counts",
    "DygError": "core.errors",
    "Encoder": "models.base",
    "Heuristic": "models.base",
    "ModelSpec": "models.spec",
    "NeighborRequest": "history.view",
    "NeighborSequence": "history.view",
    "NodeEncoder": "models.base",
    "NodeFeatures": "history.node_features",
    "PairBatch": "history.view",
    "PairView": "history.view",
    "Progress": "core.progress",
    "Run": "api.run",
    "Runs": "api.training",
    "Scorer": "models.base",
    "Settings": "core.settings",
    "Step": "api.batches",
    "TransitionFeatures": "history.transitions",
    "TransitionLookup": "history.transition_counts",
    "WalkRequest": "history.walks",
    "audit": "api.studies",
    "backtest": "api.backtesting",
    "batches": "api.batches",
    "blend": "api.training",
    "check_model": "api.models",
    "compare": "api.reports",
    "datasets": "api.datasets",
    "evaluate": "api.evaluation",
    "evaluate_scores": "api.own_scores",
    "generate": "api.datasets",
    "list_queries": "api.own_scores",
    "list_runs": "api.run_list",
    "live": "",  # the callable package; `dygmamba.api.live` has the function
    "load": "api.datasets",
    "load_program": "api.run",
    "models": "",
    "open": "api.run",
    "ops": "",
    "pull": "api.sharing",
    "push": "api.sharing",
    "read": "api.datasets",
    "refit": "api.training",
    "register": "api.models",
    "remove": "api.datasets",
    "reproduce": "api.studies",
    "restore": "api.live",
    "resume": "api.training",
    "save": "api.datasets",
    "train": "api.training",
    "tune": "api.tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dygmamba' has no attribute '{name}'")
    module = _PUBLIC[name]
    value = (
        getattr(import_module(f"dygmamba.{module}"), name) if module else import_module(f"dygmamba.{name}")
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_PUBLIC]
