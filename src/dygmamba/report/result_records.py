"""Records of results, saved as JSON, and statistics over seeds: mean, standard deviation, rank, paired t-test.

A record is small enough to be stored in a repository and complete enough to rebuild every table and chart.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dygmamba._version import __version__
from dygmamba.core.errors import FileError, first_line
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.tasks.metric_names import format_seeds

COST_FIELDS = ("epoch_seconds", "seconds", "best_epoch", "parameters", "peak_mb", "note")
PATH_FIELDS = ("run", "backbone")  # fields of a row that hold a path, which means nothing on another machine


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """Result of one run or job: what was computed, the rows of metrics, and their cost.

    The field names are those of the JSON file. `about` holds labels, such as the name of an ablation; `settings` are
    all settings of the training loop and the model, and `changed` those that the user of a study changed, each with its
    value and the one that the study has for it.
    """

    work: str
    data: str
    model: str
    seed: int | None
    about: dict[str, Any]
    rows: list[dict[str, Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    device: str = ""
    code: str = ""
    changed: dict[str, list[Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StudyResults:
    """The records of a study, the command that produced them, and the ceilings of its datasets."""

    study: str
    command: str
    records: tuple[ResultRecord, ...]
    # AP of the edge oracle, which knows the events at the query time (docs/explanation/leaks.md), by
    # "<dataset> <setting> <negatives>"
    ceilings: dict[str, float] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write a JSON file with one record per line; equal settings are stored once and referred to by index."""
        distinct_settings: list[dict[str, Any]] = []
        lines = []
        for record in self.records:
            if record.settings not in distinct_settings:
                distinct_settings.append(record.settings)
            values = {name: value for name, value in asdict(record).items() if value}
            values |= {"seed": record.seed, "settings": distinct_settings.index(record.settings)}
            lines.append(json.dumps(values, sort_keys=True))
        head = {
            "study": self.study,
            "command": self.command,
            "version": __version__,
            "ceilings": self.ceilings,
            "settings": distinct_settings,
        }
        text = json.dumps(head, indent=1, sort_keys=True).removesuffix("\n}")
        make_folder(path.parent)
        write_text(path, text + ',\n "records": [\n' + ",\n".join(lines) + "\n ]\n}\n")

    @staticmethod
    def read(path: Path) -> "StudyResults":
        """Read a file that `write` wrote; raise FileError if it is something else."""
        try:
            raw = json.loads(path.read_bytes().decode("utf-8"))
            records = [ResultRecord(**_read_record(values, raw["settings"])) for values in raw["records"]]
            return StudyResults(raw["study"], raw["command"], tuple(records), raw["ceilings"])
        except OSError as error:
            raise FileError(
                f"cannot read {path} ({error.strerror}); give the results.json of a study",
                code="file-unreadable",
            ) from error
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise FileError(
                f"{path} does not contain results of a study ({type(error).__name__}: {first_line(error)}); "
                "run the study again to write it",
                code="invalid-study-results",
            ) from error


def _read_record(stored: dict[str, Any], settings: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of a stored record with its settings instead of their number."""
    values = {"rows": [], "about": {}} | stored
    return values | {"settings": dict(settings[values["settings"]])}


RecordLabel = Callable[[ResultRecord], str]  # name of the row in which a record is shown


def group_records(records: Iterable[ResultRecord], label: RecordLabel) -> dict[str, list[ResultRecord]]:
    """Group records by label, in the order in which labels first appear."""
    groups: dict[str, list[ResultRecord]] = {}
    for record in records:
        groups.setdefault(str(label(record)), []).append(record)
    return groups


def select_work(records: Iterable[ResultRecord], *works: str) -> list[ResultRecord]:
    """Return the records of these kinds of work."""
    return [record for record in records if record.work in works]


@dataclass(frozen=True, slots=True)
class SeedValues:
    """A metric by seed, most of them between 0 and 1. A model without training has one value, under the seed None."""

    by_seed: dict[int | None, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return mean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for a single seed."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    def __str__(self) -> str:
        return self.format("ap")

    def format(self, metric: str) -> str:
        """Return the mean ± standard deviation of a metric; "-" without values."""
        return format_seeds(metric, list(self.by_seed.values()))


def rank_by_mean(values: Mapping[str, SeedValues]) -> dict[str, float]:
    """Rank by descending mean, starting at 1; equal means share the average of their ranks."""
    means = {name: value.mean for name, value in values.items() if value.by_seed}
    return {
        name: 1
        + sum(other > own for other in means.values())
        + (sum(other == own for other in means.values()) - 1) / 2
        for name, own in means.items()
    }


def paired_t_test(a: SeedValues, b: SeedValues) -> float | None:
    """Return the two-sided p-value of a paired t-test over the seeds that both have.

    None if they share fewer than two seeds or all differences are equal.
    """
    shared = [seed for seed in a.by_seed if seed is not None and seed in b.by_seed]
    differences = [a.by_seed[seed] - b.by_seed[seed] for seed in shared]
    if len(differences) < 2 or stdev(differences) == 0:
        return None
    t = mean(differences) / (stdev(differences) / math.sqrt(len(differences)))
    return student_t_two_sided_p(abs(t), len(differences) - 1)


def student_t_two_sided_p(t: float, freedom: int) -> float:
    """Return P(|T| > t) of Student's t distribution.

    Integer degrees of freedom give a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4), so SciPy is not needed.
    """
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom % 2:
        term, total = cosine, cosine if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = 2 / math.pi * (angle + sine * total)
    else:
        term = total = 1.0
        for k in range(2, freedom - 1, 2):
            term *= cosine * cosine * (k - 1) / k
            total += term
        inside = sine * total
    return max(0.0, 1.0 - inside)
