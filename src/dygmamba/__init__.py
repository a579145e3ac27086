"""DyG-Mamba and its field: learning from timestamped interactions, leak-free.

DyG-Mamba here is the NeurIPS 2025 paper (openreview ja2wA4UncJ), not DyGMamba (arXiv 2408.04713).

    read        events of a file, a data frame, a TemporalData ...    -> Dataset
    load        a dataset by name; save, datasets, remove              -> Dataset
    generate    a stream whose forgetting law is known                 -> Dataset
    train       a model on a dataset, one run per seed                 -> Runs
    tune        settings that suit a dataset, as a preset for train    -> Tuning
    resume      a run that was stopped; refit: one on every event      -> Run
    open        a run folder, to score, rank, embed, classify, observe -> Run
    push, pull  a run to others and from others: a folder, the Hub     -> Run
    evaluate    a model without training                               -> table
    reproduce   a study of the paper, run again                        -> Book
    compare     finished runs beside one another; blend: as one run    -> Sheet
    audit       what a stream's test allows, what a score depends on   -> Audit
    models      every model by name; register one of your own, check_model it
    batches     for a training loop of your own, strictly causal
    ops         selective_scan, and selective_scan_fn as mamba_ssm has it

    import dygmamba as dm
    runs = dm.train(dm.read(frame, src="who", dst="whom", time="when"))
    runs[0].rank(["alice"], k=5).to_pandas()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dygmamba._version import __version__ as __version__

if TYPE_CHECKING:
    from dygmamba import ops as ops
    from dygmamba.api.batches import Step as Step
    from dygmamba.api.batches import batches as batches
    from dygmamba.api.datasets import datasets as datasets
    from dygmamba.api.datasets import generate as generate
    from dygmamba.api.datasets import load as load
    from dygmamba.api.datasets import read as read
    from dygmamba.api.datasets import remove as remove
    from dygmamba.api.datasets import save as save
    from dygmamba.api.evaluation import evaluate as evaluate
    from dygmamba.api.models import check_model as check_model
    from dygmamba.api.models import register as register
    from dygmamba.api.run import Run as Run
    from dygmamba.api.run import open as open
    from dygmamba.api.sharing import pull as pull
    from dygmamba.api.sharing import push as push
    from dygmamba.api.studies import audit as audit
    from dygmamba.api.reports import compare as compare
    from dygmamba.api.studies import reproduce as reproduce
    from dygmamba.api.tuning import tune as tune
    from dygmamba.api.training import Runs as Runs
    from dygmamba.api.training import blend as blend
    from dygmamba.api.training import refit as refit
    from dygmamba.api.training import resume as resume
    from dygmamba.api.training import train as train
    from dygmamba.core.errors import DygError as DygError
    from dygmamba.data.storage.dataset import Dataset as Dataset
    from dygmamba.models import all_models
    from dygmamba.models.base import Encoder as Encoder
    from dygmamba.sampling.view import NeighborRequest as NeighborRequest

    models = all_models  # at run time the package itself, which can be called

# name -> module; nothing is imported before its name is used. Without `__all__`, help() shows the table above alone.
_DOOR = {
    "Dataset": "data.storage.dataset",
    "DygError": "core.errors",
    "Encoder": "models.base",
    "NeighborRequest": "sampling.view",
    "Run": "api.run",
    "Runs": "api.training",
    "Step": "api.batches",
    "audit": "api.studies",
    "batches": "api.batches",
    "blend": "api.training",
    "check_model": "api.models",
    "compare": "api.reports",
    "datasets": "api.datasets",
    "evaluate": "api.evaluation",
    "generate": "api.datasets",
    "load": "api.datasets",
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
    "resume": "api.training",
    "save": "api.datasets",
    "train": "api.training",
    "tune": "api.tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _DOOR:
        raise AttributeError(f"module 'dygmamba' has no attribute '{name}'")
    home = _DOOR[name]
    value = getattr(import_module(f"dygmamba.{home}"), name) if home else import_module(f"dygmamba.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *_DOOR]
