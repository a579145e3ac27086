"""Decisions by a threshold: exact counts on eight pairs, and the rows of a prediction that are kept."""

import numpy as np
import pyarrow as pa
import pytest
import torch

import dygmamba as dm
from dygmamba.api.prediction import select_alerts
from dygmamba.core.costs import parse_costs
from dygmamba.report.charts import draw_chart
from dygmamba.report.decisions import NODE_WORDS, build_decisions_section, evaluate_threshold
from dygmamba.runs.queries import Predictions
from dygmamba.runs.stored_predictions import StoredPredictions
from raising import raises

SCORE = np.array([0.95, 0.8, 0.6, 0.2, 0.7, 0.4, 0.3, 0.1])
IS_REAL = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)


def test_counts_of_a_threshold():
    """At 0.6 four alerts, three of them real: precision 3/4, recall 3/4, lift 1.5; costs 1 and 10 add up to 11."""
    own = evaluate_threshold(SCORE, IS_REAL, 0.6)
    assert (own.precision, own.recall, own.alerts, own.lift) == (0.75, 0.75, 4, 1.5)
    assert own.compute_cost(parse_costs("1,10")) == 1 + 10
    assert evaluate_threshold(SCORE, IS_REAL, 0.99).precision is None


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9])
def test_alerts_at_the_threshold_of_a_share_cost_least(share):
    """For all shares of real pairs: where a score means what it says, no other threshold costs less on average."""
    costs = parse_costs("1,20", share)
    score = np.arange(1, 200) / 200  # for even odds
    is_real = share * score / (share * score + (1 - share) * (1 - score))
    density = share * score + (1 - share) * (1 - score)

    def average(threshold):
        is_alert = score >= threshold
        return float((density * np.where(is_alert, 1 - is_real, 20 * is_real)).sum())

    assert average(costs.threshold) == pytest.approx(min(map(average, [*score, 1.1])))


def test_the_section_counts_alerts_per_day_and_marks_the_threshold_of_the_costs():
    """Eight pairs over two days, half of the test stored: an alert on every pair is eight a day."""
    day = 86_400.0
    time = [1.7e9 + number * day for number in (0, 1, 2, 2)]
    data = dm.read({"src": [0, 1, 0, 2], "dst": [1, 2, 2, 1], "time": time})
    event = torch.tensor([0, 1, 2, 3] * 2)
    predictions = StoredPredictions(
        event, event * 0, event * 0 + 1, torch.from_numpy(IS_REAL).float(), torch.zeros(8), total=8
    )
    section = build_decisions_section(predictions, data, torch.from_numpy(SCORE), parse_costs("1,3"))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in section.tables[0].rows}
    assert rows["0.1"] == ["50.0", "100.0", "8", "1.00", "4"]
    assert rows["0.25 (by costs)"] == ["50.0", "75.0", "6", "1.00", "6"]
    assert "from a score of 0.25 on" in section.text
    assert section.charts == ()
    assert "There are 4 real events only" in section.text
    costs = parse_costs("1,3", 0.1)  # nine others for each real pair: 9 false alarms for one that was counted
    section = build_decisions_section(predictions, data, torch.from_numpy(SCORE), costs)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in section.tables[0].rows}
    assert rows["0.1"][-1] == "36"
    assert "0.75 (by costs)" in rows
    assert "10 % of the scored pairs are real" in section.text
    scores = torch.from_numpy(SCORE)
    section = build_decisions_section(predictions, data, scores, parse_costs("1,3"), NODE_WORDS)
    assert "on 8 events of the test period, 50 % of them positive events" in section.text
    assert "pair" not in section.text


def test_the_curves_of_enough_events_are_drawn():
    """Of fifty events or more; two curves and their legend."""
    data = dm.read({"src": [0, 1], "dst": [1, 2], "time": [1.7e9, 1.8e9]})
    event = torch.tensor([0, 1] * 64)
    predictions = StoredPredictions(
        event, event * 0, event * 0 + 1, torch.from_numpy(np.tile(IS_REAL, 16)).float(), torch.zeros(128), 128
    )
    section = build_decisions_section(predictions, data, torch.from_numpy(np.tile(SCORE, 16)))
    assert draw_chart(section.charts[0]).count('class="line') == 4
    assert "only" not in section.text


def make_predictions(times):
    columns = {"src": list("aabb"), "dst": list("xyxy"), "time": times, "score": [0.2, 0.9, 0.6, 0.7]}
    return Predictions(pa.table(columns), None, ())


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"threshold": 0.6}, [0.9, 0.6, 0.7]),
        ({"costs": "1,4"}, [0.2, 0.9, 0.6, 0.7]),
        ({"costs": "4,1"}, [0.9]),
        ({"costs": "1,4", "real_share": 0.5}, [0.2, 0.9, 0.6, 0.7]),
        ({"costs": "1,4", "real_share": 0.1}, [0.9, 0.7]),
        ({"costs": "1,1", "real_share": 0.2}, [0.9]),
        ({"per_day": 1}, [0.9, 0.7]),
        ({"per_day": 1, "threshold": 0.8}, [0.9]),
    ],
)
@pytest.mark.parametrize(
    "times",
    [
        ["2024-03-01T00:00:00Z", "2024-03-01T23:59:00Z", "2024-03-02T00:00:00Z", "2024-03-02T09:00:00Z"],
        [1.7e9, 1.7e9 + 1, 1.7e9 + 86_400, 1.7e9 + 86_401],
    ],
    ids=["dates", "epoch"],
)
def test_alerts_are_the_rows_above_the_threshold_and_the_best_of_each_day(times, options, kept):
    table = select_alerts(make_predictions(times), **options)[0].table
    assert table["score"].to_pylist() == kept


def test_the_share_of_real_events_is_not_one_of_nodes():
    """Scores of nodes are probabilities at the share of their own labels."""
    nodes = Predictions(pa.table({"node": ["a"], "time": [1.0], "score": [0.7]}), None, ())
    with raises("share-of-nodes"):
        select_alerts(nodes, costs="1,2", real_share=0.1)
