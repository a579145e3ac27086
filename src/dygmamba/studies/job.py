"""One unit of work of a study (a job), its cache key, and the folder that caches job results.

The key of a job is a digest of everything its result depends on: the kind of work, the digest of the dataset, the model
with all its settings, the seed, the work's own arguments, and the version of the code. Two studies that need the same
run share it, and a result of another code version is computed again. Jobs of the paper's plan take too long for that:
they have a version of their own and are identified by the settings that are not defaults, so that a change of the code
that does not concern them, or a new setting, keeps their results.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import make_folder, write_text

# Change this when a golden result changes (tests/test_goldens.py): cached study results are then computed again.
# It is explicit, not a digest of the sources, so that moving a file or rewording a comment recomputes nothing.
CODE_VERSION = "2026-11-19.5"
RESULT_FILE = "result.json"
# The dataset is identified by its digest, so its name may change; the others do not influence the result.
NOT_IN_KEY = ("about", "data", "size", "given", "changed")


@dataclass(frozen=True, slots=True)
class Job:
    """One unit of work. The field names are part of the cache key and of result files.

    Attributes:
        work: Kind of work, a key of `job_runners.JOB_RUNNERS`.
        data: Name of the dataset.
        digest: Digest of the dataset.
        model: Name of the model.
        seed: Seed of the training, None for a model without training.
        settings: All settings of the training loop and the model.
        asks: Further arguments of the work, such as the noise rates.
        about: Labels of the result inside its study, such as the name of an ablation.
        needs: Key of the job whose run this one evaluates.
        size: Events, length, patch and epochs, from which the cost is estimated.
        given: Those of `settings` that a preset, a study or the user gives; the others are defaults.
        version: Version of what the job computes: that of the code, or of the paper's plan.
        changed: Settings that the user changed, each with its value and the one that the study has for it.
    """

    work: str
    data: str
    digest: str
    model: str
    seed: int | None
    settings: dict[str, Any]
    asks: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    needs: str | None = None
    size: dict[str, float] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    version: str = CODE_VERSION
    changed: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Digest of everything the result depends on."""
        identity = {name: value for name, value in asdict(self).items() if name not in NOT_IN_KEY}
        if self.version != CODE_VERSION:
            identity["settings"] = self.given
        text = json.dumps(identity, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def title(self) -> str:
        """Name of the job in progress lines and error messages."""
        labels = " ".join(f"{name}={value}" for name, value in self.about.items() if name != "model")
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.data} {self.about.get('model', self.model)}{f' {labels}' if labels else ''}{seed}"


@dataclass(frozen=True, slots=True)
class ResultCache:
    """Folder of job results: <root>/jobs/<key>/result.json, with the run directories of the job next to it."""

    root: Path

    def folder(self, key: str) -> Path:
        return self.root / "jobs" / key

    def load(self, key: str) -> dict[str, Any] | None:
        """Return the result of a finished job, or None if it is missing or its file is damaged."""
        path = self.folder(key) / RESULT_FILE
        try:
            result = json.loads(path.read_bytes().decode("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FileError(
                f"cannot read {path} ({error.strerror}); make it readable or choose another folder",
                code="file-unreadable",
            ) from error
        except (ValueError, RecursionError):
            return None
        return result if isinstance(result, dict) and isinstance(result.get("rows"), list) else None

    def save(self, job: Job, result: dict[str, Any]) -> None:
        """Write the result of a job atomically."""
        make_folder(self.folder(job.key))
        text = json.dumps({"job": asdict(job), "code": CODE_VERSION, **result}, indent=1)
        write_text(self.folder(job.key) / RESULT_FILE, text + "\n")

    def select_missing(self, jobs: Iterable[Job]) -> list[Job]:
        """Return the jobs without a result, each key once, where and as it occurs first."""
        by_key: dict[str, Job] = {}
        for job in jobs:
            by_key.setdefault(job.key, job)
        return [job for key, job in by_key.items() if self.load(key) is None]
