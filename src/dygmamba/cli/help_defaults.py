"""Defaults that Python signatures do not show, as `--help` prints them."""

from typing import Any

from dygmamba.api.precheck import get_generator_defaults

# by parameter; a command's own, "train epochs", goes before
OPTION_DEFAULTS = {
    "data_dir": "$DYGMAMBA_DATA, then the user's cache folder",
    "overrides": "the preset's",
    "model": "dyg-mamba on a GPU, else trees",
    "preset": "paper",
    "epochs": "the preset's",
    "split": "0.7,0.15,0.15",
    "visible": "strict",
    "train_negatives": "random",
    "loss": "pairwise",
    "train_candidates": "20",
    "negatives": "random; of a run all three",
    "metrics": "ap,auc",
    "candidates": "100",
    "seed": "the published one",
    "delimiter": "found out",
    "at": "just after the last event",
    "src": "the dataset's",
    "dst": "the dataset's",
    "time": "the dataset's",
    "datasets": "the study's",
    "models": "the study's",
    "variants": "the study's",
    "workers": "what the device bears",
    "audit model": "none",
    "audit overrides": "the model's",
    "evaluate overrides": "the model's",
    "evaluate visible": "strict; of a run its own",
    "import src": "found out",
    "import dst": "found out",
    "import time": "found out",
    "import out": "the file's name",
    "models data": "uci, as published",
    "predict out": "stdout",
    "report out": "RUN/report.html",
    "tune trials": "30 unless --hours is given",
    "tune hours": "no limit",
    "tune out": "preset.toml in the study's folder",
    "tune epochs": "10; of trees 40",
    "tune overrides": "none",
    "generate settings": "see docs/reference/generated-stream.md",
}


def show_option_defaults(command: Any) -> Any:
    """The command, every option of it showing what holds where it is left out."""
    for one in getattr(command, "commands", {}).values():
        show_option_defaults(one)
    for option in getattr(command, "params", ()):
        if option.param_type_name == "option" and option.default is None and not option.required:
            option.show_default = _find_default(str(command.name), option.name)
    return command


def _find_default(command: str, name: str) -> str:
    if command == "generate" and name in (defaults := get_generator_defaults()):
        return str(defaults[name])
    return OPTION_DEFAULTS.get(f"{command} {name}", OPTION_DEFAULTS.get(name, "none"))
