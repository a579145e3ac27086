"""`dygmamba evaluate`: the published protocol on a trained run, or on a model that needs no training."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, mean_and_spread, plain_table, progress, stdout
from dygmamba.errors import ConfigError, EventError

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.engine.clock import Rule
    from dygmamba.runs.link import Choice


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
    visible: Annotated[
        str | None,
        typer.Option(
            help="What a memory may see: strict (strictly earlier), batch (as published); a run's own."
        ),
    ] = None,
    store_negatives: Annotated[
        Path | None, typer.Option(help="Keep drawn negatives here and reuse them.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for a trained run.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Rank what happened against negatives: AP and AUC, as the mean over batches of 200 and pooled."""
    from dygmamba.config import parse_overrides
    from dygmamba.sampling.negatives import SAMPLERS
    from dygmamba.tasks.link import SETTINGS, SPLITS

    is_run = (Path(data) / "config.toml").exists()
    default = "random,historical,inductive" if is_run else "random"
    chosen = [
        (strategy, name, kind)
        for strategy in listed("--negatives", negatives or default, SAMPLERS)
        for name in listed("--split", split, SPLITS)
        for kind in listed("--setting", setting, SETTINGS)
    ]
    check_rule(visible)
    if is_run:
        if overrides or store_negatives or draws > 1 or seed is not None:
            raise ConfigError("--set, --seed, --draws and --store-negatives are for untrained models")
        rows = _run_rows(Path(data), device, data_dir, chosen, negatives, visible)
    else:
        seeds = [seed] if draws == 1 else list(range(seed or 0, (seed or 0) + draws))
        settings = parse_overrides(overrides or [])
        rows = _untrained_rows(data, data_dir, (model, settings), chosen, seeds, visible, store_negatives)
    if not rows:
        raise EventError(
            "none of the chosen splits and settings has an event; choose others or use a longer stream"
        )
    if as_json:
        emit_json({"results": rows})
    else:
        stdout().print(any_table(rows))


def check_rule(visible: str | None) -> None:
    """Refuse a rule that is none."""
    if visible not in (None, "strict", "batch"):
        raise ConfigError(f"--visible takes strict or batch, got '{visible}'")


def _ruled(rule: "Rule", visible: str | None) -> "Rule":
    """The rule, with what the command line says of it."""
    return replace(rule, visible=visible or rule.visible)


def _run_rows(
    path: Path,
    device: str,
    data_dir: Path | None,
    chosen: "list[Choice]",
    negatives: str | None,
    visible: str | None,
) -> list[dict[str, Any]]:
    """A link run's rows, or a classifier's: that has a split and neither setting nor negatives."""
    from dygmamba.engine.folder import RunFolder
    from dygmamba.runs.link import link_rows
    from dygmamba.runs.opening import choose_device, open_run

    if RunFolder(path).task == "link":
        run = open_run(path, choose_device(device), data_dir)
        about = {"dataset": run.dataset.name, "model": run.about["model"], "seed": run.seed}
        return link_rows(run.scorer, run.stream, about, chosen, _ruled(run.rule, visible))
    if negatives is not None:
        raise ConfigError(f"{path} classifies nodes, for which there are no negatives; leave out --negatives")
    if visible is not None:
        raise ConfigError(f"{path} classifies nodes by the rule it was trained under; leave out --visible")
    from dygmamba.runs.node import node_rows, open_node_run

    names = tuple(dict.fromkeys(name for _, name, _ in chosen))
    return node_rows(open_node_run(path, choose_device(device), data_dir), names)


def _untrained_rows(
    data: str,
    data_dir: Path | None,
    model: tuple[str, dict[str, Any]],
    chosen: "list[Choice]",
    seeds: Sequence[int | None],
    visible: str | None,
    folder: Path | None,
) -> list[dict[str, Any]]:
    """The rows of a model without training, each with a bar."""
    from dygmamba.data.library import open_dataset
    from dygmamba.engine.examine import STRICT
    from dygmamba.models import find_model
    from dygmamba.runs.link import Heuristics

    if find_model(model[0]).trainable:
        raise ConfigError(
            f"model '{model[0]}' must be trained first: dygmamba train {data} --model {model[0]}"
        )
    untrained = Heuristics.of(open_dataset(data, data_dir), _ruled(STRICT, visible), folder)
    rows = []
    for one in chosen:
        for seed in seeds if untrained.has(one) else ():
            with progress() as bar:
                task = bar.add_task(" ".join(one), total=None)
                advance = partial(bar.advance, task)
                rows.append(untrained.row(*model, one, seed, advance))
    return rows


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
    title += f", memory sees {rows[0]['visible']}"
    figures = ("AP", "AUC", "AP pooled", "AUC pooled", *(() if seeds > 1 else ("events",)))
    table = plain_table("split", "setting", "negatives", title=title, figures=figures)
    for about, own in groups.items():
        keys = ("ap", "auc", "ap_pooled", "auc_pooled")
        cells = [mean_and_spread([row[key] for row in own]) for key in keys]
        table.add_row(*about, *cells, *(() if seeds > 1 else (f"{own[0]['n']:,}",)))
    return table
