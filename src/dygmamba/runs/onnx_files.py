"""A network as an ONNX graph, by way of torch.export, and any graph loaded again by onnxruntime.

onnx, onnxscript and onnxruntime are the extra `onnx` and are imported when they are needed.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from dygmamba.errors import ConfigError, first_line
from dygmamba.runs.onnx_steps import IN_OTHER_STEPS
from dygmamba.runs.programs import ABOUT, Inputs, Made, inputs_of, traced
from dygmamba.sampling.view import PairView

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OPSET = 18  # of the standard operators: what torch.onnx writes
TALKERS = ("torch.onnx", "onnxscript", "onnx_ir")
ERROR = 3  # what onnxruntime writes to the terminal, and nothing below
LOGIT = "logit"
# networks that read sequences and keep no memory: tried, and held against their runs (docs/interoperate.md)
NETWORKS = ("dyg-mamba", "mamba", "tgat", "cawn", "graphmixer", "tcl", "dygformer", "freedyg")


def require_onnx() -> None:
    """Complain about a missing package before the work, not after it."""
    try:
        for name in PACKAGES:
            import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"ONNX needs the packages {', '.join(PACKAGES)}; install them with: pip install 'dyg-mamba[onnx]'"
        ) from error


def network_graph(scorer: nn.Module, view: PairView, about: dict[str, Any]) -> Made:
    """The program of torch.export, every step of it as ONNX has it."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    program = traced(scorer, view)
    with _quiet():
        try:
            made = torch.onnx.export(
                program.run_decompositions(dict(IN_OTHER_STEPS)),
                input_names=list(inputs_of(view)),
                output_names=[LOGIT],
                opset_version=OPSET,
                external_data=False,
                verbose=False,
            )
        except RuntimeError as error:  # the parent of what torch.onnx and onnx_ir raise
            raise no_form(about["model"], error) from error
        assert made is not None  # it is where no file is named
        ClearMetadataAndDocStringPass()(made.model)  # where each step came from, in nine tenths of the bytes
    made.model.metadata_props[ABOUT] = json.dumps(about)
    return loaded(made.model_proto.SerializeToString(), about["model"])


def loaded(content: bytes, model: str) -> Made:
    """The graph as onnxruntime runs it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERROR
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds of errors have no common parent below this one
        raise no_form(model, error) from error
    return Made(content, _asking(session))


def _asking(session: Any) -> Callable[[Inputs], Tensor]:
    def answer(inputs: Inputs) -> Tensor:
        (found,) = session.run(None, {name: column.numpy() for name, column in inputs.items()})
        return torch.from_numpy(found)

    return answer


def no_form(model: str, error: BaseException) -> ConfigError:
    """What to say of a model with a step that is not among those ONNX has."""
    while error.__cause__ is not None:
        error = error.__cause__
    return ConfigError(
        f"'{model}' has a step that ONNX or onnxruntime does not take ({first_line(error)}); let the name end in .pt2, "
        f"or export one of {', '.join(NETWORKS)}"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter and its parts warn about and log while they work."""
    talkers = [logging.getLogger(name) for name in TALKERS]
    levels = [talker.level for talker in talkers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for talker in talkers:
            talker.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for talker, level in zip(talkers, levels, strict=True):
                talker.setLevel(level)
