"""Node properties: what simple forecasts reach on a scoreboard's labels."""

from collections.abc import Sequence
from typing import Any

from dygmamba.data.boards import board_of
from dygmamba.data.store import Dataset
from dygmamba.door.asking import Names, check_forecast, chosen_names
from dygmamba.errors import EventError
from dygmamba.tasks.asked import NDCG
from dygmamba.tasks.link import SPLITS
from dygmamba.tasks.properties import FORECASTS, Properties


def property_rows(dataset: Dataset, model: str, split: Names = "test") -> list[dict[str, Any]]:
    """A row per period: the mean over its moments of the mean NDCG@10 of their nodes."""
    check_forecast(model)
    names: Sequence[str] = chosen_names("split", split, SPLITS)
    board = board_of(dataset)
    asked = Properties.of(dataset.store, board)
    found = asked.judged(FORECASTS[model](asked.nodes, asked.kinds))
    rows = []
    for name in (name for name in names if found[name]):
        scores = [score for score, _ in found[name]]
        about = {
            "dataset": dataset.name,
            "model": model,
            "task": "property",
            "split": name,
            "board": board.name,
        }
        counts = {"moments": len(scores), "n": sum(count for _, count in found[name])}
        rows.append({**about, "visible": "strict", NDCG: sum(scores) / len(scores), **counts})
    if not rows:
        raise EventError("no label is of the chosen splits; choose others")
    return rows
