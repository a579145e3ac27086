"""The application against a stand-in of the live run: routes, formats, limits, access, errors."""

import asyncio
import json
import sqlite3
import threading
import time
from contextlib import closing, contextmanager

import pytest
from starlette.testclient import TestClient

import dygmamba as dm
from dygmamba.core.errors import WriteError
from dygmamba.live.event_log import LOG_FILE
from dygmamba.server.app import JsonFormatter, create_app
from dygmamba.server.settings import ServerSettings
from live_stand_in import GatedLive

TOKEN = "0123456789abcdef"
JSON, CSV = {"content-type": "application/json"}, {"content-type": "text/csv"}
LINES = {"content-type": "application/x-ndjson"}
EVENT = {"id": "m-1", "src": "alice", "dst": "gus", "time": "2024-03-01T10:00"}


@contextmanager
def serving(live, **settings):
    app = create_app(lambda: live, ServerSettings(**settings))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        while not app.state.service.is_ready:
            time.sleep(0.005)
        yield client


@pytest.fixture
def live(mail, tmp_path):
    return GatedLive(dm.live(mail, tmp_path / "state"))


@pytest.fixture
def client(live):
    with serving(live) as client:
        yield client


def problem(response, status: int, code: str) -> dict:
    """The problem document of a response."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json"), (
        response.text
    )
    document = response.json()
    assert document["code"] == code, document
    assert document["status"] == status
    assert document["type"].endswith(code)
    return document


def test_scores_are_those_of_the_run_with_ids_and_times_as_given(client, mail):
    """For all spellings of a time, the scores are those of `Run.score`, and times come back as given."""
    times = ["2024-02-10T08:00", "2024-02-10 08:00:00", 1707552000, None]
    pairs = [{"src": "alice", "dst": "bob", "time": time} for time in times]
    answer = client.post("/v1/score", json={"pairs": pairs}).json()
    assert [row["time"] for row in answer["scores"]][:3] == times[:3]
    assert answer["sequence"] == 0
    expected = [mail.score([("alice", "bob", time)] if time else [("alice", "bob")]) for time in times]
    assert [row["score"] for row in answer["scores"]] == [table["score"][0].as_py() for table in expected]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", json.dumps({"events": [EVENT]})),
        ("application/x-ndjson", json.dumps(EVENT) + "\n\n"),
    ],
)
def test_events_in_all_formats_change_scores(client, content_type, body):
    """For all formats, one event changes the score of its pair."""
    ask = {"pairs": [{"src": "alice", "dst": "gus", "time": "2024-03-01T11:00"}], "min_sequence": 0}
    before = client.post("/v1/score", json=ask).json()["scores"][0]["score"]
    answer = client.post(
        "/v1/events?verdicts=all", content=body, headers={"content-type": content_type}
    ).json()
    assert (answer["sequence"], answer["accepted"]) == (1, 1)
    assert answer["verdicts"] == [{"index": 0, "status": "accepted", "sequence": 1, "message": ""}]
    after = client.post("/v1/score", json=ask | {"min_sequence": 1}).json()
    assert after["scores"][0]["score"] != before
    assert after["sequence"] == 1


def test_rank_and_explain_agree_with_score(client):
    ranking = client.post("/v1/rank", json={"sources": ["alice"], "k": 2}).json()["ranking"]
    assert [row["rank"] for row in ranking] == [1, 2]
    pair = {"src": "alice", "dst": ranking[0]["dst"], "time": ranking[0]["time"]}
    score = client.post("/v1/score", json={"pairs": [pair]}).json()["scores"][0]["score"]
    assert score == pytest.approx(ranking[0]["score"])  # the time is shown to the microsecond
    explained = client.post(
        "/v1/explain", json={"src": pair["src"], "dst": pair["dst"], "at": pair["time"]}
    ).json()
    assert explained["explanation"]["score"] == pytest.approx(score)
    assert client.get("/v2/models/mail/ready").json()["ready"]
    assert client.get("/ping").status_code == 200


@pytest.mark.parametrize(
    ("path", "options", "status", "code"),
    [
        ("/v1/score", {"json": {"pairs": []}}, 422, "invalid-request"),
        ("/v1/score", {"json": {"pairs": [{"src": "a"}]}}, 422, "invalid-request"),
        ("/v1/score", {"json": {"pairs": [{"src": True, "dst": 1}]}}, 422, "invalid-request"),
        ("/v1/score", {"json": {"pairs": [{"src": "a", "dst": 2**70}]}}, 422, "invalid-request"),
        ("/v1/score", {"json": {"pairs": [{"src": "a", "dst": 7.6}]}}, 422, "invalid-request"),
        ("/v1/score", {"json": {"pairs": [{"src": "NaN", "dst": "b"}]}}, 422, "bad-value"),
        ("/v1/rank", {"json": {"sources": ["null"]}}, 422, "bad-value"),
        ("/v1/score", {"json": {"pairs": [{"src": "a", "dst": "b"}], "pears": 1}}, 422, "invalid-request"),
        ("/v1/score", {"json": {"pairs": [{"src": "a", "dst": "b", "time": "noon"}]}}, 422, "bad-value"),
        ("/v1/score", {"json": {"pairs": [{"src": "a", "dst": "b"}], "min_sequence": 9}}, 503, "sequence-not-reached"),
        ("/v1/score", {"content": "{", "headers": JSON}, 400, "malformed-json"),
        ("/v1/score", {"content": "{}", "headers": {"content-type": "text/plain"}}, 415, "unsupported-media-type"),
        ("/v1/score", {"content": b"x" * 3000}, 413, "body-too-large"),
        ("/v1/score", {"content": iter([b"x" * 1500] * 2), "headers": JSON}, 413, "body-too-large"),
        ("/v1/score", {"json": {"pairs": [{"src": 1, "dst": 2}] * 9}}, 413, "too-many-rows"),
        ("/v1/events", {"json": {"events": [{"src": [1]}]}}, 422, "invalid-request"),
        ("/v1/events", {"content": "x", "headers": CSV}, 415, "unsupported-media-type"),
        ("/v1/events", {"content": "[" * 100, "headers": JSON}, 400, "malformed-json"),
        ("/v1/events", {"content": b'{"events": [{"src": "\\ud800"}]}', "headers": JSON}, 400, "malformed-json"),
        ("/v1/events", {"json": {"events": [{}] * 60}}, 413, "too-many-values"),
        ("/v1/events", {"content": b"{}\n" * 9, "headers": LINES}, 413, "too-many-rows"),
        ("/v1/score", {"json": {"pairs": [{"src": "a", "dst": "b", "tmie": 1}]}}, 422, "columns-not-read"),
        ("/v1/events", {"content": b"x", "headers": {"content-encoding": "gzip"}}, 415, "unsupported-encoding"),
        ("/v1/classify", {"json": {}}, 409, "not-a-node-run"),
        ("/v1/rank", {"json": {"sources": ["alice"], "candidates": ["nobody"]}}, 422, "unknown-candidate"),
        ("/v1/nothing", {"json": {}}, 404, "not-found"),
        ("/v2/models/mail/infer", {"json": {}}, 404, "not-found"),
    ],
)  # fmt: skip
def test_wrong_requests_get_problem_documents(live, path, options, status, code):
    """For all wrong requests: a status, a code, a sentence; nothing of the request is repeated in the log."""
    with serving(live, max_body_bytes=2000, max_rows=8, max_values=100, timeout=5.0) as client:
        document = problem(client.post(path, **options), status, code)
    assert document["detail"]
    assert live.sequence == 0


def test_problems_say_where_the_request_is_wrong(client):
    """Also in JSON lines, in pairs that are scored in groups, and for values of several types; JSON by its position."""
    good = {"src": "a", "dst": "b"}
    bad = client.post("/v1/events", content=json.dumps(EVENT) + "\n\n{bad\n", headers=LINES)
    assert "line 3 of the body" in problem(bad, 400, "malformed-json")["detail"]
    bad = client.post("/v1/score", json={"pairs": [good, good, good | {"time": "noon"}]})
    detail = problem(bad, 422, "bad-value")["detail"]
    assert detail.startswith("pair 2: column 'time' is 'noon'")
    assert "time_format" not in detail
    bad = client.post("/v1/score", json={"pairs": [good | {"time": [1]}]})
    assert {e["pointer"] for e in problem(bad, 422, "invalid-request")["errors"]} == {"#/pairs/0/time"}
    bad = client.post("/v1/score", content='{"pairs": x', headers=JSON)
    assert "at line 1 column 11" in problem(bad, 400, "malformed-json")["detail"]


def test_a_full_disk_is_507_and_scores_go_on(client, live):
    live.failure = WriteError("cannot write /secret/place: full", code="log-full")
    document = problem(client.post("/v1/events", json={"events": [EVENT]}), 507, "log-full")
    assert "/secret" not in document["detail"]
    assert client.post("/v1/score", json={"pairs": [{"src": "alice", "dst": "bob"}]}).status_code == 200
    live.failure = None
    assert client.post("/v1/events", json={"events": [EVENT]}).json()["accepted"] == 1


def test_an_unexpected_error_names_no_value_and_has_no_traceback(client, live, caplog):
    live.failure = RuntimeError("alice <script>")
    response = client.post("/v1/events", json={"events": [EVENT]}, headers={"x-request-id": "q-1"})
    document = problem(response, 500, "internal-error")
    assert document["instance"].endswith("q-1")
    assert "alice" not in response.text + caplog.text
    assert "Traceback" not in response.text


def test_the_token_opens_every_route_and_nothing_does_without_it(live):
    """For all routes: 401 without the token; a bearer token or basic access opens them."""
    with serving(live, token=TOKEN) as client:
        described = client.get("/openapi.json", headers={"authorization": f"Bearer {TOKEN}"}).json()["paths"]
        routes = [(method, path) for path, methods in described.items() for method in methods]
        assert len(routes) > 11
        hidden = ["/", "/openapi.json", "/nothing", "/static/page.js", "/favicon.ico"]
        for method, path in [*routes, *(("get", path) for path in hidden)]:
            answer = client.request(method, path)
            assert "www-authenticate" in answer.headers
            problem(answer, 401, "token-required")
            wrong = client.request(method, path, headers={"authorization": f"Bearer {TOKEN}x"})
            problem(wrong, 401, "token-required")
        problem(client.get("/ping", headers={"authorization": "Basic ?"}), 401, "token-required")
        assert client.get("/ping", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/ping", auth=("me", TOKEN)).status_code == 200


def test_other_websites_cannot_use_the_browser_of_a_user(client):
    """A page of another origin and a name that resolves to this machine are refused."""
    problem(client.get("/ping", headers={"origin": "http://evil.example"}), 403, "foreign-origin")
    problem(client.get("/ping", headers={"host": "evil.example"}), 403, "unknown-host")
    assert client.get("/ping", headers={"origin": "http://localhost"}).status_code == 200
    for host in ("[::1]:8000", "127.0.0.2:8000", "127.1.2.3"):
        assert client.get("/ping", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(("third", "batches"), [("carol", [1, 4]), ("", [1, 1, 1, 1])])
def test_concurrent_requests_share_a_batch_and_a_wrong_one_spoils_none(live, mail, third, batches):
    """While one batch is scored, the others wait and are scored together; beyond the bound they get 429."""
    live.gate.clear()
    with serving(live, max_waiting=4) as client:
        service, answers, observed = client.app.state.service, [None] * 6, []
        service.metrics.batch_pairs.observe = observed.append
        dsts = ["bob", "bob", third, "carol", "dora", "eve"]

        def ask(k):
            answers[k] = client.post("/v1/score", json={"pairs": [{"src": "alice", "dst": dsts[k]}]})

        threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
        threads[0].start()
        while not service._arriving or service._scores._waiting:
            time.sleep(0.005)
        for place, thread in enumerate(threads[1:5], 1):
            thread.start()
            while len(service._scores._waiting) < place:
                time.sleep(0.005)
        ask(5)
        live.gate.set()
        for thread in threads[:5]:
            thread.join()
    assert answers[5].headers["retry-after"] == "1"
    problem(answers[5], 429, "too-many-requests")
    if not third:
        problem(answers[2], 422, "bad-value")
    scores = [answers[k].json()["scores"][0]["score"] for k in (0, 1, 3, 4)]
    alone = [mail.score([("alice", dst)])["score"][0].as_py() for dst in ("bob", "bob", "carol", "dora")]
    assert scores == alone
    assert observed == batches


def test_503_until_the_run_is_open_and_while_the_server_stops(live):
    opened = threading.Event()

    def open_live():
        opened.wait(10)
        return live

    with TestClient(create_app(open_live, ServerSettings()), base_url="http://localhost") as client:
        assert client.get("/v2/health/live").status_code == 200
        for path in ("/v2/health/ready", "/ping", "/v2/models/mail/ready"):
            problem(client.get(path), 503, "not-ready")
        assert client.post("/v1/events", json={"events": [EVENT]}).headers["retry-after"] == "1"
        opened.set()
        while client.get("/v2/health/ready").status_code != 200:
            time.sleep(0.005)
        client.app.state.service.is_draining = True
        problem(client.get("/v2/health/ready"), 503, "not-ready")
    assert live.is_closed


def test_a_slow_answer_is_given_up(live):
    live.gate.clear()
    with serving(live, timeout=0.05) as client:
        response = client.post("/v1/score", json={"pairs": [{"src": "alice", "dst": "bob"}]})
        live.gate.set()
    assert problem(response, 503, "timeout")["detail"]


def test_an_append_that_took_too_long_is_not_written_or_says_that_it_may_be(live):
    """503 and nothing in the log, also later, so that sending again makes no duplicate; else 504."""
    events = [{"src": "alice", "dst": "bob", "time": f"2024-03-0{day}"} for day in (1, 2, 3)]
    with serving(live, timeout=0.5) as client, closing(sqlite3.connect(live.path / LOG_FILE)) as other:
        other.execute("BEGIN IMMEDIATE")  # the writer has the first request, and waits
        found = [client.post("/v1/events", json={"events": [event]}) for event in events[:2]]
        other.rollback()
        problem(found[0], 504, "append-unconfirmed")
        problem(found[1], 503, "timeout")
        answers = [client.post("/v1/events", json={"events": [event]}).json() for event in events[1:]]
    assert [answer["sequence"] for answer in answers] == [2, 3]


def test_a_body_that_does_not_arrive_is_given_up(live):
    """The connection of a client that sends its body byte by byte is not held for ever."""
    app, sent = create_app(lambda: live, ServerSettings(timeout=0.05)), []
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/score", "headers": headers, "query_string": b""}
    scope |= {"http_version": "1.1", "scheme": "http", "raw_path": b"/v1/score", "root_path": ""}

    async def run():
        async def receive():
            await asyncio.sleep(10)

        async def send(message):
            sent.append(message)

        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 408


def test_metrics_have_routes_as_labels_and_no_ids(client):
    """For all ids, also those with markup or line breaks: none of them is in the metrics."""
    evil = '<script>"\n}'
    client.post("/v1/events", json={"events": [EVENT | {"src": evil}]})
    client.post("/v1/score", json={"pairs": [{"src": evil, "dst": "bob"}]})
    client.get("/%3Cscript%3E")
    text = client.get("/metrics").text
    assert "script" not in text
    for line in (
        'dygmamba_requests_total{method="POST",route="/v1/score",status="200"} 1.0',
        'dygmamba_requests_total{method="GET",route="unmatched",status="404"} 1.0',
        'dygmamba_events_total{verdict="accepted"} 1.0',
        "dygmamba_acknowledged_sequence 1.0",
        "dygmamba_batch_pairs_sum 1.0",
        "dygmamba_requests_in_progress 1.0",
    ):
        assert line in text.splitlines()


def test_an_event_dated_ahead_is_set_aside_and_others_go_on(client, live):
    """Its verdict says so, an alert and a counter too; the next event of the present is accepted."""
    answer = client.post("/v1/events", json={"events": [EVENT | {"time": "2950-01-01"}]}).json()
    assert (answer["accepted"], [one["status"] for one in answer["verdicts"]]) == (0, ["ahead"])
    assert "ahead of the clock" in answer["verdicts"][0]["message"]
    assert client.post("/v1/events", json={"events": [EVENT]}).json()["accepted"] == 1
    status = client.get("/v1/status").json()
    assert (status["facts"]["set_aside"], status["facts"]["max_ahead"]) == (1, 86_400)
    assert [alert["code"] for alert in status["alerts"]] == ["events-ahead"]
    assert 'dygmamba_events_total{verdict="ahead"} 1.0' in client.get("/metrics").text


def test_a_ranking_says_which_sources_have_no_history(tmp_path):
    """In a bipartite stream: an id without events, and one that was a destination only; the answer is still there."""
    data = dm.read([(f"u{k % 5}", f"i{k % 7}", k) for k in range(140)], bipartite=True)
    (run,) = dm.train(data, "trees", rounds=2, device="cpu", out=tmp_path)
    with serving(dm.live(run, tmp_path / "state")) as client:
        answer = client.post("/v1/rank", json={"sources": ["u1", "i3", "x"], "k": 2}).json()
        assert answer["notes"][0] == "x has no event, so it has no history"
        assert answer["notes"][1].startswith("1 id was only ever a destination, and counts here as a source")
        assert [row["src"] for row in answer["ranking"]] == ["u1", "u1", "i3", "i3", "x", "x"]
        assert client.post("/v1/rank", json={"sources": ["u1"]}).json()["notes"] == []
        explained = client.post("/v1/explain", json={"src": "i3", "dst": "i2"}).json()["explanation"]
        assert explained["notes"][0].startswith("1 id was only ever a destination")


def test_ids_never_reach_the_log(client, caplog):
    """For all requests, good and wrong, with ids that hold markup or line breaks: the log has none of them."""
    caplog.set_level("INFO", "dygmamba.server")
    evil = 'secret<script>"\n\x1b[31m'
    requests = [
        (
            "/v1/events",
            {"events": [EVENT | {"id": evil, "src": evil}, {"src": evil}, EVENT | {"time": evil}]},
        ),
        ("/v1/events", {"events": [EVENT | {"src": evil, "time": "2950-01-01"}, {"src": evil, "secret": 1}]}),
        ("/v1/score", {"pairs": [{"src": evil, "dst": evil}]}),
        ("/v1/score", {"pairs": [{"src": evil, "dst": evil, "time": evil}]}),
        ("/v1/rank", {"sources": [evil], "candidates": [evil]}),
        ("/v1/explain", {"src": evil, "dst": "bob"}),
        ("/v1/explain", {"src": evil, "dst": evil, "secret": evil}),
        ("/secret/path?secret=1", {}),
    ]
    for path, body in requests:
        answer = client.post(
            path, json=body, headers={"x-request-id": "secret script", "user-agent": "secret"}
        )
        assert answer.status_code < 500
        assert "script" not in answer.headers["x-request-id"]
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert len(lines) >= len(requests)
    assert not [line for line in lines if "secret" in line or "script" in line]
    assert all(line.isprintable() and json.loads(line)["level"] for line in lines)
