"""`dygmamba export`: a run's scorer as a program that torch alone runs, or as an ONNX graph.

`dygmamba report`: the page of a run, built again from its folder.

`dygmamba compare`: run folders beside one another.

`dygmamba push` and `dygmamba pull`: runs to others and from others.
"""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.api import precheck
from dygmamba.cli.console import emit_json, open_progress, print_line
from dygmamba.cli.data_files import require_writable
from dygmamba.core.errors import ConfigError

LOADING_CODE = {".pt2": "torch.export.load('{}').module()", ".onnx": "onnxruntime.InferenceSession('{}')"}


def export_model(
    run: Annotated[Path, typer.Argument(help="The folder of a trained link run.")],
    to: Annotated[
        Path, typer.Option(help="File to write, ending in .pt2 (torch.export) or .onnx.", show_default=False)
    ],
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write the scorer of a run with torch.export or as ONNX, checked against the run itself."""
    if to.suffix not in LOADING_CODE:
        raise ConfigError(f"{to} does not say what to write; let its name end in {' or '.join(LOADING_CODE)}")
    require_writable(to, "--to")
    precheck.require_run(run)

    from dygmamba.api.run import open as open_run

    with open_progress() as bar:
        bar.add_task("following the scorer, and checking what is written", total=None)
        open_run(run, device="cpu", data_dir=data_dir).export(to)
    if as_json:
        emit_json({"path": str(to), "bytes": to.stat().st_size})
    else:
        print_line(f"written to {to}, checked against {run}")
        print_line(f"run it with: {LOADING_CODE[to.suffix].format(to)}")


def report(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[
        Path | None, typer.Option(help="Write the page here instead of RUN/report.html.", show_default=False)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
) -> None:
    """Write a run's results, curves, learned forgetting and settings as one page that opens offline."""
    precheck.require_run(run)

    from dygmamba.api.reports import write_full_page
    from dygmamba.cli.progress import print_message

    path = write_full_page(run, out, data_dir, print_message)
    print_line(f"report: {path}")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders.")],
    out: Annotated[
        Path | None, typer.Option(help="A folder for the page and its tables as CSV, Markdown and LaTeX.")
    ] = None,
) -> None:
    """Put finished runs beside one another: mean and spread over seeds, rank, paired test, published values, curves."""
    for run in runs:
        precheck.require_run(run)

    from dygmamba.cli.progress import print_message
    from dygmamba.cli.study_view import show_sheet
    from dygmamba.report.comparison import compare_runs
    from dygmamba.report.html import write_document

    sheet = compare_runs(runs)
    show_sheet(sheet)
    if out is not None:
        print_message(f"page: {write_document(sheet, out, 'compare')[0]}")


DataDir = Annotated[Path | None, typer.Option(help="Where datasets are.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def push(
    run: Annotated[Path, typer.Argument(help="The folder of a trained run.")],
    target: Annotated[
        str, typer.Argument(help="A folder, or user/name (hf://user/name) on the Hugging Face Hub.")
    ],
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Also the events it was trained on, with your ids.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="If a repository is made: visible to everyone.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a run into a folder for others, or to the Hub: weights, settings, results, a card; no pickle."""
    from dygmamba.api.sharing import parse_target, require_hub_client

    precheck.require_run(run)
    if isinstance(parse_target(target), str):
        require_hub_client()

    from dygmamba.api.sharing import push as send

    where = send(run, target, data=with_data, public=public, data_dir=data_dir)
    if as_json:
        emit_json({"pushed": where})
    else:
        print_line(f"pushed to {where}")
        print_line(f"others have it with: dygmamba pull {where}")


def pull(
    source: Annotated[
        str, typer.Argument(help="A folder, or user/name (hf://user/name) on the Hugging Face Hub.")
    ],
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a repository.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Bring a pushed run here, checked file by file."""
    from dygmamba.api.sharing import parse_target, require_hub_client

    if isinstance(parse_target(source), str):
        require_hub_client()

    from dygmamba.api.sharing import pull as fetch

    run = fetch(source, out=out, revision=revision, data_dir=data_dir)
    about = run.config["run"]
    if as_json:
        emit_json(
            {"run": str(run.path), "model": about["model"], "data": about["data"], "digest": about["digest"]}
        )
    else:
        print_line(f"{about['model']} on {about['data']} (digest {about['digest'][:16]}): {run.path}")
        print_line(f"ask it with: dygmamba predict {run.path} --pairs FILE")
