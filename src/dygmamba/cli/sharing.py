"""`dygmamba push` and `dygmamba pull`: runs to others and from others."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, tell

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
    from dygmamba.door.hub import place_of, require_client

    early.require_run(run)
    if isinstance(place_of(target), str):
        require_client()

    from dygmamba.door.sharing import push as send

    where = send(run, target, data=with_data, public=public, data_dir=data_dir)
    if as_json:
        emit_json({"pushed": where})
    else:
        tell(f"pushed to {where}")
        tell(f"others have it with: dygmamba pull {where}")


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
    from dygmamba.door.hub import place_of, require_client

    if isinstance(place_of(source), str):
        require_client()

    from dygmamba.door.sharing import pull as fetch

    run = fetch(source, out=out, revision=revision, data_dir=data_dir)
    about = run.config["run"]
    if as_json:
        emit_json(
            {"run": str(run.path), "model": about["model"], "data": about["data"], "digest": about["digest"]}
        )
    else:
        tell(f"{about['model']} on {about['data']} (digest {about['digest'][:16]}): {run.path}")
        tell(f"ask it with: dygmamba predict {run.path} --pairs FILE")
