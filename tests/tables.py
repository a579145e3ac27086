"""Small text tables for the tests of the readers."""

import csv
from pathlib import Path


def write_csv(path: Path, header: list[str], rows: list, delimiter: str = ",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerows([header, *rows])
    return path


def table(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path
