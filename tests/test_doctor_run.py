"""`paceline doctor` as a command, and on a run of real processes."""

import json
import os
import sys
from functools import partial

import cli
import pytest
from test_doctor_format import Ranks, ddp, training

pytestmark = pytest.mark.timed

doctor = partial(cli.printed, "doctor")

SCRIPT = """
import sys, time
import torch, torch.distributed as dist
import paceline.torch
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("paceline")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256)

    def forward(self, x):
        if dist.get_rank() == 1:
            time.sleep(0.08)
        return self.inner(x)

model = nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10):
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def timeline_of(script, folder):
    """Run a script on two ranks; return the timeline."""
    pytest.importorskip("torch")
    file, path = folder / "train.py", folder / "run.json"
    file.write_text(script)
    cli.launched("-np", 2, "--timeline", path, "--", sys.executable, file, check=True, timeout=120)
    return path


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="paceline run needs process groups")
def test_a_real_run_with_a_slow_rank(tmp_path):
    path = timeline_of(SCRIPT, tmp_path)
    answer = json.loads(doctor(path, "--json"))
    assert (answer["world_size"], answer["steps"] + answer["slow_steps"], answer["warm_up_steps"]) == (2, 8, 2)
    first = answer["diagnoses"][0]
    assert first["name"] == "straggler"
    assert (first["evidence"]["rank"], first["evidence"]["cause"]) == (1, "forward")
    assert first["seconds"] > 0.05
    assert answer["ranks"][0]["straggler_s"] > 0.03 + answer["ranks"][1]["straggler_s"]
    assert "waiting for rank 1" in doctor(path)


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2, reason="needs two cores")
@pytest.mark.parametrize(("core", "is_crowded"), [("int(os.environ['RANK'])", False), ("0", True)])
def test_ranks_with_a_core_each_do_not_take_turns(core, is_crowded, tmp_path):
    bound = f"import os; os.sched_setaffinity(0, {{sorted(os.sched_getaffinity(0))[{core}]}})\n"
    path = timeline_of(bound + SCRIPT.replace("time.sleep(0.08)", "pass"), tmp_path)
    assert any("share 1 core" in note for note in json.loads(doctor(path, "--json"))["notes"]) == is_crowded


SHARDED = """
import torch, torch.distributed as dist
import paceline.torch
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("paceline")
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(3)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(10):
    model(torch.randn(8, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="paceline run needs process groups")
def test_a_real_run_of_fsdp_names_its_blocks(tmp_path):
    path = timeline_of(SHARDED, tmp_path)
    answer = json.loads(doctor(path, "--json"))
    own = next(it for it in answer["diagnoses"] if it["name"] == "sharded-communication")
    assert own["evidence"]["blocks"] == 3
    # Two gathers and a scatter of each block; the last one is kept between the passes.
    assert own["evidence"]["waits_per_step"] == pytest.approx(3 * 3, abs=1)
    assert own["evidence"]["block"] in ("0", "1", "2")
    assert own["evidence"]["all_gather_s"] > 0 and own["evidence"]["reduce_scatter_s"] > 0
    assert "blocking-operations" not in {it["name"] for it in answer["diagnoses"]}


def test_the_json(tmp_path):
    path = training(8).write(tmp_path / "run.json")
    text = doctor(path, "--json")
    answer = json.loads(text)
    assert list(answer) == [
        *["verdict", "world_size", "steps", "warm_up_steps", "slow_steps", "step_s", "step_quartiles_s"],
        *["lis_window_share", "staleness", "ranks", "diagnoses", "notes"],
    ]
    assert all(
        list(it) == ["name", "share", "seconds", "says", "evidence", "check", "try"] for it in answer["diagnoses"]
    )
    assert answer["ranks"][0]["medians_s"]["forward"] == pytest.approx(0.002)
    assert answer["ranks"][0]["quartiles_s"]["forward"] == pytest.approx([0.002, 0.002])
    assert doctor(path, "--json") == text


EXPECTED = """\
37% of a step is moving gradients (22.0 of 60.0 ms)

  Run          2 ranks, 6 steps, without 2 warm-up
               median 60 ms, IQR 60.0-60.0 ms
  Exposed      58% of the time is exposed communication

mean ms   step  input    fwd    bwd   opt  exposed =  straggler +  negot. +  transfer
-------------------------------------------------------------------------------------
rank 0   60.00   1.00   2.00  16.00  1.00      40.00        10.00      0.00     30.00
rank 1   60.00   1.00  12.00  16.00  1.00      30.00         0.00      0.00     30.00

1. Network-bound: 22 ms per step (37%)
   10 MB per step in 1 operation, bus bandwidth 2.67 Gbps
   backward hides 0% of it
   try: model.register_comm_hook(None, fp16_compress_hook) (half the bytes)
   try: model.no_sync() for the first of two batches (half as often)
   try: no --transport within a host (ranks share memory); between hosts more
        --streams, the fastest --interface
   try: no --strategy (Paceline then picks one for each message size)
   try: paceline run -np 1 --record mine.json -- python SCRIPT && paceline
        simulate mine.json --workers 2 --bandwidth 10Gbps,25Gbps,50Gbps

2. Straggler: rank 1, 10 ms per step (17%)
   last in 6 of 6 steps in which ranks wait
   forward takes 12 ms, on other ranks 2 ms
   try: rank 1's machine: top, OMP_NUM_THREADS, CPU clock
   try: rank 1's work: batch, sequence length

3. No overlap: 8 ms per step (13%)
   backward hides 0% of the time of sending gradients
   one operation sends them all, after 100% of backward
   try: DistributedDataParallel(…, bucket_cap_mb=…) of a tenth of 10 MB (sends
        gradients earlier)
"""


def test_the_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    ranks = Ranks(2)
    for step in range(8):
        ddp(ranks, 0, 60 * step, input=1, forward=2, ready=(8,), done=(48,), backward=56, moved=10_000_000)
        ddp(ranks, 1, 60 * step, input=1, forward=12, ready=(8,), done=(38,), backward=46, moved=10_000_000)
    ranks.write(tmp_path / "run.json")
    assert doctor("run.json") == EXPECTED


def test_many_ranks_are_not_all_shown(tmp_path):
    report = doctor(training(4, 40).write(tmp_path / "run.json"))
    assert "… 24 ranks nearer to the median: --json" in report
