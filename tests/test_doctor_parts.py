"""The parts of a step: closed forms, and that they always add up."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.doctor import diagnose
from paceline.doctor.intervals import length, overlap, union, without
from paceline.doctor.step_breakdown import NAMES, median, quantile
from test_doctor_format import Ranks, ddp, diagnosed, training


def parts(report, rank):
    """Of the mean step, in milliseconds."""
    result = report.analysis.means[rank]
    return {name: round(getattr(result, name) / 1e6, 6) for name in NAMES if getattr(result, name)}


def test_one_rank_alone():
    report = diagnosed(training(4, 1, ready=(), done=()))
    assert parts(report, 0) == {"input": 1, "forward": 2, "backward": 10, "optimizer": 1}


def test_what_is_exposed_of_overlapped_gradients():
    # The second gradient is ready at 8 and done at 9.5; then 0.5 go by before the optimizer.
    report = diagnosed(training(ready=(3, 8), done=(5, 9.5)))
    expected = {"input": 1, "forward": 2, "backward": 8.5, "optimizer": 1, "transfer": 1.5}
    assert parts(report, 0) == parts(report, 1) == expected


def test_a_straggler():
    ranks = Ranks(3)
    for step in range(8):
        for rank, late in ((0, 0), (1, 5), (2, 3)):
            # All gradients are done at the same time; rank 1 is ready last, 2 ms before that.
            ddp(ranks, rank, 20 * step, input=2, forward=2 + late, backward=15 - late, ready=(8,), done=(15 - late,))
    report = diagnosed(ranks)
    assert parts(report, 0) == {
        **{"input": 2, "forward": 2, "backward": 8, "optimizer": 1},
        **{"straggler": 5, "transfer": 2},
    }
    assert parts(report, 1) == {"input": 2, "forward": 7, "backward": 8, "optimizer": 1, "transfer": 2}
    assert parts(report, 2)["straggler"] == 2
    (straggler, *_) = report.diagnoses
    assert straggler.seconds == pytest.approx((5 + 2) / 2 / 1000)  # the mean wait of the other two
    assert straggler.share == pytest.approx(3.5 / 20)


def test_what_already_moves_is_no_wait_for_a_straggler():
    """Rank 1 is ready 3 ms later, but the first bucket moves from 4 to 12, the second one after it to 14."""
    ranks = Ranks(2)
    for step in range(6):
        for rank, late in ((0, 0), (1, 3)):
            ddp(ranks, rank, 20 * step, input=1, forward=2, backward=16, ready=(4, 8 + late), done=(12, 14))
    report = diagnosed(ranks)
    assert parts(report, 0) == {"input": 1, "forward": 2, "backward": 10, "optimizer": 1, "transfer": 6}
    assert parts(report, 1)["transfer"] == 3


def agreed(ranks, rank, at, *, ready, everywhere=8):
    """A step of 20 ms with a coordinator: waiting from 9 to 16; agreed 3 ms after all are ready; moved in 3 ms."""
    ranks.mark(rank, "input", at, at + 1)
    ranks.mark(rank, "forward", at + 1, at + 4)
    ranks.mark(rank, "backward", at + 4, at + 9)
    ranks.mark(rank, "wait", at + 9, at + 16)
    ranks.mark(rank, "optimizer", at + 16, at + 20)
    number = ranks.operation(rank, at + everywhere + 3, at + everywhere + 6, name="w and 1 more")
    for name, result in (("v", ready - 2), ("w", ready)):
        ranks.tensor(rank, name, (at + result, at + everywhere + 3, at + everywhere + 6), number)


def test_waiting_for_agreement():
    ranks = Ranks(2)
    for step in range(6):
        agreed(ranks, 0, 20 * step, ready=7, everywhere=9.5)
        agreed(ranks, 1, 20 * step, ready=9.5, everywhere=9.5)
        ranks.operation(0, 20 * step + 9.6, 20 * step + 9.7, 12, "which tensors are ready")
    report = diagnosed(ranks)
    own = {"input": 1, "forward": 3, "backward": 5, "optimizer": 4, "negotiation": 3, "transfer": 3}
    assert parts(report, 0) == {**own, "straggler": 0.5, "other": 0.5}
    assert parts(report, 1) == {**own, "other": 1}  # it requests its last tensor while it already waits


def test_a_broadcast_in_forward_is_waited_for():
    """DDP's buffers: rank 1 stands in its forward pass from 2 to 7, as rank 0 comes at 6."""
    ranks = Ranks(2)
    for step in range(6):
        ddp(ranks, 0, 20 * step, input=5, forward=4, backward=10, ready=(9,), done=(9.5,))
        ddp(ranks, 1, 20 * step, input=1, forward=8, backward=10, ready=(9,), done=(9.5,))
        ranks.operation(0, 20 * step + 6, 20 * step + 6.1, name="broadcast", call="broadcast")
        ranks.operation(1, 20 * step + 2, 20 * step + 7, name="broadcast", call="broadcast")
    report = diagnosed(ranks)
    assert parts(report, 1)["straggler"] == pytest.approx(4)
    assert parts(report, 1)["forward"] == pytest.approx(3)
    assert parts(report, 0)["forward"] == pytest.approx(3.9)
    assert "straggler" not in parts(report, 0)
    assert report.diagnoses[0].evidence["rank"] == 0
    assert report.diagnoses[0].evidence["cause"] == "input"


def test_a_loss_that_is_reduced_after_the_gradients():
    """It is ready at 9.6, but the wait for gradients began at 8."""
    ranks = training(6, ready=(8,), done=(9,))
    for rank in (0, 1):
        for step in range(6):
            ranks.operation(rank, 14 * step + 3 + 9.6, 14 * step + 3 + 9.8, 4, "all_reduce float32[]")
    report = diagnosed(ranks)
    assert parts(report, 0)["transfer"] == pytest.approx(1.2)
    assert parts(report, 0)["backward"] == pytest.approx(8.8)


def test_groups_of_ranks_with_operations_of_the_same_name():
    """Ranks 2 and 3 reduce among themselves what ranks 0 and 1 have already reduced: no rank waits for them."""
    ranks = Ranks(4)
    for step in range(6):
        for rank in (0, 1):
            ddp(ranks, rank, 20 * step, input=1, forward=2, backward=16, ready=(5,), done=(6,))
        for rank in (2, 3):
            ddp(ranks, rank, 20 * step, input=1, forward=2, backward=16, ready=(12,), done=(13,))
    report = diagnosed(ranks)
    assert "straggler" not in parts(report, 0)
    assert parts(report, 0)["transfer"] == 1


def test_steps_without_marks_are_one_stretch():
    ranks = Ranks(2)
    for turn in range(5):
        ranks.operation(0, 20 * turn, 20 * turn + 8)
        ranks.operation(1, 20 * turn + 5, 20 * turn + 8)
    report = diagnosed(ranks)
    assert parts(report, 0) == {"other": 48, "straggler": 25, "transfer": 15}
    assert parts(report, 1) == {"other": 68, "transfer": 15}
    result = report.to_dict()
    assert (result["steps"], result["step_s"], result["ranks"][0]["forward_s"]) == (0, None, None)
    assert result["diagnoses"][0]["name"] == "straggler"
    assert "it contains no complete step" in result["notes"][0]


def test_a_table_whose_rows_add_up():
    text = diagnosed(training(6, ready=(3, 8), done=(5, 9.5))).text(100)
    row = next(line.split()[1:] for line in text if line.startswith("rank 1 "))
    _, step, *figures = map(float, row)
    *own, exposed, straggler, negotiation, transfer = figures
    assert step == pytest.approx(sum(own) + exposed)
    assert exposed == pytest.approx(straggler + negotiation + transfer)


# Whatever happened.

moments = st.floats(0, 50, allow_nan=False, width=32).map(lambda number: round(number, 3))
spans = st.tuples(moments, moments).map(sorted)


@st.composite
def anything(draw):
    ranks = Ranks(draw(st.integers(1, 3)))
    for rank in range(len(ranks.numbers)):
        for category, most in (("input", 3), ("forward", 4), ("backward", 3), ("wait", 3), ("optimizer", 4)):
            for begin, end in draw(st.lists(spans, max_size=most)):
                ranks.mark(rank, category, begin, end)
        for name in draw(st.lists(st.sampled_from("abc"), max_size=5)):
            begin, end = draw(spans)
            number = ranks.operation(rank, begin, end, draw(st.integers(0, 1 << 24)), name)
            if draw(st.booleans()):
                result, agreed = draw(spans)
                ranks.tensor(rank, name, (result, agreed, max(agreed, end)), number)
        for begin, end in draw(st.lists(spans, max_size=3)):
            ranks.coordinator(rank, draw(st.sampled_from(["sleep", "late wake-up", "report"])), begin, end)
    return ranks


@settings(deadline=None)
@given(ranks=anything())
def test_parts_add_up(tmp_path_factory, ranks):
    path = ranks.write(tmp_path_factory.getbasetemp() / "anything.json")
    try:
        report = diagnose(path)
    except ValueError as error:  # nothing happened
        assert str(path) in str(error)
        return
    for breakdowns in (*report.analysis.breakdowns.values(), *report.analysis.slow.values()):
        for breakdown in breakdowns:
            assert sum(breakdown.parts.values()) == breakdown.end - breakdown.begin  # to the nanosecond
            assert min(breakdown.parts.values()) >= 0
            waits = [(wait.begin, wait.end) for wait in breakdown.waits]
            assert length(union(waits)) == sum(wait.length for wait in breakdown.waits)  # they do not overlap
    for rank, result in zip(report.analysis.ranks, report.to_dict()["ranks"], strict=True):
        own = sum(result[f"{name}_s"] or 0 for name in NAMES)
        assert own == pytest.approx(result["step_s"])
        assert result["rank"] == rank
    assert all(it.seconds >= 0 and it.share >= 0 for it in report.diagnoses)
    assert report.text(80)
    assert diagnose(path).to_dict() == report.to_dict()


interval_lists = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@given(left=interval_lists, right=interval_lists)
def test_intervals_are_sets_of_moments(left, right):
    def moments(intervals):
        return {at for begin, end in intervals for at in range(begin, end)}

    one, two = union(left), union(right)
    assert moments(one) == moments(left)
    assert all(end < begin for (_, end), (begin, _) in pairwise(one))
    assert moments(overlap(one, two)) == moments(one) & moments(two)
    assert moments(without(one, two)) == moments(one) - moments(two)
    assert length(one) == len(moments(one))


def test_quantiles():
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert quantile([0, 10], 0.25) == 2.5
