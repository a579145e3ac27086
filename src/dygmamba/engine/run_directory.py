"""Plain values as TOML (toml.io, v1.0): what is written is read back equal.

A run is a folder: config.toml (extended.toml), metrics.jsonl, results.json, checkpoint/.
"""

import hashlib
import json
import math
import re
import secrets
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dygmamba.core.errors import ConfigError, FileError, first_line
from dygmamba.core.files.locking import FileLock
from dygmamba.core.files.untrusted import MAX_NAME_BYTES, is_valid_folder_name
from dygmamba.core.files.writing import create_new_folder, make_folder, write_text

TOML_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def to_toml(sections: dict[str, dict[str, Any]]) -> str:
    """One table per section."""
    lines = []
    for name, settings in sections.items():
        lines.append(f"[{_toml_key(name)}]")
        lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in settings.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_string(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)  # inf, -inf, nan are TOML's own words
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    raise ConfigError(f"a configuration holds no {type(value).__name__}, got {value!r}; give a plain value")


def _toml_string(text: str) -> str:
    """A basic string: control characters escaped, everything else as it is."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{text!r} is not valid UTF-8 and cannot be kept in a configuration; rename it")
    return '"' + "".join(_escape_character(letter) for letter in text) + '"'


def _escape_character(letter: str) -> str:
    if letter in TOML_ESCAPES:
        return TOML_ESCAPES[letter]
    return f"\\u{ord(letter):04X}" if ord(letter) < 0x20 or ord(letter) == 0x7F else letter


RESTORE_HINT = "restore it or train again"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one training run, each written whole or not at all."""

    path: Path
    writes: bool = True  # of several processes that train together, only the first does
    _locks: list[FileLock] = field(default_factory=list, compare=False, repr=False)

    @staticmethod
    def create(root: Path, dataset: str, model: str, seed: int, mark: str = "") -> "RunDirectory":
        """A new folder <root>/<dataset>/<model>/<stamp>-seed<k>, with a mark behind it where one is given."""
        for what, name in (("dataset", dataset), ("model", model)):
            if not is_valid_folder_name(name):
                raise ConfigError(
                    f"a {what} called {name[:60]!r} can have no folder of runs; call it (or its file) by letters, "
                    f"digits, '.', '_' and '-', at most {MAX_NAME_BYTES} bytes"
                )
        stamp = time.strftime("%Y%m%d-%H%M%S")
        base = root / dataset / model / f"{stamp}-seed{seed}{mark}"
        make_folder(base.parent)
        path, number = base, 1
        while not create_new_folder(path):
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        return RunDirectory(path)

    def lock(self) -> None:
        """No other process trains into this folder until `unlock`, or the end of this one."""
        if self.writes and not self._locks:
            self._locks.append(FileLock(self.path / ".lock"))

    def unlock(self) -> None:
        """Others may."""
        while self._locks:
            self._locks.pop().release()

    @property
    def before_last(self) -> Path:
        """The checkpoint before the last one."""
        return self.path / "checkpoint" / "last.1.safetensors"

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.last.exists() or self.before_last.exists()

    @property
    def last(self) -> Path:
        """The checkpoint to resume from."""
        return self.path / "checkpoint" / "last.safetensors"

    @property
    def best(self) -> Path:
        """The weights that validated best."""
        return self.path / "checkpoint" / "best.safetensors"

    @property
    def task(self) -> str:
        """What the run was trained for: link or node."""
        return self.config().get("run", {}).get("task", "link")

    def write_config(self, sections: dict[str, dict[str, Any]], id: str | None = None) -> None:
        """Everything needed to repeat the run, as TOML; the last section says that it is whole and whose it is."""
        self._write_sealed("config.toml", {**sections, "folder": {"id": id or secrets.token_hex(8)}})

    def extend(self, settings: dict[str, Any]) -> None:
        """Settings of the training loop that go before those it began with; its results are no longer its last word.

        They stand in a file of their own: config.toml, which the checkpoints are bound to, stays as it was.
        """
        (self.path / "results.json").unlink(missing_ok=True)
        more = self._extension() | settings
        self._write_sealed("extended.toml", {"train": more, "folder": {"of": self.fingerprint}})

    def config(self) -> dict[str, dict[str, Any]]:
        """What write_config wrote, or an error: a run goes by the settings it began with, and by its extension."""
        sections = self._sealed("config.toml")
        more = self._extension()
        return {**sections, "train": sections.get("train", {}) | more} if more else sections

    def _extension(self) -> dict[str, Any]:
        if not (self.path / "extended.toml").exists():
            return {}
        sections = self._sealed("extended.toml")
        if sections["folder"].get("of") != self.fingerprint:
            raise FileError(
                f"{self.path / 'extended.toml'} belongs to another run; delete it to have this one as it began"
            )
        return sections.get("train", {})

    def _write_sealed(self, name: str, sections: dict[str, dict[str, Any]]) -> None:
        text = to_toml(sections)
        write_text(self.path / name, f'{text}sha256 = "{_sha256(text)}"\n')

    def _sealed(self, name: str) -> dict[str, dict[str, Any]]:
        path = self.path / name
        try:
            text = path.read_bytes().decode("utf-8")
            sections = tomllib.loads(text)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileError(
                f"{self.path} is not a run: it has no {name}; give a folder under runs/"
            ) from error
        except OSError as error:
            raise FileError(f"{path} cannot be read ({error.strerror}); {RESTORE_HINT}") from error
        except (ValueError, RecursionError) as error:  # not TOML, or not UTF-8
            raise FileError(f"{path} cannot be read ({first_line(error)}); {RESTORE_HINT}") from error
        if not all(isinstance(section, dict) for section in sections.values()):
            raise FileError(f"{path} has settings outside of its sections; {RESTORE_HINT}")
        seal = sections.get("folder", {}).get("sha256")
        if seal is None:
            raise FileError(f"{path} is cut short: its section [folder] is missing; {RESTORE_HINT}")
        if seal != _sha256(text.rpartition("sha256 = ")[0]):
            raise FileError(
                f"{path} was changed or damaged since the run began; restore it, or train again with other settings"
            )
        return sections

    @property
    def fingerprint(self) -> str:
        """What binds checkpoints to this run: the digest of its configuration, its seed, data and id among it."""
        there = (self.path / "config.toml").exists()
        return self._sealed("config.toml")["folder"]["sha256"] if there else ""

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per finished epoch."""
        return self._read("metrics.jsonl", lambda text: [json.loads(line) for line in text.splitlines()])

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace the epochs' entries."""
        if self.writes:
            write_text(self.path / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))

    @property
    def finished(self) -> bool:
        """Whether its best weights were evaluated: a run that was stopped or extended has to go on first."""
        return (self.path / "results.json").exists()

    def write_results(self, rows: list[dict[str, Any]], **beside: Any) -> None:
        """The final evaluation, and what is known beside it: rules on the same exams, or why there is none."""
        if self.writes:
            write_text(self.path / "results.json", json.dumps({"results": rows, **beside}, indent=1) + "\n")

    def results(self) -> list[dict[str, Any]]:
        """What write_results wrote; nothing if the run is not finished."""
        return self._read("results.json", lambda text: json.loads(text)["results"])

    def rules(self) -> list[dict[str, Any]]:
        """What simple rules reach on the same exams, rows like those of `results`; none of a run that did not ask."""
        return self._read("results.json", lambda text: json.loads(text).get("rules", []))

    def verdict(self) -> dict[str, Any]:
        """How the run stands against the best rule, in figures and as a sentence; empty where that was not asked."""
        found = self._read("results.json", lambda text: [json.loads(text).get("verdict", {})])
        return found[0] if found else {}

    def _read(self, name: str, parse: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        path = self.path / name
        try:
            rows = parse(path.read_bytes().decode("utf-8")) if path.exists() else []
            if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
                return rows
            raise TypeError("it holds something else than rows")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            raise FileError(
                f"{path} is damaged ({why}); `dygmamba.resume('{self.path}')` writes it anew"
            ) from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
