"""Run directories as a stranger could write them: changed files, with checksums and fingerprints that fit."""

import json
import shutil
import tomllib
from pathlib import Path

from dygmamba.engine.checkpoint import read_checkpoint, save_checkpoint
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.calibration import load_saved_calibration, save_calibration


def forge_run(run_path: Path, target: Path, without: tuple[str, ...] = (), **sections: dict) -> RunDirectory:
    """Copy a run beside it with other settings, sealed anew; its checkpoints and its calibration belong to the copy."""
    original, copy = RunDirectory(run_path), RunDirectory(target)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(run_path, target)
    config = original.config()
    folder = config.pop("folder")
    for name, settings in sections.items():
        config[name] = (
            settings if name == "model" and "parts" in settings else config.get(name, {}) | settings
        )
    config = {
        name: {
            key: value for key, value in settings.items() if value is not None
        }  # None: the setting is left out
        for name, settings in config.items()
        if name not in without
    }
    copy.write_config(config, folder["id"])
    fingerprint = tomllib.loads((target / "config.toml").read_text("utf-8"))["folder"]["sha256"]
    for path in (copy.best, copy.last):
        if path.exists():
            tensors, state = read_checkpoint(original, getattr(original, path.stem))
            save_checkpoint(path, tensors, state, fingerprint)
    if (calibration := load_saved_calibration(original)) is not None:
        save_calibration(copy, calibration)
    return copy


def blend_of(part: str, settings: dict, source: str = "", weight: float = 1.0) -> dict:
    """The [model] section of a blend with one part."""
    return {"parts": [part], "settings": [json.dumps(settings)], "sources": [source], "weights": [weight]}
