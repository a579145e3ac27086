"""The command `reproduce`: a study of the paper."""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_document, print_note
from dygmamba.cli.progress import print_message, show_progress

if TYPE_CHECKING:
    from dygmamba.api.studies import StudyPlan


def reproduce(
    study: str = cli.argument(
        "Reproduce paper (all its claims), link, node, ablation, length, efficiency, convergence, robustness, "
        "sensitivity, case-study or large."
    ),
    datasets: str | None = cli.optional("Use these datasets, e.g. uci,enron.", default="those of the study"),
    models: str | None = cli.optional(
        "Use these models, e.g. edgebank,dyg-mamba.", default="those of the study"
    ),
    seeds: str | None = cli.optional(
        "Run every model with these seeds, e.g. 0 or 0-4 or 0,3,7 (default: 0; paper: those of its plan)."
    ),
    variants: str | None = cli.optional(
        "Use these ablations, lengths (32,64), or kinds of noise (insert,release).",
        default="those of the study",
    ),
    epochs: int | None = cli.EPOCHS,
    overrides: list[str] | None = cli.OVERRIDES,
    protocol: str = cli.PROTOCOL,
    workers: int | None = cli.optional(
        "Run this many jobs at once.", min=1, max=256, default="chosen for the device"
    ),
    device: str = cli.DEVICE,
    out: Path = cli.option(Path("studies"), "Write runs, results and the page below this folder."),
    dry_run: bool = cli.flag("--dry-run", "Show the plan and its cost without running anything."),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Reproduce a study of the paper. Finished runs are cached, so an interrupted study can be restarted."""
    from dygmamba.api.requests.evaluation import ReproduceRequest

    request = ReproduceRequest.from_arguments(
        locals(),
        datasets=cli.parse_list(datasets),
        models=cli.parse_list(models),
        seeds=None if seeds is None else cli.parse_seeds(seeds),
        variants=cli.parse_list(variants),
        settings=cli.parse_settings(overrides, epochs=epochs),
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
