"""`dygmamba live`: check, back up and restore a state folder, also while a process has it open."""

import json
import sqlite3

import pytest

from commands import error_code, invoke
from live_run_cases import make_events, open_live

pytestmark = pytest.mark.e2e


def test_check_backup_and_restore(monkeypatch, capsys, tmp_path):
    """What a user types, beside a process that appends; a damaged log is exit code 2 and one sentence."""
    state, saved, copy = (str(tmp_path / name) for name in ("state", "saved.zip", "copy"))
    with open_live(tmp_path / "state", late="1h") as live:
        live.append(make_events(3), source="file", offset=3)
        code, out, err = invoke(monkeypatch, capsys, "live", "check", state)
        assert (code, err) == (0, "")
        assert "every event matches its checksum" in out
        code, out, _ = invoke(monkeypatch, capsys, "live", "backup", state, saved, "--json")
        assert code == 0
        assert (json.loads(out)["sequence"], len(json.loads(out)["sha256"])) == (3, 64)
    code, out, _ = invoke(monkeypatch, capsys, "live", "restore", saved, copy, "--json")
    assert code == 0
    facts = json.loads(out)
    assert (facts["sequence"], facts["late"], facts["offsets"]) == (3, 3600.0, {"file": 3})
    code, out, _ = invoke(monkeypatch, capsys, "live", "restore", saved, copy, "--json")
    assert (code, error_code(out)) == (2, "folder-not-empty")
    with sqlite3.connect(tmp_path / "copy" / "events.sqlite") as database:
        database.execute("UPDATE events SET src = 'mallory' WHERE sequence = 2")
    database.close()
    code, out, err = invoke(monkeypatch, capsys, "live", "check", copy, "--json")
    assert (code, error_code(out), len(err.splitlines())) == (2, "log-damaged", 1)
    code, out, _ = invoke(monkeypatch, capsys, "live", "check", str(tmp_path), "--json")
    assert (code, error_code(out)) == (2, "not-a-log")
