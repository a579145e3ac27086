"""Requests: the function, the command and the worker of a call have the same arguments, checked alike."""

import inspect
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path

import pytest
import typer

import dygmamba as dm
from dygmamba.api.requests import data, evaluation, prediction, training
from dygmamba.api.requests.base import Request
from dygmamba.api.requests.training import TrainRequest
from dygmamba.cli import app
from dygmamba.cli.reading_options import READING_OPTIONS

REQUESTS = {
    name: kind
    for module in (data, evaluation, prediction, training)
    for name, kind in vars(module).items()
    if is_dataclass(kind)
    and isinstance(kind, type)
    and issubclass(kind, Request)
    and name.endswith("Request")
    if kind is not Request and not name.startswith("_")
}
# request -> words of its command, and those fields that are made of options of other names
COMMANDS = {
    "TrainRequest": ("train", {"settings"}),
    "ResumeRequest": ("train", {"settings", "folder", "given"}),
    "TuneRequest": ("tune", {"settings"}),
    "BacktestRequest": ("backtest", {"settings", "variants"}),
    "BlendRequest": ("blend", set()),
    "EvaluateRequest": ("evaluate", {"settings", "seeds"}),
    "MonitorRequest": ("evaluate", {"run", "reading"}),
    "AuditRequest": ("audit", {"settings"}),
    "ReproduceRequest": ("reproduce", {"settings"}),
    "PredictRequest": ("predict", {"reading"}),
    "ExplainRequest": ("explain", {"reading", "query", "columns"}),
    "ReportRequest": ("report", set()),
    "ExportRequest": ("export", set()),
    "ServeRequest": ("serve", {"sources"}),
    "ImportRequest": ("data import", {"files", "reading"}),
    "DataExportRequest": ("data export", set()),
    "GenerateRequest": ("data generate", {"settings"}),
}
# request -> its public function, and those fields that it has no argument for
FUNCTIONS = {
    "TrainRequest": (dm.train, {"refit"}),
    "ResumeRequest": (dm.resume, {"refit", "given"}),
    "RefitRequest": (dm.refit, set()),
    "TuneRequest": (dm.tune, set()),
    "BacktestRequest": (dm.backtest, set()),
    "BlendRequest": (dm.blend, set()),
    "EvaluateRequest": (dm.evaluate, {"store_negatives", "device"}),
    "AuditRequest": (dm.audit, set()),
    "ReproduceRequest": (dm.reproduce, set()),
}


def test_every_request_is_compared():
    assert set(REQUESTS) == set(COMMANDS) | set(FUNCTIONS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_an_argument_for_every_field(name):
    """A field without one would silently keep its default."""
    words, made = COMMANDS[name]
    command = typer.main.get_command(app)
    for word in words.split():
        command = command.commands[word]  # pyright: ignore[reportAttributeAccessIssue]
    given = {parameter.name for parameter in command.params}
    assert REQUESTS[name].names() - given == made
    if "reading" in made:
        assert set(READING_OPTIONS) <= given


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_an_argument_for_every_field(name):
    function, missing = FUNCTIONS[name]
    assert REQUESTS[name].names() - set(inspect.signature(function).parameters) == missing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_request_has_the_defaults_of_the_function(name):
    """Where the function has a plain default; what is `None` in one of them is chosen later."""
    defaults = {one.name: one.default for one in inspect.signature(FUNCTIONS[name][0]).parameters.values()}
    for field in fields(REQUESTS[name]):
        given = defaults.get(field.name, inspect.Parameter.empty)
        if field.default and given and isinstance(given, str | int | tuple):
            assert field.default in (given, Path(str(given))), field.name


def test_a_worker_gets_the_same_request(tmp_path):
    """Plain values there and back, paths as text."""
    given = {
        "data": "generated",
        "out": tmp_path,
        "split": [0.7, 0.2, 0.1],
        "seeds": [1, 2],
        "backbone": "run",
    }
    request = TrainRequest.from_arguments(given)
    assert request.backbone == Path("run")
    values = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(request).items()
    }
    assert TrainRequest.from_arguments(values) == request
