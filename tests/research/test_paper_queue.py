"""The queue of the paper's trainings goes on from the stored records."""

from dataclasses import replace
from pathlib import Path

from dygmamba.report.result_records import StudyResults
from dygmamba.studies.job import ResultCache
from dygmamba.studies.reproduction import gather_results, plan_jobs
from dygmamba.studies.studies import StudyRequest
from research.paper_queue import restore_trainings

RESULTS = Path(__file__).parents[2] / "docs" / "research" / "results"


def test_a_restored_training_is_the_record_it_came_from(real_data, tmp_path):
    """Gathered again, restored trainings are the stored records, but for settings that a model no longer has."""
    count = restore_trainings(RESULTS, tmp_path, real_data)
    jobs, cache = plan_jobs("paper", StudyRequest(data_dir=real_data)), ResultCache(tmp_path)
    assert count == len({job.key for job in jobs}) - len(cache.select_missing(jobs)) > 0
    stored = [replace(record, settings={}) for record in StudyResults.read(RESULTS / "paper.json").records]
    found = gather_results("paper", jobs, cache, "dygmamba").records
    assert all(replace(record, settings={}) in stored for record in found)


def test_a_training_whose_run_is_evaluated_is_trained_again(real_data, tmp_path):
    """A job without a result that needs a run finds none without its run directory; one with a result needs none."""
    restore_trainings(RESULTS, tmp_path, real_data)
    jobs, cache = plan_jobs("paper", StudyRequest(data_dir=real_data)), ResultCache(tmp_path)
    needed = {job.needs for job in cache.select_missing(jobs) if job.needs}
    done = {job.needs for job in jobs if job.needs and cache.load(job.key)} - needed
    assert needed
    assert done
    assert not any(cache.load(key) for key in needed)
    assert all(cache.load(key) for key in done)
