"""`dygmamba evaluate`: the published protocol on a dataset, for models that need no training."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, progress, stdout
from dygmamba.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from dygmamba.data.store import Dataset


def evaluate(
    data: Annotated[str, typer.Argument(help="Dataset name or file.")],
    model: Annotated[str, typer.Option(help="Registered model.")] = "edgebank",
    negatives: Annotated[str, typer.Option(help="random, historical, inductive; comma-separated.")] = "random",
    split: Annotated[str, typer.Option(help="val, test; comma-separated.")] = "test",
    setting: Annotated[str, typer.Option(help="transductive, inductive; comma-separated.")] = "transductive,inductive",
    draws: Annotated[int, typer.Option(min=1, help="Independent draws of the negatives, from --seed on.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Seed of the negatives instead of the published one.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Model setting, key=value.")] = None,
    strict_ties: Annotated[bool, typer.Option(help="Memory sees no event of the query's own time.")] = False,
    store_negatives: Annotated[Path | None, typer.Option(help="Keep drawn negatives here and reuse them.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Score a dataset's test events against negatives: AP and AUC, per batch of 200 and pooled."""
    from dygmamba.config import parse_overrides
    from dygmamba.data.library import open_dataset
    from dygmamba.engine.evaluation import SETTINGS, SPLITS
    from dygmamba.models import find_model
    from dygmamba.sampling.negatives import STRATEGIES

    find_model(model)
    chosen = [
        (strategy, name, kind)
        for strategy in _listed("--negatives", negatives, STRATEGIES)
        for name in _listed("--split", split, SPLITS)
        for kind in _listed("--setting", setting, SETTINGS)
    ]
    seeds = [seed] if draws == 1 else list(range(seed or 0, (seed or 0) + draws))
    dataset = open_dataset(data, data_dir)
    run = _Run(dataset, model, parse_overrides(overrides or []), strict_ties, store_negatives)
    rows = []
    with progress() as bar:
        for strategy, name, kind in chosen:
            for one in seeds:
                rows.append(run.row(strategy, name, kind, one, bar))
    if as_json:
        emit_json({"results": rows})
    else:
        stdout().print(_table(rows))


@dataclass(frozen=True, slots=True)
class _Run:
    """One dataset and model; each row of the result evaluates one set."""

    dataset: "Dataset"
    model: str
    settings: dict[str, Any]
    strict_ties: bool
    store_negatives: Path | None

    def row(self, strategy: str, name: str, kind: str, seed: int | None, bar: "Progress") -> dict[str, Any]:
        from dygmamba.config import build_config, preset
        from dygmamba.engine.evaluation import evaluation_set, score_set
        from dygmamba.models import find_model
        from dygmamba.models.base import DatasetFacts
        from dygmamba.sampling.index import NeighborIndex

        spec, store = find_model(self.model), self.dataset.store
        config = build_config(spec.config, preset(self.model, self.dataset.name, strategy) | self.settings)
        scorer = spec.build(config, DatasetFacts.of(store))
        chosen = evaluation_set(store, _split(self.dataset), name, kind, strategy, seed, self.store_negatives)
        task = bar.add_task(f"{name} {kind} {strategy}", total=len(chosen.events))
        index = NeighborIndex.build(store)
        scores = score_set(
            scorer, store, index, chosen, strict_ties=self.strict_ties, advance=lambda n: bar.advance(task, n)
        )
        about = {"dataset": self.dataset.name, "model": self.model, "seed": seed or 0, "split": name, "setting": kind}
        return about | {"negatives": strategy} | asdict(scores.metrics())


def _split(dataset: "Dataset"):
    from dygmamba.data.splits import chronological_split

    return chronological_split(dataset.store)


def _listed(option: str, text: str, known: Iterable[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= set(known):
        raise ConfigError(f"{option} takes a comma-separated choice of {', '.join(known)}; got '{text}'")
    return names


def _table(rows: list[dict[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table("model", "split", "setting", "negatives", "AP", "AUC", "AP pooled", "AUC pooled", "events")
    for column in table.columns[4:]:
        column.justify = "right"
    for row in rows:
        shares = [f"{100 * row[key]:.2f}" for key in ("ap", "auc", "ap_pooled", "auc_pooled")]
        about = [row["model"], row["split"], row["setting"], row["negatives"]]
        table.add_row(*about, *shares, f"{row['n']:,}")
    table.title = rows[0]["dataset"]
    return table
