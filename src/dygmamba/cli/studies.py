"""`dygmamba reproduce`: a study of the paper by one command, and what it will take before it runs.

`dygmamba bench`: correctness first, then time.

`dygmamba demo`: train on the built-in stream, compare, hold the learned forgetting against the true law.
"""

import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import emit_json, plain_table, print_line, print_note, stderr, stdout
from dygmamba.cli.messages import parse_overrides, parse_seeds
from dygmamba.core.errors import ConfigError, NotFoundError
from dygmamba.core.files.writing import make_folder
from dygmamba.known import known

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.explain.forgetting import Forgetting
    from dygmamba.lab.benchmarks.harness import BenchmarkRow


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="link, node, ablation, length, efficiency, convergence, robustness, sensitivity, case-study, large."
        ),
    ],
    datasets: Annotated[
        str | None, typer.Option(help="Streams, e.g. uci,enron; the study's own unless told.")
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Models, e.g. edgebank,dyg-mamba; the study's own.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0 or 0-4 or 0,3,7.")] = "0",
    variants: Annotated[
        str | None,
        typer.Option(help="Of ablations: their names; of lengths: numbers; of noise: insert,release."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most this many epochs a run.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Setting, key=value, of every run.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Runs at once; what the device bears.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[Path, typer.Option(help="Where runs, results and the page go.")] = Path("studies"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and what it will take; run nothing.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run a study of the paper again: every run is kept, killed and given again it goes on, a page is written."""
    settings = parse_overrides(overrides or []) | ({} if epochs is None else {"epochs": epochs})
    numbers = parse_seeds(seeds)
    if study not in known()["names"]["study"]:
        raise ConfigError(f"there is no study '{study}'; choose from {', '.join(known()['names']['study'])}")
    for model in _split_list(models) or ():
        precheck.require_model(model)
    for name in _split_list(datasets) or ():
        precheck.require_dataset(name, data_dir)
    precheck.check_device(device)

    from dygmamba.cli.progress import print_message
    from dygmamba.cli.study_view import count_runs, follow_study, show_data_plan, show_plan, show_sheet
    from dygmamba.lab.pool import raise_if_failed
    from dygmamba.lab.reproduction import (
        ExecutionOptions,
        find_missing_dataset,
        prepare_jobs,
        run,
        write_study_page,
    )
    from dygmamba.lab.studies import StudyRequest
    from dygmamba.lab.study_report import build_study_sheet
    from dygmamba.runs.opening import choose_device

    ask = StudyRequest(
        _split_list(datasets), _split_list(models), numbers, _split_list(variants), settings, data_dir
    )
    place = ExecutionOptions(out, device, workers)
    if (made := find_missing_dataset(study, ask)) is not None:
        if dry_run:
            show_data_plan(made, as_json)
            return
        with stderr().status(f"making {made}"):
            made.make(ask.data_dir)
    jobs, missing = prepare_jobs(study, ask, place)
    if dry_run:
        show_plan(jobs, missing, choose_device(device).type, as_json)
        return
    print_message(
        f"{count_runs(len(jobs))}, {len(jobs) - len(missing)} of them done already; results in {out}"
    )
    command = shlex.join(["dygmamba", *sys.argv[1:]])
    with follow_study(len(missing)) as watch:
        book, failed = run(study, ask, place, command, watch)
    paths = write_study_page(book, out)
    if as_json:
        emit_json(
            {"study": study, "page": str(paths[0]), "rows": [row for one in book.records for row in one.rows]}
        )
    else:
        show_sheet(build_study_sheet(book))
        print_message(f"page: {paths[0]}")
    raise_if_failed(failed, jobs)


def _split_list(text: str | None) -> list[str] | None:
    """A comma-separated list; nothing where nothing was said."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


BENCHES = ("sampling", "scan", "step", "epoch", "length", "memory", "candidates", "size", "scaling")

MIN_EVENTS = 2_000  # events of 'size'

# heading -> cell of a row; a column in which no row has anything is left out
BENCH_COLUMNS: dict[str, Callable[["BenchmarkRow"], str]] = {
    "ours": lambda row: _format_time(row.seconds),
    "reference": lambda row: _format_time(row.reference_seconds),
    "ratio": lambda row: _format_number(row.ratio, ",.1f", "x"),
    "extra peak": lambda row: _format_number(row.peak_mb, ",.0f", " MB"),
    "reference's peak": lambda row: _format_number(row.reference_mb, ",.0f", " MB"),
    "anchor": lambda row: _format_time(row.anchor_seconds),
    "anchor ratio": lambda row: _format_number(row.anchor_ratio, ",.1f", "x"),
    "anchor's peak": lambda row: _format_number(row.anchor_mb, ",.0f", " MB"),
    "ours / anchor's": lambda row: _format_number(row.anchor_mb_share, ".2f", ""),
    "growth": lambda row: _format_number(row.growth, ".2f", "x"),
    "of the peak": lambda row: _format_number(row.growth_mb, ".2f", "x"),
    "GFLOP/s": lambda row: _format_number(row.gflops, ",.1f", ""),
    "of a matrix product": lambda row: _format_number(row.bound_share, ".0%", ""),
}


def bench(
    name: Annotated[str, typer.Argument(help=", ".join(BENCHES) + ".")],
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the tables and the picture of 'length', 'size' or 'scaling'; default: bench-NAME."
        ),
    ] = None,
    sizes: Annotated[
        str,
        typer.Option(help="Events of 'size', separated by commas; files of the largest lie in the folder."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time a part of the project against its reference, inside one run.

    Training is timed on UCI where it is found ($DYGMAMBA_DATA), else on a generated stream as large.
    """
    if name not in BENCHES:
        raise NotFoundError(f"unknown benchmark '{name}'; choose from {', '.join(BENCHES)}")
    precheck.check_device(device)

    from dygmamba.runs.opening import choose_device

    kind = choose_device(device).type
    module = import_module(f"dygmamba.lab.benchmarks.{name}")
    draws, place, more = hasattr(module, "write"), out or Path(f"bench-{name}"), {}
    if draws:  # minutes of work need a place
        make_folder(place)
    if name == "size":
        more = {"sizes": _parse_sizes(sizes) or module.SIZES, "folder": place}
    rows = module.run(kind, stderr().print, **more)
    if draws:
        for path in module.write(rows, place):
            print_note(f"wrote {path}")
    if as_json:
        emit_json({"bench": name, "device": kind, "rows": [_row_to_json(row) for row in rows]})
        return
    _print_wide(_make_bench_table(rows))
    for row in rows:
        if row.note:
            print_line(f"{row.case.strip()}: {row.note}")


def _parse_sizes(text: str) -> tuple[int, ...]:
    """Numbers of events, smallest first; 1e6 is one too."""
    try:
        found = sorted(int(float(word)) for word in text.split(",") if word.strip())
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"`sizes` is {text!r}; give numbers like 1e6,1e7") from error
    if found and not (found[0] >= MIN_EVENTS and found[-1] < 2**31):
        raise ConfigError(f"`sizes` is {text!r}; give numbers from {MIN_EVENTS:,} to below {2**31:,}")
    return tuple(found)


def _make_bench_table(rows: list["BenchmarkRow"]) -> "Table":
    cells = {heading: [cell(row) for row in rows] for heading, cell in BENCH_COLUMNS.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    table = plain_table("case", figures=tuple(shown))
    table.columns[0].no_wrap = True
    for row, *own in zip(rows, *shown.values(), strict=True):
        table.add_row(row.case, *own)
    return table


def _print_wide(table: "Table") -> None:
    """As wide as it is: figures are not worth breaking to fit 80 columns."""
    from rich.measure import Measurement

    console = stdout()
    width = Measurement.get(console, console.options.update(max_width=400), table).maximum
    stdout(max(width, console.width)).print(table)


def _row_to_json(row: "BenchmarkRow") -> dict[str, Any]:
    """The row as JSON has it: what was not measured is null."""
    return {key: value if _is_measured(value) else None for key, value in asdict(row).items()}


def _is_measured(value: Any) -> bool:
    return value is not None and not (isinstance(value, float) and math.isnan(value))


def _format_number(value: float | None, form: str, unit: str) -> str:
    return f"{value:{form}}{unit}" if _is_measured(value) else ""


def _format_time(seconds: float | None) -> str:
    long = seconds is not None and seconds >= 1
    return (
        _format_number(seconds, ",.2f", " s")
        if long
        else _format_number(seconds and 1e3 * seconds, ",.2f", " ms")
    )


def demo(
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training.")] = 14,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Train DyG-Mamba on a generated stream on the CPU and show what it learned, within two minutes."""
    from dygmamba.api.demo import run_demo
    from dygmamba.cli.progress import Bars

    with Bars() as bars:
        found = run_demo(out, seed, epochs, bars)
    if as_json:
        paths = {"run": str(found.run), "report": str(found.page)}
        emit_json({"results": found.rows, "forgetting": found.forgetting.to_json(), **paths})
        return
    stdout().print(make_demo_table(found.rows))
    for line in (describe_closeness(found.forgetting), f"report: {found.page}"):
        print_line(line)


def make_demo_table(rows: list[dict[str, Any]]) -> "Table":
    """One line per model and kind of nodes, in per cent."""
    from rich.table import Table

    from dygmamba.api.demo import DEMO_HEURISTICS

    shown = Table("nodes", "model", title="generated: test events against random negatives")
    for name in ("AP", "AUC", "AP pooled", "AUC pooled"):
        shown.add_column(name, justify="right")
    for kind, nodes in (("transductive", "all"), ("inductive", "new")):
        for row in (row for row in rows if row["setting"] == kind):
            cells = (f"{100 * row[key]:.2f}" for key in ("ap", "auc", "ap_pooled", "auc_pooled"))
            style = "" if row["model"] in DEMO_HEURISTICS else "bold"
            shown.add_row(nodes, row["model"], *cells, style=style)
        shown.add_section()
    return shown


def describe_closeness(found: "Forgetting") -> str:
    """How close the learned forgetting is to the law, in a sentence."""
    from dygmamba.data.events.statistics import format_duration

    close = found.closeness
    if close is None:
        return "the law behind the data is not known"
    said = (
        f"learned forgetting against the {found.law} law of the data: correlation {close.correlation:.3f}, "
        f"mean gap {close.mean_gap:.3f}, largest gap {close.max_gap:.3f}"
    )
    if close.half_life is None or close.true_half_life is None:
        return said
    halves = (format_duration(round(value)) for value in (close.half_life, close.true_half_life))
    return said + "; a meeting's pull halves after {}, by the law after {}".format(*halves)
