"""NCCL's collectives: its choice, the calibrated time, the command, and the check on published bandwidths."""

import json
import math
import pickle
from functools import partial
from itertools import pairwise
from pathlib import Path

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog import nccl
from paceline.catalog.builtin import load_cluster, load_trace
from paceline.catalog.builtin_names import cluster_names
from paceline.catalog.constants import assuming
from paceline.errors import InvalidArgumentError
from paceline.forecast.nccl import Group, Machine, collective_time, estimates
from paceline.forecast.nccl.model import bus_factor
from paceline.forecast.nccl.request import parse
from paceline_lab.studies.published import collectives, run
from paceline_lab.studies.published.data import SHARDED

simulate = partial(cli.call, "simulate")

NODES = ("dgx-a100", "dgx-h100", "dgx-b200", "p4d", "p5", "p5en", "p6-b200", "internevo-a100", "dlperf-v100")
MIB, GIB = 1 << 20, 1 << 30


def machine(name, **fields):
    return Machine.of(load_cluster(name, **fields))


@pytest.mark.parametrize("name", NODES)
def test_presets_say_what_nccl_needs(name):
    actual = machine(name)
    assert actual.gpus_per_node == 8 and not actual.assumed
    assert actual.intra_link == ("nvlink" if name == "dlperf-v100" else "nvswitch")
    assert actual.has_nvls == (actual.generation.name in ("hopper", "blackwell"))


def latency_s(kind, group, on, algorithm, protocol):
    """Without the longer steps that rings have with large buffers."""
    return next(
        it.latency_s for it in estimates(kind, 8, group, on) if (it.algorithm, it.protocol) == (algorithm, protocol)
    )


CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "nccl_cases.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("first", range(6))
def test_no_number_changes(first):
    """Random machines, groups, choices and constants, frozen with the model's first implementation."""
    for row in CASES[first::6]:
        check_numbers(row)


def check_numbers(row):
    case, expected = row["case"], row["result"]
    cluster = paceline.Cluster.from_json(json.dumps(case["cluster"]).encode(), "it")
    group = Group(*case["group"])
    assumed = {nccl.all_constants()[name]: value for name, value in case.get("assumed", {}).items()}
    forced = {name: case[name] for name in ("algorithm", "protocol", "caller") if name in case}
    if isinstance(expected["machine"], str):
        with pytest.raises(InvalidArgumentError) as refused:
            Machine.of(cluster)
        assert str(refused.value) == expected["machine"] and refused.value.setting == "degraded"
    else:
        on = Machine.of(cluster)
        values = {name: getattr(on, name) for name in expected["machine"]}
        assert values | {"generation": on.generation.name} == expected["machine"]
    with assuming(assumed):
        if isinstance(expected["time"], str):
            with pytest.raises(InvalidArgumentError) as refused:
                collective_time(case["kind"], case["size"], group, cluster, **forced)
            assert str(refused.value) == expected["time"]
            return
        time = collective_time(case["kind"], case["size"], group, cluster, **forced)
    values = {name: getattr(time, name) for name in expected["time"] if name != "network"}
    assert values | {"network": time.machine.network} == expected["time"]
    if time.tuning is None:
        assert "tuning" not in expected
        return
    own = time.tuning
    assert [own.algorithm, own.protocol, own.seconds, own.latency_s, own.bandwidth] == expected["tuning"]
    every = estimates(case["kind"], case["size"], group, on)
    assert [[it.algorithm, it.protocol, it.seconds] for it in every] == expected["estimates"]


def test_groups_and_times_are_values():
    group = Group(16, 8, concurrent=1)
    assert pickle.loads(pickle.dumps(group)) == group and len({group, Group(16, 8)}) == 1 and group != Group(16, 4)
    assert repr(group) == "Group(ranks=16, per_node=8, concurrent=1)"
    times = [collective_time("allreduce", MIB, group, "dgx-h100") for _ in range(2)]
    assert times[0] == times[1] and times[0].machine == machine("dgx-h100")
    with pytest.raises(AttributeError):
        group.ranks = 3


def test_latencies_are_those_of_the_table():
    h100 = machine("dgx-h100")
    us = lambda kind, group, *choice: latency_s(kind, group, h100, *choice) * 1e6  # noqa: E731
    assert us("allreduce", Group(8, 8), "ring", "LL") == pytest.approx(6.6 + 14 * 0.6)
    assert us("allgather", Group(8, 8), "ring", "Simple") == pytest.approx(8.4 + 7 * 3.4)
    # 62 steps over 4 nodes, 6 of them between nodes.
    assert us("allreduce", Group(32, 8), "ring", "Simple") == pytest.approx(8.4 + 56 * 3.4 + 6 * 14)
    assert us("allreduce", Group(32, 8), "tree", "LL") == pytest.approx(6.8 + 2 * (7 * 0.6 + 2 * 5.0))
    assert us("allreduce", Group(32, 8), "nvls-tree", "Simple") == pytest.approx(25 + 2 * 2 * 20.9)


def test_the_latency_of_a_network_counts_between_nodes():
    group, choice = Group(32, 8), ("ring", "Simple")
    rdma = latency_s("allreduce", group, machine("dgx-h100"), *choice)
    # NCCL's figures are for InfiniBand, of 2.54 us.
    assert latency_s("allreduce", group, machine("dgx-h100", latency="1us"), *choice) == rdma
    far = latency_s("allreduce", group, machine("dgx-h100", latency="102.54us"), *choice)
    assert far == pytest.approx(rdma + 6 * 100e-6)
    assert latency_s("allreduce", Group(8, 8), machine("dgx-h100", latency="1ms"), *choice) < rdma


def test_nccl_leaves_ll_for_nvls_where_it_was_seen():
    # torch 2.9.1 with NCCL 2.27.7 on 8 H200: "LL ring to 1 MiB, NVLS from 2 MiB".
    h200, group = machine("p5en"), Group(8, 8)
    chosen = [estimates("allreduce", size, group, h200)[0] for size in (32 << 10, MIB, 2 * MIB, GIB)]
    assert [(it.algorithm, it.protocol) for it in chosen] == [("ring", "LL")] * 2 + [("nvls", "Simple")] * 2


def test_older_nodes_have_no_nvls():
    for name in ("dgx-a100", "dlperf-v100"):
        actual = {collective_time("allreduce", 1 << log, Group(8, 8), name).algorithm for log in range(3, 35)}
        assert actual <= {"ring", "tree"}
    with pytest.raises(InvalidArgumentError, match="algorithm: NCCL has no nvls for allreduce over 1 node of dgx-a100"):
        collective_time("allreduce", MIB, Group(8, 8), "dgx-a100", algorithm="nvls")


def test_several_nodes_use_rings_at_the_rate_of_their_nics():
    actual = collective_time("allreduce", 4 * GIB, Group(32, 8), "dgx-h100")
    assert (actual.algorithm, actual.protocol) == ("ring", "Simple")
    share = nccl.constant("network.share")
    assert actual.bus_bandwidth == pytest.approx(share * 400e9, rel=0.03)
    slow = collective_time("allreduce", 4 * GIB, Group(32, 8), "dlperf-v100")
    assert slow.bus_bandwidth == pytest.approx(share * 12.5e9, rel=0.01)


def test_steps_count_where_messages_are_small():
    shares = [collective_time("allgather", 80 * MIB, Group(nodes * 8, 8), "internevo-a100") for nodes in (2, 16, 128)]
    latencies = [it.seconds - it.size * bus_factor("allgather", it.group.ranks) / 44e9 for it in shares]
    hop = 14e-6 * nccl.constant("hop.factor")
    for it, latency in zip(shares, latencies, strict=True):
        nodes = it.group.nodes
        assert latency == pytest.approx(8.4e-6 + (nodes - 1) * hop + 7 * nodes * 3.4e-6, rel=0.03)


def test_trees_take_medium_buffers_of_many_nodes_only():
    few, many = (collective_time("allreduce", 64 * MIB, Group(8 * nodes, 8), "dgx-h100") for nodes in (4, 128))
    assert (few.algorithm, many.algorithm) == ("ring", "tree")
    assert collective_time("allreduce", 64 * GIB, Group(1024, 8), "dgx-h100").algorithm == "ring"


def test_the_smallest_buffers_between_nodes_go_by_ll():
    """NVIDIA/nccl#1453: 4 KB on 16 H100 of two nodes took 75.4 us where NCCL logged 25.9 for a tree with LL."""
    actual = collective_time("allreduce", 4096, Group(16, 8), "dgx-h100", caller="nccl-tests")
    assert (actual.algorithm, actual.protocol) == ("tree", "LL")
    assert actual.tuning.seconds == pytest.approx(25.9e-6, rel=0.05)
    assert actual.seconds == pytest.approx(75.4e-6, rel=0.15)
    for nodes in (2, 8, 64):
        times = [
            collective_time("allreduce", 1 << power, Group(8 * nodes, 8), "dgx-h100").seconds for power in range(3, 35)
        ]
        # A tree's share of its rate depends on the size, and so may fall a little.
        assert all(after > 0.98 * before for before, after in pairwise(times))


def test_groups_use_the_nics_of_their_gpus():
    h100, p4d = machine("dgx-h100"), machine("p4d")
    assert h100.network_of(Group(16, 1)) == pytest.approx(50e9)
    assert h100.network_of(Group(16, 1, concurrent=8)) == pytest.approx(50e9)
    assert h100.network_of(Group(64, 8)) == pytest.approx(400e9)
    # Two GPUs to a card.
    assert p4d.network_of(Group(16, 1)) == pytest.approx(12.5e9)
    assert p4d.network_of(Group(16, 1, concurrent=8)) == pytest.approx(6.25e9)
    rails = machine("h100-rails")
    assert rails.nics == 8 and rails.network_of(Group(16, 1)) == pytest.approx(47e9)
    with pytest.raises(InvalidArgumentError, match="8 groups of 2 ranks on a node of dgx-h100, which has 8 GPUs"):
        collective_time("allreduce", MIB, Group(32, 2, concurrent=8), h100)


def test_a_lost_rail_and_a_slow_one():
    rate = lambda links: machine("dgx-h100", degraded=links).network / 400e9  # noqa: E731
    assert rate([{"link": "worker3", "factor": 0.0}]) == pytest.approx(7 / 8)
    assert rate([{"link": "node1", "factor": 0.5}]) == pytest.approx(0.5)
    with pytest.raises(InvalidArgumentError, match="degraded: node1 has no NIC left"):
        rate([{"link": "node1", "factor": 0.0}])


def test_links_tell_the_gpu_if_the_cluster_does_not():
    fields = json.loads(load_cluster("h100-pod").to_json())
    assert not machine("h100-pod").assumed and fields.pop("gpu") == "H100"
    del fields["intra_link"]
    actual = Machine.of(paceline.Cluster.from_json(json.dumps(fields).encode(), "mine"))
    assert actual.generation.name == "hopper" and actual.has_nvls
    assert any("generation hopper" in note for note in actual.assumed)
    flat = machine(None)
    assert (flat.intra_link, flat.generation.name) == ("pcie", "volta")


@given(
    st.sampled_from(nccl.KINDS),
    st.integers(1, 200),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(3, 33),
    st.sampled_from(NODES),
)
def test_times_are_sane(kind, ranks, per_node, log, name):
    group, cluster = Group(ranks, per_node), machine(name)
    small, large = (collective_time(kind, 1 << it, group, cluster) for it in (log, log + 1))
    assert small.seconds >= 0 and math.isfinite(large.seconds)
    if ranks == 1:
        assert small.algorithm == "none"
        return
    # Twice the bytes never take more than twice the time; at most NCCL's switch of algorithms makes them cheaper.
    assert 0.7 * small.seconds < large.seconds < 2.6 * small.seconds
    least = (1 << log) * min(1.0, bus_factor(kind, ranks)) / 2 / cluster.link
    assert small.seconds > least / 2
    called = collective_time(kind, 1 << log, group, cluster, caller="nccl-tests").seconds
    assert called == pytest.approx(small.seconds + nccl.constant("call.nccl-tests"))


def test_an_automatic_channel_is_the_usual_one_of_the_rate(tmp_path):
    path = tmp_path / "mine.json"

    def seconds(rate, *options):
        fields = {"name": "mine", "gpu": "A100", "gpus_per_node": 8, "bandwidth": rate, "channel": "auto"}
        path.write_text(json.dumps({"format": "paceline-cluster", "version": 1, **fields}))
        [row] = cli.answer("simulate", "allreduce:64MiB", "--cluster", path, "--gpus", 16, *options)
        return row["time_s"]

    for rate, usual, other in (("25Gbps", "tcp", "rdma"), ("100Gbps", "rdma", "tcp")):
        assert seconds(rate) == seconds(rate, "--channel", usual) != seconds(rate, "--channel", other)


def test_wrong_values_are_refused():
    with pytest.raises(InvalidArgumentError, match="try: allreduce"):
        collective_time("allreduc", MIB, Group(8, 8), "dgx-h100")
    with pytest.raises(InvalidArgumentError, match="ranks: must be a whole number of at least 1, not 0"):
        Group(0, 8)
    for wrong in (True, 2.0, "8", None, -(10**30)):
        with pytest.raises(InvalidArgumentError, match="per_node: must be a whole number of at least 1"):
            Group(8, wrong)
    with pytest.raises(InvalidArgumentError, match=r"ranks: must be at most 1073741824, not 10+"):
        Group(10**30, 8)
    with pytest.raises(InvalidArgumentError, match="size: -1 is not a whole number of bytes"):
        collective_time("allreduce", -1, Group(8, 8), "dgx-h100")
    with pytest.raises(InvalidArgumentError, match="NCCL has no nvls-tree with LL for allreduce over 2 nodes"):
        collective_time("allreduce", 8, Group(16, 8), "dgx-h100", algorithm="nvls-tree", protocol="LL")


def test_slowdown_beside_a_collective_is_named():
    assert nccl.overlap_slowdown() == nccl.all_constants()["overlap.slowdown"].value
    assert all(it.source and it.uncertainty for it in nccl.all_constants().values())


def test_the_command_prints_nccl_tests_columns():
    result = cli.output("simulate", "allreduce:1GB", "--cluster", "dgx-b200", "--gpus", "8")
    assert (
        result.startswith("NCCL all-reduce of 1 GB, 8 GPUs of dgx-b200: ") and "  Algorithm    nvls, Simple; " in result
    )
    assert "Validated on one node" in result and "size B" not in result
    several = cli.output("simulate", "allreduce:1MB-1GB", "--cluster", "dgx-h100", "--gpus", "16")
    assert several.startswith("NCCL all-reduce, 16 GPUs of dgx-h100: up to 446 GB/s busbw (1 GB in 4.21 ms)\n")
    assert "size B  time us  algbw GB/s  busbw GB/s  algo       proto" in several and "\n1,000,000,000 " in several
    pick = "NCCL would pick otherwise in 5 rows (16 MB: nvls-tree with Simple, 132 us)"
    assert pick in " ".join(several.split())
    rows = json.loads(simulate("allgather:8B-1MiB", "--cluster", "p5", "--gpus", "8,16", "--json").output)
    assert [row["bytes"] for row in rows[:18]] == [8 << place for place in range(18)]
    assert (
        {row["workers"] for row in rows} == {8, 16}
        and rows[0]["schema_version"] == 1
        and rows[0]["collective"] == "allgather"
    )
    last = rows[-1]
    assert last["bus_bandwidth_bps"] == pytest.approx(8 * last["bytes"] / last["time_s"] * 15 / 16)
    text = simulate("broadcast:1MB,reduce:1MB", "--cluster", "dgx-a100", "--gpus", "8", "--csv").output
    assert text.startswith("collective,bytes,workers,nodes,cluster,") and len(text.splitlines()) == 3


def test_with_a_strategy_an_all_reduce_is_simulated():
    result = simulate("allreduce:100MB", "--cluster", "dgx-h100", "--gpus", "16", "--strategy", "ring", "--json")
    (row,) = json.loads(result.output)
    assert row["strategy"] == "ring"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["allgather:1GB"], "--cluster dgx-h100 (list: paceline list clusters)"),
        (
            ["allreduce:1GB", "--gpu", "a100", "--gpus", "64"],
            "--gpu: needs a model, and allreduce:1GB is a collective try: --cluster dgx-a100, and drop --gpu",
        ),
        (["allreduce:1GB", "--gpu", "a100", "--gpus", "64"], "--cluster dgx-a100"),
        (["all-gather:1GB", "--cluster", "p5"], "try: allgather:1GB (NCCL's, with --cluster dgx-h100)"),
        (
            ["alltoall:1GB", "--cluster", "p5"],
            "allreduce:1GB, allgather:1GB, reducescatter:1GB",
        ),
        (["allreduce:1GiB,2GiB", "--cluster", "p5"], "a collective has one size or a range try: allreduce:1GiB-2GiB"),
        (["allgather:1X", "--cluster", "p5"], "allgather:1X: '1X'"),
        (["allgather:1GB-8B", "--cluster", "p5"], "the range ends below its start"),
        (["allgather:1GB/4", "--cluster", "p5"], "try: allgather:1GB"),
        (["allgather:1GB", "--cluster", "p5", "--strategy", "ring"], "--strategy: has no effect on allgather:1GB"),
        (
            ["allgather:1GB", "--cluster", "p5", "--gpus", "16", "--degrade", "node2:0.5"],
            "there is no node2 with 16 GPUs try: --degrade node0:0.5 (node0 to node1)",
        ),
        (["allgather:1GB", "--cluster", "p5", "--gpus", "8", "--degrade", "node0:0.5"], "which use no NIC"),
        (["allgather:1GB", "--cluster", "p5", "--gpus", "16", "--degrade", "foo3:0"], "--degrade: NCCL's model knows"),
        (
            ["resnet-50", "--cluster", "p5", "--gpus", "16", "--degrade", "worker3:0"],
            "strategies have on rails only",
        ),
        (["allgather:1GB", "--cluster", "p5", "--explain"], "--strategy ring, or drop --explain"),
        (["allgather:1GB", "resnet-50", "--cluster", "p5"], "'resnet-50' is not a collective"),
        (
            ["allgather:1GB", "--cluster", "p5", "--plot", "x.html"],
            "unknown kind of file try: --plot x.svg (one of .png, .svg or .pdf)",
        ),
    ],
)
def test_wrong_requests_are_refused(arguments, message):
    result = simulate(*arguments)
    assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output


def test_a_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "busbw.png"
    cli.printed("simulate", "allreduce:8B-16GB", "--cluster", "dgx-b200", "--gpus", "8,32", "--plot", str(path))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_collectives_are_no_traces():
    with pytest.raises(InvalidArgumentError, match="only all-reduces are simulated as traces"):
        load_trace("allgather:1GB")
    assert parse("reducescatter:1MiB-5MiB").sizes == (MIB, 2 * MIB, 4 * MIB, 5 * MIB)
    assert {"p4d.24xlarge", "dgx-b200"} <= set(cluster_names())


def test_published_bandwidths():
    answer = run(data=collectives.BUILT_IN).to_dict()
    assert len(answer["rows"]) == 101 and not answer["skipped"]
    assert answer["summary"]["several nodes"]["mean"] < 0.07
    assert answer["without_source"]["several nodes"]["mean"] < 0.15
    assert answer["summary"]["one node"]["mean"] < 0.05
    assert answer["without_source"]["one node"]["mean"] < 0.13
    # What the command says of it.
    known = nccl.checked()
    assert known.rows == answer["summary"]["one node"]["rows"]
    assert known.mean == pytest.approx(answer["summary"]["one node"]["mean"], abs=0.001)
    assert known.without_source == pytest.approx(answer["without_source"]["one node"]["mean"], abs=0.005)
    # Through the host's memory, half of the rows are within 10%; others were measured on networks with faults.
    errors = sorted(abs(row["error"]) for row in answer["rows"] if row["id"].startswith(("TCP-", "HOST-")))
    assert len(errors) == 12 and errors[5] < 0.1 and errors[8] < 0.6
    large = [row for row in answer["rows"] if row["bytes"] >= GIB and row["gpus"] == 8 and row["nodes"] == 1]
    assert max(abs(row["error"]) for row in large) < 0.11


@pytest.mark.parametrize(
    ("inter", "gpu", "system", "latency"),
    [
        ("8 x 400 Gbit/s EFA v4 per node", "B200", "nccl-tests, AWS p6-b200", "18us"),
        ("16 x 200 Gbit/s EFA", "H200", "nccl-tests on p5en", "18us"),
        ("32 x 100 Gbit/s EFA", "H100", "nccl-tests", "20us"),
        ("8 x 400 Gbit/s", "H100", "nccl-tests", "0us"),
    ],
)
def test_rows_over_efa_have_its_latency(tmp_path, inter, gpu, system, latency):
    row = f'A,s,"{system}",all-reduce,,,,1MiB,,{gpu},32,8,x,{inter},time,300,us,'
    (tmp_path / "rows.csv").write_text(f"{','.join(SHARDED)}\n{row}\n")
    (actual,) = collectives.read(tmp_path / "rows.csv")
    links = machine("dgx-h100", latency=latency)
    assert collectives.machine_of(actual).hop_s == pytest.approx(links.hop_s)


def test_two_nodes_use_nvls_trees_and_more_use_rings_for_large_buffers():
    two, four = (collective_time("allreduce", GIB, Group(8 * nodes, 8), "dgx-h100") for nodes in (2, 4))
    assert (two.algorithm, four.algorithm) == ("nvls-tree", "ring")
    assert two.seconds < four.seconds


@given(st.sampled_from(["p5", "p6-b200", "dgx-h100"]), st.integers(2, 64), st.integers(3, 34))
def test_more_bytes_and_farther_nodes_are_never_faster(name, nodes, log):
    group = Group(8 * nodes, 8)
    time = collective_time("allreduce", 1 << log, group, name).seconds
    assert time <= collective_time("allreduce", 2 << log, group, name).seconds
    assert time <= collective_time("allreduce", 1 << log, group, load_cluster(name, latency="100us")).seconds


def test_the_constants_are_those_that_fit_best():
    for name, value in collectives.fit().items():
        constant = nccl.all_constants()[name]
        assert value == pytest.approx(constant.value, rel=max(0.03, constant.uncertainty / 4)), name


def test_published_rows_that_are_no_collectives_say_so(tmp_path):
    head = ",".join(SHARDED)
    rows = [
        "A,s,torch,FSDP,gpt,1,2048,1M,bf16,H100,64,8,n/s,n/s,throughput per GPU,1000,tokens/s/GPU,",
        "B,s,nccl-tests,all-reduce,,,,16GiB,,H200,32,8,x,n/s,bus bandwidth,365,GB/s,",
        'C,s,nccl-tests,"all-reduce, NVLSTree",,,,4GiB,,H200,32,8,x,8 x 400 Gbit/s,bus bandwidth,310,GB/s,',
        "D,s,nccl-tests,all-reduce,,,,huge,,H200,8,8,x,,bus bandwidth,480,GB/s,",
    ]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    answer = run(data=path).to_dict()
    assert [row["id"] for row in answer["rows"]] == ["C"]
    assert answer["rows"][0]["algorithm"] == "nvls-tree" and abs(answer["rows"][0]["error"]) < 0.05
    reasons = {row["id"]: row["reason"] for row in answer["skipped"]}
    assert reasons["A"].startswith("unknown model") and "inter_bw 'n/s'" in reasons["B"] and "no size" in reasons["D"]
    path.write_text(f"{head}\n{rows[0].replace(',1000,', ',many,')}\n")
    with pytest.raises(InvalidArgumentError, match=r"line 2, value: must be 1e-09-1e\+18, not 'many'"):
        run(data=path)


@pytest.mark.parametrize(("option", "value"), [("--no-barrier", ()), ("--network", ("fluid",))])
def test_options_that_collectives_with_known_times_do_not_have(option, value):
    words = ("gpt2-small@a100", "--gpus", "16", option, *value, "--strategy")
    refused = simulate(*words, "native")
    assert refused.exit_code == 2
    assert f"{option}: has no effect on native, timed by NCCL's model" in " ".join(refused.output.split())
    assert simulate(*words, "native,ring").exit_code == 0
    assert simulate(*words, "native", "--library", "horovod").exit_code == 0


def test_measured_and_bare_exchanges_are_told_apart():
    def notes(*words):
        actual = cli.call("simulate", *words, "--gpus", "16", "--strategy", "native,ring", "--json")
        return [note for note in json.loads(actual.stdout)[0]["notes"] if "messages alone" in note]

    assert len(notes("allreduce:8B", "--cluster", "dgx-h100")) == 1
    assert not notes("allreduce:8B", "--cluster", "25g-ethernet") + notes("gpt2-small", "--cluster", "dgx-h100")


CARDS = {"intra_bandwidth": "192Gbps", "intra_link": "pcie", "gpus_per_node": 8, "bandwidth": "25Gbps", "gpu": "A40"}


def bus_of_cards(ranks, kind="allreduce", **fields):
    """Bus bandwidth of 4 GiB on PCI Express cards, as a share of a slot of 24 GB/s."""
    on = load_cluster(None, **CARDS | fields)
    return collective_time(kind, 4 * GIB, Group(ranks, min(ranks, 8)), on).bus_bandwidth / 24e9


@pytest.mark.parametrize("kind", ["allreduce", "allgather", "reducescatter"])
def test_rings_of_cards_take_the_way_that_the_slots_have(kind):
    share = {name: nccl.constant(name) for name in ("pci.share", "pci.host.share", "pci.sockets")}
    near = partial(pytest.approx, rel=0.01)
    assert bus_of_cards(8, kind) == near(share["pci.share"])
    # Without peer access, through the host's memory; over two sockets, across the bus between them.
    assert bus_of_cards(8, kind, peer_access=False) == near(share["pci.host.share"])
    assert bus_of_cards(8, kind, sockets=2) == near(share["pci.share"] * share["pci.sockets"])
    both = {"peer_access": False, "sockets": 2}
    assert bus_of_cards(8, kind, **both) == near(share["pci.host.share"] * share["pci.sockets"])
    # Four of eight cards share a socket.
    assert bus_of_cards(4, kind, **both) == bus_of_cards(4, kind, peer_access=False)
    assert bus_of_cards(8, kind, sockets=4) == bus_of_cards(8, kind, sockets=2)
    # Half the lanes, half the rate.
    assert bus_of_cards(8, kind, intra_bandwidth="96Gbps") == near(share["pci.share"] / 2)


def test_fields_of_cards_are_of_pci_express():
    for fields in ({"peer_access": False}, {"sockets": 2}):
        with pytest.raises(InvalidArgumentError, match="is of PCI Express"):
            load_cluster("dgx-h100", **fields)
    with pytest.raises(InvalidArgumentError, match="sockets"):
        load_cluster(None, **CARDS, sockets=9)


def test_rccl_has_the_published_bandwidth_of_mi300x():
    """RCCL's all-reduces on Azure's ND MI300X v5 (AI-benchmarking-guide, Azure_Results/ND_MI300X_v5_results.md)."""
    published = {64 * MIB: 266.34, 256 * MIB: 302.80, GIB: 313.92, 8 * GIB: 316.82}
    on = machine("nd-mi300x-v5")
    assert (on.generation.name, on.intra_link, on.has_nvls, on.assumed) == ("cdna", "xgmi", False, [])
    for size, gigabytes in published.items():
        assert collective_time("allreduce", size, Group(8, 8), on).bus_bandwidth / 1e9 == pytest.approx(
            gigabytes, rel=0.08
        )
