"""Audit of a dataset and a model: oracles and bounds of its test set, published values above them, leaks, baselines.

The result is written as JSON values or as an HTML page without scripts.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from dygmamba.auditing.model_checks import (
    AuditedModel,
    check_ceiling,
    check_invariances,
    check_same_time_visibility,
)
from dygmamba.auditing.oracles import Ceiling, EventsByTime, compute_ceiling
from dygmamba.auditing.stream_statistics import (
    BatchSizeBias,
    PaddingLeak,
    PeriodStatistics,
    RowOrder,
    RuleResult,
    describe_period,
    evaluate_baselines,
    measure_batch_bias,
    measure_padding_leak,
    measure_row_order,
)
from dygmamba.core.choices import PUBLISHED_NEGATIVES
from dygmamba.core.errors import ConfigError, EventError
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.core.progress import SILENT, Progress
from dygmamba.engine.stream import Stream
from dygmamba.report.published import METRICS, list_published_values
from dygmamba.runs.baselines import Baselines
from dygmamba.runs.evaluation import Queries
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import SETTINGS, SPLITS, build_link_set, has_events
from dygmamba.tasks.metric_names import SETTING_LABELS
from dygmamba.testing import CheckResult

EvaluationKey = tuple[str, str, str]  # split, setting, negatives
BIAS_RULE = "destination-recency"  # the rule whose scores show the effect of the batch size
TEMPLATE = "audit.html"
# size of the figure in SVG units, which a phone displays 1:1
LEFT, RIGHT, ROW = 8, 352, 46
LOWEST = 40.0  # percentage at the left edge of the figure


@dataclass(frozen=True, slots=True)
class PublishedAboveCeiling:
    """A published value above the edge oracle; `value` is the percentage as printed, the others are between 0 and 1.

    `ceiling` is the metric of the edge oracle; the last three are the fields of `Ceiling` with these names.
    """

    model: str
    metric: str
    value: float
    source: str
    ceiling: float
    reference: float
    likely_bound: float
    bound: float


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit. The field names are those of the JSON output."""

    dataset: str
    nodes: int
    events: int
    periods: tuple[PeriodStatistics, ...]
    ceilings: tuple[tuple[Ceiling, tuple[PublishedAboveCeiling, ...]], ...]
    padding: tuple[PaddingLeak, ...]
    order: RowOrder
    bias: tuple[BatchSizeBias, ...]
    rules: tuple[RuleResult, ...]
    model: str | None
    checks: tuple[CheckResult, ...]

    @property
    def sound(self) -> bool:
        """Whether all checks of the model passed."""
        return all(check.passed for check in self.checks)

    @property
    def above(self) -> int:
        """Number of published values above the edge oracle."""
        return sum(len(published) for _, published in self.ceilings)

    @property
    def above_reference(self) -> int:
        """Number of published values above the best oracle."""
        return self._count_above("reference")

    @property
    def above_likely_bound(self) -> int:
        """Number of published values that a score of earlier events has with a probability of at most 1 %."""
        return self._count_above("likely_bound")

    @property
    def above_bound(self) -> int:
        """Number of published values that no function of the pair and the time has."""
        return self._count_above("bound")

    def _count_above(self, limit: str) -> int:
        values = [value for _, published in self.ceilings for value in published]
        return sum(value.value > 100 * getattr(value, limit) for value in values)

    def page(self, out: Path | str) -> Path:
        """Write the audit as an HTML page and return its path."""
        return write_page(self, Path(out))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; metrics and shares are between 0 and 1, published values as printed."""
        counts = ("above", "above_reference", "above_likely_bound", "above_bound")
        values = asdict(self) | {"sound": self.sound} | {name: getattr(self, name) for name in counts}
        return values | {
            "ceilings": [
                asdict(ceiling) | {"published_above": [asdict(value) for value in published]}
                for ceiling, published in self.ceilings
            ]
        }


def audit_stream(
    stream: Stream,
    dataset: str,
    model: AuditedModel | None = None,
    splits: Sequence[str] = SPLITS,
    progress: Progress = SILENT,
) -> Audit:
    """Audit a stream, and a model if one is given, with the negatives of DyGLib, whose bounds are known."""
    store, split = stream.store, replace(stream.split, protocol="benchmark")
    if not len(split.test):
        raise EventError("the test period has no events; use a longer stream", code="empty-split")
    evaluation_sets = {}
    for key in _list_evaluations(stream, splits):
        with progress.stage(f"drawing {' '.join(key)}"):
            evaluation_sets[key] = build_link_set(store, split, *key)
    test_sets = [evaluation_set for (name, *_), evaluation_set in evaluation_sets.items() if name == "test"]
    events_by_time = EventsByTime(store)
    with progress.stage("computing oracle ceilings"):
        ceilings = [
            compute_ceiling(events_by_time, evaluation_set) for evaluation_set in evaluation_sets.values()
        ]
    baselines, rules, biases = Baselines(dataset, stream), [], []
    for evaluation_set in test_sets:
        with progress.stage("scoring baselines"):
            scored = baselines.score(Queries(evaluation_set))
        rules += evaluate_baselines(scored)
        biases = biases or measure_batch_bias(
            evaluation_set,
            {name: scored[name].score for name in (BIAS_RULE,) if name in scored}
            | {"chance": _random_scores(evaluation_set)},
        )
    checks: list[CheckResult] = []
    if model is not None:
        visible = describe_period(store, split, "test").visible
        with progress.stage(f"checking {model.name}"):
            checks = [
                *check_invariances(model),
                check_same_time_visibility(model, visible),
                *check_ceiling(model, events_by_time, list(evaluation_sets.values()), ceilings),
            ]
    return Audit(
        dataset=dataset,
        nodes=store.num_nodes,
        events=len(store),
        periods=tuple(describe_period(store, split, name) for name in splits if len(getattr(split, name))),
        ceilings=tuple((ceiling, list_published_above(dataset, ceiling)) for ceiling in ceilings),
        padding=tuple(measure_padding_leak(stream, build_link_set(store, split, "test"), dataset)),
        order=measure_row_order(store, split.test),
        bias=tuple(biases),
        rules=tuple(rules),
        model=None if model is None else model.name,
        checks=tuple(checks),
    )


def _list_evaluations(stream: Stream, splits: Sequence[str]) -> list[EvaluationKey]:
    """Return every split, setting and negative sampler that has events, the test split first."""
    return [
        (name, setting, negatives)
        for name in sorted(splits, key=lambda name: name != "test")
        for setting in SETTINGS
        if has_events(stream.store, stream.split, name, setting)
        for negatives in PUBLISHED_NEGATIVES
    ]


def list_published_above(dataset: str, ceiling: Ceiling) -> tuple[PublishedAboveCeiling, ...]:
    """Return the published values above the edge oracle's; all published values are of the test split."""
    if ceiling.split != "test":
        return ()
    limits = {
        metric: [
            getattr(ceiling, f"{name}_{metric}")
            for name in ("edge_oracle", "reference", "likely_bound", "bound")
        ]
        for metric in METRICS
    }
    return tuple(
        PublishedAboveCeiling(model, metric, value.mean, value.source, *limits[metric])
        for model, metric, value in list_published_values(dataset, ceiling.setting, ceiling.negatives)
        if value.mean > 100 * limits[metric][0]
    )


def _random_scores(evaluation_set: EvaluationSet) -> torch.Tensor:
    return torch.rand(len(evaluation_set.pairs), generator=torch.Generator().manual_seed(0))


def write_page(audit: Audit, out: Path) -> Path:
    """Write the audit as an HTML page, atomically."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; `out` must be the path of a file", code="is-a-folder")
    page = render_page(audit)
    make_folder(out.parent)
    write_text(out, page)
    return out


def render_page(audit: Audit) -> str:
    """Return the HTML page of an audit."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"percent": format_percent, "share": format_share}
    template = environment.from_string(files("dygmamba.auditing").joinpath(TEMPLATE).read_text("utf-8"))
    test_ceilings = [ceiling for ceiling, _ in audit.ceilings if ceiling.split == "test"]
    return template.render(
        audit=audit,
        test=next(period for period in audit.periods if period.split == "test"),
        nodes=SETTING_LABELS,
        first=test_ceilings[0],
        figure=[_figure_row(audit.dataset, ceiling, at) for at, ceiling in enumerate(test_ceilings)],
        height=ROW * len(test_ceilings) + 24,
        ticks=[(_to_x(value), value) for value in (50, 60, 70, 80, 90, 100)],
        above=[(ceiling, value) for ceiling, published in audit.ceilings for value in published],
        rules=_group_by_rule(audit),
        # an AUC below 0.5 separates as well, with the opposite sign
        padding_auc=max((max(leak.auc, 1 - leak.auc) for leak in audit.padding), default=0.5),
    )


def format_percent(value: float | None) -> str:
    """Format a metric as a percentage with one decimal."""
    return "–" if value is None else f"{100 * value:.1f}"  # noqa: RUF001


def format_share(value: float) -> str:
    """Format a share as a percentage; a small one is not rounded to zero."""
    return "less than 0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"


def _to_x(value: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * (max(value, LOWEST) - LOWEST) / (100 - LOWEST), 1)


def _figure_row(dataset: str, ceiling: Ceiling, at: int) -> dict[str, Any]:
    """Return the coordinates of one row of the figure: a bar up to the best oracle, and a dot per published AP."""
    limit = 100 * ceiling.reference_ap
    published = {
        (model, value.mean)
        for model, metric, value in list_published_values(dataset, ceiling.setting, ceiling.negatives)
        if metric == "ap"
    }
    dots = [
        {"x": _to_x(mean), "above": mean > limit, "title": f"{model} {mean:.2f}"}
        for model, mean in sorted(published, key=lambda pair: pair[1])
    ]
    return {
        "y": ROW * at,
        "title": f"{SETTING_LABELS[ceiling.setting]}, {ceiling.negatives} negatives",
        "limit": f"{limit:.1f}",
        "start": _to_x(LOWEST),
        "x": _to_x(limit),
        "member": _to_x(100 * ceiling.membership_oracle_ap),
        "bound": _to_x(100 * ceiling.likely_bound_ap),
        "dots": dots,
    }


def _group_by_rule(audit: Audit) -> dict[str, dict[str, list[float | None]]]:
    """Return AP by setting and baseline, one value per negative sampler; None where it tells no pair apart."""
    found = {(result.setting, result.rule, result.negatives): result.ap for result in audit.rules}
    tables: dict[str, dict[str, list[float | None]]] = {}
    for setting, rule, _ in found:
        tables.setdefault(setting, {})[rule] = [
            found.get((setting, rule, kind)) for kind in PUBLISHED_NEGATIVES
        ]
    return tables
