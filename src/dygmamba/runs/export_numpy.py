"""Export of boosted trees as a program that needs numpy and Numba only: a zip file with scorer.py and its model.

Networks and ONNX graphs take features that this package computes. Trees can do without: their features are counts of
earlier events, and the modules that compute them need no torch. The zip file holds copies of them (decision 048).
"""

import ast
import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from dygmamba.core.choices import TIME_UNITS
from dygmamba.core.errors import ConfigError
from dygmamba.data.events.column_facts import ColumnFacts
from dygmamba.history.columns import ColumnFeatures, find_query_columns
from dygmamba.history.node_features import NodeFeatures
from dygmamba.history.table_request import FeatureRequest
from dygmamba.history.transitions import TransitionFeatures
from dygmamba.history.view import Request
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs import tree_scorer
from dygmamba.runs.export_metadata import describe_program
from dygmamba.runs.recipes import OpenRun
from dygmamba.runs.tree_scorer import Scorer, compute_digest
from dygmamba.tasks.calibration import NewNodes

SCORER = Path(tree_scorer.__file__)
SOURCES = SCORER.parents[2]  # the folder of the package
SCORER_FILE, MODEL_FILE, COMMAND_FILE, ABOUT_FILE = "scorer.py", "model.npz", "__main__.py", "README.txt"
COMMAND = """\
import sys
from pathlib import Path

try:
    from scorer import main
except ImportError as error:
    sys.exit(f"error: {error}")
main(Path(sys.argv[0]))
"""
# of the copied package: says what to install, and stands in for the types of annotations
PACKAGE_INIT = """\
import sys
from types import ModuleType

try:
    import numba
except ImportError as error:
    raise ImportError("the scorer needs numpy and Numba; run `pip install numpy numba`") from error


class Annotations(ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Annotation


class Annotation:
    def __class_getitem__(cls, item):
        return object


try:
    import jaxtyping
except ImportError:  # only annotations use it, and nothing checks them here
    sys.modules["jaxtyping"] = Annotations("jaxtyping")
"""
ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # so that the same run gives the same bytes
README = """\
Score pairs of nodes with boosted trees, from earlier events.

    python NAME.zip events.csv pairs.csv > scores.csv

or in Python, with the zip file or the folder that it was unpacked to in sys.path:

    from scorer import Scorer; help(Scorer)

It needs Python 3.11, numpy and Numba (pip install numpy numba), neither torch nor dygmamba. Numba compiles the program
at its first call, which takes about ten seconds, and caches the machine code (in NUMBA_CACHE_DIR, if you set it). The
folder dygmamba/ holds copies of the modules that the program needs: use it in a process that does not import dygmamba.
Written by dygmamba {version} for the model '{model}' on '{data}'.
"""


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
    arrays["digest"] = np.frombuffer(compute_digest(arrays).encode(), np.uint8)
    model = io.BytesIO()
    np.savez_compressed(model, allow_pickle=False, **arrays)
    files = {
        SCORER_FILE: SCORER.read_bytes(),
        COMMAND_FILE: COMMAND.encode(),
        MODEL_FILE: model.getvalue(),
        ABOUT_FILE: README.format(**about).encode(),
    }
    modules = {type(request).__module__ for request in scorer.requests}
    return _zip_files(files | copy_modules(modules))


def score_last_events(run: OpenRun, content: bytes, count: int) -> np.ndarray:
    """Return the logits of the last `count` events by the program in a zip file, which observes all events."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        scorer = Scorer.parse(archive.read(MODEL_FILE))
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


def copy_modules(features: Iterable[str]) -> dict[str, bytes]:
    """Return these modules, those that scorer.py imports and all that they import, by path in the zip file.

    The files `__init__.py` are empty, as those of the package import torch.
    """
    found: set[Path] = set()
    waiting = _list_imports(SCORER) | {Path(str(import_module(name).__file__)) for name in features}
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= _list_imports(path) - found
    folders = {folder for path in found for folder in path.relative_to(SOURCES).parents[:-1]}
    files = {(folder / "__init__.py").as_posix(): b"" for folder in sorted(folders)}
    files |= {"dygmamba/__init__.py": PACKAGE_INIT.encode()}
    return files | {path.relative_to(SOURCES).as_posix(): path.read_bytes() for path in sorted(found)}


def _list_imports(source: Path) -> set[Path]:
    """Return the modules of the package that a module imports at its top."""
    found: set[Path] = set()
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dygmamba."):
            path = SOURCES.joinpath(*str(node.module).split("."))
            found |= {path.with_suffix(".py"), *(path / f"{name.name}.py" for name in node.names)}
    return {path for path in found if path.exists()}


def _describe_features(requests: tuple[Request, ...], model: str) -> dict[str, Any]:
    """Return what scorer.py needs to know of each group of features, in the order of the features."""
    parts: list[dict[str, Any]] = []
    read = (request.columns for request in requests if isinstance(request, ColumnFeatures))
    columns = _number_columns(next(read, ColumnFacts()))
    for request in requests:
        if isinstance(request, NodeFeatures):
            raise ConfigError(
                f"model '{model}' of this run reads node features, which the exported scorer does not support; use the "
                "suffix .onnx, or train with `node_columns=0`",
                code="model-not-exportable",
            )
        if not isinstance(request, FeatureRequest):
            raise ConfigError(
                f"model '{model}' with these settings reads temporal walks, whose sums need torch; use the suffix "
                ".onnx, or train with `walks=0`",
                code="model-not-exportable",
            )
        if isinstance(request, ColumnFeatures):
            request = replace(request, columns=columns)
        if isinstance(request, TransitionFeatures) and request.column is not None:
            request = replace(request, column=columns.types[0])  # the first one in both
        parts.append(
            {
                "kind": [type(request).__module__, type(request).__name__],
                "settings": asdict(cast(Any, request)),
            }
        )
    names = [column.name for column in (*columns.numeric, *columns.types)]
    return {
        "features": parts,
        "columns": names,
        "query_columns": names if find_query_columns(requests) else [],
    }


def _number_columns(columns: ColumnFacts) -> ColumnFacts:
    """Return the columns, and the values of types, numbered in their order: the scorer gets no others."""
    numeric = (replace(column, index=at) for at, column in enumerate(columns.numeric))
    types = (
        replace(column, index=at, codes=tuple(range(len(column.values))))
        for at, column in enumerate(columns.types)
    )
    return ColumnFacts(tuple(numeric), tuple(types))


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
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, ZIP_DATE), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
