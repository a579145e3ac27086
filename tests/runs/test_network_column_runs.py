"""Runs of a network on node features and on the columns of a query: it learns from them, and never sees them early."""

import csv
from functools import cache

import pytest

import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import ConfigError, NotFoundError
from dygmamba.data.storage.dataset import save_dataset
from purchases import generate_purchases, generate_residents
from raising import raises

FORMER = ["decayed-pair", "walks", "transitions"]
SMALL = {
    "epochs": 3, "batch": 25, "lr": 0.005, "length": 4, "width": 8, "time_dim": 4, "blocks": 1, "states": 2,
    "walk_layers": 1, "walk_dim": 4, "walk_decays": 1, "scales": 2,
}  # fmt: skip


@cache
def generate(kind):
    make = {"purchases": generate_purchases, "residents": generate_residents}[kind]
    return make(customers=40, shops=150, events=1000, categories=4)


def train(data, out, **more):
    return dm.train(data, "dyg-mamba-counts", out=out, device="cpu", **SMALL, **more)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def resident_run(folder):
    """A run that reads node features."""
    save_dataset(generate("residents"), folder / "residents")
    return train(generate("residents"), folder / "node-features")


@pytest.fixture(scope="module")
def query_run(folder):
    """A run that reads the columns of a query."""
    save_dataset(generate("purchases"), folder / "purchases")
    return train(generate("purchases"), folder / "query", query_columns=True)


def ap_of(run):
    """Test AP of a run."""
    return next(row["ap"] for row in run.results.to_pylist() if row["split"] == "test")


def last_pairs(data, count=2):
    """The last events as queries, with their columns."""
    store = data.store
    rows = range(len(store) - count, len(store))
    found = {
        "src": data.ids.to_user(store.src[-count:].numpy()).to_pylist(),
        "dst": data.ids.to_user(store.dst[-count:].numpy()).to_pylist(),
    }
    features = store.features
    found |= {name: features.edge[-count:, at].tolist() for at, name in enumerate(features.edge_names)}
    for at, category in enumerate(features.categories):
        found[category.name] = [category.values[int(features.codes[row, at])] for row in rows]
    return found


def test_node_features_lift_the_test_ap_by_fifteen_points(resident_run, folder):
    """Where a changing node feature decides by construction."""
    plain = train(generate("residents"), folder / "without", pair_features=FORMER)
    assert ap_of(resident_run) > ap_of(plain) + 0.15


def test_columns_of_the_query_lift_the_test_ap_by_fifteen_points(query_run, folder):
    """Where amounts and types decide by construction; the rows say that the question is another one."""
    plain = train(generate("purchases"), folder / "plain")
    assert ap_of(query_run) > ap_of(plain) + 0.15
    assert query_run.results["query_columns"].to_pylist()[0]
    assert "query_columns" not in plain.results.column_names


def test_a_query_brings_its_columns(query_run, folder, tmp_path, monkeypatch, capsys):
    """In Python, in a file and on the command line; a missing one is an error, and ranking has none."""
    pairs = last_pairs(generate("purchases"))
    odd = pairs | {"amount": [1e-3, 1e6], "type": ["unheard of"] * 2}
    fits, misfits = (query_run.score(given)["score"].to_pylist() for given in (pairs, odd))
    assert min(fits) > max(misfits)
    ends = {name: pairs[name] for name in ("src", "dst")}
    with raises("query-columns-missing", ConfigError):
        query_run.score(ends)
    with raises("query-columns-missing", NotFoundError):
        query_run.score(ends | {"amount": pairs["amount"]})
    with raises("query-columns-missing", ConfigError):
        query_run.rank([pairs["src"][0]], k=2)
    file, out = tmp_path / "pairs.csv", tmp_path / "scores.csv"
    rows = zip(*pairs.values(), strict=True)
    file.write_text(",".join(pairs) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    words = ("predict", str(query_run.path), "--pairs", str(file), "--out", str(out))
    code, _, err = invoke(monkeypatch, capsys, *words, "--data-dir", str(folder / "purchases"))
    assert code == 0, err
    with out.open() as written:
        assert [float(row["score"]) for row in csv.DictReader(written)] == pytest.approx(fits, abs=1e-6)


@pytest.mark.parametrize("name", ["resident_run", "query_run"])
def test_an_audit_finds_no_leak(name, folder, request):
    """Neither the future, nor the batch, nor the order of rows or padding changes a score."""
    run = request.getfixturevalue(name)
    data_dir = folder / ("residents" if name == "resident_run" else "purchases")
    checks = dm.audit("generated", run=run.path, data_dir=data_dir).checks
    assert {"future", "batch", "order", "padding"} <= {check.name for check in checks}
    assert [check for check in checks if not check.passed] == []


@pytest.mark.parametrize("name", ["resident_run", "query_run"])
def test_a_live_run_has_the_scores_of_all_events_at_once(name, request, tmp_path):
    """Appended one by one, with a late one, the events give the scores of a run that observed them together."""
    run = request.getfixturevalue(name)
    data = generate("residents" if name == "resident_run" else "purchases")
    pairs = last_pairs(data, 3)
    later = {key: [*values, values[0]] for key, values in pairs.items()} | {
        "time": [1.9e9, 1.9e9, 1.91e9, 1.92e9]
    }
    later["src"][1] = 9999
    expected = run.observe(later).score(pairs)["score"].to_pylist()
    rows = [dict(zip(later, row, strict=True)) for row in zip(*later.values(), strict=True)]
    with dm.live(run, tmp_path / "state", late=1e8) as live:
        for row in (*rows[:2], rows[3], rows[2]):
            live.append([row])
        assert live.score(pairs)["score"].to_pylist() == pytest.approx(expected, abs=1e-6)


def test_an_explanation_adds_up(resident_run, query_run):
    """Node features and the columns of the query are part of the base; events are removed around them."""
    pairs = last_pairs(generate("purchases"), 1)
    pair, columns = (pairs["src"][0], pairs["dst"][0]), {key: pairs[key][0] for key in ("amount", "type")}
    found = query_run.explain(pair, orders=1, columns=columns)
    assert found.score == pytest.approx(query_run.score(pairs)["score"][0].as_py(), abs=1e-6)
    assert found.gap < 1e-6
    with raises("query-columns-missing", ConfigError):
        query_run.explain(pair, orders=1)
    pairs = last_pairs(generate("residents"), 1)
    assert resident_run.explain((pairs["src"][0], pairs["dst"][0]), orders=1).gap < 1e-6


@pytest.mark.parametrize("suffix", [".pt2", ".onnx", ".zip"])
def test_an_export_is_refused_with_a_reason(resident_run, folder, suffix, tmp_path, monkeypatch, capsys):
    """Exit code 2 and one sentence that names the tables."""
    words = ("export", str(resident_run.path), "--to", str(tmp_path / f"x{suffix}"))
    code, _, err = invoke(monkeypatch, capsys, *words, "--data-dir", str(folder / "residents"))
    assert code == 2
    assert "node features" in " ".join(err.split())


def test_a_later_run_reads_the_same_features(resident_run, folder):
    """A run that starts from another one has its pair features, in the units of the first training period."""
    warm = train(generate("residents"), folder / "warm", start_from=resident_run.path)
    assert ap_of(warm) > 0.7


def test_a_blend_asks_for_the_columns_of_all_its_models(query_run, folder, tmp_path):
    """Trees that read types only, and a network that reads amounts too: a query brings both."""
    small = {"trees": 5, "rounds": 5, "epochs": 1, "neighbors": 4, "transitions": 0, "batch": SMALL["batch"]}
    trees = dm.train(
        generate("purchases"),
        "trees",
        out=folder / "types",
        device="cpu",
        **small,
        numeric_columns=0,
        query_columns=True,
    )[0]
    blended = dm.blend([trees.path, query_run.path], out=tmp_path)
    pairs = last_pairs(generate("purchases"))
    odd = pairs | {"amount": [1e-3, 1e6]}
    assert blended.score(pairs)["score"].to_pylist() != blended.score(odd)["score"].to_pylist()
