"""`dygmamba data generate`: a stream whose forgetting law is known, saved as a dataset."""

from pathlib import Path
from typing import Annotated

import typer

from dygmamba.cli import early
from dygmamba.cli.console import emit_json, stderr, tell
from dygmamba.cli.words import parse_overrides


def generate(
    out: Annotated[str, typer.Option(help="The name of the new dataset.")],
    nodes: Annotated[int | None, typer.Option(help="How many nodes.")] = None,
    events: Annotated[int | None, typer.Option(help="How many events.")] = None,
    communities: Annotated[int | None, typer.Option(help="How many communities.")] = None,
    law: Annotated[str | None, typer.Option(help="exponential, power, stretched or never.")] = None,
    half_life: Annotated[float | None, typer.Option(help="The span after which half is forgotten.")] = None,
    novelty: Annotated[float | None, typer.Option(help="The weight of a fresh partner.")] = None,
    noise: Annotated[float | None, typer.Option(help="The share of random partners.")] = None,
    drift: Annotated[
        float | None, typer.Option(help="Moves to another seat, per node and time unit.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed, another stream.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any other parameter: key=value.")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where to put it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Generate a stream of returns, drift and noise whose forgetting law is known."""
    flags = {"nodes": nodes, "events": events, "communities": communities, "law": law, "half_life": half_life}
    flags |= {"novelty": novelty, "noise": noise, "drift": drift, "seed": seed}
    chosen = {key: value for key, value in flags.items() if value is not None}
    asked = parse_overrides(settings or []) | chosen
    early.check_generator(asked)
    early.checked_name(out)

    from dataclasses import asdict

    from dygmamba.config import build_config
    from dygmamba.data.generate import GeneratorConfig
    from dygmamba.data.library import data_folder, generated_as
    from dygmamba.data.store import save_dataset

    config = build_config(GeneratorConfig, asked)
    with stderr().status(f"generating {config.events:,} events"):
        folder = data_folder(data_dir)
        dataset = generated_as(out, config, folder)
        path = save_dataset(dataset, folder)
    if as_json:
        emit_json({"name": out, "file": str(path), "digest": dataset.digest, "config": asdict(config)})
        return
    tell(f"{out} is in {path}: {config.events:,} events among {config.nodes:,} nodes")
