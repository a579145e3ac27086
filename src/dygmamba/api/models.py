"""Models: list them with their size on a dataset, register your own, check that it keeps the contract."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from torch import nn

from dygmamba.config import build_config, find_preset
from dygmamba.core.argument_types import check_arguments
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.data.storage.library import open_dataset
from dygmamba.models import add_model, all_models, find_model
from dygmamba.models.base import DatasetFacts, Encoder, Scorer
from dygmamba.models.spec import Builder, ModelSpec, import_path
from dygmamba.runs.link_training import separate_settings
from dygmamba.testing import check_model as check_contract


@check_arguments
def register(
    name: str,
    config: type,
    build: Callable[[Any, DatasetFacts], Encoder | Scorer],
    *,
    title: str = "",
    looks_at: str = "",
    cost: str = "",
    trainable: bool = True,
) -> ModelSpec:
    """Register a model under a name, so that `train` and the command line know it.

    An Encoder gets a link head. A run remembers the module of `build`; another process that opens it imports that
    module first, or gives `trust` to `dygmamba.open`; the module must register the model when it is imported.

    Args:
        name: Letters, digits, '.', '_' and '-'.
        config: A dataclass of the model's settings.
        build: Builds the model from its config and the facts of a dataset.
        title: Title in lists; by default the name.
        looks_at: What the model looks at, for lists.
        cost: How the cost of a query grows, for lists.
        trainable: Whether it must be trained.

    >>> import dataclasses, torch, dygmamba as dm
    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     out: int = 8
    >>> class Ages(dm.Encoder):
    ...     def __init__(self, config, facts):
    ...         super().__init__()
    ...         self.recent, self.out_dim = dm.NeighborRequest((4,)), config.out
    ...         self.requests = (self.recent,)
    ...         self.layer = torch.nn.Linear(2, config.out)
    ...     def forward(self, view):
    ...         (past,) = view[self.recent]
    ...         seen = torch.stack([past.length.float(), past.age.sum(1).log1p()], 1)
    ...         rows = self.layer(seen)
    ...         return rows[view.pairs.src_row], rows[view.pairs.dst_row]
    >>> dm.register("ages", Config, Ages).settings
    {'out': 8}
    >>> all(dm.check_model("ages")["holds"].to_pylist())
    True
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(
            f"{name!r} cannot name a model; use letters, digits, '.', '_' and '-'",
            code="malformed-model-name",
        )
    if not hasattr(config, "__dataclass_fields__"):
        raise ConfigError(
            f"`config` must be a dataclass of settings, got {config!r}", code="config-not-a-dataclass"
        )
    spec = ModelSpec(config, Builder(build), trainable, title or name, looks_at, cost, import_path(build))
    return add_model(name, spec)


@check_arguments
def check_model(name: str, **settings: Any) -> pa.Table:
    """Check that a model keeps the contract of all models; returns a row per check, or raises a ContractError.

    Labels and later events change no score, nor do batch, order, padding and earlier queries; scores are finite; the
    gradient reaches every parameter; weights survive saving and loading.

    >>> import dygmamba as dm
    >>> dm.check_model("graphmixer", neighbors=4, window=9)["check"][0].as_py()
    'finite'
    """
    return check_contract(name, settings)


DEFAULT_DATASET, DEFAULT_NODES = "uci", 1_899  # for `list_models` without a dataset


def list_models(data: str | None = None, data_dir: Path | None = None) -> list[dict[str, Any]]:
    """Return a row per model with its parameters and the events it reads, as built for a dataset.

    The published settings for that dataset are used, by default those for UCI.
    """
    facts = DatasetFacts(DEFAULT_NODES, 0, 0)
    if data is not None:
        dataset = open_dataset(data, data_dir)
        facts = DatasetFacts.of(dataset.store, get_default_split(dataset).split(dataset.store).train)
    return [_describe_built_model(model, data or DEFAULT_DATASET, facts) for model in all_models()]


def _describe_built_model(model: str, data: str, facts: DatasetFacts) -> dict[str, Any]:
    """Build a model and count its parameters: a cost is counted, never quoted."""
    spec = find_model(model)
    _, settings = separate_settings(find_preset(model, data))
    scorer = spec.build(build_config(spec.config, settings), facts)
    weights = []
    if isinstance(scorer, nn.Module):
        weights = [weight for weight in scorer.parameters() if weight.requires_grad]
        if scorer.rounds_per_epoch:
            weights = [buffer for buffer in scorer.buffers() if buffer.is_floating_point()]
    return {
        "name": model,
        "title": spec.title,
        "looks_at": spec.looks_at,
        "cost": spec.cost,
        "trainable": spec.trainable,
        "stateful": scorer.stateful,
        "parameters": sum(weight.numel() for weight in weights),
        "tokens": sum(request.tokens for request in scorer.requests),
        "hops": max((len(request.fanout) for request in scorer.requests), default=0),
    }
