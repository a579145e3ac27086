"""`dygmamba explain`: which past events moved the score of a pair, and what if they had not happened."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dygmamba.cli import early
from dygmamba.errors import ConfigError

if TYPE_CHECKING:  # torch and pyarrow wait until the command is called
    from dygmamba.explain.explanation import Explanation, Reason

PICTURES = (".html", ".htm", ".svg")


def explain(
    run: Annotated[Path, typer.Argument(help="The folder of a trained run.")],
    pair: Annotated[
        str | None, typer.Option(help="Two ids, a,b; one that holds a comma in double quotes.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Of a run of the node task: the id of a node.")] = None,
    at: Annotated[str | None, typer.Option(help="When; default: just after the last event.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many events to show.")] = 10,
    orders: Annotated[
        int, typer.Option(min=1, max=1_000, help="Pairs of drawn orders: more, smaller errors, slower.")
    ] = 4,
    out: Annotated[Path | None, typer.Option(help="Write a page (.html) or a picture (.svg) here.")] = None,
    events: Annotated[
        Path | None, typer.Option(help="Events that came since, with the column names of the dataset.")
    ] = None,
    time_unit: Annotated[
        str, typer.Option(help="auto (numbers as they are), or s, ms, us, ns since 1970.")
    ] = "auto",
    time_format: Annotated[
        str | None, typer.Option(help='Of dates in --at and --events, like "%d.%m.%Y %H:%M".')
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say which past events of either side moved the score of a pair, and by how much."""
    if (pair is None) == (node is None):
        raise ConfigError("say what to explain: --pair a,b, or of a run of the node task --node a")
    asked = node if pair is None else _pair(pair)
    if out is not None and out.suffix.lower() not in PICTURES:
        raise ConfigError(f"--out takes a page, name.html, or a picture, name.svg; got {out}")
    early.require_run(run)
    early.check_device(device)
    early.check_choice("time_unit", time_unit)
    early.require_file(events, "--events")

    from dygmamba.cli.console import emit_json, note
    from dygmamba.door.run import open as open_run
    from dygmamba.report.why import write_why

    opened = open_run(run, device=device, data_dir=data_dir, time_unit=time_unit, time_format=time_format)
    opened = opened if events is None else opened.observe(events)
    found = opened.explain(asked or "", at, orders=orders)
    for said in found.notes:
        note(f"note: {said}")
    if out is not None:
        note(f"written to {write_why(found, out, top)}")
    if as_json:
        emit_json(found.to_json(top))
    else:
        _show(found, top)


def _pair(text: str) -> tuple[str, str]:
    """Two ids as a line of CSV has them."""
    try:
        cells = next(csv.reader([text], skipinitialspace=True, strict=True), [])
    except csv.Error:
        cells = []
    ids = [cell.strip() for cell in cells]
    if len(ids) != 2 or not all(ids):
        raise ConfigError(
            f"--pair takes two ids with a comma between them, such as alice,bob; got '{text}' "
            "(an id that holds a comma goes in double quotes)"
        )
    return ids[0], ids[1]


def _show(found: "Explanation", top: int) -> None:
    from dygmamba.cli.console import plain_table, stdout, tell
    from dygmamba.report.why import base_words, headline, in_words, rest_words

    tell(headline(found))
    tell("")
    if found.numbers is not None:
        table = plain_table("what the trees look at", figures=("value", "contribution"))
        for number in found.numbers.strongest[:top]:
            table.add_row(number.name, f"{number.value:.4g}", f"{number.contribution:+.3f}")
        table.add_row("base", "", f"{found.numbers.base:+.3f}")
        stdout().print(table)
        tell("")
    table = plain_table("when", "event", figures=("contribution", "error", "without it", "left"))
    for reason in found.reasons[:top]:
        table.add_row(*_row(found, reason))
    for name, amount in (rest_words(found, top), base_words(found)):
        if name:
            table.add_row("", name, f"{amount:+.3f}")
    table.add_row("", "logit", f"{found.logit:+.3f}")
    stdout().print(table)
    for line in in_words(found):
        tell(line)


def _row(found: "Explanation", reason: "Reason") -> tuple[str, ...]:
    from dygmamba.report.why import ago, event_words

    return (
        ago(found, reason),
        event_words(found, reason),
        f"{reason.contribution:+.3f}",
        "-" if reason.error is None else f"{reason.error:.3f}",
        "-" if reason.score_without is None else f"{reason.score_without:.3f}",
        "-" if reason.left is None else f"{100 * reason.left:.0f} %",
    )
