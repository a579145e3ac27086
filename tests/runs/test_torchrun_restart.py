"""A torchrun job that is restarted finds the run that it had started, and no other."""

import pytest

from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.provenance import create_run, find_restarted_run


@pytest.fixture
def job(monkeypatch):
    """Sets the id of the job and how often it was restarted."""

    def named(name, count):
        for key, value in (("TORCHELASTIC_RUN_ID", name), ("TORCHELASTIC_RESTART_COUNT", count)):
            monkeypatch.delenv(key, raising=False)
            if value is not None:
                monkeypatch.setenv(key, str(value))

    return named


def test_a_restarted_job_finds_its_own_run(job, tmp_path):
    """The run of the same job, model and seed, 1 not being 10; none at first, without torchrun, or for another job."""

    def begun(seed):
        made = {"run": {"seed": seed}, "made_with": {"torch": "2"}}
        return create_run(lambda: RunDirectory.create(tmp_path, "mail", "tgn", seed), made).path

    job("mine", 0)
    runs = {seed: begun(seed) for seed in (1, 2, 10, -1, 0)}
    assert find_restarted_run(tmp_path, "mail", "tgn", 1) is None
    job("mine", 1)
    assert {seed: find_restarted_run(tmp_path, "mail", "tgn", seed) for seed in runs} == runs
    assert find_restarted_run(tmp_path, "mail", "tgn", 100) is None
    assert find_restarted_run(tmp_path, "mail", "jodie", 1) is None
    (runs[2] / "config.toml").write_text("cut sho")
    assert find_restarted_run(tmp_path, "mail", "tgn", 2) is None
    for name, count in (("another", 1), (None, None)):
        job(name, count)
        assert find_restarted_run(tmp_path, "mail", "tgn", 1) is None


def test_a_job_without_an_id_is_identified_by_its_process(job, tmp_path):
    """Such a job is called `none` by torchrun; its process id tells jobs apart."""
    job("none", 3)
    made = create_run(
        lambda: RunDirectory.create(tmp_path, "mail", "tgn", 0), {"run": {"seed": 0}, "made_with": {}}
    )
    assert "none" not in made.config()["made_with"]["job"]
    assert find_restarted_run(tmp_path, "mail", "tgn", 0) == made.path
