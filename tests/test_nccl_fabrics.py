"""NCCL over sockets and through the host's memory, and the networks that it may have used instead of its own."""

from functools import partial

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog.builtin import load_cluster
from paceline.catalog.causes import all_causes
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.exchanges import Links, all_reduce_s
from paceline.catalog.nccl import constant
from paceline.errors import InvalidArgumentError
from paceline.forecast.nccl import Group, Machine, collective_time
from paceline.forecast.nccl.fabrics import alternatives

simulate = partial(cli.call, "simulate")
GIB = 1 << 30


def over_tcp(rate, threads=0, gpus=8, **fields):
    sockets = {"threads": threads, "per_thread": 1}
    fields |= {"bandwidth": rate, "channel": "tcp", "gpus_per_node": gpus, "gpu": "V100", "latency": "37us"}
    return load_cluster(None, intra_bandwidth="960Gbps", intra_link="nvlink", nccl_sockets=sockets, **fields)


def bus(cluster, group):
    return collective_time("allreduce", GIB, group, cluster).bus_bandwidth


def test_threads_limit_sockets_on_fast_wires_and_the_wire_on_slow_ones():
    alone, whole = Group(2, 1), Group(32, 8)
    assert bus(over_tcp("10Gbps"), whole) == pytest.approx(1.25e9 * constant("socket.share"), rel=0.02)
    assert bus(over_tcp("100Gbps"), whole) == pytest.approx(constant("socket.thread"), rel=0.02)
    both = constant("socket.thread") * constant("socket.both-ways")
    assert bus(over_tcp("100Gbps", gpus=1), alone) == pytest.approx(both, rel=0.02)
    assert bus(over_tcp("100Gbps", threads=2), whole) == pytest.approx(constant("socket.interface"), rel=0.02)
    # An nccl-tests log of two DGX H100 with a rank each has 3.11 GB/s.
    h100 = load_cluster("dgx-h100", gpus_per_node=1).replace(channel="tcp", latency_s=37e-6)
    assert bus(h100, alone) == pytest.approx(3.11e9, rel=0.02)


@given(
    st.integers(0, 15),
    st.sampled_from([1, 2, 8]),
    st.integers(2, 40),
    st.floats(1.0, 400.0),
    st.integers(10, 33),
)
def test_more_threads_and_faster_wires_are_never_slower(threads, gpus, nodes, rate, log):
    group = Group(nodes * gpus, gpus)
    seconds = lambda *given: collective_time("allreduce", 1 << log, group, over_tcp(*given, gpus)).seconds  # noqa: E731
    own = seconds(f"{rate:.3f}Gbps", threads)
    assert seconds(f"{rate:.3f}Gbps", threads + 1) <= own * (1 + 1e-9)
    assert seconds(f"{2 * rate:.3f}Gbps", threads) <= own * (1 + 1e-9)


def test_without_gpudirect_bytes_cross_pci_express_twice():
    whole = Group(32, 8)
    volta = load_cluster("dgx-1-v100", bandwidth="100Gbps", gpudirect=False)
    assert bus(volta, whole) == pytest.approx(6e9, rel=0.02)
    assert bus(volta.replace(gpudirect=True), whole) > 10e9
    # A slow card is fed in any case.
    slow = load_cluster("dgx-1-v100", bandwidth="25Gbps")
    assert bus(slow, whole) == bus(slow.replace(gpudirect=False), whole)
    assert Machine.of(volta).transport == "rdma-through-host" and Machine.of(slow).transport == "rdma"


def test_a_gpu_has_no_more_cards_than_its_slot_feeds():
    # NVIDIA/nccl-tests#232: two H100 on two nodes with four cards of 400 Gbit/s have 50 GB/s.
    cluster = load_cluster("dgx-h100", gpus_per_node=1, nics_per_node=4, bandwidth="1600Gbps")
    assert bus(cluster, Group(2, 1)) == pytest.approx(50e9 * constant("network.share"), rel=0.01)
    assert Machine.of(load_cluster("p5")).network_of(Group(2, 1)) == 50e9


def times(group, cluster):
    """Return the time of an all-reduce of 1 GiB under each alternative, by its name."""
    return {one.name: collective_time("allreduce", GIB, group, one.cluster) for one in alternatives(cluster)}


@pytest.mark.parametrize("name", ["dgx-h100", "p5", "p4d", "h100-rails", "dgx-a100", "p3dn", "dgx-1-v100"])
def test_alternatives_are_no_faster_and_causes_of_the_catalog(name):
    cluster = load_cluster(name)
    group = Group(4 * cluster.gpus_per_node, cluster.gpus_per_node)
    own = collective_time("allreduce", GIB, group, cluster).seconds
    others = times(group, cluster)
    assert others and all(time.seconds >= own * 0.98 for time in others.values())
    assert {*others} <= {*all_causes()}
    assert ("no-plugin" in others) == (cluster.nccl_plugin is not None)
    assert ("gpudirect-off" in others) == ("acs" in others) == (cluster.channel != "tcp")


def test_alternatives_of_one_rank_a_node_explain_a_log_over_sockets():
    cluster = load_cluster("dgx-h100", gpus_per_node=1)
    assert times(Group(2, 1), cluster)["sockets"].bus_bandwidth == pytest.approx(3.11e9, rel=0.02)
    # The only card that a GPU is fed by is no fault.
    assert all(one.cluster != cluster for one in alternatives(cluster))


@given(st.floats(1e9, 1e11))
def test_sockets_carry_what_is_asked_for(bps):
    sockets = next(one for one in alternatives(load_cluster("dgx-h100")) if one.name == "sockets")
    whole = Group(32, 8)
    assert bus(sockets.carrying(bps), whole) == pytest.approx(bps / 8 * constant("socket.share"), rel=0.03)


def test_a_channel_of_the_command_is_ncc_ls():
    arguments = ["allreduce:128MiB", "--cluster", "dgx-1-v100", "--bandwidth", "100Gbps", "--gpus", "32"]
    text = " ".join(cli.output("simulate", *arguments, "--channel", "tcp").split())
    assert "Over TCP sockets NCCL sends 4.00 GB/s of the 12.5 GB/s" in text and "ring, Simple" in text
    assert "hierarchical" in cli.output("simulate", *arguments)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nccl_sockets": {"threads": 17, "per_thread": 1}}, "nccl_sockets.threads"),
        ({"nccl_sockets": {"threads": 2}}, "per_thread"),
        ({"gpudirect": "no"}, "true or false"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(InvalidArgumentError, match=message):
        load_cluster("p5", **fields)


def test_tensor_parallel_gpus_on_two_nodes():
    job = {"gpu": "h100", "seq": 4096, "batch": 8}
    near = paceline.simulate("llama-3-8b", "p5", "native", workers=8, tensor_parallel=8, **job)
    far = paceline.simulate("llama-3-8b", "p5", "native", workers=16, tensor_parallel=16, **job)
    slow = paceline.simulate("llama-3-8b", "p5", "native", workers=16, tensor_parallel=16, channel="tcp", **job)
    assert far.tokens_per_s_per_gpu < near.tokens_per_s_per_gpu
    assert slow.tensor_parallel_s > 2 * far.tensor_parallel_s
    assert any("TP 16 spans 2 nodes" in note for note in far.notes)
    assert not any("spans" in note for note in near.notes)
    # Twice as many: a data-parallel rank is two nodes with all of their cards.
    pair = paceline.simulate("llama-3-8b", "p5", "native", workers=32, tensor_parallel=16, **job)
    assert pair.workers == 2 and pair.bandwidth_bps == 6.4e12
    with pytest.raises(InvalidArgumentError, match="must divide the GPUs of a node, 6, or be a multiple, not 8"):
        paceline.simulate("llama-3-8b", "p5", "native", workers=48, tensor_parallel=8, gpus_per_node=6, **job)


def test_sums_between_nodes_are_nccls():
    cluster = load_cluster("p5")
    links = Links.of(cluster)
    hopper = find_hardware("h100")
    far = all_reduce_s(hopper, 1e8, 16, Links(links.gpus_per_node, links.card, cluster))
    halves = [collective_time(kind, 10**8, Group(16, 8), cluster).seconds for kind in ("reducescatter", "allgather")]
    assert far == pytest.approx(sum(halves))
    assert all_reduce_s(hopper, 1e8, 16, links) == all_reduce_s(hopper, 1e8, 16)


def test_training_without_efa_is_as_slow_as_reported():
    # pytorch/torchtitan#676: 200 tokens/s per GPU on 32 H200, because EFA was not used.
    (lost,) = (one.cluster for one in alternatives(load_cluster("p5en")) if one.name == "no-plugin")
    job = {"gpu": "h200", "seq": 8192, "batch": 8, "tensor_parallel": 8, "sharding": "zero3", "checkpointing": "full"}
    result = paceline.simulate("llama-3-70b", lost, "native", workers=32, kernels="eager", **job)
    assert result.tokens_per_s_per_gpu == pytest.approx(200, rel=0.12)


def test_a_rank_of_several_gpus_has_the_cards_of_all():
    cluster = load_cluster("dgx-h100", gpus_per_node=1, gpus_per_rank=8)
    assert Machine.of(cluster).network_of(Group(2, 1)) == 400e9
    assert Machine.of(cluster.replace(gpus_per_rank=1)).network_of(Group(2, 1)) == 50e9
