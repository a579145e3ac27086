"""Explanations of a small trained run on the generated stream, whose law is known, and of runs of other kinds."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from statistics import mean
from xml.etree import ElementTree

import pyarrow as pa
import pytest
import torch

import dygmamba as dm
from commands import invoke
from dygmamba.core.errors import ConfigError, EventError, NotFoundError
from dygmamba.explain import event_removal
from dygmamba.explain.event_removal import build_game
from dygmamba.explain.pairs import ScoreScale, explain_pair, find_strongest_events
from dygmamba.explain.shapley import CachedGame, estimate_shapley
from dygmamba.history.view import PairBatch
from dygmamba.report.explanation_document import build_explanation_document, describe_event
from dygmamba.report.html import render_document
from dygmamba.runs.predictor import Predictor
from raising import raises

HALF_LIFE = 7_200.0  # of the generated stream's law
SMALL = {"length": 10, "width": 4, "states": 2, "blocks": 1, "time_dim": 4, "lr": 0.01, "device": "cpu"}
REASON = [
    *("event", "side", "src", "dst", "time", "age", "count", "contribution", "error"),
    *("score_without", "left", "read", "columns"),
]
SHAPE = [
    *(
        "model",
        "task",
        "src",
        "dst",
        "time",
        "time_assumed",
        "seconds",
        "logit",
        "score",
        "base",
        "base_score",
    ),
    *("reasons", "without", "flip", "numbers", "removal", "orders", "scored", "gap", "notes", "rest"),
]


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """A replay tries few events, so that each test is quick."""
    monkeypatch.setattr(event_removal, "MAX_EVENTS_PER_NODE", 3)


def one(src, dst, time):
    """One question as a batch."""
    return PairBatch.from_pairs(
        torch.tensor([src]), torch.tensor([dst]), torch.tensor([time], dtype=torch.float64)
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Six epochs on 2,000 events among 48 nodes that neither roam nor move; validation AP about 86."""
    data = dm.generate(nodes=48, events=2_000, communities=4, roam_share=0.0, drift=0.0)
    (made,) = dm.train(data, epochs=6, out=tmp_path_factory.mktemp("runs"), **SMALL)
    return made


@pytest.fixture(scope="module")
def predictor(run):
    return Predictor.open(run.path, "cpu")


@pytest.fixture(scope="module")
def asked(predictor):
    """Sixty events of the test period: source, destination and time."""
    store, test = predictor.dataset.store, predictor.run.stream.split.test
    rows = test[torch.linspace(0, len(test) - 1, 60).long()]
    return [(int(store.src[row]), int(store.dst[row]), float(store.time[row])) for row in rows]


@pytest.fixture(scope="module")
def games(predictor, asked):
    """Of each question a game and its shares from one pair of orders."""
    stream, found = predictor.ranker.stream_scorer.stream, []
    for src, dst, time in asked:
        ledger = CachedGame(build_game(predictor.run.scorer, stream, one(src, dst, time), 0))
        found.append((ledger, estimate_shapley(ledger, 1, seed=0)))
    return found


@pytest.fixture(scope="module")
def letter_runs(network_run, letter_trees_run, node_run, memory_run):
    """Names and dates: a link run, trees, a classifier and a model with a memory."""
    return {"link": network_run, "trees": letter_trees_run, "node": node_run, "tgn": memory_run}


def test_contributions_and_base_are_the_logit(run, asked):
    """For all pairs: they add up to the logit to 1e-9, and the score is that of `score`, to float32 rounding."""
    scores = run.score([(src, dst, time) for src, dst, time in asked[:8]])["score"].to_pylist()
    for (src, dst, time), score in zip(asked, scores, strict=False):
        found = run.explain((src, dst), time, orders=1)
        total = found.base + sum(reason.contribution for reason in found.reasons)
        assert total == pytest.approx(found.logit, abs=1e-9)
        assert found.gap < 1e-9
        assert found.score == pytest.approx(score, abs=1e-4)


def test_removing_what_pushed_most_lowers_the_score_more_than_removing_what_comes(games):
    """Over sixty pairs, one event or three: three times as far in the mean as drawn ones, and further for most pairs.

    Not for all: of several meetings that say the same, no single one is missed.
    """
    rng = torch.Generator().manual_seed(1)
    for count in (1, 3):
        strongest, drawn = [], []
        for ledger, found in games:
            chosen = found.value.argsort(descending=True)[:count].tolist()
            others = [torch.randperm(len(found.value), generator=rng)[:count].tolist() for _ in range(4)]
            fall = (found.logit - ledger.without([chosen, *others])).tolist()
            strongest.append(fall[0])
            drawn.append(mean(fall[1:]))
        assert len(strongest) >= 50
        assert mean(strongest) > 3 * mean(drawn)
        assert mean(a > b for a, b in zip(strongest, drawn, strict=True)) > 0.7


def test_what_the_law_says_matters_comes_out_on_top(games, predictor, asked):
    """A return is weighed by what is left of the pair's own meetings, and of the recent ones more is left.

    Where a pair has met, its strongest push is a meeting, mostly; meetings within the half-life count more than older
    ones, and those more than events with others, of which the law knows nothing.
    """
    time, kinds, first = predictor.dataset.store.time, {"recent": [], "old": [], "other": []}, []
    for (ledger, found), (_, _, when) in zip(games, asked, strict=True):
        players = ledger.game.players
        met = [player.of_src and player.of_dst for player in players]
        for player, meeting, value in zip(players, met, found.value.tolist(), strict=True):
            recent = when - float(time[player.events[-1]]) < HALF_LIFE
            kinds["other" if not meeting else "recent" if recent else "old"].append(value)
        if any(met):
            first.append(met[int(found.value.argmax())])
    assert mean(first) > 0.7
    assert mean(kinds["recent"]) > mean(kinds["old"]) > mean(kinds["other"]) + 0.2
    assert min(map(len, kinds.values())) > 50


def test_what_ifs_are_what_the_model_says(predictor, asked):
    """For all sets: the score without them is the model's; a turning set has up to ten events, and turns."""
    turned = 0
    for src, dst, time in asked[:8]:
        found = explain_pair(predictor, (src, dst), time, orders=1)
        pair = one(src, dst, time)
        scale = ScoreScale(predictor.calibration, predictor.find_new_ends(pair.src, pair.dst, pair.time))
        game = build_game(predictor.run.scorer, predictor.ranker.stream_scorer.stream, pair, 0)
        place = {player.events[0]: at for at, player in enumerate(game.players)}
        ledger = CachedGame(game)
        for what in (*found.without, *([found.flip] if found.flip else [])):
            (logit,) = ledger.without([[place[event] for event in what.events]]).tolist()
            assert what.logit == pytest.approx(logit, abs=1e-5)
        for reason in found.reasons[:2]:
            (logit,) = ledger.without([[place[reason.event]]]).tolist()
            assert reason.score_without == pytest.approx(scale(logit), abs=1e-4)
        if found.flip is not None:
            turned += 1
            assert len(found.flip.events) <= 10
            assert (found.flip.score >= 0.5) != (found.score >= 0.5)
    assert turned


def test_more_orders_make_the_errors_smaller(run, asked):
    """One pair of orders tells no errors; sixteen tell smaller ones than four; all add up alike, the same each time."""
    src, dst, time = asked[-1]
    one, four, many = (run.explain((src, dst), time, orders=orders) for orders in (1, 4, 16))
    assert {reason.error for reason in one.reasons} == {None}
    assert mean(r.error for r in many.reasons) < mean(r.error for r in four.reasons)
    assert run.explain((src, dst), time) == four


def test_what_a_page_says_beside_an_answer_is_the_explanation(run, predictor, asked, letter_runs):
    """For all pairs: the same events and amounts as `explain` with one pair of orders; of a memory none are told."""
    src, dst, time = zip(*asked[:4], strict=True)
    pairs = PairBatch.from_pairs(
        torch.tensor(src), torch.tensor(dst), torch.tensor(time, dtype=torch.float64)
    )
    told = find_strongest_events(predictor.run, pairs, 3)
    for (src, dst, time), listed in zip(asked, told, strict=False):
        found = run.explain((src, dst), time, orders=1)
        assert [by for _, by in listed] == pytest.approx(
            [r.contribution for r in found.reasons[:3]], abs=1e-6
        )
        assert all(words.endswith(" before") or "older events" in words for words, _ in listed)
        assert [reason.side == "both" for reason in found.reasons[:3]] == ["they met" in w for w, _ in listed]
    memory = Predictor.open(letter_runs["tgn"].path, "cpu").run
    with raises("model-without-window", ConfigError):
        find_strongest_events(memory, one(0, 1, float(memory.stream.store.time[-1])), 3)


def test_trees_tell_their_numbers_and_the_events_behind_them(letter_runs):
    """Exact Shapley values of every number, with their base the logit; and the newest events, which add up too."""
    found = letter_runs["trees"].explain(("ann", "bob"))
    numbers = found.numbers
    assert numbers.base + sum(one.contribution for one in numbers.strongest) == pytest.approx(
        found.logit, abs=1e-9
    )
    amounts = [abs(one.contribution) for one in numbers.strongest]
    assert amounts == sorted(amounts, reverse=True)
    assert found.base + sum(one.contribution for one in found.reasons) == pytest.approx(found.logit, abs=1e-9)
    assert found.removal == "stream"
    assert {"ann", "bob"} & {found.reasons[0].src, found.reasons[0].dst}


@pytest.mark.parametrize("name", ["node", "tgn"])
def test_classifiers_and_memories_are_explained_too(letter_runs, name):
    """A node's risk by its own past; a memory by the stream without the newest events."""
    made = letter_runs[name]
    found = made.explain("ann" if name == "node" else ("ann", "bob"), "2024-05-09")
    score = (
        made.classify(["ann"], "2024-05-09") if name == "node" else made.score([("ann", "bob")], "2024-05-09")
    )
    assert found.score == pytest.approx(score["score"][0].as_py(), abs=1e-5)
    assert found.gap < 1e-9
    assert (found.dst, found.removal) == ((None, "window") if name == "node" else ("bob", "stream"))
    assert all(str(reason.time) < "2024-05-09" for reason in found.reasons)


def test_mistakes_are_errors_with_a_code(run, letter_runs):
    """Unknown ids, nothing before the time, a node instead of a pair, no orders."""
    start = float(run.data.store.time[0])
    with raises("no-earlier-events", EventError) as caught:
        run.explain((1, 2), start)
    assert "1 and 2" in str(caught.value)
    with raises("unknown-node", NotFoundError) as caught:
        letter_runs["link"].explain(("ghost", "spectre"))
    assert "ghost and spectre" in str(caught.value)
    with raises("not-a-pair", ConfigError):
        run.explain("ann")
    with raises("memory-needs-known-nodes", ConfigError) as caught:
        letter_runs["tgn"].explain(("ann", "ghost"))
    assert "ghost" in str(caught.value)
    with raises("orders-not-positive", ConfigError):
        run.explain((1, 2), orders=0)
    half = letter_runs["link"].explain(("ann", "ghost"))
    (note,) = half.notes
    assert note.startswith("ghost has no event")
    assert {reason.side for reason in half.reasons} == {"src"}


def test_the_json_is_one_object_of_this_shape(letter_runs, monkeypatch, capsys):
    """Keys in this order, own ids and dates, the rest summed up; and nothing else on stdout."""
    words = (
        "explain",
        str(letter_runs["link"].path),
        "--pair",
        '"Zoë, Ltd.", bob',
        "--at",
        "2024-05-09",
        "--top",
        "3",
    )
    code, out, err = invoke(monkeypatch, capsys, *words, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert list(found) == SHAPE
    assert [list(reason) for reason in found["reasons"]] == [REASON] * 3
    assert (found["src"], found["dst"], found["time"]) == ("Zoë, Ltd.", "bob", "2024-05-09")
    parts = (
        found["base"] + found["rest"]["contribution"] + sum(one["contribution"] for one in found["reasons"])
    )
    assert parts == pytest.approx(found["logit"], abs=1e-9)
    assert found["reasons"][0]["time"].startswith("2024-05-0")
    assert all(0 < one["left"] < 1 for one in found["reasons"])
    assert list(found["without"][0]) == ["events", "logit", "score"]


def test_the_command_shows_a_table_and_writes_pages(letter_runs, monkeypatch, capsys, tmp_path):
    """Every part of the sum has its line; the page and the picture are well-formed, and what users wrote is escaped."""
    at = ("--at", "2024-05-09")
    for name, words in (
        ("link", ("--pair", "ann,bob", *at)),
        ("trees", ("--pair", "ann,bob")),
        ("node", ("--node", "ann")),
    ):
        out = tmp_path / "made" / f"{name}.html"
        line = ("explain", str(letter_runs[name].path), *words, "--orders", "1", "--out", str(out))
        code, shown, _ = invoke(monkeypatch, capsys, *line)
        assert code == 0
        assert all(part in shown for part in ("score 0.", "base", "logit", "contribution"))
        text = out.read_text("utf-8")
        assert "<script" not in text
        HTMLParser().feed(text)
        assert text.count("<figcaption>") == text.count("<svg")
    svg = tmp_path / "why.svg"
    words = ("explain", str(letter_runs["link"].path), "--pair", "ann,bob", "--out", str(svg), "--json")
    assert invoke(monkeypatch, capsys, *words)[0] == 0
    ElementTree.fromstring(svg.read_text("utf-8"))
    found = letter_runs["link"].explain(("ann", "bob"), orders=1)
    assert "<i>" not in render_document(build_explanation_document(replace(found, src="<i>", notes=("<i>",))))


def test_events_are_named_with_their_types_and_numbers(tmp_path):
    """In the JSON, in the table, on the page and in the text."""
    rows = [
        {"src": k % 5, "dst": 5 + k * k % 7, "time": 10.0 * k, "kind": "ab"[k % 2], "amount": 0.1 + k}
        for k in range(120)
    ]
    data = dm.read(pa.Table.from_pylist(rows), features="amount", types="kind", name="named")
    (run,) = dm.train(data, "trees", epochs=1, rounds=2, out=tmp_path, device="cpu")
    found = run.explain((2, 6))
    for reason in found.reasons:
        assert reason.columns == {key: rows[reason.event][key] for key in ("kind", "amount")}
    strongest = found.reasons[0]
    named = f"kind {strongest.columns['kind']}, amount {strongest.columns['amount']:.6g}"
    assert named in describe_event(found, strongest)
    assert named in render_document(build_explanation_document(found))
    assert found.table["columns"].to_pylist() == [reason.columns for reason in found.reasons]


def test_the_destination_that_makes_another_one_likely_is_named(tmp_path):
    """Where each source comes to b0, b1 or b2 after a0, a1 or a2, with others in between."""
    rows = [
        (f"u{who}", f"{kind}{who % 3}" if kind != "x" else f"x{who % 7}", 100.0 * who + after)
        for who in range(60)
        for after, kind in enumerate("axxb")
    ]
    events = [
        *rows,
        *((f"v{number}", f"{kind}", 7000.0 + number) for number, kind in enumerate(("a1", "x5"))),
    ]
    events += [("v0", "x5", 7003.0)]
    (run,) = dm.train(events, "trees", out=tmp_path, device="cpu", epochs=1, trees=4, rounds=4)
    (note,) = [note for note in run.explain(("v0", "b1"), at=7010.0, orders=1).notes if "after" in note]
    assert note.startswith("b1 after a1: 20 events on b1 had a1 among the last 10 destinations")
    assert note.endswith("a1 had 21 events")
    assert not any("after" in note for note in run.explain(("v1", "a1"), at=7001.5, orders=1).notes)


def test_the_type_of_the_earlier_event_is_named_where_it_decides(tmp_path):
    """Where b follows a that was bought, and never a that was only seen; not once b was bought as well."""
    rows = [
        {"src": f"u{who}", "dst": dst, "time": 100.0 * who + after, "kind": kind}
        for who in range(60)
        for after, (dst, kind) in enumerate(
            [("a", "buy" if who % 3 else "see"), ("b" if who % 3 else "c", "buy")]
        )
    ]
    rows += [{"src": "v", "dst": "a", "time": 7000.0, "kind": "buy"}]
    data = dm.read(pa.Table.from_pylist(rows), types="kind", name="typed")
    (run,) = dm.train(data, "trees", out=tmp_path, device="cpu", epochs=1, trees=4, rounds=4)
    (note,) = [note for note in run.explain(("v", "b"), at=7001.0, orders=1).notes if "after" in note]
    assert note.startswith(
        "b after a with kind 'buy': 40 events on b were the first there of their source within 10"
    )
    assert note.endswith("a had 41 events with kind 'buy'")
    (note,) = [note for note in run.explain(("u1", "b"), at=7001.0, orders=1).notes if "after" in note]
    assert note.startswith("b after a: 40 events on b had a among")
