"""docs/results.md out of stored results: prose with marks, each of which becomes a table or its stamp.

A mark is a line `<!-- table FILE DATA SETTING NEGATIVES -->` (link prediction), `<!-- study FILE DATA -->` (all tables
of a study of one stream) or `<!-- stamp FILE DATA -->`, FILE a study's saved results beside the text. Nothing else is
computed, so the page is rebuilt byte for byte without a GPU.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from dygmamba.errors import FileError
from dygmamba.files.writing import write_text
from dygmamba.report.sheets import markdown
from dygmamba.studies.jobs import FULL
from dygmamba.studies.records import Book, Record
from dygmamba.studies.sheets import sheet
from dygmamba.studies.tables import link_grid, stamp

TEMPLATE = "results.in.md"
MARK = re.compile(r"^<!-- (table|study|stamp) (.+) -->$", re.MULTILINE)


def results_page(folder: Path) -> str:
    """The text of `folder`/results.in.md with its marks filled in from the results beside it."""
    books: dict[str, Book] = {}

    def filled(found: re.Match[str]) -> str:
        file, data, *asked = found[2].split()
        book = books.setdefault(file, Book.read(folder / f"{file}.json"))
        own = [record for record in book.records if record.data == data]
        if found[1] == "stamp":
            return f"*{stamp(own, f'`{book.command}`')}*"
        if found[1] == "study":
            parts = sheet(replace(book, records=tuple(own))).sections
            return "\n\n".join(markdown(grid).rstrip("\n") for part in parts for grid in part.grids)
        setting, negatives = asked
        grid = link_grid(
            book, own, _label, (setting, negatives), FULL not in map(_label, own), _reference(own)
        )
        if grid is None:
            raise FileError(
                f"{file}.json has no {setting} {negatives} rows of '{data}'; mend the mark {found[0]}"
            )
        return markdown(grid).rstrip("\n")

    return MARK.sub(filled, (folder / TEMPLATE).read_text("utf-8"))


def _label(record: Record) -> str:
    about = record.about
    if "length" in about:
        return f"L = {about['length']}"
    if "setting" in about:
        return f"{about['setting']} = {about['value']}"
    return str(about.get("variant", record.model))


def _reference(records: list[Record]) -> str | None:
    return FULL if any(_label(record) == FULL for record in records) else None


if __name__ == "__main__":
    where = Path(sys.argv[1])
    write_text(where.parent / "results.md", results_page(where))
