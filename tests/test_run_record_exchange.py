"""Steps of one rank of several without the exchange of gradients, with a clock that the test owns."""

import pytest

torch = pytest.importorskip("torch")
from paceline.torch.recorder.clock import CpuClock  # noqa: E402
from paceline.torch.recorder.communication_hooks import RankStepHooks, take_rank_apart, without_exchange  # noqa: E402
from paceline.torch.recorder.recorder import Recorder  # noqa: E402
from paceline.torch.recorder.step import EventKind, take_apart  # noqa: E402
from test_record_timeline import FORWARD, TABLE, events  # noqa: E402
from torch import nn  # noqa: E402

ALONE = (
    *FORWARD,
    (EventKind.FORWARD_END, 0, 2.5),
    (EventKind.BACKWARD_START, 0, 3.0),
    (EventKind.GRADIENT, 3, 3.5),
    (EventKind.GRADIENT, 2, 4.0),
    (EventKind.GRADIENT, 1, 5.0),
    (EventKind.GRADIENT, 0, 5.5),
    (EventKind.BACKWARD_END, 0, 5.5),
    (EventKind.OPTIMIZER_END, 0, 7.0),
)
# The same computation, with DistributedDataParallel and with Horovod's optimizer.
TO_BUCKETS = (
    (EventKind.WRAPPER_START, 0, 0.5),
    *FORWARD,
    (EventKind.FORWARD_END, 0, 2.5),
    (EventKind.EXCHANGED, 0, 2.75),
    (EventKind.BACKWARD_START, 0, 3.25),
    (EventKind.GRADIENT, 3, 3.75),
    (EventKind.EXCHANGED, 0, 4.0),
    (EventKind.GRADIENT, 2, 4.5),
    (EventKind.EXCHANGED, 0, 6.5),
    (EventKind.GRADIENT, 1, 7.5),
    (EventKind.EXCHANGED, 0, 8.0),
    (EventKind.GRADIENT, 0, 8.5),
    (EventKind.EXCHANGED, 0, 9.0),
)
DDP = (
    *TO_BUCKETS,
    (EventKind.BACKWARD_END, 0, 20.0),
    (EventKind.OPTIMIZER_START, 0, 21.0),
    (EventKind.OPTIMIZER_END, 0, 22.5),
)
HOROVOD = (
    *TO_BUCKETS,
    (EventKind.BACKWARD_END, 0, 9.25),
    (EventKind.OPTIMIZER_START, 0, 9.5),
    (EventKind.OPTIMIZER_START, 0, 21.0),
    (EventKind.OPTIMIZER_END, 0, 22.5),
)


def later(marks, seconds):
    return [(kind, key, at + seconds) for kind, key, at in marks]


@pytest.mark.parametrize("marks", [DDP, HOROVOD])
def test_what_is_left_is_the_step_of_one_process(marks):
    step = take_rank_apart(events(*marks), TABLE)
    alone = take_apart(events(*ALONE), TABLE)
    assert step.exchange_s == 16.0
    assert step.total_s == alone.total_s + 16.0
    assert {**vars(step), "exchange_s": 0.0} == vars(alone)


def test_passes_that_are_added_up_wait_as_well():
    """DistributedDataParallel without no_sync, and Horovod's with two passes for each step."""
    first = [*TO_BUCKETS, (EventKind.BACKWARD_END, 0, 20.0)]
    step = take_rank_apart(events(*first, *later(DDP, 30.0)), TABLE)
    assert (step.passes, step.batch) == (2, 16)
    # All but the exchange; with what the script does in between.
    assert step.accumulation_s == 30 - (0.25 + 3.25 + 11 + 0.5)
    assert (step.backward_s, step.optimizer_s) == (2.5, 1.5)


def test_clipping_and_other_models_between_backward_and_step_are_cut_out():
    other = (
        *((EventKind.BACKWARD_START, 0, 20.25), (EventKind.BACKWARD_END, 0, 20.5)),
        *((EventKind.WRAPPER_START, 0, 20.5), (EventKind.FORWARD_START, 8, 20.6)),
        *((EventKind.FORWARD_END, 0, 20.7), (EventKind.EXCHANGED, 0, 20.75)),
    )
    step = take_rank_apart(events(*DDP[:-2], *other, *DDP[-2:]), TABLE)
    assert step == take_rank_apart(events(*DDP), TABLE)


CLIPPING = (  # Half a second of clipping, a collective of 5 s with another inside, a quarter of a second.
    *((EventKind.COLLECTIVE_START, 0, 20.5), (EventKind.COLLECTIVE_START, 0, 21.0)),
    *((EventKind.COLLECTIVE_END, 0, 22.0), (EventKind.COLLECTIVE_END, 0, 25.5)),
)


def test_where_the_backward_pass_waits_clipping_counts_as_the_optimizers_and_collectives_do_not():
    alone = take_rank_apart(events(*DDP), TABLE)
    clipped = [*DDP[:-2], *CLIPPING, *later(DDP[-2:], 5.75)]
    step = take_rank_apart(events(*clipped), TABLE, waits_in_backward=True)
    gap = DDP[-2][2] - DDP[-3][2]
    assert step.optimizer_s == alone.optimizer_s + gap + 0.75
    assert step.exchange_s == alone.exchange_s - gap + 5.0
    assert step.backward_s == alone.backward_s
    # Nobody sees the end of a collective that runs on: everything may be waiting.
    clipped[clipped.index(CLIPPING[0])] = (EventKind.COLLECTIVE_START, 1, 20.5)
    step = take_rank_apart(events(*clipped), TABLE, waits_in_backward=True)
    assert step.optimizer_s == alone.optimizer_s


def test_collectives_between_steps_are_not_input():
    """A metric is averaged after each step: the rank may be waiting there for a slow one."""
    alone = take_rank_apart(events((EventKind.STEP_START, 0, 0.0), *DDP), TABLE, waits_in_backward=True)
    between = ((EventKind.COLLECTIVE_START, 0, 0.25), (EventKind.COLLECTIVE_END, 0, 4.25))
    marks = [(EventKind.STEP_START, 0, 0.0), *between, *later(DDP, 4.0)]
    step = take_rank_apart(events(*marks), TABLE, waits_in_backward=True)
    assert step.input_s == alone.input_s == 0.5
    assert step.exchange_s == alone.exchange_s + 4.0
    marks[1] = (EventKind.COLLECTIVE_START, 1, 0.25)  # Waited for at any time from here on.
    assert take_rank_apart(events(*marks), TABLE, waits_in_backward=True).input_s == 0.25


def test_two_backward_passes_after_one_forward_count_both():
    half = (
        *FORWARD,
        (EventKind.FORWARD_END, 0, 2.5),
        (EventKind.BACKWARD_START, 0, 3.0),
        (EventKind.GRADIENT, 3, 3.5),
        (EventKind.BACKWARD_END, 0, 4.5),
        (EventKind.BACKWARD_START, 0, 5.0),
        (EventKind.GRADIENT, 2, 5.5),
        (EventKind.BACKWARD_END, 0, 9.0),
        (EventKind.OPTIMIZER_START, 0, 9.0),
        (EventKind.OPTIMIZER_END, 0, 10.0),
    )
    step = take_rank_apart(events(*half), TABLE)
    assert step.ready_s == {3: 0.5, 2: 1.5}
    assert (step.backward_s, step.optimizer_s, step.exchange_s) == (1.5, 1.0, 4.5)


def test_nothing_is_cut_where_there_is_no_gradient():
    marks = events(*FORWARD, (EventKind.OPTIMIZER_START, 0, 5.0), (EventKind.OPTIMIZER_END, 0, 6.0))
    kept, cut_s = without_exchange(marks)
    assert (kept, cut_s) == ([marks[0], *marks[1:4], marks[5]], 0.0)
    stray = events(
        (EventKind.EXCHANGED, 0, 0.5), *FORWARD, (EventKind.EXCHANGED, 0, 5.0), (EventKind.WRAPPER_START, 0, 6.0)
    )
    assert without_exchange(stray) == (stray[1:-2], 0.0)


def test_of_steps_inside_of_each_other_the_innermost_ends_the_step():
    """As Horovod's own class, and any that extends an optimizer: torch's hooks hear of both."""

    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    net = nn.Linear(2, 2)
    torch.optim.SGD(net.parameters())  # the first of a class has torch put its hooks there
    with Recorder(net, Outer(net.parameters()), warmup=1, steps=2) as recorder:
        for _ in range(4):
            net(torch.ones(5, 2)).sum().backward()
            recorder._optimizer.step()
    assert (recorder.steps_seen, recorder.recorded) == (4, 2)


def test_the_probe_is_first_to_hear_of_a_gradient_and_last_to_hear_that_it_is_on_its_way():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    order = []
    for parameter in net.parameters():  # as Horovod's does
        parameter.register_post_accumulate_grad_hook(lambda _: order.append(len(probe.take())))
    probe = RankStepHooks(net, CpuClock())
    for _ in range(2):  # attached anew
        order.clear()
        probe.attach()
        probe.begin_step(None)
        net(torch.ones(5, 2)).sum().backward()
        kinds = [kind for kind, _, _ in probe.take()]
        at = [index for index, kind in enumerate(kinds) if kind is EventKind.GRADIENT]
        assert len(at) == 4
        assert order == [index + 1 for index in at]
        assert all(kinds[index + 1] is EventKind.EXCHANGED for index in at)
        probe.detach()
    order.clear()
    probe.begin_step(None)
    net(torch.ones(5, 2)).sum().backward()
    assert (len(order), probe.take()) == (4, [])
