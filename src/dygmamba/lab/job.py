"""One piece of a study: what is to be computed, by which code, and where its result is kept.

A job's key is a digest of everything its result is a function of: the kind of work, the data's digest, the model with
all its settings, the seed, what is asked, and the version of the code that computes. Two studies that need the same run
share it, and a result that was computed by another version of the code is computed again.
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
# It is explicit, not a digest of the sources, so that moving a file or mending a comment recomputes nothing.
CODE_VERSION = "12fa73f424d3ed4e"
RESULT_FILE = "result.json"


@dataclass(frozen=True, slots=True)
class Job:
    """What is computed; `settings` are all those of the loop and the model, `asks` what the work is told beside them.

    `about` says where in a study the result stands, `size` how much there is to do; neither is part of the key.
    `needs` is the key of a job whose run this one looks at.
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

    @property
    def key(self) -> str:
        """The digest of what the result depends on."""
        said = {name: value for name, value in asdict(self).items() if name not in ("about", "data", "size")}
        text = json.dumps([said, CODE_VERSION], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def title(self) -> str:
        """What a line of progress calls it."""
        rest = " ".join(f"{name}={value}" for name, value in self.about.items() if name != "model")
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.data} {self.about.get('model', self.model)}{f' {rest}' if rest else ''}{seed}"

    def to_json(self) -> str:
        """One line, for another process."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str) -> "Job":
        """What to_json wrote."""
        return Job(**json.loads(line))


@dataclass(frozen=True, slots=True)
class Results:
    """The folder where jobs keep what they found: <root>/jobs/<key>/result.json, and their run folders beside it."""

    root: Path

    def folder(self, key: str) -> Path:
        """The place of one job."""
        return self.root / "jobs" / key

    def find(self, key: str) -> dict[str, Any] | None:
        """What a finished job found; nothing where it is not finished, or its file is damaged."""
        path = self.folder(key) / RESULT_FILE
        try:
            found = json.loads(path.read_bytes().decode("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise FileError(
                f"{path} cannot be read ({error.strerror}); mend that or choose another folder"
            ) from error
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("rows"), list) else None

    def keep(self, job: Job, found: dict[str, Any]) -> None:
        """Write what a job found, whole or not at all."""
        make_folder(self.folder(job.key))
        text = json.dumps({"job": asdict(job), "code": CODE_VERSION, **found}, indent=1)
        write_text(self.folder(job.key) / RESULT_FILE, text + "\n")

    def missing(self, jobs: Iterable[Job]) -> list[Job]:
        """The jobs that are still to be done, each once."""
        by_key = {job.key: job for job in jobs}
        return [job for key, job in by_key.items() if self.find(key) is None]
