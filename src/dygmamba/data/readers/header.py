"""The first lines of a text file: comments, delimiter, column names, and the roles of columns without names."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from dygmamba.core.errors import FileError
from dygmamba.data.readers.options import USUAL_NAMES, ReadOptions, find_usual_column, require_column
from dygmamba.data.readers.text import read_head, undecodable_error
from dygmamba.data.readers.times import detect_time_unit
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
    if options.header is False or (
        options.header is None and not _is_header_line(path, first, sample, options)
    ):
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
    kinds, expected = (
        [classify_field(field) for field in separator.split(text.strip())] for text in (line, like)
    )
    return len(kinds) == len(expected) >= 3 and any(
        a and a == b for a, b in zip(kinds, expected, strict=True)
    )


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
    roles = ("src", "dst", "time")
    recognized = [
        name in names if name is not None else find_usual_column(names, role) is not None
        for role, name in ((role, getattr(options, role)) for role in roles)
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


def assign_by_position(path: Path, header: Header, options: ReadOptions) -> ReadOptions:
    """Choose the columns of a file without column names.

    The first two columns that the options do not use are source and destination, then comes the time.
    """
    if header.named:
        return options
    given = [options.src, options.dst, options.time, options.label, *options.features, *options.types]
    given = [require_column(path, header.names, name) for name in given if name is not None]
    free = [name for name in header.names if name not in given]
    nodes: dict[str, str] = {}
    for role in ("src", "dst"):
        if getattr(options, role) is None:
            nodes[role] = free.pop(0) if free else ""
    if "" in nodes.values() or (options.time is None and not free):
        raise FileError(
            f"{path} has {header.width} column{'s' * (header.width != 1)} and its first line looks like data, "
            f"but an event has a source, a destination and a time; check `delimiter`, or add the column",
            code="too-few-columns",
        )
    time = options.time if options.time is not None else _find_time_column(path, header, free)
    return replace(options, **nodes, time=time)


def assign_by_content(header: Header, options: ReadOptions) -> ReadOptions:
    """Choose the columns of a file whose names say nothing: one column of times, and two others with ids before it.

    Only where a single column can be the time and exactly two columns are left; else the names decide, or the user.
    """
    roles = ("src", "dst", "time")
    if not header.named or any(
        getattr(options, role) is not None or find_usual_column(header.names, role) is not None
        for role in roles
    ):
        return options
    rows = [row for row in header.sample if len(row) == header.width]
    used = {*options.features, *([options.label] if options.label else [])}
    columns = {
        name: [row[at].strip() for row in rows]
        for at, name in enumerate(header.names)
        if name and name not in used
    }
    times = [name for name, column in columns.items() if looks_like_time(column)]
    rest = [name for name in columns if name not in times]
    if len(times) != 1 or len(rest) != 2:
        return options
    return replace(options, src=rest[0], dst=rest[1], time=times[0])


def _find_time_column(path: Path, header: Header, free: list[str]) -> str:
    """Find the only free column of dates or times since 1970, else of numbers, else of numbers that never fall."""
    if len(free) == 1:
        return free[0]
    rows = [row for row in header.sample if len(row) == header.width]
    position = {name: k for k, name in enumerate(header.names)}
    columns = {name: [row[position[name]].strip() for row in rows] for name in free}
    dated = [name for name, column in columns.items() if looks_like_time(column)]
    numeric = [name for name, column in columns.items() if {*map(classify_field, column)} == {"number"}]
    rising = [name for name in numeric if _is_increasing([float(field) for field in columns[name]])]
    for candidates in (dated, numeric if not dated else [], rising if not dated else []):
        if len(candidates) == 1:
            return candidates[0]
    options = " or ".join(f"`time={name}`" for name in (dated or rising or numeric or free)[:4])
    raise FileError(
        f"{path} has no column names, and its time may be one of several columns; say which with {options} "
        "(columns are numbered from 0)",
        code="ambiguous-time-column",
    )


def looks_like_time(column: Sequence[str]) -> bool:
    """Return whether nearly all values are dates, or numbers that are times since 1970."""
    kinds = [classify_field(field) for field in column]
    if kinds.count("date") > 0.9 * len(kinds):
        return True
    numbers = [float(field) for field, kind in zip(column, kinds, strict=True) if kind == "number"]
    whole = all(field.lstrip("+-").isdigit() for field in column)
    return len(numbers) > 0.9 * len(kinds) and detect_time_unit(numbers, whole) is not None


def _is_increasing(numbers: list[float]) -> bool:
    """Return whether numbers never fall and are not all equal."""
    return numbers == sorted(numbers) and numbers[0] < numbers[-1]
