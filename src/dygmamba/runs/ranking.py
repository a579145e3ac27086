"""Where events rank among candidates: how it is asked for, and the result rows."""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dygmamba.data.boards import Board, board_of
from dygmamba.data.store import Dataset
from dygmamba.engine.clock import Rule
from dygmamba.engine.examine import place
from dygmamba.engine.stream import Stream
from dygmamba.engine.walk import Advance, unwatched
from dygmamba.models.base import Scorer
from dygmamba.sampling.negatives import SEEDS
from dygmamba.tasks.asked import BOARD, SOME
from dygmamba.tasks.base import Exam
from dygmamba.tasks.candidates import Candidates, Listed, Rivals
from dygmamba.tasks.link import has_events, link_exam
from dygmamba.tasks.metrics import rank_metrics

Choice = tuple[str, str, str]  # negatives, split, setting


@dataclasses.dataclass(frozen=True, slots=True)
class Ranking:
    """Which ranks are asked for: metrics such as mrr and hits@10, and among how many candidates, None for all.

    With a board they are among those that it lists, and `count` says no more than that.
    """

    metrics: tuple[str, ...]
    count: int | str | None = SOME
    filtered: bool = False
    seed: int | None = None  # of the candidates, by default the published one of the exam's negatives
    most: int | None = (
        None  # events that are ranked, drawn with the same seed where there are more; None for all
    )
    board: Board | None = None

    def on(self, dataset: Dataset) -> "Ranking":
        """The same with the dataset's own scoreboard, where that is what is asked for."""
        return dataclasses.replace(self, board=board_of(dataset)) if self.count == BOARD else self

    @property
    def drawn(self) -> bool:
        """Whether candidates are drawn, so that another seed draws others."""
        return isinstance(self.count, int)

    def row(
        self,
        scorer: Scorer,
        stream: Stream,
        exam: Exam,
        rule: Rule,
        seed: int = 0,
        advance: Advance = unwatched,
    ) -> dict[str, Any]:
        """What a result row says of an exam's ranks; the exam's negatives are not asked about."""
        name, setting = exam.about["split"], exam.about["setting"]
        drawn = SEEDS[name, setting] if self.seed is None else self.seed
        among = self._among(stream, exam, drawn)
        rank = place(scorer, stream, exam, among, rule, seed, advance, self._chosen(len(exam.events), drawn))
        found = rank_metrics(rank, self.metrics)
        about = {"split": name, "setting": setting, **among.about, **rule.about}
        return {**about, **found, "n": len(rank)}

    def _among(self, stream: Stream, exam: Exam, seed: int) -> Rivals:
        if self.board is not None:
            return Listed.of(self.board, "val" if exam.about["split"] == "val" else "test", exam.events)
        assert not isinstance(self.count, str)
        return Candidates.of(stream.store, self.count, seed, self.filtered)

    def questions(self, exam: Exam) -> int:
        """Pairs that are scored where the candidates are counted; of all, at least so many."""
        events = len(exam.events) if self.most is None else min(self.most, len(exam.events))
        return events * (1 + (self.count if isinstance(self.count, int) else 0))

    def _chosen(self, events: int, seed: int) -> Tensor | None:
        if self.most is None or self.most >= events:
            return None
        drawn = np.random.default_rng([seed % 2**64, events]).choice(events, self.most, replace=False)
        return torch.from_numpy(np.sort(drawn))


def rank_rows(
    scorer: Scorer, stream: Stream, about: dict[str, Any], chosen: list[Choice], rule: Rule, ranking: Ranking
) -> list[dict[str, Any]]:
    """One result row per split and setting that has events: where each event ranks among its candidates."""
    rows = []
    for name, setting in dict.fromkeys((name, setting) for _, name, setting in chosen):
        if has_events(stream.store, stream.split, name, setting):
            exam = link_exam(stream.store, stream.split, name, setting)
            rows.append({**about, **ranking.row(scorer, stream, exam, rule, about["seed"])})
    return rows
