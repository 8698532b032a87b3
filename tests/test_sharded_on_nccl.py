"""Sharded training on clusters that name their GPU: collectives take the times of NCCL's model."""

import paceline
import pytest
from paceline._internal import units
from paceline.forecast.lowering import native
from paceline.forecast.nccl import Group, collective_time
from paceline.forecast.scenario import Scenario
from paceline.forecast.wording import bottleneck
from paceline.forecast.wording.sharding import exposed


def simulated(*, workers=64, cluster="dgx-h100", sharding="zero3", strategy="native", **options):
    return paceline.simulate("llama-3-8b@h100", cluster, strategy, workers=workers, sharding=sharding, **options)


def test_groups_across_nodes_are_not_faster_than_those_inside():
    by_group = {group: simulated(workers=24, sharding=f"hsdp:{group}").iteration_s for group in (3, 4, 6, 8, 12)}
    assert max(by_group[4], by_group[8]) < min(by_group[3], by_group[6], by_group[12])


def test_ddp_is_slowed_down_by_kernels_as_sharding_is():
    plain, named = simulated(sharding=None), simulated(sharding="none")
    assert plain.iteration_s == named.iteration_s
    assert plain.sharded == named.sharded and named.sharded.slowed_s > 0
    recorded = [
        paceline.simulate("resnet-50", "dgx-h100", "native", workers=64, sharding=sharding)
        for sharding in (None, "none")
    ]
    assert recorded[0].iteration_s == recorded[1].iteration_s
    assert recorded[0].sharded is None and not recorded[0].notes
    ring = simulated(sharding="zero3", strategy="ring")
    assert ring.sharded.slowed_s > 0 and ring.sharded.straggling_s == 0
    late = simulated(sharding="zero3", stragglers="3:1.5")
    assert late.sharded.straggling_s == pytest.approx(0.5 * late.compute_s, rel=0.2)


@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"stragglers": "3:1.5"}, {"strategy": "ring"}])
@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3", "hsdp"])
def test_exposed_communication_is_all_time_beyond_computation_alone_by_its_causes(sharding, options):
    result = simulated(sharding=sharding, **options)
    alone, own = simulated(sharding=sharding, workers=1, accumulate=options.get("accumulate")), result.sharded
    # The library's calls are no computation: a worker alone, which has none, computes as long.
    assert (result.forward_s, result.backward_s) == pytest.approx((alone.forward_s, alone.backward_s))
    assert own.calls_s > 0 and result.exposed_communication_s == pytest.approx(result.iteration_s - result.compute_s)
    causes = sum(vars(own.exposed).values()) + own.slowed_s + own.straggling_s + own.calls_s
    assert causes == pytest.approx(result.exposed_communication_s)
    scenario = Scenario.of(paceline.load_trace("resnet-50"), paceline.load_cluster(), "native", 64)
    [fact] = exposed(scenario, result)
    assert fact.values[0].startswith(f"{units.duration(result.exposed_communication_s)} of communication")
    assert {"framework overhead", "compute slowed by NCCL kernels"} <= {name for _, name in fact.values[1:]}


ONE_SLOW = [
    {"sharding": name, **more} for name in ("none", "zero1", "zero3", "hsdp") for more in ({}, {"accumulate": 3})
]


@pytest.mark.parametrize("options", [*ONE_SLOW, {"strategy": "ring"}, {"sharding": None, "compression": "powersgd:4"}])
@pytest.mark.parametrize("factor", [1.01, 1.7, 20])
def test_one_slow_gpu_costs_as_much_as_if_all_were_slow(options, factor):
    one = simulated(**options, stragglers=f"3:{factor}")
    every = simulated(**options, compute_speedup=1 / factor)
    # Calls of the library take the host's time.
    assert one.iteration_s == pytest.approx(every.iteration_s, rel=1e-9)
    assert one.sharded.calls_s == pytest.approx(every.sharded.calls_s, rel=1e-6)


def test_no_worker_is_called_slow_because_of_kernels_or_of_calls():
    def recorded(**options):
        return paceline.simulate("resnet-50", "dgx-h100", "native", workers=16, library="ddp", **options)

    assert "slowest GPU" not in bottleneck.path(simulated(sharding="zero3"))
    assert "slowest GPU" in bottleneck.path(simulated(sharding="zero3", stragglers="3:1.5"))
    assert "slowest GPU" not in bottleneck.path(recorded())
    assert "slowest GPU" in bottleneck.path(recorded(stragglers="3:1.5"))


def test_each_collective_of_a_plan_has_the_time_of_nccl():
    scenario = Scenario.of(
        paceline.load_trace("resnet-50"), paceline.load_cluster("dgx-h100"), "native", 64, sharding="hsdp:8"
    )
    plan, result = native(scenario).plan(), native(scenario).collectives()
    assert result is not None
    wanted = {
        (it.exchanged.collective, it.exchanged.group.size, it.exchanged.group.stride)
        for it in plan.steps
        if it.exchanged is not None
    }
    assert {(it.collective, it.size, it.stride) for it in result} == wanted
    for it in result:
        kind = it.collective.replace("-", "")
        layout = {1: Group(8, 8), 8: Group(8, 1, concurrent=8)}[it.stride]
        assert it.seconds == collective_time(kind, it.bytes, layout, "dgx-h100").seconds
        assert 0 < it.busy <= 1
    # Elsewhere the strategy's messages are simulated.
    assert native(scenario.changed(cluster=paceline.load_cluster(None))).collectives() is None
    racks = {"nodes_per_rack": 4, "oversubscription": 2}
    assert native(scenario.changed(cluster=paceline.load_cluster("dgx-h100", racks=racks))).collectives() is None


def test_more_network_is_never_slower_and_one_gpu_communicates_nothing():
    few, many = simulated(bandwidth="100Gbps"), simulated()
    assert many.iteration_s < few.iteration_s
    alone = simulated(workers=1)
    assert alone.exposed_communication_s == pytest.approx(0, abs=1e-9)
    assert many.iteration_s > alone.iteration_s - alone.optimizer_s  # which all share


def test_computation_is_slower_while_a_collective_runs():
    result = simulated()
    hidden = result.sharded.exposed
    assert result.iteration_s > result.compute_s + hidden.all_gather_s + hidden.reduce_scatter_s


def test_a_model_is_on_the_nodes_of_its_gpu_and_a_cluster_brings_its_gpu():
    assumed = paceline.simulate("llama-3-8b@h100", None, "native", workers=16, sharding="zero3")
    assert assumed.iteration_s == simulated(workers=16).iteration_s
    own = paceline.simulate("internlm-7b", "internevo-a100", "native", workers=16, sharding="zero1")
    assert (
        own.iteration_s
        == paceline.simulate(
            "internlm-7b@a100-80gb", "internevo-a100", "native", workers=16, sharding="zero1"
        ).iteration_s
    )
    with pytest.raises(paceline.InvalidArgumentError, match="needs a GPU type"):
        paceline.simulate("internlm-7b", "flat", "native", workers=16)
