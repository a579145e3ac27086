"""Commands that judge: `evaluate` a run or a heuristic, `audit` what a score on a dataset can say."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dygmamba.api.formatting import build_results_document
from dygmamba.api.trusted_code import import_if_trusted, import_model
from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_document, print_line, print_note
from dygmamba.cli.progress import show_progress
from dygmamba.cli.reading_options import with_reading_options
from dygmamba.core.choices import NEGATIVES
from dygmamba.core.errors import ConfigError
from dygmamba.core.process_settings import is_first_process

if TYPE_CHECKING:
    from dygmamba.api.evaluation import MonitoringResult
    from dygmamba.api.requests.evaluation import MonitorRequest


@with_reading_options
def evaluate(
    data: str = cli.argument("Evaluate this run directory, or on this dataset a model without training."),
    model: str = cli.option(
        "edgebank", "Evaluate a heuristic (edgebank, recency, pair-recency; `dygmamba models` lists all)."
    ),
    negatives: str | None = cli.optional(
        f"Evaluate against these negatives: {', '.join(NEGATIVES)} (comma-separated).",
        default="random; all three for a run",
    ),
    split: str = cli.option("test", "Evaluate on these splits: val, test or both (val,test)."),
    setting: str = cli.option(
        "transductive,inductive",
        "Evaluate all nodes (transductive), new nodes (inductive), or both (comma-separated).",
    ),
    metrics: str | None = cli.optional("Compute ap, auc, mrr, hits@K (comma-separated).", default="ap,auc"),
    candidates: str | None = cli.optional(
        "Rank among this number of destinations, all, or board (the leaderboard's).", default="100"
    ),
    filtered: bool = cli.flag(
        "--filtered", "Leave out candidates that are true at the same time (as TGB does)."
    ),
    draws: int = cli.option(
        1, "Draw the negatives this many times, with seeds from --seed on.", min=1, max=1000
    ),
    seed: int | None = cli.optional(
        "Draw the negatives with this seed instead of the published one.", default="the published seed"
    ),
    overrides: list[str] | None = cli.HEURISTIC_SETTINGS,
    protocol: str = cli.PROTOCOL,
    visible: str | None = cli.optional(
        "Let a memory see only strictly earlier events (strict) or whole batches (batch).",
        default="strict; for a run its own",
    ),
    store_negatives: Path | None = cli.optional("Store drawn negatives in this folder and reuse them."),
    activity: bool = cli.ACTIVITY,
    events: Path | None = cli.optional(
        "Evaluate a run on the events of this file, which came after its dataset, by period."
    ),
    period: str = cli.option(
        "auto", "Group --events by hour, day, week, month, all, or a period that fits (auto)."
    ),
    fail_below: list[str] | None = cli.optional(
        "Exit with code 1 below METRIC=PERCENT on --events: ap, auc, lead (points above the best baseline)."
    ),
    fail_above: list[str] | None = cli.optional(
        "Exit with code 1 above METRIC=VALUE on --events: ece, unknown_share (per cent), log_loss."
    ),
    *,
    reading: dict[str, Any],
    device: str = cli.DEVICE,
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Evaluate a run or a heuristic: against negatives (AP, AUC) or among many candidates (MRR, hits@K)."""
    from dygmamba.api.requests.evaluation import EvaluateRequest, MonitorRequest

    if events is not None:
        _evaluate_events(MonitorRequest.from_arguments(locals(), run=cli.parse_run(data)), trust, as_json)
        return
    for name, value in (("fail_below", fail_below), ("fail_above", fail_above)):
        if value:
            raise ConfigError(f"`{name}` needs new events; give `events` too", code="option-without-events")
    request = EvaluateRequest.from_arguments(
        locals(),
        data=_resolve_latest(data),
        model=import_model(model) or model,
        settings=cli.parse_overrides(overrides),
        seeds=None if seed is None and draws == 1 else range(seed or 0, (seed or 0) + draws),
    ).check()
    import_if_trusted(trust, request.data)

    from dygmamba.api.evaluation import run_evaluation

    with show_progress() as progress:
        rows = run_evaluation(request, progress)
    if not is_first_process():
        return
    if as_json:
        emit_json({"results": rows})
    else:
        print_document(build_results_document(rows))


def _resolve_latest(target: str) -> str:
    """Return the newest run for `latest`; the name of a dataset stands for the dataset here."""
    return str(cli.parse_run(target)) if target == "latest" else target


def _evaluate_events(request: "MonitorRequest", trust: bool, as_json: bool) -> None:
    request.check()
    import_if_trusted(trust, request.run)

    from dygmamba.api.evaluation import run_monitoring

    with show_progress() as progress:
        found = run_monitoring(request, progress)
    advice = _advise_training(found, request) if found.crossed else None
    if as_json:
        result = {"results": found.monitoring.rows, "columns": found.monitoring.columns}
        result |= {"left_out": found.monitoring.earlier, "crossed": found.crossed, "advice": advice}
        emit_json(result)
    else:
        print_document(found.document)
    for text in found.crossed:
        print_note(f"failed: {text}")
    if advice is not None:
        print_note(f"advice: {advice}")
        raise typer.Exit(1)


def _advise_training(found: "MonitoringResult", request: "MonitorRequest") -> str:
    """Name the commands that mend a run that crossed a limit; a blend cannot be continued."""
    append = ["dygmamba", "data", "import", str(request.events), "--append", found.data]
    start = ["--from", str(request.run)] if found.can_start_from else []
    train = ["dygmamba", "train", found.data, *start]
    return f"append the new events and train on: {shlex.join(append)} && {shlex.join(train)}"


def audit(
    data: str = cli.argument("Audit this dataset, file, or run directory."),
    run: Path | None = cli.run_argument(
        "Also audit this run directory; the run was trained on the dataset.", None
    ),
    model: str | None = cli.optional("Audit this model instead of a run."),
    overrides: list[str] | None = cli.HEURISTIC_SETTINGS,
    protocol: str = cli.PROTOCOL,
    out: Path | None = cli.optional("Also write the audit as an HTML page to this file."),
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Show what a score on this dataset can say; exit code 1 if the model's score depends on what it must not."""
    from dygmamba.api.requests.evaluation import AuditRequest

    request = AuditRequest.from_arguments(
        locals(),
        data=_resolve_latest(data),
        model=import_model(model),
        settings=cli.parse_overrides(overrides),
    ).check()
    import_if_trusted(trust, request.data, run)

    from dygmamba.api import studies

    with show_progress() as progress:
        found = studies.run_audit(request, progress)
    if out is not None:
        found.page(out)
    if as_json:
        emit_json(found.to_dict())
    else:
        print_document(found.document)
        if out is not None:
            print_line(f"page: {out}")
    if not found.sound:
        raise typer.Exit(1)
