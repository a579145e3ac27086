"""Charts: every point is inside the frame, ticks are round values inside the axis, and text is escaped."""

import re
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.report.charts import draw_chart
from dygmamba.report.document import BarChart, HeatMap, Histogram, LineChart
from dygmamba.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Axis, format_date

EVIL = "<b>&\"'"
POINTS = [(1.0, 5.0, 0.5), (10.0, 7.0, 0.1)]
CHARTS = [
    LineChart(EVIL, EVIL, EVIL, {EVIL: POINTS, "b": [(1, 5.5)]}, "log", level=(EVIL, 6.0)),
    LineChart(EVIL, EVIL, EVIL, {EVIL: [(1, 5)], "c": [(2, 5)]}, bands={EVIL: [(1, 4, 6), (2, 3, 6)]}, diagonal=EVIL),
    Histogram(EVIL, EVIL, EVIL, (0.0, 1.0, 2.0), {EVIL: (3, 0), "b": (1, 2)}, gaps=((0.2, 0.8, EVIL),)),
    BarChart(EVIL, EVIL, {EVIL: {EVIL: 91.0, "recency": 78.4}}, EVIL, 50.0),
    HeatMap(EVIL, EVIL, EVIL, ((0.0, 1.0), (0.5, -1.0))),
]  # fmt: skip
TIMES = st.floats(-6e10, 2e11)


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: type(chart).__name__)
def test_a_chart_is_well_formed_and_its_names_are_escaped(chart):
    """Names with markup in them come back from the parsed XML as they were, and there are hover texts."""
    root = ElementTree.fromstring(f"<div>{draw_chart(chart)}</div>")
    assert EVIL in "".join(root.itertext())
    assert root.find("svg").get("aria-label") == EVIL
    assert root.findall(".//title")
    assert not root.findall(".//b")


def test_a_chart_shows_every_point_inside_its_frame():
    """Each point is drawn between the axes; a point that is not positive is left out on a logarithmic axis."""
    chart = LineChart("t", "x", "y", {"a": POINTS, "b": [(1, 5.5), (-1, 3.0)]}, "log")
    places = [
        (float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', draw_chart(chart))
    ]
    assert len(places) == 3
    assert all(LEFT <= x <= WIDTH - RIGHT and 0 <= y <= HEIGHT - BOTTOM for x, y in places)


def test_dots_are_all_drawn_and_not_joined_by_a_line():
    """However many points there are: each has its hover text, and only the other curve has a line."""
    many = [(float(k), float(k % 7)) for k in range(500)]
    drawn = draw_chart(
        LineChart("t", "x", "y", {"a": many, "b": many[:2]}, tooltips={"a": ["text"] * 500}, dots=("a",))
    )
    assert (
        drawn.count("<title>text</title>") == drawn.count('class="dot c0"') - 1 == 500
    )  # one is in the legend
    assert drawn.count('class="line c0"') == 0
    assert drawn.count('class="line c1"') == 2


def test_histogram_bars_are_stacked_and_as_high_as_their_counts():
    """The bars of a bin begin where the one below ends, and their heights are in the ratio of the counts."""
    rects = re.findall(r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" class="bar', draw_chart(CHARTS[2]))
    heights = [float(height) for _, height in rects]
    assert heights[0] == pytest.approx(3 * heights[1], abs=0.2)
    assert heights[2] == pytest.approx(2 * heights[1], abs=0.2)
    assert float(rects[1][0]) + heights[1] == pytest.approx(float(rects[0][0]), abs=0.2)


@given(low=TIMES, width=st.floats(1.0, 1e11))
def test_date_ticks_are_right_few_and_inside_the_axis(low, width):
    """For all periods from a second to millennia: at most six dates, inside, each labeled with its own date."""
    ticks = Axis(low, low + width, "date").ticks()
    assert 0 <= len(ticks) <= 6
    assert ticks or width < 5
    for value, label in ticks:
        assert low <= value <= low + width
        if re.fullmatch(r"\d{4}-\d\d-\d\d", label):
            assert datetime.fromisoformat(label).replace(tzinfo=UTC).timestamp() == value


@given(values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5))
def test_values_and_ticks_lie_inside_an_axis(values):
    """For all values, also equal ones: their fractions are between 0 and 1, and so are those of the ticks."""
    axis = Axis.from_values(values)
    assert all(-1e-9 <= axis.fraction(value) <= 1 + 1e-9 for value in values)
    assert all(-1e-9 <= axis.fraction(tick) <= 1 + 1e-9 for tick, _ in axis.ticks())


def test_ticks_and_dates_fit_the_kind_of_the_axis():
    """Counts have whole ticks, spans are durations, and a time outside the calendar is a number of seconds."""
    assert [label for _, label in Axis.from_values([1, 3], "count").ticks()] == ["1", "2", "3"]
    assert [label for _, label in Axis.from_values([900, 14_400], "span").ticks()] == ["15 min", "1 h", "3 h"]
    assert format_date(0.0) == "1970-01-01 00:00"
    assert format_date(1e18).endswith(" s")


def test_labels_of_an_axis_do_not_overlap():
    """Each value of the data has a tick on a logarithmic axis, and a label of three digits where there is room."""
    points = [(x, 1.0) for x in (0.026894, 0.0295112, 0.05, 0.121376)]
    picture = draw_chart(LineChart("t", "rate", "y", {"a": points}, "log"))
    labels = re.findall(rf'y="{HEIGHT - BOTTOM + 17}[.0]*"[^>]*>([^<]+)<', picture)
    assert labels == ["0.0269", "0.05", "0.121"]
    assert len(re.findall(rf'y2="{HEIGHT - BOTTOM + 4}" class="axis"', picture)) == len(points)
    counts = Axis.from_values([32, 1024], "log").ticks((32, 1024))
    assert [label for _, label in counts] == ["32", "1,024"]


def test_a_chart_without_values_is_empty():
    assert [
        draw_chart(LineChart("t", "x", "y", {})),
        draw_chart(BarChart("t", "x", {})),
        draw_chart(HeatMap("t", "x", "y", ())),
    ] == [""] * 3
