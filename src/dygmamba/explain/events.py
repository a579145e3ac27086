"""The past events that moved the scores of some pairs most, each in a few words: what a page says beside an answer."""

from typing import Any

import torch

from dygmamba.data.statistics import as_duration, looks_like_epoch
from dygmamba.data.store import Dataset
from dygmamba.errors import ConfigError
from dygmamba.explain.players import Player
from dygmamba.explain.removal import Window, game_of
from dygmamba.explain.shapley import Ledger, shares
from dygmamba.runs.opening import OpenRun
from dygmamba.sampling.view import PairBatch


def event_reasons(run: OpenRun, pairs: PairBatch, count: int) -> list[list[tuple[str, float]]]:
    """Of each pair so many events, the strongest first, and by how much they move the logit.

    Only of models that read lists of recent events, where an event less costs one short question; the others are
    refused, and `explain_pair` has more to say.
    """
    found = []
    for row in range(len(pairs)):
        one = pairs.of_rows(torch.tensor([row])).to(run.stream.device)
        game = game_of(run.scorer, run.stream, one, run.seed, run.rule.cell)
        if not isinstance(game, Window):
            raise ConfigError(f"{run.about['model']} reads more than two lists of events")
        if not game.players:
            found.append([("nothing happened before", 0.0)])
            continue
        worth = shares(Ledger(game), 1, seed=0).value
        strongest = worth.abs().argsort(descending=True, stable=True)[:count].tolist()
        said = [_words(run.dataset, game.players[at], one) for at in strongest]
        found.append([(words, float(worth[at])) for words, at in zip(said, strongest, strict=True)])
    return found


def _words(dataset: Dataset, player: Player, pair: PairBatch) -> str:
    """Who with whom, and how long before; of several old events whose they are."""
    src, dst = dataset.ids.to_user([int(pair.src), int(pair.dst)]).to_pylist()
    *older, event = player.events
    if older:
        whose: Any = "either" if player.of_src and player.of_dst else src if player.of_src else dst
        return f"{len(player.events):,} older events of {whose}"
    store = dataset.store
    age, spanned = float(pair.time) - float(store.time[event]), (float(store.time[0]), float(store.time[-1]))
    seconds = bool(dataset.origin.time_origin) or looks_like_epoch(*spanned)
    before = f"{as_duration(age) if seconds else f'{age:.4g}'} before"
    if player.of_src and player.of_dst:
        return f"they met {before}"
    a, b = dataset.ids.to_user([int(store.src[event]), int(store.dst[event])]).to_pylist()
    return f"{a} met {b} {before}"
