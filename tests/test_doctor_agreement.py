"""Hand-made runs in which coordinators take long to agree: `paceline doctor` says what they did meanwhile."""

import pytest
from test_doctor_format import Ranks, diagnosed


def coordinated(late=0.0, asleep=0.0, reporting=0.0, agreed=4.0, steps=8):
    """Two ranks that are ready at 10, agree until 10 + `agreed`, and move for 1 ms; steps of 20 ms."""
    ranks = Ranks(2)
    for step in range(steps):
        for rank in (0, 1):
            at = 20 * step
            ranks.mark(rank, "input", at, at + 0.5)
            ranks.mark(rank, "forward", at + 0.5, at + 4)
            ranks.mark(rank, "backward", at + 4, at + 10)
            ranks.mark(rank, "wait", at + 10, at + 11 + agreed)
            ranks.mark(rank, "optimizer", at + 11 + agreed, at + 20)
            number = ranks.operation(rank, at + 10 + agreed, at + 11 + agreed, 1 << 20, "w")
            ranks.tensor(rank, "w", (at + 10, at + 10 + agreed, at + 11 + agreed), number, 1 << 20)
            for vote in range(3):
                ranks.operation(rank, at + 9 + vote, at + 9.1 + vote, 12, "which tensors are ready")
        for what, took in (("late wake-up", late), ("sleep", asleep), ("report", reporting)):
            if took:
                ranks.coordinator(1, what, at + 10, at + 10 + took)
    return ranks


def test_agreement_that_takes_long():
    report = diagnosed(coordinated())
    first = report.diagnoses[0]
    assert (first.name, first.evidence["cause"]) == ("negotiation", "votes")
    assert first.seconds == pytest.approx(0.004)
    assert first.evidence["coordinator_operations_per_step"] == 3
    assert "HOROVOD_CYCLE_TIME" in first.tries[1]


def test_oversleep_is_named():
    """One coordinator wakes late: all ranks wait for its vote."""
    report = diagnosed(coordinated(late=3))
    first = report.diagnoses[0]
    assert (first.name, first.evidence["cause"]) == ("negotiation", "late wake-up")
    assert "75% of it: a coordinator woke up to 3 ms late" in first.says
    assert first.evidence["late_wake_ups"] == 6
    assert first.evidence["late_wake_up_s"] == pytest.approx(0.003)
    assert "--coordinator graph" in first.tries[0]
    assert "HOROVOD_THREAD_AFFINITY" in first.tries[1]


def test_a_long_cycle_is_named():
    first = diagnosed(coordinated(asleep=4)).diagnoses[0]
    assert (first.name, first.evidence["cause"]) == ("negotiation", "sleep")
    assert first.evidence["sleep_median_s"] == pytest.approx(0.004)


def test_new_names_in_every_step_are_named():
    first = diagnosed(coordinated(reporting=4)).diagnoses[0]
    assert (first.name, first.evidence["cause"]) == ("negotiation", "report")
    assert "same tensor names" in first.tries[0]


def test_gradients_that_are_held_back_during_backward():
    """Ready at 4 on both ranks, begun at 10: with a coordinator, its cycle explains that."""
    ranks = coordinated(agreed=0.0)
    for step in range(8):
        for rank in (0, 1):
            at = 20 * step
            number = ranks.operation(rank, at + 10, at + 11, 1 << 20, "v")
            ranks.tensor(rank, "v", (at + 4.5, at + 10, at + 11), number, 1 << 20)
    report = diagnosed(ranks)
    result = next(it for it in report.diagnoses if it.name == "no-overlap")
    assert result.seconds == pytest.approx(0.001)
    assert result.evidence["held_s"] == pytest.approx(0.0055)
    assert "all ranks have gradients ready and nothing moves for 5.5 ms of backward" in result.says
    assert "HOROVOD_CYCLE_TIME" in result.tries[0]
