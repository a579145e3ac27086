"""Events out of database files: the rows of a query, read as any other table."""

import sqlite3
from contextlib import closing

import pytest

import dygmamba as dm
from raising import raises
from tables import write_csv

HEADER = ["sender", "receiver", "sent", "size"]
ROWS = [
    ["ann", "bob", "2024-05-01T10:00", 3],
    ["bob", "7", "2024-05-02T11:30", 5],
    ["ann", "7", "2024-05-03", 4],
]
QUERY = "SELECT sender, receiver, sent, size FROM mail WHERE size > 0;"


def write_sqlite(path, rows=ROWS, tables=("mail",)):
    with closing(sqlite3.connect(path)) as database:
        for table in (name.replace('"', '""') for name in tables):
            database.execute(f'CREATE TABLE "{table}" (sender, receiver, sent, size)')
            values = [[7 if cell == "7" else cell for cell in row] for row in rows]  # an integer among text
            database.executemany(f'INSERT INTO "{table}" VALUES (?, ?, ?, ?)', values)
        database.commit()
    return path


@pytest.mark.parametrize("batch", [2, 100])
def test_a_query_reads_what_a_csv_file_with_the_same_rows_does(tmp_path, monkeypatch, batch):
    """For all sizes of batches: the same events and ids; the file is found out by its first bytes."""
    monkeypatch.setattr("dygmamba.data.readers.databases.BATCH_ROWS", batch)
    path = write_sqlite(tmp_path / "mail.db")
    expected = dm.read(write_csv(tmp_path / "mail.csv", HEADER, ROWS))
    for given in ({}, {"query": QUERY}, {"query": "WITH m AS (SELECT * FROM mail) SELECT * FROM m"}):
        found = dm.read(path, **given)
        assert found.content == expected.content
        assert found.origin.features == ("size",)
    assert dm.read(path, query="SELECT sender, receiver, sent FROM mail LIMIT 1").store.src.shape == (1,)
    assert found.origin.format == "sqlite"


def test_wrong_databases_and_queries_are_one_sentence(tmp_path):
    """Nothing is written, whatever the query says."""
    path = write_sqlite(tmp_path / "two.db", tables=("mail", 'a"b'))
    with raises("query-required") as caught:
        dm.read(path)
    assert "mail" in str(caught.value)
    assert len(dm.read(path, query='SELECT * FROM "a""b"').store) == 3
    wrong = (
        "SELECT",
        "DROP TABLE mail",
        "SELECT 1; DROP TABLE mail",
        "DELETE FROM mail RETURNING *",
        "select no",
    )
    for query in wrong:
        with raises("query-failed"):
            dm.read(path, query=query)
    with raises("column-not-recognized"):
        dm.read(path, query="SELECT size FROM mail")
    with raises("no-rows"):
        dm.read(path, query="SELECT * FROM mail WHERE 0")
    with raises("column-not-ids"):
        dm.read(path, query="SELECT x'00' AS src, receiver AS dst, sent AS time FROM mail")
    with raises("option-not-applicable"):
        dm.read(write_csv(tmp_path / "mail.csv", HEADER, ROWS), query=QUERY)
    assert len(dm.read(path, query=QUERY).store) == 3


def test_a_duckdb_file_is_read_alike(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "mail.duckdb")) as database:
        database.execute("CREATE TABLE mail (sender TEXT, receiver TEXT, sent TIMESTAMP, size INTEGER)")
        database.executemany("INSERT INTO mail VALUES (?, ?, ?, ?)", ROWS)
    expected = dm.read(write_csv(tmp_path / "mail.csv", HEADER, ROWS))
    for given in ({}, {"query": QUERY}):
        assert dm.read(tmp_path / "mail.duckdb", **given).content == expected.content
    with raises("query-failed"):
        dm.read(tmp_path / "mail.duckdb", query="SELECT * FROM nothing")


def test_a_duckdb_query_or_view_reaches_no_file_but_its_own(tmp_path):
    """Neither a query nor a view that somebody stored reads or writes other files, whatever it sets before."""
    duckdb = pytest.importorskip("duckdb")
    secret = write_csv(tmp_path / "secret.csv", HEADER, ROWS)
    with duckdb.connect(str(tmp_path / "mail.duckdb")) as database:
        database.execute("CREATE TABLE mail (sender TEXT, receiver TEXT, sent TIMESTAMP, size INTEGER)")
        database.executemany("INSERT INTO mail VALUES (?, ?, ?, ?)", ROWS)
        database.execute(f"CREATE VIEW spy AS SELECT * FROM read_csv('{secret}')")
    before, written = {*tmp_path.iterdir()}, tmp_path / "out.csv"
    queries = (
        f"COPY mail TO '{written}'",
        f"SET enable_external_access = true; COPY mail TO '{written}'",
        f"SELECT 1; COPY mail TO '{written}'",
        f"ATTACH '{tmp_path / 'new.duckdb'}'",
        f"EXPORT DATABASE '{tmp_path / 'all'}'",
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM '{secret}'",
        "SELECT * FROM spy",
        "SELECT * FROM tables",  # a variable of the reader
        "DROP TABLE mail",
    )
    for query in queries:
        with raises("query-failed"):
            dm.read(tmp_path / "mail.duckdb", query=query)
    assert {*tmp_path.iterdir()} == before
    assert len(dm.read(tmp_path / "mail.duckdb", query=QUERY).store) == 3
