"""docs/results.md out of stored results: prose with marks, each of which becomes a table or its stamp.

A mark is a line, FILE a study's saved results beside the text:

    <!-- table FILE DATA SETTING NEGATIVES -->              link prediction on one stream
    <!-- overview FILE,FILE SETTING NEGATIVES -->           on several streams side by side
    <!-- study FILE DATA -->                                all tables of a study of one stream
    <!-- stamp FILE DATA -->                                seeds, rule, batch, hardware, command

Nothing else is computed, so the page is rebuilt byte for byte without a GPU.
"""

import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import write_text
from dygmamba.lab.studies import FULL
from dygmamba.lab.study_report import build_study_sheet
from dygmamba.report.comparison import describe_conditions, link_grid, overview_grid
from dygmamba.report.document import ReportTable, format_markdown
from dygmamba.report.result_records import ResultRecord, StudyResults

TEMPLATE = "results.in.md"
PLACEHOLDER = re.compile(r"^<!-- (table|overview|study|stamp) (.+) -->$", re.MULTILINE)


def build_results_page(folder: Path) -> str:
    """The text of `folder`/results.in.md with its marks filled in from the results beside it."""
    read = cache(lambda file: StudyResults.read(folder / f"{file}.json"))

    def filled(found: re.Match[str]) -> str:
        if found[1] == "overview":
            files, *asked = found[2].split()
            records = [record for file in files.split(",") for record in read(file).records]
            return _render_table(overview_grid(records, _label_record, (asked[0], asked[1])), found[0])
        file, data, *asked = found[2].split()
        book: StudyResults = read(file)
        own = [record for record in book.records if record.data == data]
        if found[1] == "stamp":
            return f"*{describe_conditions(own, f'`{book.command}`')}*"
        if found[1] == "study":
            parts = build_study_sheet(replace(book, records=tuple(own))).sections
            return "\n\n".join(_render_table(grid, found[0]) for part in parts for grid in part.tables)
        cells = FULL not in map(_label_record, own)
        return _render_table(
            link_grid(book, own, _label_record, (asked[0], asked[1]), cells, _find_reference(own)), found[0]
        )

    return PLACEHOLDER.sub(filled, (folder / TEMPLATE).read_text("utf-8"))


def _render_table(grid: ReportTable | None, mark: str) -> str:
    if grid is None:
        raise FileError(f"the stored results have no rows of what is asked for; mend the mark {mark}")
    return format_markdown(grid).rstrip("\n")


def _label_record(record: ResultRecord) -> str:
    about = record.about
    if "length" in about:
        return f"L = {about['length']}"
    if "setting" in about:
        return f"{about['setting']} = {about['value']}"
    return str(about.get("variant", record.model))


def _find_reference(records: list[ResultRecord]) -> str | None:
    return FULL if any(_label_record(record) == FULL for record in records) else None


if __name__ == "__main__":
    where = Path(sys.argv[1])
    write_text(where.parent / "results.md", build_results_page(where))
