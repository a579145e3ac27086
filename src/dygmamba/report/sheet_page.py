"""A sheet as one page without script: it reads on a phone, on paper and offline."""

from pathlib import Path

from dygmamba.files.writing import make_folder, write_text
from dygmamba.report.html import fill
from dygmamba.report.sheets import Sheet, comma_separated, latex, markdown

TEMPLATE = "sheet.html"


def page(sheet: Sheet) -> str:
    """The page; what comes from a user is escaped."""
    return fill(TEMPLATE, sheet=sheet)


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
