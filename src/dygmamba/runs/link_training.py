"""Training of link predictors: start a run for a dataset, a model and a seed."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from dygmamba.config import build_config, to_settings
from dygmamba.core.errors import ConfigError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.engine.executor import check_distributable
from dygmamba.engine.fit import Trainer, check_order
from dygmamba.engine.fit_config import FitConfig, LinkFitConfig
from dygmamba.history.columns import find_query_columns
from dygmamba.history.index import MAX_CACHED_NUMBERS
from dygmamba.history.view import NeighborRequest
from dygmamba.models import find_model
from dygmamba.models.base import Scorer
from dygmamba.models.configs import TreesConfig, resolve_walk_seed
from dygmamba.runs.calibration import carry_calibration
from dygmamba.runs.opening import create_run_from, load_start_weights
from dygmamba.runs.provenance import StartOptions, collect_settings, explain_choices, merge_settings
from dygmamba.runs.recipes import TRAINING_COPIES, build_run, create_task
from dygmamba.runs.run_config import RunConfig, describe_run
from dygmamba.runs.stored_facts import describe_facts
from dygmamba.runs.warm_start import check_warm_start

TABLE_COPIES = 3  # of a training table, while it is built
BYTES_PER_ENTRY = 16  # of a neighbor sequence: node, event and time
MIN_ENTRIES = 4  # a pair takes at least as much memory as this many entries
TABLE_SAMPLES = 3  # rows of a ranking table per row that a tree may be grown from (`max_rows`)
MIN_CANDIDATES = 3  # of the ranking loss of trees, however long the stream is


def separate_settings(
    settings: dict[str, Any], kind: type[FitConfig] = LinkFitConfig
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings into those of the training loop of this kind and those of the model."""
    loop_names = {field.name for field in fields(kind)}
    loop = {key: value for key, value in settings.items() if key in loop_names}
    return loop, {key: value for key, value in settings.items() if key not in loop_names}


def start_link_run(
    dataset: Dataset,
    model: str,
    seed: int,
    settings: dict[str, Any],
    device: torch.device,
    root: Path,
    options: StartOptions | None = None,
) -> Trainer:
    """Create a run directory under `root`, write its configuration and return a trainer at the first step."""
    spec, options = find_model(model), options or StartOptions()
    if not spec.trainable:
        raise ConfigError(
            f"model '{model}' needs no training; use `dygmamba.evaluate({dataset.name!r}, {model!r})`",
            code="model-needs-no-training",
        )
    start = options.start
    layers = collect_settings(model, dataset.name, options, settings)
    loop, own = separate_settings(merge_settings(layers))
    model_config = build_config(spec.config, own)
    model_config = resolve_walk_seed(model_config, seed) if start is None else model_config
    rule = get_default_split(dataset) if options.split is None else options.split
    refit_of = None if options.refit_of is None else str(options.refit_of)
    origin = {} if start is None else start.about
    about = describe_run(dataset, rule, model, seed, refit_of=refit_of, source=spec.source, **origin)
    facts = None if start is None else describe_facts(start.facts)
    train = build_config(LinkFitConfig, loop)
    config = RunConfig(about, train, to_settings(model_config), facts)
    run = build_run(config, dataset, device, TRAINING_COPIES)
    stream, scorer = run.stream, run.scorer
    if start is not None:
        check_warm_start(start, scorer, stream)
    _check_query_columns(dataset.name, scorer, model_config)
    _check_loss(model, scorer, train)
    train = resolve_ranking(train, loop, model_config, len(stream.split.train))
    check_distributable(scorer, stream.processes, train.batch)
    check_order(scorer, train)
    _require_memory(scorer, train, len(stream.split.train))
    reasons = options.reasons | explain_choices(dataset, stream, scorer, train, model_config, layers)
    reasons |= _explain_ranking(train, loop, len(stream.split.train))
    reasons |= {} if start is None else {"start_from": start.describe(stream.store)}
    config = replace(config, run=replace(about, split=stream.split.digest), train=train, chosen=reasons)
    task = create_task(train, dataset, stream)  # may refuse the stream, so it comes before the run directory
    suffix = "" if options.refit_of is None else "-all"
    config = create_run_from(config, dataset, root, model, device, suffix)
    if start is not None:
        load_start_weights(config, scorer)
        carry_calibration(config.folder, start.folder)
    trainer = replace(run, config=config).build_trainer(task=task)
    if start is not None:
        trainer.checkpoints.save(trainer.state)  # to be resumed from, even if the earlier run is deleted
    return trainer


def _check_query_columns(dataset: str, scorer: Scorer, config: Any) -> None:
    """Raise ConfigError if queries are to carry columns of their events, and there are none that the model reads."""
    if getattr(config, "query_columns", False) and not find_query_columns(scorer.requests):
        raise ConfigError(
            f"`query_columns=true` needs events with columns that the model reads, and '{dataset}' has none; import "
            "it with columns, or leave the setting out",
            code="no-query-columns",
        )


def _check_loss(model: str, scorer: Scorer, config: LinkFitConfig) -> None:
    """Raise ConfigError for a loss over candidates that would have no effect."""
    if config.loss == "pairwise":
        return
    if scorer.rounds_per_epoch and not scorer.ranks_candidates:
        raise ConfigError(
            f"model '{model}' is trained on single pairs and takes no `loss`; got {config.loss!r}, leave it out",
            code="loss-not-supported",
        )
    if config.train_negatives != "random":
        raise ConfigError(
            f"`loss={config.loss!r}` compares destinations of the same source, but `train_negatives="
            f"{config.train_negatives!r}` replaces the source; use 'random'",
            code="loss-needs-random-negatives",
        )


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of the table of all training queries from which a model learns in rounds."""

    rows: int
    features: int

    @staticmethod
    def of(scorer: Scorer, events: int) -> "TableSize | None":
        """Return the size for so many training events; None if the model has no such table."""
        if not scorer.rounds_per_epoch or not scorer.names:
            return None
        return TableSize((1 + scorer.negatives) * events, len(scorer.names))

    @property
    def peak_bytes(self) -> int:
        """Largest memory while it is built: its parts, all of them together, those that are kept, and cached ones."""
        size = 4 * self.rows * self.features
        return TABLE_COPIES * size + 2 * min(size, 4 * MAX_CACHED_NUMBERS)

    def __str__(self) -> str:
        return f"{self.rows:,} rows of {self.features} features"


def resolve_ranking(
    config: LinkFitConfig, given: dict[str, Any], model_config: Any, events: int
) -> LinkFitConfig:
    """Return the settings of a new run, with what the ranking loss of trees uses unless it was `given`.

    Their table has a row per candidate, so a long stream gets fewer candidates; the best epoch has the best MRR. A
    network looks up its candidates again in every step and would have to rank the validation in every epoch, so it
    keeps its settings.
    """
    if config.loss != "ranking" or not isinstance(model_config, TreesConfig):
        return config
    max_rows = model_config.resolve(events, has_rules=False).max_rows
    affordable = TABLE_SAMPLES * max_rows // max(events, 1) - 1
    chosen = {
        "train_candidates": max(MIN_CANDIDATES, min(config.train_candidates, affordable)),
        "best_metric": "mrr",
    }
    return replace(config, **{name: value for name, value in chosen.items() if name not in given})


def _explain_ranking(config: LinkFitConfig, given: dict[str, Any], events: int) -> dict[str, str]:
    """Describe the candidates of the ranking loss if they were not given."""
    count, default = config.train_candidates, LinkFitConfig().train_candidates
    if config.loss != "ranking" or "train_candidates" in given:
        return {}
    fewer = f" instead of {default}, so that the table of {events:,} training events stays small"
    return {"train_candidates": f"{count} (default)" if count == default else f"{count}{fewer}"}


def require_table_memory(scorer: Scorer, events: int) -> None:
    """Raise if the training table of a model that learns in rounds does not fit into memory."""
    table = TableSize.of(scorer, events)
    if table is not None:
        require_memory(table.peak_bytes, f"a training table with {table}")


def _require_memory(scorer: Scorer, config: LinkFitConfig, events: int) -> None:
    """Raise if the training table, or the neighbor sequences of one training step, do not fit into memory."""
    require_table_memory(scorer, events)
    batch, length = min(config.batch, events), NeighborRequest.longest(scorer.requests)
    negatives = config.train_candidates if config.loss == "ranking" else 1
    nodes = (2 + negatives) * batch  # source, destination, negatives
    what = f"a batch of {batch:,} events with {length:,} entries looked up for each node"
    require_memory(nodes * max(length, MIN_ENTRIES) * BYTES_PER_ENTRY, what)
