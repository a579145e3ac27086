"""Defaults that Python signatures do not show, as `--help` prints them."""

from typing import Any

from dygmamba.api.data_precheck import get_generator_defaults

# by parameter; an entry with the name of the command, such as "tune epochs", wins
OPTION_DEFAULTS = {
    "data_dir": "$DYGMAMBA_DATA, then the user's data folder",
    "overrides": "from the preset",
    "model": "dyg-mamba-counts on a GPU, else trees",
    "preset": "paper",
    "epochs": "from the preset",
    "split": "0.7,0.15,0.15",
    "visible": "strict",
    "train_negatives": "random",
    "loss": "pairwise",
    "train_candidates": "20; fewer for trees on long streams",
    "negatives": "random; all three for a run",
    "metrics": "ap,auc",
    "candidates": "100",
    "seed": "the published seed",
    "delimiter": "detected",
    "decimal": "detected",
    "header": "detected",
    "time_format": "detected",
    "at": "just after the last event",
    "src": "as in the dataset",
    "dst": "as in the dataset",
    "time": "as in the dataset",
    "datasets": "those of the study",
    "models": "those of the study",
    "variants": "those of the study",
    "workers": "chosen for the device",
    "audit model": "none",
    "backtest window": "all events",
    "backtest out": "backtests/DATA-MODEL",
    "audit overrides": "from the model",
    "evaluate overrides": "from the model",
    "evaluate visible": "strict; for a run its own",
    "import src": "detected",
    "import dst": "detected",
    "import time": "detected",
    "import out": "the file's name",
    "models data": "uci",
    "predict candidates": "all destinations",
    "predict out": "stdout",
    "report out": "RUN/report.html",
    "serve late": "that of the state folder, at first 0",
    "serve on_late": "that of the state folder, at first refuse",
    "tune trials": "30 unless --hours is given",
    "tune hours": "no limit",
    "tune out": "preset.toml in the study's folder",
    "tune epochs": "10; 40 for trees",
    "tune overrides": "none",
    "generate settings": "see docs/reference/generated-stream.md",
}


def show_option_defaults(command: Any) -> Any:
    """Let every option of a command show its default, and return the command."""
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
