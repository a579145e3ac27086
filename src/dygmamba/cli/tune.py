"""`dygmamba tune`: settings that suit a dataset, found on its validation period, kept as a preset for `train`."""

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, plain_table, stdout, tell
from dygmamba.cli.words import parse_overrides, shown
from dygmamba.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from dygmamba.studies.tuned import Tuning

YEAR = 24 * 365  # hours
SHOWN = 8  # of the best trials


def tune(
    data: Annotated[str, typer.Argument(help="Dataset name or file; `generated` is built in.")],
    model: Annotated[
        str | None, typer.Option(help="Registered model; dyg-mamba on a GPU, trees without one, unless told.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of the whole study; 30 unless --hours is given.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Stop after so many hours, e.g. 0.5; what was found is kept.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The preset file, NAME.toml; else preset.toml in the study's folder.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a study; an error where there is none.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the search and of every training in it.")] = 0,
    preset: Annotated[str | None, typer.Option(help="Begin from small, paper or a file NAME.toml.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most so many epochs a trial.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Setting, key=value, that is fixed and not searched.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Shares 0.7,0.15,0.15, or when validation and test begin.", show_default=False),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    studies: Annotated[Path, typer.Option(help="Where studies go.")] = Path("studies"),
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Search for better settings in short trainings, judged on validation alone; the same command goes on.

    Ctrl-C ends it with what was found.
    """
    settings = parse_overrides(overrides or []) | ({} if epochs is None else {"epochs": epochs})
    if hours is not None and not 0 < hours <= YEAR:
        raise ConfigError(f"--hours must be above 0 and at most a year's, got {hours:g}")
    early.check_device(device)
    early.check_split(split)
    early.check_trained(model, settings, "link", preset, device)
    early.require_dataset(data, data_dir)

    from dygmamba.cli.watching import Trials, say
    from dygmamba.data.library import open_dataset
    from dygmamba.door.choosing import pick_model
    from dygmamba.door.tuning import watched_tune
    from dygmamba.runs.opening import choose_device
    from dygmamba.runs.splitting import split_by
    from dygmamba.studies.tuning import Search

    where, dataset = choose_device(device), open_dataset(data, data_dir)
    if model is None:
        pick = pick_model(where, "link", settings, preset)
        model, preset = pick.model, pick.size
        say(pick.sentence)
    what = Search(
        dataset, model, where, seed, settings, preset, split_by(dataset, split), partial(_training, data)
    )
    with Trials() as bars:
        found = watched_tune(what, studies, bars.trial, trials, hours, out, resume)
    if as_json:
        emit_json(found.to_dict())
    else:
        _print(found, data)
    if found.ended == "stopped":
        raise typer.Exit(130)


def _training(data: str, preset: Path) -> str:
    return shlex.join(["dygmamba", "train", data, "--preset", str(preset)])


def _print(found: "Tuning", data: str) -> None:
    stdout().print(_table(found))
    mattered = sorted(found.importances.items(), key=lambda one: -one[1])
    if mattered:
        tell("what mattered: " + ", ".join(f"{name} {share:.0%}" for name, share in mattered[:6]))
    tell(found.sentence)
    if found.ended != "done":
        why = "the time is up" if found.ended == "time" else "stopped"
        tell(f"{why}; the same command goes on in {found.folder}")
    tell(f"page: {found.page}")
    tell(f"preset: {found.preset}")
    tell(f"next: {_training(data, found.preset)}")


def _table(found: "Tuning") -> "Table":
    """The best trials, the model as it is among them, and what each changed."""
    title = (
        f"{shown(found.model)} on {shown(found.data)}: {len(found.trials)} trials, {found.cut_off} cut off"
    )
    table = plain_table(title=title, figures=("trial", "val AP", "epochs", "time"))
    table.add_column("settings")
    done = sorted((row for row in found.trials if row["state"] == "done"), key=lambda row: -row["ap"])
    first = [row for row in done[SHOWN:] if row["trial"] == 1]
    for row in done[:SHOWN] + first:
        table.add_row(
            str(row["trial"]), f"{100 * row['ap']:.2f}", str(row["epochs"]), f"{row['seconds']:.0f} s",
            "as it is" if row["trial"] == 1 else _settings(row["settings"]),
        )  # fmt: skip
    return table


def _settings(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in values.items())  # fmt: skip
