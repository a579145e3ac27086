"""An explanation of a score in sentences, as a chart, and as an HTML page.

The command line prints the same document as the page shows.
"""

from pathlib import Path

from dygmamba.core.files.writing import make_folder, write_text
from dygmamba.data.events.times import format_duration
from dygmamba.explain.explanation import Explanation, Numbers, Reason, Without, describe_columns
from dygmamba.report.charts import render_contribution_svg
from dygmamba.report.document import Cell, ContributionChart, Document, ReportTable, Section
from dygmamba.report.html import write_page

# of boosted trees, without knowing any feature; "base" on the page is only ever the logit without the listed events
AVERAGE_LOGIT = "average logit"
NO_BREAK = "\N{NO-BREAK SPACE}"


def describe_query(explanation: Explanation) -> str:
    """Return the pair or node, the time, the score and the model."""
    src, dst = explanation.src, explanation.dst
    query = f"{src}" if dst is None else f"{src} -> {dst}"
    score = f"score {explanation.score:.3f} (logit {explanation.logit:+.3f})"
    return f"{query} at {explanation.time}: {score}, model {explanation.model}"


def describe_time(explanation: Explanation, reason: Reason) -> str:
    """Return the time of an event and its age."""
    age = format_duration(reason.age) if explanation.seconds else f"{reason.age:.6g}"
    return f"{reason.time} ({age} earlier)"


def describe_event(explanation: Explanation, reason: Reason) -> str:
    """Return the nodes, types and numbers of an event, or the size of a group of old events."""
    if reason.count == 1:
        is_same_pair = reason.side == "both" and explanation.dst
        more = ("same pair" if is_same_pair else "", describe_columns(reason.columns))
        return f"{reason.src} -> {reason.dst}" + (f" ({'; '.join(filter(None, more))})" if any(more) else "")
    names = {"src": explanation.src, "dst": explanation.dst}
    return f"{reason.count:,} older events of {names.get(reason.side, 'either node')}"


def describe_rest(explanation: Explanation, top: int) -> tuple[str, float]:
    """Return a label for the events after the first `top` and their contribution; the label is empty without them."""
    rest = explanation.rest(top)
    return (f"{rest['count']:,} other events" if rest["count"] else "", rest["contribution"])


def describe_base(explanation: Explanation) -> tuple[str, float]:
    """Return a label for the prediction without the events, and its logit."""
    return f"base: without these events, score {explanation.base_score:.3f}", explanation.base


def describe_counterfactuals(explanation: Explanation) -> list[str]:
    """Return sentences on the exact scores without certain events."""
    lines = [_describe_removal(explanation, removal) for removal in explanation.without]
    if _has_redundant_events(explanation):
        lines.insert(
            0,
            "Several events carry the same information: removing one of them changes little, and they share the "
            "contribution.",
        )
    if _has_opposite_event(explanation):
        lines.append(
            "An event can have a positive contribution and still a higher score without it, or the reverse: the "
            "contribution is a mean over many histories, the score without it is of this history less one event."
        )
    if explanation.flip is not None:
        count, score = len(explanation.flip.events), explanation.flip.score
        lines.append(
            f"Smallest set found that changes the decision: without {count} event{'s' * (count > 1)}, the score is "
            f"{score:.3f}"
        )
    elif explanation.without:
        target = "below 0.5" if explanation.score >= 0.5 else "to 0.5"
        lines.append(f"No set of up to ten events was found whose removal moves the score {target}.")
    return lines


def _has_redundant_events(explanation: Explanation) -> bool:
    """Return whether the score hardly changes without its strongest event, although that has a large contribution."""
    credit = {reason.event: abs(reason.contribution) for reason in explanation.reasons if reason.count == 1}
    single = [removal for removal in explanation.without if len(removal.events) == 1]
    return any(
        abs(explanation.logit - removal.logit) < credit.get(removal.events[0], 0.0) / 4 for removal in single
    )


def _has_opposite_event(explanation: Explanation) -> bool:
    """Return whether the score without an event moves against its contribution, in the digits that are shown."""
    return any(
        (round(explanation.score, 3) - round(reason.score_without, 3)) * round(reason.contribution, 3) < 0
        for reason in explanation.reasons
        if reason.score_without is not None
    )


def _describe_removal(explanation: Explanation, removal: Without) -> str:
    sign = "positive" if explanation.score >= 0.5 else "negative"
    events = f"event with the largest {sign} contribution"
    if len(removal.events) > 1:
        events = f"{len(removal.events)} events with the largest {sign} contributions"
    return f"Score without the {events}: {removal.score:.3f}"


def build_contribution_chart(explanation: Explanation, top: int = 10) -> ContributionChart:
    """Plot the contributions of the strongest events to the logit."""
    rows = [  # a long label is broken, but not within the age
        (
            f"{describe_event(explanation, reason)}, {_format_age(explanation, reason).replace(' ', NO_BREAK)}",
            reason.contribution,
        )
        for reason in explanation.reasons[:top]
    ]
    rows += [row for row in (describe_rest(explanation, top),) if row[0]]
    note = (
        "Bars to the right raised the logit, bars to the left lowered it. The sum of all bars is the logit."
    )
    title = f"Contributions to the score: {describe_query(explanation)}"
    return ContributionChart(title, tuple(rows), describe_base(explanation), note)


def build_feature_chart(numbers: Numbers, top: int = 10) -> ContributionChart:
    """Plot the Shapley values of the strongest input features of boosted trees."""
    rows = [(feature.name, feature.contribution) for feature in numbers.strongest[:top]]
    note = "Each bar is the exact Shapley value of one feature. Together with the average logit they sum to the logit."
    rows.append(_sum_other_features(numbers, top))
    return ContributionChart("Features of the trees", tuple(rows), (AVERAGE_LOGIT, numbers.base), note)


def _sum_other_features(numbers: Numbers, top: int) -> tuple[str, float]:
    """Return a label for the features after the first `top` and the sum of their contributions."""
    return "all other features", sum(feature.contribution for feature in numbers.strongest[top:])


def build_explanation_document(explanation: Explanation, top: int = 10) -> Document:
    """Build the explanation of a score with the `top` strongest contributions."""
    method = (
        f"The model scored {explanation.scored:,} variants of the history, in {explanation.orders} pairs of random "
        f"orders of the events. The sum of the contributions differs from the logit by {explanation.gap:.1e}. A "
        "contribution says what the model made of an event, not what the event caused."
    )
    table, chart = _build_reasons_table(explanation, top), build_contribution_chart(explanation, top)
    sentences = (f"{line.rstrip('.')}." for line in describe_counterfactuals(explanation))
    sections = (
        *([] if explanation.numbers is None else [_build_feature_section(explanation.numbers, top)]),
        Section("Contributions of past events", "", (table,), (chart,)),
        Section("Scores without certain events", "\n".join(sentences)),
        Section("Method", method),
    )
    return Document(describe_query(explanation), "; ".join(explanation.notes), sections)


def _build_feature_section(numbers: Numbers, top: int) -> Section:
    """Show the inputs of boosted trees and their exact Shapley values."""
    rows = [
        (feature.name, f"{feature.value:.4g}", f"{feature.contribution:+.3f}")
        for feature in numbers.strongest[:top]
    ]
    sums = (_sum_other_features(numbers, top), (AVERAGE_LOGIT, numbers.base))
    rows += [(name, "", f"{amount:+.3f}") for name, amount in sums]
    table = ReportTable.of_rows("", "", ("feature of the trees", "input", "contribution"), rows)
    text = "Counts, shares, sums and times are inputs on a logarithmic scale."
    return Section("Features of the trees", text, (table,), (build_feature_chart(numbers, top),))


def write_explanation(explanation: Explanation, out: Path, top: int = 10) -> Path:
    """Write the page, or only the chart if the file name ends in .svg."""
    if out.suffix.lower() != ".svg":
        return write_page(build_explanation_document(explanation, top), out)
    make_folder(out.parent)
    write_text(out, render_contribution_svg(build_contribution_chart(explanation, top)))
    return out


def _build_reasons_table(explanation: Explanation, top: int) -> ReportTable:
    columns = ("event", "contribution", "standard error", "score without it", "left in the state", "time")
    rows = [
        (
            describe_event(explanation, reason),
            f"{reason.contribution:+.3f}",
            "" if reason.error is None else f"{reason.error:.3f}",
            "" if reason.score_without is None else f"{reason.score_without:.3f}",
            "" if reason.left is None else f"{100 * reason.left:.0f} %",
            Cell(describe_time(explanation, reason), "words"),
        )
        for reason in explanation.reasons[:top]
    ]
    sums = (describe_rest(explanation, top), describe_base(explanation), ("logit", explanation.logit))
    rows += [(name, f"{amount:+.3f}", *("",) * 4) for name, amount in sums if name]
    return ReportTable.of_rows("", "", columns, rows).drop_empty_columns()


def _format_age(explanation: Explanation, reason: Reason) -> str:
    age = format_duration(reason.age) if explanation.seconds else f"{reason.age:.4g}"
    return f"{age} earlier"
