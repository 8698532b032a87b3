"""Statistics of `paceline bench` against closed forms and libraries."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_lab.bench.result import Measured, Result, Row, compare
from paceline_lab.bench.scaling import scale
from paceline_lab.bench.statistics import Interval, bootstrap, line, student, timing

SECONDS = st.lists(st.floats(1e-3, 10.0), min_size=1, max_size=40)


def test_timing_is_that_of_tf_cnn_benchmarks():
    result = timing(10, [1.0, 2.0, 5.0])  # rates 10, 5, 2
    assert result.images_per_s == pytest.approx(30 / 8)
    assert result.uncertainty == pytest.approx(statistics.pstdev([10, 5, 2]) / math.sqrt(3))
    assert result.jitter == pytest.approx(1.4826 * 3)  # deviations from 5: 5, 0, 3


@given(SECONDS, st.floats(0.5, 4.0))
def test_twice_as_slow_is_half_the_rate_in_everything(seconds, factor):
    fast, slow = timing(8, seconds), timing(8, [each * factor for each in seconds])
    assert slow.images_per_s * factor == pytest.approx(fast.images_per_s)
    assert slow.uncertainty * factor == pytest.approx(fast.uncertainty, abs=1e-6)
    assert slow.jitter * factor == pytest.approx(fast.jitter, abs=1e-6)


# Two-sided 95 % quantiles of Student's t: Abramowitz and Stegun, table 26.10.
@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (29, 2.045), (120, 1.980)]
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student(freedom) == pytest.approx(quantile, abs=6e-4)


@given(st.floats(-50, 50), st.floats(-50, 50), st.lists(st.integers(1, 64), min_size=3, max_size=9, unique=True))
def test_points_on_a_line_give_it_back(slope, intercept, xs):
    result = line([(x, intercept + slope * x) for x in xs])
    assert result is not None
    assert result.slope == pytest.approx(slope, abs=1e-6)
    assert result.intercept == pytest.approx(intercept, abs=1e-5)
    assert result.slope_interval is not None
    assert result.slope_interval.high - result.slope_interval.low < 1e-3


def test_the_interval_of_a_slope_by_hand():
    # Points (1, 1), (2, 3), (3, 2): slope 1/2, intercept 1, residual variance 1.5, sum of squares 2.
    result = line([(1, 1), (2, 3), (3, 2)])
    assert result is not None
    assert (result.slope, result.intercept) == (pytest.approx(0.5), pytest.approx(1.0))
    half = student(1) * math.sqrt(1.5 / 2)
    assert result.slope_interval == Interval(pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_two_points_have_no_interval_and_one_no_line():
    result = line([(1, 10), (2, 18)])
    assert result is not None
    assert (result.slope, result.slope_interval) == (8, None)
    assert line([(2, 10), (2, 18)]) is None


def test_a_bootstrap_interval_covers_the_mean_as_often_as_it_says():
    import random

    draw, covered = random.Random(7), 0
    for number in range(60):
        sample = [draw.gauss(5, 1) for _ in range(30)]
        result = bootstrap([sample], lambda drawn: statistics.fmean(drawn[0]), seed=number)
        covered += result.low <= 5 <= result.high
    assert 50 <= covered <= 60


def a_row(engine, workers, seconds, batch=4, rounds=1):
    part = {"alone": {"step": [seconds / 2]}, "digest": "d", "cpu_s": 1.0, "input_s": [0.0] * 4}
    one = {**part, "seconds": [seconds] * 4, "lasted_s": 4 * seconds}
    runs = [Measured([{**one, "rank": rank} for rank in range(workers)]) for _ in range(rounds)]
    return Row(engine, workers, batch, runs=runs)


def test_efficiency_and_slope_of_perfect_and_of_no_scaling():
    perfect = [a_row("perfect", workers, 0.1) for workers in (1, 2, 4)]
    none = [a_row("none", workers, 0.1 * workers) for workers in (1, 2, 4)]
    result = Result(rows=[*perfect, *none])
    scale(result)
    assert [row.efficiency for row in perfect] == [pytest.approx(1)] * 3
    assert [row.efficiency for row in none] == [pytest.approx(1 / workers) for workers in (1, 2, 4)]
    assert result.lines["perfect"].slope == pytest.approx(40)  # 4 images per rank in 0.1 s
    assert result.lines["perfect"].intercept == pytest.approx(0, abs=1e-9)
    assert result.lines["none"].slope == pytest.approx(0, abs=1e-9)


def test_intervals_are_of_the_median_of_the_rounds():
    rows = [a_row("any", workers, 0.1, rounds=3) for workers in (1, 2)]
    for row in rows:  # one round was disturbed: the mean of all steps is far from the median of the rounds
        row.runs[2].ranks[0].update(seconds=[1.0] * 4)
        for rank in row.runs[2].ranks:
            rank["lasted_s"] = 4.0
    scale(Result(rows=rows))
    assert rows[1].interval.low == rows[1].interval.high == pytest.approx(rows[1].total) == pytest.approx(80)
    assert rows[1].efficiency_interval.low == pytest.approx(rows[1].efficiency) == pytest.approx(1)


def test_exposed_communication_is_what_a_step_takes_beyond_computing():
    row = a_row("any", 2, 0.1)
    assert row.exposed_s == pytest.approx(0.05)
    assert row.total == pytest.approx(80)


def test_ratios_are_taken_within_each_round():
    first, second = a_row("first", 2, 0.1, rounds=3), a_row("second", 2, 0.1, rounds=3)
    for run, lasted in zip(second.runs, (0.2, 0.4, 0.8), strict=True):
        for rank in run.ranks:
            rank["lasted_s"] = lasted
    compare([first, second])
    assert (first.ratio, second.ratio) == (None, pytest.approx(1.0))
    assert second.ratio_interval == Interval(pytest.approx(0.5), pytest.approx(2.0))
