"""From a frame to an answer, in one process and in the next."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import dygmamba as dm
from dygmamba.core.errors import ConfigError, DygWarning, FileError, NotFoundError
from dygmamba.data.storage.dataset import Dataset, save_dataset
from dygmamba.runs.calibration import load_calibration
from letters import COLUMNS, PEOPLE, SMALL, make_letters, run_python
from raising import raises
from torture_cases import SECONDS
from trained import copy_run

pytestmark = pytest.mark.e2e

SCRIPTS = {
    "pandas": "frame = pd.DataFrame(make_letters())",
    "polars": "frame = pl.DataFrame(make_letters())",
}
TWELVE = """\
import pandas as pd, polars as pl
import dygmamba as dm
from letters import make_letters
{frame}
data = dm.read(frame, src="who", dst="whom", time="when", features=["words"], name="letters")
runs = dm.train(data, epochs=1, length=6, width=4, blocks=1, device="cpu")
best = runs[0].rank(["ann", "bob"], k=3).to_pandas()
run = dm.open(runs[0].path).observe([("ann", "hal", "2024-05-12", 5.0)])
after = run.score([("ann", "hal")]).to_pandas()
print(best.to_json(), after.to_json(), run.report(), sep="\\n")
"""
TEMPORAL = """\
import torch, dygmamba as dm
from torch_geometric.data import TemporalData
rng = torch.Generator().manual_seed(0)
ends = torch.randint(9, (2, 240), generator=rng)
data = dm.read(TemporalData(src=ends[0], dst=ends[1], t=torch.arange(240), msg=torch.randn(240, 2, generator=rng)))
runs = dm.train(data, epochs=1, length=6, width=4, blocks=1, device="cpu")
best = runs[0].rank([3, 4], k=3).to_pandas()
new = TemporalData(src=ends[0, :1], dst=ends[0, :1] + 20, t=ends[0, :1] + 240, msg=torch.ones(1, 2))
run = dm.open(runs[0].path).observe(new)
after = run.score([(3, 25)]).to_pandas()
print(best.to_json(), after.to_json(), run.report(), sep="\\n")
"""


@pytest.mark.parametrize("name", ["TemporalData", *SCRIPTS] if SECONDS else ["pandas"])
def test_twelve_lines_from_a_frame_to_a_page(name, tmp_path):
    """In a fresh process: frame, training, a ranking as a frame, the score of a new pair after `observe`, a page."""
    code = TEMPORAL if name == "TemporalData" else TWELVE.format(frame=SCRIPTS[name])
    assert len(code.splitlines()) <= 12
    best, after, page = run_python(code, tmp_path).splitlines()
    ranks = pd.DataFrame(json.loads(best))
    assert list(ranks["rank"]) == [1, 2, 3] * 2
    assert ranks["score"].between(0, 1).all()
    assert 0 < pd.DataFrame(json.loads(after))["score"].iloc[0] < 1
    assert 20_000 < (tmp_path / page).stat().st_size < 300_000


def test_runs_are_a_sequence_with_mean_and_spread(network_runs):
    """Each seed a run; tables are Arrow's; the summary is the mean over the seeds and their deviation."""
    assert len(network_runs) == 2
    assert isinstance(network_runs[:1], dm.Runs)
    assert network_runs.metrics["seed"].to_pylist() == [0, 1]
    results = network_runs.results.to_pandas()
    rows = network_runs.summary.to_pandas().set_index(["split", "setting"])
    for key, own in results.groupby(["split", "setting"]):
        assert rows.loc[key, "ap"] == pytest.approx(own["ap"].mean())
        assert rows.loc[key, "ap_std"] == pytest.approx(own["ap"].std())
        assert rows.loc[key, "seeds"] == 2
    assert "2 runs; val all nodes random: AP " in repr(network_runs)
    assert network_runs[0].metrics.column_names[:2] == ["epoch", "loss"]


def test_notebooks_show_tables_and_escape_names(network_runs):
    """A dataset, a run and runs have HTML; text of others is escaped."""
    shown = [
        thing._repr_html_()
        for thing in (network_runs[0].data, network_runs[0], network_runs, dm.compare([network_runs[0].path]))
    ]
    assert all(page.count("<table>") == page.count("</table>") > 0 for page in shown)
    assert str(network_runs[0].path) in shown[1]
    data = dm.read([("<b>ann", "bob", "2024-05-01")], name="mail")
    assert "&lt;b&gt;ann" in data._repr_html_()
    assert "<b>ann" not in data._repr_html_()


def test_a_run_opens_in_a_new_process_and_says_the_same(network_runs, tmp_path):
    """Data that no name leads to lie beside the runs, once; scores are bit for bit those of this process."""
    run = network_runs[1]
    pairs = [("ann", "bob"), ("x", "ann")]
    code = f"import dygmamba as dm; print(dm.open({str(run.path)!r}).score({pairs})['score'].to_pylist())"
    assert json.loads(run_python(code, tmp_path)) == run.score(pairs)["score"].to_pylist()
    assert len(list(run.path.parent.parent.glob("*.safetensors"))) == 1


def test_a_name_says_which_run_it_stands_for(letter_trees_runs, tmp_path, monkeypatch):
    """A dataset, a folder and latest: the newest run, and a warning that names it; a run directory says nothing."""
    copies = [copy_run(run, tmp_path / "runs") for run in letter_trees_runs]
    monkeypatch.chdir(tmp_path)
    newest = max(copies, key=lambda run: (run.path.name[:15], run.path.stat().st_mtime)).path
    for name in ("letters", "latest", "runs/letters", Path("runs")):
        with pytest.warns(DygWarning, match=f"{name}' is the run .*letters/trees/") as caught:
            run = dm.open(name, device="cpu")
        assert (run.path.parent, len(caught)) == (newest.parent, 1)
        assert caught[0].filename == __file__
        assert str(run.path) in str(caught[0].message)
    assert dm.open(run.path.relative_to(tmp_path), device="cpu").path == run.path


@pytest.mark.parametrize("run", ["letter_trees_run", "network_run", "memory_run"])
def test_no_queries_have_no_scores(run, request):
    """An empty list, or a table without rows, gives the columns of any other answer, and no rows."""
    run = request.getfixturevalue(run)
    for empty in ([], {"src": [], "dst": []}, pd.DataFrame({"src": [], "dst": [], "time": []})):
        found = run.score(empty)
        assert (found.num_rows, found.column_names) == (0, run.score([("ann", "bob")]).column_names)
    assert run.score([], at="2024-07-01").num_rows == 0
    assert run.rank([]).schema == run.rank(["ann"]).schema
    if run.config["run"]["model"] != "trees":
        assert run.embed([]).schema == run.embed(["ann"]).schema


def test_no_nodes_have_no_classes(node_run, tmp_path):
    """As pairs; but a file without rows is a mistake."""
    assert node_run.classify([]).schema == node_run.classify(["ann"]).schema
    (tmp_path / "nodes.csv").write_text("node,time\n")
    with raises("no-rows", FileError):
        node_run.classify(tmp_path / "nodes.csv")


def test_observe_gives_a_new_run_and_leaves_the_old_one(network_run, tmp_path, caplog):
    """Strictly later questions see the new events in the new run only, also after it was saved and opened again."""
    run, at = dm.open(network_run.path, device="cpu"), "2024-06-01"
    before = run.score([("ann", "bob")], at)["score"].to_pylist()
    more = run.observe([("ann", "bob", f"2024-05-{day}", 7.0) for day in (29, 30, 31)])
    assert more is not run
    assert len(more.data) == len(run.data) + 3
    assert run.score([("ann", "bob")], at)["score"].to_pylist() == before
    assert more.score([("ann", "bob")], at)["score"].to_pylist() != before
    more = more.observe([("zoe", "ann", "2024-05-31", 1.0)])
    again = dm.open(run.path, device="cpu", observed=more.save(tmp_path / "may.safetensors"))
    pairs = [("ann", "bob"), ("zoe", "ann")]
    assert again.score(pairs, at) == more.score(pairs, at)
    assert not caplog.records
    assert run.score(pairs, at).num_rows == 2
    assert "1 id has no event and is scored without a history: zoe" in caplog.text
    earlier = run.observe([("ann", "bob", "2024-05-02", 7.0)])
    again = dm.open(run.path, device="cpu", observed=earlier.save(tmp_path / "april.safetensors"))
    assert again.score(pairs, at) == earlier.score(pairs, at)


def test_events_of_another_run_are_not_observed(network_run, tmp_path):
    """Those of other nodes, and those of the same nodes and columns at other times, in other pairs or with others."""
    data, store = network_run.data, network_run.data.store
    turned = {"time": store.time + 60, "src": store.dst, "dst": store.src}
    for change in (*({name: column} for name, column in turned.items()), turned):
        other = Dataset.from_events("other", store.derive(**change, source=None), data.ids, data.origin)
        with raises("events-of-another-run"):
            dm.open(network_run.path, observed=save_dataset(other, tmp_path))
    features = replace(store.features, edge=store.features.edge + 1)
    other = Dataset.from_events("other", store.derive(features=features, source=None), data.ids, data.origin)
    for found in (other, dm.read([("ann", "bob", 1)], name="other")):
        with raises("events-of-another-run"):
            dm.open(network_run.path, observed=save_dataset(found, tmp_path))


def test_a_run_is_refitted_beside_itself_from_inside_of_it(network_run, tmp_path, monkeypatch):
    """A run that is given as "." has the same folders above it as any other path of it."""
    path = copy_run(network_run, tmp_path).path
    monkeypatch.chdir(path)
    refitted = dm.refit(".", device="cpu")
    assert refitted.path.parent == path.parent
    assert refitted.config["run"]["refit_of"] == str(path)


def test_a_memory_of_two_streams_is_two_memories(memory_run):
    """For a model with memory too: asking the new run and the old one in turn changes neither's answers."""
    at, pairs = "2024-06-01", [("ann", "bob"), ("cid", "eve")]
    more = memory_run.observe(pd.DataFrame(make_letters(5, seed=9)))
    first = [one.score(pairs, at)["score"].to_pylist() for one in (memory_run, more)]
    memory_run.embed(["ann"], "2024-05-03")
    assert first == [one.score(pairs, at)["score"].to_pylist() for one in (memory_run, more)]
    assert first[0] != first[1]
    with raises("memory-needs-known-nodes", ConfigError):
        memory_run.score([("ann", "nobody")])


def test_a_ranking_is_the_head_of_all_scores(network_run):
    """`rank` keeps the best of all destinations, or of the candidates; one id or several, of any kind."""
    every = network_run.score([("ann", one) for one in PEOPLE if one != "ann"]).to_pandas()
    best = every.sort_values("score", ascending=False)["dst"].tolist()
    assert network_run.rank("ann", k=3)["dst"].to_pylist() == best[:3]
    chosen = network_run.rank(pd.Series(["ann"]), k=9, candidates=["bob", "cid"]).to_pydict()
    assert chosen["dst"] == [one for one in best if one in ("bob", "cid")]
    assert chosen["rank"] == [1, 2]


def test_embeddings_are_one_per_node(network_run):
    """As many numbers as the encoder makes, for known and unknown nodes; another time, another past."""
    found = network_run.embed(["ann", "bob", "nobody"])
    matrix = np.stack(found["embedding"].to_pylist())
    assert matrix.shape == (3, 172)
    assert np.isfinite(matrix).all()
    early = np.stack(network_run.embed({"src": ["ann"]}, at="2024-05-02")["embedding"].to_pylist())
    assert not np.allclose(early[0], matrix[0])


def test_evaluation_is_that_of_the_training(network_run):
    """`evaluate` of random negatives is what training wrote; a choice that is none is a sentence."""
    own = network_run.evaluate("random", split=["val", "test"]).to_pandas()
    assert own["ap"].tolist() == network_run.results["ap"].to_pylist()
    assert set(network_run.evaluate(setting="transductive")["negatives"].to_pylist()) == {
        "random",
        "historical",
        "inductive",
    }


def test_a_classifier_classifies_and_a_link_run_does_not(network_run, node_run):
    """task="node": states of any node at any time, reopened too; the wrong question is a sentence."""
    found = dm.open(node_run.path, device="cpu").classify(["ann", "bob", "nobody"]).to_pandas()
    assert list(found.columns) == ["node", "time", "score"]
    assert found["score"].between(0, 1).all()
    assert node_run.evaluate(split="val")["auc"].to_pylist() == node_run.results["auc"].to_pylist()[:1]
    more = node_run.observe({"who": ["ann"], "whom": ["bob"], "when": ["2024-06-01"], "words": [9]})
    assert more.classify(["ann"], "2024-07-01")["score"] != node_run.classify(["ann"], "2024-07-01")["score"]
    with raises("not-a-link-run", ConfigError):
        node_run.score([("ann", "bob")])


@pytest.mark.parametrize("column", ["node", "id", "Node", "src", "who"])
def test_nodes_are_read_from_a_column_of_this_name(node_run, tmp_path, column):
    """Also from the output of an earlier prediction, of a file or a table; another name is a sentence."""
    asked = {column: ["bob", "ann"], "time": ["2024-05-09", "2024-05-08"]}
    found = node_run.classify(asked)
    assert found["node"].to_pylist() == ["bob", "ann"]
    assert found["time"].to_pylist() == asked["time"]
    path = tmp_path / "nodes.csv"
    found.to_pandas().rename(columns={"node": column}).to_csv(path, index=False)
    assert node_run.classify(path).to_pylist() == found.to_pylist()
    with raises("column-not-recognized", NotFoundError) as error:
        node_run.classify({"person": ["bob"], "time": ["2024-05-09"]})
    assert "name it node" in str(error.value)


def test_a_classified_event_has_the_score_of_the_evaluation(node_run):
    """Asked about an event's source beside its destination at its time, the score is the one evaluation ranks."""
    from dygmamba.runs.opening import open_run

    data, fit = node_run.data, open_run(node_run.path, torch.device("cpu"), task="node").build_trainer()
    evaluation_set = fit.task.evaluation_set("test")
    expected = load_calibration(fit.run).probability(fit.score(evaluation_set)).numpy()
    rows = evaluation_set.events.numpy()
    ids = [data.ids.to_user(column[rows].numpy()).to_pylist() for column in (data.store.src, data.store.dst)]
    asked = {"src": ids[0], "dst": ids[1], "time": data.store.time[rows].tolist()}
    found = np.array(node_run.classify(asked)["score"].to_pylist())
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_other_data_under_the_same_name_do_not_replace_a_runs_own(tmp_path):
    """Two frames of one name: each run opens on its own events."""
    runs = [
        dm.train(
            dm.read(pd.DataFrame(make_letters(seed=seed)), **COLUMNS, name="log"), out=tmp_path, **SMALL
        )[0]
        for seed in (1, 2)
    ]
    assert len({dm.open(run.path, device="cpu").data.digest for run in runs}) == 2
    next(tmp_path.glob("log/*.safetensors")).unlink()
    with pytest.raises((FileError, NotFoundError), match="log"):
        [dm.open(run.path, device="cpu").data for run in runs]


def test_a_used_run_can_be_pickled(network_run):
    """The copy answers the same; what was only observed is not in the run directory, and says so."""
    run, pairs = network_run, [("ann", "bob")]
    assert pickle.loads(pickle.dumps(run)).score(pairs) == run.score(pairs)
    with raises("run-not-picklable"):
        pickle.dumps(run.observe([("ann", "bob", "2024-06-01", 9.0)]))
