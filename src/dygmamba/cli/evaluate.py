"""`dygmamba evaluate`: the published protocol on a trained run, or on a model that needs no training."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, stdout
from dygmamba.cli.tables import tables_of
from dygmamba.cli.words import parse_overrides
from dygmamba.errors import ConfigError


def evaluate(
    data: Annotated[str, typer.Argument(help="A run folder, or a dataset for a model without training.")],
    model: Annotated[
        str,
        typer.Option(
            help="Without training: edgebank, popularity, recency, source-recency, persistent, moving-average."
        ),
    ] = "edgebank",
    negatives: Annotated[
        str | None, typer.Option(help="random, historical, inductive; comma-separated.")
    ] = None,
    split: Annotated[str, typer.Option(help="val, test; comma-separated.")] = "test",
    setting: Annotated[
        str, typer.Option(help="transductive (all nodes), inductive (new nodes); comma-separated.")
    ] = "transductive,inductive",
    metrics: Annotated[
        str | None, typer.Option(help="ap, auc, mrr, hits@K; comma-separated. Or ndcg@10 of node properties.")
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            help="Destinations that ranks are among: a number (100 unless said), all, or board (TGB's)."
        ),
    ] = None,
    filtered: Annotated[
        bool,
        typer.Option("--filtered", help="No candidate is a true destination of that source and time (TGB)."),
    ] = False,
    draws: Annotated[
        int, typer.Option(min=1, max=1000, help="Independent draws of the negatives, from --seed on.")
    ] = 1,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the negatives instead of the published one.")
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Model setting, key=value.")] = None,
    visible: Annotated[
        str | None,
        typer.Option(
            help="What a memory or a table may know: strict (strictly earlier), batch (as published); a run's own."
        ),
    ] = None,
    store_negatives: Annotated[
        Path | None, typer.Option(help="Keep drawn negatives here and reuse them.")
    ] = None,
    activity: Annotated[
        bool,
        typer.Option(
            "--activity", help="Add the source's rate to the score where negatives replace the source."
        ),
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda, for a trained run.")] = "auto",
    data_dir: Annotated[Path | None, typer.Option(help="Where datasets are.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Rank what happened against negatives (AP, AUC) or among many candidates (MRR, hits@K)."""
    of_links = {
        "negatives": negatives,
        "candidates": candidates,
        "filtered": filtered,
        "seed": seed,
        "visible": visible,
    }
    if early.asks_properties(metrics, **of_links):
        _properties(data, model, split, data_dir, as_json)
        return
    settings = parse_overrides(overrides or [])
    for option, given in (("negatives", negatives), ("split", split), ("setting", setting)):
        early.check_names(option, given)
    early.check_visible(visible)
    early.asked_metrics(metrics, candidates, filtered)
    early.check_device(device)
    if early.is_run(data):
        if overrides or store_negatives or draws > 1 or seed is not None:
            raise ConfigError("--set, --seed, --draws and --store-negatives are for untrained models")
        early.require_run(data)
    else:
        early.check_untrained(model, data, settings)
        early.require_dataset(data, data_dir)

    from dygmamba.cli.watching import ExamBars
    from dygmamba.data.library import open_dataset
    from dygmamba.door.evaluation import choices, rankings, run_rows, untrained_rows
    from dygmamba.door.together import joined
    from dygmamba.runs.opening import choose_device

    asked = rankings(metrics, candidates, filtered)
    if early.is_run(data):
        with joined(choose_device(device)) as ranks:
            rows = run_rows(Path(data), negatives, split, setting, visible, device, data_dir, asked, activity)
        if not ranks.leads:
            return
    else:
        chosen = choices(negatives or "random", split, setting)
        rows = untrained_rows(
            open_dataset(data, data_dir),
            model,
            settings,
            chosen,
            seeds=[seed] if draws == 1 else list(range(seed or 0, (seed or 0) + draws)),
            visible=visible,
            folder=store_negatives,
            meter=ExamBars(),
            asked=asked,
            activity=activity,
        )
    if as_json:
        emit_json({"results": rows})
    else:
        for table in tables_of(rows):
            stdout().print(table)


def _properties(data: str, model: str, split: str, data_dir: Path | None, as_json: bool) -> None:
    """What a forecast of node properties reaches."""
    early.check_names("split", split)
    early.check_forecast(model)
    early.require_dataset(data, data_dir)

    from dygmamba.data.library import open_dataset
    from dygmamba.door.properties import property_rows

    rows = property_rows(open_dataset(data, data_dir), model, split)
    if as_json:
        emit_json({"results": rows})
    else:
        for table in tables_of(rows):
            stdout().print(table)
