"""A run is a folder: config.toml, metrics.jsonl, results.json, checkpoint/."""

import json
import os
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dygmamba.errors import FileError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one training run, each written atomically."""

    path: Path

    @staticmethod
    def create(root: Path, dataset: str, model: str, seed: int) -> "RunFolder":
        """A new folder <root>/<dataset>/<model>/<stamp>-seed<k>."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        base = root / dataset / model / f"{stamp}-seed{seed}"
        path, number = base, 1
        while path.exists():
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        path.mkdir(parents=True)
        return RunFolder(path)

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

    def write_config(self, sections: dict[str, dict[str, Any]]) -> None:
        """Everything needed to repeat the run, as TOML."""
        lines = []
        for name, settings in sections.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
            lines.append("")
        write_text(self.path / "config.toml", "\n".join(lines))

    def config(self) -> dict[str, dict[str, Any]]:
        """What write_config wrote."""
        path = self.path / "config.toml"
        try:
            return tomllib.loads(path.read_text())
        except FileNotFoundError as error:
            raise FileError(
                f"{self.path} is not a run: it has no config.toml; give a folder under runs/"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise FileError(f"{path} cannot be read ({error}); restore it or train again") from error

    def metrics(self) -> list[dict[str, Any]]:
        """One entry per finished epoch."""
        path = self.path / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def write_metrics(self, entries: list[dict[str, Any]]) -> None:
        """Replace the epochs' entries."""
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in entries))

    def write_results(self, rows: list[dict[str, Any]]) -> None:
        """The final evaluation."""
        write_text(self.path / "results.json", json.dumps({"results": rows}, indent=1) + "\n")

    def results(self) -> list[dict[str, Any]]:
        """What write_results wrote; nothing if the run is not finished."""
        path = self.path / "results.json"
        return json.loads(path.read_text())["results"] if path.exists() else []


def write_text(path: Path, text: str) -> None:
    """Write a whole file atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
