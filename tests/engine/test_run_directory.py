"""Run directory: its config is read back equal, or it is an error."""

import math
import shutil

from hypothesis import given
from hypothesis import strategies as st

from dygmamba.core.errors import ConfigError, FileError
from dygmamba.engine.run_directory import RunDirectory, to_toml
from raising import raises

letters = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
plain = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False), letters)
values = st.one_of(plain, st.lists(plain, max_size=3), st.lists(st.lists(letters, max_size=2), max_size=2))


@given(settings=st.dictionaries(letters, values, max_size=4), name=letters)
def test_every_value_is_read_back_equal(tmp_path_factory, settings, name):
    """For all names and values, including infinities, quotes, line ends and any Unicode character."""
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    run.write_config({f"x{name}": settings})
    assert run.config()[f"x{name}"] == settings


def test_nan_is_kept_and_other_values_are_an_error(tmp_path):
    """TOML has NaN, but no None and no lone surrogates."""
    run = RunDirectory(tmp_path)
    run.write_config({"a": {"x": math.nan, "y": -0.0}})
    found = run.config()["a"]
    assert math.isnan(found["x"])
    assert math.copysign(1, found["y"]) == -1
    for value, code in ((None, "not-a-plain-value"), ("\udc80", "not-utf8"), ({"a": 1}, "not-a-plain-value")):
        with raises(code, ConfigError):
            to_toml({"a": {"x": value}})


def test_a_cut_or_changed_config_is_an_error(tmp_path):
    """Cut or changed at any byte except the last line end."""
    run = RunDirectory(tmp_path)
    run.write_config({"run": {"seed": 0, "data": "é"}, "train": {"lr": 0.1}})
    path = tmp_path / "config.toml"
    good = path.read_bytes()
    for content in [good[:cut] for cut in range(len(good) - 1)] + [
        good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(len(good) - 1)
    ]:
        path.write_bytes(content)
        with raises("damaged-config", FileError):
            run.config()
    path.write_bytes(good)
    assert run.config()["train"]["lr"] == 0.1


def test_two_runs_of_one_second_have_two_directories(tmp_path, monkeypatch):
    """Later ones get a number, and each run has its own fingerprint."""
    monkeypatch.setattr("time.strftime", lambda _: "now")
    runs = [RunDirectory.create(tmp_path, "data", "model", 0) for _ in range(3)]
    assert [run.path.name for run in runs] == ["now-seed0", "now-seed0-2", "now-seed0-3"]
    for run in runs:
        run.write_config({"run": {"seed": 0}})
    assert len({run.fingerprint for run in runs}) == 3


def test_torn_derived_files_are_an_error(tmp_path):
    """metrics.jsonl and results.json: the message says how to write them again."""
    run = RunDirectory(tmp_path)
    assert run.metrics() == run.results() == []
    for name, read in (("metrics.jsonl", run.metrics), ("results.json", run.results)):
        for content in (b'{"results', b"\xff\xfe", b"[]"):
            (tmp_path / name).write_bytes(content)
            if name == "metrics.jsonl" and content == b"[]":
                continue
            with raises("damaged-results", FileError) as error:
                read()
            assert f"dygmamba.resume({str(tmp_path)!r})" in str(error.value)


def test_a_directory_without_config_is_not_a_run(tmp_path):
    """Nothing, a file, and a directory in place of config.toml."""
    (tmp_path / "file").touch()
    (tmp_path / "odd" / "config.toml").mkdir(parents=True)
    for name, code in (("none", "not-a-run"), ("file", "not-a-run"), ("odd", "damaged-config")):
        with raises(code, FileError):
            RunDirectory(tmp_path / name).config()
    shutil.rmtree(tmp_path / "odd")


def test_paths_of_other_runs_are_relative_in_the_file_and_absolute_in_memory(tmp_path):
    """Runs that are moved together find each other; absolute paths of earlier versions and bare names are kept."""
    before, after = tmp_path / "before", tmp_path / "after"
    run = RunDirectory(before / "runs" / "mail" / "trees" / "one")
    run.path.mkdir(parents=True)
    other = before / "runs" / "mail" / "tgn" / "two"
    about = {
        "refit_of": str(other),
        "blend_of": [str(other), str(run.path.with_name("four"))],
        "backbone": "three",
    }
    run.write_config({"run": about})
    assert run.config()["run"] == about
    assert 'refit_of = "../../tgn/two"' in (run.path / "config.toml").read_text()
    before.rename(after)
    moved = RunDirectory(after / "runs" / "mail" / "trees" / "one").config()["run"]
    assert (moved["refit_of"], moved["backbone"]) == (str(after / "runs" / "mail" / "tgn" / "two"), "three")


def test_absolute_paths_of_earlier_versions_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDirectory, "_make_relative", lambda run, path: path)
    run = RunDirectory(tmp_path)
    run.write_config({"run": {"start_from": str(tmp_path.parent / "other")}})
    assert run.config()["run"]["start_from"] == str(tmp_path.parent / "other")
