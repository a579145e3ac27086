"""What is kept of a job's result: small enough for a repository, whole enough to rebuild every table and chart.

Numbers over seeds: mean, spread, rank, and whether a difference is more than chance.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dygmamba._version import __version__
from dygmamba.core.errors import FileError, first_line
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.lab.job import Job

DIGITS = 6
COST_FIELDS = ("epoch_seconds", "seconds", "best_epoch", "parameters", "peak_mb", "note")
PATH_FIELDS = ("run", "backbone")  # of a row: paths that mean nothing elsewhere


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """One job: what it was, the rows it found, and what they cost; `settings` are those of loop and model."""

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

    @staticmethod
    def of(job: Job, found: dict[str, Any]) -> "ResultRecord":
        """What is worth keeping of a result."""
        losses = found.get("epochs", [])
        return ResultRecord(
            job.work,
            job.data,
            job.model,
            job.seed,
            job.about,
            [
                {key: _round_float(value) for key, value in row.items() if key not in PATH_FIELDS}
                for row in found["rows"]
            ],
            job.settings,
            {key: found[key] for key in COST_FIELDS if key in found}
            | ({"epochs": len(losses)} if losses else {}),
            [round(loss, 4) for loss in losses],
            found.get("made_with", {}).get("device", ""),
            found.get("code", ""),
        )


@dataclass(frozen=True, slots=True)
class StudyResults:
    """The records of a study, the command that made them, and the ceilings of its streams."""

    study: str
    command: str
    records: tuple[ResultRecord, ...]
    ceilings: dict[str, float] = field(
        default_factory=dict
    )  # "<data> <setting> <negatives>": AP of the edge oracle

    def write(self, path: Path) -> None:
        """One JSON file, a record a line."""
        tables: list[dict[str, Any]] = []
        lines = []
        for record in self.records:
            if record.settings not in tables:
                tables.append(record.settings)
            own = {
                name: getattr(record, name)
                for name in ResultRecord.__dataclass_fields__
                if getattr(record, name)
            }
            own |= {"seed": record.seed, "settings": tables.index(record.settings)}
            lines.append(json.dumps(own, sort_keys=True))
        head = {
            "study": self.study,
            "command": self.command,
            "version": __version__,
            "ceilings": self.ceilings,
            "settings": tables,
        }
        shown = json.dumps(head, indent=1, sort_keys=True).removesuffix("\n}")
        make_folder(path.parent)
        write_text(path, shown + ',\n "records": [\n' + ",\n".join(lines) + "\n ]\n}\n")

    @staticmethod
    def read(path: Path) -> "StudyResults":
        """What write wrote."""
        try:
            raw = json.loads(path.read_bytes().decode("utf-8"))
            tables = raw["settings"]
            records = [
                ResultRecord(**({"rows": [], "about": {}} | line | {"settings": tables[line["settings"]]}))
                for line in raw["records"]
            ]
            return StudyResults(raw["study"], raw["command"], tuple(records), raw["ceilings"])
        except OSError as error:
            raise FileError(
                f"{path} cannot be read ({error.strerror}); give a file that a study has saved"
            ) from error
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise FileError(
                f"{path} is not a study's saved results ({type(error).__name__}: {first_line(error)}); save them again"
            ) from error

    def joined(self, other: "StudyResults") -> "StudyResults":
        """Both together; of the same job the other's record."""
        records = {(_record_key(one)): one for one in (*self.records, *other.records)}
        return StudyResults(self.study, self.command, tuple(records.values()), self.ceilings | other.ceilings)


def _record_key(record: ResultRecord) -> str:
    return json.dumps(
        [record.work, record.data, record.model, record.seed, record.about, record.settings], sort_keys=True
    )


def _round_float(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value


def select_work(records: Iterable[ResultRecord], *works: str) -> list[ResultRecord]:
    """Those of these kinds."""
    return [record for record in records if record.work in works]


@dataclass(frozen=True, slots=True)
class SeedValues:
    """One quantity, by seed; a model without training has one value, of seed None. Shares of 1."""

    by_seed: dict[int | None, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return mean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """The sample's standard deviation; nothing of one seed."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {100 * self.std:.2f}"
        return f"{100 * self.mean:.2f}{spread}" if self.by_seed else "-"


def rank_by_mean(figures: Mapping[str, SeedValues]) -> dict[str, float]:
    """1 for the highest mean; equal means share their mean rank."""
    means = {name: figure.mean for name, figure in figures.items() if figure.by_seed}
    return {
        name: 1
        + sum(other > own for other in means.values())
        + (sum(other == own for other in means.values()) - 1) / 2
        for name, own in means.items()
    }


def paired_t_test(a: SeedValues, b: SeedValues) -> float | None:
    """Two-sided p of a paired t-test over the seeds both have; nothing where there are fewer than two or no spread."""
    shared = [seed for seed in a.by_seed if seed is not None and seed in b.by_seed]
    gaps = [a.by_seed[seed] - b.by_seed[seed] for seed in shared]
    if len(gaps) < 2 or stdev(gaps) == 0:
        return None
    t = mean(gaps) / (stdev(gaps) / math.sqrt(len(gaps)))
    return student_t_two_sided_p(abs(t), len(gaps) - 1)


def student_t_two_sided_p(t: float, freedom: int) -> float:
    """P(|T| > t) of Student's distribution: a finite sum for whole degrees of freedom (Abramowitz 26.7.3 and 4)."""
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
