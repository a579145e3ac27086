"""`dygmamba export`: a run's scorer as a program that torch alone runs, or as an ONNX graph."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, progress, tell
from dygmamba.cli.exporting import require_place
from dygmamba.errors import ConfigError

RUN_WITH = {".pt2": "torch.export.load('{}').module()", ".onnx": "onnxruntime.InferenceSession('{}')"}


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a trained link run.")],
    to: Annotated[
        Path, typer.Option(help="File to write, ending in .pt2 (torch.export) or .onnx.", show_default=False)
    ],
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Write the scorer of a run with torch.export or as ONNX, checked against the run itself."""
    if to.suffix not in RUN_WITH:
        raise ConfigError(f"{to} does not say what to write; let its name end in {' or '.join(RUN_WITH)}")
    require_place(to, "--to")
    early.require_run(run)

    from dygmamba.door.run import open as open_run

    with progress() as bar:
        bar.add_task("following the scorer, and checking what is written", total=None)
        open_run(run, device="cpu", data_dir=data_dir).export(to)
    if as_json:
        emit_json({"path": str(to), "bytes": to.stat().st_size})
    else:
        tell(f"written to {to}, checked against {run}")
        tell(f"run it with: {RUN_WITH[to.suffix].format(to)}")
