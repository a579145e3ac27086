"""Explanation of the score of a pair: the past events of both nodes that moved it, and the score without them.

The decision about a pair is whether its score is at least one half; the supporters of a decision are the events that
push the score to its side.

Shapes: n players.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from dygmamba.core.errors import ConfigError, EventError, NotFoundError
from dygmamba.data.events.times import format_duration
from dygmamba.data.readers.times import format_iso_time
from dygmamba.data.storage.dataset import Dataset
from dygmamba.explain.event_removal import Player, RemovalGame, WindowRemoval, build_game
from dygmamba.explain.explanation import Explanation, Number, Numbers, Reason, Without, describe_columns
from dygmamba.explain.hidden_states import read_last_scan, values_by_event
from dygmamba.explain.shapley import CachedGame, ShapleyValues, attribute_trees, estimate_shapley
from dygmamba.history.index import to_host
from dygmamba.history.transitions import TransitionFeatures
from dygmamba.history.view import PairBatch
from dygmamba.models.trees import BoostedTrees
from dygmamba.runs.predictor import Predictor
from dygmamba.runs.queries import QueryBatch, TimeLike
from dygmamba.runs.recipes import OpenRun
from dygmamba.tasks.calibration import Calibration

DEFAULT_ORDERS = 4  # antithetic pairs; more of them reduce the standard errors, the sum is always exact
STRONGEST_EVENTS = 10  # events whose removal is scored one by one
SUPPORTER_SETS = (1, 3, 10)  # sizes of the sets of strongest supporters whose removal is scored
MAX_FLIP_EVENTS = 10
MAX_NUMBERS = 20  # numeric columns of a stream that are named; more are the parts of a vector


@dataclass(frozen=True, slots=True)
class ScoreScale:
    """From logits of a pair to scores as in `Run.score`: probabilities, or the sigmoid for an uncalibrated run."""

    calibration: Calibration | None = None
    new_ends: Tensor | None = None  # of the pair, as `NewNodes.find` returns them

    def __call__(self, logit: float) -> float:
        value = torch.tensor([logit], dtype=torch.float64)
        return float(
            torch.sigmoid(value)
            if self.calibration is None
            else self.calibration.probability(value, self.new_ends)
        )

    def is_positive(self, logit: float) -> bool:
        """Return whether the decision is for the pair."""
        return self(logit) >= 0.5


def explain_pair(
    predictor: Predictor,
    pair: tuple[Any, Any] | str | int,
    at: TimeLike | None = None,
    orders: int = DEFAULT_ORDERS,
    columns: Mapping[str, Any] | None = None,
) -> Explanation:
    """Explain the score of a pair, or of a node for a node classifier.

    The model scores about 2 n `orders` histories of n events.

    Args:
        predictor: The run.
        pair: (src, dst), or the id of a node.
        at: Time of the query; default: after the last event.
        orders: Antithetic pairs of orders; with 1 there are no standard errors.
        columns: Columns of the event in question by name, for a model that reads them (`query_columns`).
    """
    if orders < 1:
        raise ConfigError(f"`orders` must be at least 1; got {orders}", code="orders-not-positive")
    stream, run = predictor.ranker.stream_scorer.stream, predictor.run
    if run.target is not None and run.target.kind != "binary":
        raise ConfigError(
            f"{run.folder.path} has the target '{run.target.kind}', but only links and labels of two states can be "
            "explained; give another run",
            code="target-without-explanation",
        )
    queries, one = _read_query(predictor, pair, at, columns or {})
    ids, time = _queried_ids(predictor, queries), queries.times.shown[0].as_py()
    removal = build_game(run.scorer, stream, one, run.seed, run.rule.batch_size)
    if not removal.players:
        raise EventError(
            _no_events_message(removal, " and ".join(map(str, ids)), time), code="no-earlier-events"
        )
    new_ends = predictor.find_new_ends(queries.src, queries.dst, queries.time)
    game, scale = CachedGame(removal), ScoreScale(predictor.calibration, new_ends)
    values = estimate_shapley(game, orders, seed=0)
    order = values.value.abs().argsort(descending=True, stable=True).tolist()
    singles = [[place] for place in order[:STRONGEST_EVENTS]]
    # score everything that is needed below in one pass; the game caches it
    game.without([*singles, *supporter_sets(game, values, scale), rank_supporters(game, values, scale)])
    logit_without = dict(zip(order, game.without(singles).tolist(), strict=False))
    builder = _ReasonBuilder(predictor, queries, removal, values, logit_without, scale)
    return Explanation(
        model=run.model,
        task=run.folder.task,
        src=ids[0],
        dst=ids[1] if len(ids) > 1 else None,
        time=time,
        time_assumed=queries.assumed_time is not None,
        seconds=builder.has_seconds,
        logit=values.logit,
        score=scale(values.logit),
        base=values.base,
        base_score=scale(values.base),
        reasons=tuple(builder.build(place) for place in order),
        without=score_without_supporters(game, values, scale),
        flip=find_flip(game, values, scale),
        numbers=_explain_numbers(predictor, one),
        removal=removal.removal,
        orders=min(orders, removal.orders),
        scored=game.num_scored,
        gap=abs(values.base + float(values.value.sum()) - values.logit),
        notes=(*_build_notes(removal, queries), *_describe_associations(predictor, one, ids)),
    )


def find_strongest_events(run: OpenRun, pairs: PairBatch, count: int) -> list[list[tuple[str, float]]]:
    """Describe the events that move the logit of each pair most, with their contributions, the strongest first.

    For reports about many pairs; only for models that read one sequence of recent neighbors per node, where removing
    an event is cheap. `explain_pair` explains any model.

    Raises:
        ConfigError: The model reads more than that.
    """
    result = []
    for row in range(len(pairs)):
        one = pairs.select(torch.tensor([row])).to(run.stream.device)
        game = build_game(run.scorer, run.stream, one, run.seed, run.rule.batch_size)
        if not isinstance(game, WindowRemoval):
            raise ConfigError(
                f"model '{run.model}' reads more than one sequence of recent neighbors per node",
                code="model-without-window",
            )
        if not game.players:
            result.append([("nothing happened before", 0.0)])
            continue
        value = estimate_shapley(CachedGame(game), 1, seed=0).value
        strongest = value.abs().argsort(descending=True, stable=True)[:count].tolist()
        result.append(
            [(_describe_player(run.dataset, game.players[at], one), float(value[at])) for at in strongest]
        )
    return result


def _describe_player(dataset: Dataset, player: Player, pair: PairBatch) -> str:
    """Write an event as "a met b 3 d before"; of a group, how many events of which node it has."""
    src, dst = dataset.ids.to_user([int(pair.src), int(pair.dst)]).to_pylist()
    *older, event = player.events
    if older:
        owner: Any = "either" if player.of_src and player.of_dst else src if player.of_src else dst
        return f"{len(player.events):,} older events of {owner}"
    store = dataset.store
    age = float(pair.time) - float(store.time[event])
    before = f"{format_duration(age) if dataset.is_dated else f'{age:.4g}'} before"
    if named := describe_columns(_read_columns(dataset, event)):
        before += f" ({named})"
    if player.of_src and player.of_dst:
        return f"they met {before}"
    a, b = dataset.ids.to_user([int(store.src[event]), int(store.dst[event])]).to_pylist()
    return f"{a} met {b} {before}"


def rank_supporters(game: CachedGame, values: ShapleyValues, scale: ScoreScale) -> list[int]:
    """Return the players of one event that support the decision, the strongest first."""
    push = values.value if scale.is_positive(values.logit) else -values.value
    ranked = push.argsort(descending=True, stable=True).tolist()
    return [place for place in ranked if float(push[place]) > 0 and len(game.game.players[place].events) == 1]


def supporter_sets(game: CachedGame, values: ShapleyValues, scale: ScoreScale) -> list[list[int]]:
    """Return the strongest supporters in sets of growing size."""
    ranked = rank_supporters(game, values, scale)
    return [ranked[:size] for size in sorted({min(size, len(ranked)) for size in SUPPORTER_SETS} - {0})]


def score_without_supporters(
    game: CachedGame, values: ShapleyValues, scale: ScoreScale
) -> tuple[Without, ...]:
    """Score the pair without the one, three and ten strongest supporters."""
    sets = supporter_sets(game, values, scale)
    return tuple(
        _build_without(game, places, logit, scale)
        for places, logit in zip(sets, game.without(sets).tolist(), strict=True)
    )


def find_flip(game: CachedGame, values: ShapleyValues, scale: ScoreScale) -> Without | None:
    """Find a small set of events whose removal flips the decision.

    Greedy: remove the supporter that moves the logit most until the decision flips, then restore the events that are
    not needed. None if the decision holds without all supporters, or if the set would be too large.
    """
    is_positive = scale.is_positive(values.logit)

    def is_flipped(logit: float) -> bool:
        return scale.is_positive(logit) != is_positive

    removed: list[int] = []
    candidates, logit = rank_supporters(game, values, scale), values.logit
    if not is_flipped(float(game.without([candidates])[0])):
        return None
    while not is_flipped(logit):
        tried = [place for place in candidates if place not in removed][: game.game.tries]
        if not tried or len(removed) == MAX_FLIP_EVENTS:
            return None
        logits = game.without([[*removed, place] for place in tried])
        best = int(logits.argmin() if is_positive else logits.argmax())
        removed, logit = [*removed, tried[best]], float(logits[best])
    while len(removed) > 1:
        smaller = [[other for other in removed if other != place] for place in removed]
        enough = [
            places
            for places, logit in zip(smaller, game.without(smaller).tolist(), strict=True)
            if is_flipped(logit)
        ]
        if not enough:
            break
        removed = enough[0]
    return _build_without(game, removed, float(game.without([removed])[0]), scale)


def _build_without(game: CachedGame, places: list[int], logit: float, scale: ScoreScale) -> Without:
    events = tuple(event for place in places for event in game.game.players[place].events)
    return Without(events, logit, scale(logit))


def _read_query(
    predictor: Predictor, pair: Any, at: TimeLike | None, given: Mapping[str, Any]
) -> tuple[QueryBatch, PairBatch]:
    """Read the query; a node without a partner is paired with its last neighbor."""
    ids = list(pair) if isinstance(pair, tuple | list) else [pair]
    is_link = predictor.run.folder.task == "link"
    if len(ids) != 2 and (is_link or len(ids) != 1):
        expected = "a pair (src, dst)" if is_link else "the id of a node"
        raise ConfigError(f"this run explains {expected}; got {pair!r}", code="not-a-pair")
    predictor.query_parser.require_read_columns(given)
    columns = {name: pa.array([str(value)]) for name, value in zip(("src", "dst"), ids, strict=False)}
    columns |= {name: pa.array([str(value)]) for name, value in given.items() if name not in columns}
    queries, stream = predictor.query_parser.read(columns, at), predictor.ranker.stream_scorer.stream
    if queries.unknown_ids and len(queries.unknown_ids) == len(set(map(str, ids))):
        names = " and ".join(queries.unknown_ids)
        raise NotFoundError(
            f"'{predictor.dataset.name}' has no event of {names}; check how the ids are written",
            code="unknown-node",
        )
    missing = (
        *queries.unknown_ids,
        *queries.wrong_sides.only_destinations,
        *queries.wrong_sides.only_sources,
    )
    if missing and predictor.run.scorer.stateful:
        raise ConfigError(
            f"model '{predictor.run.model}' has a memory of the nodes it was trained with and cannot take "
            f"{missing[0]}; give ids that have events",
            code="memory-needs-known-nodes",
        )
    dst = queries.dst if queries.table.dst is not None else predictor.last_neighbors(queries)
    pair = PairBatch.from_pairs(queries.src, dst, queries.time).with_columns(queries.columns)
    return queries, pair.to(stream.device)


class _ReasonBuilder:
    """Turns players into reasons with the user's ids and times and the share of the hidden state that is left."""

    def __init__(
        self,
        predictor: Predictor,
        queries: QueryBatch,
        game: RemovalGame,
        values: ShapleyValues,
        logit_without: dict[int, float],
        scale: ScoreScale,
    ) -> None:
        self.dataset, self.parser = predictor.dataset, predictor.query_parser
        self.time = float(queries.time[0])
        self.game, self.values, self.logit_without, self.scale = game, values, logit_without, scale
        self.is_dated = bool(self.dataset.origin.time_origin)
        self.has_seconds = self.dataset.is_dated
        readout = read_last_scan(game.scorer, game.view) if isinstance(game, WindowRemoval) else None
        self.left = None if readout is None else values_by_event(readout.left, readout.tokens)
        # source and destination have a readout of equal weight each
        self.read = None if readout is None else values_by_event(readout.share / 2, readout.tokens)

    def build(self, place: int) -> Reason:
        player = self.game.players[place]
        event = player.events[-1]
        store = self.dataset.store
        ids = self.dataset.ids.to_user([int(store.src[event]), int(store.dst[event])])
        src, dst = self.parser.to_user_type(ids).to_pylist()
        time = float(store.time[event])
        without, error = self.logit_without.get(place), float(self.values.error[place])
        return Reason(
            event=event,
            side="both" if player.of_src and player.of_dst else "src" if player.of_src else "dst",
            src=src,
            dst=dst,
            time=format_iso_time(time) if self.is_dated else int(time) if time.is_integer() else time,
            age=self.time - time,
            count=len(player.events),
            contribution=float(self.values.value[place]),
            error=None if math.isnan(error) else error,
            score_without=None if without is None else self.scale(without),
            left=_mean(_values_at(self.left, player)),
            read=None if self.read is None else sum(_values_at(self.read, player)),
            columns=_read_columns(self.dataset, event) if len(player.events) == 1 else {},
        )


def _read_columns(dataset: Dataset, event: int) -> dict[str, str | float]:
    """Return the types of an event and, unless they are a long vector, its numbers, by name."""
    features = dataset.store.features
    types = () if features.codes is None else features.codes[event].tolist()
    named: dict[str, str | float] = {
        part.name: part.values[code] for part, code in zip(features.categories, types, strict=True)
    }
    if len(features.edge_names) <= MAX_NUMBERS:
        # the shortest decimals of 32-bit numbers: 2.3 and not 2.299999952316284
        numbers = (float(str(value)) for value in features.edge[event].cpu().numpy())
        named |= dict(zip(features.edge_names, numbers, strict=True))
    return named


def _values_at(sides: list[dict[int, float]] | None, player: Player) -> list[float]:
    return [side[event] for side in sides or [] for event in player.events if event in side]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _explain_numbers(predictor: Predictor, pair: PairBatch) -> Numbers | None:
    """Explain the features of boosted trees, the strongest first; None for other models."""
    scorer = predictor.run.scorer
    if not isinstance(scorer, BoostedTrees):
        return None
    trees = attribute_trees(scorer, predictor.ranker.stream_scorer.stream, pair)
    order = trees.contribution[0].abs().argsort(descending=True, stable=True).tolist()
    value, contribution = trees.value[0].tolist(), trees.contribution[0].tolist()
    return Numbers(trees.base, tuple(Number(trees.names[at], value[at], contribution[at]) for at in order))


def _describe_associations(predictor: Predictor, pair: PairBatch, ids: list[Any]) -> list[str]:
    """Say after which earlier destination of the source the destination is likeliest, if the trees read that."""
    requests = getattr(predictor.run.scorer, "requests", ())
    request = next((one for one in requests if isinstance(one, TransitionFeatures) and one.window), None)
    if request is None:
        return []
    table = request.prepare(predictor.ranker.stream_scorer.stream.index)
    found = table.find_best_association(*to_host(pair.src, pair.dst, pair.table_time))
    if found is None:
        return []
    best, value = found
    node = predictor.query_parser.to_user_type(predictor.dataset.ids.to_user([best.item]))[0].as_py()
    if not value or request.column is None:
        return [
            f"{ids[1]} after {node}: {best.followed:,} events on {ids[1]} had {node} among the last {request.window} "
            f"destinations of their source, as this query has, and {node} had {best.visits:,} events"
        ]
    kind = f"{request.column.name} {value!r}"
    return [
        f"{ids[1]} after {node} with {kind}: {best.followed:,} events on {ids[1]} were the first there of their source "
        f"within {request.window} events after such an event, as this one would be, and {node} had {best.visits:,} "
        f"events with {kind}"
    ]


def _queried_ids(predictor: Predictor, queries: QueryBatch) -> list[Any]:
    columns: list[pa.Array] = [queries.table.src]
    if queries.table.dst is not None and predictor.run.folder.task == "link":
        columns.append(queries.table.dst)
    return [predictor.query_parser.to_user_type(column)[0].as_py() for column in columns]


def _no_events_message(game: RemovalGame, names: str, time: Any) -> str:
    if game.saved_events:
        return (
            f"all events of {names} strictly before {time} are in the memory that training left, which is part of the "
            "model; query a time after later events, or train with memory='replayed'"
        )
    return f"no event of {names} is strictly before {time}, so no event moved the score; query a later time"


def _build_notes(game: RemovalGame, queries: QueryBatch) -> tuple[str, ...]:
    notes = [f"{name} has no event, so it has no history" for name in queries.unknown_ids]
    notes += queries.wrong_sides.describe()
    notes += queries.unknown_values.describe()
    if game.removal == "stream":
        notes.append(
            f"this model reads more than two sequences of events: the {len(game.players)} newest events of the pair "
            "were removed from the stream; the effect of older events is in the base"
        )
    if game.saved_events:
        notes.append(
            f"the memory saved after training holds the first {game.saved_events:,} events, part of the model, so "
            "only later events were removed; train with memory='replayed' to remove any event"
        )
    groups = [player for player in game.players if len(player.events) > 1]
    if groups:
        count = sum(len(player.events) for player in groups)
        notes.append(f"{count:,} older events are in {len(groups)} groups, each removed as a whole")
    return tuple(notes)
