"""What rules reach that learn nothing: a figure below theirs is no achievement.

Legend: p pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dygmamba.config import build_config, preset
from dygmamba.engine.examine import examine
from dygmamba.engine.stream import Stream
from dygmamba.models import find_model
from dygmamba.models.base import DatasetFacts
from dygmamba.studies.audit.stream import last_seen
from dygmamba.tasks.base import Exam
from dygmamba.tasks.metrics import link_metrics

MODELS = ("edgebank", "popularity")


@dataclass(frozen=True, slots=True)
class Reached:
    """What a rule has on one question of the protocol."""

    rule: str
    split: str
    setting: str
    negatives: str
    ap: float
    ap_pooled: float
    auc: float
    auc_pooled: float


def rule_scores(stream: Stream, exam: Exam, dataset: str) -> dict[str, Float[Tensor, "p"]]:
    """The score of each pair by each rule; all of them know strictly earlier events only."""
    scores = {name: _model(name, stream, exam, dataset) for name in MODELS}
    return scores | {f"recency of the {name}": _recency(stream, exam, own) for name, own in KEYS.items()}


def reached(exam: Exam, scores: dict[str, Float[Tensor, "p"]]) -> list[Reached]:
    """The rules judged as any model is."""
    found = []
    for rule, score in scores.items():
        one = link_metrics(score, exam.pairs.label, exam.pairs.group)
        found.append(Reached(rule, **exam.about, **{key: getattr(one, key) for key in METRICS}))
    return found


METRICS = ("ap", "ap_pooled", "auc", "auc_pooled")


def _model(name: str, stream: Stream, exam: Exam, dataset: str) -> Float[Tensor, "p"]:
    """A registered model without training, with the settings that `evaluate` gives it."""
    spec, about = find_model(name), exam.about
    config = build_config(spec.config, preset(name, dataset, about["negatives"]))
    scorer = spec.build(config, DatasetFacts.of(stream.store, stream.split.train))
    return examine(scorer, stream, exam)


Columns = tuple[np.ndarray, np.ndarray, int]
KEYS: dict[str, Callable[[Columns], np.ndarray]] = {
    "pair": lambda ends: ends[0] * ends[2] + ends[1],
    "source": lambda ends: ends[0],
    "destination": lambda ends: ends[1],
}


def _recency(stream: Stream, exam: Exam, own: Callable[[Columns], np.ndarray]) -> Float[Tensor, "p"]:
    """1 / (1 + age of the last event with this key), 0 where there is none."""
    store, pairs = stream.store, exam.pairs
    key = own((store.src.numpy(), store.dst.numpy(), store.num_nodes))
    asked = own((pairs.src.numpy(), pairs.dst.numpy(), store.num_nodes))
    when = pairs.time.numpy()
    return torch.from_numpy(1 / (1 + when - last_seen(key, store.time.numpy(), asked, when)))
