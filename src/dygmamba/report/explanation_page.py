"""An explanation in words, as a picture and as a page without script: it opens offline and prints."""

from pathlib import Path

from dygmamba.core.errors import FileError
from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.data.events.statistics import format_duration
from dygmamba.explain.explanation import Explanation, Numbers, Reason, Without
from dygmamba.report.charts import render_contribution_svg
from dygmamba.report.document import Cell, ContributionChart, Document, ReportTable, Section
from dygmamba.report.html import render_document as sheet_page


def describe_query(found: Explanation) -> str:
    """Who, when, and the score."""
    who = f"{found.src}" if found.dst is None else f"{found.src} -> {found.dst}"
    return f"{who} at {found.time}: score {found.score:.3f} (logit {found.logit:+.3f}), model {found.model}"


def describe_time(found: Explanation, reason: Reason) -> str:
    """When it happened, and how long before the question."""
    span = format_duration(reason.age) if found.seconds else f"{reason.age:.6g}"
    return f"{reason.time} ({span} before)"


def describe_event(found: Explanation, reason: Reason) -> str:
    """Who with whom, or how many events of whom."""
    if reason.count == 1:
        return f"{reason.src} -> {reason.dst}" + (
            " (they met)" if reason.side == "both" and found.dst else ""
        )
    whose = found.src if reason.side == "src" else found.dst if reason.side == "dst" else "either"
    return f"{reason.count:,} older events of {whose}"


def describe_rest(found: Explanation, top: int) -> tuple[str, float]:
    """The events that are not shown, and what they add; no name where all are."""
    rest = found.rest(top)
    return (f"{rest['count']:,} other events" if rest["count"] else "", rest["contribution"])


def describe_base(found: Explanation) -> tuple[str, float]:
    """What the model says without the events."""
    lacks = "none of these events" if found.removal == "stream" else "no past at all"
    return f"base: {lacks}, score {found.base_score:.3f}", found.base


def describe_counterfactuals(found: Explanation) -> list[str]:
    """The exact what-ifs as sentences."""
    lines = [_describe_removal(found, one) for one in found.without]
    if _has_redundant_events(found):
        lines.insert(
            0, "Several events say the same: no single one is missed, what they add together is divided."
        )
    if found.flip is not None:
        lines.append(
            f"Smallest set found that turns it: without {_count_events(found.flip)}, {found.flip.score:.3f}"
        )
    elif found.without:
        side = "below" if found.score >= 0.5 else "to"
        lines.append(f"No set of up to ten events was found without which it goes {side} 0.5.")
    return lines


def _has_redundant_events(found: Explanation) -> bool:
    """Whether the score hardly moves without its strongest supporter alone, for all that it is credited with."""
    credit = {reason.event: abs(reason.contribution) for reason in found.reasons if reason.count == 1}
    alone = [one for one in found.without if len(one.events) == 1]
    return any(abs(found.logit - one.logit) < credit.get(one.events[0], 0.0) / 4 for one in alone)


def _describe_removal(found: Explanation, one: Without) -> str:
    did = "raised" if found.score >= 0.5 else "lowered"
    which = "event that" if len(one.events) == 1 else f"{len(one.events)} events that"
    return f"Without the {which} {did} it most: {one.score:.3f}"


def _count_events(one: Without) -> str:
    return f"{len(one.events)} event{'s' if len(one.events) > 1 else ''}"


def build_contribution_chart(found: Explanation, top: int = 10) -> ContributionChart:
    """What raised the logit, and what lowered it."""
    rows = [
        (f"{describe_event(found, one)}, {_format_age(found, one)}", one.contribution)
        for one in found.reasons[:top]
    ]
    rows += [row for row in (describe_rest(found, top),) if row[0]]
    note = (
        "Bars to the right raised the logit, bars to the left lowered it; all of them together are the logit."
    )
    return ContributionChart(
        f"What moved the score: {describe_query(found)}", tuple(rows), describe_base(found), note
    )


def build_feature_chart(numbers: Numbers, top: int = 10) -> ContributionChart:
    """The same of the numbers that trees look at."""
    rows = [(one.name, one.contribution) for one in numbers.strongest[:top]]
    others = sum(one.contribution for one in numbers.strongest[top:])
    note = "Each bar is the exact Shapley value of one number; together with the base they are the logit."
    return ContributionChart(
        "What the trees look at", (*rows, ("all other numbers", others)), ("base", numbers.base), note
    )


def render_explanation(found: Explanation, top: int = 10) -> str:
    """The page; what comes from a user is escaped."""
    numbers = (
        ()
        if found.numbers is None
        else (Section("What the trees look at", "", (), (build_feature_chart(found.numbers, top),)),)
    )
    end = (
        f"{found.scored:,} histories scored, {found.orders} pairs of orders; the sum of the parts misses the logit by "
        f"{found.gap:.1e}. A contribution says what the model did with an event, not what the event caused."
    )
    sections = (
        *numbers,
        Section(
            "Which events moved the score",
            "",
            (_build_reasons_table(found, top),),
            (build_contribution_chart(found, top),),
        ),
        Section("What if", " ".join(f"{line.rstrip('.')}." for line in describe_counterfactuals(found))),
        Section("How it was made", end),
    )
    return sheet_page(Document(describe_query(found), "; ".join(found.notes), sections))


def write_explanation(found: Explanation, out: Path, top: int = 10) -> Path:
    """A page, or for a name that ends in .svg the picture alone; whole or not at all."""
    if out.is_dir():
        raise FileError(f"{out} is a folder; give the name of a file with `out`")
    make_folder(out.parent)
    write_text(
        out,
        render_contribution_svg(build_contribution_chart(found, top))
        if out.suffix.lower() == ".svg"
        else render_explanation(found, top),
    )
    return out


def _build_reasons_table(found: Explanation, top: int) -> ReportTable:
    heads = ("event", "when", "contribution", "error", "score without it", "left after forgetting")
    rows = tuple(
        (
            Cell(describe_event(found, one)),
            Cell(describe_time(found, one), "words"),
            Cell(f"{one.contribution:+.3f}"),
            Cell("" if one.error is None else f"{one.error:.3f}"),
            Cell("" if one.score_without is None else f"{one.score_without:.3f}"),
            Cell("" if one.left is None else f"{100 * one.left:.0f} %"),
        )
        for one in found.reasons[:top]
    )
    return ReportTable("", "", heads, rows).without_empty()


def _format_age(found: Explanation, reason: Reason) -> str:
    return f"{format_duration(reason.age) if found.seconds else f'{reason.age:.4g}'} before"
