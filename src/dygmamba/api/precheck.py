"""Checks of a command's arguments that need neither torch, pyarrow nor numba, so that a typo is reported at once.

There is one function per command. The registry of models and the settings of training can be read without torch; they
are imported where they are needed, so that the help does not wait for them.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dygmamba.api.argument_checks import (
    check_choice,
    check_names,
    check_split,
    check_trainable,
    check_untrained_model,
    is_run_directory,
    require_file,
    require_writable,
)
from dygmamba.api.argument_checks import require_run as require_run
from dygmamba.api.candidates import CANDIDATES, find_refused, list_candidates
from dygmamba.api.sharing import check_target as check_target
from dygmamba.api.validation import (
    LOWER_LIMITS,
    UPPER_LIMITS,
    check_backbone_conflicts,
    check_budget,
    check_one_seed,
    check_period,
    check_run_protocol,
    check_search_limits,
    check_start,
    check_task,
    check_visible,
    parse_budget,
    parse_limits,
    parse_loggers,
    parse_metrics,
    parse_period,
)
from dygmamba.config import check_device
from dygmamba.core.costs import choose_threshold, parse_costs
from dygmamba.core.errors import ConfigError, make_package_error
from dygmamba.core.setting_descriptions import describe_allowed as describe_allowed
from dygmamba.core.setting_descriptions import describe_settings
from dygmamba.data.events.split_spec import AUTO_PROTOCOL, check_protocol
from dygmamba.data.storage.locations import parse_table_format
from dygmamba.data.storage.locations import require_dataset as require_dataset
from dygmamba.engine.run_directory import RunDirectory
from dygmamba.runs.run_list import list_runs as list_runs
from dygmamba.runs.run_names import find_run as find_run
from dygmamba.server.settings import ServerSettings

MODEL_FILE_SUFFIXES = (".pt2", ".onnx", ".zip")
PICTURE_SUFFIXES = (".html", ".htm", ".svg")


def check_train(
    *,
    data: str,
    model: str | None,
    settings: dict[str, Any],
    task: str,
    budget: str | None,
    seeds: Sequence[int],
    processes: int,
    preset: str | None,
    split: str | None,
    protocol: str,
    backbone: Path | None,
    finetune: bool,
    balance: bool,
    negatives: str,
    device: str,
    log: str | None,
    refit: str | None,
    data_dir: Path | None,
    start_from: Path | None = None,
) -> None:
    """Check the arguments of a new training."""
    _check_training(negatives, device, log, refit, task)
    check_start(start_from, task=task, model=model, preset=preset)
    if start_from is not None:
        model = str(RunDirectory(start_from).config()["run"]["model"])
    check_task(task, {"backbone": backbone is not None, "finetune": finetune, "balance": balance})
    check_budget(task, processes, is_given=budget is not None)
    check_protocol(protocol)
    if backbone is not None:
        check_backbone_conflicts(
            backbone, preset=preset, split=split, protocol=None if protocol == AUTO_PROTOCOL else protocol
        )
        require_run(backbone)
    else:
        check_split(split)
        if budget is None or model is not None:
            check_trainable(model, settings, task, preset, device, finetune)
    if budget is not None:
        parse_budget(budget)
        check_one_seed(model, seeds)
        # whether there is a GPU is not known without torch: a setting of any candidate passes
        kinds = (device,) if device in CANDIDATES else tuple(CANDIDATES)
        tried = dict.fromkeys(one for kind in kinds for one in list_candidates(kind, model, preset))
        find_refused(tuple(tried), settings)
    require_dataset(data, data_dir)


def check_resume(
    run: Path,
    *,
    negatives: str,
    device: str,
    log: str | None,
    refit: str | None,
    task: str,
    given: Sequence[str],
) -> None:
    """Check the arguments of a resumed training; `given` are options that the user typed and a run has fixed."""
    _check_training(negatives, device, log, refit, task)
    require_run(run)
    has_other_task = RunDirectory(run).task != task
    for name in given:
        if name != "task" or has_other_task:
            raise ConfigError(
                f"a resumed run keeps its own settings; leave out `{name}`, or start a new run",
                code="fixed-by-run",
            )


def _check_training(negatives: str, device: str, log: str | None, refit: str | None, task: str) -> None:
    check_names("negatives", negatives)
    check_device(device)
    parse_loggers(log)
    if refit not in (None, "all"):
        raise ConfigError(f"`refit` must be 'all' or left out, got '{refit}'", code="unknown-refit")
    if refit and task == "node":
        raise ConfigError(
            "`refit` is for link runs; leave it out, or leave out `task='node'`", code="refit-of-node-task"
        )


def check_tune(
    *,
    data: str,
    model: str | None,
    settings: dict[str, Any],
    preset: str | None,
    split: str | None,
    protocol: str,
    trials: int | None,
    hours: float | None,
    device: str,
    data_dir: Path | None,
) -> None:
    """Check the arguments of a search for settings."""
    check_search_limits(trials, hours)
    check_device(device)
    check_split(split)
    check_protocol(protocol)
    check_trainable(model, settings, "link", preset, device)
    require_dataset(data, data_dir)


def check_backtest(
    *,
    data: str,
    model: str | None,
    settings: dict[str, Any],
    preset: str | None,
    every: str,
    window: str | None,
    device: str,
    data_dir: Path | None,
) -> None:
    """Check the arguments of a backtest."""
    parse_period("every", every)
    if window is not None:
        parse_period("window", window)
    check_device(device)
    check_trainable(model, settings, "link", preset, device)
    require_dataset(data, data_dir)


def check_blend(runs: Sequence[Path], negatives: str, device: str) -> None:
    """Check the arguments of a blend."""
    check_names("negatives", negatives)
    check_device(device)
    for run in runs:
        require_run(run)


def check_evaluate(
    *,
    target: str,
    model: str,
    settings: dict[str, Any],
    negatives: str | None,
    split: str,
    setting: str,
    metrics: str | None,
    candidates: str | None,
    filtered: bool,
    visible: str | None,
    draws: int,
    seed: int | None,
    store_negatives: Path | None,
    protocol: str,
    device: str,
    data_dir: Path | None,
) -> None:
    """Check the arguments of an evaluation of a run, or of a heuristic."""
    for option, value in (("negatives", negatives), ("split", split), ("setting", setting)):
        check_names(option, value)
    check_visible(visible)
    parse_metrics(metrics, candidates, filtered)
    check_protocol(protocol)
    check_device(device)
    if is_run_directory(target):
        if settings or store_negatives or draws > 1 or seed is not None or protocol != AUTO_PROTOCOL:
            raise ConfigError(
                "`overrides`, `seed`, `draws`, `protocol` and `store_negatives` are for models without training; "
                "leave them out, a run has its own settings",
                code="option-of-untrained-model",
            )
        require_run(target)
    else:
        check_untrained_model(model, target, settings)
        require_dataset(target, data_dir)


def check_monitoring(
    run: Path,
    *,
    events: Path,
    period: str,
    fail_below: Sequence[str] | None,
    fail_above: Sequence[str] | None,
    time_unit: str,
    device: str,
) -> None:
    """Check the arguments of an evaluation on new events."""
    check_period(period)
    parse_limits("fail_below", fail_below, LOWER_LIMITS)
    parse_limits("fail_above", fail_above, UPPER_LIMITS)
    check_device(device)
    check_choice("time_unit", time_unit)
    require_run(run)
    require_file(events, "events")


def check_audit(
    *,
    data: str,
    run: Path | None,
    model: str | None,
    settings: dict[str, Any],
    protocol: str,
    data_dir: Path | None,
) -> None:
    """Check the arguments of an audit."""
    from dygmamba.models import require_model

    brings_run = run is None and is_run_directory(data)
    check_protocol(protocol)
    if brings_run or run is not None:
        check_run_protocol(protocol)
    if model is not None and (brings_run or run is not None):
        raise ConfigError(
            "give a model by name or a run, not both; a run brings its own model", code="model-and-run"
        )
    if model is None and settings:
        raise ConfigError(
            f"settings ({', '.join(settings)}) need a model; name it with `model`",
            code="settings-without-model",
        )
    if run is not None:
        require_run(run)
    if model is not None:
        require_model(model)
    if brings_run:
        require_run(data)
    else:
        require_dataset(data, data_dir)


def check_predict(
    run: Path,
    *,
    given: Sequence[str],
    top: int | None,
    pairs: Path | None,
    events: Path | None,
    out: Path | None,
    time_unit: str,
    device: str,
    threshold: float | None = None,
    costs: str | None = None,
) -> None:
    """Check the arguments of a prediction; `given` are the options that say what to predict."""
    if "pairs" in given and "sources" in given:
        raise ConfigError(
            "give `pairs` to score pairs, or `sources` and `top` to rank destinations, not both",
            code="pairs-and-sources",
        )
    choose_threshold(threshold, costs)
    ranking = [name for name in given if name in ("sources", "candidates", "only_new")]
    if ranking and top is None:
        raise ConfigError(
            f"`{ranking[0]}` needs a ranking; say how many to keep with `top`", code="top-missing"
        )
    if out is not None:
        parse_table_format(out)
        require_writable(out, "out")
    require_run(run)
    check_device(device)
    check_choice("time_unit", time_unit)
    require_file(pairs, "pairs")
    require_file(events, "events")
    _check_predicted_task(run, RunDirectory(run).task, given)


def _check_predicted_task(run: Path, task: str, given: Sequence[str]) -> None:
    """Raise ConfigError if a run of this task cannot predict what is wanted."""
    wrong = [name for name in given if (name == "nodes") != (task == "node")]
    if wrong and task == "node":
        raise ConfigError(
            f"{run} classifies nodes and cannot score pairs; leave out `{wrong[0]}`, and give `nodes`, or nothing for "
            "all sources",
            code="option-of-link-task",
        )
    if wrong:
        raise ConfigError(
            f"{run} predicts links and cannot classify nodes; give `pairs` instead of `nodes`, or a run of the node "
            "task",
            code="option-of-node-task",
        )
    if task == "link" and not {"pairs", "sources"} & set(given):
        raise ConfigError(
            "give `pairs` to score pairs, or `sources` and `top` to rank destinations", code="pairs-missing"
        )


def check_report(run: Path, costs: str | None) -> None:
    """Check the arguments of a report."""
    if costs is not None:
        parse_costs(costs)
    require_run(run)


def check_explain(run: Path, *, out: Path | None, events: Path | None, time_unit: str, device: str) -> None:
    """Check the arguments of an explanation."""
    if out is not None and out.suffix.lower() not in PICTURE_SUFFIXES:
        raise ConfigError(
            f"`out` takes a page, name.html, or a picture, name.svg; got {out}", code="unknown-picture-format"
        )
    require_run(run)
    check_device(device)
    check_choice("time_unit", time_unit)
    require_file(events, "events")


def check_serve(
    run: Path,
    *,
    device: str,
    host: str,
    port: int,
    token: str | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> ServerSettings:
    """Check the arguments of a server, and that the packages it needs are installed."""
    settings = ServerSettings(host, port, token, tls_cert, tls_key)
    require_run(run)
    check_device(device)
    if device not in ("auto", "cpu"):
        raise ConfigError(f"a live run needs `device='cpu'`; got '{device}'", code="live-needs-cpu")
    for package in ("fastapi", "uvicorn", "prometheus_client"):
        if find_spec(package) is None:
            raise make_package_error("the server", package, "'dyg-mamba[serve]'")
    return settings


def check_export_model(run: Path, to: Path) -> None:
    """Check the arguments of a model export."""
    if to.suffix not in MODEL_FILE_SUFFIXES:
        raise ConfigError(
            f"{to} does not name a format; let it end in one of {', '.join(MODEL_FILE_SUFFIXES)}",
            code="unknown-model-format",
        )
    require_writable(to, "to")
    require_run(run)


def check_reproduce(
    study: str,
    *,
    models: Sequence[str],
    datasets: Sequence[str],
    protocol: str,
    device: str,
    data_dir: Path | None,
) -> None:
    """Check the arguments of a study."""
    from dygmamba.models import require_model
    from dygmamba.studies import STUDY_NAMES

    check_protocol(protocol)
    if study not in STUDY_NAMES:
        raise ConfigError(
            f"unknown study '{study}'; choose from {', '.join(STUDY_NAMES)}", code="unknown-study"
        )
    for model in models:
        require_model(model)
    for name in datasets:
        require_dataset(name, data_dir)
    check_device(device)


def describe_model(name: str) -> dict[str, Any]:
    """Return title, cost and settings of a model, and under "training" the settings of its training loop.

    A model of this package is described without importing it.
    """
    from dygmamba.engine.fit_config import LinkFitConfig
    from dygmamba.models import find_model, require_model

    spec = require_model(name) or find_model(name)
    return {
        "name": name,
        "config": spec.config.__name__,
        "title": spec.title,
        "looks_at": spec.looks_at,
        "cost": spec.cost,
        "trainable": spec.trainable,
        "settings": describe_settings(spec.config),
        "training": describe_settings(LinkFitConfig) if spec.trainable else {},
    } | ({} if spec.for_nodes is None else {"node_settings": describe_settings(spec.for_nodes.config)})
