"""The past events that moved the scores of some pairs most, each in a few words: what a page says beside an answer.

The score had events not happened, asked of the model: the strongest ones, and a set that turns the decision.

The decision is on which side of one half the score is; its supporters are the events that push it there.

Why a trained run gives a pair its score: which past events of either node moved it, and what if they had not been.

Legend: n players.
"""

import math
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch

from dygmamba.core.errors import ConfigError, EventError, NotFoundError
from dygmamba.data.events.statistics import format_duration, looks_like_epoch_seconds
from dygmamba.data.readers.queries import format_iso_time
from dygmamba.data.storage.dataset import Dataset
from dygmamba.explain.event_removal import Player, RemovalGame, WindowRemoval, build_game
from dygmamba.explain.explanation import Explanation, Number, Numbers, Reason, Without
from dygmamba.explain.hidden_states import read_last_scan, values_by_event
from dygmamba.explain.shapley import CachedGame, ShapleyValues, estimate_shapley
from dygmamba.explain.shapley import attribute_trees as tree_reasons
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.opening import OpenRun
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import QueryBatch, TimeLike
from dygmamba.sampling.view import PairBatch
from dygmamba.tasks.calibration import Calibration


def find_strongest_events(run: OpenRun, pairs: PairBatch, count: int) -> list[list[tuple[str, float]]]:
    """Of each pair so many events, the strongest first, and by how much they move the logit.

    Only of models that read lists of recent events, where an event less costs one short question; the others are
    refused, and `explain_pair` has more to say.
    """
    found = []
    for row in range(len(pairs)):
        one = pairs.of_rows(torch.tensor([row])).to(run.stream.device)
        game = build_game(run.scorer, run.stream, one, run.seed, run.rule.cell)
        if not isinstance(game, WindowRemoval):
            raise ConfigError(f"{run.about['model']} reads more than two lists of events")
        if not game.players:
            found.append([("nothing happened before", 0.0)])
            continue
        worth = estimate_shapley(CachedGame(game), 1, seed=0).value
        strongest = worth.abs().argsort(descending=True, stable=True)[:count].tolist()
        said = [_describe_player(run.dataset, game.players[at], one) for at in strongest]
        found.append([(words, float(worth[at])) for words, at in zip(said, strongest, strict=True)])
    return found


def _describe_player(dataset: Dataset, player: Player, pair: PairBatch) -> str:
    """Who with whom, and how long before; of several old events whose they are."""
    src, dst = dataset.ids.to_user([int(pair.src), int(pair.dst)]).to_pylist()
    *older, event = player.events
    if older:
        whose: Any = "either" if player.of_src and player.of_dst else src if player.of_src else dst
        return f"{len(player.events):,} older events of {whose}"
    store = dataset.store
    age, spanned = float(pair.time) - float(store.time[event]), (float(store.time[0]), float(store.time[-1]))
    seconds = bool(dataset.origin.time_origin) or looks_like_epoch_seconds(*spanned)
    before = f"{format_duration(age) if seconds else f'{age:.4g}'} before"
    if player.of_src and player.of_dst:
        return f"they met {before}"
    a, b = dataset.ids.to_user([int(store.src[event]), int(store.dst[event])]).to_pylist()
    return f"{a} met {b} {before}"


SUPPORTER_SETS = (1, 3, 10)  # of how many of the strongest supporters the score without is told
MAX_FLIP_EVENTS = 10  # events of a set that turns the decision


@dataclass(frozen=True, slots=True)
class ScoreScale:
    """Logits as scores, as `Run.score` has them: probabilities, or of a run without a calibration logistic values."""

    calibration: Calibration | None = None

    def __call__(self, logit: float) -> float:
        """The score."""
        value = torch.tensor([logit], dtype=torch.float64)
        return float(
            torch.sigmoid(value) if self.calibration is None else self.calibration.probability(value)
        )

    def high(self, logit: float) -> bool:
        """Whether the decision is for the pair."""
        return self(logit) >= 0.5


def rank_supporters(ledger: CachedGame, found: ShapleyValues, scale: ScoreScale) -> list[int]:
    """Single events that push the logit to the side where it is, the strongest first."""
    push = found.value if scale.high(found.logit) else -found.value
    ranked = push.argsort(descending=True, stable=True).tolist()
    return [
        place for place in ranked if float(push[place]) > 0 and len(ledger.game.players[place].events) == 1
    ]


def supporter_sets(ledger: CachedGame, found: ShapleyValues, scale: ScoreScale) -> list[list[int]]:
    """The first of them, in sets of growing size."""
    ranked = rank_supporters(ledger, found, scale)
    return [ranked[:size] for size in sorted({min(size, len(ranked)) for size in SUPPORTER_SETS} - {0})]


def score_without_supporters(
    ledger: CachedGame, found: ShapleyValues, scale: ScoreScale
) -> tuple[Without, ...]:
    """The score without the strongest supporters of the decision: one, three and ten of them."""
    gone = supporter_sets(ledger, found, scale)
    return tuple(
        _removed_set(ledger, places, logit, scale)
        for places, logit in zip(gone, ledger.without(gone).tolist(), strict=True)
    )


def find_flip(ledger: CachedGame, found: ShapleyValues, scale: ScoreScale) -> Without | None:
    """A set that turns the decision: greedily the event whose absence moves the logit most, then none too many.

    Where the decision stands without all of its supporters, none is looked for.
    """
    high = scale.high(found.logit)

    def over(logit: float) -> bool:
        return scale.high(logit) != high

    gone: list[int] = []
    candidates, logit = rank_supporters(ledger, found, scale), found.logit
    if not over(float(ledger.without([candidates])[0])):
        return None
    while not over(logit):
        tried = [place for place in candidates if place not in gone][: ledger.game.tries]
        if not tried or len(gone) == MAX_FLIP_EVENTS:
            return None
        after = ledger.without([[*gone, place] for place in tried])
        best = int(after.argmin() if high else after.argmax())
        gone, logit = [*gone, tried[best]], float(after[best])
    while len(gone) > 1:
        fewer = [[other for other in gone if other != place] for place in gone]
        enough = [
            one for one, logit in zip(fewer, ledger.without(fewer).tolist(), strict=True) if over(logit)
        ]
        if not enough:
            break
        gone = enough[0]
    return _removed_set(ledger, gone, float(ledger.without([gone])[0]), scale)


def _removed_set(ledger: CachedGame, places: list[int], logit: float, scale: ScoreScale) -> Without:
    players = ledger.game.players
    events = tuple(event for place in places for event in players[place].events)
    return Without(events, logit, scale(logit))


DEFAULT_ORDERS = 4  # pairs of them: more shrink the errors of the contributions, not their sum
STRONGEST_EVENTS = 10  # events whose score without is asked for each


def explain_pair(
    predictor: Predictor,
    pair: tuple[Any, Any] | str | int,
    at: TimeLike | None = None,
    orders: int = DEFAULT_ORDERS,
) -> Explanation:
    """What moved the score of a pair, or of a node in a run of the node task, at a time; default: after the last event.

    Cost: about 2 n `orders` histories of n events read by the model; with `orders=1` no errors are told.
    """
    if orders < 1:
        raise ConfigError(f"`orders` is a number of pairs of orders, at least 1; got {orders}")
    stream, task = predictor.links.walk.stream, predictor.run.folder.task
    queries, one = _read_query(predictor, pair, at)
    game = build_game(predictor.run.scorer, stream, one, predictor.run.seed, predictor.run.rule.cell)
    if not game.players:
        raise EventError(
            _no_events_message(
                game, " and ".join(map(str, _queried_ids(predictor, queries, task))), _shown_time(queries)
            )
        )
    ledger, scale = CachedGame(game), ScoreScale(predictor.calibration)
    found = estimate_shapley(ledger, orders, seed=0)
    order = found.value.abs().argsort(descending=True, stable=True).tolist()
    singles = [[place] for place in order[:STRONGEST_EVENTS]]
    # in one pass; what follows finds them known
    ledger.without([*singles, *supporter_sets(ledger, found, scale), rank_supporters(ledger, found, scale)])
    alone = dict(zip(order, ledger.without(singles).tolist(), strict=False))
    words = _ReasonBuilder(predictor, queries, game, found, alone, scale)
    who = _queried_ids(predictor, queries, task)
    return Explanation(
        model=predictor.run.about["model"],
        task=task,
        src=who[0],
        dst=who[1] if len(who) > 1 else None,
        time=queries.time.shown[0].as_py(),
        time_assumed=queries.assumed is not None,
        seconds=words.seconds,
        logit=found.logit,
        score=scale(found.logit),
        base=found.base,
        base_score=scale(found.base),
        reasons=tuple(words.reason(place) for place in order),
        without=score_without_supporters(ledger, found, scale),
        flip=find_flip(ledger, found, scale),
        numbers=_explain_numbers(predictor, one),
        removal=game.removal,
        orders=min(orders, game.orders),
        scored=ledger.asked,
        gap=abs(found.base + float(found.value.sum()) - found.logit),
        notes=_build_notes(game, queries),
    )


def _read_query(predictor: Predictor, pair: Any, at: TimeLike | None) -> tuple[QueryBatch, PairBatch]:
    """The question as nodes; a node that is asked about alone stands beside the last one it met."""
    both = list(pair) if isinstance(pair, tuple | list) else [pair]
    links = predictor.run.folder.task == "link"
    if len(both) != 2 and (links or len(both) != 1):
        raise ConfigError(
            f"a {'pair' if links else 'node'} is to be explained, such as "
            f"{'(src, dst)' if links else 'its id'}; got {pair!r}"
        )
    columns = {name: pa.array([str(value)]) for name, value in zip(("src", "dst"), both, strict=False)}
    queries, stream = predictor.query_parser.read(columns, at), predictor.links.walk.stream
    if len(queries.unknown_ids) == len(set(map(str, both))):
        named = " and ".join(queries.unknown_ids)
        raise NotFoundError(
            f"no event of '{predictor.dataset.name}' is of {named}; check how the ids are written"
        )
    if queries.unknown_ids and predictor.run.scorer.stateful:
        raise ConfigError(
            f"model '{predictor.run.about['model']}' keeps a memory of the nodes it was trained with and knows no "
            f"{queries.unknown_ids[0]}; ask about ids that are in an event"
        )
    dst = queries.dst
    if queries.asked.dst is None:
        last = stream.index.recent(queries.src.to(stream.device), queries.when.to(stream.device), 1)
        stranger = torch.full_like(queries.src, stream.store.num_nodes - 1)
        dst = torch.where(last.length.cpu() > 0, last.node[:, 0].cpu().long(), stranger)
    return queries, PairBatch.of(queries.src, dst, queries.when).to(stream.device)


class _ReasonBuilder:
    """Players as reasons: ids, times, what is left of them."""

    def __init__(
        self,
        predictor: Predictor,
        queries: QueryBatch,
        game: RemovalGame,
        found: ShapleyValues,
        alone: dict[int, float],
        scale: ScoreScale,
    ) -> None:
        self.dataset, self.query_parser, self.when = (
            predictor.dataset,
            predictor.query_parser,
            float(queries.when[0]),
        )
        self.game, self.found, self.alone, self.scale = game, found, alone, scale
        time = self.dataset.store.time
        self.dated = bool(self.dataset.origin.time_origin)
        self.seconds = self.dated or looks_like_epoch_seconds(float(time[0]), float(time[-1]))
        kept = read_last_scan(game.scorer, game.view) if isinstance(game, WindowRemoval) else None
        self.left = None if kept is None else values_by_event(kept.left, kept.tokens)
        self.read = (
            None if kept is None else values_by_event(kept.share / 2, kept.tokens)
        )  # of two readouts alike

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
            time=format_iso_time(time) if self.dated else int(time) if time.is_integer() else time,
            age=self.when - time,
            count=len(player.events),
            contribution=float(self.found.value[place]),
            error=None if math.isnan(error) else error,
            score_without=None if alone is None else self.scale(alone),
            left=_mean(_values_at(self.left, player)),
            read=None if self.read is None else sum(_values_at(self.read, player)),
        )

    def ids(self, nodes: list[int]) -> list[Any]:
        """The user's ids of these nodes."""
        return self.query_parser.own(self.dataset.ids.to_user(nodes)).to_pylist()


def _values_at(sides: list[dict[int, float]] | None, player: Player) -> list[float]:
    return [side[event] for side in sides or [] for event in player.events if event in side]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _explain_numbers(predictor: Predictor, pair: PairBatch) -> Numbers | None:
    """Of boosted trees every number they look at, the strongest first."""
    scorer = predictor.run.scorer
    if not isinstance(scorer, BoostedTrees):
        return None
    found = tree_reasons(scorer, predictor.links.walk.stream, pair)
    order = found.contribution[0].abs().argsort(descending=True, stable=True).tolist()
    value, moved = found.value[0].tolist(), found.contribution[0].tolist()
    return Numbers(found.base, tuple(Number(found.names[at], value[at], moved[at]) for at in order))


def _queried_ids(predictor: Predictor, queries: QueryBatch, task: str) -> list[Any]:
    """Whom the question is about, in the user's ids."""
    columns: list[pa.Array] = [queries.asked.src]
    if queries.asked.dst is not None and task == "link":
        columns.append(queries.asked.dst)
    return [predictor.query_parser.own(column)[0].as_py() for column in columns]


def _shown_time(queries: QueryBatch) -> Any:
    return queries.time.shown[0].as_py()


def _no_events_message(game: RemovalGame, named: str, when: str) -> str:
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


def _build_notes(game: RemovalGame, queries: QueryBatch) -> tuple[str, ...]:
    """What the reader may not expect."""
    notes = [f"{name} is in no event, so it has no past" for name in queries.unknown_ids]
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
