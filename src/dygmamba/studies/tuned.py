"""What a search found: its trials, its best settings, and the preset file that a training takes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba._version import __version__
from dygmamba.engine.toml import to_toml
from dygmamba.errors import FileError
from dygmamba.files.writing import write_text
from dygmamba.studies.trials import Journal, Row
from dygmamba.studies.tuning import LOOP, Search

PRESET, PAGE = "preset.toml", "tune"


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search as it stands; scores are average precision on validation, and the test was never asked."""

    data: str
    model: str
    folder: Path  # the study
    preset: Path  # the best settings, for `train`
    best: Row  # the best trial
    trials: list[Row]  # all of them, in the order they were made; the first is the model without a search
    importances: dict[str, float]  # what mattered, adding up to 1; empty where there are too few trials
    ended: str  # done, time or stopped

    @property
    def settings(self) -> dict[str, Any]:
        """The best trial's settings."""
        return self.best["settings"]

    @property
    def score(self) -> float:
        """Its validation AP."""
        return self.best["ap"]

    @property
    def page(self) -> Path:
        """All of it as a page that opens offline, and its tables beside it."""
        return self.folder / f"{PAGE}.html"

    @property
    def cut_off(self) -> int:
        """How many trials were not finished."""
        return sum(row["state"] == "cut off" for row in self.trials)

    @property
    def sentence(self) -> str:
        """What it came to."""
        said, first = f"validation AP {100 * self.score:.2f}", self.trials[0]["ap"]
        if self.best["trial"] == 1:
            said = f"nothing was better than {self.model} as it is, {said}"
        elif first is not None:
            said += f", without a search {100 * first:.2f}"
        return f"{said}; the best of many looks better than it is, and the test was not looked at"

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        names = ("data", "model", "best", "trials", "importances", "ended")
        plain = {name: getattr(self, name) for name in names}
        return plain | {"folder": str(self.folder), "preset": str(self.preset), "page": str(self.page)}

    def __repr__(self) -> str:
        said = f"{len(self.trials)} trials of {self.model} on {self.data}, best validation AP {100 * self.score:.2f}"
        return f"<{said}, {self.preset}>"


def summed_up(what: Search, journal: Journal, ended: str, out: Path | None) -> Tuning | None:
    """Write the preset of the best trial; None where none was finished."""
    best, rows = journal.best, journal.rows
    if best is None:
        return None
    path = out or journal.folder / PRESET
    beneath = {name: value for name, value in what.begun.items() if name not in LOOP}
    about = {
        "model": what.model,
        "data": what.dataset.name,
        "digest": what.dataset.digest,
        "split": what.by.said,
        "metric": "validation AP",
        "score": best["ap"],
        "without": rows[0]["ap"] if rows[0]["ap"] is not None else "not trained",
        "trials": len(rows),
        "cut_off": sum(row["state"] == "cut off" for row in rows),
        "trial": best["trial"],
        "epochs": best["epochs"],
        "seed": what.seed,
        "dygmamba": __version__,
    }
    write_text(path, to_toml({"preset": about, "settings": beneath | best["settings"]}))
    return Tuning(what.dataset.name, what.model, journal.folder, path, best, rows, journal.importances, ended)


def require_file_name(out: Path | None) -> None:
    """Refuse a place for the preset that a training would not take, before the search and not after it."""
    if out is not None and (out.suffix != ".toml" or out.is_dir() or not out.parent.is_dir()):
        raise FileError(
            f"the preset is a file NAME.toml in a folder that is there, got `out='{out}'`; choose another"
        )
