"""Scorers of batches: the bits of `dygmamba predict`, in any parts, as any kind of table, in any process."""

import pickle
import shutil
from datetime import UTC, datetime, timedelta

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import dygmamba as dm
from dygmamba.api.prediction import run_prediction
from dygmamba.api.requests.prediction import PredictRequest
from dygmamba.core.argument_types import ArgumentTypeError
from dygmamba.core.errors import ConfigError, DownloadError, FileError, NotFoundError
from dygmamba.ops.trees import sum_leaves
from dygmamba.runs.observed_events import save_observed
from letters import PEOPLE, run_python
from raising import raises
from trained import copy_run

COUNT = 300


def draw_pairs(run: dm.Run, ids_as_text: bool = False) -> pa.Table:
    """Pairs of the ids of a run and some unknown ones, at any time from its first event on, with a key."""
    draw, data = np.random.default_rng(0), run.data
    names = [*data.ids.values.cast(pa.large_string()).to_pylist(), "901", "902"]
    ends = {name: pa.array(draw.choice(names, COUNT)) for name in ("src", "dst")}
    if data.ids.kind == "int" and not ids_as_text:
        ends = {name: ids.cast(pa.int64()) for name, ids in ends.items()}
    first, last = float(data.store.time[0]), float(data.store.time[-1])
    seconds = draw.uniform(first, last + (last - first) / 9, COUNT).round()
    time = pa.array(seconds)
    if data.origin.time_origin:
        time = pa.array([datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value) for value in seconds])
    return pa.table({"key": pa.array(range(COUNT)), **ends, "time": time})


def predict(run: dm.Run, pairs: pa.Table, folder) -> pa.ChunkedArray:
    """The scores of `dygmamba predict --pairs FILE`."""
    parquet.write_table(pairs, folder / "pairs.parquet")
    request = PredictRequest(run=run.path, pairs=folder / "pairs.parquet", device="cpu")
    return run_prediction(request.check()).table["score"]


@pytest.mark.parametrize("ids_as_text", [False, True])
@pytest.mark.parametrize("name", ["trees_run", "letter_trees_run"])
def test_batches_of_any_size_have_the_scores_of_the_whole_file(name, ids_as_text, request, tmp_path):
    """For ids as numbers and text, times as numbers and timestamps: equal bits; columns stay, and say of which run."""
    run = request.getfixturevalue(name)
    pairs, scorer = draw_pairs(run, ids_as_text), run.scorer()
    expected = predict(run, pairs, tmp_path).to_pylist()
    for rows in (1, 7, COUNT):
        batches = list(scorer.map_batches(pairs.to_batches(max_chunksize=rows)))
        scored = pa.Table.from_batches(batches)
        assert scored["score"].to_pylist() == expected
        assert scored.select(pairs.column_names) == pairs
    for column, kind in scorer.columns.items():
        assert scored.schema.field(column).type == pa.type_for_alias(kind)
    assert scored["run_digest"].unique().to_pylist() == [scorer.run_digest]
    assert scored["known_until"].unique().to_pylist() == [scorer.known_until]


def test_every_kind_of_table_comes_back_as_that_kind(letter_trees_run):
    """Arrow, pandas with its index, polars, DuckDB's batches; also without rows."""
    pairs, scorer = draw_pairs(letter_trees_run), letter_trees_run.scorer()
    whole = scorer(pairs)
    frame = scorer(pairs.to_pandas().set_index("key"))
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.index) == list(range(COUNT))
    assert frame["score"].to_list() == whole["score"].to_pylist()
    polars = (
        pl.from_arrow(pairs)
        .lazy()
        .map_batches(
            scorer,
            schema={
                **pl.from_arrow(pairs).schema,
                "score": pl.Float64,
                "run_digest": pl.String,
                "known_until": pl.String,
            },
        )
    )
    assert polars.collect()["score"].to_list() == whole["score"].to_pylist()
    reader = duckdb.from_arrow(pairs).to_arrow_reader(100)
    assert (
        pa.Table.from_batches(scorer.map_batches(reader))["score"].to_pylist() == whole["score"].to_pylist()
    )
    for empty in (pairs.slice(0, 0), pairs.slice(0, 0).to_pandas(), pl.from_arrow(pairs.slice(0, 0))):
        nothing = scorer(empty)
        assert type(nothing) is type(empty)
        assert len(nothing) == 0
        assert "score" in (nothing.column_names if isinstance(nothing, pa.Table) else nothing.columns)


def test_a_fresh_process_scores_what_this_one_does(letter_trees_run, tmp_path):
    """The pickled function holds no model, opens the run itself, and gives equal bits; features as well."""
    pairs = draw_pairs(letter_trees_run)
    for number, scorer in enumerate([letter_trees_run.scorer(), letter_trees_run.scorer(features=True)]):
        content = pickle.dumps(scorer)
        assert len(content) < 10_000
        (tmp_path / "scorer").write_bytes(content)
        parquet.write_table(pairs, tmp_path / "pairs.parquet")
        run_python(
            "import pickle; from pathlib import Path; from pyarrow import parquet\n"
            "scorer = pickle.loads(Path('scorer').read_bytes())\n"
            f"parquet.write_table(scorer(parquet.read_table('pairs.parquet')), '{number}.parquet')",
            tmp_path,
        )
        assert parquet.read_table(tmp_path / f"{number}.parquet") == scorer(pairs)


def test_features_are_what_the_trees_read(letter_trees_run, network_run):
    """A column per feature, in any parts equal; what reads sequences has none."""
    pairs, scorer = draw_pairs(letter_trees_run), letter_trees_run.scorer(features=True)
    table = scorer(pairs)
    trees = letter_trees_run._predictor.get_trees()
    assert table.column_names == [*pairs.column_names, *trees.names, "run_digest", "known_until"]
    parts = pa.Table.from_batches(scorer.map_batches(pairs.to_batches(max_chunksize=13)))
    assert parts.combine_chunks() == table.combine_chunks()
    used = [trees.names[at] for at in set(trees.feature[trees.feature >= 0].tolist())]
    assert any(len(table[name].unique()) > 1 for name in used)
    with raises("no-features", ConfigError):
        network_run.scorer(features=True)


def test_the_features_of_a_run_are_those_that_its_score_is_computed_from(letter_trees_run, network_run):
    """`run.features` has the bits of the scorer and of `run.inputs`; trees and calibration of them give the score."""
    pairs, predictor = draw_pairs(letter_trees_run), letter_trees_run._predictor
    table, trees = letter_trees_run.features(pairs), predictor.get_trees()
    assert table.column_names == ["src", "dst", "time", *trees.names]
    scored = letter_trees_run.score(pairs)
    assert table.select(["src", "dst", "time"]) == scored.select(["src", "dst", "time"])
    assert table.select(trees.names) == letter_trees_run.scorer(features=True)(pairs).select(trees.names)
    features = torch.from_numpy(np.stack([table[name].to_numpy() for name in trees.names], axis=1))
    assert torch.equal(features, letter_trees_run.inputs(pairs)["numbers"])
    logit = trees.base + sum_leaves(trees.trees(), features)
    queries = predictor._read_pairs(pairs, None)
    new_ends = predictor.find_new_ends(queries.src, queries.dst, queries.time)
    assert scored["score"].to_pylist() == predictor.calibration.probability(logit, new_ends).tolist()
    with raises("no-features", ConfigError):
        network_run.features(pairs)
    with raises("column-not-recognized", NotFoundError):
        letter_trees_run.features(pairs.drop_columns("dst"))


def test_a_network_scores_parts_to_rounding(network_run):
    """For a model with matrix products, the size of a batch changes rounding only."""
    pairs, scorer = draw_pairs(network_run), network_run.scorer()
    parts = pa.Table.from_batches(scorer.map_batches(pairs.to_batches(max_chunksize=17)))
    assert np.allclose(parts["score"], scorer(pairs)["score"], rtol=0, atol=1e-6)


def test_a_scorer_knows_saved_events(letter_trees_run, tmp_path):
    """Of a run opened with events that were saved: their time, and the scores of the run that observed them."""
    new = letter_trees_run.observe([("ann", "bob", "2024-06-01", 9.0)])
    pairs = [{"src": name, "dst": "bob", "time": datetime(2024, 6, 2, tzinfo=UTC)} for name in PEOPLE]
    pairs = pa.Table.from_pylist(pairs)
    path = save_observed(new._predictor, tmp_path / "known.safetensors")
    scorer = pickle.loads(pickle.dumps(dm.open(letter_trees_run.path, device="cpu", observed=path).scorer()))
    assert scorer(pairs)["score"].to_pylist() == new.score(pairs)["score"].to_pylist()
    assert scorer.known_until.startswith("2024-06-01")
    with raises("run-not-picklable", ConfigError):
        pickle.dumps(new.scorer())


def test_a_run_that_changed_is_refused(letter_trees_runs, tmp_path):
    """Parts of one table are never scored by different weights, nor with different events."""
    first, second = (copy_run(run, tmp_path / "runs") for run in letter_trees_runs)
    scorer = first.scorer()
    for name in ("checkpoint", "config.toml", "calibration.json"):
        target = first.path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        if (second.path / name).exists():
            (shutil.copytree if (second.path / name).is_dir() else shutil.copy)(second.path / name, target)
    with raises("run-changed", FileError):
        pickle.loads(pickle.dumps(scorer))(draw_pairs(second))


def test_times_must_not_depend_on_other_rows(letter_trees_run):
    """Dates as text are read by all of their column, which a batch has not, unless their format is given."""
    pairs = draw_pairs(letter_trees_run)
    text = pc_format(pairs["time"])
    with raises("times-need-a-format", ConfigError):
        letter_trees_run.scorer()(pairs.set_column(3, "time", text))
    run = dm.open(letter_trees_run.path, device="cpu", time_format="%d/%m/%Y %H:%M:%S")
    scored = run.scorer()(pairs.set_column(3, "time", text))
    assert scored["score"].to_pylist() == letter_trees_run.scorer()(pairs)["score"].to_pylist()


def pc_format(times: pa.ChunkedArray) -> pa.Array:
    return pa.array([value.strftime("%d/%m/%Y %H:%M:%S") for value in times.to_pylist()])


def test_what_cannot_be_scored_is_an_error(letter_trees_run, node_run):
    """A column in the way, no table, a classifier of nodes."""
    pairs, scorer = draw_pairs(letter_trees_run), letter_trees_run.scorer()
    with raises("column-exists", ConfigError):
        scorer(scorer(pairs))
    with raises("wrong-argument-type", ArgumentTypeError):
        scorer([("ann", "bob")])
    with raises("not-a-link-run", ConfigError):
        node_run.scorer()


def test_a_run_opens_from_an_address(letter_trees_run, tmp_path, monkeypatch):
    """A shared run is copied into the cache once; a process with another cache fetches it again; equal bits."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shared, pairs = tmp_path / "shared", draw_pairs(letter_trees_run)
    dm.push(letter_trees_run, shared, data=True)
    address = shared.as_uri()
    run = dm.open(address, device="cpu")
    assert run.path.is_relative_to(tmp_path / "cache")
    expected = letter_trees_run.scorer()(pairs)["score"].to_pylist()
    scorer = run.scorer()
    assert scorer(pairs)["score"].to_pylist() == expected
    (shared / "model.safetensors").rename(tmp_path / "weights")
    assert dm.open(address, device="cpu").path == run.path
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with raises("file-unreadable", FileError):
        dm.open(address)
    (tmp_path / "weights").rename(shared / "model.safetensors")
    (tmp_path / "scorer").write_bytes(pickle.dumps(scorer))
    parquet.write_table(pairs, tmp_path / "pairs.parquet")
    shutil.rmtree(tmp_path / "cache")
    code = (
        "import pickle; from pathlib import Path; from pyarrow import parquet\n"
        "scored = pickle.loads(Path('scorer').read_bytes())(parquet.read_table('pairs.parquet'))\n"
        "print(scored['score'].to_pylist())"
    )
    assert run_python(code, tmp_path).strip() == str(expected)


@pytest.mark.parametrize(
    ("address", "code", "kind"),
    [
        ("nowhere://bucket/run", "store-failed", DownloadError),
        ("memory://empty", "not-a-shared-run", FileError),
    ],
)
def test_a_wrong_address_is_an_error(address, code, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with raises(code, kind):
        dm.open(address)
