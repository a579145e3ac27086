"""Models from outside: registered by a call, held to the contract by another."""

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from dygmamba.core.errors import ConfigError
from dygmamba.models import add_model
from dygmamba.models.base import DatasetFacts, Encoder, ModelSpec, Scorer
from dygmamba.models.external import import_path, with_link_head_if_encoder
from dygmamba.runs.contract import check_model as check_contract


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
    """Make a model known by name: `config` is a dataclass of its settings, `build` makes it of config and facts.

    An Encoder gets a link head. A run remembers the module of `build`: opening it in another process imports that
    module, which must register the model when it is imported.

    >>> import dataclasses, torch, dygmamba as dm
    >>> from dygmamba.models.base import Encoder
    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     out: int = 8
    >>> class Ages(Encoder):
    ...     def __init__(self, config, facts):
    ...         super().__init__()
    ...         self.requests, self.out_dim = (dm.NeighborRequest((4,)),), config.out
    ...         self.layer = torch.nn.Linear(2, config.out)
    ...     def forward(self, view):
    ...         ((past,),) = view.neighbors
    ...         seen = torch.stack([past.length.float(), past.age.sum(1).log1p()], 1)
    ...         rows = self.layer(seen)
    ...         return rows[view.pairs.src_row], rows[view.pairs.dst_row]
    >>> dm.register("ages", Config, Ages).settings
    {'out': 8}
    >>> dm.check_model("ages").num_rows
    7
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ConfigError(f"{name!r} cannot name a model; use letters, digits, '.', '_' and '-'")
    if not hasattr(config, "__dataclass_fields__"):
        raise ConfigError(f"`config` must be a dataclass of settings, got {config!r}")
    spec = ModelSpec(
        config, with_link_head_if_encoder(build), trainable, title or name, looks_at, cost, import_path(build)
    )
    return add_model(name, spec)


def check_model(name: str, **settings: Any) -> pa.Table:
    """Hold a model to what every model must keep; a row per check, or a ContractError that names those that fail.

    Later events change no score; batch, order and padding change none; scores are finite; the gradient reaches every
    parameter; weights survive a round trip.

    >>> import dygmamba as dm
    >>> dm.check_model("graphmixer", neighbors=4, window=9)["check"][0].as_py()
    'finite'
    """
    return check_contract(name, settings)
