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
    from dygmamba.data.store import Dataset as Dataset
    from dygmamba.door.audit import audit as audit
    from dygmamba.door.batches import Step as Step
    from dygmamba.door.batches import batches as batches
    from dygmamba.door.blending import blend as blend
    from dygmamba.door.data import generate as generate
    from dygmamba.door.data import load as load
    from dygmamba.door.data import read as read
    from dygmamba.door.evaluation import evaluate as evaluate
    from dygmamba.door.library import datasets as datasets
    from dygmamba.door.library import remove as remove
    from dygmamba.door.library import save as save
    from dygmamba.door.models import check_model as check_model
    from dygmamba.door.models import register as register
    from dygmamba.door.run import Run as Run
    from dygmamba.door.run import open as open
    from dygmamba.door.runs import Runs as Runs
    from dygmamba.door.runs import refit as refit
    from dygmamba.door.runs import resume as resume
    from dygmamba.door.runs import train as train
    from dygmamba.door.sharing import pull as pull
    from dygmamba.door.sharing import push as push
    from dygmamba.door.studies import compare as compare
    from dygmamba.door.studies import reproduce as reproduce
    from dygmamba.door.tuning import tune as tune
    from dygmamba.errors import DygError as DygError
    from dygmamba.models import all_models
    from dygmamba.models.base import Encoder as Encoder
    from dygmamba.sampling.view import NeighborRequest as NeighborRequest

    models = all_models  # at run time the package itself, which can be called

# name -> module; nothing is imported before its name is used. Without `__all__`, help() shows the table above alone.
_DOOR = {
    "Dataset": "data.store",
    "DygError": "errors",
    "Encoder": "models.base",
    "NeighborRequest": "sampling.view",
    "Run": "door.run",
    "Runs": "door.runs",
    "Step": "door.batches",
    "audit": "door.audit",
    "batches": "door.batches",
    "blend": "door.blending",
    "check_model": "door.models",
    "compare": "door.studies",
    "datasets": "door.library",
    "evaluate": "door.evaluation",
    "generate": "door.data",
    "load": "door.data",
    "models": "",
    "open": "door.run",
    "ops": "",
    "pull": "door.sharing",
    "push": "door.sharing",
    "read": "door.data",
    "refit": "door.runs",
    "register": "door.models",
    "remove": "door.library",
    "reproduce": "door.studies",
    "resume": "door.runs",
    "save": "door.library",
    "train": "door.runs",
    "tune": "door.tuning",
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
