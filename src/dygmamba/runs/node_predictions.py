"""Predicted labels of nodes as columns of a table: scores of two states, classes, or numbers."""

import pyarrow as pa
from jaxtyping import Float
from torch import Tensor

from dygmamba.runs.queries import RAW_SCORE_COLUMN, score_column
from dygmamba.tasks.calibration import Calibration
from dygmamba.tasks.node_targets import ClassTarget, NodeTarget, RegressionTarget

CLASS_COLUMN, VALUE_COLUMN = "class", "value"
MAX_CLASS_COLUMNS = 20  # with more classes only the score of the best one is a column


def label_columns(
    target: NodeTarget,
    output: Float[Tensor, "p *c"],
    calibration: Calibration | None = None,
    names: tuple[str, ...] = (),
) -> tuple[dict[str, pa.Array], Float[Tensor, "p"]]:
    """Return the columns of predicted labels, and the number by which predictions are ranked.

    Two states have the column of `score_column`: the probability of the larger label. A number has the column `value`.
    Classes have `class`, the most probable one, `uncalibrated_score`, its probability by the model, and that of every
    class if there are few.

    Args:
        target: What is predicted.
        output: Outputs of the model.
        calibration: Of a run with two states.
        names: Names of the labels 0, 1, ... if the dataset has text labels.
    """
    if isinstance(target, RegressionTarget):
        value = target.decode(output)
        return {VALUE_COLUMN: pa.array(value.numpy())}, value
    if isinstance(target, ClassTarget):
        scores = output.double().reshape(len(output), len(target.values))  # of no nodes it has no columns
        return _class_columns(target, scores.softmax(dim=1), names)
    return score_column(output, calibration), output


def _class_columns(
    target: ClassTarget, score: Float[Tensor, "p c"], names: tuple[str, ...]
) -> tuple[dict[str, pa.Array], Float[Tensor, "p"]]:
    labels = name_classes(target.values, names)
    best = score.max(dim=1)
    columns = {
        CLASS_COLUMN: pa.array(labels).take(pa.array(best.indices.numpy())),
        RAW_SCORE_COLUMN: pa.array(best.values.numpy()),
    }
    if len(labels) <= MAX_CLASS_COLUMNS:
        each = zip(labels, score.unbind(dim=1), strict=True)
        columns |= {f"{RAW_SCORE_COLUMN} {label}": pa.array(own.numpy()) for label, own in each}
    return columns, best.values


def name_classes(values: tuple[float, ...], names: tuple[str, ...]) -> list[str] | list[int] | list[float]:
    """Return labels as the user wrote them: text, whole numbers or other numbers."""
    if names:
        return [names[int(value)] for value in values]
    if all(value.is_integer() for value in values):
        return [int(value) for value in values]
    return list(values)
