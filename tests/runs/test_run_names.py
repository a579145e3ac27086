"""Runs by name: the newest finished one of a dataset, of a folder, or of all."""

from dygmamba.runs.run_names import find_run


def test_names_are_the_newest_finished_run(tmp_path, monkeypatch):
    """`latest` and the name of a dataset prefer finished runs; paths and unknown names stay as they are."""
    monkeypatch.chdir(tmp_path)
    for data, stamp, is_finished in (
        ("mail", "20240101", True),
        ("mail", "20240301", False),
        ("chat", "20240201", True),
    ):
        run = tmp_path / "runs" / data / "trees" / f"{stamp}-120000-seed0"
        run.mkdir(parents=True)
        (run / "config.toml").write_text(f'[run]\ndata = "{data}"\ndigest = "0"\n')
        if is_finished:
            (run / "results.json").write_text("{}")
    assert find_run("mail").name == "20240101-120000-seed0"
    assert find_run("latest").name == "20240201-120000-seed0"
    assert find_run("runs/chat").parent.parent.name == "chat"
    assert find_run(run) == run
    assert str(find_run("nothing")) == "nothing"
