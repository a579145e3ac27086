"""Commands on finished runs: `export`, `report`, `compare`, `push` and `pull`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dygmamba.api import precheck
from dygmamba.api.trusted_code import import_if_trusted
from dygmamba.cli.console import emit_json, print_line
from dygmamba.cli.options import DataDir, Json, RunsOut, TrustCode
from dygmamba.cli.progress import print_message, show_progress
from dygmamba.cli.tables import print_document

LOADING_CODE = {".pt2": "torch.export.load({!r}).module()", ".onnx": "onnxruntime.InferenceSession({!r})"}


def export_model(
    run: Annotated[
        Path,
        typer.Argument(parser=precheck.find_run, metavar="RUN", help="Export the model of this link run."),
    ],
    to: Annotated[
        Path, typer.Option(help="Write to this file, .pt2 (torch.export) or .onnx.", show_default=False)
    ],
    data_dir: DataDir = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Export the scorer of a run with torch.export or as ONNX, checked against the run itself."""
    precheck.check_export_model(run, to)
    import_if_trusted(trust_code, run)

    from dygmamba.api.run import open as open_run

    with show_progress() as progress, progress.stage("tracing the scorer and checking the file"):
        open_run(run, device="cpu", data_dir=data_dir).export(to)
    if as_json:
        emit_json({"path": str(to), "bytes": to.stat().st_size})
    else:
        print_line(f"written to {to}, checked against {run}")
        print_line(f"run it with: {LOADING_CODE[to.suffix].format(str(to))}")


def report(
    run: Annotated[
        Path,
        typer.Argument(parser=precheck.find_run, metavar="RUN", help="Write the page of this run directory."),
    ],
    out: Annotated[Path | None, typer.Option(help="Write the page to this file.")] = None,
    costs: Annotated[
        str | None,
        typer.Option(help="Choose the threshold of alerts by the costs FALSE_ALARM,MISS, e.g. 1,20."),
    ] = None,
    data_dir: DataDir = None,
    trust_code: TrustCode = False,
) -> None:
    """Write a run's results, curves, learned decay and settings as one page that opens offline."""
    precheck.check_report(run, costs)
    import_if_trusted(trust_code, run)

    from dygmamba.api.reports import write_full_page

    with show_progress() as progress:
        path = write_full_page(run, out, data_dir, progress, costs)
    print_line(f"report: {path}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Compare these finished run directories.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the page and its tables (CSV, Markdown, LaTeX) to this folder.")
    ] = None,
) -> None:
    """Compare finished runs: mean and spread over seeds, rank, paired test, published values, curves."""
    for run in runs:
        precheck.require_run(run)

    from dygmamba.api.reports import COMPARE_PAGE
    from dygmamba.api.reports import compare as compare_runs

    print_document(compare_runs(runs, out=out))
    if out is not None:
        print_message(f"page: {out / COMPARE_PAGE}")


def push(
    run: Annotated[
        Path, typer.Argument(parser=precheck.find_run, metavar="RUN", help="Share this run directory.")
    ],
    target: Annotated[
        str,
        typer.Argument(
            help="Write to this folder, or to user/name (hf://user/name) on the Hugging Face Hub."
        ),
    ],
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Share the events it was trained on, with your ids, too.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository visible to everyone.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Share a run in a folder or on the Hub: weights, settings, results, a card; no pickle."""
    precheck.require_run(run)
    precheck.check_target(target)

    from dygmamba.api.sharing import push as push_run

    where = push_run(run, target, data=with_data, public=public, data_dir=data_dir)
    if as_json:
        emit_json({"pushed": where})
    else:
        print_line(f"pushed to {where}")
        print_line(f"others get it with: dygmamba pull {shlex.quote(where)}")


def pull(
    source: Annotated[
        str,
        typer.Argument(
            help="Fetch from this folder, or from user/name (hf://user/name) on the Hugging Face Hub."
        ),
    ],
    out: RunsOut = Path("runs"),
    revision: Annotated[
        str | None, typer.Option(help="Fetch this branch, tag or commit of a repository.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Fetch a shared run, checked file by file."""
    precheck.check_target(source)

    from dygmamba.api.sharing import pull as pull_run

    run = pull_run(source, out=out, revision=revision, data_dir=data_dir)
    about = run.config["run"]
    if as_json:
        emit_json(
            {"run": str(run.path), "model": about["model"], "data": about["data"], "digest": about["digest"]}
        )
    else:
        print_line(f"{about['model']} on {about['data']} (digest {about['digest'][:16]}): {run.path}")
        print_line(f"predict with: dygmamba predict {shlex.quote(str(run.path))} --pairs FILE")
