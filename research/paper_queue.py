"""Puts stored trainings of the paper's plan into a folder of `dygmamba reproduce paper`, which then trains the rest.

    python -m research.paper_queue docs/research/results STUDIES

The plan takes many hours and its trainings are made on several machines, of which only the records remain. A training
whose run a job without a record evaluates is left out: that job needs its run directory.
"""

import sys
from pathlib import Path

from dygmamba.report.result_records import ResultRecord
from dygmamba.studies.job import Job, ResultCache
from dygmamba.studies.reproduction import plan_jobs
from dygmamba.studies.studies import StudyRequest
from research.paper_claims import FILE
from research.result_tables import read_records


def restore_trainings(results: Path, studies: Path, data_dir: Path | None = None) -> int:
    """Write a job result for each stored training of the plan; return how many there are."""
    stored = {_identify(record): record for record in read_records(results, FILE)}
    jobs, cache = plan_jobs(FILE, StudyRequest(data_dir=data_dir)), ResultCache(studies)
    evaluated = {job.needs for job in jobs if _identify(job) not in stored}
    restored = {
        job.key: (job, stored[_identify(job)])
        for job in jobs
        if _identify(job) in stored and job.key not in evaluated
    }
    for job, record in restored.values():
        cost = {name: value for name, value in record.cost.items() if name != "epochs"}
        made_with = {"device": record.device}
        result = {"code": record.code, "rows": record.rows, "epochs": record.losses, "made_with": made_with}
        cache.save(job, result | cost)
    return len(restored)


def _identify(one: Job | ResultRecord) -> tuple[object, ...]:
    return one.work, one.data, one.model, one.seed, *sorted(one.about.items())


if __name__ == "__main__":
    count = restore_trainings(Path(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.write(f"{count} trainings restored\n")
