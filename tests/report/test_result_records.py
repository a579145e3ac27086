"""Statistics over seeds agree with SciPy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dygmamba.report.result_records import SeedValues, paired_t_test, rank_by_mean, student_t_two_sided_p


@given(st.floats(0, 50), st.integers(1, 30))
def test_student_t_agrees_with_scipy(t, freedom):
    stats = pytest.importorskip("scipy.stats")
    assert student_t_two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
def test_paired_t_test_agrees_with_scipy(pairs):
    stats = pytest.importorskip("scipy.stats")
    a, b = (SeedValues(dict(enumerate(column))) for column in zip(*pairs, strict=True))
    gaps = {round(x - y, 9) for x, y in pairs}
    ours = paired_t_test(a, b)
    if ours is None or len(gaps) == 1:
        return
    theirs = stats.ttest_rel([x for x, _ in pairs], [y for _, y in pairs]).pvalue
    assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)


def test_equal_means_share_their_rank():
    found = rank_by_mean(
        {
            "a": SeedValues({0: 0.9}),
            "b": SeedValues({0: 0.9}),
            "c": SeedValues({0: 0.5}),
            "d": SeedValues({0: 0.95}),
        }
    )
    assert found == {"d": 1, "a": 2.5, "b": 2.5, "c": 4}


def test_one_seed_has_no_standard_deviation():
    assert str(SeedValues({3: 0.5})) == "50.00"
    assert str(SeedValues({0: 0.5, 1: 0.6})) == "55.00 ± 7.07"
