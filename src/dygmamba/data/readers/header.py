"""The first lines of a text file: comments, delimiter and column names."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dygmamba.core.errors import FileError
from dygmamba.data.readers.options import ROLES, USUAL_NAMES, ReadOptions, find_usual_column
from dygmamba.data.readers.text import read_head, undecodable_error
from dygmamba.data.readers.values import NUMBER_PATTERN

SAMPLE_ROWS = 200  # rows looked at
SAMPLE_CHARS = 1 << 16  # characters looked at to detect the delimiter
MAX_COLUMNS = 10_000
MIN_EQUAL_SHARE = 0.9  # share of rows that a delimiter must split into the same number of columns
WHITESPACE = " "  # stands for runs of blanks and tabs
DELIMITERS = ("\t", ";", "|", ",", WHITESPACE)
COMMENT_MARKS = ("#", "%")
DATE_PATTERN = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T,].*)?")
Row = Sequence[str]


@dataclass(frozen=True, slots=True)
class Header:
    """Layout of a delimited file, from its first lines.

    Without a line of column names (`named` is False), columns are named by their positions, from "0". `width` is the
    number of columns of the first data row, `skip` the number of lines before it.
    """

    names: tuple[str, ...]
    width: int
    skip: int
    delimiter: str = ","
    named: bool = True
    comments: int = 0
    sample: tuple[tuple[str, ...], ...] = ()


def read_header(path: Path, options: ReadOptions, head: tuple[str, bool] | None = None) -> Header:
    """Read the first lines of a delimited file and detect what the options leave open.

    `head` is what `read_head` returned, if the file was looked at before.
    """
    text, is_whole_file = head or read_head(path, options.encoding)
    comments, body = _split_comments(text)
    has_tab_suffix = bool({".tsv", ".tab"} & set(path.suffixes))
    delimiter = options.delimiter or _detect_delimiter(body, is_whole_file, has_tab_suffix)
    try:
        rows, skip = _parse_sample(body, delimiter)
    except csv.Error as error:
        raise FileError(
            f"{path} is not delimited text ({error}); give a CSV or Parquet file", code="not-delimited-text"
        ) from error
    if not rows:
        raise FileError(f"{path} is empty; give a file with one event per line", code="empty-file")
    if len(rows[0]) > MAX_COLUMNS:
        raise FileError(
            f"{path} has {len(rows[0]):,} columns in its first line, more than {MAX_COLUMNS:,}; check its line ends "
            "and `delimiter`, or leave out columns",
            code="too-many-columns",
        )
    first, sample, skipped = rows[0], rows[1:], text.count("\n", 0, len(text) - len(body))
    if "\ufffd" in "".join(first) and not options.skip_bad:
        raise undecodable_error(path, options.encoding, options.skip_bad)
    is_named = options.header
    if is_named is None:
        is_named = _is_header_line(path, first, sample, options)
    if not is_named:
        positions = _position_names(len(first))
        names = _names_from_comment(text[: len(text) - len(body)], delimiter, len(first)) or positions
        return Header(names, len(first), skipped, delimiter, names != positions, comments, (first, *sample))
    if not sample:
        raise FileError(
            f"{path} has column names but no rows; give a file with at least one event", code="no-rows"
        )
    names = tuple(name.strip() for name in first)
    return Header(names, len(sample[0]), skipped + skip, delimiter, True, comments, tuple(sample))


def classify_field(field: str) -> str:
    """Return "number", "date", or "" for any other text."""
    field = field.strip()
    return "number" if NUMBER_PATTERN.fullmatch(field) else "date" if DATE_PATTERN.fullmatch(field) else ""


def _split_comments(text: str) -> tuple[int, str]:
    """Count the comment lines at the top, and return the text after them.

    A line such as "#tag,b,5" that splits into the same kinds of fields as the first other line is an event.
    """
    lines = text.split("\n")
    plain = next((line for line in lines if line.strip() and not line.startswith(COMMENT_MARKS)), None)
    top = 0
    while top < len(lines) and not lines[top].strip():
        top += 1
    while top < len(lines) and _is_comment(lines[top], plain):
        top += 1
    return sum(line.startswith(COMMENT_MARKS) for line in lines[:top]), "\n".join(lines[top:])


def _is_comment(line: str, plain: str | None) -> bool:
    return not line.strip() or (line.startswith(COMMENT_MARKS) and not _looks_like_event(line, plain or line))


def _looks_like_event(line: str, like: str) -> bool:
    """Return whether a line that starts with a comment mark has the same kinds of fields as another line."""
    if not line.startswith(COMMENT_MARKS) or not line[1:2].strip():
        return False
    separator = re.compile(r"[\t;|,]" if re.search(r"[\t;|,]", like) else r"\s+")
    kinds, expected = (list(map(classify_field, separator.split(text.strip()))) for text in (line, like))
    same = [a for a, b in zip(kinds, expected, strict=False) if a and a == b]
    return len(kinds) == len(expected) >= 3 and bool(same)


def _parse_sample(body: str, delimiter: str) -> tuple[list[tuple[str, ...]], int]:
    """Parse the first rows, and count the lines up to the end of the first one, blank lines included."""
    if delimiter == WHITESPACE:
        body = re.sub(r"[ \t]+", " ", body)
        body = re.sub(r"(?m)^ | $", "", body)
    lines = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter)
    first = next((row for row in lines if "".join(row).strip()), None)
    skip = lines.line_num
    if first is None:
        return [], skip
    return [tuple(first), *(tuple(row) for row in islice(filter(None, lines), SAMPLE_ROWS))], skip


def _detect_delimiter(body: str, is_whole_file: bool, has_tab_suffix: bool) -> str:
    """Detect the delimiter that splits nearly all lines into equally many columns; a comma if none does."""
    if has_tab_suffix and "\t" in body[:SAMPLE_CHARS]:
        return "\t"
    lines = body[:SAMPLE_CHARS].splitlines(keepends=True)
    if len(body) > SAMPLE_CHARS or not is_whole_file:
        lines = lines[:-1] or lines  # the last line may be cut off
    lines = [line for line in lines if line.strip()][: SAMPLE_ROWS + 1]
    counts = {delimiter: _count_columns(lines, delimiter) for delimiter in DELIMITERS}
    usable = {delimiter: count for delimiter, count in counts.items() if count is not None}
    for delimiter, (width, share) in usable.items():
        if width >= 3 and share >= MIN_EQUAL_SHARE:
            return delimiter
    plain = {delimiter: count for delimiter, count in usable.items() if delimiter != WHITESPACE}
    if not plain and WHITESPACE in usable:
        usual = {name for names in USUAL_NAMES.values() for name in names}
        has_usual_names = {name.lower() for name in lines[0].split()} <= usual
        return WHITESPACE if has_usual_names or usable[WHITESPACE][0] >= 3 else ","
    return max(plain, key=lambda delimiter: plain[delimiter][1], default=",")


def _count_columns(lines: list[str], delimiter: str) -> tuple[int, float] | None:
    """Return the most frequent number of columns and its share of the lines; None if the first line is not split."""
    try:
        if delimiter == WHITESPACE:
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


def _is_header_line(path: Path, first: Row, sample: Sequence[Row], options: ReadOptions) -> bool:
    """Return whether the first line names the columns: an event contains a number or a date, a name is neither."""
    kinds = [classify_field(field) for field in first]
    if not any(kinds):
        return True
    names = [field.strip() for field in first]
    recognized = [
        name in names if name is not None else find_usual_column(names, role) is not None
        for role, name in ((role, getattr(options, role)) for role in ROLES)
    ]
    if all(recognized) and not all(kinds):
        return True
    # a word above a column of numbers is a name
    columns = list(zip(*(row for row in sample if len(row) == len(first)), strict=True))
    below = [{classify_field(field) for field in column} for column in columns]
    if any(
        not kind and name and "" not in rest for kind, name, rest in zip(kinds, names, below, strict=False)
    ):
        return True
    if tuple(names) != _position_names(len(names)) or not columns:
        return False
    # "0,1,2" may be names by position, as pandas writes them, or an event
    if any(kind not in rest for kind, rest in zip(kinds, below, strict=True)):
        return True
    raise FileError(
        f"{path}: the first line, {', '.join(names)}, may name the columns or be an event; "
        "say which with `header=True` or `header=False`",
        code="ambiguous-header",
    )


def _names_from_comment(comments: str, delimiter: str, width: int) -> tuple[str, ...] | None:
    """Return the column names in the last comment, if they are usual names and as many as there are columns."""
    lines = [line.lstrip("".join(COMMENT_MARKS)).strip() for line in comments.split("\n") if line.strip()]
    if not lines:
        return None
    fields = lines[-1].split() if delimiter == WHITESPACE else lines[-1].split(delimiter)
    names = tuple(name.strip() for name in fields)
    if len(names) != width or any(find_usual_column(names, role) is None for role in USUAL_NAMES):
        return None
    return names


def _position_names(width: int) -> tuple[str, ...]:
    return tuple(map(str, range(width)))
