"""A renamed setting under its former name: accepted with one warning, refused under both, and opened where stored."""

from dataclasses import dataclass

import pytest

import dygmamba as dm
from commands import error_code, invoke
from dygmamba.config import build_config, find_size_preset
from dygmamba.core.errors import ConfigError, DygWarning
from dygmamba.data.storage.dataset import save_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.models import REGISTERED, aliases, configs
from dygmamba.report.comparison import label_records, read_run_record
from dygmamba.report.run_sections import find_seed_runs
from dygmamba.runs.backtest import Journal
from dygmamba.runs.provenance import extend_run
from dygmamba.runs.selection import SELECTION_FILE, CandidateRecord, SelectionRecord, load_selection
from dygmamba.runs.tuning_trials import _require_same_study
from dygmamba.studies.studies import StudyRequest, ablation_jobs
from forged_runs import forge_run
from raising import raises

TINY = {"epochs": 1, "length": 4, "width": 4, "time_dim": 4, "states": 2, "blocks": 1, "out": 8}
SENTENCE = "setting 'beside' is now called 'pair_features'; the old name works until 0.2"
FORMER, CURRENT = {"beside": ["walks"]}, {"pair_features": ["walks"]}
PAIRS = [(0, 21), (3, 25)]


@pytest.fixture(autouse=True)
def fresh_warnings():
    """Warnings about former names appear once per process."""
    aliases._warn_renamed.cache_clear()
    yield
    aliases._warn_renamed.cache_clear()


@pytest.fixture(scope="module")
def data():
    return dm.generate(nodes=40, events=300, communities=4)


@pytest.fixture(scope="module")
def current_run(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    (run,) = dm.train(
        data, "dyg-mamba-counts", device="cpu", out=out, overrides=TINY | {"walk_dim": 8} | CURRENT
    )
    return run


@pytest.fixture
def former_run(current_run):
    """The same run with the former name in its config."""
    former = forge_run(
        current_run.path,
        current_run.path.with_name("former"),
        model={"pair_features": None, "beside": ["walks"]},
    )
    assert "pair_features" not in former.path.joinpath("config.toml").read_text()
    return former.path


def list_notes(recwarn):
    return [str(warning.message) for warning in recwarn if warning.category is DygWarning]


def test_a_former_setting_gives_the_same_config_and_warns_once(recwarn):
    former, again = (build_config(configs.DyGMambaCountsConfig, FORMER) for _ in range(2))
    assert former == again == build_config(configs.DyGMambaCountsConfig, CURRENT)
    assert list_notes(recwarn) == [SENTENCE]


def test_a_former_value_of_a_former_setting_becomes_the_current_one(recwarn):
    config = build_config(configs.DyGMambaCountsConfig, {"beside": ["fading-pair"]})
    assert config.pair_features == ("decayed-pair",)
    assert len(list_notes(recwarn)) == 2


def test_both_names_are_an_error(data, tmp_path):
    with raises("setting-given-twice", ConfigError) as error:
        build_config(configs.DyGMambaCountsConfig, FORMER | CURRENT)
    assert (
        str(error.value)
        == "setting 'beside' is the former name of 'pair_features'; give only 'pair_features'"
    )
    with raises("setting-given-twice", ConfigError):
        dm.train(data, "dyg-mamba-counts", out=tmp_path, overrides=CURRENT, **FORMER)
    with raises("setting-given-twice", ConfigError):
        build_config(
            configs.DyGMambaCountsConfig, aliases.update_stored_settings("dyg-mamba-counts", FORMER | CURRENT)
        )


def test_a_model_without_the_setting_names_what_the_user_typed():
    with raises("unknown-setting", ConfigError) as error:
        build_config(configs.TreesConfig, FORMER)
    assert "'beside'" in str(error.value)


def test_a_model_of_another_package_may_have_a_setting_of_the_former_name(monkeypatch, recwarn):
    @dataclass(frozen=True)
    class Config:
        beside: int = 1

    monkeypatch.setattr(dm.models, "REGISTERED", dict(REGISTERED))
    dm.register("mine", Config, lambda config, facts: None)
    assert build_config(Config, {"beside": 2}).beside == 2
    assert aliases.current_settings("mine", {"beside": 2}) == {"beside": 2}
    assert aliases.update_stored_settings("mine", {"beside": 2}) == {"beside": 2}
    assert not list_notes(recwarn)


def test_training_with_the_former_name_is_the_same_training(data, current_run, tmp_path, recwarn):
    (run,) = dm.train(
        data,
        "dyg-mamba-counts",
        device="cpu",
        out=tmp_path,
        overrides=TINY | {"walk_dim": 8},
        beside=["walks"],
    )
    assert list_notes(recwarn).count(SENTENCE) == 1
    assert run.config["model"] == current_run.config["model"]
    assert run.score(PAIRS).equals(current_run.score(PAIRS))


def test_the_command_line_takes_the_former_name(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_dataset(data, tmp_path / "datasets")
    given = ["train", data.name, "--model", "dyg-mamba-counts", "--device", "cpu", "--data-dir", "datasets"]
    given += [f"--set={name}={value}" for name, value in (TINY | {"walk_dim": 8}).items()]
    code, _, err = invoke(monkeypatch, capsys, *given, "--set", 'beside=["walks"]')
    assert code == 0
    assert " ".join(err.split()).count("is now called 'pair_features'") == 1
    given += ["--set", 'beside=["walks"]', "--set", 'pair_features=["walks"]', "--json"]
    code, out, _ = invoke(monkeypatch, capsys, *given)
    assert (code, error_code(out)) == (2, "setting-given-twice")


def test_a_preset_file_may_have_the_former_name(tmp_path, recwarn):
    path = tmp_path / "mine.toml"
    path.write_text('[preset]\nmodel = "dyg-mamba-counts"\n[settings]\nbeside = ["walks"]\n')
    assert find_size_preset(str(path), "dyg-mamba-counts") == CURRENT
    assert list_notes(recwarn) == [SENTENCE]
    path.write_text(path.read_text() + 'pair_features = ["walks"]\n')
    with raises("setting-given-twice", ConfigError):
        find_size_preset(str(path), "dyg-mamba-counts")


def test_an_ablation_refuses_the_setting_that_it_varies_under_either_name(data, tmp_path, recwarn):
    save_dataset(data, tmp_path)
    for given in (FORMER, CURRENT):
        request = StudyRequest(
            [data.name], seeds=(0,), variants=["counts"], settings=given, data_dir=tmp_path
        )
        with raises("varied-setting", ConfigError):
            ablation_jobs(request)


def test_a_stored_run_with_the_former_name_has_the_same_scores(current_run, former_run, recwarn):
    former = dm.open(former_run, device="cpu")
    assert former.config["model"]["beside"] == ["walks"]
    assert former.score(PAIRS).equals(current_run.score(PAIRS))
    blend = dm.blend([former_run, current_run.path], device="cpu", out=current_run.path.parents[2])
    assert blend.score(PAIRS).num_rows == len(PAIRS)
    assert not list_notes(recwarn)


def test_a_stored_run_with_the_former_name_is_shared_refitted_and_resumed(
    current_run, former_run, tmp_path, recwarn
):
    dm.push(former_run, tmp_path / "shared", data=True)
    pulled = dm.pull(tmp_path / "shared", out=tmp_path / "pulled", device="cpu")
    assert pulled.score(PAIRS).equals(current_run.score(PAIRS))
    assert dm.refit(former_run, device="cpu").config["model"] == current_run.config["model"]
    assert dm.resume(former_run, device="cpu", epochs=2).metrics.num_rows == 2
    assert not list_notes(recwarn)


def test_a_stored_run_may_be_given_its_setting_under_either_name(current_run, former_run, recwarn):
    for path in (current_run.path, former_run):
        for given in (FORMER, CURRENT):
            assert extend_run(RunDirectory(path), given) is None
        with raises("setting-fixed", ConfigError):
            extend_run(RunDirectory(path), {"beside": ["history"]})
    assert list_notes(recwarn) == [SENTENCE]


def test_a_run_starts_from_one_with_the_former_name(former_run, tmp_path, recwarn):
    longer = dm.generate(nodes=40, events=900, communities=4)
    (run,) = dm.train(longer, start_from=former_run, device="cpu", out=tmp_path, split=(0.7, 0.15, 0.15))
    assert run.config["model"]["pair_features"] == ["walks"]
    assert not list_notes(recwarn)
    (run,) = dm.train(longer, start_from=former_run, device="cpu", out=tmp_path, beside=["walks"])
    assert list_notes(recwarn) == [SENTENCE]


def test_runs_with_either_name_are_compared_as_the_same_settings(current_run, former_run):
    records = label_records([read_run_record(RunDirectory(path)) for path in (current_run.path, former_run)])
    assert [record.about["label"] for record in records] == ["dyg-mamba-counts", "dyg-mamba-counts"]
    assert len(find_seed_runs(RunDirectory(former_run))) == 2


def test_a_stored_choice_among_models_is_read_under_the_current_name(tmp_path, recwarn):
    path = tmp_path / "data" / "dyg-mamba-counts" / "run"
    path.mkdir(parents=True)
    candidate = CandidateRecord("dyg-mamba-counts", None, "waiting", run="data/dyg-mamba-counts/run")
    SelectionRecord(9.0, FORMER, (candidate,)).save(tmp_path)
    assert (path / SELECTION_FILE).exists()
    record = load_selection(RunDirectory(path))
    assert record is not None
    assert record.settings == CURRENT
    assert not list_notes(recwarn)


def test_a_stored_backtest_or_search_with_the_former_name_is_continued(tmp_path, recwarn):
    about = {"model": "dyg-mamba-counts", "settings": CURRENT, "variants": []}
    Journal(tmp_path, about | {"settings": FORMER}).save()
    assert Journal.open(tmp_path, about).about == about
    _require_same_study(tmp_path, about | {"settings": FORMER}, about)
    with raises("different-study", ConfigError):
        _require_same_study(tmp_path, about | {"settings": {"beside": []}}, about)
    assert not list_notes(recwarn)
