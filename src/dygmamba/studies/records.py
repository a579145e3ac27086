"""What is kept of a job's result: small enough for a repository, whole enough to rebuild every table and chart."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dygmamba._version import __version__
from dygmamba.errors import FileError, first_line
from dygmamba.files.writing import make_folder, write_text
from dygmamba.studies.job import Job

DIGITS = 6
KEPT = ("epoch_seconds", "seconds", "best_epoch", "parameters", "peak_mb", "note")
LOCAL = ("run", "backbone")  # of a row: paths that mean nothing elsewhere


@dataclass(frozen=True, slots=True)
class Record:
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
    def of(job: Job, found: dict[str, Any]) -> "Record":
        """What is worth keeping of a result."""
        losses = found.get("epochs", [])
        return Record(
            job.work,
            job.data,
            job.model,
            job.seed,
            job.about,
            [{key: _short(value) for key, value in row.items() if key not in LOCAL} for row in found["rows"]],
            job.settings,
            {key: found[key] for key in KEPT if key in found} | ({"epochs": len(losses)} if losses else {}),
            [round(loss, 4) for loss in losses],
            found.get("made_with", {}).get("device", ""),
            found.get("code", ""),
        )


@dataclass(frozen=True, slots=True)
class Book:
    """The records of a study, the command that made them, and the ceilings of its streams."""

    study: str
    command: str
    records: tuple[Record, ...]
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
                name: getattr(record, name) for name in Record.__dataclass_fields__ if getattr(record, name)
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
    def read(path: Path) -> "Book":
        """What write wrote."""
        try:
            raw = json.loads(path.read_bytes().decode("utf-8"))
            tables = raw["settings"]
            records = [
                Record(**({"rows": [], "about": {}} | line | {"settings": tables[line["settings"]]}))
                for line in raw["records"]
            ]
            return Book(raw["study"], raw["command"], tuple(records), raw["ceilings"])
        except OSError as error:
            raise FileError(
                f"{path} cannot be read ({error.strerror}); give a file that a study has saved"
            ) from error
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise FileError(
                f"{path} is not a study's saved results ({type(error).__name__}: {first_line(error)}); save them again"
            ) from error

    def joined(self, other: "Book") -> "Book":
        """Both together; of the same job the other's record."""
        records = {(_name(one)): one for one in (*self.records, *other.records)}
        return Book(self.study, self.command, tuple(records.values()), self.ceilings | other.ceilings)


def _name(record: Record) -> str:
    return json.dumps(
        [record.work, record.data, record.model, record.seed, record.about, record.settings], sort_keys=True
    )


def _short(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value


def of_work(records: Iterable[Record], *works: str) -> list[Record]:
    """Those of these kinds."""
    return [record for record in records if record.work in works]
