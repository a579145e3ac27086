"""Ranks among a leaderboard's candidates: equal to TGB's evaluator and to a loop over its lists."""

import json

import numpy as np
import pytest
import torch

import dygmamba as dm
from board_cases import seq_folder, tgb_folder
from commands import invoke
from contract_cases import TINY
from dygmamba.config import build_config
from dygmamba.core.errors import ConfigError
from dygmamba.data.storage.leaderboard import load_leaderboard
from dygmamba.engine.evaluation import rank_evaluation_set, score_evaluation_set
from dygmamba.engine.stream import Stream
from dygmamba.engine.visibility import VisibilityRule
from dygmamba.history.view import PairBatch
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.candidates import BoardCandidates
from dygmamba.tasks.link import build_link_set
from dygmamba.tasks.metrics import count_ranked_above, rank_metrics
from raising import raises

# scores of five events and of six candidates each, ties among them, and what py-tgb 2.3.0 made of them, event by event
POSITIVE = (0.5, 0.25, -1.0, 0.75, 2.0)
NEGATIVE = (
    (0.5, 0.5, 0.0, 0.75, -2.0, 0.5),
    (0.0, -1.0, 0.0, 0.125, 0.0, 0.0),
    (0.0, 1.0, 2.0, 3.0, 4.0, -1.0),
    (0.75, 0.75, 0.75, 0.75, 0.75, 0.75),
    (3.0, 1.0, 1.0, 2.0, 2.0, 4.0),
)
TGB_MRR = (0.2857142984867096, 1.0, 0.1538461595773697, 0.25, 0.25)
TGB_HITS_3 = (0.0, 1.0, 0.0, 0.0, 0.0)


def test_evaluator_equals_tgb():
    """Ranks equal stored figures of py-tgb event by event, in its 32 bits; the mean to 1e-12."""
    positive, negative = torch.tensor(POSITIVE).double(), torch.tensor(NEGATIVE).double()
    rank = 1 + count_ranked_above(positive, negative)
    assert [float(np.float32(1 / one)) for one in rank.tolist()] == list(TGB_MRR)
    assert [float(one <= 3) for one in rank.tolist()] == list(TGB_HITS_3)
    exact = [3.5, 1.0, 6.5, 4.0, 4.0]
    assert rank.tolist() == exact
    found = rank_metrics(rank, ("mrr", "hits@3"))
    assert abs(found["mrr"] - sum(1 / one for one in exact) / 5) < 1e-12
    assert found["hits@3"] == 0.2


def test_stored_figures_equal_py_tgb():
    """If py-tgb is installed, its evaluator gives the stored figures again."""
    evaluate = pytest.importorskip("tgb.linkproppred.evaluate", reason="py-tgb is not installed")
    judge = evaluate.Evaluator(name="tgbl-wiki", k_value=3)
    for one, others, mrr, hits in zip(POSITIVE, NEGATIVE, TGB_MRR, TGB_HITS_3, strict=True):
        found = judge.eval(
            {"y_pred_pos": np.array([one]), "y_pred_neg": np.array(others), "eval_metric": ["mrr"]}
        )
        assert (float(found["mrr"]), float(found["hits@3"])) == (mrr, hits)


@pytest.fixture(scope="module")
def wiki(tmp_path_factory):
    """A tiny tgbl-wiki in a data folder, and its contents."""
    folder = tmp_path_factory.mktemp("wiki")
    rows, negatives = tgb_folder(folder / "tgbl_wiki", events=200)
    dm.save(dm.read(folder / "tgbl_wiki"), data_dir=folder)
    return folder, rows, negatives


@pytest.mark.parametrize("visible", ["strict", "batch"])
@pytest.mark.parametrize("name", ["dyg-mamba", "tgn", "edgebank"])
def test_ranks_are_among_tgb_negatives(wiki, name, visible):
    """Stateless, stateful and heuristic models: each test event is ranked against TGB's list for it."""
    folder, rows, negatives = wiki
    data = dm.load("tgbl-wiki", folder)
    board, spec, rule = load_leaderboard(data), find_model(name), VisibilityRule(visible, batch_size=20)
    stream = Stream(data.store, board.split.split(data.store), torch.device("cpu"))
    torch.manual_seed(0)
    scorer = spec.build(
        build_config(spec.config, TINY.get(name, {})), DatasetFacts.of(data.store, stream.split.train)
    )
    evaluation_set = build_link_set(data.store, stream.split, "test")
    rank = rank_evaluation_set(
        scorer, stream, evaluation_set, BoardCandidates.create(board, "test", evaluation_set.events), rule
    )
    for number, event in list(enumerate(evaluation_set.events.tolist()))[::7]:
        asked = torch.tensor([rows[event][1], *negatives["test"][rows[event]].astype(int)])
        times = data.store.time[event].expand(len(asked))
        pairs = PairBatch.from_pairs(data.store.src[event].expand(len(asked)), asked, times)
        own = EvaluationSet(
            evaluation_set.about,
            evaluation_set.events,
            evaluation_set.earlier,
            pairs.with_labels(torch.ones(len(asked))),
            torch.full((len(asked),), number),
        )
        score = score_evaluation_set(scorer, stream, own, rule).double()
        score[1:][asked[1:] == asked[0]] = score[0]
        above, level = (score[1:] > score[0] + 1e-6).sum(), (score[1:] >= score[0] - 1e-6).sum()
        assert float(rank[number]) == float(1 + (above + level) / 2)


def test_a_run_uses_the_leaderboard_split(wiki, monkeypatch, capsys):
    """By default no node is held out, and rows name the candidates, the split and the visibility."""
    folder, *_ = wiki
    data = dm.load("tgbl-wiki", folder)
    how = {"out": folder / "runs", "device": "cpu", "epochs": 1, "data_dir": folder, "time_dim": 6}
    (run,) = dm.train(data, "jodie", **how)
    words = (
        "evaluate",
        str(run.path),
        "--metrics",
        "mrr,hits@10",
        "--candidates",
        "board",
        "--split",
        "val,test",
    )
    code, out, _ = invoke(monkeypatch, capsys, *words, "--json", "--data-dir", str(folder), "--device", "cpu")
    rows = json.loads(out)["results"]
    assert (code, [row["split"] for row in rows]) == (0, ["val", "test"])
    about = {key: rows[1][key] for key in ("candidates", "board", "ties", "visible", "split_by", "n")}
    assert about == {
        "candidates": "board",
        "board": "tgb",
        "ties": "mean rank",
        "visible": "strict",
        "split_by": "board tgb",
        "n": 30,
    }
    again = dm.open(run.path, device="cpu", data_dir=folder).evaluate(metrics="mrr", candidates="board")
    assert again.to_pylist()[0]["mrr"] == rows[1]["mrr"]
    (held,) = dm.train(data, "jodie", split="0.6,0.2,0.2", **how)
    with raises("not-the-board-split", ConfigError):
        held.evaluate(metrics="mrr", candidates="board")


def test_mistakes_have_one_line_messages(wiki, monkeypatch, capsys, tmp_path):
    """Missing leaderboard, filtered board candidates, wrong split; TGB-Seq's test works."""
    folder, *_ = wiki
    dm.save(dm.generate(nodes=40, events=600, communities=4, name="plain"), data_dir=folder)
    for words in (
        ("evaluate", "plain", "--metrics", "mrr", "--candidates", "board"),
        ("evaluate", "tgbl-wiki", "--metrics", "mrr", "--candidates", "board", "--filtered"),
        ("train", "plain", "--split", "board", "--device", "cpu", "--out", str(tmp_path)),
    ):
        code, _, error = invoke(monkeypatch, capsys, *words, "--data-dir", str(folder))
        assert (code, error.count("\n")) == (2, 1), words
    _, drawn = seq_folder(tmp_path / "seq")
    table = dm.evaluate(
        dm.read(tmp_path / "seq"), "popularity", metrics="mrr", candidates="board"
    ).to_pylist()
    assert [(row["board"], row["n"]) for row in table] == [("tgb-seq", len(drawn))]
