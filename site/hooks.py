"""Pages that the site adds to docs/: notebooks, root pages, results of the records, commands, settings, API, errors."""

import ast
import html
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
FIGURE = re.compile(r"(?<=[\d*]) ([±/]) (?=[\d*])")  # 96.90 ± 0.19, 97.50 / 96.08
NOTEBOOKS = ("analyst", "shop_and_helpdesk", "researcher")
SENTENCE_LENGTH = 50  # characters in a cell of a table


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that docs/ does not hold."""
    pages = {name: read_root_page(file) for file, name in ROOT_PAGES.items() if file != "README.md"}
    for name in NOTEBOOKS:
        pages[f"tutorials/{name}.md"] = convert_notebook(ROOT / "examples" / f"{name}.ipynb")
    pages["reference/api.md"] = write_reference()
    pages["reference/commands.md"] = write_commands()
    pages["reference/settings.md"] = write_settings()
    pages["reference/error-codes.md"] = write_error_codes()
    pages["research/results.md"] = write_results()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for name in NOTEBOOKS:
        path = ROOT / "examples" / f"{name}.ipynb"
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def read_root_page(name: str) -> str:
    """Read a file of the repository root as a page of the site; its links into docs/ start there."""
    return (ROOT / name).read_text().replace("](docs/", "](")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave docs/ to the page that the site has for the file; keep a figure on one line."""
    up = "../" * page.url.count("/")
    markdown = re.sub(
        r"^\|.*", lambda row: FIGURE.sub("\u00a0\\1\u00a0", row[0]), markdown, flags=re.MULTILINE
    )
    for name, target in ROOT_PAGES.items():
        markdown = re.sub(rf"\]\((\.\./)*{re.escape(name)}", f"]({up}{target}", markdown)
    return re.sub(r"\]\((?:\.\./)+examples/(\w+)\.ipynb\)", rf"]({up}tutorials/\1.md)", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark the cells of tables that hold a sentence, which the style gives more room than a number."""

    def mark(cell: re.Match[str]) -> str:
        is_sentence = len(re.sub(r"<.*?>", "", cell[1])) > SENTENCE_LENGTH
        return f'<td class="sentence">{cell[1]}</td>' if is_sentence else cell[0]

    return re.sub(r"<td>(.*?)</td>", mark, html, flags=re.DOTALL)


def convert_notebook(path: Path) -> str:
    """Convert a notebook to Markdown: its text, and its code in fenced blocks."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, *rest = parts
    offer = f"[Download the notebook](../examples/{path.name}), or find it in `examples/`."
    return "\n\n".join([title, offer, *rest]) + "\n"


def list_public_names() -> dict[str, object]:
    """Return the public names and their values; of a package that can be called, the function that it calls."""
    import dygmamba as dm
    from dygmamba.api.live import live

    names = sorted(set(dir(dm)) - {"__version__"}, key=str.lower)
    return {name: getattr(dm, name) for name in names} | {"live": live}


def list_public_modules() -> list[str]:
    """Return the modules that define the public functions and classes."""
    values = list_public_names().values()
    defined = (value for value in values if inspect.isclass(value) or inspect.isfunction(value))
    return sorted({"dygmamba.ops.mamba", *(value.__module__ for value in defined)})


def write_reference() -> str:
    """Write the table of public names: the first line of each docstring, with a link to the full page."""
    lines = [
        "# API reference",
        "",
        "`import dygmamba as dm` is the public interface; other modules may change without notice. Follow a name to",
        "its parameters, return values and methods. In Python, `help(dm)` shows the same.",
        "",
        "| name | description |",
        "|---|---|",
    ]
    homes = list_public_modules()
    for name, value in list_public_names().items():
        home = "dygmamba.ops.mamba" if name == "ops" else getattr(value, "__module__", "")
        label, place = f"<code>dm.{name}</code>", f"../api/{home.replace('.', '/')}.html"
        if home in homes:
            label = f'<a href="{place}{"" if name == "ops" else "#" + name}">{label}</a>'
        lines.append(f"| {label} | {inspect.getdoc(value).splitlines()[0]} |")
    return "\n".join(lines) + "\n"


def write_commands() -> str:
    """Write the options of all commands, as their `--help` has them."""
    import typer

    from dygmamba.cli import app

    lines = ["# Commands", "", "The same texts as in `dygmamba COMMAND --help`.", ""]
    for name, command in iter_commands(typer.main.get_command(app), "dygmamba"):
        lines += [f"## {name}", "", escape_cell((command.help or "").splitlines()[0]), ""]
        lines += ["| argument or option | default | meaning |", "|---|---|---|"]
        lines += [describe_parameter(parameter) for parameter in command.params if not parameter.hidden]
        lines.append("")
    return "\n".join(lines)


def iter_commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the full name of each command and the command."""
    import typer

    context = typer.Context(group)
    for word in group.list_commands(context):
        command = group.get_command(context, word)
        if hasattr(command, "list_commands"):
            yield from iter_commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def describe_parameter(parameter: Any) -> str:
    """Return the row of an argument or option; a default that is computed is described in words."""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    shown, value = parameter.show_default, parameter.default
    is_unset = value is None or value is False or value == []
    default = shown if isinstance(shown, str) else "" if is_unset else str(value)
    return f"| {names} | {'required' if parameter.required else escape_cell(default)} | {escape_cell(parameter.help)} |"


def write_settings() -> str:
    """Write the settings of all models and of their training: default, allowed values, meaning."""
    from dygmamba.api.model_descriptions import describe_model
    from dygmamba.core.setting_descriptions import describe_allowed
    from dygmamba.models import MODELS

    models = {name: describe_model(name) for name in MODELS}
    lines = [
        "# Settings",
        "",
        "Set one with `--set NAME=VALUE`, or as a keyword argument of `dm.train`. Defaults are those of the model;",
        "presets for datasets may differ. `dygmamba models MODEL` shows the same.",
        "",
    ]

    def add_table(settings: dict[str, dict[str, Any]]) -> None:
        lines.extend(["| setting | default | allowed | meaning |", "|---|---|---|---|"])
        for setting, about in settings.items():
            cells = (format_default(about["default"]), describe_allowed(about), about.get("meaning", ""))
            lines.append(f"| `{setting}` | {' | '.join(map(escape_cell, cells))} |")
        lines.append("")

    for name, about in models.items():
        lines += [f"## {name}", "", escape_cell(f"{about['title']}: looks at {about['looks_at']}."), ""]
        if about["settings"]:
            add_table(about["settings"])
        if about.get("node_settings"):
            lines += ["With `--task node`:", ""]
            add_table(about["node_settings"])
    lines += ["## Training", "", "Networks; a model that lacks a setting refuses it.", ""]
    add_table(models["dyg-mamba"]["training"])
    return "\n".join(lines)


def format_default(value: object) -> str:
    """Return a default as it is typed after `--set NAME=`."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) or "none" if isinstance(value, list | tuple) else str(value)


def escape_cell(text: str) -> str:
    """Return a text that is safe in a cell of a table; code in backquotes stays code."""
    return html.escape(text, quote=False).replace("|", "&#124;")


def write_results() -> str:
    """Write the page of results: the template in docs/research/results with the tables of the stored records."""
    sys.path.insert(0, str(ROOT))  # `mkdocs` starts without the folder of the repository
    from research.results_page import build_results_page

    return build_results_page(ROOT / "docs" / "research" / "results")


def write_error_codes() -> str:
    """Write the table of error codes from the sources: every `code="..."` with a message that carries it."""
    messages: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src" / "dygmamba").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                codes = [word.value for word in node.keywords if word.arg == "code"]
                for code in codes:
                    if isinstance(code, ast.Constant):
                        messages.setdefault(code.value, set()).add(_template(node.args[0]))
            elif isinstance(node, ast.ClassDef):
                for line in node.body:
                    if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "code":
                        text = (ast.get_docstring(node) or "").splitlines()
                        messages.setdefault(ast.literal_eval(line.value), set()).add(text[0] if text else "")
    lines = [
        "# Error codes",
        "",
        "Every error that you can fix is a subclass of `dygmamba.DygError` with an attribute `code`. Codes are stable;",
        'messages may improve. With `--json` a command prints `{"error": {"code": ..., "message": ...}}`.',
        "",
        "| code | message |",
        "|---|---|",
    ]
    for code in sorted(messages):
        text = min(filter(None, messages[code]), key=len, default="")
        lines.append(f"| `{code}` | {html.escape(text).replace('|', '&#124;')} |")
    return "\n".join(lines) + "\n"


def _template(node: ast.expr) -> str:
    """Return a message's text with `…` in place of its values."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def on_post_build(config: MkDocsConfig) -> None:
    """Render the docstrings of the public modules beside the pages."""
    from pdoc import pdoc, render

    render.configure(show_source=False, template_directory=ROOT / "site" / "api")
    pdoc(*list_public_modules(), output_directory=Path(config.site_dir) / "api")
