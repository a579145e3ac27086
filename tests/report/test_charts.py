"""Pictures: every value has its place, every axis its round values, every word is escaped."""

import re
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.report.charts import draw_chart, render_svg_file
from dygmamba.report.document import BarChart, HeatMap, Histogram, LineChart
from dygmamba.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axis, format_date

EVIL = "<b>&\"'"
POINTS = [(1.0, 5.0, 0.5), (10.0, 7.0, 0.1)]
PICTURES = [
    LineChart(EVIL, EVIL, EVIL, {EVIL: POINTS, "b": [(1, 5.5)]}, "log", level=(EVIL, 6.0)),
    LineChart(EVIL, EVIL, EVIL, {EVIL: [(1, 5)], "c": [(2, 5)]}, bands={EVIL: [(1, 4, 6), (2, 3, 6)]}, diagonal=EVIL),
    Histogram(EVIL, EVIL, EVIL, (0.0, 1.0, 2.0), {EVIL: (3, 0), "b": (1, 2)}, gaps=((0.2, 0.8, EVIL),)),
    BarChart(EVIL, EVIL, {EVIL: {EVIL: 91.0, "recency": 78.4}}, EVIL, 50.0),
    HeatMap(EVIL, EVIL, EVIL, ((0.0, 1.0), (0.5, -1.0))),
]  # fmt: skip
MOMENTS = st.floats(-6e10, 2e11)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda one: type(one).__name__)
def test_a_picture_is_well_formed_and_names_are_text(picture):
    """Whatever the names: the marks are XML, the names come back from it as they were, each mark can be asked."""
    root = ElementTree.fromstring(f"<div>{draw_chart(picture)}</div>")
    assert EVIL in "".join(root.itertext())
    assert root.find("svg").get("aria-label") == EVIL
    assert root.findall(".//title")
    assert not root.findall(".//b")


def test_a_chart_shows_every_point_inside_its_frame():
    """Each point is a mark between the axes; a point without a place on a logarithmic axis is left out."""
    chart = LineChart("t", "x", "y", {"a": POINTS, "b": [(1, 5.5), (-1, 3.0)]}, "log")
    places = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', draw_chart(chart))
    ]
    assert len(places) == 3
    assert all(LEFT <= x <= WIDTH - RIGHT and 0 <= y <= HEIGHT - BOTTOM for x, y in places)


def test_dots_are_all_seen_and_no_line_joins_them():
    """However many points: each is a mark that says what it is, and only curves that are no dots have a line."""
    many = [(float(k), float(k % 7)) for k in range(500)]
    said = draw_chart(
        LineChart("t", "x", "y", {"a": many, "b": many[:2]}, about={"a": ["said"] * 500}, dots=("a",))
    )
    assert said.count("<title>said</title>") == said.count('class="dot c0"') - 1 == 500  # one is the legend's
    assert said.count('class="line c0"') == 0
    assert said.count('class="line c1"') == 2


def test_a_histogram_is_as_high_as_its_counts():
    """Bars of one slice stand on one another: their heights add up, and are in the ratio of the counts."""
    rects = re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" class="bar', draw_chart(PICTURES[2]))
    heights = [float(height) for _, height in rects]
    assert heights[0] == pytest.approx(3 * heights[1], abs=0.2)
    assert heights[2] == pytest.approx(2 * heights[1], abs=0.2)
    assert float(rects[1][0]) + heights[1] == pytest.approx(float(rects[0][0]), abs=0.2)


@given(low=MOMENTS, wide=st.floats(1.0, 1e11))
def test_dates_beside_an_axis_are_right_few_and_inside(low, wide):
    """For all periods from a second to millennia: one to six dates, inside, and each is what its label says."""
    ticks = Axis(low, low + wide, "date").ticks()
    assert 0 <= len(ticks) <= 6
    assert ticks or wide < 5
    for at, said in ticks:
        assert low <= at <= low + wide
        if re.fullmatch(r"\d{4}-\d\d-\d\d", said):
            assert datetime.fromisoformat(said).replace(tzinfo=UTC).timestamp() == at


@given(values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5))
def test_round_values_lie_inside_an_axis(values):
    """For all values, also equal ones: they stand between 0 and 1, and so does what is written beside them."""
    axis = Axis.of(values)
    assert all(-1e-9 <= axis.share(value) <= 1 + 1e-9 for value in values)
    assert all(-1e-9 <= axis.share(at) <= 1 + 1e-9 for at, _ in axis.ticks())


def test_epochs_are_whole():
    """An axis of counts has no 1.5 on it; spans are durations; a year beyond the calendar is a number."""
    assert [said for _, said in Axis.of([1, 3], "count").ticks()] == ["1", "2", "3"]
    assert [said for _, said in Axis.of([900, 14_400], "span").ticks()] == ["15 min", "1 h", "3 h"]
    assert format_date(0.0) == "1970-01-01 00:00"
    assert format_date(1e18).endswith(" s")


def test_a_picture_that_stands_alone_brings_its_colours():
    """Without a page around it there are marks, a style and a legend; nothing is drawn of nothing."""
    text = render_svg_file([LineChart(name, "x", "y", {"a": POINTS}) for name in ("one", "two")])
    root = ElementTree.fromstring(text)
    assert len(root.findall(".//{*}circle")) == 4
    assert ".c0" in root.find("{*}style").text
    assert [
        draw_chart(LineChart("t", "x", "y", {})),
        draw_chart(BarChart("t", "x", {})),
        draw_chart(HeatMap("t", "x", "y", ())),
    ] == [""] * 3
