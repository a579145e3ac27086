"""`dygmamba reproduce`: a study of the paper by one command, and what it will take before it runs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, stderr
from dygmamba.cli.words import parse_overrides, parse_seeds
from dygmamba.errors import ConfigError
from dygmamba.known import known


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
    for model in _names(models) or ():
        early.require_model(model)
    for name in _names(datasets) or ():
        early.require_dataset(name, data_dir)
    early.check_device(device)

    from dygmamba.cli.study_view import following, runs, show_making, show_plan, show_sheet
    from dygmamba.cli.watching import say
    from dygmamba.runs.opening import choose_device
    from dygmamba.studies.jobs import Ask
    from dygmamba.studies.pool import require_done
    from dygmamba.studies.reproduce import Place, lacking, prepare, publish, run
    from dygmamba.studies.sheets import sheet

    ask = Ask(_names(datasets), _names(models), numbers, _names(variants), settings, data_dir)
    place = Place(out, device, workers)
    if (made := lacking(study, ask)) is not None:
        if dry_run:
            show_making(made, as_json)
            return
        with stderr().status(f"making {made}"):
            made.make(ask.data_dir)
    jobs, missing = prepare(study, ask, place)
    if dry_run:
        show_plan(jobs, missing, choose_device(device).type, as_json)
        return
    say(f"{runs(len(jobs))}, {len(jobs) - len(missing)} of them done already; results in {out}")
    command = shlex.join(["dygmamba", *sys.argv[1:]])
    with following(len(missing)) as watch:
        book, failed = run(study, ask, place, command, watch)
    paths = publish(book, out)
    if as_json:
        emit_json(
            {"study": study, "page": str(paths[0]), "rows": [row for one in book.records for row in one.rows]}
        )
    else:
        show_sheet(sheet(book))
        say(f"page: {paths[0]}")
    require_done(failed, jobs)


def _names(text: str | None) -> list[str] | None:
    """A comma-separated list; nothing where nothing was said."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]
