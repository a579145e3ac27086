"""Render documents as self-contained HTML without script, readable offline, on a phone and on paper."""

import re
from importlib.resources import files
from pathlib import Path

from dygmamba.core.errors import FileError
from dygmamba.core.files.untrusted import to_one_line
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.report.charts import draw_chart, load_chart_css
from dygmamba.report.document import Document, escape_table, format_csv, format_latex, format_markdown

# A page may run no script and send no request, whatever a dataset or a node is named.
CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
DOCUMENT_TEMPLATE = "document.html"


def render_document(document: Document) -> str:
    """Return the page of a document; all text in it is escaped."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_read_resource),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "draw": lambda chart: Markup(draw_chart(chart)),  # svg.py has escaped all text in it
        "style": Markup(load_chart_css() + _read_resource("style.css")),
        "policy": CONTENT_SECURITY_POLICY,
    }
    # names between backticks, as a terminal prints them
    environment.filters["code"] = lambda text: Markup(
        re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    )
    return environment.get_template(DOCUMENT_TEMPLATE).render(document=document)


def _read_resource(name: str) -> str:
    return files("dygmamba.report").joinpath(name).read_text("utf-8")


def write_page(document: Document, out: Path, *, follow_links: bool = True) -> Path:
    """Write the page of a document, atomically; returns its path."""
    if out.is_dir():
        raise FileError(f"{out} is a folder; give `out` the name of a file", code="is-a-folder")
    page = render_document(document)
    make_folder(out.parent)
    write_text(out, page, follow_links=follow_links)
    return out


def write_document(document: Document, folder: Path, name: str) -> list[Path]:
    """Write the page, and all its tables as one Markdown, one CSV and one LaTeX file.

    Returns:
        The paths of the files, the page first.
    """
    make_folder(folder)
    tables = [table for section in document.sections for table in section.tables]
    texts = {
        "html": render_document(document),
        "md": "\n".join(
            f"## {table.title}\n\n{table.note}\n\n{format_markdown(table)}"
            for table in map(escape_table, tables)
        ),
        "csv": "\n".join(f"# {to_one_line(table.title)}\n{format_csv(table)}" for table in tables),
        "tex": "\n".join(format_latex(table) for table in tables),
    }
    paths = [folder / f"{name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths
