"""`dygmamba models`: every registered model, what it looks at and what it costs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import emit_json, plain_table, print_line, stack_heading, stdout
from dygmamba.known import allowed, described, known

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.models.base import DatasetFacts

DEFAULT = "uci"  # whose published settings and size are taken where no dataset is named
DEFAULT_NODES = 1_899


def models(
    name: Annotated[
        str | None, typer.Argument(help="A model: its settings, each with default, bounds and meaning.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Dataset whose size and published settings are taken; else UCI's.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the models: what each looks at, its trained parameters, and the events it reads per query."""
    if name is not None:
        _show_one(name, as_json)
        return
    if data is not None:
        precheck.require_dataset(data, data_dir)

    from dygmamba.models import all_models
    from dygmamba.models.base import DatasetFacts

    stream = data or DEFAULT
    facts = DatasetFacts(DEFAULT_NODES, 0, 0) if data is None else _facts(data, data_dir)
    rows = [_describe(model, stream, facts) for model in all_models()]
    if as_json:
        emit_json({"models": rows})
    else:
        for table in _tables(rows, stream):
            stdout().print(table)
            stdout().print()


def _show_one(name: str, as_json: bool) -> None:
    """One model's settings, and those of its training; of the package's own nothing heavy is imported."""
    about = precheck.require_model(name) or _from_outside(name)
    loop = known()["loops"]["link"]["settings"] if about["trainable"] else {}
    if as_json:
        emit_json({"name": name, **about, "training": loop})
        return
    print_line(f"{about['title']}: looks at {about['looks_at'] or 'what it was made for'}")
    for title, settings in (("settings of the model", about["settings"]), ("of its training", loop)):
        if settings:
            table = plain_table("setting", "default", "may be", "meaning", title=title)
            table.title_justify = "left"
            table.columns[0].no_wrap = True
            for setting, plain in settings.items():
                table.add_row(setting, _shown(plain["default"]), allowed(plain), plain.get("meaning", ""))
            stdout().print(table)
    if not about["settings"]:
        print_line("it has no settings")
    how = "train" if about["trainable"] else "evaluate"
    print_line(f"set one with: dygmamba {how} DATA --model {name} --set NAME=VALUE")


def _from_outside(name: str) -> dict[str, Any]:
    from dygmamba.models import find_model

    spec = find_model(name)
    names = ("title", "looks_at", "cost", "trainable")
    own = {key: getattr(spec, key) for key in names}
    return own | {"config": spec.config.__name__, "settings": described(spec.config)}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _facts(data: str, data_dir: Path | None) -> "DatasetFacts":
    from dygmamba.data.events.splits import chronological_split
    from dygmamba.data.storage.library import open_dataset
    from dygmamba.models.base import DatasetFacts

    store = open_dataset(data, data_dir).store
    return DatasetFacts.of(store, chronological_split(store).train)


def _describe(model: str, data: str, facts: "DatasetFacts") -> dict[str, Any]:
    """The model as it is built for the dataset; a cost is counted on it, never quoted."""
    from torch import nn

    from dygmamba.config import build_config, find_preset
    from dygmamba.models import find_model
    from dygmamba.models.base import RoundLearner
    from dygmamba.runs.link_training import separate_settings

    spec = find_model(model)
    _, settings = separate_settings(find_preset(model, data))
    scorer = spec.build(build_config(spec.config, settings), facts)
    weights = [w for w in scorer.parameters() if w.requires_grad] if isinstance(scorer, nn.Module) else []
    if isinstance(scorer, nn.Module) and isinstance(scorer, RoundLearner):
        weights = [learned for learned in scorer.buffers() if learned.is_floating_point()]
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


def _tables(rows: list[dict[str, Any]], data: str) -> "list[Table]":
    """What each model is and weighs, then what it reads and how its cost grows: both fit 80 columns."""
    title = f"with the published settings on {data}"
    sizes = plain_table(
        "model", "paper", "memory", title=title, figures=("parameters", stack_heading("events", "per query"))
    )
    views = plain_table("model", "looks at", "cost of a query")
    for row in rows:
        size = f"{row['parameters']:,}" if row["trainable"] else "not trained"
        memory = "yes" if row["stateful"] else "no"
        sizes.add_row(row["name"], row["title"], memory, size, f"{row['tokens']:,}")
        views.add_row(row["name"], row["looks_at"], row["cost"])
    sizes.title_justify = "left"
    for table in (sizes, views):
        table.columns[0].no_wrap = True
    return [sizes, views]
