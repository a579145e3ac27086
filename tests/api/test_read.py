"""Every source of the same events is the same dataset, read by the same rules."""

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import dygmamba as dm
from letters import COLUMNS, make_letters
from raising import raises

LETTERS = make_letters()
MORE = COLUMNS | {"features": ["words"], "label": "bad"}
FRAME = pd.DataFrame(LETTERS)
NAIVE = FRAME.assign(when=FRAME["when"].dt.tz_localize(None))
SOURCES = {
    "pandas": FRAME,
    "pandas without a zone": NAIVE,
    "pandas with its own index": FRAME.set_index(FRAME.index * 7 + 3),
    "pandas with text dates": FRAME.assign(when=[when.isoformat() for when in LETTERS["when"]]),
    "pandas with categories": FRAME.astype({"who": "category"}),
    "pandas with junk beside": FRAME.assign(junk=[object() for _ in range(len(FRAME))]),
    "polars": pl.DataFrame(LETTERS),
    "polars lazy": pl.DataFrame(LETTERS).lazy(),
    "polars with categories": pl.DataFrame(LETTERS).with_columns(pl.col("whom").cast(pl.Categorical)),
    "Arrow": pa.table(LETTERS),
    "Arrow batch": pa.table(LETTERS).to_batches()[0],
    "columns": LETTERS,
    "numpy": {name: np.asarray(column) for name, column in LETTERS.items() if name != "when"}
    | {"when": NAIVE["when"].to_numpy()},
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """The same events, by way of a CSV file."""
    path = tmp_path_factory.mktemp("csv") / "letters.csv"
    FRAME.to_csv(path, index=False)
    return dm.read(path, **MORE)


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_dataset_of_the_csv_file(imported, name):
    """Events, ids, features, labels and times are bit for bit those of the file."""
    found = dm.read(SOURCES[name], **MORE)
    assert found.digest == imported.digest
    assert found.ids.values.to_pylist() == imported.ids.values.to_pylist()
    assert found.origin.time_origin == imported.origin.time_origin == "1970-01-01T00:00:00Z"
    assert found.name == "data"


def test_parquet_is_read_by_the_same_path(imported, tmp_path):
    """A Parquet file and the Arrow table in it are one dataset."""
    parquet.write_table(pa.table(LETTERS), tmp_path / "letters.parquet")
    assert dm.read(tmp_path / "letters.parquet", **MORE).digest == imported.digest


def test_rows_are_enough():
    """A list of (src, dst, time) is a stream; its ids may be numbers."""
    data = dm.read([(3, 5, 1.0), (5, 3, 2.5)], name="two")
    assert (data.name, data.store.time.tolist(), data.ids.values.to_pylist()) == ("two", [1.0, 2.5], [3, 5])


def temporal(bipartite):
    rng = torch.Generator().manual_seed(0)
    src, dst = torch.randint(5, (40,), generator=rng), torch.randint(5, (40,), generator=rng)
    src[:5] = dst[:5] = torch.arange(5)
    columns = {"t": torch.arange(40), "msg": torch.randn(40, 3, generator=rng), "y": (src == 0).long()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG's own, of torch.jit
        from torch_geometric.data import TemporalData
    return TemporalData(src=src, dst=dst + 5 * bipartite, **columns)


@pytest.mark.parametrize("bipartite", [False, True])
def test_temporal_data_keeps_nodes_messages_and_labels(bipartite):
    """PyG's numbers stay, `msg` becomes the edges' features, `y` the labels; two sides are seen in the numbers."""
    source = temporal(bipartite)
    data = dm.read(source)
    assert torch.equal(data.store.src, source.src)
    assert torch.equal(data.store.dst, source.dst)
    assert torch.equal(data.store.features.edge, source.msg)
    assert data.store.label is not None
    assert torch.equal(data.store.label, source.y.float())
    assert data.store.bipartite is bipartite
    assert dm.read(source, bipartite=not bipartite).store.bipartite is not bipartite


@pytest.mark.parametrize(
    ("source", "choices", "code", "shown"),
    [
        (
            FRAME.rename(columns={"who": "a"}),
            {},
            "column-not-recognized",
            ["the pandas DataFrame", "`src`", "'a'"],
        ),
        (FRAME, {"src": "wo"}, "unknown-column", ["'wo'", "did you mean 'who'"]),
        (FRAME[:0], COLUMNS, "no-rows", []),
        (FRAME.assign(who=None), COLUMNS, "column-not-ids", ["column 'who'"]),
        (
            pd.concat([FRAME, FRAME[:1].assign(whom="")]),
            COLUMNS,
            "bad-rows",
            ["data row 241, column 'whom' is empty"],
        ),
        (FRAME.assign(words="many"), MORE, "bad-rows", ["data row 1, column 'words' is 'many'"]),
        (FRAME.assign(words=[1, "x"] * 120), MORE, "mixed-column-types", ["column 'words'"]),
        (FRAME.assign(words=np.nan), MORE, "bad-rows", ["`fill=VALUE`"]),
        (FRAME, COLUMNS | {"time_unit": "ms"}, "conflicting-time-options", ["`time_unit`"]),
        ({"src": [1], "dst": [2, 3], "time": [1]}, {}, "column-lengths-differ", ["'dst': 2"]),
        (42, {}, "unsupported-table", ["int"]),
        ("nowhere.csv", {}, "file-missing", ["nowhere.csv"]),
    ],
)
def test_errors_name_parameters_as_python_does(source, choices, code, shown):
    """A message of one line with the decisive values, and without options of the command line."""
    with raises(code) as caught:
        dm.read(source, **choices)
    assert "--" not in str(caught.value)
    for value in shown:
        assert value in str(caught.value)


def test_no_package_is_imported_that_nobody_uses():
    """Reading columns imports no other package; pandas is pyarrow's own affair, which uses it where it is."""
    code = (
        "import sys, dygmamba as dm; dm.read({'src': ['a'], 'dst': ['b'], 'time': [1]});"
        "print({'polars', 'torch_geometric', 'typer', 'jinja2'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_generated_stream_is_the_embedded_one_by_default(tmp_path):
    """`generate()` is `load("generated")`; other settings, another stream."""
    assert dm.generate().digest == dm.load("generated", tmp_path).digest
    assert dm.generate(nodes=30, events=90, communities=3).describe().events == 90
