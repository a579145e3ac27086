"""What a text file is, told by its first lines: its comments, its delimiter, whether it has column names."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dygmamba.data.formats.options import USUAL_NAMES, ReadOptions, usual_column
from dygmamba.data.formats.text import head, undecodable
from dygmamba.errors import FileError

SAMPLE = 200  # rows that are looked at
LOOK = 1 << 16  # letters that are looked at for the delimiter
ALIKE = 0.9  # share of rows that a delimiter must cut into as many columns
BLANKS = " "  # stands for runs of blanks and tabs
DELIMITERS = ("\t", ";", "|", ",", BLANKS)
COMMENT = ("#", "%")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
DATE = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T,].*)?")
Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Header:
    """The first lines of a file: its column names, how wide its first row is, how many lines to skip.

    Where no line names them (`named`), columns are called by their places, from "0".
    """

    names: tuple[str, ...]
    width: int
    skip: int
    delimiter: str = ","
    named: bool = True
    comments: int = 0
    sample: tuple[tuple[str, ...], ...] = ()


def read_header(path: Path, options: ReadOptions) -> Header:
    """The column names of a file, the width of its first row, and how it is written."""
    text, whole = head(path, options.encoding)
    comments, body = _comments(text)
    delimiter = options.delimiter or _delimiter(body, whole, bool({".tsv", ".tab"} & set(path.suffixes)))
    try:
        rows, skip = _rows(body, delimiter)
    except csv.Error as error:
        raise FileError(f"{path} is not delimited text ({error}); give a CSV or Parquet file") from error
    if not rows:
        raise FileError(f"{path} is empty; give a file with one event per line")
    first, sample, skipped = rows[0], rows[1:], text.count("\n", 0, len(text) - len(body))
    if "\ufffd" in "".join(first) and not options.skip_bad:
        raise undecodable(path, options.encoding)
    if options.header is False or (options.header is None and not _is_names(path, first, sample, options)):
        names = _from_comment(text[: len(text) - len(body)], delimiter, len(first)) or _places(len(first))
        named = names != _places(len(first))
        return Header(names, len(first), skipped, delimiter, named, comments, (first, *sample))
    if not sample:
        raise FileError(f"{path} has column names but no rows; give a file with at least one event")
    names = tuple(name.strip() for name in first)
    return Header(names, len(sample[0]), skipped + skip, delimiter, True, comments, tuple(sample))


def kind_of(field: str) -> str:
    """What a field looks like: a number, a date, or neither."""
    field = field.strip()
    return "number" if NUMBER.fullmatch(field) else "date" if DATE.fullmatch(field) else ""


def _comments(text: str) -> tuple[int, str]:
    """How many comments stand at the top, and the text behind them.

    A line whose mark is glued to it, and that is cut like the first other line, is an event of '#tag'.
    """
    lines = text.split("\n")
    plain = next((line for line in lines if line.strip() and not line.startswith(COMMENT)), None)
    top = 0
    while top < len(lines) and not lines[top].strip():
        top += 1
    while top < len(lines) and _is_comment(lines[top], plain):
        top += 1
    return sum(line.startswith(COMMENT) for line in lines[:top]), "\n".join(lines[top:])


def _is_comment(line: str, plain: str | None) -> bool:
    return not line.strip() or (line.startswith(COMMENT) and not _is_event(line, plain or line))


def _is_event(line: str, like: str) -> bool:
    """Whether a line that begins with a mark is cut into kinds as another line is."""
    if not line.startswith(COMMENT) or not line[1:2].strip():
        return False
    cut = re.compile(r"[\t;|,]" if re.search(r"[\t;|,]", like) else r"\s+")
    one, other = ([kind_of(field) for field in cut.split(text.strip())] for text in (line, like))
    return len(one) == len(other) >= 3 and any(a and a == b for a, b in zip(one, other, strict=True))


def _rows(body: str, delimiter: str) -> tuple[list[tuple[str, ...]], int]:
    """The first rows, and how many lines the first of them takes, blank ones before it included."""
    if delimiter == BLANKS:
        body = re.sub(r"[ \t]+", " ", body)
        body = re.sub(r"(?m)^ | $", "", body)
    lines = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter)
    first = next((row for row in lines if "".join(row).strip()), None)
    skip = lines.line_num
    if first is None:
        return [], skip
    return [tuple(first), *(tuple(row) for row in islice(filter(None, lines), SAMPLE))], skip


def _delimiter(body: str, whole: bool, tabs: bool) -> str:
    """The delimiter that cuts nearly all lines alike; a comma where none does."""
    if tabs and "\t" in body[:LOOK]:
        return "\t"
    lines = body[:LOOK].splitlines(keepends=True)
    if len(body) > LOOK or not whole:
        lines = lines[:-1] or lines
    lines = [line for line in lines if line.strip()][: SAMPLE + 1]
    found = {delimiter: _cut(lines, delimiter) for delimiter in DELIMITERS}
    usable = {delimiter: cut for delimiter, cut in found.items() if cut is not None}
    for delimiter, (width, share) in usable.items():
        if width >= 3 and share >= ALIKE:
            return delimiter
    plain = {delimiter: cut for delimiter, cut in usable.items() if delimiter != BLANKS}
    if not plain and BLANKS in usable:
        named = {name.lower() for name in lines[0].split()} <= {
            n for names in USUAL_NAMES.values() for n in names
        }
        return BLANKS if named or usable[BLANKS][0] >= 3 else ","
    return max(plain, key=lambda delimiter: plain[delimiter][1], default=",")


def _cut(lines: list[str], delimiter: str) -> tuple[int, float] | None:
    """Into how many columns most lines are cut, and how large a share of them; None where the first is not cut."""
    try:
        if delimiter == BLANKS:
            widths = [len(line.split()) for line in lines]
        else:
            widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
    except csv.Error:
        return None
    if not widths or widths[0] < 2:
        return None
    rows = widths[1:] or widths
    count, width = max((count, width) for width, count in Counter(rows).items())
    return (width, count / len(rows)) if width >= 2 else None


def _is_names(path: Path, first: Row, sample: Sequence[Row], options: ReadOptions) -> bool:
    """Whether the first line names the columns: an event has a number or a date in it, a name is neither."""
    kinds = [kind_of(field) for field in first]
    if not any(kinds):
        return True
    names = [field.strip() for field in first]
    wanted = [getattr(options, part) for part in ("src", "dst", "time")]
    told = [
        name in names if name is not None else usual_column(names, part) is not None
        for part, name in zip(("src", "dst", "time"), wanted, strict=True)
    ]
    if all(told) and not all(kinds):
        return True
    columns = list(zip(*(row for row in sample if len(row) == len(first)), strict=True))
    below = [{kind_of(field) for field in column} for column in columns]
    if any(
        not kind and name and "" not in rest for kind, name, rest in zip(kinds, names, below, strict=False)
    ):
        return True
    if tuple(names) != _places(len(names)) or not columns:
        return False
    if any(kind not in rest for kind, rest in zip(kinds, below, strict=True)):
        return True
    raise FileError(
        f"{path}: the first line, {', '.join(names)}, may name the columns or be an event; "
        "say which with `header=True` or `header=False`"
    )


def _from_comment(comments: str, delimiter: str, width: int) -> tuple[str, ...] | None:
    """The column names that the last comment holds, if they are the usual ones and as many as there are columns."""
    lines = [line.lstrip("".join(COMMENT)).strip() for line in comments.split("\n") if line.strip()]
    if not lines:
        return None
    cut = lines[-1].split() if delimiter == BLANKS else lines[-1].split(delimiter)
    names = tuple(name.strip() for name in cut)
    if len(names) != width or any(usual_column(names, part) is None for part in USUAL_NAMES):
        return None
    return names


def _places(width: int) -> tuple[str, ...]:
    return tuple(map(str, range(width)))
