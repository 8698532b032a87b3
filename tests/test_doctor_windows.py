"""The load-imbalance-susceptible window: from timelines, and the watch on a rank's input pipeline."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from paceline.doctor import diagnose
from paceline.job.input_watch import InputWatch
from test_doctor_format import COMPUTE, Ranks, ddp, diagnosed, training


def watched(spans, steps=8, **step):
    """Equal steps of 14 ms: input 1, forward 2, backward 10 with a gradient that moves from 8 on, optimizer 1.

    The pipeline is at work in `spans` of each step.
    """
    ranks = Ranks(2)
    for rank in range(2):
        at = 0
        ranks._complete(rank, COMPUTE, "watched", "pipeline", (0, 0))
        for _ in range(steps):
            for begin, end in spans:
                ranks._complete(rank, COMPUTE, "input pipeline", "pipeline", (at + begin, at + end))
            at = ddp(ranks, rank, at, **step)
    return diagnosed(ranks)


@pytest.mark.parametrize(
    ("spans", "window"),
    [
        ([], 0),
        ([(0, 14)], 10),  # from the forward pass at 1 to the first gradient at 11
        ([(0, 1)], 0),  # before scheduling begins
        ([(11, 14)], 0),  # a gradient has moved
        ([(0, 3), (5, 6), (10, 13)], 2 + 1 + 1),
        ([(2, 8), (4, 5)], 6),
    ],
)
def test_a_window_is_where_the_pipeline_works_and_nothing_has_moved(spans, window):
    report = watched(spans)
    assert report.to_dict()["lis_window_share"] == pytest.approx(window / 14)
    assert [rank["lis_window_s"] for rank in report.to_dict()["ranks"]] == pytest.approx([window * 1e-3] * 2)
    text = "\n".join(report.text(100))
    assert f"LIS window   {100 * window / 14:.0f}% of a step" in " ".join(text.split("  ")) or "LIS window" in text
    assert "LIS" not in report.verdict


def test_a_gradient_moves_when_all_ranks_have_started_it():
    ranks = Ranks(2)
    for rank, late in ((0, 0), (1, 3)):
        ranks._complete(rank, COMPUTE, "input pipeline", "pipeline", (0, 1000))
        for step in range(8):
            ddp(ranks, rank, 20 * step, input=1, forward=2, backward=16, ready=(4 + late,), done=(12,))
    report = diagnosed(ranks)
    assert [rank["lis_window_s"] for rank in report.to_dict()["ranks"]] == pytest.approx([2e-3 + 7e-3] * 2)


def test_without_a_watch_nothing_is_said():
    report = diagnosed(training())
    assert report.to_dict()["lis_window_share"] is None
    assert [rank["lis_window_s"] for rank in report.to_dict()["ranks"]] == [None, None]
    assert "LIS" not in "\n".join(report.text(100))


class Engine:
    def __init__(self):
        self.marks = []

    def mark(self, category, name, begin, end):
        self.marks.append((category, name, begin, end))

    def busy(self):
        return [(begin, end) for category, name, begin, end in self.marks if name == "input pipeline"]


WORKER = """
import sys, time
for line in sys.stdin:
    until = time.monotonic() + float(line)
    while time.monotonic() < until:
        pass
    print(time.monotonic_ns(), time.process_time_ns(), flush=True)
"""


@pytest.mark.flaky(reruns=3)
def test_a_child_at_work_is_seen_and_one_that_waits_is_not():
    engine = Engine()
    child = subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        child.stdin.write("0\n")
        child.stdin.flush()
        worked = int(child.stdout.readline().split()[1])
        watch = InputWatch(engine)
        time.sleep(0.3)
        began = time.monotonic_ns()
        child.stdin.write("0.3\n")
        child.stdin.flush()
        ended, worked_until = map(int, child.stdout.readline().split())
        time.sleep(0.1)
        watch.remove()
        child.stdin.close()
    assert engine.marks[0][:2] == ("pipeline", "watched")
    if worked_until - worked < 0.8 * (ended - began):
        pytest.skip("the machine gives it too little of a core")
    inside = sum(max(0, min(end, ended) - max(begin, began)) for begin, end in engine.busy())
    whole = sum(end - begin for begin, end in engine.busy())
    assert inside > 0.5 * (ended - began) and inside > 0.9 * whole, (engine.busy(), began, ended)
    assert not [thread for thread in threading.enumerate() if thread.name == "paceline-input"]
    assert not watch._files


def test_a_watch_ends_with_processes_that_end():
    engine = Engine()
    watch = InputWatch(engine)
    for _ in range(3):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    time.sleep(0.25)
    open_files = list(Path("/proc/self/fd").iterdir())
    watch.remove()
    assert len(open_files) < 200 and all(end > begin for begin, end in engine.busy())


@pytest.mark.process
@pytest.mark.slow
def test_a_loader_at_work_has_a_window(tmp_path):
    import cli
    from job_workers.launch import clean

    script = tmp_path / "train.py"
    script.write_text(LOADED)
    timeline = tmp_path / "run.json"
    command = [
        sys.executable,
        "-m",
        "paceline",
        "run",
        "-np",
        "2",
        "--timeline",
        timeline,
        "--",
        sys.executable,
        script,
    ]
    cli.ended(*map(str, command), check=True, env=clean())
    report = diagnose(timeline).to_dict()
    assert 0.02 < report["lis_window_share"] < 0.95, report
    events = json.loads(timeline.read_text())["traceEvents"]
    assert {event["tid"] for event in events if event.get("cat") == "pipeline"} == {6}


LOADED = """
import time
import torch
import paceline.torch as hvd

class Busy(torch.utils.data.Dataset):
    def __len__(self):
        return 30
    def __getitem__(self, index):
        until = time.monotonic() + 0.02
        while time.monotonic() < until:
            pass
        return torch.randn(8, 64)

if __name__ == "__main__":
    hvd.init()
    model = torch.nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model.register_forward_hook(lambda *_: time.sleep(0.02))
    for batch in torch.utils.data.DataLoader(Busy(), batch_size=None, num_workers=1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    hvd.shutdown()
"""
