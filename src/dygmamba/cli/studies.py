"""The command `reproduce`: a study of the paper."""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import emit_json, print_document, print_note
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

if TYPE_CHECKING:
    from dygmamba.api.studies import StudyPlan


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
        print_document(outcome.document)
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
    print_document(plan.document)
