"""What a number on a stream can say and what it cannot, and whether a model's score keeps away from the rest.

An audit as one page for somebody who has never seen the papers: no script, no request, figures as SVG.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from dygmamba.core.errors import ConfigError, EventError
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.engine.stream import Stream
from dygmamba.lab.audit_model import (
    AuditCheck,
    AuditedModel,
    check_ceiling,
    check_invariances,
    check_same_time_visibility,
)
from dygmamba.lab.audit_stream import (
    BatchSizeBias,
    PaddingLeak,
    PeriodStatistics,
    RowOrder,
    RuleResult,
    bias,
    evaluate_rules,
    order,
    padding,
    period,
    score_rules,
)
from dygmamba.lab.oracles import Ceiling, EventsByTime, ceiling
from dygmamba.report.published import list_published_values
from dygmamba.sampling.negatives import SAMPLERS
from dygmamba.tasks.base import EvaluationSet
from dygmamba.tasks.link import SETTINGS, SPLITS, build_link_set, has_events
from dygmamba.tasks.metric_names import SETTING_LABELS

EvaluationKey = tuple[str, str, str]  # split, setting, negatives
BIAS_RULE = "recency of the destination"  # the rule whose scores show what the size of a batch is worth


@dataclass(frozen=True, slots=True)
class PublishedAboveCeiling:
    """A published figure above the ceiling of its question; `value` in per cent, as printed."""

    model: str
    metric: str
    value: float
    source: str
    ceiling: float


@dataclass(frozen=True, slots=True)
class Audit:
    """Everything that was found about a stream, and about a model where one was given."""

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
    checks: tuple[AuditCheck, ...]

    @property
    def sound(self) -> bool:
        """Whether no score was found to depend on what it must not."""
        return all(check.passed for check in self.checks)

    @property
    def above(self) -> int:
        """Published cells above their ceiling."""
        return sum(len(cells) for _, cells in self.ceilings)

    def page(self, out: Path | str) -> Path:
        """Write it as a page for readers; where it is."""
        return write_page(self, Path(out))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines; metrics and shares between 0 and 1, published values as printed."""
        found = asdict(self) | {"sound": self.sound, "above": self.above}
        return found | {
            "ceilings": [
                asdict(one) | {"published_above": [asdict(cell) for cell in cells]}
                for one, cells in self.ceilings
            ]
        }


def audit_stream(
    stream: Stream,
    dataset: str,
    subject: AuditedModel | None = None,
    splits: Sequence[str] = SPLITS,
    watch: Callable[[str], None] = lambda doing: None,
) -> Audit:
    """Audit a stream by the protocol's own questions, and a model if there is one."""
    store, split = stream.store, stream.split
    if not len(split.test):
        raise EventError("the test period has no events; use a longer stream")
    evaluation_sets = {}
    for question in _list_evaluations(stream, splits):
        watch(f"drawing {' '.join(question)}")
        evaluation_sets[question] = build_link_set(store, split, *question)
    moments, tests = (
        EventsByTime(store),
        [evaluation_set for (name, *_), evaluation_set in evaluation_sets.items() if name == "test"],
    )
    watch("asking the oracles")
    ceilings = [ceiling(moments, evaluation_set) for evaluation_set in evaluation_sets.values()]
    rules, biases = [], []
    for evaluation_set in tests:
        watch("asking simple rules")
        scores = score_rules(stream, evaluation_set, dataset)
        rules += evaluate_rules(evaluation_set, scores)
        biases = biases or bias(
            evaluation_set, {BIAS_RULE: scores[BIAS_RULE], "chance": _random_scores(evaluation_set)}
        )
    asked = build_link_set(store, split, "test")
    periods = tuple(period(store, split, name) for name in splits if len(getattr(split, name)))
    checks: list[AuditCheck] = []
    if subject is not None:
        watch(f"checking {subject.name}")
        visible = period(store, split, "test").visible
        checks = [
            *check_invariances(subject),
            check_same_time_visibility(subject, visible),
            *check_ceiling(subject, evaluation_sets.values(), ceilings),
        ]
    return Audit(
        dataset=dataset,
        nodes=store.num_nodes,
        events=len(store),
        periods=periods,
        ceilings=tuple((one, _list_published_above(dataset, one)) for one in ceilings),
        padding=tuple(padding(stream, asked, dataset)),
        order=order(store, split.test),
        bias=tuple(biases),
        rules=tuple(rules),
        model=None if subject is None else subject.name,
        checks=tuple(checks),
    )


def _list_evaluations(stream: Stream, splits: Sequence[str]) -> list[EvaluationKey]:
    """Every split, setting and kind of negatives that has events, the test and what is usually reported first."""
    return [
        (name, setting, negatives)
        for name in sorted(splits, key=lambda name: name != "test")
        for setting in SETTINGS
        if has_events(stream.store, stream.split, name, setting)
        for negatives in SAMPLERS
    ]


def _list_published_above(dataset: str, one: Ceiling) -> tuple[PublishedAboveCeiling, ...]:
    """Published figures are of the test; each metric is held against the oracle's own."""
    if one.split != "test":
        return ()
    limits = {"ap": 100 * one.edge_oracle_ap, "auc": 100 * one.edge_oracle_auc}
    return tuple(
        PublishedAboveCeiling(model, metric, cell.mean, cell.source, limits[metric] / 100)
        for model, metric, cell in list_published_values(dataset, one.setting, one.negatives)
        if cell.mean > limits[metric]
    )


def _random_scores(evaluation_set: EvaluationSet) -> torch.Tensor:
    return torch.rand(len(evaluation_set.pairs), generator=torch.Generator().manual_seed(0))


TEMPLATE = "page.html"
WIDTH, LEFT, RIGHT, ROW = 360, 8, 352, 46  # of the figure, in its own units; a telephone shows them 1:1
LOWEST = 40.0  # per cent at the figure's left edge


def write_page(found: Audit, out: Path) -> Path:
    """The page at this place, whole or not at all."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; give the name of a file with `out`")
    page = render_page(found)
    make_folder(out.parent)
    write_text(out, page)
    return out


def render_page(found: Audit) -> str:
    """The page as text."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters |= {"percent": percent, "share": share}
    template = environment.from_string(files("dygmamba.lab.audit").joinpath(TEMPLATE).read_text("utf-8"))
    tests = [one for one, _ in found.ceilings if one.split == "test"]
    return template.render(
        audit=found,
        test=next(one for one in found.periods if one.split == "test"),
        nodes=SETTING_LABELS,
        first=tests[0],
        figure=[_figure_row(found.dataset, one, place) for place, one in enumerate(tests)],
        height=ROW * len(tests) + 24,
        ticks=[(_to_x(value), value) for value in (50, 60, 70, 80, 90, 100)],
        above=[(one, cell) for one, cells in found.ceilings for cell in cells],
        rules=_group_by_rule(found),
        tells=max((max(one.auc, 1 - one.auc) for one in found.padding), default=0.5),
    )


def percent(value: float | None) -> str:
    """A metric, in per cent with one digit behind the point."""
    return "–" if value is None else f"{100 * value:.1f}"  # noqa: RUF001


def share(value: float) -> str:
    """A share, in per cent; little is not nothing."""
    return "less than 0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"


def _to_x(value: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * (max(value, LOWEST) - LOWEST) / (100 - LOWEST), 1)


def _figure_row(dataset: str, one: Ceiling, place: int) -> dict[str, Any]:
    """A question's row: how far a bar reaches, and where published figures of AP lie."""
    limit = 100 * one.edge_oracle_ap
    cells = {
        (model, cell.mean)
        for model, metric, cell in list_published_values(dataset, one.setting, one.negatives)
        if metric == "ap"
    }
    dots = [
        {"x": _to_x(mean), "above": mean > limit, "title": f"{model} {mean:.2f}"}
        for model, mean in sorted(cells, key=lambda cell: cell[1])
    ]
    return {
        "y": ROW * place,
        "title": f"{SETTING_LABELS[one.setting]}, {one.negatives} negatives",
        "limit": f"{limit:.1f}",
        "start": _to_x(LOWEST),
        "x": _to_x(limit),
        "member": _to_x(100 * one.membership_oracle_ap),
        "dots": dots,
    }


def _group_by_rule(found: Audit) -> dict[str, dict[str, list[float]]]:
    """A table per setting: a row per rule, a figure per kind of negatives."""
    tables: dict[str, dict[str, list[float]]] = {}
    for one in found.rules:
        tables.setdefault(one.setting, {}).setdefault(one.rule, []).append(one.ap)
    return tables
