"""Templates filled in: what comes from a user is escaped, a name that a template does not know is an error.

A sheet as one page without script: it reads on a phone, on paper and offline.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any

from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.report.charts import draw_chart, load_chart_css
from dygmamba.report.document import Document, format_csv, format_latex, format_markdown

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # no script, no request


def render_template(name: str, **values: Any) -> str:
    """The page that a template makes of these values."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FunctionLoader(_read_resource),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "draw": lambda picture: Markup(draw_chart(picture)),  # what it draws is escaped there
        "style": Markup(load_chart_css() + _read_resource("style.css")),
        "policy": CONTENT_SECURITY_POLICY,
    }
    return environment.get_template(name).render(**values)


def _read_resource(name: str) -> str:
    return files("dygmamba.report").joinpath(name).read_text("utf-8")


DOCUMENT_TEMPLATE = "sheet.html"


def render_document(sheet: Document) -> str:
    """The page; what comes from a user is escaped."""
    return render_template(DOCUMENT_TEMPLATE, sheet=sheet)


def write_document(sheet: Document, folder: Path, name: str) -> list[Path]:
    """The page, and all tables in one file each of Markdown, CSV and LaTeX."""
    make_folder(folder)
    tables = [grid for section in sheet.sections for grid in section.tables]
    forms = {
        "md": "\n".join(f"## {grid.title}\n\n{grid.note}\n\n{format_markdown(grid)}" for grid in tables),
        "csv": "\n".join(f"# {grid.title}\n{format_csv(grid)}" for grid in tables),
        "tex": "\n".join(format_latex(grid) for grid in tables),
    }
    paths = [folder / f"{name}.html", *(folder / f"{name}.{kind}" for kind in forms)]
    for path, text in zip(paths, (render_document(sheet), *forms.values()), strict=True):
        write_text(path, text)
    return paths
