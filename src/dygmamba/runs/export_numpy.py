"""Export of boosted trees as a program that needs numpy only: a zip file with scorer.py, its model and a command.

Networks and ONNX graphs take features that this package computes. Trees can do without: their features are counts of
earlier events, and the modules `numpy_histories`, `numpy_features` and `numpy_scorer` compute them from a table of
events. Joined into one file they are scorer.py (decision 048).
"""

import ast
import io
import json
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dygmamba.core.choices import TIME_UNITS
from dygmamba.core.errors import ConfigError
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs import numpy_features, numpy_histories, numpy_scorer
from dygmamba.runs.export_metadata import describe_program
from dygmamba.runs.recipes import OpenRun
from dygmamba.sampling import columns, transitions
from dygmamba.sampling.columns import ColumnRequest
from dygmamba.sampling.counts import CountRequest
from dygmamba.sampling.node_features import NodeFeatureRequest
from dygmamba.sampling.transitions import TransitionRequest
from dygmamba.sampling.view import Request
from dygmamba.tasks.calibration import NewNodes

MODULES = (numpy_histories, numpy_features, numpy_scorer)
SCORER_FILE, MODEL_FILE, COMMAND_FILE = "scorer.py", "model.npz", "__main__.py"
COMMAND = """\
import sys
from pathlib import Path

from scorer import main

main(Path(sys.argv[0]))
"""
ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # so that the same run gives the same bytes
HEADER = '''"""Score pairs of nodes with boosted trees, from earlier events; needs numpy and Python 3.10 only.

    from scorer import Scorer

    scorer = Scorer.load("folder")        # the folder of model.npz, or the zip file that holds it
    scorer.observe(src, dst, time)        # events, oldest first, in any number of parts
    scorer.score(src, dst, time)          # the probability of each pair

or, for files: python scorer.py events.csv pairs.csv > scores.csv

A score depends on events strictly earlier than its time only.
Written by dygmamba {version} for the model '{model}' on '{data}'.
"""
'''


def export_numpy_scorer(run: OpenRun) -> bytes:
    """Return the content of the zip file.

    Raises:
        ConfigError: The model is not boosted trees, or reads temporal walks or node features.
    """
    scorer = run.scorer
    if not isinstance(scorer, BoostedTrees):
        raise ConfigError(
            f"model '{run.model}' is no sum of trees, so numpy cannot run it; use the suffix .onnx or .pt2",
            code="model-not-exportable",
        )
    about = describe_program(run, {}, has_probability=True)
    about |= _describe_features(scorer.requests, run.model)
    origin = run.dataset.origin
    about["is_dated"] = bool(origin.time_origin)
    about["ticks"] = TIME_UNITS.get(origin.clock.removesuffix(" since 1970"), 0) or 1
    about["table"] = [origin.src or "src", origin.dst or "dst", origin.time or "time"]
    arrays = _list_arrays(run, scorer)
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    arrays["digest"] = np.frombuffer(numpy_scorer.compute_digest(arrays).encode(), np.uint8)
    model = io.BytesIO()
    np.savez_compressed(model, allow_pickle=False, **arrays)
    files = {
        SCORER_FILE: join_modules(about).encode(),
        COMMAND_FILE: COMMAND.encode(),
        MODEL_FILE: model.getvalue(),
    }
    return _zip_files(files)


def score_last_events(run: OpenRun, content: bytes, count: int) -> np.ndarray:
    """Return the logits of the last `count` events by the program in a zip file, which observes all events."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        scorer = numpy_scorer.Scorer.parse(archive.read(MODEL_FILE))
    store, features = run.stream.store, run.stream.store.features
    ends = [
        run.dataset.ids.to_user(nodes.numpy()).to_numpy(zero_copy_only=False)
        for nodes in (store.src, store.dst)
    ]
    rows: dict[str, Any] = dict(zip(features.edge_names, features.edge.T.numpy(), strict=True))
    for place, category in enumerate(features.categories):
        assert features.codes is not None
        rows[category.name] = np.array(category.values)[features.codes[:, place].numpy()]
    (src, dst), time = ends, store.time.numpy()
    scorer.observe(src, dst, time, rows)
    last = {name: column[-count:] for name, column in rows.items()}
    return scorer.compute_logits(src[-count:], dst[-count:], time[-count:], last)


def join_modules(about: dict[str, Any]) -> str:
    """Return the source of scorer.py: the modules one after another, with their imports at the top, each once."""
    imports, parts = set(), []
    for module in MODULES:
        source = Path(str(module.__file__)).read_text("utf-8")
        statements = ast.parse(source).body
        body = [node for node in statements[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
        imports |= {ast.unparse(node) for node in statements if _is_outside_import(node)}
        parts.append("\n".join(source.splitlines()[body[0].lineno - 1 :]))
    head = HEADER.format(**{name: about[name] for name in ("version", "model", "data")})
    return "\n\n".join([head + "\n" + "\n".join(sorted(imports)), *(f"\n{part}" for part in parts)]) + "\n"


def _is_outside_import(node: ast.stmt) -> bool:
    is_own = isinstance(node, ast.ImportFrom) and str(node.module).startswith("dygmamba")
    return isinstance(node, ast.Import | ast.ImportFrom) and not is_own


def _describe_features(requests: tuple[Request, ...], model: str) -> dict[str, Any]:
    """Return what scorer.py needs to know of each group of features, in the order of the features."""
    parts: list[dict[str, Any]] = []
    event_columns: list[str] = []
    query_columns: list[str] = []
    for request in requests:
        if isinstance(request, CountRequest):
            parts.append({"kind": "counts", "scales": request.scales, "neighbors": request.neighbors})
        elif isinstance(request, TransitionRequest):
            least = (transitions.LEAST_COUNT, transitions.LEAST_TOTAL)
            parts.append({"kind": "transitions", "scales": request.scales, "lags": request.lags})
            parts[-1] |= {"ages": transitions.AGES, "least": least}
        elif isinstance(request, ColumnRequest):
            least = (columns.LEAST_COUNT, columns.LEAST_TOTAL)
            parts.append(
                {"kind": "columns", "scales": request.scales, "query": request.query, "least": least}
            )
            parts[-1] |= asdict(request.columns)
            event_columns = [column.name for column in (*request.columns.numeric, *request.columns.types)]
            query_columns = event_columns if request.query else []
        elif isinstance(request, NodeFeatureRequest):
            raise ConfigError(
                f"model '{model}' of this run reads node features, which the numpy scorer does not support; use the "
                "suffix .onnx, or train with `node_columns=0`",
                code="model-not-exportable",
            )
        else:
            raise ConfigError(
                f"model '{model}' with these settings reads temporal walks, whose 32-bit sums numpy cannot repeat; "
                "use the suffix .onnx, or train with `walks=0`",
                code="model-not-exportable",
            )
    return {"features": parts, "columns": event_columns, "query_columns": query_columns}


def _list_arrays(run: OpenRun, scorer: BoostedTrees) -> dict[str, np.ndarray]:
    """Return trees, node ids and the time of each node's first training event."""
    trees, ids = scorer.trees(), run.dataset.ids
    names = ("feature", "threshold", "left", "right", "value")
    arrays = {name: getattr(trees, name).cpu().numpy() for name in names}
    arrays["base"] = scorer.base.cpu().double().numpy()
    arrays["first_training_time"] = NewNodes.from_events(
        run.stream.store, run.stream.split.train
    ).first.numpy()
    values = ids.values.to_numpy(zero_copy_only=False)
    arrays["ids"] = values if ids.kind == "int" else values.astype(str)
    if ids.is_source is not None:
        arrays["is_source"] = ids.is_source.to_numpy(zero_copy_only=False)
    return arrays


def _zip_files(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), content)
    return buffer.getvalue()
