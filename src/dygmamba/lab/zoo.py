"""List of trained runs that others can pull, as a page of the manual.

    python -m dygmamba.lab.zoo FOLDER --page docs/reference/zoo.md

FOLDER holds shared runs, each a folder written by `dygmamba push`. Every run is checked as `dygmamba pull` checks it;
one that does not pass ends the command. Without `--page` the page goes to stdout.
"""

import hashlib
import sys
import tempfile
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.core.errors import DygError, NotFoundError
from dygmamba.core.files.untrusted import escape_markdown, format_markdown_code
from dygmamba.core.files.writing import write_text
from dygmamba.runs.opening import read_split
from dygmamba.runs.sharing import MANIFEST_FILE, PROTOCOL_NOTES, read_manifest, unpack_run

INTRODUCTION = """\
# Trained runs

Pull a run and use it; nothing is trained:

```python
import dygmamba as dm

run = dm.pull("{address}/{example}")
print(run.results.to_pandas())
```

`dygmamba pull {address}/{example}` does the same on the command line. A pulled run predicts exactly as the one that was
pushed. It needs its dataset; if that is missing, the first query names it. Every file is checked before it is used: the
manifest `{manifest}` holds the size and SHA-256 of each, and the table below the SHA-256 of the manifest.
"""
FIGURES = """
AP and MRR are test values in per cent, with random negatives and only strictly earlier events visible; "new" are
pairs with a node that training has not seen. Events are identified by the SHA-256 of the stream.
"""
# column and the setting and metric of the row it comes from
METRICS = {
    "AP": ("transductive", "ap"),
    "AP, new": ("inductive", "ap"),
    "MRR": ("transductive", "mrr"),
}


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """A shared run that passed every check."""

    name: str  # of its folder
    digest: str  # SHA-256 of the manifest
    size: int  # bytes of all files
    data: dict[str, str]  # name, digest and version of the dataset
    about: dict[str, Any]  # section [run] of its config
    made_with: dict[str, Any]  # versions and device of its training
    protocol: str
    results: list[dict[str, Any]]


def read_entry(folder: Path) -> ZooEntry:
    """Read a shared run after checking all of its files."""
    manifest = read_manifest(folder)
    with tempfile.TemporaryDirectory() as scratch:
        run = unpack_run(folder, Path(scratch) / "runs", Path(scratch) / "data")
        config, results, protocol = run.config(), run.results(), read_split(run).protocol
    return ZooEntry(
        name=folder.name,
        digest=hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest(),
        size=sum(entry["bytes"] for entry in manifest.files.values()),
        data=manifest.data,
        about=config["run"],
        made_with=config.get("made_with", {}),
        protocol=protocol,
        results=results,
    )


def read_zoo(folder: Path) -> list[ZooEntry]:
    """Read every shared run in a folder, by name.

    Raises:
        NotFoundError: There is none.
        DygError: A run is damaged.
    """
    folders = sorted(path.parent for path in folder.glob(f"*/{MANIFEST_FILE}"))
    if not folders:
        raise NotFoundError(
            f"{folder} has no shared runs; write some with `dygmamba push RUN {folder}/NAME`",
            code="no-shared-runs",
        )
    return [read_entry(path) for path in folders]


def render_page(entries: list[ZooEntry], address: str) -> str:
    """Render the page of the manual."""
    intro = INTRODUCTION.format(address=address, example=entries[0].name, manifest=MANIFEST_FILE)
    heads = ["run", "model", "stream", "test events", "seed", *METRICS, "kB"]
    rows = [_render_row(entry) for entry in entries]
    used = sorted({entry.protocol for entry in entries})
    names = {name: ", ".join(f"`{e.name}`" for e in entries if e.protocol == name) for name in used}
    protocols = [f"- {names[name]}: {PROTOCOL_NOTES[name]}." for name in used]
    digests = [[f"`{entry.name}`", f"`{entry.digest}`"] for entry in entries]
    trained = [line for entry in entries for line in _render_command(entry, address)]
    return "\n".join(
        [
            intro,
            "<!-- measured: python -m dygmamba.lab.zoo zoo -->",
            "",
            _render_table(heads, rows),
            FIGURES,
            "Protocol ([what it means](protocol.md#split)):",
            "",
            *protocols,
            "",
            "## Digests",
            "",
            _render_table(["run", f"SHA-256 of {MANIFEST_FILE}"], digests),
            "",
            "## How they were trained",
            "",
            "```text",
            *trained,
            "```",
            "",
            "This page is written by `python -m dygmamba.lab.zoo FOLDER --page docs/reference/zoo.md`.",
            "",
        ]
    )


def _render_row(entry: ZooEntry) -> list[str]:
    stream = f"{format_markdown_code(entry.data['name'])}, {format_markdown_code(entry.data['digest'][:12])}"
    cells = [_format_metric(entry.results, *where) for where in METRICS.values()]
    counts = [
        row["n"]
        for row in entry.results
        if row.get("split") == "test" and row.get("setting") == "transductive"
    ]
    return [
        f"`{entry.name}`",
        format_markdown_code(entry.about["model"]),
        stream,
        f"{counts[0]:,}" if counts else "-",
        escape_markdown(entry.about["seed"]),
        *cells,
        f"{entry.size / 1e3:,.0f}",
    ]


def _format_metric(results: list[dict[str, Any]], setting: str, metric: str) -> str:
    for row in results:
        if (row.get("split"), row.get("setting"), row.get("negatives")) == ("test", setting, "random"):
            return "-" if row.get(metric) is None else f"{100 * row[metric]:.2f}"
    return "-"


def _render_command(entry: ZooEntry, address: str) -> list[str]:
    about, made = entry.about, entry.made_with
    versions = ", ".join(f"{name} {made[name]}" for name in ("dygmamba", "torch", "device") if name in made)
    return [
        f"# {entry.name}: {versions}",
        f"dygmamba train {about['data']} --model {about['model']} --seeds {about['seed']}",
        f"dygmamba push RUN {address}/{entry.name}",
    ]


def _render_table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main(arguments: list[str]) -> int:
    """Write the page; a damaged run is one sentence and exit code 2."""
    parser = ArgumentParser(prog="python -m dygmamba.lab.zoo", description="List shared runs as a page.")
    parser.add_argument("folder", type=Path, help="Read the shared runs in this folder.")
    parser.add_argument("--page", type=Path, help="Write the page here instead of printing it.")
    parser.add_argument(
        "--address", default="./zoo", help="Say that runs are pulled from here, e.g. hf://user."
    )
    options = parser.parse_args(arguments)
    try:
        page = render_page(read_zoo(options.folder), options.address)
        if options.page is not None:
            write_text(options.page, page)
    except DygError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.page is None:
        sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
