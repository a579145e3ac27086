"""The sentences of an explanation say the same as its numbers."""

from dataclasses import replace

import pytest

from dygmamba.explain.explanation import Explanation, Number, Numbers, Reason, Without
from dygmamba.report.document import Document, Section
from dygmamba.report.explanation_document import build_explanation_document, describe_counterfactuals
from dygmamba.report.html import render_document

REASON = Reason(
    event=3,
    src="a",
    dst="b",
    time=5.0,
    age=2.0,
    side="both",
    count=1,
    contribution=0.5,
    error=0.1,
    score_without=0.6,
    left=None,
    read=None,
)
EXPLANATION = Explanation(
    model="trees",
    task="link",
    src="a",
    dst="b",
    time=7.0,
    time_assumed=False,
    seconds=True,
    logit=1.0,
    score=0.7,
    base=0.5,
    base_score=0.6,
    reasons=(REASON,),
    without=(Without((3,), 0.4, 0.6), Without((3, 2, 1), 0.2, 0.55)),
    flip=None,
    numbers=None,
    removal="stream",
    orders=4,
    scored=8,
    gap=0.0,
    notes=(),
)


@pytest.mark.parametrize(("score", "sign"), [(0.7, "positive"), (0.3, "negative")])
def test_a_removal_names_the_sign_of_the_contributions(score, sign):
    """Of the events that support the decision; it does not say that the score falls or rises without them."""
    one, three, *_ = describe_counterfactuals(replace(EXPLANATION, score=score, reasons=()))
    assert one == f"Score without the event with the largest {sign} contribution: 0.600"
    assert three == f"Score without the 3 events with the largest {sign} contributions: 0.550"


@pytest.mark.parametrize(
    ("contribution", "without", "is_opposite"),
    [
        (0.5, 0.6, False),
        (0.5, 0.8, True),
        (-0.5, 0.6, True),
        (-0.5, 0.8, False),
        (0.5, 0.7004, False),
        (0.5, None, False),
    ],
)
def test_a_score_that_moves_against_the_contribution_is_explained(contribution, without, is_opposite):
    """For all signs: a sentence if the digits shown contradict each other, else none."""
    reason = replace(REASON, contribution=contribution, score_without=without)
    lines = describe_counterfactuals(replace(EXPLANATION, reasons=(reason,)))
    assert any("mean over many histories" in line for line in lines) is is_opposite


def test_the_features_of_the_trees_sum_to_the_logit():
    """In the table as in the chart: the features that are not listed have a line of their own."""
    numbers = Numbers(-0.5, (Number("a", 1.0, 0.9), Number("b", 0.0, 0.4), Number("c", 2.0, 0.2)))
    section = build_explanation_document(replace(EXPLANATION, numbers=numbers), top=1).sections[0]
    rows = {line[0].text: float(line[-1].text) for line in section.tables[0].rows}
    assert rows == {"a": 0.9, "all other features": 0.6, "average logit": -0.5}
    assert sum(rows.values()) == pytest.approx(EXPLANATION.logit)


def test_a_table_of_words_names_the_column_of_each_cell():
    """A narrow screen shows the cells below each other; a table of numbers keeps its columns. Ages are not broken."""
    numbers = Numbers(-0.5, (Number("a", 1.0, 0.9),))
    page = render_document(build_explanation_document(replace(EXPLANATION, numbers=numbers)))
    assert page.count('<table class="stacked">') == 1
    assert '<td class="words" data-name="time">5.0 (2 s earlier)</td>' in page
    assert "a -&gt; b (same pair), 2\N{NO-BREAK SPACE}s\N{NO-BREAK SPACE}earlier" in page


def test_names_between_backticks_are_code():
    """And escaped like all text."""
    page = render_document(Document("t", "", (Section("s", "use `<recency>` & go; one ` alone stays"),)))
    assert "<p>use <code>&lt;recency&gt;</code> &amp; go; one ` alone stays</p>" in page
