"""`dygmamba models`: list the models, or show the settings of one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli.console import emit_json, plain_table, print_line, stack_heading, stdout
from dygmamba.cli.options import DataDir, Json, optional
from dygmamba.core.setting_descriptions import describe_allowed

if TYPE_CHECKING:
    from rich.table import Table


def models(
    name: Annotated[
        str | None, typer.Argument(help="Show the settings of this model: default, allowed values, meaning.")
    ] = None,
    data: Annotated[
        str | None,
        optional(
            help="Show the sizes of the models on this dataset, with its published settings.", default="uci"
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the models: what each looks at, its trained parameters, and the events it reads per query."""
    if name is not None:
        from dygmamba.api.model_descriptions import describe_model

        _print_model(describe_model(name), as_json)
        return
    if data is not None:
        from dygmamba.api.requests.base import check_data

        check_data(data, data_dir)

    from dygmamba.api.models import DEFAULT_DATASET, list_models

    rows = list_models(data, data_dir)
    if as_json:
        emit_json({"models": rows})
        return
    for table in _make_model_tables(rows, data or DEFAULT_DATASET):
        stdout().print(table)
        stdout().print()


def _print_model(about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(about)
        return
    print_line(f"{about['title']}: looks at {about['looks_at'] or 'what its package says'}")
    for title, settings in (
        ("settings of the model", about["settings"]),
        ("of its training", about["training"]),
        ("of the model for `--task node`", about.get("node_settings", {})),
    ):
        if settings:
            table = plain_table("setting", "default", "allowed", "meaning", title=title)
            table.title_justify = "left"
            table.columns[0].no_wrap = True
            for setting, plain in settings.items():
                allowed = describe_allowed(plain)
                table.add_row(setting, _format_value(plain["default"]), allowed, plain.get("meaning", ""))
            stdout().print(table)
    if not about["settings"]:
        print_line("it has no settings")
    command = "train" if about["trainable"] else "evaluate"
    print_line(f"change one with: dygmamba {command} DATA --model {about['name']} --set NAME=VALUE")


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)


def _make_model_tables(rows: list[dict[str, Any]], data: str) -> "list[Table]":
    """Make two tables that fit 80 columns: size of each model, and what it looks at."""
    title = f"with the published settings on {data}"
    sizes = plain_table(
        "model", "paper", "memory", title=title, figures=("parameters", stack_heading("events", "per query"))
    )
    views = plain_table("model", "looks at", "cost of a query")
    for row in rows:
        size = f"{row['parameters']:,}" if row["trainable"] else "not trained"
        sizes.add_row(
            row["name"], row["title"], "yes" if row["stateful"] else "no", size, f"{row['tokens']:,}"
        )
        views.add_row(row["name"], row["looks_at"], row["cost"])
    sizes.title_justify = "left"
    for table in (sizes, views):
        table.columns[0].no_wrap = True
    return [sizes, views]
