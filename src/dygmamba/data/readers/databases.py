"""Events out of a database file: the rows of a query, or of its only table. SQLite, and DuckDB if it is installed."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from dygmamba.core.errors import FileError, NotFoundError, first_line, make_package_error
from dygmamba.data.readers.bad_rows import BadRows
from dygmamba.data.readers.columnar import BATCH_ROWS
from dygmamba.data.readers.options import Layout, ReadOptions
from dygmamba.data.readers.source import Source

DATABASE_FORMATS = ("sqlite", "duckdb")
SQLITE_MAGIC, DUCKDB_MAGIC = b"SQLite format 3\0", b"DUCK"
DUCKDB_MAGIC_AT = 8  # after a checksum
# a query, or a view in a file of somebody else, must not reach other files or variables of this program
DUCKDB_CONFIG: dict[str, Any] = {
    "enable_external_access": False,
    "python_enable_replacements": False,
    "lock_configuration": True,
}


@contextmanager
def open_sqlite(path: Path, options: ReadOptions) -> Iterator[Source]:
    """Open the rows of a query of an SQLite file, for reading only.

    A column of SQLite may hold values of several types. It is read as text if one of its values is text, else as
    numbers.
    """
    with _translate_errors(path, sqlite3.Error):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        with closing(connection):
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("BEGIN")  # all passes below see the same rows
            tables = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')"
            ).fetchall()
            query = _choose_query(
                path, options, [name for (name,) in tables if not name.startswith("sqlite_")]
            )
            names = [
                column[0] for column in connection.execute(f"SELECT * FROM ({query}) LIMIT 0").description
            ]
            schema = _find_schema(connection, query, names)

            def iterate(layout: Layout, _: BadRows) -> Iterator[pa.RecordBatch]:
                return _iter_sqlite(connection, query, schema, layout.needed)

            yield Source("sqlite", tuple(names), iterate, path)


def _find_schema(connection: sqlite3.Connection, query: str, names: list[str]) -> pa.Schema:
    """Find the type of each column by looking at all its values."""
    kinds = ("text", "real", "blob")
    tests = [f"max(typeof({_quote(name)}) = '{kind}')" for name in names for kind in kinds]
    found = iter(connection.execute(f"SELECT {', '.join(tests)} FROM ({query})").fetchone())
    fields = []
    for name in names:
        has_text, has_real, has_blob = next(found), next(found), next(found)
        kind = (
            pa.binary() if has_blob else pa.string() if has_text else pa.float64() if has_real else pa.int64()
        )
        fields.append(pa.field(name, kind))
    return pa.schema(fields)


def _iter_sqlite(
    connection: sqlite3.Connection, query: str, schema: pa.Schema, names: list[str]
) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([schema.field(name) for name in names])
    cursor = connection.execute(f"SELECT {', '.join(map(_quote, names))} FROM ({query})")
    while rows := cursor.fetchmany(BATCH_ROWS):
        arrays = []
        for field, values in zip(schema, zip(*rows, strict=True), strict=True):
            if pa.types.is_string(field.type):
                values = [
                    value if value is None or isinstance(value, str) else str(value) for value in values
                ]
            arrays.append(pa.array(values, field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def open_duckdb(path: Path, options: ReadOptions) -> Iterator[Source]:
    """Open the rows of a query of a DuckDB file, for reading only and without access to other files."""
    try:
        import duckdb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise make_package_error(str(path), "duckdb", "'duckdb>=2'") from error
    with (
        _translate_errors(path, duckdb.Error),
        duckdb.connect(str(path), read_only=True, config=DUCKDB_CONFIG) as connection,
    ):
        tables = connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
        query = _choose_query(path, options, [name for (name,) in tables])
        relation = connection.sql(query)
        if relation is None:
            raise FileError(f"{path}: the query returns no rows; give a SELECT", code="query-failed")

        def iterate(layout: Layout, _: BadRows) -> Iterator[pa.RecordBatch]:
            rows = connection.sql(query).to_arrow_reader(BATCH_ROWS)
            return (batch.select(layout.needed) for batch in rows)

        yield Source("duckdb", tuple(relation.columns), iterate, path)


def _choose_query(path: Path, options: ReadOptions, tables: list[str]) -> str:
    """Return the query of the options, or one of all rows if there is only one table."""
    if options.query is not None:
        return options.query.strip().rstrip(";")
    if len(tables) != 1:
        names = ", ".join(sorted(tables)) or "none"
        raise NotFoundError(
            f"{path} has these tables: {names}; say which rows are events, such as "
            "`query='SELECT sender, receiver, sent FROM mail'`",
            code="query-required",
        )
    return f"SELECT * FROM {_quote(tables[0])}"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _translate_errors(path: Path, kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind as error:
        reason = first_line(error)
        if getattr(error, "sqlite_errorname", "") in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
            raise FileError(
                f"{path} is not a complete SQLite file ({reason}); copy it again", code="file-damaged"
            ) from error
        raise FileError(
            f"{path} cannot be queried ({reason}); check the query and the file", code="query-failed"
        ) from error
