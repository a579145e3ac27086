"""Commands of `dygmamba data` on the data folder: describe, fetch, generate, list and remove datasets."""

from dataclasses import asdict
from pathlib import Path

from dygmamba.api.formatting import build_dataset_list
from dygmamba.api.requests.data import GENERATOR_DEFAULTS, GenerateRequest
from dygmamba.cli import options as cli
from dygmamba.cli.console import emit_json, print_document, print_line, print_note, stdout
from dygmamba.cli.progress import show_progress

RUNS_DIR = cli.option(Path("runs"), "Look for runs that use a dataset in this folder.")
FETCH_MESSAGES = {
    "present": "{name} is already in {parent}; nothing to do",
    "archive": "{name} is in {folder}, unpacked from {archive}",
    "download": "{name} is in {folder}",
}


def describe(
    data: str = cli.argument("Describe this dataset: a name or a file."),
    data_dir: Path | None = cli.DATA_DIR,
    json: bool = cli.AS_JSON,
) -> None:
    """Show what a dataset holds: nodes, events, period, repeats, features."""
    from dygmamba.api.requests.base import check_data

    check_data(data, data_dir)

    from dygmamba.api.data_files import describe_dataset

    found = describe_dataset(data, data_dir)
    if json:
        emit_json(found.to_dict())
    else:
        print_document(found.build_document(unicode=stdout().encoding.lower().startswith("utf")))


def fetch(
    name: str = cli.argument("Fetch this dataset of `dygmamba data list`."),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Download a public dataset, unless it is on disk already."""
    from dygmamba.api.requests.data import find_entry

    find_entry(name)  # raises for an unknown one

    from dygmamba.api import data_files

    with show_progress() as progress:
        result, command = data_files.fetch(name, data_dir=data_dir, progress=progress)
    entry = result.entry
    if result.how != "present":
        for text in (result.warning, entry.note, entry.licence and f"licence: {entry.licence}"):
            if text:
                print_note(text)
    if as_json:
        facts = {"name": entry.name, "folder": str(result.folder), "how": result.how, "home": entry.home}
        emit_json(facts | {"licence": entry.licence, "warning": result.warning, "import": command})
        return
    places = {"folder": result.folder, "parent": result.folder.parent, "archive": entry.archive}
    print_line(FETCH_MESSAGES[result.how].format(name=entry.name, **places))
    if command:
        print_line(f"import it with: {command}")


def generate(
    name: str = cli.option(..., "Name the new dataset.", "--out"),
    nodes: int = cli.option(GENERATOR_DEFAULTS.nodes, "Generate this many nodes."),
    events: int = cli.option(GENERATOR_DEFAULTS.events, "Generate this many events."),
    communities: int = cli.option(
        GENERATOR_DEFAULTS.communities, "Divide the nodes into this many communities."
    ),
    law: str = cli.option(
        GENERATOR_DEFAULTS.law, "Forget by this law: exponential, power, stretched or never."
    ),
    half_life: float = cli.option(GENERATOR_DEFAULTS.half_life, "Forget half after this time."),
    novelty: float = cli.option(GENERATOR_DEFAULTS.novelty, "Give new partners this weight."),
    noise: float = cli.option(GENERATOR_DEFAULTS.noise, "Make this share of the partners random."),
    drift: float = cli.option(
        GENERATOR_DEFAULTS.drift, "Move nodes to another community at this rate per time unit."
    ),
    seed: int = cli.option(GENERATOR_DEFAULTS.seed, "Generate with this seed."),
    overrides: list[str] | None = cli.optional(
        "Set any other parameter, key=value.", "--set", default="see docs/reference/generated-stream.md"
    ),
    data_dir: Path | None = cli.DATA_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Generate a dataset of returning pairs whose decay law is known."""
    flags = {"nodes": nodes, "events": events, "communities": communities, "law": law, "half_life": half_life}
    flags |= {"novelty": novelty, "noise": noise, "drift": drift, "seed": seed}
    request = GenerateRequest.from_arguments(
        locals(), settings=flags | cli.parse_overrides(overrides)
    ).check()

    from dygmamba.api.data_files import generate_file

    with show_progress() as progress:
        dataset, path, config = generate_file(request, progress)
    if as_json:
        emit_json({"name": name, "file": str(path), "digest": dataset.digest, "config": asdict(config)})
        return
    print_line(f"{name} is in {path}: {config.events:,} events among {config.nodes:,} nodes")


def list_datasets(
    data_dir: Path | None = cli.DATA_DIR, runs: Path = RUNS_DIR, as_json: bool = cli.AS_JSON
) -> None:
    """List your datasets with the runs that use them, and the public ones that can be fetched."""
    from dygmamba.api import data_files

    imported, public = data_files.list_datasets(data_dir, runs)
    if as_json:
        rows = [asdict(entry) | {"on_disk": folder is not None} for entry, folder in public]
        emit_json({"imported": imported, "datasets": rows})
        return
    print_document(build_dataset_list(imported, public))


def remove(
    name: str = cli.argument("Delete NAME@VERSION of `dygmamba data list`, or NAME in all its versions."),
    force: bool = cli.flag("--force", "Delete the dataset even if runs need it."),
    data_dir: Path | None = cli.DATA_DIR,
    runs: Path = RUNS_DIR,
    as_json: bool = cli.AS_JSON,
) -> None:
    """Delete an imported dataset that no run needs."""
    from dygmamba.api.datasets import remove as remove_dataset

    removed = remove_dataset(name, data_dir=data_dir, runs=runs, force=force)
    if as_json:
        emit_json({"removed": removed})
    else:
        searched = "" if force else f" (no run below {runs} needs it; other folders were not searched)"
        print_line(f"removed {', '.join(removed)}{searched}")
