"""Clocks; CUDA's with events that the test makes up, and with real ones where there is a GPU."""

import pytest

torch = pytest.importorskip("torch")
from paceline.torch import CpuClock, CudaClock, record  # noqa: E402
from paceline.torch.recorder.clock import clock_for  # noqa: E402
from paceline.torch.recorder.recorder import Recorder  # noqa: E402
from test_record_format import check_trace, layers  # noqa: E402
from torch import nn  # noqa: E402


class FakeGpu:
    """A stream that finishes one event per millisecond, and only when it is waited for."""

    def __init__(self):
        self.recorded = 0
        self.completed = 0
        self.waits = 0

    def new_event(self):
        return FakeEvent(self)

    def synchronize(self):
        self.waits += 1
        self.completed = self.recorded

    def clock(self):
        return CudaClock(
            torch.device("cuda", 0),
            new_event=self.new_event,
            current_stream=lambda: "the stream",
            synchronize=self.synchronize,
        )


class FakeEvent:
    def __init__(self, gpu):
        self.gpu = gpu
        self.at = None

    def record(self, stream):
        assert stream == "the stream"
        self.gpu.recorded += 1
        self.at = self.gpu.recorded

    def elapsed_time(self, end):
        assert max(self.at, end.at) <= self.gpu.completed, "the event has not completed"
        return float(end.at - self.at)


def test_cpu_clock_counts_seconds_from_the_first_mark():
    clock = CpuClock()
    seconds = clock.seconds([clock.mark(), clock.mark(), clock.mark()])
    assert seconds[0] == 0.0
    assert seconds == sorted(seconds)
    assert seconds[-1] < 1.0


def test_cuda_clock_waits_only_when_asked_for_seconds():
    gpu = FakeGpu()
    clock = gpu.clock()
    marks = [clock.mark() for _ in range(4)]
    assert gpu.waits == 0
    assert clock.seconds(marks) == [0.0, 0.001, 0.002, 0.003]
    assert gpu.waits == 1


def test_a_recording_never_waits_for_the_gpu_while_steps_run():
    gpu = FakeGpu()
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(model, optimizer, warmup=1, steps=2, clock=gpu.clock()) as recorder:
        for _ in range(3):
            model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
        assert gpu.waits == 0
    worker = check_trace(recorder.trace)
    # One event a millisecond: forward start, root, first layer, ReLU, second layer, forward end, backward start …
    assert [x["duration_s"] for x in worker["forward"]] == [0.003, 0.001, 0.001, 0.001]
    assert [g["ready_s"] for g in worker["gradients"]] == [0.001, 0.002, 0.003, 0.004]
    assert worker["backward_s"] == 0.005
    assert worker["optimizer_s"] == 0.001


def test_other_devices_are_refused():
    with pytest.raises(ValueError, match="meta"):
        clock_for(torch.device("meta"))
    with pytest.raises(ValueError, match="meta"):
        record(nn.Linear(2, 2, device="meta"), torch.optim.SGD([nn.Parameter(torch.ones(1))]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, optimizer, warmup=2, steps=4) as recorder:
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(64, 512, device="cuda")).sum().backward()
            optimizer.step()
    assert list(layers(check_trace(recorder.trace))) == ["0", "1", "2"]
    assert recorder.trace["device"] == torch.cuda.get_device_name(0)
