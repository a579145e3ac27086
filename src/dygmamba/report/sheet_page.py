"""A sheet as one page without script: it reads on a phone, on paper and offline."""

from importlib.resources import files
from pathlib import Path

from dygmamba.errors import ConfigError
from dygmamba.files.writing import make_folder, write_text
from dygmamba.report.charts import heat_map, line_chart
from dygmamba.report.sheets import Heat, Lines, Sheet, comma_separated, latex, markdown

TEMPLATE = "sheet.html"


def page(sheet: Sheet) -> str:
    """The page; what comes from a user is escaped."""
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError as error:
        raise ConfigError(
            "the page needs jinja2; install it with: pip install 'dyg-mamba[report]'"
        ) from error

    def draw(chart: Lines | Heat) -> Markup:
        return Markup(heat_map(chart) if isinstance(chart, Heat) else line_chart(chart))

    text = files("dygmamba.report").joinpath(TEMPLATE).read_text("utf-8")
    return Environment(autoescape=True).from_string(text).render(sheet=sheet, draw=draw)


def write_sheet(sheet: Sheet, folder: Path, name: str) -> list[Path]:
    """The page, and all tables in one file each of Markdown, CSV and LaTeX."""
    make_folder(folder)
    grids = [grid for section in sheet.sections for grid in section.grids]
    forms = {
        "md": "\n".join(f"## {grid.title}\n\n{grid.note}\n\n{markdown(grid)}" for grid in grids),
        "csv": "\n".join(f"# {grid.title}\n{comma_separated(grid)}" for grid in grids),
        "tex": "\n".join(latex(grid) for grid in grids),
    }
    paths = [folder / f"{name}.html", *(folder / f"{name}.{kind}" for kind in forms)]
    for path, text in zip(paths, (page(sheet), *forms.values()), strict=True):
        write_text(path, text)
    return paths
