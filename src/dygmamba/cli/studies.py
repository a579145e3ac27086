"""The command `reproduce`: a study of the paper."""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dygmamba.cli.console import emit_json, print_document, print_note
from dygmamba.cli.options import (
    AS_JSON,
    DATA_DIR,
    DEVICE,
    EPOCHS,
    OVERRIDES,
    PROTOCOL,
    argument,
    flag,
    option,
    optional,
    parse_list,
    parse_seeds,
    parse_settings,
)
from dygmamba.cli.progress import print_message, show_progress

if TYPE_CHECKING:
    from dygmamba.api.studies import StudyPlan


def reproduce(
    study: str = argument(
        "Reproduce paper (all its claims), link, node, ablation, length, efficiency, convergence, robustness, "
        "sensitivity, case-study or large."
    ),
    datasets: str | None = optional("Use these datasets, e.g. uci,enron.", default="those of the study"),
    models: str | None = optional("Use these models, e.g. edgebank,dyg-mamba.", default="those of the study"),
    seeds: str | None = optional(
        "Run every model with these seeds, e.g. 0 or 0-4 or 0,3,7 (default: 0; paper: those of its plan)."
    ),
    variants: str | None = optional(
        "Use these ablations, lengths (32,64), or kinds of noise (insert,release).",
        default="those of the study",
    ),
    epochs: int | None = EPOCHS,
    overrides: list[str] | None = OVERRIDES,
    protocol: str = PROTOCOL,
    workers: int | None = optional(
        "Run this many jobs at once.", min=1, max=256, default="chosen for the device"
    ),
    device: str = DEVICE,
    out: Path = option(Path("studies"), "Write runs, results and the page below this folder."),
    dry_run: bool = flag("--dry-run", "Show the plan and its cost without running anything."),
    data_dir: Path | None = DATA_DIR,
    as_json: bool = AS_JSON,
) -> None:
    """Reproduce a study of the paper. Finished runs are cached, so an interrupted study can be restarted."""
    from dygmamba.api.requests.evaluation import ReproduceRequest

    request = ReproduceRequest.from_arguments(
        locals(),
        datasets=parse_list(datasets),
        models=parse_list(models),
        seeds=None if seeds is None else parse_seeds(seeds),
        variants=parse_list(variants),
        settings=parse_settings(overrides, epochs=epochs),
    ).check()

    from dygmamba.api.studies import plan_study, run_study

    if dry_run:
        _print_plan(plan_study(request), as_json)
        return
    command = shlex.join(["dygmamba", *sys.argv[1:]])
    with show_progress(save_on_interrupt=True) as progress:
        outcome = run_study(request, command, progress)
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
