"""`dygmamba predict`, as someone with a log, a trained run and tomorrow's log meets it."""

import csv
import io
import json
import random
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numba
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import dygmamba as dm
from commands import error_code
from dygmamba.cli import main
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.ids import NodeIds
from dygmamba.data.generate.stream import GeneratorConfig, generate_stream
from dygmamba.data.readers import ReadOptions, read_dataset
from dygmamba.data.storage.dataset import Dataset, save_dataset
from dygmamba.runs.calibration import calibrate_link_run
from dygmamba.runs.link_training import start_link_run
from dygmamba.runs.opening import parse_split
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import QueryParser
from raising import raises
from tables import table, write_csv

pytestmark = pytest.mark.e2e

TINY = {"length": 8, "width": 4, "epochs": 1, "blocks": 1, "states": 4, "out": 8, "time_dim": 8, "lr": 0.02}
SMALL: dict[str, Any] = {"trees": 4, "rounds": 4, "epochs": 1, "leaves": 4, "neighbors": 4, "transitions": 0}
HEADER = ["when", "who", "whom", "words"]


class Place(NamedTuple):
    folder: Path
    run: Path

    def predictor(self, **choices) -> Predictor:
        return Predictor.open(self.run, "cpu", self.folder, **choices)


@pytest.fixture(autouse=True, scope="module")
def _alone():
    """One thread: the tensors are tiny, and threads that wait for each other on a busy machine are slow."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1), numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0]), numba.set_num_threads(before[1])


def train(dataset: Dataset, folder: Path) -> Place:
    """A tiny run whose answers differ."""
    save_dataset(dataset, folder)
    fit = start_link_run(dataset, "dyg-mamba", 0, TINY, torch.device("cpu"), folder / "runs")
    fit()
    calibrate_link_run(fit)
    fit.run.write_results([])  # it is finished
    return Place(folder, fit.run.path)


@pytest.fixture(scope="module")
def mail(network_run) -> Place:
    """Who wrote to whom in May: string ids, dates, one feature."""
    return Place(network_run.path.parents[1], network_run.path)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory) -> Place:
    """A generated stream: numbers for ids and times."""
    store = generate_stream(GeneratorConfig(nodes=40, events=300, communities=4, seed=1))
    store = replace(store, time=store.time - store.time[0])  # away from seconds since 1970
    return train(
        Dataset.from_events("numbered", store, NodeIds.identity(40)), tmp_path_factory.mktemp("numbered")
    )


@pytest.fixture(scope="module")
def shop(tmp_path_factory) -> dict[str, Place]:
    """Purchases with an amount and a payment: a run that reads those of a query, and one that does not."""
    folder, draw, rows = tmp_path_factory.mktemp("shop"), random.Random(0), []
    for k in range(300):
        when = datetime(2024, 5, 1, tzinfo=UTC) + timedelta(hours=k + draw.random() / 2)
        customer = draw.randrange(8)
        payment, amount = ("cash", "card")[customer % 2], 10 * (1 + customer) + draw.randint(0, 500) / 100
        rows.append(
            [when.isoformat(timespec="seconds"), f"c{customer}", f"p{draw.randrange(9)}", amount, payment]
        )
    path = write_csv(folder / "shop.csv", ["time", "customer", "product", "amount", "payment"], rows)
    options = ReadOptions(src="customer", dst="product", features=("amount",), types=("payment",))
    save_dataset(data := read_dataset(path, options), folder)
    return {
        name: Place(
            folder,
            dm.train(data, "trees", out=folder / name, device="cpu", **SMALL, query_columns=name == "query")[
                0
            ].path,
        )
        for name in ("query", "plain")
    }


@pytest.fixture
def ask(monkeypatch, capsys):
    """The command in this process: exit code, stdout, stderr."""

    def call(place: Place, *words: object, command: str = "predict") -> tuple[int, str, str]:
        arguments = (command, place.run, *words, "--data-dir", place.folder, "--device", "cpu")
        monkeypatch.setattr(sys, "argv", ["dygmamba", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_tomorrows_pairs_with_todays_events_and_people_never_seen(mail, ask, tmp_path):
    """Own ids and dates in, own ids and dates out, in the order asked; new events and new people count."""
    asked = [
        ["ann", "bob", "2024-05-12"],
        ["Zoë, Ltd.", "hal", "2024-05-12T08:00+02:00"],
        [" new ", "ann", "2024-05-12 09:00"],
    ]
    pairs = write_csv(tmp_path / "pairs.csv", ["who", "whom", "when"], asked)
    _, out, err = ask(mail, "--pairs", pairs)
    assert "2 ids without any event: new, hal" in err
    before = rows_of(out)
    assert [list(row.values())[:3] for row in before] == [[word.strip() for word in row] for row in asked]
    assert all(0 < float(row["score"]) < 1 for row in before)
    new = [["2024-05-11 12:00:00", "hal", "ann", 7], ["2024-05-11 11:00", "ann", "bob", 3]]
    events = write_csv(tmp_path / "new.csv", HEADER, new)
    code, _, err = ask(mail, "--pairs", pairs, "--events", events, "--out", tmp_path / "scores.csv")
    assert (code, err.count("\n")) == (0, 2), err
    assert "1 id without any event: new" in err
    after = rows_of((tmp_path / "scores.csv").read_text())
    assert all(one["score"] != other["score"] for one, other in zip(before, after, strict=True))
    assert [path.name for path in tmp_path.glob("scores*")] == ["scores.csv"]


def test_times_may_be_written_in_a_format_that_is_said(mail, ask, tmp_path):
    """Pairs, `--at` and events with `--time-format` are those with ISO dates, and come back as they were written."""
    iso, own = ("2024-05-12T09:05", "2024-05-11T12:00"), ("12/05/24 09.05", "11/05/24 12.00")
    found = {}
    for (asked, happened), how in ((iso, ()), (own, ("--time-format", "%d/%m/%y %H.%M"))):
        events = write_csv(tmp_path / "new.csv", HEADER, [[happened, "ann", "bob", 3]])
        timed = write_csv(tmp_path / "timed.csv", ["who", "whom", "when"], [["ann", "bob", asked]])
        plain = write_csv(tmp_path / "plain.csv", ["who", "whom"], [["ann", "bob"]])
        for words in (("--pairs", timed), ("--pairs", plain, "--at", asked)):
            code, out, err = ask(mail, *words, "--events", events, *how)
            assert code == 0, err
            (row,) = rows_of(out)
            assert row.pop("time") == asked
            found.setdefault(how, []).append(row)
    assert found[()] == found[how]
    assert found[()][0] == found[()][1]
    run = dm.open(mail.run, device="cpu", data_dir=mail.folder, time_format="%d/%m/%y %H.%M")
    knows = run.observe({"who": ["ann"], "whom": ["bob"], "when": [own[1]], "words": [3]})
    assert knows.time_format == run.time_format
    assert knows.score([("ann", "bob")], own[0])["score"][0].as_py() == pytest.approx(float(row["score"]))


def test_a_question_may_be_written_as_the_data_were(tmp_path):
    """Without a word, `at` and a cut take the format that the dataset was imported with, and ISO dates as well."""
    rows = [["a", "b", f"{day:02}x05x2024"] for day in range(1, 13)]
    file = write_csv(tmp_path / "own.csv", ["src", "dst", "time"], rows)
    data = read_dataset(file, ReadOptions(time_format="%dx%mx%Y"))
    desk = QueryParser(data, ReadOptions(), has_integer_ids=False)
    said, iso = (desk.read({"src": ["a"]}, at).time for at in ("11x05x2024", "2024-05-11"))
    assert torch.equal(said, iso)
    assert (
        parse_split(data, "08x05x2024,10x05x2024").numbers
        == parse_split(data, "2024-05-08,2024-05-10").numbers
    )
    with raises("invalid-time", ConfigError):
        desk.read({"src": ["a"]}, "31x31x2024")


def test_an_unknown_id_is_a_node_before_its_first_event(mail, tmp_path):
    """For all ids in no event, the score is the one they will have had once they are in a later event."""
    pairs = {"src": ["ann", "x", "y", "x"], "dst": ["x", "y", "ann", "x"]}
    later = write_csv(tmp_path / "later.csv", HEADER, [["2024-06-01", "x", "y", 1]])
    unknown = mail.predictor().score(pairs, "2024-05-12")
    known = mail.predictor().with_events(later).score(pairs, "2024-05-12")
    assert unknown.table["score"].to_pylist() == pytest.approx(known.table["score"].to_pylist(), abs=1e-6)
    assert (unknown.unknown_ids, known.unknown_ids) == (("x", "y"), ())


def test_two_sides_stay_two_sides(ask, tmp_path):
    """In a bipartite stream only destinations are ranked, and 'z' may join either side."""
    rows = [["abcdef"[k % 6], "cdefgh"[k % 7 % 6], k] for k in range(240)]
    file = write_csv(tmp_path / "visits.csv", ["user", "item", "t"], rows)
    visits = train(read_dataset(file, ReadOptions(bipartite=True)), tmp_path)
    events = write_csv(tmp_path / "new.csv", ["user", "item", "t"], [["z", "c", 250], ["a", "z", 251]])
    code, out, err = ask(visits, "--sources", "a,z", "--events", events, "--top", 99)
    assert (code, err.count("note")) == (0, 1), err
    expected = {(source, shop, "252") for source in "az" for shop in "cdefghz"}
    assert {(row["src"], row["dst"], row["time"]) for row in rows_of(out)} == expected
    # g has events, only not as a user: that is said, and its ranking is that of a user without any
    code, out, err = ask(visits, "--sources", "g,nobody", "--top", 3)
    assert "1 id without any event: nobody\n" in err
    assert "1 id was only ever a destination, and counts here as a source without events: g; to find" in err
    ranked = [(row["dst"], row["score"]) for row in rows_of(out)]
    assert ranked[:3] == ranked[3:]
    pairs = write_csv(tmp_path / "swapped.csv", ["user", "item"], [["h", "a"], ["g", "b"]])
    code, _, err = ask(visits, "--pairs", pairs)
    assert "2 ids were only ever destinations, and count here as sources without events: h, g" in err
    assert "2 ids were only ever sources, and count here as destinations without events: a, b; check" in err
    assert "without any event" not in err


def test_numbers_stay_numbers(numbered, ask, tmp_path, monkeypatch):
    """Integer ids and plain times come back as such, from CSV, Parquet and Python."""
    parquet.write_table(pa.table({"u": [3, 5], "i": [4, 99], "ts": [1e9, 2e9]}), tmp_path / "pairs.parquet")
    _, out, _ = ask(numbered, "--pairs", tmp_path / "pairs.parquet", "--json")
    found = json.loads(out)["predictions"]
    assert [(row["src"], row["dst"], row["time"]) for row in found] == [(3, 4, 1e9), (5, 99, 2e9)]
    events = write_csv(tmp_path / "new.csv", ["src", "dst", "time"], [[5, "x99", 17.5]])
    monkeypatch.setenv("DYGMAMBA_DATA", str(numbered.folder))
    run = dm.open(numbered.run, device="cpu").observe(events)
    best = run.rank([5], k=2, at=2e9).to_pydict()
    assert (best["src"], best["time"], best["rank"]) == ([5, 5], [2e9, 2e9], [1, 2])


def test_a_run_that_does_not_fit_is_one_sentence(numbered, ask, tmp_path):
    """Dates for a stream of numbers, damaged weights, no weights, no run folder: exit code 2 and one line."""
    pairs = table(tmp_path / "pairs.csv", "src,dst,time\n1,2,2024-05-01\n")
    copy = Place(numbered.folder, shutil.copytree(numbered.run, tmp_path / "run"))
    weights = copy.run / "checkpoint" / "best.safetensors"
    spoils = {
        "dates-for-plain-times": lambda: None,
        "damaged-checkpoint": lambda: weights.write_bytes(weights.read_bytes()[:100]),
        "no-checkpoint": weights.unlink,
        "not-a-run": lambda: shutil.rmtree(copy.run),
    }
    for expected, spoil in spoils.items():
        spoil()
        code, out, err = ask(copy, "--pairs", pairs, "--json")
        assert (code, error_code(out), err.count("\n")) == (2, expected, 1)


PURCHASES = "customer,product,time,amount,payment\nc1,p2,2024-05-14,-5.50,card\nc1,p2,2024-05-14,950,cash\n"


def test_predictions_repeat_the_columns_of_the_query(shop, ask, tmp_path, monkeypatch):
    """By name, after the time, in every form of output; a run that does not read them repeats none."""
    pairs = table(tmp_path / "pairs.csv", PURCHASES)
    names = ["src", "dst", "time", "amount", "payment", "score"]
    code, out, err = ask(shop["query"], "--pairs", pairs)
    assert (code, out.splitlines()[0]) == (0, ",".join(names)), err
    assert [(row["amount"], row["payment"]) for row in rows_of(out)] == [("-5.5", "card"), ("950.0", "cash")]
    _, out, _ = ask(shop["query"], "--pairs", pairs, "--json", "--top-per-day", 1)
    (best,) = json.loads(out)["predictions"]
    assert list(best) == names
    assert (best["amount"], best["payment"]) in [(-5.5, "card"), (950.0, "cash")]
    file = tmp_path / "scores.parquet"
    assert ask(shop["query"], "--pairs", pairs, "--out", file, "--threshold", 0)[0] == 0
    assert parquet.read_table(file).select(["amount", "payment"]).to_pydict() == {
        "amount": [-5.5, 950.0],
        "payment": ["card", "cash"],
    }
    assert ask(shop["plain"], "--pairs", pairs)[1].startswith("src,dst,time,score\n")
    monkeypatch.setenv("DYGMAMBA_DATA", str(shop["query"].folder))
    comma = table(tmp_path / "comma.csv", "src,dst,amount,payment\nc1,p2,1.097,card\n")
    assert rows_of(ask(shop["query"], "--pairs", comma, "--decimal", ",")[1])[0]["amount"] == "1.097"
    comma = table(tmp_path / "comma.csv", 'src,dst,amount,payment\nc1,p2,"1.097,2",card\n')
    assert rows_of(ask(shop["query"], "--pairs", comma, "--decimal", ",")[1])[0]["amount"] == "1.097,2"
    given = {"src": ["c1"], "dst": ["p2"], "payment": ["card"], "amount": [3]}
    found = dm.open(shop["query"].run, device="cpu").score(given)
    assert found.column_names == ["src", "dst", "time", "payment", "amount", "score"]
    assert found["amount"].to_pylist() == [3]


def test_explain_refuses_columns_that_the_run_does_not_read(shop, ask, monkeypatch):
    """The sentence names the columns that the run reads, or says how to train a run that reads some."""
    pair = ("--pair", "c1,p2", "--orders", 1)
    given = ("--column", "amount=1", "--column", "payment=card")
    expected = [
        (
            "query",
            ("--column", "nonsense=1"),
            "'nonsense' of the event in question; give only amount, payment",
        ),
        ("query", ("--column", "time=1"), "'time'"),
        ("plain", (), "train a run that reads them with --set query_columns=true"),
    ]
    for name, more, sentence in expected:
        code, out, err = ask(shop[name], *pair, *given, *more, "--json", command="explain")
        assert (code, error_code(out), err.count("\n")) == (2, "columns-not-read", 1), err
        assert sentence in err
    assert ask(shop["query"], *pair, *given, command="explain")[0] == 0
    monkeypatch.setenv("DYGMAMBA_DATA", str(shop["plain"].folder))
    with raises("columns-not-read", ConfigError):
        dm.open(shop["plain"].run, device="cpu").explain(("c1", "p2"), columns={"amount": 1})


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_pairs_that_cannot_be_read_are_left_out_on_demand(shop, ask, tmp_path, suffix):
    """Bad ids, times and numbers and short rows alike, with their numbers in the note; and the scores of the others."""
    rows = [
        ["c1", "p2", "2024-05-14", "5", "card"],
        ["c1", "p2", "2024-05-14", "five", "card"],
        ["c1", "p2", "2024-05-14", "nan", "card"],
        ["c1", "", "2024-05-14", "7", "card"],
        ["c1", "p2", "soon", "8", "card"],
        ["c1", "p2"],
        ["c2", "p3", "2024-05-14", "10", "cash"],
    ]
    names = ["customer", "product", "time", "amount", "payment"]
    lines = (
        [",".join(row) for row in (names, *rows)]
        if suffix == "csv"
        else [json.dumps(dict(zip(names, row, strict=False))) for row in rows]
    )
    pairs = table(tmp_path / f"pairs.{suffix}", "\n".join(lines) + "\n")
    code, out, err = ask(shop["query"], "--pairs", pairs, "--skip-bad")
    assert code == 0, err
    assert [(row["src"], float(row["amount"])) for row in rows_of(out)] == [("c1", 5), ("c2", 10)]
    note = " ".join(err.split())
    assert (
        "note: 5 bad rows were left out: data row 2, column 'amount' is 'five', not a number; data row 3"
        in note
    )
    assert "data row 4, column 'product' is empty; data row 5, column 'time' is 'soon'" in note
    good = table(tmp_path / "good.csv", "\n".join(",".join(row) for row in (names, rows[0], rows[-1])) + "\n")
    assert ask(shop["query"], "--pairs", good)[1] == out
    code, out, err = ask(shop["query"], "--pairs", pairs, "--json")
    assert (code, err.count("\n")) == (2, 1), err
    for content in (rows[1:3], rows[5:6]):
        bad = table(tmp_path / "bad.csv", "\n".join(",".join(row) for row in (names, *content)) + "\n")
        code, out, err = ask(shop["query"], "--pairs", bad, "--skip-bad", "--json")
        assert (code, error_code(out), err.count("\n")) == (2, "no-rows", 1), err


def test_unknown_values_of_a_query_are_named(shop, ask, tmp_path, monkeypatch, caplog):
    """By `predict`, `explain` and `Run.score`; the scores are there all the same."""
    rows = [f"c1,p2,5,{word}" for word in ("card", "Card", "bitcoin", "Card", "")]
    pairs = table(tmp_path / "pairs.csv", "\n".join(["src,dst,amount,payment", *rows]) + "\n")
    code, out, err = ask(shop["query"], "--pairs", pairs)
    assert (code, len(rows_of(out))) == (0, 5), err
    assert "note: 3 values of payment that no event has: Card, bitcoin, (empty); check" in " ".join(
        err.split()
    )
    words = ("--pair", "c1,p2", "--orders", 1, "--column", "amount=5", "--column")
    for word, number in (("payment=Card", 1), ("payment=card", 0)):
        _, _, err = ask(shop["query"], *words, word, command="explain")
        assert err.count("1 value of payment that no event has: Card") == number
    monkeypatch.setenv("DYGMAMBA_DATA", str(shop["query"].folder))
    dm.open(shop["query"].run, device="cpu").score(pairs)
    assert "3 values of payment that no event has" in caplog.text


def test_columns_that_the_run_does_not_read_are_named(shop, ask, tmp_path):
    """Those of the dataset; a column of the user's own, such as a comment, is nobody's concern."""
    pairs = table(tmp_path / "pairs.csv", "src,dst,amount,payment,comment\nc1,p2,5,card,x\n")
    for name, number in (("plain", 1), ("query", 0)):
        code, _, err = ask(shop[name], "--pairs", pairs)
        note = "note: the run does not read amount, payment (trained without query_columns)\n"
        assert (code, err.count(note), err.count("comment")) == (0, number, 0), err


def test_a_run_that_reads_columns_of_the_query_cannot_rank(shop, ask):
    """The sentence says why, and which run can."""
    code, out, err = ask(shop["query"], "--sources", "c1", "--top", 3, "--json")
    assert (code, error_code(out), err.count("\n")) == (2, "query-columns-missing", 1), err
    assert "cannot rank destinations, because a candidate has no amount or payment" in err
    assert "--set query_columns=false" in err
    assert ask(shop["plain"], "--sources", "c1", "--top", 3)[0] == 0


def test_ids_are_read_from_json_lines_and_a_mistyped_file_is_no_id(ask, tmp_path):
    """A file of objects is a table; a name with a suffix or a folder that is neither a file nor an id is refused."""
    rows = [["abcdef"[k % 6], "cdefgh"[k % 7 % 6] + (".csv" if k % 7 == 3 else ""), k] for k in range(240)]
    place = train(
        read_dataset(write_csv(tmp_path / "v.csv", ["src", "dst", "t"], rows), ReadOptions()), tmp_path
    )
    plain, objects = (table(tmp_path / name, text) for name, text in (
        ("ids.txt", "a\nb\n"), ("ids.jsonl", '{"src": "a"}\n{"src": "b"}\n')
    ))  # fmt: skip
    expected = ask(place, "--sources", "a,b", "--top", 2)
    assert expected[0] == 0
    assert ask(place, "--sources", plain, "--top", 2) == expected
    assert ask(place, "--sources", objects, "--top", 2) == expected
    among = table(tmp_path / "among.jsonl", '{"dst": "c"}\n{"dst": "d"}\n')
    assert ask(place, "--sources", "a", "--top", 2, "--candidates", among) == ask(
        place, "--sources", "a", "--top", 2, "--candidates", "c,d"
    )
    for option in ("--sources", "--candidates"):
        rest = () if option == "--sources" else ("--sources", "a")
        for name in ("idz.txt", f"{tmp_path}/nothing"):
            code, _, err = ask(place, option, name, *rest, "--top", 2)
            assert (code, "neither a file nor an id of 'v'" in " ".join(err.split())) == (2, True), err
    assert ask(place, "--sources", "f.csv", "--top", 2)[0] == 0  # an id


def test_pairs_are_read_from_standard_input(ask, tmp_path, monkeypatch):
    rows = [["abcdef"[k % 6], "cdefgh"[k % 7 % 6], k] for k in range(240)]
    place = train(
        read_dataset(write_csv(tmp_path / "v.csv", ["src", "dst", "t"], rows), ReadOptions()), tmp_path
    )
    pairs = write_csv(tmp_path / "pairs.csv", ["src", "dst"], [["a", "c"], ["b", "d"]])
    expected = ask(place, "--pairs", pairs)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(pairs).read_bytes())))
    assert ask(place, "--pairs", "-") == expected
