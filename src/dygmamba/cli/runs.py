"""Commands on finished runs: `runs`, `export`, `report`, `compare`, `push` and `pull`."""

import shlex
from pathlib import Path

from dygmamba.api.formatting import build_run_list
from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_document, print_line
from dygmamba.cli.progress import print_message, show_progress

LOADING_CODE = {
    ".pt2": "torch.export.load({!r}).module()",
    ".onnx": "onnxruntime.InferenceSession({!r})",
    ".zip": "python {} events.csv pairs.csv > scores.csv",
}


def show_runs(
    data: str = cli.argument(
        "List the runs of this dataset, or in this folder; latest stands for all.", "latest"
    ),
    best: bool = cli.flag("--best", "List only the best run of each dataset, by validation."),
    limit: int = cli.option(20, "List at most this many runs.", min=1),
    runs: Path = cli.option(Path("runs"), "Look for runs below this folder."),
    as_json: bool = cli.AS_JSON,
) -> None:
    """List runs, the newest first: data, model, results, and the best of each dataset by validation."""
    from dygmamba.api.run_names import list_runs

    found = list_runs(data, runs)
    chosen = [one for one in found if one.best or not best]
    if as_json:
        emit_json({"runs": [one.to_dict() for one in chosen]})
        return
    if not chosen:
        print_line(f"no runs of {data} below {runs}" if data != "latest" else f"no runs below {runs}")
        return
    print_document(build_run_list(chosen[:limit]))
    if len(chosen) > limit:
        print_line(f"{len(chosen) - limit:,} older runs; list them with --limit {len(chosen)}")


def export_model(
    run: Path = cli.run_argument("Export the model of this link run."),
    to: Path = cli.option(
        ...,
        "Write to this file: .pt2 (torch.export), .onnx, or .zip (trees for numpy and Numba).",
        show_default=False,
    ),
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Export the scorer of a run with torch.export, as ONNX or for numpy, checked against the run itself."""
    from dygmamba.api.requests.prediction import ExportRequest

    ExportRequest.from_arguments(locals()).check()
    import_if_trusted(trust, run)

    from dygmamba.api.run import open as open_run

    with show_progress() as progress, progress.stage("tracing the scorer and checking the file"):
        open_run(run, device="cpu", data_dir=data_dir).export(to)
    if as_json:
        emit_json({"path": str(to), "bytes": to.stat().st_size})
    else:
        print_line(f"written to {to}, checked against {run}")
        print_line(f"run it with: {LOADING_CODE[to.suffix].format(str(to))}")


def report(
    run: Path = cli.run_argument("Write the page of this run directory."),
    out: Path | None = cli.optional("Write the page to this file.", default="RUN/report.html"),
    costs: str | None = cli.optional(
        "Choose the threshold of alerts by the costs FALSE_ALARM,MISS, e.g. 1,20."
    ),
    real_share: float | None = cli.optional(
        "Say which share of the scored pairs is real, e.g. 0.01; with --costs.", default="a half"
    ),
    data_dir: Path | None = cli.DATA_DIR,
    trust: bool = cli.TRUST,
) -> None:
    """Write a run's results, curves, learned decay and settings as one page that opens offline."""
    from dygmamba.api.requests.prediction import ReportRequest

    request = ReportRequest.from_arguments(locals()).check()
    import_if_trusted(trust, run)

    from dygmamba.api.reports import run_report

    with show_progress() as progress:
        path = run_report(request, progress)
    print_line(f"report: {path}")


def compare(
    runs: list[str] = cli.argument(
        "Compare these finished run directories; a dataset stands for all tested runs on its split."
    ),
    out: Path | None = cli.optional("Write the page and its tables (CSV, Markdown, LaTeX) to this folder."),
) -> None:
    """Compare finished runs: mean and spread over seeds, rank, paired test, published values, curves."""
    from dygmamba.api.requests.base import require_run
    from dygmamba.api.run_names import find_run

    for name in runs:
        require_run(find_run(name))

    from dygmamba.api.reports import COMPARE_PAGE
    from dygmamba.api.reports import compare as compare_runs

    print_document(compare_runs(runs, out=out))
    if out is not None:
        print_message(f"page: {out / COMPARE_PAGE}")


def push(
    run: Path = cli.run_argument("Share this run directory."),
    target: str = cli.argument(
        "Write to this folder, or to user/name (hf://user/name) on the Hugging Face Hub."
    ),
    with_data: bool = cli.flag("--with-data", "Share the events it was trained on, with your ids, too."),
    public: bool = cli.flag("--public", "Make a new repository visible to everyone."),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Share a run in a folder or on the Hub: weights, settings, results, a card; no pickle."""
    from dygmamba.api.requests.base import require_run
    from dygmamba.api.sharing import check_target
    from dygmamba.api.sharing import push as push_run

    require_run(run)
    check_target(target)

    where = push_run(run, target, data=with_data, public=public, data_dir=data_dir)
    if as_json:
        emit_json({"pushed": where})
    else:
        print_line(f"pushed to {where}")
        print_line(f"others get it with: dygmamba pull {shlex.quote(where)}")


def pull(
    source: str = cli.argument(
        "Fetch from this folder, or from user/name (hf://user/name) on the Hugging Face Hub."
    ),
    out: Path = cli.RUNS_OUT,
    revision: str | None = cli.optional("Fetch this branch, tag or commit of a repository."),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Fetch a shared run, checked file by file."""
    from dygmamba.api.sharing import check_target
    from dygmamba.api.sharing import pull as pull_run

    check_target(source)

    run = pull_run(source, out=out, revision=revision, data_dir=data_dir)
    about = run.config["run"]
    if as_json:
        emit_json(
            {"run": str(run.path), "model": about["model"], "data": about["data"], "digest": about["digest"]}
        )
    else:
        print_line(f"{about['model']} on {about['data']} (digest {about['digest'][:16]}): {run.path}")
        print_line(f"predict with: dygmamba predict {shlex.quote(str(run.path))} --pairs FILE")
