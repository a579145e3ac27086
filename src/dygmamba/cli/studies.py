"""Commands of the laboratory: `reproduce` a study of the paper, `bench` a part of the package."""

import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.api.formatting import format_rough_duration
from dygmamba.cli.console import emit_json, plain_table, print_line, print_note, stdout
from dygmamba.cli.options import (
    DataDir,
    Device,
    Json,
    Overrides,
    Protocol,
    parse_list,
    parse_overrides,
    parse_seeds,
)
from dygmamba.cli.progress import print_message, show_progress
from dygmamba.cli.tables import print_document
from dygmamba.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.api.studies import BenchmarkRow, StudyPlan

UNMEASURED = "not measured"
MIN_EVENTS, MAX_EVENTS = 2_000, 2**31  # of the benchmark 'size'

# Heading -> cell of a row; a column without any value is left out.
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


def reproduce(
    study: Annotated[
        str,
        typer.Argument(
            help="Reproduce paper (all its claims), link, node, ablation, length, efficiency, convergence, robustness, "
            "sensitivity, case-study or large."
        ),
    ],
    datasets: Annotated[str | None, typer.Option(help="Use these datasets, e.g. uci,enron.")] = None,
    models: Annotated[str | None, typer.Option(help="Use these models, e.g. edgebank,dyg-mamba.")] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Run every model with these seeds, e.g. 0 or 0-4 or 0,3,7 (default: 0; paper: those of its plan)."
        ),
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(help="Use these ablations, lengths (32,64), or kinds of noise (insert,release)."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Train at most this many epochs per run.")] = None,
    overrides: Overrides = None,
    protocol: Protocol = "auto",
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Run this many jobs at once.")] = None,
    device: Device = "auto",
    out: Annotated[Path, typer.Option(help="Write runs, results and the page below this folder.")] = Path(
        "studies"
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and its cost without running anything.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Reproduce a study of the paper. Finished runs are cached, so an interrupted study can be restarted."""
    settings = parse_overrides(overrides) | ({} if epochs is None else {"epochs": epochs})
    numbers = None if seeds is None else parse_seeds(seeds)
    chosen_datasets, chosen_models = parse_list(datasets), parse_list(models)
    precheck.check_reproduce(
        study, models=chosen_models or (), datasets=chosen_datasets or (), protocol=protocol, device=device,
        data_dir=data_dir,
    )  # fmt: skip

    from dygmamba.api import studies

    request: dict[str, Any] = {"datasets": chosen_datasets, "models": chosen_models, "seeds": numbers}
    request |= {"variants": parse_list(variants), "settings": settings, "out": out, "device": device}
    request |= {"protocol": protocol, "data_dir": data_dir}
    if dry_run:
        _print_plan(studies.plan_study(study, **request), as_json)
        return
    command = shlex.join(["dygmamba", *sys.argv[1:]])
    with show_progress(save_on_interrupt=True) as progress:
        outcome = studies.reproduce_study(
            study, **request, workers=workers, command=command, progress=progress
        )
    if as_json:
        rows = [
            row | ({"changed": record.changed} if record.changed else {})
            for record in outcome.results.records
            for row in record.rows
        ]
        emit_json({"study": study, "page": str(outcome.page), "rows": rows})
    else:
        print_document(outcome.sheet)
        print_message(f"page: {outcome.page}")
    outcome.raise_if_failed()


def _print_plan(plan: "StudyPlan", as_json: bool) -> None:
    """Print every run that is missing, with its cost if it runs alone on this kind of device."""
    if plan.dataset is not None:
        if as_json:
            emit_json({"runs": None, "missing": None, "makes": plan.dataset})
        else:
            print_note(f"generates the dataset {plan.dataset} first; its runs are planned after that")
        return
    total = len({job.key for job in plan.jobs})  # a run may be part of several tables
    if as_json:
        rows = [{"run": job.title, "key": job.key, **asdict(cost)} for job, cost in plan.missing]
        emit_json({"runs": total, "missing": rows})
        return
    title = f"{_count_runs(total)}, {total - len(plan.missing):,} done, {len(plan.missing):,} to do"
    table = plain_table("run", title=title, figures=("time", "MB"))
    for job, cost in plan.missing:
        seconds = UNMEASURED if cost.seconds is None else format_rough_duration(cost.seconds)
        megabytes = UNMEASURED if cost.megabytes is None else f"{cost.megabytes:,.0f}"
        table.add_row(job.title, seconds, megabytes)
    stdout().print(table)
    known = [cost.seconds for _, cost in plan.missing if cost.seconds is not None]
    unknown = len(plan.missing) - len(known)
    rest = f", and {_count_runs(unknown)} of models that were not measured" if unknown else ""
    unit = "GPU" if plan.device == "cuda" else "CPU"
    print_note(f"about {format_rough_duration(sum(known))} on the {unit}, one after another{rest}")


def _count_runs(number: int) -> str:
    return f"{number:,} run" + "s" * (number != 1)


def bench(
    name: Annotated[str, typer.Argument(help=f"Run this benchmark: {', '.join(precheck.BENCHMARKS)}.")],
    device: Annotated[str, typer.Option(help="Run on cpu or cuda.")] = "cpu",
    out: Annotated[
        Path | None,
        typer.Option(help="Write the tables and the picture of 'length' or 'size' to this folder."),
    ] = None,
    sizes: Annotated[
        str, typer.Option(help="Use these numbers of events for 'size' (comma-separated), e.g. 1e6,1e7.")
    ] = "",
    events: Annotated[
        str, typer.Option(help="Use a generated stream of this many events for 'serve', e.g. 1e6.")
    ] = "",
    soak: Annotated[
        str,
        typer.Option(
            help="Keep the server of 'serve' under load for this time and watch its memory, e.g. 10m."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Check a part of the package against its reference, then time both.

    Training is timed on UCI if it is found ($DYGMAMBA_DATA), else on a generated stream of the same size.
    """
    precheck.check_benchmark(name, device)
    numbers, number = _parse_sizes("--sizes", sizes), _parse_sizes("--events", events)
    seconds = precheck.check_soak(name, soak, has_events=bool(events))
    if len(number) > 1:
        raise ConfigError(f"--events takes one number; got {events!r}", code="malformed-sizes")

    from dygmamba.api.studies import run_benchmark

    with show_progress() as progress:
        result = run_benchmark(
            name,
            device=device,
            out=out,
            sizes=numbers,
            events=number[0] if number else None,
            soak=seconds,
            progress=progress,
        )
    for path in result.files:
        print_note(f"wrote {path}")
    if as_json:
        emit_json(
            {"bench": name, "device": result.device, "rows": [_row_to_json(row) for row in result.rows]}
        )
        return
    _print_wide(_make_bench_table(result.rows))
    for row in result.rows:
        if row.note:
            print_line(f"{row.case.strip()}: {row.note}")


def _parse_sizes(option: str, text: str) -> tuple[int, ...]:
    """Return numbers of events, smallest first; 1e6 is one too."""
    try:
        numbers = sorted(int(float(part)) for part in text.split(",") if part.strip())
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"{option} takes numbers like 1e6,1e7; got {text!r}", code="malformed-sizes"
        ) from error
    if numbers and not MIN_EVENTS <= numbers[0] <= numbers[-1] < MAX_EVENTS:
        raise ConfigError(
            f"{option} takes numbers from {MIN_EVENTS:,} to below {MAX_EVENTS:,}; got {text!r}",
            code="sizes-out-of-range",
        )
    return tuple(numbers)


def _make_bench_table(rows: list["BenchmarkRow"]) -> "Table":
    cells = {heading: [cell(row) for row in rows] for heading, cell in BENCH_COLUMNS.items()}
    shown = {heading: column for heading, column in cells.items() if any(column)}
    table = plain_table("case", figures=tuple(shown))
    table.columns[0].no_wrap = True
    for row, *own in zip(rows, *shown.values(), strict=True):
        table.add_row(row.case, *own)
    return table


def _print_wide(table: "Table") -> None:
    """Print a table in its full width: numbers are not worth breaking to fit 80 columns."""
    from rich.measure import Measurement

    console = stdout()
    width = Measurement.get(console, console.options.update(max_width=400), table).maximum
    stdout(max(width, console.width)).print(table)


def _row_to_json(row: "BenchmarkRow") -> dict[str, Any]:
    """Return a row as plain values; what was not measured is null."""
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
