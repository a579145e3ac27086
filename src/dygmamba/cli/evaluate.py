"""`dygmamba evaluate`: the published protocol on a trained run, or on a model that needs no training."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, mean_and_spread, plain_table, progress, stdout
from dygmamba.errors import ConfigError, EventError

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.data.splits import Split
    from dygmamba.data.store import Dataset
    from dygmamba.sampling.index import NeighborIndex


def evaluate(
    data: Annotated[str, typer.Argument(help="A run folder, or a dataset for a model without training.")],
    model: Annotated[
        str, typer.Option(help="Model without training: edgebank, popularity, recency.")
    ] = "edgebank",
    negatives: Annotated[
        str | None, typer.Option(help="random, historical, inductive; comma-separated.")
    ] = None,
    split: Annotated[str, typer.Option(help="val, test; comma-separated.")] = "test",
    setting: Annotated[
        str, typer.Option(help="transductive, inductive; comma-separated.")
    ] = "transductive,inductive",
    draws: Annotated[
        int, typer.Option(min=1, help="Independent draws of the negatives, from --seed on.")
    ] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the negatives instead of the published one.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Model setting, key=value.")] = None,
    strict_ties: Annotated[bool, typer.Option(help="Memory sees no event of the query's own time.")] = False,
    store_negatives: Annotated[
        Path | None, typer.Option(help="Keep drawn negatives here and reuse them.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for a trained run.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Rank what happened against negatives: AP and AUC, as the mean over batches of 200 and pooled."""
    from dygmamba.config import parse_overrides
    from dygmamba.engine.evaluation import SETTINGS, SPLITS
    from dygmamba.sampling.negatives import STRATEGIES

    is_run = (Path(data) / "config.toml").exists()
    default = "random,historical,inductive" if is_run else "random"
    chosen = [
        (strategy, name, kind)
        for strategy in listed("--negatives", negatives or default, STRATEGIES)
        for name in listed("--split", split, SPLITS)
        for kind in listed("--setting", setting, SETTINGS)
    ]
    if is_run:
        if overrides or strict_ties or store_negatives or draws > 1 or seed is not None:
            raise ConfigError(
                "--set, --seed, --draws, --strict-ties and --store-negatives are for untrained models"
            )
        rows = _run_rows(Path(data), device, data_dir, chosen, negatives)
    else:
        seeds = [seed] if draws == 1 else list(range(seed or 0, (seed or 0) + draws))
        run = Untrained.of(
            data, data_dir, model, parse_overrides(overrides or []), strict_ties, store_negatives
        )
        rows = [run.row(*one, number) for one in chosen if run.has(*one[1:]) for number in seeds]
    if not rows:
        raise EventError(
            "none of the chosen splits and settings has an event; choose others or use a longer stream"
        )
    if as_json:
        emit_json({"results": rows})
    else:
        stdout().print(any_table(rows))


def _run_rows(
    path: Path, device: str, data_dir: Path | None, chosen: list[tuple[str, str, str]], negatives: str | None
) -> list[dict[str, Any]]:
    """A link run's rows, or a classifier's: that has a split and neither setting nor negatives."""
    from dygmamba.engine.runs import RunFolder
    from dygmamba.experiment import choose_device

    if RunFolder(path).task == "link":
        return _trained_rows(path, device, data_dir, chosen)
    if negatives is not None:
        raise ConfigError(f"{path} classifies nodes, for which there are no negatives; leave out --negatives")
    from dygmamba.node_experiment import node_rows, reopen_node_run

    names = tuple(dict.fromkeys(name for _, name, _ in chosen))
    return node_rows(reopen_node_run(path, choose_device(device), data_dir), names)


def _trained_rows(
    path: Path, device: str, data_dir: Path | None, chosen: list[tuple[str, str, str]]
) -> list[dict[str, Any]]:
    from dygmamba.engine.work import TrainingData
    from dygmamba.experiment import choose_device, final_rows, open_trained

    run = open_trained(path, choose_device(device), data_dir)
    data = TrainingData.of(run.dataset.store, run.split, run.device)
    about = {"dataset": run.dataset.name, "model": run.model, "seed": run.seed}
    return final_rows(run.dataset, run.split, run.scorer, data, about, chosen)


@dataclass(frozen=True, slots=True)
class Untrained:
    """A model without training on one dataset; each row of the result evaluates one set."""

    dataset: "Dataset"
    split: "Split"
    index: "NeighborIndex"
    model: str
    settings: dict[str, Any]
    strict_ties: bool
    store_negatives: Path | None

    @staticmethod
    def of(
        data: str,
        data_dir: Path | None,
        model: str,
        settings: dict[str, Any],
        strict_ties: bool,
        folder: Path | None,
    ) -> "Untrained":
        """The model of that name on the dataset of that name."""
        from dygmamba.data.library import open_dataset
        from dygmamba.data.splits import chronological_split
        from dygmamba.models import find_model
        from dygmamba.sampling.index import NeighborIndex

        if find_model(model).trainable:
            raise ConfigError(f"model '{model}' must be trained first: dygmamba train {data} --model {model}")
        dataset = open_dataset(data, data_dir)
        split, index = chronological_split(dataset.store), NeighborIndex.build(dataset.store)
        return Untrained(dataset, split, index, model, settings, strict_ties, folder)

    def has(self, name: str, kind: str) -> bool:
        """Whether there is anything to evaluate."""
        from dygmamba.engine.evaluation import has_events

        return has_events(self.dataset.store, self.split, name, kind)

    def row(self, strategy: str, name: str, kind: str, seed: int | None = None) -> dict[str, Any]:
        """One result."""
        from dygmamba.config import build_config, preset
        from dygmamba.engine.evaluation import evaluation_set, score_set
        from dygmamba.models import find_model
        from dygmamba.models.base import DatasetFacts
        from dygmamba.sampling.negatives import SEEDS

        spec, store = find_model(self.model), self.dataset.store
        config = build_config(spec.config, preset(self.model, self.dataset.name, strategy) | self.settings)
        scorer = spec.build(config, DatasetFacts.of(store, self.split.train))
        chosen = evaluation_set(store, self.split, name, kind, strategy, seed, self.store_negatives)
        with progress() as bar:
            task = bar.add_task(f"{name} {kind} {strategy}", total=len(chosen.events))
            told = {"strict_ties": self.strict_ties, "advance": lambda count: bar.advance(task, count)}
            scores = score_set(scorer, store, self.index, chosen, **told)
        about = {
            "dataset": self.dataset.name,
            "model": self.model,
            "seed": SEEDS[name, kind] if seed is None else seed,
            "split": name,
            "setting": kind,
        }
        return about | {"negatives": strategy} | asdict(scores.metrics())


def listed(option: str, text: str, known: Iterable[str]) -> list[str]:
    """A comma-separated choice of known names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(known):
        raise ConfigError(f"{option} takes a comma-separated choice of {', '.join(known)}; got '{text}'")
    return names


def any_table(rows: list[dict[str, Any]]) -> "Table":
    """The table of a task's rows."""
    from dygmamba.cli.train_node import node_table

    return node_table(rows) if rows[0].get("task") == "node" else result_table(rows)


def result_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per evaluation; several seeds become mean ± standard deviation."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in ("split", "setting", "negatives")), []).append(row)
    seeds = max(len(own) for own in groups.values())
    title = f"{rows[0]['model']} on {rows[0]['dataset']}" + (f", mean ± std of {seeds}" if seeds > 1 else "")
    figures = ("AP", "AUC", "AP pooled", "AUC pooled", *(() if seeds > 1 else ("events",)))
    table = plain_table("split", "setting", "negatives", title=title, figures=figures)
    for about, own in groups.items():
        keys = ("ap", "auc", "ap_pooled", "auc_pooled")
        cells = [mean_and_spread([row[key] for row in own]) for key in keys]
        table.add_row(*about, *cells, *(() if seeds > 1 else (f"{own[0]['n']:,}",)))
    return table
