"""What timelines show of a training script: jobs side by side, clipping, the script's own collectives."""

import json
import os

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from paceline.job.input_watch import CATEGORY  # noqa: E402
from paceline.torch.backend.blocks import Blocks  # noqa: E402
from paceline.torch.backend.buffers import Memory  # noqa: E402
from paceline.torch.backend.completion import Completion, Lineage  # noqa: E402
from paceline.torch.backend.estimate import Estimated  # noqa: E402
from paceline.torch.backend.work import Work  # noqa: E402
from paceline.torch.recorder.communication_hooks import _Collectives  # noqa: E402
from paceline.torch.recorder.marks import Marks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.utils import clip_grad, clip_grad_norm_  # noqa: E402


class Engine:
    def __init__(self):
        self.marks = []

    def mark(self, category, name, begin, end):
        assert 0 < begin <= end
        if category != CATEGORY:  # The input pipeline has a track of its own, beside the script's phases.
            self.marks.append((category, name, begin, end))

    def names(self):
        return [mark[:2] for mark in self.marks]


@pytest.fixture
def marked():
    """Two jobs, each with an engine, its completion, and marks."""
    jobs = []
    for _ in range(2):
        engine = Engine()
        completion = Completion(engine)
        jobs.append((engine, completion, Marks(engine, completion)))
    yield jobs
    for _, _, marks in jobs:
        if marks._hooks:
            marks.remove()


def wait(completion, label):
    Work(completion, Estimated(), label, Memory([], []), token=None, lineage=Lineage("g", None)).wait()


def test_each_job_has_its_own_waits(marked):
    (one, first, marks), (other, second, _) = marked
    wait(first, "before any forward pass")
    nn.Linear(2, 2)(torch.ones(1, 2))
    wait(first, "all_reduce a")
    wait(second, "all_reduce b")
    assert one.names() == [("forward", "forward"), ("collective", "all_reduce a")]
    assert other.names() == [("forward", "forward"), ("collective", "all_reduce b")]
    marks.remove()
    wait(first, "all_reduce c")
    wait(second, "all_reduce d")
    assert one.names()[2:] == [] and other.names()[2:] == [("collective", "all_reduce d")]


def test_clipping_is_a_part_of_the_optimizer_with_its_own_name(marked):
    (engine, _, marks), (other, _, more) = marked
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        model(torch.ones(1, 2)).sum().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()

    step()
    assert engine.names() == [
        *(("forward", "forward"), ("backward", "backward"), ("optimizer", "clip_grad_norm_")),
        *(("optimizer", "clip_grad_value_"), ("optimizer", "optimizer")),
    ]
    assert all(before[3] <= after[2] for before, after in zip(engine.marks, engine.marks[1:], strict=False))
    marks.remove()
    step()
    assert len(engine.marks) == 5 and len(other.marks) == 11  # and the input between the two steps
    more.remove()
    assert "clipped" not in (clip_grad_norm_.__code__.co_name, nn.utils.clip_grad_value_.__code__.co_name)
    assert clip_grad_norm_ is nn.utils.clip_grad_norm_ is clip_grad.clip_grad_norm_


def test_names_of_blocks_stay_while_one_of_two_timelines_is_recorded():
    group = pytest.importorskip("torch.distributed.fsdp._fully_shard._fsdp_param_group").FSDPParamGroup
    original, one, other = group.unshard, Blocks(), Blocks()
    one.find()
    other.find()
    other.find()
    one.remove()
    assert group.unshard is not original
    other.remove()
    other.remove()
    assert group.unshard is original


def test_two_recorders_watch_the_collectives_of_a_script():
    original, seen = dist.get_world_size, []
    one = _Collectives(lambda kind, key: seen.append((1, kind.name, key)))
    other = _Collectives(lambda kind, key: seen.append((2, kind.name, key)))
    original = dist.barrier
    one.watch()
    other.watch()
    one.leave()
    with pytest.raises(ValueError, match="process group"):
        dist.barrier(async_op=True)
    assert seen == [(2, "COLLECTIVE_START", 1), (2, "COLLECTIVE_END", 0)]
    other.leave()
    assert dist.barrier is original is dist.distributed_c10d.barrier


SCRIPT = """
import torch, torch.distributed as dist
import paceline.torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.set_num_threads(1)
dist.init_process_group("paceline")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, x):
        y = self.inner(x)
        mean = y.detach().mean().reshape(1)
        dist.all_reduce(mean)
        return y

model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(6):
    model(torch.randn(64, 256)).square().mean().backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    loss = torch.ones(3)
    dist.all_reduce(loss, async_op=True).wait()
dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="paceline run needs process groups")
def test_a_timeline_has_clipping_and_averaged_metrics(tmp_path):
    from test_doctor_run import doctor, timeline_of

    path = timeline_of(SCRIPT, tmp_path)
    events = [one for one in json.loads(path.read_text())["traceEvents"] if one["ph"] == "X" and one["pid"] == 1]
    spans = {}
    for event in events:
        if "cat" in event:
            spans.setdefault((event["cat"], event["name"]), []).append((event["ts"], event["ts"] + event["dur"]))
    forward = spans["forward", "forward"]
    metrics = spans["collective", "all_reduce float32[1]"]
    assert len(metrics) == 6
    for inside, around in zip(metrics, forward, strict=True):
        assert around[0] <= inside[0] <= inside[1] <= around[1]
    assert len(spans["collective", "all_reduce float32[3]"]) == 6
    for backward, clip, step in zip(
        spans["backward", "backward"],
        spans["optimizer", "clip_grad_norm_"],
        spans["optimizer", "optimizer"],
        strict=True,
    ):
        assert backward[1] <= clip[0] <= clip[1] <= step[0]
    answer = json.loads(doctor(path, "--json"))
    # On a busy machine a step may take three times as long as the others, and is then counted apart.
    assert answer["steps"] + answer["slow_steps"] + answer["warm_up_steps"] == 6
