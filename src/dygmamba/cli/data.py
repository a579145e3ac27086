"""Commands of `dygmamba data` on the data folder: describe, fetch, generate, list and remove datasets."""

from collections.abc import Callable
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api.formatting import format_duration
from dygmamba.api.requests.data import GENERATOR_DEFAULTS, GenerateRequest
from dygmamba.cli.console import emit_json, plain_table, print_line, print_note, stdout
from dygmamba.cli.options import DataDir, Json, optional, parse_overrides
from dygmamba.cli.progress import show_progress

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.api.data_files import DatasetDescription, Quantiles

RunsDir = Annotated[Path, typer.Option(help="Look for runs that use a dataset in this folder.")]
FETCH_MESSAGES = {
    "present": "{name} is already in {parent}; nothing to do",
    "archive": "{name} is in {folder}, unpacked from {archive}",
    "download": "{name} is in {folder}",
}


def describe(
    data: Annotated[str, typer.Argument(help="Describe this dataset: a name or a file.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show what a dataset holds: nodes, events, period, repeats, features."""
    from dygmamba.api.requests.base import check_data

    check_data(data, data_dir)

    from dygmamba.api.data_files import describe_dataset, draw_sparkline

    found = describe_dataset(data, data_dir)
    if json:
        emit_json(found.to_dict())
        return
    console = stdout()
    console.print(_make_facts_table(found))
    console.print(_make_quantile_table(found))
    blocks = {"unicode": console.encoding.lower().startswith("utf")}
    activity = draw_sparkline(found.statistics.activity, **blocks)
    degrees = draw_sparkline(found.statistics.degree_histogram, log=True, **blocks)
    console.print(f" events over time |{activity}|")
    console.print(f" nodes by degree  |{degrees}| 0, 1, 2-3, 4-7, ... (log)")


def _make_facts_table(found: "DatasetDescription") -> "Table":
    from rich.table import Table

    from dygmamba.api.data_files import (
        describe_columns,
        describe_node_columns,
        describe_nodes,
        describe_period,
    )

    def share(value: float | None, meaning: str) -> str:
        return "-" if value is None else f"{100 * value:.2f} % {meaning}"

    dataset, facts, counts = found.dataset, found.statistics, found.counts
    table = Table(title=dataset.name, show_header=False, title_justify="left")
    rows = {
        "nodes": describe_nodes(dataset).replace(" nodes", ""),
        "events": f"{facts.events:,}",
        "period": describe_period(dataset),
        "unique times": f"{facts.unique_times:,}",
        "ties": f"{facts.ties:,} events share their time with another",
        "repeats": share(facts.repeats, "of the events repeat an earlier pair"),
        "surprise": share(facts.surprise, "of the pairs in the last 15 % of the events are new"),
        "self-loops": f"{facts.self_loops:,}",
        "features": f"{facts.node_features} per node, {facts.edge_features} per event",
        "columns": describe_columns(dataset),
        "labels": share(facts.label_share, "are not zero"),
        "split": f"by {found.split.label}" + ("" if counts is None else f": {counts.describe_events()}"),
        "new nodes": "-" if counts is None else counts.describe_new_nodes(),
        "digest": dataset.digest[:16],
    }
    if node_columns := describe_node_columns(dataset):
        rows["node features"] = node_columns
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _make_quantile_table(found: "DatasetDescription") -> "Table":
    from rich.table import Table

    def format_cells(quantiles: "Quantiles | None", format_value: Callable[[float], str]) -> list[str]:
        return ["-"] * 6 if quantiles is None else [format_value(value) for value in astuple(quantiles)]

    def format_number(value: float) -> str:
        return f"{value:.4g}"

    table = Table("", "min", "25 %", "50 %", "75 %", "95 %", "max")

    table.add_row("events per node", *format_cells(found.statistics.degree, format_number))
    gaps = format_cells(found.statistics.gap, format_duration if found.dataset.is_dated else format_number)
    table.add_row("gap at a node", *gaps)
    return table


def fetch(
    name: Annotated[str, typer.Argument(help="Fetch this dataset of `dygmamba data list`.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a public dataset, unless it is on disk already."""
    from dygmamba.api.requests.data import find_entry

    find_entry(name)  # raises for an unknown one

    from dygmamba.api import data_files

    with show_progress() as progress:
        fetched = data_files.fetch(name, data_dir=data_dir, progress=progress)
    entry, result = fetched.entry, fetched.result
    if result.how != "present":
        for text in (result.warning, entry.note, entry.licence and f"licence: {entry.licence}"):
            if text:
                print_note(text)
    if as_json:
        facts = {"name": entry.name, "folder": str(result.folder), "how": result.how, "home": entry.home}
        emit_json(
            facts | {"licence": entry.licence, "warning": result.warning, "import": fetched.import_command}
        )
        return
    places = {"folder": result.folder, "parent": fetched.folder, "archive": entry.archive}
    print_line(FETCH_MESSAGES[result.how].format(name=entry.name, **places))
    if fetched.import_command:
        print_line(f"import it with: {fetched.import_command}")


def generate(
    name: Annotated[str, typer.Option("--out", help="Name the new dataset.")],
    nodes: Annotated[int, typer.Option(help="Generate this many nodes.")] = GENERATOR_DEFAULTS.nodes,
    events: Annotated[int, typer.Option(help="Generate this many events.")] = GENERATOR_DEFAULTS.events,
    communities: Annotated[
        int, typer.Option(help="Divide the nodes into this many communities.")
    ] = GENERATOR_DEFAULTS.communities,
    law: Annotated[
        str, typer.Option(help="Forget by this law: exponential, power, stretched or never.")
    ] = GENERATOR_DEFAULTS.law,
    half_life: Annotated[
        float, typer.Option(help="Forget half after this time.")
    ] = GENERATOR_DEFAULTS.half_life,
    novelty: Annotated[
        float, typer.Option(help="Give new partners this weight.")
    ] = GENERATOR_DEFAULTS.novelty,
    noise: Annotated[
        float, typer.Option(help="Make this share of the partners random.")
    ] = GENERATOR_DEFAULTS.noise,
    drift: Annotated[
        float, typer.Option(help="Move nodes to another community at this rate per time unit.")
    ] = GENERATOR_DEFAULTS.drift,
    seed: Annotated[int, typer.Option(help="Generate with this seed.")] = GENERATOR_DEFAULTS.seed,
    overrides: Annotated[
        list[str] | None,
        optional(
            "--set",
            help="Set any other parameter, key=value.",
            default="see docs/reference/generated-stream.md",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Generate a dataset of returning pairs whose decay law is known."""
    flags = {"nodes": nodes, "events": events, "communities": communities, "law": law, "half_life": half_life}
    flags |= {"novelty": novelty, "noise": noise, "drift": drift, "seed": seed}
    request = GenerateRequest.from_arguments(locals(), settings=flags | parse_overrides(overrides)).check()

    from dygmamba.api.data_files import generate_file

    with show_progress() as progress:
        made = generate_file(request, progress)
    if as_json:
        facts = {"name": name, "file": str(made.path), "digest": made.dataset.digest}
        emit_json(facts | {"config": asdict(made.config)})
        return
    print_line(f"{name} is in {made.path}: {made.config.events:,} events among {made.config.nodes:,} nodes")


def list_datasets(data_dir: DataDir = None, runs: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """List your datasets with the runs that use them, and the public ones that can be fetched."""
    from rich.table import Table

    from dygmamba.api import data_files

    found = data_files.list_datasets(data_dir, runs)
    if as_json:
        public = [asdict(entry) | {"on_disk": folder is not None} for entry, folder in found.public]
        emit_json({"imported": found.imported, "datasets": public})
        return
    by_folder: dict[Path, list[dict[str, Any]]] = {}
    for row in found.imported:
        by_folder.setdefault(Path(row["path"]).parent, []).append(row)
    for folder, rows in by_folder.items():
        print_line(f"in {folder}:")
        _print_imported(rows)
    table = Table("name", "task", box=None)
    for heading in ("nodes", "events", "features"):
        table.add_column(heading, justify="right")
    table.add_column("on disk")
    for entry, folder in found.public:
        counts = entry.counts[0]
        numbers = (counts.nodes, counts.events, counts.edge_features)
        cells = ("?" if number is None else f"{number:,}" for number in numbers)
        table.add_row(entry.name, ", ".join(entry.tasks), *cells, "no" if folder is None else "yes")
    stdout().print(table)
    for folder in dict.fromkeys(folder for _, folder in found.public if folder is not None):
        print_line(
            f"on disk in {folder}: {', '.join(entry.name for entry, at in found.public if at == folder)}"
        )


def _print_imported(rows: list[dict[str, Any]]) -> None:
    table = plain_table("yours", "version", figures=("nodes", "events"))
    table.add_column("used by")
    for row in rows:
        users = row["runs"]
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        table.add_row(
            row["name"] if row["newest"] else f"{row['name']}@{row['version']}",
            row["version"] + (", newest" if row["newest"] else ""),
            f"{row['nodes']:,}",
            f"{row['events']:,}",
            f"{users[0]}{more}" if users else "no run",
        )
    stdout().print(table)
    stdout().print("")


def remove(
    name: Annotated[
        str, typer.Argument(help="Delete NAME@VERSION of `dygmamba data list`, or NAME in all its versions.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Delete the dataset even if runs need it.")] = False,
    data_dir: DataDir = None,
    runs: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Delete an imported dataset that no run needs."""
    from dygmamba.api.datasets import remove as remove_dataset

    removed = remove_dataset(name, data_dir=data_dir, runs=runs, force=force)
    if as_json:
        emit_json({"removed": removed})
    else:
        searched = "" if force else f" (no run below {runs} needs it; other folders were not searched)"
        print_line(f"removed {', '.join(removed)}{searched}")
