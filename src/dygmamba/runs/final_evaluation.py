"""Final evaluation of a trained run: the best weights and the baselines on the same queries.

The verdict says whether the run beats the best baseline. The test events are cut into consecutive blocks, the average
precision of both is computed in each block, and a difference of the reported AP beyond two standard errors over the
blocks counts as significant. Where the time allows it, a sample of the test events is also ranked among all
destinations, which is what a list of recommendations is judged by; a second verdict compares the MRR.
"""

from dygmamba.core.choices import SCOPES, SPLITS
from dygmamba.core.progress import Progress
from dygmamba.engine.fit import Trainer
from dygmamba.engine.fit_config import LinkFitConfig
from dygmamba.history.negatives import PUBLISHED_SEEDS
from dygmamba.models.base import Scorer
from dygmamba.runs.baselines import BASELINES, RANKING_BASELINES, Baselines
from dygmamba.runs.calibration import SavedCalibration, fit_link_calibration, save_calibration
from dygmamba.runs.evaluation import (
    CALIBRATION_METRICS,
    PAIR_METRICS,
    RANK_COLUMNS,
    RANK_METRICS,
    ActivityFactor,
    EvaluationKey,
    Queries,
    Ranking,
    Row,
    Scored,
    evaluate_sets,
)
from dygmamba.runs.node_training import build_node_row
from dygmamba.runs.stored_predictions import ScoreCallback
from dygmamba.tasks.calibration import fit_calibration
from dygmamba.tasks.link import build_event_set, has_events
from dygmamba.tasks.metric_names import DEFAULT_CANDIDATES
from dygmamba.tasks.node import NodeTask
from dygmamba.tasks.statistics import SIGNIFICANT_ERRORS, Difference

MIN_RANKED_EVENTS = 1_000  # per scope
RANKING_SECONDS = 2.0  # per scope, more for models that rank fewer than MIN_RANKED_EVENTS in this time
# Of one pair and token on one core, measured for boosted trees, which are the fastest (docs/research/log.md).
TOKEN_SECONDS = 8e-6
# The same among all destinations, where the pairs of an event share the source: measured for trees on four streams.
# Nothing is ranked where the fewest events of which a figure says something take too long.
ALL_TOKEN_SECONDS, ALL_SECONDS, MIN_ALL_EVENTS, MAX_ALL_SECONDS = 3.5e-6, 10.0, 50, 120.0
ALL_SCOPE = ("test", "transductive")


def run_final_evaluation(
    fit: Trainer, about: Row, keys: list[EvaluationKey], progress: Progress, on_scores: ScoreCallback
) -> Row:
    """Calibrate a link run, evaluate it and the baselines on each key that has events, and rank the test events.

    Args:
        fit: The run, with its best weights.
        about: Columns that all rows share.
        keys: Negatives, split and scope of each row; the verdict is about the first one of the test period.
        progress: Stages of each evaluation set.
        on_scores: Called with each evaluation set and the run's scores.

    Returns:
        What results.json holds: "rows" of the run, "rules" of the baselines, the "verdict" that compares both, with
        `activity` the fitted rate of the sources, and the "ranking" among all destinations (the run first, then
        baselines) with its own verdict, unless that takes too long.
    """
    assert isinstance(fit.config, LinkFitConfig)
    visibility = fit.config.rule
    baselines = Baselines.on_cpu(about["dataset"], fit.stream, visibility)
    calibration, known = fit_link_calibration(fit, progress)
    activity = ActivityFactor.from_stream(baselines.stream) if fit.config.activity else None
    saved = SavedCalibration(calibration.transductive, new_nodes=calibration.inductive)
    rows, baseline_rows, verdict = [], [], {}
    scorer = fit.scorer
    for scored in evaluate_sets(
        lambda negatives: scorer, fit.stream, keys, visibility, fit.seed, calibration,
        activity=activity, ranking=choose_ranking(fit.scorer), known=known, progress=progress,
    ):  # fmt: skip
        pairs = scored.queries.pairs
        split, scope, negatives = (pairs.about[name] for name in ("split", "setting", "negatives"))
        with progress.stage(
            f"baselines, {split} {scope} {negatives}", len(BASELINES) * len(pairs.pairs)
        ) as stage:
            others = baselines.score(Queries(pairs), stage.advance)
        on_scores(pairs, scored.score)
        if (negatives, split) == ("random", "test"):
            saved = saved.with_diagrams(scored)
        rows.append(about | scored.about | scored.row((*PAIR_METRICS, *CALIBRATION_METRICS, *RANK_COLUMNS)))
        shared = {"dataset": about["dataset"], "seed": PUBLISHED_SEEDS[split, scope]}
        baseline_rows += [
            {"model": model, **shared, **one.about, **one.row(PAIR_METRICS)} for model, one in others.items()
        ]
        if split == "test" and not verdict:
            best = max(others, key=lambda model: others[model].link["ap"])
            verdict = compare_with_baseline(scored, others[best], best)
    save_calibration(fit.run, saved)
    found = {"rows": rows, "rules": baseline_rows, "verdict": verdict}
    found |= {} if activity is None else activity.about
    return found | _rank_among_all(fit, about, baselines, progress)


def _rank_among_all(fit: Trainer, about: Row, baselines: Baselines, progress: Progress) -> Row:
    """Rank test events among all destinations, by the run and by baselines; return their rows and the verdict."""
    store, split = fit.stream.store, fit.stream.split
    destinations = len(store.dst.unique())
    events = count_affordable_events(fit.scorer, destinations)
    if destinations < 2 or not events or not has_events(store, split, *ALL_SCOPE):
        return {}
    ranking, pairs = Ranking(RANK_METRICS, None, max_events=events), build_event_set(store, split, *ALL_SCOPE)
    count = min(events, len(pairs.events)) * destinations
    with progress.stage("ranks among all destinations", (1 + len(RANKING_BASELINES)) * count) as stage:
        own = ranking.rank_events(fit.scorer, fit.stream, pairs, fit.config.rule, fit.seed, stage.advance)
        others = {
            name: baselines.rank(name, {}, ("random", *ALL_SCOPE), ranking, stage.advance)
            for name in RANKING_BASELINES
        }
    rows = {name: ranking.build_row(one) for name, one in others.items()}
    best_first = sorted(rows, key=lambda name: rows[name]["mrr"], reverse=True)
    verdict = compare_ranks(own, others[best_first[0]], best_first[0], destinations)
    found = [about | ranking.build_row(own), *(rows[name] for name in best_first)]
    return {"ranking": found, "ranking_verdict": verdict}


def run_final_node_evaluation(fit: Trainer, progress: Progress, on_scores: ScoreCallback) -> list[Row]:
    """Evaluate a node run on every split; one with two states is first calibrated on the validation period.

    `on_scores` is called with each evaluation set and its scores if the target has two states.
    """
    assert isinstance(fit.task, NodeTask)
    is_binary = fit.task.target.kind == "binary"
    sets, scores = {name: fit.task.evaluation_set(name) for name in SPLITS}, {}
    for name, evaluation_set in sets.items():
        with progress.stage(name, len(evaluation_set.pairs)) as stage:
            scores[name] = fit.score(evaluation_set, stage.advance)
        if is_binary:
            on_scores(evaluation_set, scores[name])
    calibration = None
    if is_binary:
        calibration = fit_calibration(scores["val"], sets["val"].pairs.label)
        saved = SavedCalibration(calibration)
        if len(sets["test"].events):
            test = Scored(Queries(sets["test"]), scores["test"], calibration.probability(scores["test"]))
            saved = saved.with_diagrams(test)
        save_calibration(fit.run, saved)
    return [build_node_row(fit, one, scores[name], calibration) for name, one in sets.items()]


def compare_with_baseline(own: Scored, other: Scored, name: str) -> Row:
    """Test whether a run is significantly above a baseline on the same queries.

    Returns:
        The figures, `stands` ("above", "level", "below" or "unknown") and a `sentence` for people.
    """
    pairs = own.queries.pairs
    verdict = _build_verdict(own.difference(other), name, "ap", "test AP", len(pairs.events))
    return verdict | {"blocks": len(own.block_ap)} | pairs.about


def compare_ranks(own: Scored, other: Scored, name: str, destinations: int) -> Row:
    """Test whether a run ranks the same events significantly better than a baseline; see `compare_with_baseline`."""
    assert own.rank is not None
    ranked = f"{len(own.rank):,} of {len(own.queries.pairs.events):,} test events"
    what = f"MRR of {ranked} among all {destinations:,} destinations"
    verdict = _build_verdict(own.difference_of_ranks(other), name, "mrr", what, len(own.rank))
    return verdict | {key: own.about[key] for key in ("split", "setting")}


def _build_verdict(difference: Difference, name: str, metric: str, what: str, events: int) -> Row:
    return {
        "rule": name,
        "metric": metric,
        "difference": difference.value,
        "spread": difference.error,
        "stands": difference.stands,
        "sentence": _describe_verdict(difference, name, what, events),
    }


def _describe_verdict(difference: Difference, name: str, what: str, events: int) -> str:
    if difference.error is None:
        return f"the test has {events} events, too few to say whether this is above the baseline `{name}`"
    points = f"{abs(100 * difference.value):.1f} points"
    error = f"({what}, ± {100 * SIGNIFICANT_ERRORS * difference.error:.1f})"
    if difference.stands == "above":
        return f"{points} above the best baseline, {name} {error}"
    if difference.stands == "below":
        return f"a baseline is better: use `{name}`, {points} above this run {error}"
    side = "above" if difference.value >= 0 else "below"
    return f"a baseline is as good: use `{name}`; {points} {side} it is within chance {error}"


def choose_ranking(scorer: Scorer, scopes: tuple[str, ...] = SCOPES) -> Ranking:
    """Return the ranking of the test events that a trained model can afford."""
    return Ranking(RANK_METRICS, max_events=count_affordable_events(scorer), scopes=scopes)


def count_affordable_events(scorer: Scorer, destinations: int | None = None) -> int:
    """Return how many test events per scope to rank: what takes about two seconds, but at least 1,000.

    With `destinations`, each event is ranked among so many, all that there are: what takes about ten seconds, but at
    least 50 if two minutes allow them, else none.

    Computed from the entries that the model looks up for a pair instead of measured, so that the same run always has
    the same figures.
    """
    tokens = max(1, sum(request.tokens for request in scorer.requests))
    if destinations is None:
        seconds = TOKEN_SECONDS * tokens * (1 + DEFAULT_CANDIDATES)
        return max(MIN_RANKED_EVENTS, int(RANKING_SECONDS / seconds))
    seconds = ALL_TOKEN_SECONDS * tokens * destinations
    return (
        max(MIN_ALL_EVENTS, int(ALL_SECONDS / seconds)) if MIN_ALL_EVENTS * seconds <= MAX_ALL_SECONDS else 0
    )
