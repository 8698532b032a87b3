"""Hand-made slow runs: `paceline doctor` names the cause first, with its figures; healthy runs are reported healthy."""

import random
from types import SimpleNamespace

import pytest
from paceline.async_ps.report import ANSWER, applied_label
from paceline.doctor import causes
from paceline.doctor.analysis import Analysis, Interface
from test_doctor_format import Ranks, ddp, diagnosed, names, training


def seconds(report):
    return {it.name: round(it.seconds * 1000, 6) for it in report.diagnoses}


def tries(report, name):
    return " ".join(next(it for it in report.diagnoses if it.name == name).tries)


def test_a_healthy_run():
    report = diagnosed(training(input=0.1, ready=(4, 9.6), done=(5, 9.9), backward=10))
    assert names(report) == ["compute-bound"]
    assert "exposed communication is 2%: there is little to gain" in report.verdict
    assert "97% of a step is compute" in report.verdict
    assert "paceline simulate" in tries(report, "compute-bound")


def test_one_rank_has_nobody_to_wait_for():
    report = diagnosed(training(size=1, ready=(), done=()))
    assert names(report) == ["compute-bound", "input-pipeline"]
    assert "there is only one rank, which never waits" in report.verdict


def straggling(late_by, size=3, steps=12):
    """`late_by(step, rank)` milliseconds more of forward; gradients are done 1 ms after the last rank has them."""
    ranks = Ranks(size)
    for step in range(steps):
        late = [late_by(step, rank) for rank in range(size)]
        for rank in range(size):
            done = 8 + max(late) - late[rank] + 1
            ddp(ranks, rank, 40 * step, input=1, forward=2 + late[rank], ready=(8,), done=(done,), backward=done + 0.5)
    return ranks


def test_a_slow_rank():
    report = diagnosed(straggling(lambda _, rank: 10 if rank == 1 else 0))
    first = report.diagnoses[0]
    assert first.name == "straggler"
    assert first.seconds == pytest.approx(0.010)
    assert report.verdict == "25% of a step is waiting for rank 1 (10.0 of 40.0 ms)"
    assert "last in 9 of 9 steps" in first.says
    assert "forward takes 12 ms, on other ranks 2 ms" in first.says
    assert dict(first.evidence) == {
        **{"rank": 1, "persistent": True, "share_of_waiting": 1.0, "steps_last": 9, "steps_waited": 9},
        **{"later_s": pytest.approx(0.010), "cause": "forward", "excess_s": pytest.approx(0.010)},
    }


def test_ranks_that_take_turns():
    for size in (2, 3, 8):
        report = diagnosed(straggling(lambda step, rank, n=size: 10 if step % n == rank else 0, size, 3 + 4 * size))
        first = report.diagnoses[0]
        assert first.name == "straggler"
        assert "waiting for whichever rank is last" in report.verdict
        assert (first.evidence["persistent"], first.evidence["rank"]) == (False, None)
        # Of n ranks one does not wait in a step; and what a rank could gain is what it waits.
        assert first.seconds == pytest.approx(0.010 * (size - 1) / size)
        assert first.seconds == pytest.approx(report.analysis.mean.straggler / 1e9)
        assert first.share <= max(parts.exposed for parts in report.analysis.means.values()) / report.analysis.mean.step
        assert f"a rank waits {10 * (size - 1) / size:.3g} ms per step on average" in first.says


def test_a_slow_rank_that_waits_sometimes_costs_what_the_others_wait_for_it():
    """Rank 1 is late by 10 ms in four of five steps, rank 0 in the fifth; 20 typical steps."""
    report = diagnosed(straggling(lambda step, rank: 10 if rank == (step % 5 > 0) else 0, 2, 23))
    first = report.diagnoses[0]
    assert (first.evidence["persistent"], first.evidence["rank"]) == (True, 1)
    assert first.seconds == pytest.approx(0.008)
    assert first.seconds == pytest.approx(report.analysis.means[0].straggler / 1e9)


def test_noise_is_no_single_slow_rank():
    for seed in range(5):
        noise = random.Random(seed)
        report = diagnosed(straggling(lambda *_, noise=noise: noise.expovariate(1 / 3), 4, 60))
        assert report.diagnoses[0].name == "straggler"
        assert not report.diagnoses[0].evidence["persistent"]


def test_slow_input_on_all_ranks():
    report = diagnosed(training(input=20))
    assert names(report)[0] == "input-pipeline"
    assert report.diagnoses[0].seconds == pytest.approx(0.020)
    assert "61% of a step is input (20.0 of 33.0 ms)" in report.verdict
    assert "num_workers" in tries(report, "input-pipeline")


def test_slow_input_on_one_rank():
    ranks = Ranks(2)
    for step in range(8):
        ddp(ranks, 0, 40 * step, input=1, ready=(8,), done=(29,), backward=30)
        ddp(ranks, 1, 40 * step, input=21, ready=(8,), done=(9,), backward=10)
    report = diagnosed(ranks)
    assert names(report)[0] == "straggler"
    assert "input takes 21 ms, on other ranks 1 ms" in report.diagnoses[0].says
    assert "num_workers" in tries(report, "straggler")
    assert seconds(report)["straggler"] == 20


def test_a_slow_network():
    """64 MB in 128 ms, 4 of them hidden; bus bandwidth of two ranks: 2 (n - 1) / n = 1 times bytes over time."""
    report = diagnosed(training(ready=(4, 8), done=(68, 132), backward=133, moved=32_000_000))
    assert names(report)[0] == "network-bound"
    first = report.diagnoses[0]
    assert first.seconds == pytest.approx(0.124)
    assert first.evidence["bytes_per_step"] == 64_000_000
    assert first.evidence["bus_bandwidth_bps"] == pytest.approx(8 * 64_000_000 / 0.128)
    assert first.evidence["hidden_share"] == pytest.approx(4 / 128)
    assert "64 MB per step in 2 operations, bus bandwidth 4 Gbps; backward hides 3% of it" in first.says
    assert "fp16" in tries(report, "network-bound")


def test_what_a_run_already_has_is_not_advised():
    """Gradients of two bytes, a network of 400 Gbit/s, and numbers of ranks that it has."""
    for name, halved in (("all_reduce float32[0]", False), ("all_reduce bfloat16[0]", True)):
        ranks = training(ready=(4, 8), done=(68, 132), backward=133, moved=32_000_000)
        for event in ranks.events:
            if event.get("cat") == "operation":
                event["name"] = name
        advice = tries(diagnosed(ranks), "network-bound")
        assert ("fp16" not in advice) is halved
        assert "--bandwidth 10Gbps,25Gbps,50Gbps" in advice
    fast = training(ready=(4, 8), done=(68, 132), backward=133, moved=2_000_000_000)
    assert "bus bandwidth 250 Gbps" in diagnosed(fast).verdict + diagnosed(fast).diagnoses[0].says
    assert "--bandwidth 400Gbps,800Gbps" in tries(diagnosed(fast), "network-bound")
    healthy = diagnosed(training(input=0.1, ready=(4, 9.6), done=(5, 9.9), backward=10))
    assert "--workers 4,8,16" in tries(healthy, "compute-bound")
    [alone, _] = diagnosed(training(size=1, ready=(), done=())).diagnoses
    assert "--workers 2,4,8" in " ".join(alone.tries)
    assert "default 25" in causes.larger_buckets(Interface.DDP)


def test_blocks_that_are_gathered_once_or_in_half_precision_are_not_told_to_be():
    advice = tries(diagnosed(sharded()), "sharded-communication")
    assert "reshard_after_forward=False" not in advice and "MixedPrecisionPolicy" in advice
    advice = tries(diagnosed(sharded(element="bfloat16", again=True)), "sharded-communication")
    assert "reshard_after_forward=False" in advice and "MixedPrecisionPolicy" not in advice


def sharded(late=0, steps=8, element="float32", *, again=False):
    """Two blocks are gathered, in 3 and 5 ms, and scattered, each in 4 ms. Rank 1 is late to the first.

    `again`: the backward pass gathers them, too.
    """
    ranks = Ranks(2)
    for step in range(steps):
        for rank in range(2):
            at, waiting = 60 * step, late * (rank == 0)
            ranks.mark(rank, "input", at, at + 1)
            at += 1 + late - waiting
            begin = at
            for block, takes in (("layers.0", 3), ("layers.1", 5)):
                name = f"all-gather of {block}"
                end, waiting = at + waiting + takes, 0
                ranks.operation(rank, at, end, 4_000_000, f"{name}: all_gather {element}[1000]", call="all_gather")
                ranks.mark(rank, "wait", at, end, f"wait for {name}")
                at = end + 2
            ranks.mark(rank, "forward", begin, at)
            middle = at
            for block in ("layers.1", "layers.0"):
                name = f"reduce-scatter of {block}"
                if again:
                    gather = f"all-gather of {block}: all_gather {element}[1000]"
                    ranks.operation(rank, at, at + 1, 4_000_000, gather, call="all_gather")
                at += 4
                ranks.operation(
                    rank, at, at + 4, 4_000_000, f"{name}: reduce_scatter float32[1000]", call="reduce_scatter"
                )
                ranks.mark(rank, "wait", at, at + 4, f"wait for {name}")
                at += 4
            ranks.mark(rank, "backward", middle, at)
            ranks.mark(rank, "optimizer", at, at + 2)
    return ranks


def test_collectives_of_blocks_that_nothing_hides():
    report = diagnosed(sharded())
    first = report.diagnoses[0]
    assert first.name == "sharded-communication"
    assert first.seconds == pytest.approx(0.016)
    assert dict(first.evidence) == {
        **{"blocks": 2, "waits_per_step": 4, "all_gather_s": pytest.approx(0.008), "reduce_scatter_s": 0.008},
        **{"block": "layers.1", "collective": "all-gather", "block_s": pytest.approx(0.005)},
    }
    assert "exposed per step, in 2 blocks: all-gather 8 ms, reduce-scatter 8 ms" in first.says
    assert "all-gather of layers.1 5 ms" in first.says
    assert "--sharding zero1,zero3 --workers 2" in tries(report, "sharded-communication")
    mean = report.analysis.mean
    assert (mean.forward, mean.backward, mean.transfer) == (4e6, 8e6, 16e6)
    # They are neither gradients nor operations in the middle of computation.
    assert not {"network-bound", "blocking-operations", "no-overlap", "small-buckets"} & set(names(report))


def test_waiting_for_a_rank_before_a_block_is_gathered_counts_as_straggling():
    report = diagnosed(sharded(late=3))
    result = seconds(report)
    assert result["sharded-communication"] == 16
    assert result["straggler"] == 3
    assert next(it for it in report.diagnoses if it.name == "straggler").evidence["rank"] == 1


_NETWORK = {"ready": (8,), "done": (108,), "backward": 109, "moved": 10_000_000}


def test_the_bus_bandwidth_of_more_ranks():
    report = diagnosed(training(6, 4, **_NETWORK))
    result = next(it for it in report.diagnoses if it.name == "network-bound")
    assert result.evidence["bus_bandwidth_bps"] == pytest.approx(8 * 2 * 3 / 4 * 10_000_000 / 0.100)


def test_a_server_through_which_everything_goes():
    ranks = training(6, 4, **_NETWORK)
    for rank in range(4):
        ranks.message(rank, f"worker {rank}", "server 0", 10_000_000, out=True)
        ranks.message(0, f"worker {rank}", "server 0", 10_000_000, out=False)
    report = diagnosed(ranks)
    result = next(it for it in report.diagnoses if it.name == "network-bound")
    assert (result.evidence["busiest"], result.evidence["busiest_times"]) == ("server 0", 4)
    assert "server 0 moves 4.00x as much as a rank" in result.says
    assert "--strategy ring" in result.tries[0]


def test_many_small_operations():
    """40 operations of 1 kB, 0.2 ms each; the last 30 come after backward."""
    ready = tuple(6 + 0.05 * number for number in range(40))
    done = tuple(6 + 0.2 * (number + 1) for number in range(40))
    report = diagnosed(training(ready=ready, done=done, backward=14.5, moved=1000))
    assert names(report)[0] == "small-buckets"
    first = report.diagnoses[0]
    assert first.evidence["operations_per_step"] == 40
    assert first.evidence["median_bytes"] == 1000
    assert first.evidence["fixed_s"] == pytest.approx(0.0002)
    # From 7.95 on 31 operations end: all but one of them could be saved.
    assert first.seconds == pytest.approx(30 * 0.0002)
    assert "bucket_cap_mb" in tries(report, "small-buckets")


def test_small_operations_beside_large_ones():
    """Twenty of 2 kB and one of 10 MB, 0.3 ms + 1 ns per byte: the line through them gives the fixed part."""
    ranks = Ranks(2)
    for rank in (0, 1):
        for step in range(8):
            at = begin = 40 * step + 13
            ranks.mark(rank, "forward", 40 * step + 1, 40 * step + 3)
            for number, size in enumerate([10_000_000] + [2000] * 20):
                took = 0.3 + size * 1e-6
                ranks.operation(rank, begin, at + took, size, f"all_reduce float32[{number}]")
                at += took
            ranks.mark(rank, "optimizer", 40 * step + 35, 40 * step + 36)
    report = diagnosed(ranks)
    result = next(it for it in report.diagnoses if it.name == "small-buckets")
    assert result.evidence["fixed_s"] == pytest.approx(0.0003, rel=0.01)
    assert result.seconds == pytest.approx(20 * 0.0003, rel=0.02)


def test_one_bucket_after_backward():
    report = diagnosed(training(ready=(20,), done=(30,), backward=31, moved=50_000_000))
    assert names(report)[0] == "no-overlap"
    assert seconds(report)["no-overlap"] == 10
    assert "one operation sends them all, after 100% of backward" in report.diagnoses[0].says
    assert "a tenth of 50 MB" in tries(report, "no-overlap")


def test_what_backward_cannot_hide_is_the_network():
    """20 ms of backward could hide as much of the 100 ms of transfers."""
    report = diagnosed(training(ready=(20,), done=(120,), backward=121, moved=50_000_000))
    assert seconds(report)["network-bound"] == 80
    assert seconds(report)["no-overlap"] == 20
    assert names(report)[:2] == ["network-bound", "no-overlap"]


def test_operations_in_the_midst_of_other_things():
    ranks = training(input=6)
    for rank in (0, 1):
        for step in range(8):
            for number in range(4):
                at = 19 * step + 1 + number
                ranks.operation(rank, at, at + 0.9, 4, "all_reduce float32[]")
    report = diagnosed(ranks)
    assert seconds(report)["blocking-operations"] == pytest.approx(3.6)
    assert seconds(report)["input-pipeline"] == pytest.approx(2.4)
    assert "4 operations per step" in next(it.says for it in report.diagnoses if it.name == "blocking-operations")


def test_a_few_slow_steps():
    ranks = Ranks(2)
    for rank in (0, 1):
        at = 0
        for step in range(24):
            at = ddp(ranks, rank, at, input=500 if step == 12 else 0.1, ready=(4, 9.7), done=(5, 9.9))
    report = diagnosed(ranks)
    assert names(report) == ["compute-bound", "slow-steps"]
    result = report.diagnoses[1]
    assert (result.evidence["steps"], result.evidence["of"], result.evidence["part"]) == (1, 21, "input")
    assert result.share == pytest.approx(499.9 / (20 * 13.1 + 513))
    assert report.to_dict()["step_s"] == pytest.approx(0.0131)
    assert "a few slow steps" in report.verdict


def test_stalls_that_come_often_are_how_the_run_is():
    """Every fourth step waits for data, as with too few workers of a DataLoader."""
    ranks = Ranks(2)
    for rank in (0, 1):
        at = 0
        for step in range(40):
            at = ddp(ranks, rank, at, input=60 if step % 4 == 0 else 0.1)
    report = diagnosed(ranks)
    assert names(report)[0] == "input-pipeline"
    assert report.analysis.count == 37


def test_several_at_once_are_sorted_by_cost():
    ranks = Ranks(2)
    for step in range(8):
        ddp(ranks, 0, 60 * step, input=5, forward=2, ready=(8,), done=(38,), backward=45, moved=10_000_000)
        ddp(ranks, 1, 60 * step, input=5, forward=12, ready=(8,), done=(28,), backward=35, moved=10_000_000)
    report = diagnosed(ranks)
    assert list(seconds(report).items()) == [
        *[("network-bound", 12), ("straggler", 10), ("no-overlap", 8), ("input-pipeline", 5)],
    ]


def test_what_accumulates_already_is_told_to_accumulate_more():
    ranks = Ranks(2)
    for rank in range(2):
        at = 0
        for _ in range(8):
            ranks.mark(rank, "input", at, at + 0.1)
            ranks.mark(rank, "forward", at + 0.1, at + 2)
            ranks.mark(rank, "backward", at + 2, at + 6)
            at = ddp(ranks, rank, at + 6, input=0, ready=(9,), done=(19,), backward=20)
    result = tries(diagnosed(ranks), "network-bound")
    assert "model.no_sync() for all but the last of 4 batches" in result
    once = tries(diagnosed(training(input=0.1, ready=(9,), done=(19,), backward=20)), "network-bound")
    assert "model.no_sync() for the first of two batches" in once


@pytest.mark.parametrize(
    ("metric", "gradients", "interface"), [(8, 10**6, "DDP"), (10**6, 8, "HOROVOD"), (0, 10**6, "DDP")]
)
def test_the_interface_is_that_of_most_bytes(metric, gradients, interface):
    """A metric that Horovod's calls average does not make remedies for DDP's gradients Horovod's."""
    named = [SimpleNamespace(operation=2)] if metric else []
    operations = [SimpleNamespace(number=1, size=gradients), SimpleNamespace(number=2, size=metric)]
    ranks = [SimpleNamespace(tensors=named, operations=operations)]
    recording = SimpleNamespace(ranks=ranks, is_asynchronous=False)
    assert Analysis.interface.fget(SimpleNamespace(recording=recording, has_steps=True)) is Interface[interface]


def asynchronous(servers=1):
    """Two workers of async-ps, of which one is twice as fast, so that steps with one number are not at one time."""
    ranks = Ranks(2, servers=servers, name="a", processes=2 + servers, cores=8)
    for rank in range(2):
        for step in range(12):
            at, length = 10 * (rank + 1) * step, 10 * (rank + 1)
            ranks.mark(rank, "forward", at, at + 2)
            ranks.mark(rank, "backward", at + 2, at + 4)
            for number in range(3):
                size = 1 << 20
                ranks.operation(rank, at + 3, at + 4 + number, size, f"the gradient of '{number}'", call="send/recv")
                if servers:
                    label = applied_label(f"{number}", rank, staleness=(step + number) % 2)
                    ranks.mark(2, "apply", at + 4, at + 4.5, label)
                    ranks.message(rank, f"worker {rank}", "server 0", size, out=True)
                    ranks.message(2, f"worker {rank}", "server 0", size, out=False)
            ranks.operation(rank, at + 4, at + length - 1, 24, ANSWER, call="send/recv")
            ranks.mark(rank, "wait", at + 4, at + length - 1, "wait for sums")
            ranks.mark(rank, "optimizer", at + length - 1, at + length)
    return ranks


def test_asynchronous_training_stays_asynchronous():
    report = diagnosed(asynchronous())
    text = "\n".join(report.text(200))
    assert "waiting for the servers" in report.headline
    assert "Staleness    mean 0.5, largest 1" in text
    assert report.to_dict()["staleness"] == {"mean": 0.5, "most": 1, "counts": {0: 36, 1: 36}}
    assert "more --servers (share the load of server 0)" in text and "backward_passes_per_step=2" in text
    for synchronous in (
        "train together",
        "--strategy",
        "comm_hook",
        "no_sync",
        "DistributedDataParallel",
        "straggler:",
    ):
        assert synchronous not in text


def test_staleness_is_with_the_servers():
    report = diagnosed(asynchronous(servers=0))
    assert any("optimizer.staleness()" in note for note in report.analysis.notes)
    assert report.to_dict()["staleness"] is None
    assert diagnosed(training()).to_dict()["staleness"] is None


@pytest.mark.parametrize("interface", Interface)
def test_every_interface_has_its_remedies(interface):
    analysis = SimpleNamespace(interface=interface, breakdowns={}, recording=None)
    values = [
        *(causes.less_often(analysis), causes.fewer_bytes(analysis)),
        *(causes.larger_buckets(interface), causes.smaller_buckets(interface, "8 MB")),
    ]
    assert all(values)
    assert any("DistributedDataParallel" in one for one in values) == (interface is Interface.DDP)
