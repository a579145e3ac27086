"""What a text file is, told by its first lines: its comments, its delimiter, whether it has column names.

Which columns of a file without names are which: by their places, and the time by what it looks like.
"""

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

SAMPLE_ROWS = 200  # rows that are looked at
SAMPLE_CHARS = 1 << 16  # letters that are looked at for the delimiter
MIN_EQUAL_SHARE = 0.9  # share of rows that a delimiter must cut into as many columns
WHITESPACE = " "  # stands for runs of blanks and tabs
DELIMITERS = ("\t", ";", "|", ",", WHITESPACE)
COMMENT_MARKS = ("#", "%")
NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
DATE_PATTERN = re.compile(r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T,].*)?")
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
    text, whole = read_head(path, options.encoding)
    comments, body = _split_comments(text)
    delimiter = options.delimiter or _detect_delimiter(
        body, whole, bool({".tsv", ".tab"} & set(path.suffixes))
    )
    try:
        rows, skip = _parse_sample(body, delimiter)
    except csv.Error as error:
        raise FileError(f"{path} is not delimited text ({error}); give a CSV or Parquet file") from error
    if not rows:
        raise FileError(f"{path} is empty; give a file with one event per line")
    first, sample, skipped = rows[0], rows[1:], text.count("\n", 0, len(text) - len(body))
    if "\ufffd" in "".join(first) and not options.skip_bad:
        raise undecodable_error(path, options.encoding)
    if options.header is False or (
        options.header is None and not _is_header_line(path, first, sample, options)
    ):
        names = _names_from_comment(text[: len(text) - len(body)], delimiter, len(first)) or _position_names(
            len(first)
        )
        named = names != _position_names(len(first))
        return Header(names, len(first), skipped, delimiter, named, comments, (first, *sample))
    if not sample:
        raise FileError(f"{path} has column names but no rows; give a file with at least one event")
    names = tuple(name.strip() for name in first)
    return Header(names, len(sample[0]), skipped + skip, delimiter, True, comments, tuple(sample))


def classify_field(field: str) -> str:
    """What a field looks like: a number, a date, or neither."""
    field = field.strip()
    return "number" if NUMBER_PATTERN.fullmatch(field) else "date" if DATE_PATTERN.fullmatch(field) else ""


def _split_comments(text: str) -> tuple[int, str]:
    """How many comments stand at the top, and the text behind them.

    A line whose mark is glued to it, and that is cut like the first other line, is an event of '#tag'.
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
    """Whether a line that begins with a mark is cut into kinds as another line is."""
    if not line.startswith(COMMENT_MARKS) or not line[1:2].strip():
        return False
    cut = re.compile(r"[\t;|,]" if re.search(r"[\t;|,]", like) else r"\s+")
    one, other = ([classify_field(field) for field in cut.split(text.strip())] for text in (line, like))
    return len(one) == len(other) >= 3 and any(a and a == b for a, b in zip(one, other, strict=True))


def _parse_sample(body: str, delimiter: str) -> tuple[list[tuple[str, ...]], int]:
    """The first rows, and how many lines the first of them takes, blank ones before it included."""
    if delimiter == WHITESPACE:
        body = re.sub(r"[ \t]+", " ", body)
        body = re.sub(r"(?m)^ | $", "", body)
    lines = csv.reader(io.StringIO(body, newline=""), delimiter=delimiter)
    first = next((row for row in lines if "".join(row).strip()), None)
    skip = lines.line_num
    if first is None:
        return [], skip
    return [tuple(first), *(tuple(row) for row in islice(filter(None, lines), SAMPLE_ROWS))], skip


def _detect_delimiter(body: str, whole: bool, tabs: bool) -> str:
    """The delimiter that cuts nearly all lines alike; a comma where none does."""
    if tabs and "\t" in body[:SAMPLE_CHARS]:
        return "\t"
    lines = body[:SAMPLE_CHARS].splitlines(keepends=True)
    if len(body) > SAMPLE_CHARS or not whole:
        lines = lines[:-1] or lines
    lines = [line for line in lines if line.strip()][: SAMPLE_ROWS + 1]
    found = {delimiter: _count_columns(lines, delimiter) for delimiter in DELIMITERS}
    usable = {delimiter: cut for delimiter, cut in found.items() if cut is not None}
    for delimiter, (width, share) in usable.items():
        if width >= 3 and share >= MIN_EQUAL_SHARE:
            return delimiter
    plain = {delimiter: cut for delimiter, cut in usable.items() if delimiter != WHITESPACE}
    if not plain and WHITESPACE in usable:
        named = {name.lower() for name in lines[0].split()} <= {
            n for names in USUAL_NAMES.values() for n in names
        }
        return WHITESPACE if named or usable[WHITESPACE][0] >= 3 else ","
    return max(plain, key=lambda delimiter: plain[delimiter][1], default=",")


def _count_columns(lines: list[str], delimiter: str) -> tuple[int, float] | None:
    """Into how many columns most lines are cut, and how large a share of them; None where the first is not cut."""
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
    """Whether the first line names the columns: an event has a number or a date in it, a name is neither."""
    kinds = [classify_field(field) for field in first]
    if not any(kinds):
        return True
    names = [field.strip() for field in first]
    wanted = [getattr(options, part) for part in ("src", "dst", "time")]
    told = [
        name in names if name is not None else find_usual_column(names, part) is not None
        for part, name in zip(("src", "dst", "time"), wanted, strict=True)
    ]
    if all(told) and not all(kinds):
        return True
    columns = list(zip(*(row for row in sample if len(row) == len(first)), strict=True))
    below = [{classify_field(field) for field in column} for column in columns]
    if any(
        not kind and name and "" not in rest for kind, name, rest in zip(kinds, names, below, strict=False)
    ):
        return True
    if tuple(names) != _position_names(len(names)) or not columns:
        return False
    if any(kind not in rest for kind, rest in zip(kinds, below, strict=True)):
        return True
    raise FileError(
        f"{path}: the first line, {', '.join(names)}, may name the columns or be an event; "
        "say which with `header=True` or `header=False`"
    )


def _names_from_comment(comments: str, delimiter: str, width: int) -> tuple[str, ...] | None:
    """The column names that the last comment holds, if they are the usual ones and as many as there are columns."""
    lines = [line.lstrip("".join(COMMENT_MARKS)).strip() for line in comments.split("\n") if line.strip()]
    if not lines:
        return None
    cut = lines[-1].split() if delimiter == WHITESPACE else lines[-1].split(delimiter)
    names = tuple(name.strip() for name in cut)
    if len(names) != width or any(find_usual_column(names, part) is None for part in USUAL_NAMES):
        return None
    return names


def _position_names(width: int) -> tuple[str, ...]:
    return tuple(map(str, range(width)))


EPOCH_RANGE = (631_152_000, 4_102_444_800)  # 1990 to 2100 in seconds
TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def assign_by_position(path: Path, header: Header, options: ReadOptions) -> ReadOptions:
    """The options with every column that was not named: the first two free ones are the ends, then the time."""
    if header.named:
        return options
    given = [options.src, options.dst, options.time, options.label, *options.features]
    given = [require_column(path, header.names, name) for name in given if name is not None]
    free = [name for name in header.names if name not in given]
    ends: dict[str, str] = {}
    for part in ("src", "dst"):
        if getattr(options, part) is None:
            ends[part] = free.pop(0) if free else ""
    if "" in ends.values() or (options.time is None and not free):
        raise FileError(
            f"{path} has {header.width} column{'s' * (header.width != 1)} and its first line looks like data, "
            f"but an event has a source, a destination and a time; check `delimiter`, or add the column"
        )
    time = options.time if options.time is not None else _find_time_column(path, header, free)
    return replace(options, **ends, time=time)


def detect_time_unit(values: Sequence[float], whole: bool) -> str | None:
    """The unit in which most of these numbers are times from 1990 to 2100; only whole ones are parts of a second."""
    ordered = sorted(values)
    if not ordered:
        return None
    low, high = ordered[len(ordered) // 20], ordered[len(ordered) - 1 - len(ordered) // 20]
    for unit, ticks in TICKS_PER_SECOND.items():
        if EPOCH_RANGE[0] * ticks <= low <= high < EPOCH_RANGE[1] * ticks and (whole or ticks == 1):
            return unit
    return None


def _find_time_column(path: Path, header: Header, free: list[str]) -> str:
    """The one free column of dates or times since 1970, else the only one of numbers, else the one that never falls."""
    if len(free) == 1:
        return free[0]
    rows = [row for row in header.sample if len(row) == header.width]
    columns = {name: [row[header.names.index(name)].strip() for row in rows] for name in free}
    dated = [name for name, column in columns.items() if _looks_like_time(column)]
    numeric = [name for name, column in columns.items() if {*map(classify_field, column)} == {"number"}]
    rising = [name for name in numeric if _is_increasing([float(field) for field in columns[name]])]
    for found in (dated, numeric if not dated else [], rising if not dated else []):
        if len(found) == 1:
            return found[0]
    options = " or ".join(f"`time={name}`" for name in (dated or rising or numeric or free)[:4])
    raise FileError(
        f"{path} has no column names, and its time may be one of several columns; say which with {options} "
        "(counted from 0)"
    )


def _looks_like_time(column: list[str]) -> bool:
    kinds = [classify_field(field) for field in column]
    if kinds.count("date") > 0.9 * len(kinds):
        return True
    numbers = [float(field) for field, kind in zip(column, kinds, strict=True) if kind == "number"]
    whole = all(field.lstrip("+-").isdigit() for field in column)
    return len(numbers) > 0.9 * len(kinds) and detect_time_unit(numbers, whole) is not None


def _is_increasing(numbers: list[float]) -> bool:
    """Whether they never fall and are not all the same."""
    return numbers == sorted(numbers) and numbers[0] < numbers[-1]
