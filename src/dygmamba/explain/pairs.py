"""Why a trained run gives a pair its score: which past events of either node moved it, and what if they had not been.

Legend: n players.
"""

import math
from typing import Any

import pyarrow as pa
import torch

from dygmamba.data.formats.pairs import iso
from dygmamba.data.statistics import looks_like_epoch
from dygmamba.errors import ConfigError, EventError, NotFoundError
from dygmamba.explain.explanation import Explanation, Number, Numbers, Reason
from dygmamba.explain.players import Player
from dygmamba.explain.readout import by_event, readout
from dygmamba.explain.reasons import reasons as tree_reasons
from dygmamba.explain.removal import Game, Window, game_of
from dygmamba.explain.shapley import Ledger, Shares, shares
from dygmamba.explain.what_if import Scale, supporters, supporting, turned, without
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.questions import Asking, Moment
from dygmamba.sampling.view import PairBatch

ORDERS = 4  # pairs of them: more shrink the errors of the contributions, not their sum
STRONGEST = 10  # events whose score without is asked for each


def explain_pair(
    predictor: Predictor, pair: tuple[Any, Any] | str | int, at: Moment | None = None, orders: int = ORDERS
) -> Explanation:
    """What moved the score of a pair, or of a node in a run of the node task, at a time; default: after the last event.

    Cost: about 2 n `orders` histories of n events read by the model; with `orders=1` no errors are told.
    """
    if orders < 1:
        raise ConfigError(f"`orders` is a number of pairs of orders, at least 1; got {orders}")
    stream, task = predictor.links.walk.stream, predictor.run.folder.task
    asking, one = _asked(predictor, pair, at)
    game = game_of(predictor.run.scorer, stream, one, predictor.run.seed, predictor.run.rule.cell)
    if not game.players:
        raise EventError(
            _nothing(game, " and ".join(map(str, _named(predictor, asking, task))), _shown(asking))
        )
    ledger, scale = Ledger(game), Scale(predictor.calibration)
    found = shares(ledger, orders, seed=0)
    order = found.value.abs().argsort(descending=True, stable=True).tolist()
    singles = [[place] for place in order[:STRONGEST]]
    # in one pass; what follows finds them known
    ledger.without([*singles, *supporting(ledger, found, scale), supporters(ledger, found, scale)])
    alone = dict(zip(order, ledger.without(singles).tolist(), strict=False))
    words = _Words(predictor, asking, game, found, alone, scale)
    who = _named(predictor, asking, task)
    return Explanation(
        model=predictor.run.about["model"],
        task=task,
        src=who[0],
        dst=who[1] if len(who) > 1 else None,
        time=asking.time.shown[0].as_py(),
        time_assumed=asking.assumed is not None,
        seconds=words.seconds,
        logit=found.logit,
        score=scale(found.logit),
        base=found.base,
        base_score=scale(found.base),
        reasons=tuple(words.reason(place) for place in order),
        without=without(ledger, found, scale),
        flip=turned(ledger, found, scale),
        numbers=_numbers(predictor, one),
        removal=game.removal,
        orders=min(orders, game.orders),
        scored=ledger.asked,
        gap=abs(found.base + float(found.value.sum()) - found.logit),
        notes=_notes(game, asking),
    )


def _asked(predictor: Predictor, pair: Any, at: Moment | None) -> tuple[Asking, PairBatch]:
    """The question as nodes; a node that is asked about alone stands beside the last one it met."""
    both = list(pair) if isinstance(pair, tuple | list) else [pair]
    links = predictor.run.folder.task == "link"
    if len(both) != 2 and (links or len(both) != 1):
        raise ConfigError(
            f"a {'pair' if links else 'node'} is to be explained, such as "
            f"{'(src, dst)' if links else 'its id'}; got {pair!r}"
        )
    columns = {name: pa.array([str(value)]) for name, value in zip(("src", "dst"), both, strict=False)}
    asking, stream = predictor.desk.read(columns, at), predictor.links.walk.stream
    if len(asking.strangers) == len(set(map(str, both))):
        named = " and ".join(asking.strangers)
        raise NotFoundError(
            f"no event of '{predictor.dataset.name}' is of {named}; check how the ids are written"
        )
    if asking.strangers and predictor.run.scorer.stateful:
        raise ConfigError(
            f"model '{predictor.run.about['model']}' keeps a memory of the nodes it was trained with and knows no "
            f"{asking.strangers[0]}; ask about ids that are in an event"
        )
    dst = asking.dst
    if asking.asked.dst is None:
        last = stream.index.recent(asking.src.to(stream.device), asking.when.to(stream.device), 1)
        stranger = torch.full_like(asking.src, stream.store.num_nodes - 1)
        dst = torch.where(last.length.cpu() > 0, last.node[:, 0].cpu().long(), stranger)
    return asking, PairBatch.of(asking.src, dst, asking.when).to(stream.device)


class _Words:
    """Players as reasons: ids, times, what is left of them."""

    def __init__(
        self,
        predictor: Predictor,
        asking: Asking,
        game: Game,
        found: Shares,
        alone: dict[int, float],
        scale: Scale,
    ) -> None:
        self.dataset, self.desk, self.when = predictor.dataset, predictor.desk, float(asking.when[0])
        self.game, self.found, self.alone, self.scale = game, found, alone, scale
        time = self.dataset.store.time
        self.dated = bool(self.dataset.origin.time_origin)
        self.seconds = self.dated or looks_like_epoch(float(time[0]), float(time[-1]))
        kept = readout(game.scorer, game.view) if isinstance(game, Window) else None
        self.left = None if kept is None else by_event(kept.left, kept.tokens)
        self.read = None if kept is None else by_event(kept.share / 2, kept.tokens)  # of two readouts alike

    def reason(self, place: int) -> Reason:
        """A player in the user's words."""
        player = self.game.players[place]
        event = player.events[-1]
        src, dst = self.ids([int(self.dataset.store.src[event]), int(self.dataset.store.dst[event])])
        time = float(self.dataset.store.time[event])
        alone, error = self.alone.get(place), float(self.found.error[place])
        return Reason(
            event=event,
            side="both" if player.of_src and player.of_dst else "src" if player.of_src else "dst",
            src=src,
            dst=dst,
            time=iso(time) if self.dated else int(time) if time.is_integer() else time,
            age=self.when - time,
            count=len(player.events),
            contribution=float(self.found.value[place]),
            error=None if math.isnan(error) else error,
            score_without=None if alone is None else self.scale(alone),
            left=_mean(_there(self.left, player)),
            read=None if self.read is None else sum(_there(self.read, player)),
        )

    def ids(self, nodes: list[int]) -> list[Any]:
        """The user's ids of these nodes."""
        return self.desk.own(self.dataset.ids.to_user(nodes)).to_pylist()


def _there(sides: list[dict[int, float]] | None, player: Player) -> list[float]:
    return [side[event] for side in sides or [] for event in player.events if event in side]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _numbers(predictor: Predictor, pair: PairBatch) -> Numbers | None:
    """Of boosted trees every number they look at, the strongest first."""
    scorer = predictor.run.scorer
    if not isinstance(scorer, BoostedTrees):
        return None
    found = tree_reasons(scorer, predictor.links.walk.stream, pair)
    order = found.contribution[0].abs().argsort(descending=True, stable=True).tolist()
    value, moved = found.value[0].tolist(), found.contribution[0].tolist()
    return Numbers(found.base, tuple(Number(found.names[at], value[at], moved[at]) for at in order))


def _named(predictor: Predictor, asking: Asking, task: str) -> list[Any]:
    """Whom the question is about, in the user's ids."""
    columns: list[pa.Array] = [asking.asked.src]
    if asking.asked.dst is not None and task == "link":
        columns.append(asking.asked.dst)
    return [predictor.desk.own(column)[0].as_py() for column in columns]


def _shown(asking: Asking) -> Any:
    return asking.time.shown[0].as_py()


def _nothing(game: Game, named: str, when: str) -> str:
    """Why there is nothing to try, and what to do."""
    if game.carried:
        return (
            f"what {named} did strictly before {when} is all in the memory that training left, which is part of the "
            "model; ask about a time after later events, or train with memory='replayed'"
        )
    return (
        f"no event of {named} is strictly before {when}, so nothing that happened moved the score; "
        "ask about a later time"
    )


def _notes(game: Game, asking: Asking) -> tuple[str, ...]:
    """What the reader may not expect."""
    notes = [f"{name} is in no event, so it has no past" for name in asking.strangers]
    if game.removal == "stream":
        notes.append(
            f"this model sees more than two lists of events: the {len(game.players)} newest events of the pair were "
            "taken out of the stream; what lies further back is in the base"
        )
    if game.carried:
        notes.append(
            f"its memory goes on from what training left of the first {game.carried:,} events, which is part of the "
            "model as its weights are: only later events were tried; of a run with memory='replayed' all can be"
        )
    grouped = [player for player in game.players if len(player.events) > 1]
    if grouped:
        count = sum(len(player.events) for player in grouped)
        notes.append(f"{count:,} older events are in {len(grouped)} groups, each tried as one")
    return tuple(notes)
