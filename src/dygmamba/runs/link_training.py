"""Training of link predictors: start or resume a run for a dataset, a model and a seed."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dygmamba.config import build_config, to_settings
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.core.memory_budget import require_memory
from dygmamba.data.events.splits import Split, SplitRule
from dygmamba.data.storage.dataset import Dataset
from dygmamba.data.storage.leaderboard import get_default_split
from dygmamba.engine.distributed import current_group
from dygmamba.engine.executor import check_distributable
from dygmamba.engine.fit import Trainer, check_order
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.engine.stream import Stream
from dygmamba.models import find_model
from dygmamba.models.base import FeatureReader, GroupLearner, RoundLearner, Scorer
from dygmamba.models.configs import TreesConfig, resolve_walk_seed
from dygmamba.runs.calibration import carry_calibration
from dygmamba.runs.opening import (
    build_link_stream,
    build_scorer,
    build_seeded_scorer,
    describe_dataset,
    open_link_dataset,
    read_split,
)
from dygmamba.runs.provenance import (
    StartOptions,
    check_environment,
    collect_settings,
    create_run,
    describe_environment,
    explain_choices,
    merge_settings,
)
from dygmamba.runs.stored_facts import FACTS_SECTION, describe_facts
from dygmamba.runs.warm_start import check_warm_start, load_start_weights
from dygmamba.sampling.columns import find_query_columns
from dygmamba.sampling.index import MAX_CACHED_NUMBERS
from dygmamba.sampling.view import NeighborRequest
from dygmamba.tasks.link import LinkTask
from dygmamba.tasks.training_negatives import RANKING_NEGATIVES

TRAINING_COPIES = (
    5  # tensors per weight in training: itself, its gradient, Adam's two moments, the best value
)
TABLE_COPIES = 3  # of a training table, while it is built
BYTES_PER_ENTRY = 16  # of a neighbor sequence: node, event and time
MIN_ENTRIES = 4  # a pair takes at least as much memory as this many entries
TABLE_SAMPLES = 3  # rows of a ranking table per row that a tree may be grown from (`max_rows`)
MIN_CANDIDATES = 3  # of the ranking loss of trees, however long the stream is


def separate_settings(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide settings into those of the training loop and those of the model."""
    loop_names = {field.name for field in fields(LinkFitConfig)}
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
    fit_config = build_config(LinkFitConfig, loop)
    rule = get_default_split(dataset) if options.split is None else options.split
    stream = build_link_stream(dataset, device, rule)
    _require_events(stream.split, rule)
    facts = None if start is None else replace(start.facts, num_nodes=stream.store.num_nodes)
    if start is not None:
        check_warm_start(start, spec, model_config, stream)
    scorer = build_seeded_scorer(spec, model_config, seed, stream, TRAINING_COPIES, facts)
    _check_query_columns(dataset.name, scorer, model_config)
    _check_loss(model, scorer, fit_config)
    fit_config = resolve_ranking(fit_config, loop, model_config, len(stream.split.train))
    check_distributable(scorer, stream.processes, fit_config.batch)
    check_order(scorer, fit_config)
    _require_memory(scorer, fit_config, len(stream.split.train))
    reasons = explain_choices(dataset, stream, scorer, fit_config, model_config, layers)
    reasons |= _explain_ranking(fit_config, loop, len(stream.split.train))
    reasons |= {} if start is None else {"start_from": start.describe(stream.store)}
    about = stream.processes.run_on_first(lambda: describe_dataset(dataset, root))
    suffix = "" if options.refit_of is None else "-all"
    run = create_run(
        lambda: RunDirectory.create(root, dataset.name, model, seed, suffix),
        {
            "run": {**about, "split": stream.split.digest, "model": model, "seed": seed}
            | rule.section
            | ({} if options.refit_of is None else {"refit_of": str(options.refit_of)})
            | ({} if start is None else start.about)
            | ({} if spec.source is None else {"source": spec.source}),
            "train": to_settings(fit_config),
            "model": to_settings(model_config),
            "chosen": options.reasons | reasons,
            "made_with": describe_environment(device),
        }
        | ({} if facts is None else {FACTS_SECTION: describe_facts(facts)}),
    )
    if start is not None:
        load_start_weights(run, scorer)
        carry_calibration(run, start.folder)
    fit = build_link_fit(run, stream, scorer)
    if start is not None:
        fit.checkpoints.save(fit.state)  # to be resumed from, even if the earlier run is deleted
    return fit


def resume_link_run(
    path: Path, device: torch.device, data_dir: Path | None = None, dataset: Dataset | None = None
) -> Trainer:
    """Open a run directory and return a trainer at its last checkpoint; `dataset` is its dataset if it is open."""
    run = RunDirectory(path, current_group().is_first)
    run.config()  # raises for a directory that is not a run, before a lock file is left in it
    current_group().run_on_first(run.lock)
    check_environment(run, device)
    stream = build_link_stream(open_link_dataset(run, data_dir, dataset), device, read_split(run))
    scorer = build_scorer(run, stream)
    if "start_from" in run.config()["run"] and not run.started:  # stopped before its first checkpoint
        load_start_weights(run, scorer)
    fit = build_link_fit(run, stream, scorer)
    fit.resume()
    return fit


def build_link_fit(run: RunDirectory, stream: Stream, scorer: nn.Module) -> Trainer:
    """Return a trainer at the first step, as the configuration of the run says."""
    sections = run.config()
    config, seed = build_config(LinkFitConfig, sections["train"]), int(sections["run"]["seed"])
    task = LinkTask.create(
        stream.store,
        stream.split,
        stream.device,
        config.train_negatives,
        config.loss_function,
        config.best_metric,
    )
    return Trainer(task, scorer.to(stream.device), stream, config, run, seed)


def _require_events(split: Split, rule: SplitRule) -> None:
    sizes = [len(part) for part in (split.train, split.val, split.test)]
    if not all(sizes[: 3 if rule.numbers else 1]):
        hint = "use a longer stream" if rule.has_published_shares else "choose another `split`"
        raise EventError(
            "training, validation and test have {}, {} and {} events, but each needs some; {}".format(
                *sizes, hint
            ),
            code="empty-split",
        )


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
    if isinstance(scorer, RoundLearner) and not isinstance(scorer, GroupLearner):
        raise ConfigError(
            f"model '{model}' is trained on single pairs and takes no `loss`; got {config.loss!r}, leave it out",
            code="loss-not-supported",
        )
    if config.train_negatives not in RANKING_NEGATIVES:
        raise ConfigError(
            f"`loss={config.loss!r}` compares destinations of the same source, but `train_negatives="
            f"{config.train_negatives!r}` replaces the source; use {' or '.join(map(repr, RANKING_NEGATIVES))}",
            code="loss-needs-random-negatives",
        )


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of the table of all training queries from which a round learner learns."""

    rows: int
    features: int

    @staticmethod
    def of(scorer: object, events: int) -> "TableSize | None":
        """Return the size for so many training events; None if the model has no such table."""
        if not isinstance(scorer, RoundLearner) or not isinstance(scorer, FeatureReader):
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
    affordable = TABLE_SAMPLES * model_config.max_rows // max(events, 1) - 1
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


def _require_memory(scorer: Scorer, config: LinkFitConfig, events: int) -> None:
    """Raise if the training table, or the neighbor sequences of one training step, do not fit into memory."""
    table = TableSize.of(scorer, events)
    if table is not None:
        require_memory(table.peak_bytes, f"a training table with {table}")
    batch, length = min(config.batch, events), NeighborRequest.longest(scorer.requests)
    negatives = config.train_candidates if config.loss == "ranking" else 1
    nodes = (2 + negatives) * batch  # source, destination, negatives
    what = f"a batch of {batch:,} events with {length:,} entries looked up for each node"
    require_memory(nodes * max(length, MIN_ENTRIES) * BYTES_PER_ENTRY, what)
