"""Growing tables as one file: arrays with their spare capacity, mapped copy-on-write.

Replicas that map the same file share the pages that neither has changed, and opening it reads nothing. Spare capacity
is a hole in the file and takes no space on the disk. A file is never written again once it is mapped: a new state is
written beside the old one, and its description, which names it, is replaced at once.
"""

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import (
    create_temporary_file,
    disk,
    make_folder,
    publish_path,
    sync_file,
    translate_os_errors,
    write_at,
    write_text,
)
from dygmamba.sampling.block_lists import LEAST_SPARE, Growing

FORMAT, VERSION = "dygmamba-live-state", 1
DESCRIPTION = "state.json"
ALIGNMENT = 4096
CHUNK = 1 << 26  # bytes that are written at once

Tables = Mapping[str, Growing]
Layout = dict[str, dict[str, Any]]  # dtype, shape and offset of each array by name


def list_arrays(tables: Tables) -> Iterator[tuple[str, Growing, str, int]]:
    """Yield the name of each array, who has it under which attribute, and how many of its rows are in use."""
    for name, table in tables.items():
        yield from table.list_arrays(f"{name}/")


def count_bytes(tables: Tables) -> int:
    """Return the bytes in use of all arrays."""
    arrays = ((getattr(owner, name), rows) for _, owner, name, rows in list_arrays(tables))
    return sum(rows * (column.nbytes // max(len(column), 1)) for column, rows in arrays)


def write_arrays(handle: int, path: Path, tables: Tables) -> Layout:
    """Write all arrays to an open file; return where they are."""
    layout: Layout = {}
    end = 0
    for name, owner, attribute, used in list_arrays(tables):
        column = getattr(owner, attribute)
        rows = max(len(column), used + used // 4 + LEAST_SPARE) if used < len(column) else len(column)
        layout[name] = {"dtype": column.dtype.str, "shape": [rows, *column.shape[1:]], "offset": end}
        content = np.ascontiguousarray(column[:used]).reshape(-1).view(np.uint8)
        for begin in range(0, len(content), CHUNK):
            write_at(handle, end + begin, content[begin : begin + CHUNK].data, path)
        size = rows * (column.dtype.itemsize * int(np.prod(column.shape[1:])))
        end += -(-size // ALIGNMENT) * ALIGNMENT
    write_at(handle, end, b"\0", path)  # the spare capacity of the last array is part of the file
    return layout


def map_arrays(handle: int, layout: Layout) -> dict[str, np.ndarray]:
    """Map all arrays of an open file, each page copied when it is first changed."""
    content = mmap.mmap(handle, 0, access=mmap.ACCESS_COPY)
    arrays = {}
    for name, part in layout.items():
        dtype, shape = np.dtype(part["dtype"]), tuple(part["shape"])
        count = int(np.prod(shape))
        if not count:  # of no length, such as features of events without any
            arrays[name] = np.zeros(shape, dtype)
            continue
        if part["offset"] + count * dtype.itemsize > len(content):
            raise ValueError(f"its array {name!r} is incomplete")
        arrays[name] = np.frombuffer(content, dtype, count, part["offset"]).reshape(shape)
    return arrays


def copy_arrays(tables: Tables) -> dict[str, np.ndarray]:
    """Return copies of all arrays in memory."""
    return {name: getattr(owner, attribute).copy() for name, owner, attribute, _ in list_arrays(tables)}


def list_integers(tables: Tables) -> dict[str, int]:
    """Return all integers of tables by name."""
    return {
        name: int(getattr(owner, attribute))
        for prefix, table in tables.items()
        for name, owner, attribute in table.list_integers(f"{prefix}/")
    }


def restore_tables(tables: Tables, arrays: Mapping[str, np.ndarray], integers: Mapping[str, int]) -> None:
    """Give tables these arrays and integers; raise ValueError if their names or types are not those of the tables."""
    places = {name: (owner, attribute) for name, owner, attribute, _ in list_arrays(tables)}
    if places.keys() != arrays.keys() or list_integers(tables).keys() != integers.keys():
        raise ValueError("its tables are not those of the model")
    for name, (owner, attribute) in places.items():
        own, given = getattr(owner, attribute), arrays[name]
        if own.dtype != given.dtype or own.shape[1:] != given.shape[1:]:
            raise ValueError(f"its array {name!r} has another type")
        owner.put_array(attribute, given)
    for prefix, table in tables.items():
        for name, owner, attribute in table.list_integers(f"{prefix}/"):
            setattr(owner, attribute, integers[name])


def save_tables(folder: Path, tables: Tables, about: Mapping[str, Any]) -> None:
    """Write tables, and JSON values about them, to a folder; a state that was there before is replaced."""
    make_folder(folder)
    target = folder / DESCRIPTION
    part, handle = create_temporary_file(target)
    try:
        layout = write_arrays(handle, part, tables)
        sync_file(handle, part)
    finally:
        os.close(handle)
    name = f"tables-{part.name.strip('.')}.bin"
    publish_path(part, folder / name)
    facts = {"format": FORMAT, "version": VERSION, "file": name, "arrays": layout}
    write_text(target, json.dumps({**facts, "integers": list_integers(tables), "about": about}))
    for old in folder.glob("tables-*.bin"):
        if old.name != name:
            with translate_os_errors(old), suppress(PermissionError):  # Windows deletes no mapped file
                disk.remove(old)


def read_description(folder: Path) -> dict[str, Any]:
    """Read what `save_tables` wrote about a state; raise FileError if there is none or it is damaged."""
    path = folder / DESCRIPTION
    try:
        facts = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"{folder} holds no saved state; save one first", code="no-saved-state") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read ({error}); delete it", code="damaged-state") from error
    if not isinstance(facts, dict) or (facts.get("format"), facts.get("version")) != (FORMAT, VERSION):
        raise FileError(f"{path} is no state of this version; delete it", code="unsupported-format-version")
    return facts
