"""Exported trees give the scores of the run, from a table of events, without torch and without this package."""

import ast
import csv
import io
import json
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dygmamba as dm
from dygmamba.history.view import PairBatch
from dygmamba.models.base import DatasetFacts
from dygmamba.models.configs import TreesConfig
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.export_numpy import _describe_features, copy_modules
from dygmamba.runs.tree_scorer import History, Scorer, compute_digest
from purchases import generate_purchases
from raising import raises
from strategies import event_streams
from streams import split_stream

SMALL = {"trees": 24, "rounds": 24, "epochs": 1, "leaves": 8, "rate": 0.3, "least": 5}
ULPS = 1e-15  # of the logistic function, which numpy and torch round differently
# In a process of its own, with numpy and Numba alone: events and queries come in, logits and scores go out. The modules
# of dygmamba come from the program.
ABSENT = """
import os, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ImportError(f"{{name}} is not installed here")

sys.meta_path.insert(0, Absent())
sys.path.insert(0, os.path.relpath(sys.argv[1]))
"""
ALONE = (
    ABSENT.format(absent=("torch", "jaxtyping", "pyarrow", "pandas"))
    + """
import numpy as np
from scorer import Scorer

os.chdir(os.path.dirname(sys.argv[1]))  # the relative path in sys.path leads nowhere now
given = np.load(sys.argv[2])
read = lambda kind: [given[f"{kind}.{name}"] for name in ("src", "dst", "time")]
columns = lambda kind: {name[len(kind) + 8:]: given[name] for name in given if name.startswith(f"{kind}.column.")}
scorer = Scorer.load(sys.argv[1])
half = len(given["event.time"]) // 2
for part in (slice(0, half), slice(half, None)):
    scorer.observe(*(column[part] for column in read("event")), {n: c[part] for n, c in columns("event").items()})
methods = {"logit": scorer.compute_logits, "score": scorer.score}
answer = {name: method(*read("query"), columns("query")) for name, method in methods.items()}
assert "torch" not in sys.modules
own = [module for name, module in sys.modules.items() if name.partition(".")[0] == "dygmamba"]
assert own and all(module.__file__.startswith(sys.path[0]) for module in own)
np.savez(sys.argv[3], **answer)
"""
)


@cache
def messages():
    """A stream between people with text ids, ties and self-loops."""
    drawn, names = np.random.default_rng(1), np.array([f"person {k}" for k in range(30)])
    src, dst = (names[(30 * drawn.random(900) ** 2).astype(int)] for _ in range(2))
    return dm.read({"src": src, "dst": dst, "time": np.sort(drawn.integers(0, 600, 900)).astype(float)})


@cache
def purchases():
    """A bipartite stream with amounts and categories."""
    return generate_purchases(customers=30, shops=80, events=900, categories=4)


def read_real(folder, name, count):
    """The first events of a real stream."""
    with np.load(folder / f"{name}.npz") as stored:
        columns = {key: stored[key][:count] for key in stored.files}
    table = {"src": columns["src"], "dst": columns["dst"], "time": columns["t"]}
    features = columns.get("edge_feat", np.zeros((count, 0)))
    table |= {f"feature_{place}": features[:, place] for place in range(features.shape[1])}
    return dm.read(table, features=[name for name in table if name.startswith("feature")])


def list_rows(data, kind):
    """The events of a dataset as arrays by the names that the process above reads."""
    store, features = data.store, data.store.features
    ends = (
        data.ids.to_user(nodes.numpy()).to_numpy(zero_copy_only=False) for nodes in (store.src, store.dst)
    )
    rows = dict(zip(("src", "dst"), ends, strict=True)) | {"time": store.time.numpy()}
    rows = {name: column.astype(str) if column.dtype == object else column for name, column in rows.items()}
    for name, column in zip(features.edge_names, features.edge.T.numpy(), strict=True):
        rows[f"column.{name}"] = column
    for place, category in enumerate(features.categories):
        rows[f"column.{category.name}"] = np.array(category.values)[features.codes[:, place].numpy()]
    return {f"{kind}.{name}": column for name, column in rows.items()}


def make_queries(events):
    """Events of every age with their own and with other destinations, before, between and after all, and new ids."""
    rows = {name.removeprefix("event."): column for name, column in events.items()}
    count = len(rows["time"])
    chosen = np.random.default_rng(0).integers(0, count, 300)
    queries = {name: np.concatenate([column[chosen]] * 3) for name, column in rows.items()}
    queries["dst"] = np.concatenate(
        [rows["dst"][chosen], np.roll(rows["dst"][chosen], 7), rows["dst"][chosen]]
    )
    last = rows["time"].max() + np.random.default_rng(1).random(300) * np.ptp(rows["time"])
    queries["time"] = np.concatenate([rows["time"][chosen], rows["time"][chosen] + 0.25, last])
    queries["time"][:2] = rows["time"].min() - 1.0
    is_text = queries["src"].dtype.kind == "U"
    queries["src"][2], queries["dst"][3] = ("nobody", "no one") if is_text else (10**6, 10**6 + 1)
    return {f"query.{name}": column for name, column in queries.items()}


FEATURES = [f"dygmamba.history.{name}" for name in ("columns", "counts", "transitions")]


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory):
    """A function that copies programs to one path, so that processes which use them compile the kernels once."""
    folder = tmp_path_factory.mktemp("program")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(folder / "cache"))
        yield lambda program: shutil.copy(program, folder / "scorer.zip")


def score_alone(program, given, folder):
    """The answers of a process in which neither this package nor torch can be imported."""
    np.savez(folder / "given.npz", **given)
    words = [
        sys.executable,
        "-I",
        "-c",
        ALONE,
        *map(str, (program, folder / "given.npz", folder / "answer.npz")),
    ]
    subprocess.run(words, check=True, cwd=folder, timeout=300)
    return dict(np.load(folder / "answer.npz"))


def score_with_run(run, given):
    """Logits and scores of the run itself."""
    table = {
        name.removeprefix("query.").removeprefix("column."): given[name] for name in given if "query." in name
    }
    predictor = run._predictor
    queries = predictor._read_queries(table, None)
    logit = predictor.ranker.logits(queries.src, queries.dst, queries.time, columns=queries.columns)
    (score,) = (column for column in run.score(table).to_pydict().items() if "score" in column[0])
    return {"logit": logit.numpy(), "score": np.array(score[1])}


@pytest.mark.parametrize("query_columns", [False, True])
@pytest.mark.parametrize("stream", ["messages", "purchases", "uci"])
def test_the_program_scores_like_the_run_where_the_package_is_not_installed(
    stream, query_columns, request, place, tmp_path
):
    """For text ids, bipartite streams with columns and real ones: the logits to the bit, and the scores."""
    if stream == "uci":
        data = read_real(request.getfixturevalue("real_data"), stream, 3000)
    else:
        data = {"messages": messages, "purchases": purchases}[stream]()
    if query_columns and not data.store.features.has_columns:
        pytest.skip("this stream has no columns")
    (run,) = dm.train(data, "trees", out=tmp_path, device="cpu", **SMALL, query_columns=query_columns)
    program = place(run.export(tmp_path / "scorer.zip"))
    events = list_rows(data, "event")
    given = events | make_queries(events)
    found, expected = score_alone(program, given, tmp_path), score_with_run(run, given)
    assert np.ptp(expected["logit"]) > 1
    np.testing.assert_array_equal(found["logit"], expected["logit"])
    np.testing.assert_allclose(found["score"], expected["score"], rtol=ULPS, atol=0)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    (run,) = dm.train(purchases(), "trees", out=folder, device="cpu", **SMALL)
    return run, run.export(folder / "scorer.zip")


def test_the_command_scores_files(exported, place, tmp_path):
    """`python scorer.zip events.csv pairs.csv`, and the same of the unpacked program, print the scores of the run."""
    run, program = exported[0], place(exported[1])
    rows = {
        name.removeprefix("event.").removeprefix("column."): c
        for name, c in list_rows(purchases(), "event").items()
    }
    names = Scorer.load(program).about["table"]
    for file, part in (("events.csv", slice(None)), ("pairs.csv", slice(-9, None))):
        with open(tmp_path / file, "w", newline="") as out:
            writer = csv.writer(out)
            writer.writerow([*names, *list(rows)[3:]])
            writer.writerows(zip(*(column[part].tolist() for column in rows.values()), strict=True))
    with zipfile.ZipFile(program) as archive:
        own = {"scorer.py", "model.npz", "__main__.py", "README.txt"}
        assert set(archive.namelist()) == {*own, *copy_modules(FEATURES)}
        archive.extractall(tmp_path / "unpacked")
    expected = run.score({name: rows[name][-9:] for name in ("src", "dst", "time")})["score"].to_numpy()
    for path in (program, tmp_path / "unpacked" / "scorer.py"):  # each compiles its kernels, which takes 10 s
        words = [sys.executable, str(path), "events.csv", "pairs.csv"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        scores = [float(row["score"]) for row in csv.DictReader(io.StringIO(done.stdout))]
        np.testing.assert_allclose(scores, expected, rtol=ULPS, atol=0)
    done = subprocess.run(
        [*words[:2], "events.csv", "missing.csv"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_without_numba_the_error_says_what_to_install(exported, tmp_path):
    _, program = exported
    runner = (
        ABSENT.format(absent=("numba",)) + "import runpy; runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    words = [sys.executable, "-I", "-c", runner, str(program)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == "error: the scorer needs numpy and Numba; run `pip install numpy numba`\n"


def test_the_program_is_in_the_zip_once():
    """Among its copied modules it would be there or not, depending on the order of a set."""
    assert "dygmamba/runs/tree_scorer.py" not in copy_modules(FEATURES)


def test_the_copied_modules_need_no_torch():
    """They import nothing but the standard library, numpy, Numba and each other; jaxtyping is replaced."""
    known = {*sys.stdlib_module_names, "numpy", "numba", "llvmlite", "jaxtyping"}
    copies = copy_modules(FEATURES)
    for path, content in copies.items():
        for node in ast.parse(content).body:
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dygmamba."):
                base = str(node.module).replace(".", "/")
                names = [f"{base}/{name.name}.py" for name in node.names]
                assert f"{base}.py" in copies or set(names) <= set(copies), path
                continue
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            assert {str(name).partition(".")[0] for name in names} <= known, path


def test_exporting_twice_gives_the_same_bytes(exported, tmp_path):
    run, program = exported
    assert run.export(tmp_path / "again.zip").read_bytes() == program.read_bytes()


def test_a_damaged_model_is_refused(exported, tmp_path):
    """For all bytes of model.npz that are changed, and all lengths it is cut to: ValueError, never other scores."""
    _, program = exported
    whole = Scorer.load(program)
    with zipfile.ZipFile(program) as archive:
        content = archive.read("model.npz")
    folder = tmp_path / "model"
    folder.mkdir()
    for place in np.linspace(0, len(content) - 1, 40).astype(int):
        for damaged in (
            content[:place],
            content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :],
        ):
            (folder / "model.npz").write_bytes(damaged)
            with suppress(ValueError):
                scorer = Scorer.load(folder)  # a changed byte that no reader looks at, such as one of a date
                assert scorer.about == whole.about
                assert compute_digest(scorer.arrays) == compute_digest(whole.arrays)
    program_bytes = program.read_bytes()
    (tmp_path / "cut.zip").write_bytes(program_bytes[: len(program_bytes) // 2])
    with pytest.raises(ValueError, match="export the run again"):
        Scorer.load(tmp_path / "cut.zip")


def test_later_events_with_new_nodes_count_as_for_the_run(tmp_path):
    """For events that came after training, with ids that training did not see: the scores of `run.observe`."""
    (run,) = dm.train(messages(), "trees", out=tmp_path, device="cpu", **SMALL)
    rows = {name.removeprefix("event."): column for name, column in list_rows(messages(), "event").items()}
    scorer = Scorer.load(run.export(tmp_path / "scorer.zip"))
    scorer.observe(rows["src"], rows["dst"], rows["time"])
    later = [
        ("zoe", "person 1", 700.0),
        ("adam", "zoe", 700.0),
        ("zoe", "adam", 700.0),
        ("adam", "person 2", 701.5),
    ]
    for row in later:
        scorer.observe(*([value] for value in row))
    ends = ["zoe", "adam", "person 1", "person 2", "nobody"]
    pairs = [(a, b) for a in ends for b in ends]
    expected = run.observe(later).score(pairs)["score"].to_numpy()
    src, dst = zip(*pairs, strict=True)
    np.testing.assert_allclose(scorer.score(src, dst), expected, rtol=ULPS, atol=0)


def test_wrong_events_are_refused(exported):
    """Events before those observed, times that are none and missing columns each raise ValueError."""
    _, program = exported
    rows = {name.removeprefix("event."): column for name, column in list_rows(purchases(), "event").items()}
    columns = {name.removeprefix("column."): rows[name] for name in rows if "column." in name}
    scorer = Scorer.load(program)
    events = (rows["src"], rows["dst"], rows["time"])
    scorer.observe(*events, columns)
    with pytest.raises(ValueError, match="earlier than one observed before"):
        scorer.observe(*events, columns)
    with pytest.raises(ValueError, match="not finite"):
        scorer.score(*events[:2], np.full(len(events[0]), np.nan))
    with pytest.raises(ValueError, match="as many of each"):
        scorer.score(events[0], events[1][:-1], events[2])
    with pytest.raises(ValueError, match="give `columns`"):
        Scorer.load(program).observe(*events)


def test_other_models_are_refused(tmp_path):
    """Walk-trees and networks: an error that says what to use instead."""
    data = dm.generate(nodes=30, events=200, communities=3)
    settings = {"trees": 2, "rounds": 2, "epochs": 1}
    for model, chosen in (("walk-trees", settings), ("graphmixer", {"epochs": 1})):
        (run,) = dm.train(data, model, out=tmp_path, device="cpu", **chosen)
        with raises("model-not-exportable"):
            run.export(tmp_path / "scorer.zip")


def build_features(store, neighbors):
    """The features of trees on a stream by an index: a function of pairs, and the history of an exported scorer."""
    stream = split_stream(store)
    facts = DatasetFacts.of(store, torch.arange(len(store)))
    scorer = BoostedTrees(TreesConfig(neighbors=neighbors, scales=3, transitions=2), facts)
    history = History(json.loads(json.dumps(_describe_features(scorer.requests, "trees"))))

    def compute(src, dst, time):
        return scorer.features(stream.view(PairBatch.from_pairs(src, dst, time), scorer.requests)).numpy()

    return compute, history


@given(
    store=event_streams(min_events=2),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    neighbors=st.sampled_from([1, 3, 64]),
)
def test_features_are_those_of_the_package_however_events_arrive(store, cuts, neighbors):
    """For all streams with ties and self-loops, all partitions into parts and all query times."""
    compute, history = build_features(store, neighbors)
    src, dst, time = store.src, store.dst, store.time
    bounds = sorted({0, len(store), *(cut for cut in cuts if cut < len(store))})
    for low, high in pairwise(bounds):
        rows = (column[low:high].numpy() for column in (src, dst, time))
        history.append(*rows, store.num_nodes, {})
    queries = (src.repeat(2), dst.flip(0).repeat(2), torch.cat([time, time + 0.25]))
    found = history.compute_features(*(column.numpy() for column in queries), {})
    np.testing.assert_array_equal(found, compute(*queries))
