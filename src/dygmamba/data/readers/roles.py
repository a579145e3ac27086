"""The one role finder: which column of a table is source, destination, time, node, feature, category or label.

What the user says decides, then how the file of the dataset was read, then usual names. Without names, positions and
contents decide, and only where they leave one way to read the table; else the user is asked.
"""

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dygmamba.core.errors import ConfigError, FileError, NotFoundError
from dygmamba.data.events.origin import Origin
from dygmamba.data.readers.header import Header, classify_field
from dygmamba.data.readers.options import (
    ID_HEADINGS,
    LABEL_NAMES,
    ROLES,
    USUAL_NAMES,
    ReadOptions,
    find_usual_column,
)
from dygmamba.data.readers.source import Source
from dygmamba.data.readers.time_evidence import detect_time_unit

NODE_COLUMNS = ("node", "id")  # names of the column of nodes, as predictions about nodes have it


def find_layout(source: Source, options: ReadOptions) -> ReadOptions:
    """Find the columns of a table of events: the layout with all that the options leave open."""
    if source.header is not None and not source.header.named:
        options = _assign_by_position(source, source.header, options)
    options = _assign_by_content(source, options)
    path, names = source.place, source.names
    require_distinct_names(path, names)
    chosen = (*options.features, *options.types)
    absent = tuple(name for name in chosen if options.allow_absent and name not in names)
    features, types = (
        tuple(name if name in absent else require_column(path, names, name) for name in part)
        for part in (options.features, options.types)
    )
    twice = [name for name in types if name in features]
    if twice:
        raise ConfigError(
            f"column {twice[0]!r} is in `features` and in `types`; a column is numeric or categorical, leave it out "
            "of one",
            code="columns-not-distinct",
        )
    label = None if options.label is None else require_column(path, names, options.label)
    src, dst, time = ends = _require_roles(path, names, options)
    if len({*ends}) < 3:
        raise ConfigError(
            f"source {src!r}, destination {dst!r} and time {time!r} must be three different columns of {path}; "
            f"choose from {_format_names(names)}",
            code="columns-not-distinct",
        )
    layout = replace(
        options, src=src, dst=dst, time=time, features=features, types=types, label=label, absent=absent
    )
    # pandas and DyGLib write a row number into a first column without a name: nobody misses that one
    used = {*layout.needed, ""}
    rest = [name for name in names if name not in used]
    if not options.columns or features or types:
        return replace(layout, unused=dict.fromkeys(rest, "is not among the chosen columns"))
    unused = {name: reason for name in rest if (reason := _find_reason_to_skip(name))}
    return replace(layout, candidates=tuple(name for name in rest if name not in unused), unused=unused)


def match_columns(names: Sequence[str], options: ReadOptions, origin: Origin) -> dict[str, str]:
    """Return the column of each role, where one can be told: named by the options or the origin, or usual."""
    found = {}
    for role in ROLES:
        own = [name for name in (getattr(options, role), getattr(origin, role)) if name in names]
        column = own[0] if own else find_usual_column([str(name) for name in names], role)
        if column is not None:
            found[role] = column
    return found


def find_query_columns(
    source: Source, options: ReadOptions, origin: Origin, nodes_only: bool = False
) -> dict[str, str]:
    """Find the columns of queries by role; destinations and times may be missing.

    With `nodes_only` the queries are about nodes, so that a column node or id is the source too.
    """
    names, header = source.names, source.header
    if header is not None and not header.named:
        own = {} if origin.header else {role: getattr(origin, role) for role in ROLES}
        roles = dict(zip(ROLES, names, strict=False))
        return roles | {role: name for role, name in own.items() if name in names}
    require_distinct_names(source.place, names)
    roles = match_columns(names, options, origin)
    if nodes_only and "src" not in roles:
        named = [name for usual in NODE_COLUMNS for name in names if name.lower() == usual]
        roles |= {"src": named[0]} if named else {}
    if nodes_only and "src" not in roles:
        raise NotFoundError(
            f"cannot tell which column of {source.name} holds the nodes ({', '.join(names)}); name it node, and the "
            "column of times, if there is one, time",
            code="column-not-recognized",
        )
    if "src" not in roles or len(set(roles.values())) < len(roles):
        raise NotFoundError(
            f"cannot tell which columns of {source.name} are source, destination and time ({', '.join(names)}); "
            "name them src, dst and, if there are times, time",
            code="column-not-recognized",
        )
    return roles


def find_destinations(source: Source, options: ReadOptions, origin: Origin) -> str:
    """Find the column of destinations, which may be the only one."""
    names, column = source.names, match_columns(source.names, options, origin).get("dst")
    if column is not None:
        return column
    if len(names) > 1:
        raise NotFoundError(
            f"{source.name} has no column of destinations among {', '.join(names)}; name it 'dst', or give one id per "
            "line",
            code="column-not-recognized",
        )
    return next(iter(names))


def find_node_column(names: Sequence[str], origin: Origin) -> str:
    """Find the column of nodes in a table of node features: by name, or the first one."""
    wanted = [name for name in names if name in (origin.src, origin.dst)]
    wanted += [name for name in names if name.lower() in ID_HEADINGS]
    wanted += [found for role in ("src", "dst") if (found := find_usual_column(names, role)) is not None]
    return [*wanted, names[0]][0]


def require_distinct_names(path: Path | str, names: Sequence[str]) -> None:
    """Raise FileError if two columns have the same name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise FileError(
            f"{path} has more than one column {_format_names(repeated)}; rename all but one",
            code="duplicate-column",
        )


def require_column(path: Path | str, names: Sequence[str], name: str) -> str:
    """Return the column of this name or at this position; raise NotFoundError if there is none."""
    if name in names:
        return name
    if name.isascii() and name.isdigit() and int(name[:9]) < len(names):
        return names[int(name[:9])]
    close = difflib.get_close_matches(name, names, n=1)
    advice = f"; did you mean {close[0]!r}?" if close else "; choose one of them"
    raise NotFoundError(
        f"{path} has no column {name!r}, it has {_format_names(names)}{advice}" + _column_hint(names),
        code="unknown-column",
    )


def _require_roles(path: Path | str, names: Sequence[str], options: ReadOptions) -> list[str]:
    """Return the columns of source, destination and time."""
    columns, missing = [], []
    for role in ROLES:
        chosen = getattr(options, role)
        column = find_usual_column(names, role) if chosen is None else require_column(path, names, chosen)
        (missing if column is None else columns).append(column or role)
    if missing:
        one, named = len(missing) == 1, _join([f"`{role}`" for role in missing])
        raise NotFoundError(
            f"cannot tell which {'column' if one else 'columns'} of {path} {'is the' if one else 'are'} "
            f"{_join(missing)}; name {'it' if one else 'them'} with {named} (columns: {_format_names(names)})"
            + _column_hint(names),
            code="column-not-recognized",
        )
    return columns


def _assign_by_position(source: Source, header: Header, options: ReadOptions) -> ReadOptions:
    """Choose the columns of a file without column names.

    The first two columns that the options do not use are source and destination, then comes the time.
    """
    path, names = source.place, source.names
    given = [options.src, options.dst, options.time, options.label, *options.features, *options.types]
    given = [require_column(path, names, name) for name in given if name is not None]
    free = [name for name in names if name not in given]
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
    time = options.time if options.time is not None else _choose_time_column(source, free)
    return replace(options, **nodes, time=time)


def _choose_time_column(source: Source, free: list[str]) -> str:
    """Find the only free column of dates or times since 1970, else of numbers, else of numbers that never fall."""
    if len(free) == 1:
        return free[0]
    columns = source.sample(free)
    dated = [name for name, column in columns.items() if looks_like_time(column)]
    numeric = [name for name, column in columns.items() if {*map(classify_field, column)} == {"number"}]
    rising = [name for name in numeric if _is_increasing([float(field) for field in columns[name]])]
    for candidates in (dated, numeric if not dated else [], rising if not dated else []):
        if len(candidates) == 1:
            return candidates[0]
    advice = " or ".join(f"`time={name}`" for name in (dated or rising or numeric or free)[:4])
    raise FileError(
        f"{source.name} has no column names, and its time may be one of several columns; say which with {advice} "
        "(columns are numbered from 0)",
        code="ambiguous-time-column",
    )


def _assign_by_content(source: Source, options: ReadOptions) -> ReadOptions:
    """Choose columns whose names say nothing: the only one with times, and in text the two others before it.

    That is where only the time is not known, or in a file of text nothing is and just two other columns are left.
    """
    known = {role: getattr(options, role) or find_usual_column(source.names, role) for role in ROLES}
    unknown = [role for role, name in known.items() if name is None]
    is_bare_text = unknown == [*ROLES] and source.header is not None
    if unknown != ["time"] and not is_bare_text:
        return options
    used = {*known.values(), *options.features, *options.types, options.label, ""}
    free = [name for name in source.names if name not in used]
    times = [name for name, column in source.sample(free).items() if looks_like_time(column)]
    rest = [name for name in free if name not in times]
    if len(times) != 1 or (is_bare_text and len(rest) != 2):
        return options
    return replace(options, **dict(zip(unknown, (*rest, *times) if is_bare_text else times, strict=True)))


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


def _find_reason_to_skip(name: str) -> str:
    """Return why a column is not read unless it is chosen, by its name; empty if nothing speaks against it."""
    if name.lower() in LABEL_NAMES:
        return "may be a label (`label` reads it)"
    if any(name.lower() in usual for usual in USUAL_NAMES.values()):
        return "may be another source, destination or time"
    return ""


def _column_hint(names: Sequence[str]) -> str:
    if len(names) == 1 and any(mark in names[0] for mark in ";\t| "):
        return " - is the `delimiter` right?"
    if tuple(names) == tuple(map(str, range(len(names)))):
        return (
            " - the first line looks like an event, so columns are numbered from 0: "
            "give `header=True` if it names the columns"
        )
    return ""


def _join(words: Sequence[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def _format_names(names: Sequence[str], most: int = 20) -> str:
    shown = ", ".join(repr(name[:40]) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
