"""Run directory: config.toml (extended.toml), metrics.jsonl, results.json and checkpoint/ of one training run.

Also `to_toml`, which writes plain values as TOML (toml.io, v1.0) such that they are read back equal.
"""

import hashlib
import json
import os
import re
import secrets
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import BaseFileLock

from dygmamba.core.errors import ConfigError, FileError, first_line, make_unreadable_error
from dygmamba.core.files.locking import acquire_lock
from dygmamba.core.files.untrusted import MAX_NAME_BYTES, is_valid_folder_name
from dygmamba.core.files.writing import create_new_folder, make_folder, write_text
from dygmamba.engine.run_section import map_references
from dygmamba.engine.stored_values import find_config_fault, is_plain_object, is_result_row
from dygmamba.models.stored_settings import find_stored_model


def to_toml(sections: dict[str, dict[str, Any]]) -> str:
    """Return the sections as TOML tables."""
    lines = []
    for name, settings in sections.items():
        lines.append(f"[{_toml_key(name)}]")
        lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in settings.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml_string(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, bool | int | float):  # TOML knows inf, -inf and nan as Python writes them
        return repr(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    raise ConfigError(
        f"a config cannot hold a {type(value).__name__}; got {value!r}. Use a bool, number, string or list of these",
        code="not-a-plain-value",
    )


def _toml_string(text: str) -> str:
    """Return a TOML basic string, with control characters escaped."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(
            f"{text!r} is not valid UTF-8 and cannot be stored in a config; rename it", code="not-utf8"
        )
    # JSON escapes what TOML wants to be escaped, but for one control character
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


RESTORE_HINT = "restore it or train again"
CLOCK_TICK = 2_000_000_000  # nanoseconds: a file may be written twice within a tick and keep its time


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Files of one training run; each is written atomically."""

    path: Path
    writes: bool = True  # False in all but the first process of distributed training
    _locks: list[BaseFileLock] = field(default_factory=list, compare=False, repr=False)
    # parsed config files by name, each with the state (inode, size, time) of the file that it was parsed from
    _parsed: dict[str, tuple[tuple[int, int, int], dict[str, dict[str, Any]]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @staticmethod
    def create(root: Path, dataset: str, model: str, seed: int, suffix: str = "") -> "RunDirectory":
        """Create a new directory <root>/<dataset>/<model>/<stamp>-seed<seed><suffix>."""
        for what, name in (("dataset", dataset), ("model", model)):
            if not is_valid_folder_name(name):
                raise ConfigError(
                    f"the {what} name {name[:60]!r} cannot be a directory name; rename it (or its file) with letters, "
                    f"digits, '.', '_' and '-', at most {MAX_NAME_BYTES} bytes",
                    code="invalid-name",
                )
        stamp = time.strftime("%Y%m%d-%H%M%S")
        base = root / dataset / model / f"{stamp}-seed{seed}{suffix}"
        make_folder(base.parent)
        path, number = base, 1
        while not create_new_folder(path):
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        return RunDirectory(path)

    def lock(self) -> None:
        """Lock the run against other processes until `unlock` or the end of this process."""
        if self.writes and not self._locks:
            self._locks.append(acquire_lock(self.path / ".lock"))

    def write_file(self, name: str, text: str) -> None:
        """Write a text file of the run; a symbolic link of that name is replaced, not followed."""
        write_text(self.path / name, text, follow_links=False)

    def unlock(self) -> None:
        """Release the run lock."""
        while self._locks:
            self._locks.pop().release()

    @property
    def previous(self) -> Path:
        """Path of the checkpoint before the last one."""
        return self.path / "checkpoint" / "last.1.safetensors"

    @property
    def started(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.last.exists() or self.previous.exists()

    @property
    def last(self) -> Path:
        """Path of the checkpoint to resume from."""
        return self.path / "checkpoint" / "last.safetensors"

    @property
    def best(self) -> Path:
        """Path of the weights with the best validation."""
        return self.path / "checkpoint" / "best.safetensors"

    @property
    def task(self) -> str:
        """Task of the run: "link" or "node"."""
        return self.config().get("run", {}).get("task", "link")

    def write_config(self, sections: dict[str, dict[str, Any]], id: str | None = None) -> None:
        """Write everything needed to repeat the run; a last section [folder] holds the run's id and a checksum."""
        run = map_references(sections.get("run", {}), self._make_relative)
        sections = sections | ({"run": run} if run else {})
        self._write_sealed("config.toml", {**sections, "folder": {"id": id or secrets.token_hex(8)}})

    def _make_relative(self, path: str) -> str:
        """Return the path of another run as it is stored, so that runs can be moved together."""
        with suppress(ValueError):  # another drive
            return (
                Path(os.path.relpath(path, self.path.resolve())).as_posix() if os.path.isabs(path) else path
            )
        return path

    def _make_absolute(self, path: str) -> str:
        """Return the path of another run; a shared run has its name only, and earlier versions stored it absolute."""
        is_relative = "/" in path and not os.path.isabs(path)
        return os.path.normpath(self.path.resolve() / path) if is_relative else path

    def extend(self, settings: dict[str, Any]) -> None:
        """Override settings of the training loop and drop the results, which are no longer final.

        The overrides go into extended.toml: config.toml must not change, because checkpoints hold its fingerprint.
        """
        (self.path / "results.json").unlink(missing_ok=True)
        more = self._extension() | settings
        self._write_sealed("extended.toml", {"train": more, "folder": {"of": self.fingerprint}})

    def config(self) -> dict[str, dict[str, Any]]:
        """Read the config with its extension; raise FileError if a file is missing, changed or damaged."""
        sections = deepcopy(self._read_sealed("config.toml"))  # a copy, because the caller may change it
        if "run" in sections:
            sections["run"] = map_references(sections["run"], self._make_absolute)
        if "model" in sections.get("run", {}):
            _, sections["run"]["model"] = self._models()
        more = self._extension()
        return {**sections, "train": sections.get("train", {}) | more} if more else sections

    def _models(self) -> tuple[str, str]:
        """Return the stored name of the model, and that of the model that computes such a run now."""
        sections = self._read_sealed("config.toml")
        stored = sections.get("run", {}).get("model", "")
        return stored, find_stored_model(stored, sections.get("model", {}))

    def _extension(self) -> dict[str, Any]:
        if not (self.path / "extended.toml").exists():
            return {}
        sections = self._read_sealed("extended.toml")
        if sections["folder"].get("of") != self.fingerprint:
            raise FileError(
                f"{self.path / 'extended.toml'} belongs to another run; delete it to use the original settings",
                code="wrong-extension",
            )
        return sections.get("train", {})

    def _write_sealed(self, name: str, sections: dict[str, dict[str, Any]]) -> None:
        text = to_toml(sections)
        self.write_file(name, f'{text}sha256 = "{_sha256(text)}"\n')

    def _read_sealed(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the sections of a config file, which is parsed and checked once, and again after it was replaced."""
        path = self.path / name
        try:
            status = path.stat()  # before reading: a file that is replaced in between is read again next time
            state = (status.st_ino, status.st_size, status.st_mtime_ns)
            if name in self._parsed and self._parsed[name][0] == state:
                return self._parsed[name][1]
            text = path.read_bytes().decode("utf-8")
            sections = tomllib.loads(text)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise FileError(
                f"{self.path} is not a run directory: it has no {name}; give a directory under runs/",
                code="not-a-run",
            ) from error
        except PermissionError as error:
            raise make_unreadable_error(path, error) from error
        except (OSError, ValueError, RecursionError) as error:  # not a file, not TOML, or not UTF-8
            raise FileError(
                f"{path} cannot be read ({first_line(error)}); {RESTORE_HINT}", code="damaged-config"
            ) from error
        if (fault := find_config_fault(sections)) is not None:
            raise FileError(f"{path} cannot be used: {fault}; {RESTORE_HINT}", code="damaged-config")
        seal = sections.get("folder", {}).get("sha256")
        if seal is None:
            raise FileError(
                f"{path} is incomplete: the section [folder] is missing; {RESTORE_HINT}",
                code="damaged-config",
            )
        if seal != _sha256(text.rpartition("sha256 = ")[0]):
            raise FileError(
                f"{path} was changed or damaged after the run was started; restore it, or start a new run",
                code="damaged-config",
            )
        if time.time_ns() - status.st_mtime_ns > CLOCK_TICK:
            self._parsed[name] = (state, sections)
        return sections

    @property
    def fingerprint(self) -> str:
        """Digest of config.toml (settings, seed, data, run id), which every checkpoint of the run holds."""
        exists = (self.path / "config.toml").exists()
        return self._read_sealed("config.toml")["folder"]["sha256"] if exists else ""

    def metrics(self) -> list[dict[str, Any]]:
        """Read the metrics of the finished epochs."""
        return self._read("metrics.jsonl", lambda text: [json.loads(line) for line in text.splitlines()])

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace the metrics of the finished epochs."""
        if self.writes:
            self.write_file("metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))

    @property
    def finished(self) -> bool:
        """Whether the final evaluation was written; False for runs that were stopped or extended."""
        return (self.path / "results.json").exists()

    def write_results(self, rows: list[dict[str, Any]], **extra: Any) -> None:
        """Write the rows of the final evaluation and further fields, such as the results of baselines ("rules")."""
        if self.writes:
            self.write_file("results.json", json.dumps({"results": rows, **extra}, indent=1) + "\n")

    def results(self) -> list[dict[str, Any]]:
        """Read the rows of the final evaluation; empty if the run is not finished."""
        rows = self._read("results.json", lambda text: json.loads(text)["results"])
        stored, current = self._models() if (self.path / "config.toml").exists() else ("", "")
        return [row | {"model": current} if row.get("model") == stored != current else row for row in rows]

    def rules(self) -> list[dict[str, Any]]:
        """Read the rows of simple baselines on the same evaluation sets; empty if they were not evaluated."""
        return self._read("results.json", lambda text: json.loads(text).get("rules", []))

    def verdict(self) -> dict[str, Any]:
        """Read the comparison of the run with its best baseline; empty if there is none."""
        return self._read_entry("verdict", is_result_row)

    def ranking(self) -> list[dict[str, Any]]:
        """Read the rows of ranks among all destinations, the run first, then baselines; empty if there are none."""
        return self._read("results.json", lambda text: json.loads(text).get("ranking", []))

    def ranking_verdict(self) -> dict[str, Any]:
        """Read the comparison of these ranks; empty if there is none."""
        return self._read_entry("ranking_verdict", is_result_row)

    def selection(self) -> dict[str, Any]:
        """Read what was tried before this run was chosen within a budget; empty for a run that was trained alone."""
        return self._read_entry("selection", is_plain_object)

    def _read_entry(self, name: str, is_valid: Callable[[Any], bool]) -> dict[str, Any]:
        rows = self._read("results.json", lambda text: [json.loads(text).get(name, {})], is_valid)
        return rows[0] if rows else {}

    def _read(
        self,
        name: str,
        parse: Callable[[str], list[dict[str, Any]]],
        is_valid: Callable[[Any], bool] = is_result_row,
    ) -> list[dict[str, Any]]:
        path = self.path / name
        try:
            rows = parse(path.read_bytes().decode("utf-8")) if path.exists() else []
            if isinstance(rows, list) and all(map(is_valid, rows)):
                return rows
            raise TypeError("its rows are none of a run")
        except PermissionError as error:
            raise make_unreadable_error(path, error) from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            raise FileError(
                f"{path} is damaged ({why}); `dygmamba.resume({str(self.path)!r})` writes it again",
                code="damaged-results",
            ) from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
