"""What the site shows beside docs/: notebooks, contributing, changelog, decisions in order, the API reference."""

import inspect
import json
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
FIGURE = re.compile(r"(?<=[\d*]) ([±/]) (?=[\d*])")  # 96.90 ± 0.19, 97.50 / 96.08
NOTEBOOKS = ("analyst", "researcher")


def on_config(config: MkDocsConfig) -> None:
    """The entry `decisions` becomes one entry per decision."""
    config.nav = [with_decisions(entry) for entry in config.nav or []]


def with_decisions(entry: dict) -> dict:
    """The same entry of the menu, with the folder's files in place of its name."""
    ((title, place),) = entry.items()
    if isinstance(place, list):
        return {title: [with_decisions(inner) for inner in place]}
    return {title: decisions() if place == "decisions" else place}


def decisions() -> list[dict[str, str]]:
    """Title and file of each decision, in order."""
    found = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    return [{path.read_text().splitlines()[0].lstrip("# "): f"decisions/{path.name}"} for path in found]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Pages that docs/ does not hold."""
    pages = {"contributing.md": outside("CONTRIBUTING.md"), "changelog.md": outside("CHANGELOG.md")}
    pages |= {f"{name}.md": notebook(ROOT / "examples" / f"{name}.ipynb") for name in NOTEBOOKS}
    pages["reference.md"] = reference()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name in NOTEBOOKS:
        path = ROOT / "examples" / f"{name}.ipynb"
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def outside(name: str) -> str:
    """A file of the root as a page: its links into docs/ start there."""
    return (ROOT / name).read_text().replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/ on the way to a file lead to that file's page here; a figure stays on one line."""
    markdown = re.sub(
        r"^\|.*", lambda row: FIGURE.sub("\u00a0\\1\u00a0", row[0]), markdown, flags=re.MULTILINE
    )
    for name, here in OUTSIDE.items():
        markdown = re.sub(rf"\]\((\.\./)*{re.escape(name)}", f"]({here}", markdown)
    return re.sub(r"\]\(\.\./examples/(\w+)\.ipynb\)", r"](\1.md)", markdown)


def notebook(path: Path) -> str:
    """A notebook as text: its words, and its code in blocks."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, *rest = parts
    offer = f"[Download the notebook](examples/{path.name}), or find it in `examples/`."
    return "\n\n".join([title, offer, *rest]) + "\n"


def door() -> dict[str, object]:
    """The public names and what they stand for."""
    import dygmamba as dm

    return {name: getattr(dm, name) for name in sorted(set(dir(dm)) - {"__version__"}, key=str.lower)}


def modules() -> list[str]:
    """Where the public functions and classes are written down."""
    written = (value for value in door().values() if inspect.isclass(value) or inspect.isfunction(value))
    return sorted({"dygmamba.ops.mamba", *(value.__module__ for value in written)})


def reference() -> str:
    """Every public name in one sentence, with the way to all of it."""
    lines = [
        "# API reference",
        "",
        "`import dygmamba as dm` is the public surface; other modules may change without notice. A name leads to its",
        "parameters, results and methods. In Python, `help(dm)` shows the same.",
        "",
        "| name | what it is |",
        "|---|---|",
    ]
    homes = modules()
    for name, value in door().items():
        home = "dygmamba.ops.mamba" if name == "ops" else getattr(value, "__module__", "")
        label, place = f"<code>dm.{name}</code>", f"api/{home.replace('.', '/')}.html"
        if home in homes:
            label = f'<a href="{place}{"" if name == "ops" else "#" + name}">{label}</a>'
        lines.append(f"| {label} | {inspect.getdoc(value).splitlines()[0]} |")
    return "\n".join(lines) + "\n"


def on_post_build(config: MkDocsConfig) -> None:
    """The public modules in full, out of their docstrings, beside the pages."""
    from pdoc import pdoc, render

    render.configure(show_source=False, template_directory=ROOT / "site" / "api")
    pdoc(*modules(), output_directory=Path(config.site_dir) / "api")
