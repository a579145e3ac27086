"""Builds the page of results (with the site) and the result tables of other pages (`make results`) from stored results.

A line of the template that is one of these comments is replaced. FILE is the name of a results file in the same folder;
where several are given, separated by commas, a model's records come from the first that has any of the dataset:

    <!-- table FILE,FILE DATASET SETTING NEGATIVES -->      link prediction on one dataset
    <!-- overview FILE,FILE SETTING NEGATIVES -->           all records of the files, several datasets in one table
    <!-- study FILE DATASET -->                             all tables of a study for one dataset
    <!-- stamp FILE,FILE DATASET -->                        seeds, visibility, batch size, hardware, commands

Other pages, the README among them, hold generated tables between two comments, `<!-- results NAME -->` and
`<!-- /results -->`; BLOCKS has the names. A figure that appears on several pages therefore comes from one record.
`result_tables` says which files the tables are built from: a new file changes the pages without a change of code.

Nothing is trained or evaluated, so the pages are rebuilt byte for byte on any machine.
"""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import write_text
from dygmamba.report.comparison import build_link_table, build_overview_table, describe_conditions
from dygmamba.report.document import ReportTable, format_markdown
from dygmamba.report.result_records import ResultRecord, StudyResults
from dygmamba.studies.studies import FULL
from dygmamba.studies.study_report import build_study_document
from research import ceilings_page, paper_claims, query_type_results, stored_runs
from research.ablation_tables import build_ablation_table, build_power_table
from research.result_tables import (
    build_best_published_table,
    build_channels_table,
    build_headline_table,
    build_memory_table,
    build_negatives_table,
    build_paper_table,
    build_parts_table,
    build_programs_table,
    build_rules_table,
)

TEMPLATE = "results.in.md"
PLACEHOLDER = re.compile(r"^<!-- (table|overview|study|stamp) (.+) -->$", re.MULTILINE)


def build_results_page(folder: Path) -> str:
    """Return the text of `folder`/results.in.md with its placeholders replaced."""
    read = cache(lambda file: StudyResults.read(folder / f"{file}.json"))

    def fill(placeholder: re.Match[str]) -> str:
        kind, arguments = placeholder[1], placeholder[2]
        if kind == "overview":
            files, setting, negatives = arguments.split()
            records = [record for file in files.split(",") for record in read(file).records]
            return _render_table(
                build_overview_table(records, _label_record, (setting, negatives)), placeholder[0]
            )
        files, data, *evaluation = arguments.split()
        found = _select_results(map(read, files.split(",")), data)
        records = [record for results in found for record in results.records]
        if kind == "stamp":
            commands = ", ".join(f"`{results.command}`" for results in found)
            return f"*{describe_conditions(records, commands)}*"
        if kind == "study":
            sections = [section for results in found for section in build_study_document(results).sections]
            return "\n\n".join(
                _render_table(table, placeholder[0]) for section in sections for table in section.tables
            )
        # An ablation is compared with the full model; the paper has no value of most variants.
        is_ablation = FULL in map(_label_record, records)
        setting, negatives = evaluation
        table = build_link_table(
            records,
            _label_record,
            (setting, negatives),
            ceilings={name: value for results in found for name, value in results.ceilings.items()},
            show_published=not is_ablation,
            reference=FULL if is_ablation else None,
        )
        return _render_table(table, placeholder[0])

    return PLACEHOLDER.sub(fill, (folder / TEMPLATE).read_text("utf-8"))


def _select_results(files: Iterable[StudyResults], data: str) -> list[StudyResults]:
    """Return the files with records of a dataset and these alone; a row's records come from the first that has any."""
    found: list[StudyResults] = []
    shown: set[str] = set()
    for results in files:
        records = tuple(
            record for record in results.records if record.data == data and _label_record(record) not in shown
        )
        if records:
            found.append(replace(results, records=records))
            shown |= set(map(_label_record, records))
    return found


def _render_table(table: ReportTable | None, placeholder: str) -> str:
    if table is None:
        raise FileError(
            f"the stored results have no rows for {placeholder}; correct this line of {TEMPLATE}",
            code="no-stored-results",
        )
    return format_markdown(table).rstrip("\n")


def _label_record(record: ResultRecord) -> str:
    about = record.about
    if "length" in about:
        return f"L = {about['length']}"
    if "setting" in about:
        return f"{about['setting']} = {about['value']}"
    return str(about.get("variant", record.model))


BLOCK = re.compile(r"(<!-- results (\w+) -->\n).*?(<!-- /results -->)", re.DOTALL)


def fill_result_blocks(text: str, folder: Path) -> str:
    """Return a page's text with every `<!-- results NAME -->` block replaced by the table of that name."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]](folder)}\n\n{block[3]}", text)


BLOCKS: dict[str, Callable[[Path], str]] = {
    "headline": build_headline_table,
    "headline_new_nodes": lambda folder: build_headline_table(folder, "inductive"),
    "headline_all": lambda folder: build_headline_table(folder, only_shipped=False),
    "headline_all_new_nodes": lambda folder: build_headline_table(folder, "inductive", only_shipped=False),
    "rules": build_rules_table,
    "rules_new_nodes": lambda folder: build_rules_table(folder, "inductive"),
    "rules_historical": lambda folder: build_rules_table(folder, "transductive", "historical"),
    "negatives": build_negatives_table,
    "parts": build_parts_table,
    "ablations": build_ablation_table,
    "power": build_power_table,
    "memories": build_memory_table,
    "best_published": build_best_published_table,
    "mooc": lambda folder: build_paper_table(folder, "mooc"),
    "programs": build_programs_table,
    "channels": build_channels_table,
    "activity": stored_runs.build_activity_table,
    "blends": stored_runs.build_blend_table,
    "nodes": stored_runs.build_node_table,
    "query_types": query_type_results.build_query_type_table,
    "paper_main": paper_claims.build_main_table,
    "paper_steps": paper_claims.build_step_table,
    "paper_progress": paper_claims.build_progress_table,
    **ceilings_page.BLOCKS,
}


if __name__ == "__main__":
    results = Path(sys.argv[1])
    root = results.parents[2]
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        text = page.read_text("utf-8")
        if (filled := fill_result_blocks(text, results)) != text:
            write_text(page, filled)
