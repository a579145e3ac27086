"""`dygmamba data describe`: look at a dataset.

`dygmamba data fetch`: public datasets by name.

`dygmamba data generate`: a stream whose forgetting law is known, saved as a dataset.

`dygmamba data list` and `dygmamba data remove`: what is here, who uses it, what may go.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import (
    emit_json,
    make_description_column,
    plain_table,
    print_line,
    print_note,
    stderr,
    stdout,
)
from dygmamba.cli.messages import parse_overrides

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.data.catalogue.partial_download import DownloadProgress
    from dygmamba.data.events.statistics import Quantiles, Statistics
    from dygmamba.data.storage.dataset import Dataset

app = typer.Typer(
    help="Import, fetch, generate, describe and export streams of events.", no_args_is_help=True
)

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the datasets; otherwise $DYGMAMBA_DATA, then the user's cache folder."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command("describe")
def describe(
    data: Annotated[str, typer.Argument(help="Name of a dataset, or its file.")],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Show what a dataset holds."""
    from dataclasses import asdict

    from dygmamba.api import precheck
    from dygmamba.cli.console import emit_json, stdout

    precheck.require_dataset(data, data_dir)

    from dygmamba.data.events.statistics import compute_statistics as measure
    from dygmamba.data.events.statistics import sparkline
    from dygmamba.data.storage.library import open_dataset

    dataset = open_dataset(data, data_dir)
    facts = measure(dataset.store)
    if json:
        head = {"name": dataset.name, "digest": dataset.digest, "duration": facts.duration}
        emit_json(head | asdict(facts))
        return
    console = stdout()
    console.print(_facts_table(dataset, facts))
    console.print(_quantile_table(facts, len(dataset.store) > 0 and is_dated(dataset)))
    blocks = {"unicode": console.encoding.lower().startswith("utf")}
    activity = sparkline(facts.activity, **blocks)
    degrees = sparkline(facts.degree_histogram, log=True, **blocks)
    console.print(f" events over time |{activity}|")
    console.print(f" nodes by degree  |{degrees}| 0, 1, 2-3, 4-7, ... (log)")


def nodes_of(dataset: "Dataset") -> str:
    """How many nodes there are, and on which side."""
    nodes, sources = dataset.store.num_nodes, dataset.ids.sources
    sides = "" if sources is None else f" ({sources:,} sources, {nodes - sources:,} destinations)"
    return f"{nodes:,} nodes{sides}"


def is_dated(dataset: "Dataset") -> bool:
    """Whether the times are, or look like, seconds since 1970."""
    from dygmamba.data.events.statistics import looks_like_epoch_seconds

    time = dataset.store.time
    return bool(dataset.origin.time_origin) or looks_like_epoch_seconds(float(time[0]), float(time[-1]))


def period_of(dataset: "Dataset") -> str:
    """From when to when, in dates where the times are dates."""
    from dygmamba.data.events.statistics import format_date, format_duration

    if not len(dataset.store):
        return "no events"
    start, end = float(dataset.store.time[0]), float(dataset.store.time[-1])
    if is_dated(dataset):
        return f"{format_date(start)} to {format_date(end)} ({format_duration(end - start)})"
    return f"{start:,.12g} to {end:,.12g} ({format_duration(end - start)} if in seconds)"


def _facts_table(dataset: "Dataset", facts: "Statistics") -> "Table":
    from rich.table import Table

    def share(value: float | None, meaning: str) -> str:
        return "-" if value is None else f"{100 * value:.2f} % {meaning}"

    table = Table(title=dataset.name, show_header=False, title_justify="left")
    rows = {
        "nodes": nodes_of(dataset).replace(" nodes", ""),
        "events": f"{facts.events:,}",
        "period": period_of(dataset),
        "unique times": f"{facts.unique_times:,}",
        "ties": f"{facts.ties:,} events share their time with another",
        "repeats": share(facts.repeats, "of the events repeat an earlier pair"),
        "surprise": share(facts.surprise, "of the pairs in the last 15 % of events are new"),
        "self-loops": f"{facts.self_loops:,}",
        "features": f"{facts.node_features} per node, {facts.edge_features} per event",
        "labels": share(facts.label_share, "are not zero"),
        "digest": dataset.digest[:16],
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _quantile_table(facts: "Statistics", dated: bool) -> "Table":
    from dataclasses import astuple

    from rich.table import Table

    from dygmamba.data.events.statistics import format_duration

    def cells(quantiles: "Quantiles | None", show: Callable[[float], str]) -> list[str]:
        return ["-"] * 6 if quantiles is None else [show(value) for value in astuple(quantiles)]

    def plain(value: float) -> str:
        return f"{value:.4g}"

    table = Table("", "min", "25 %", "50 %", "75 %", "95 %", "max")
    table.add_row("events per node", *cells(facts.degree, plain))
    table.add_row("gap at a node", *cells(facts.gap, format_duration if dated else plain))
    return table


FETCH_MESSAGES = {
    "present": "{name} is already in {parent}; nothing to do",
    "archive": "{name} is in {folder}, unpacked from {archive}",
    "download": "{name} is in {folder}",
}


def fetch(
    name: Annotated[str, typer.Argument(help="A name of `dygmamba data list`.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Download a public dataset, unless it is here already."""
    from dygmamba.data.catalogue.known_datasets import find_entry
    from dygmamba.data.storage.locations import data_folder

    folder = data_folder(data_dir)
    entry = find_entry(name)

    from dygmamba.data.catalogue.fetch import fetch_dataset, format_import_command

    try:
        with _download_progress(entry.archive) as progress:
            fetched = fetch_dataset(entry, folder, progress=progress)
    except KeyboardInterrupt:
        if (folder / f"{entry.archive}.part").exists():
            print_note(f"what arrived of {entry.archive} is kept; the same command goes on from there")
        raise
    warning, line = fetched.warning, format_import_command(fetched)
    for said in (warning, entry.note, entry.licence and f"licence: {entry.licence}"):
        if said and fetched.how != "present":
            print_note(said)
    if as_json:
        facts = {"name": entry.name, "folder": str(fetched.folder), "how": fetched.how, "home": entry.home}
        emit_json(facts | {"licence": entry.licence, "warning": warning, "import": line})
        return
    places = {"folder": fetched.folder, "parent": folder, "archive": entry.archive}
    done = FETCH_MESSAGES[fetched.how].format(name=entry.name, **places)
    print_line(done)
    if line:
        print_line(f"turn it into a dataset with: {line}")


@contextmanager
def _download_progress(title: str) -> Iterator["DownloadProgress"]:
    """Bytes, speed and time left on stderr; silent when stderr is not a terminal."""
    from rich import progress as rich

    console = stderr()
    columns: list[Any] = [make_description_column(), rich.BarColumn(), rich.DownloadColumn()]
    columns += [rich.TransferSpeedColumn(), rich.TimeRemainingColumn()]
    with rich.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda added, total: bar.update(task, advance=added, total=total)


def generate(
    out: Annotated[str, typer.Option(help="The name of the new dataset.")],
    nodes: Annotated[int | None, typer.Option(help="How many nodes.")] = None,
    events: Annotated[int | None, typer.Option(help="How many events.")] = None,
    communities: Annotated[int | None, typer.Option(help="How many communities.")] = None,
    law: Annotated[str | None, typer.Option(help="exponential, power, stretched or never.")] = None,
    half_life: Annotated[float | None, typer.Option(help="The span after which half is forgotten.")] = None,
    novelty: Annotated[float | None, typer.Option(help="The weight of a fresh partner.")] = None,
    noise: Annotated[float | None, typer.Option(help="The share of random partners.")] = None,
    drift: Annotated[
        float | None, typer.Option(help="Moves to another seat, per node and time unit.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another stream.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other parameter: key=value.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Generate a stream of returns, drift and noise whose forgetting law is known."""
    flags = {"nodes": nodes, "events": events, "communities": communities, "law": law, "half_life": half_life}
    flags |= {"novelty": novelty, "noise": noise, "drift": drift, "seed": seed}
    chosen = {key: value for key, value in flags.items() if value is not None}
    asked = parse_overrides(settings or []) | chosen
    precheck.check_generator(asked)
    precheck.checked_name(out)

    from dataclasses import asdict

    from dygmamba.config import build_config
    from dygmamba.data.generate.stream import GeneratorConfig
    from dygmamba.data.storage.dataset import save_dataset
    from dygmamba.data.storage.library import data_folder, generate_dataset

    config = build_config(GeneratorConfig, asked)
    with stderr().status(f"generating {config.events:,} events"):
        folder = data_folder(data_dir)
        dataset = generate_dataset(out, config, folder)
        path = save_dataset(dataset, folder)
    if as_json:
        emit_json({"name": out, "file": str(path), "digest": dataset.digest, "config": asdict(config)})
        return
    print_line(f"{out} is in {path}: {config.events:,} events among {config.nodes:,} nodes")


DatasetDir = Annotated[Path | None, typer.Option(help="Where datasets are.")]
RunsDir = Annotated[Path, typer.Option(help="Where runs are, to see which datasets they use.")]
JsonOutput = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def list_datasets(
    data_dir: DatasetDir = None, runs: RunsDir = Path("runs"), as_json: JsonOutput = False
) -> None:
    """Your datasets in all their versions with the runs that use them, and the public ones that can be fetched."""
    from rich.table import Table

    from dygmamba.api.datasets import datasets
    from dygmamba.data.catalogue.fetch import is_fetched
    from dygmamba.data.catalogue.known_datasets import load_catalogue
    from dygmamba.data.storage.library import data_folders

    own = datasets(data_dir=data_dir, runs=runs).to_pylist()
    folders = data_folders(data_dir)
    here = {
        name: any(is_fetched(entry, folder) for folder in folders) for name, entry in load_catalogue().items()
    }
    if as_json:
        public = [asdict(entry) | {"on_disk": here[name]} for name, entry in load_catalogue().items()]
        emit_json({"imported": own, "datasets": public})
        return
    if own:
        _print_imported(own)
    table = Table("name", "task", box=None)
    for heading in ("nodes", "events", "features"):
        table.add_column(heading, justify="right")
    table.add_column("on disk")
    for name, entry in load_catalogue().items():
        counts = entry.counts[0]
        figures = (counts.nodes, counts.events, counts.edge_features)
        shown = ("?" if figure is None else f"{figure:,}" for figure in figures)
        table.add_row(name, ", ".join(entry.tasks), *shown, "yes" if here[name] else "no")
    stdout().print(table)


def remove(
    name: Annotated[
        str, typer.Argument(help="NAME@VERSION of `dygmamba data list`, or NAME: all its versions.")
    ],
    force: Annotated[bool, typer.Option("--force", help="Although runs need it.")] = False,
    data_dir: DatasetDir = None,
    runs: RunsDir = Path("runs"),
    as_json: JsonOutput = False,
) -> None:
    """Delete an imported dataset that no run needs."""
    from dygmamba.api.datasets import remove as delete

    gone = delete(name, data_dir=data_dir, runs=runs, force=force)
    if as_json:
        emit_json({"removed": gone})
    else:
        print_line(f"removed {', '.join(gone)}")


def _print_imported(own: list[dict[str, Any]]) -> None:
    table = plain_table("yours", "version", figures=("nodes", "events"))
    table.add_column("used by")
    for row in own:
        users = row["runs"]
        more = f" and {len(users) - 1} more" if len(users) > 1 else ""
        called = row["name"] if row["newest"] else f"{row['name']}@{row['version']}"
        table.add_row(
            called,
            row["version"] + (", newest" if row["newest"] else ""),
            f"{row['nodes']:,}",
            f"{row['events']:,}",
            f"{users[0]}{more}" if users else "no run",
        )
    stdout().print(table)
    stdout().print("")
