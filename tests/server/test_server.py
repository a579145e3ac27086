"""A real server on a real port: the commands of the manual, the client, the page in a browser, TLS, sources."""

import asyncio
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import dygmamba as dm
from browser import find_browser
from dygmamba.api.client import Client
from dygmamba.api.serving import parse_source
from dygmamba.live.growing_file import GrowingFile
from dygmamba.server.app import run_server
from dygmamba.server.settings import ServerSettings
from live_server import running, running_server
from live_stand_in import GatedLive
from raising import raises

MANUAL = Path(__file__).parents[2] / "docs/how-to/live.md"
PORT = "http://127.0.0.1:8000"
EVIL = '<img src=x onerror=alert(1)>"&amp;'
REFUSED = {"/v1/classify": "not-a-node-run", '"noon"': "bad-value"}


@pytest.fixture(scope="module")
def url(mail, tmp_path_factory):
    state = tmp_path_factory.mktemp("live") / "state"
    with running(lambda: dm.live(mail, state)) as url:
        yield url


def commands() -> list[str]:
    """The requests in the bash blocks of the manual, continued lines joined."""
    blocks = re.findall(r"^```bash\n(.*?)```$", MANUAL.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for line in "".join(blocks).replace("\\\n", " ").splitlines() if PORT in line]


def test_the_curls_of_the_manual_work_and_cover_every_route(url):
    """For all routes of /openapi.json there is a command; all answer as the page says."""
    named = set()
    for line in commands():
        done = subprocess.run(
            ["bash", "-c", line.replace(PORT, url)], capture_output=True, text=True, check=True
        )
        refused = next((code for part, code in REFUSED.items() if part in line), None)
        address = next(word for word in shlex.split(line) if word.startswith(PORT))
        named.add(re.sub(r"/mail", "/{name}", address.removeprefix(PORT).partition("?")[0]))
        if not address.endswith("/metrics"):
            assert json.loads(done.stdout).get("code") == refused, done.stdout
        else:
            assert "dygmamba_acknowledged_sequence 3.0" in done.stdout
    with Client(url) as client:
        assert set(client._request("GET", "/openapi.json")["paths"]) <= named


def test_the_python_of_the_manual_works(url, capsys):
    blocks = re.findall(r"^```python\n(.*?)```$", MANUAL.read_text(), flags=re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "dm.Client(" in block)
    exec(block.replace(PORT, url), {})
    assert "gus" in capsys.readouterr().out


def test_the_client_reports_problems_by_their_code(url, mail):
    """For all wrong calls the error has the code of the server's problem document, or of the client's own check."""
    with Client(url) as client:
        assert client.health()
        assert client.status()["facts"]["dataset"] == "mail"
        assert client.rank("alice", 1)[0]["rank"] == 1
        with raises("not-a-node-run"):
            client.classify()
        with raises("invalid-request"):
            client.rank(["alice"], k=-1)
        with raises("not-json"):
            client.score([("alice", object())])
        with raises("not-json"):
            client.append([("alice", "bob", float("nan"))])
        with raises("malformed-row"):
            client.score(["ab"])
        client._local.connection.sock.shutdown(socket.SHUT_RDWR)  # as the server does with an idle one
        assert client.health()
    with raises("invalid-url"):
        Client("localhost:8000")
    nowhere = Client("http://127.0.0.1:9")
    assert not nowhere.health()
    with raises("server-unreachable"):
        nowhere.score([("a", "b")])


def test_ids_with_markup_stay_text_in_the_page(url, tmp_path):
    """The page scores, explains and ranks what its address says; no script but its own runs, nothing is logged."""
    with Client(url) as client:
        client.append([{"src": "alice", "dst": EVIL, "time": "2024-03-02"}])
    browser = find_browser(tmp_path / "profile")
    link = "#src=alice&dst=" + "".join(f"%{byte:02x}" for byte in EVIL.encode())
    text, said = browser.dom(url + "/", query=link)
    assert said == []
    assert re.search(r'id="result">0\.\d+<', text)
    assert 'id="timeline"' in text
    assert "<img" not in text
    assert "&lt;img src=x" in text
    assert "mail: trees" in text
    text, said = browser.dom(url + "/", query="#src=alice&rank")
    assert said == []
    assert "Likeliest destinations of alice" in text
    assert "<img" not in text


WIDE = """[...document.querySelectorAll("body *")].filter((item) => !item.closest(".skip")
  && item.getBoundingClientRect().right > innerWidth + 1).map((item) => item.outerHTML.slice(0, 80))"""
CUT = """[...document.querySelectorAll("svg text")].filter((item) => {
  const own = item.getBoundingClientRect(), all = item.ownerSVGElement.getBoundingClientRect();
  return own.left < all.left - 1 || own.right > all.right + 1 || own.bottom > all.bottom + 1;
}).map((item) => item.textContent)"""
UNNAMED = """[...document.querySelectorAll("input, button, a, svg, th, section")].filter((item) =>
  !(item.getAttribute("aria-label") || item.getAttribute("aria-labelledby") || item.textContent.trim()
    || (item.labels && item.labels.length))).map((item) => item.outerHTML)"""
LONG_ID = "an-identifier-without-any-blank-" + "0123456789" * 6


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1200, "dark")])
def test_the_page_is_used_with_the_keyboard_alone_and_nothing_is_cut_off(url, tmp_path, width, scheme):
    """Tab reaches every control in order, Enter asks, the focus stays; all is labelled and inside the window."""
    with Client(url) as client:
        client.append([{"src": "alice", "dst": LONG_ID, "time": "2024-03-02"}])
    with find_browser(tmp_path / "profile").drive(width, scheme) as tab:
        tab.call("Page.navigate", url=url + "/")
        tab.wait_for("document.title.startsWith('mail') && document.readyState === 'complete'")
        reached = []
        for text in ("", "alice", LONG_ID, "", "", ""):
            tab.press("Tab", 9)
            reached.append(tab.evaluate("document.activeElement.id || document.activeElement.className"))
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            if text:
                tab.call("Input.insertText", text=text)
        assert reached == ["skip", "src", "dst", "at", "score", "rank"]
        tab.press("Enter", 13, "\r")
        tab.wait_for(
            "document.getElementById('answer').textContent.startsWith('Likeliest destinations of alice')"
        )
        assert tab.evaluate("document.activeElement.id") == "rank"
        assert (tab.evaluate(WIDE), tab.evaluate(CUT), tab.evaluate(UNNAMED)) == ([], [], [])
        tab.evaluate("document.getElementById('dst').focus()")
        tab.press("Enter", 13, "\r")
        tab.wait_for("document.getElementById('timeline') !== null")
        assert (tab.evaluate(WIDE), tab.evaluate(CUT), tab.evaluate(UNNAMED)) == ([], [], [])
        dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 21)"
        assert dark == (scheme == "dark")


def test_tls_and_token_together(mail, tmp_path):
    """With a certificate the server speaks TLS only, and the client needs the authority and the token."""
    cert, key, token = tmp_path / "cert.pem", tmp_path / "key.pem", "0123456789abcdef"
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        *name,
    ]
    subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)
    state = tmp_path / "state"
    with running(lambda: dm.live(mail, state), tls_cert=cert, tls_key=key, token=token) as url:
        assert url.startswith("https:")
        with Client(url, token, cafile=cert) as client:
            assert client.health()
        with Client(url, cafile=cert) as client, raises("token-required"):
            client.health()
        with Client(url, token) as client, raises("server-unreachable"):
            client.score([("a", "b")])


def test_a_growing_file_is_a_source(mail, tmp_path, caplog):
    """Lines are appended as they are written, once, also after a restart.

    Lines that are not events are counted in the log.
    """
    path = tmp_path / "events.jsonl"
    line = '{{"src": "alice", "dst": "bob", "time": "2024-03-0{}"}}\n'
    path.write_text('{"odd": 1}\n' + line.format(1) + "no json\n" + line.format(2)[:20])

    def wait(url: str, sequence: int) -> None:
        with Client(url) as client:
            while client.status()["facts"]["applied"] < sequence:
                threading.Event().wait(0.02)

    state = tmp_path / "state"
    for sequence, more in ((1, ""), (3, line.format(2)[20:] + line.format(3))):
        with path.open("a") as file:
            file.write(more)
        with running(lambda: dm.live(mail, state), [GrowingFile(path)]) as url:
            wait(url, sequence)
    assert [record.fields for record in caplog.records if "not taken" in record.message] == [
        {"invalid": 1, "unreadable": 1}
    ]
    with dm.live(mail, state) as live:
        assert live.sequence == 3
        assert set(live.offsets) == {f"file:{path}"}


def test_a_source_that_fails_or_may_have_lost_events_raises_an_alert(mail, tmp_path, monkeypatch):
    """One that cannot be read is tried again, and its alert ends with its first events; lost lines stay one."""
    monkeypatch.setattr("dygmamba.server.service.SOURCE_RETRY_SECONDS", 0.05)
    path, line = tmp_path / "events.jsonl", '{{"src": "alice", "dst": "bob", "time": "2024-03-0{}"}}\n'
    path.mkdir()
    with (
        running(lambda: dm.live(mail, tmp_path / "state"), [GrowingFile(path)]) as url,
        Client(url) as client,
    ):

        def wait(*codes: str) -> None:
            end = time.monotonic() + 20
            while [alert["code"] for alert in client.status()["alerts"]] != list(codes):
                assert time.monotonic() < end, client.status()["alerts"]
                time.sleep(0.02)

        wait("source-failed")
        client.append([("eve", "bob", "2024-02-29")])  # says nothing about the source
        wait("source-failed")
        path.rmdir()
        path.write_text(line.format(1))
        wait()
        path.write_text(line.format(2) + line.format(3))
        wait("source-gap")
        assert "dygmamba_source_gaps_total 1.0" in urllib.request.urlopen(f"{url}/metrics").read().decode()


def test_a_signal_stops_the_server_after_what_has_begun(mail, tmp_path):
    """A request in progress gets its answer, a new one 503, and the log is closed properly."""
    live, answers = GatedLive(dm.live(mail, tmp_path / "state")), []
    with running_server(lambda: live) as (url, server), Client(url) as client, Client(url) as other:
        assert other.health()  # has a connection
        client.append([("alice", "bob", "2024-03-01")])
        live.gate.clear()
        asking = threading.Thread(target=lambda: answers.append(client.score([("alice", "bob")])))
        asking.start()
        while not server.service._arriving:
            time.sleep(0.005)
        server.handle_exit(signal.SIGTERM, None)
        with raises("not-ready"):
            other._request("GET", "/v2/health/ready", retry=False)
        live.gate.set()
        asking.join()
    assert answers[0][0]["score"] > 0
    assert live.is_closed
    with dm.live(mail, tmp_path / "state") as again:
        assert again.facts()["recovery"] == "closed properly"


def test_a_reload_changes_to_the_run_that_the_link_leads_to(mail, tmp_path):
    """The other run answers after SIGHUP; one that does not fit leaves the old one."""
    link, copy = tmp_path / "current", mail.path.with_name("copy")  # where the dataset is found
    shutil.copytree(mail.path, copy)
    link.symlink_to(mail.path)
    with (
        running_server(lambda: dm.live(link.resolve(), tmp_path / "state")) as (url, server),
        Client(url) as client,
    ):
        server.reload = lambda live: live.switch(link.resolve())
        sequence = client.append([("alice", "bob", "2024-03-01")])["sequence"]
        before = client.score([("alice", "bob")], min_sequence=sequence)

        def relink(target: Path) -> str:
            link.unlink()
            link.symlink_to(target)
            asyncio.run_coroutine_threadsafe(server._reload(), server.loop).result(30)
            return client.status()["facts"]["run"]

        assert relink(copy) == str(copy)
        assert client.score([("alice", "bob")]) == before
        assert relink(tmp_path) == str(copy)


def test_a_server_that_cannot_start_says_why(mail, tmp_path):
    """A port in use, and a state folder in use, each end with an error of one sentence."""
    with dm.live(mail, tmp_path / "state"), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with raises("port-unavailable"):
            run_server(lambda: dm.live(mail, tmp_path / "other"), ServerSettings(port=port))
        with raises("folder-locked"):
            run_server(lambda: dm.live(mail, tmp_path / "state"), ServerSettings(port=0))


def test_addresses_of_sources():
    assert isinstance(parse_source("events.jsonl"), GrowingFile)
    assert parse_source("kafka://host:9092/mail").topic == "mail"
    for text in ("kafka://host:9092", "kafka:///mail", "amqp://host/mail"):
        with raises("unknown-source"):
            parse_source(text)
