"""Several jobs on one network: the file, the placement, the result, and the command."""

import json
import re
from dataclasses import replace
from pathlib import Path

import cli
import paceline
import pytest
from paceline.errors import InvalidArgumentError
from paceline.forecast.jobs import model, spec, table
from paceline.forecast.kinds import Resource
from paceline.forecast.wording import labels, terms

EXAMPLE = Path(__file__).parent.parent / "examples" / "three-jobs.toml"
RACKS = {"racks": {"nodes_per_rack": 4, "oversubscription": 4.0}}


def job(name, **fields):
    return {"name": name, "trace": "allreduce:4MB/2", "workers": 4, **fields}


def mix(*jobs, **top):
    return spec.mix({"nodes": 8, "iterations": 3, **top, "job": list(jobs)}, "jobs.toml")


def nodes(result):
    return {one.name: one.nodes for one in result.jobs}


def test_jobs_are_packed_spread_or_placed():
    result = mix(job("b"), job("a", nodes="spread", workers=2), job("c", nodes=[7, 2], workers=2), **RACKS)
    assert nodes(result) == {"c": (2, 7), "a": (0, 4), "b": (1, 3, 5, 6)}
    servers = mix(job("ps", strategy="ps", servers=2, workers=2), job("ring", workers=2))
    assert [(one.nodes, one.server_nodes) for one in servers.jobs] == [((0, 1), (2, 3)), ((4, 5), ())]
    # As many nodes as the jobs need, in whole racks.
    assert spec.mix({**RACKS, "job": [job("a"), job("b", workers=1)]}, "jobs.toml").nodes == 8


@pytest.mark.parametrize(
    ("fabric", "switches"),
    [
        ({"cluster": "fat-tree-k16"}, (0, 8, 16, 24)),
        ({"fabric": {"kind": "fat-tree", "radix": 4}}, (0, 2, 4, 6)),
        ({"nodes": 8, "fabric": {"kind": "leaf-spine", "nodes_per_leaf": 2, "spines": 2}}, (0, 2, 4, 6)),
        ({"cluster": "slingshot-dragonfly"}, None),
        (RACKS | {"nodes": 16}, (0, 4, 8, 12)),
    ],
)
def test_jobs_are_spread_over_the_switches_of_a_fabric(fabric, switches):
    result = spec.mix({**fabric, "job": [job("a", nodes="spread"), job("b", nodes="packed")]}, "jobs.toml")
    per_switch = result.cluster.nodes_per_switch
    own, packed = nodes(result)["a"], nodes(result)["b"]
    assert own == (switches or own)
    assert len({node // per_switch for node in own}) == 4
    assert len({node // per_switch for node in packed}) < 4 or per_switch == 2


def test_a_spread_job_meets_others_where_packed_ones_do_not():
    def worst(placed):
        jobs = [job(name, nodes=placed, workers=16, trace="allreduce:64MB") for name in "ab"]
        result = model.simulate_jobs(spec.mix({"cluster": "fat-tree-k16", "iterations": 2, "job": jobs}, "jobs.toml"))
        return max(one.slowdown for one in result.jobs)

    assert worst("packed") == 1.0 and worst("spread") > 1.5


def test_a_job_without_a_strategy_has_that_of_its_library():
    wanted = {"resnet-50": ("native", "ddp"), "allreduce:4MB/2": ("ring", "none"), "gpt2-small@a100": ("native", "ddp")}
    for trace, (strategy, library) in wanted.items():
        result = mix(job("a", trace=trace))
        assert result.jobs[0].scenario.strategy.name == result.jobs[0].by_itself.strategy.name == strategy
        assert result.jobs[0].by_itself.library.name == library
        assert any(note.startswith(f"Assumed {strategy} for a") for note in result.notes)
        assert paceline.simulate(trace, workers=4).strategy == strategy
    assert mix(job("a", library="horovod-ddl", trace="resnet-50")).jobs[0].scenario.strategy.name == "hierarchical"
    assert not any("Assumed" in note for note in mix(job("a", strategy="tree")).notes)


ON_GPUS = {"cluster": "fat-tree-k16", "gpus_per_node": 8, "nodes": 2}


def test_jobs_on_a_named_gpu_have_its_links():
    one = job("a", trace="gpt2-xl@h100", workers=8)
    open_ = spec.mix({**ON_GPUS, "iterations": 2, "job": [one]}, "jobs.toml")
    assert "Assumed NVLink of 2.96 Tbps inside nodes, as the H100 SXM5 80 GB has in dgx-h100" in open_.notes[0]
    alone = paceline.simulate("gpt2-xl@h100", "fat-tree-k16", workers=8, gpus_per_node=8).iteration_s
    [answer] = model.simulate_jobs(open_).jobs
    assert answer.iteration_s == pytest.approx(alone, rel=1e-6)
    assert answer.bottleneck is Resource.COMPUTE and answer.compute_s < answer.iteration_s
    slow = spec.mix({**ON_GPUS, "intra_bandwidth": "100Gbps", "iterations": 2, "job": [one]}, "jobs.toml")
    assert not any("inside nodes" in note for note in slow.notes)
    result = model.simulate_jobs(slow)
    assert result.jobs[0].bottleneck is Resource.INSIDE
    changes = {labels.measure(it.measure): it.mean_speedup for it in result.what_if}
    assert changes["twice the bandwidth inside nodes"] > 1.3 and changes["twice the bandwidth"] == 1.0
    # On one node there is no switch that could do more.
    assert not any("switch" in change for change in changes)
    two = [one, job("b", trace="gpt2-xl@a100-80gb-pcie", workers=8)]
    with pytest.raises(
        InvalidArgumentError,
        match=r"jobs\.toml: intra_bandwidth: jobs are on H100 SXM5 80 GB and A100 PCIe 80 GB, whose nodes differ",
    ):
        spec.mix({**ON_GPUS, "job": two}, "jobs.toml")


PLACES = {"a": [0, 1, 4, 5], "b": [2, 3, 6, 7]}


def test_what_bounds_a_job():
    jobs = [job("net", trace="vgg-16"), job("sums", trace="resnet-50", bucket_size="25MB")]
    result = model.simulate_jobs(mix(*jobs, bandwidth="1Gbps"))
    assert {one.name: one.bottleneck for one in result.jobs} == dict.fromkeys(("net", "sums"), Resource.NICS)
    fast = model.simulate_jobs(mix(*jobs, bandwidth="400Gbps"))
    assert {one.bottleneck for one in fast.jobs} == {Resource.COMPUTE}
    for one in table.to_dict(result)["jobs"]:
        trace = paceline.load_trace(one["trace"])
        assert one["compute_s"] == pytest.approx(trace.forward_s + trace.backward_s + trace.optimizer_s)
    # Alone computation bounds it, beside others the links that they share.
    shared = mix(*(job(name, trace="resnet-50", nodes=at) for name, at in PLACES.items()), bandwidth="14Gbps", **RACKS)
    assert {one.bottleneck for one in model.simulate_jobs(shared).jobs} == {Resource.NICS}


def test_the_command_may_say_what_the_cluster_has(tmp_path):
    file = tmp_path / "jobs.toml"
    file.write_text('bandwidth = "1Gbps"\niterations = 2\n[[job]]\ntrace = "allreduce:4MB/2"\nworkers = 4\n')

    def run(*words):
        return cli.call("simulate", "--jobs", file, *words)

    as_is, faster = (json.loads(run("--json", *words).stdout) for words in ((), ("--bandwidth", "400Gbps")))
    assert faster["cluster"]["bandwidth"] == "400Gbps"
    assert faster["jobs"][0]["iteration_s"] < as_is["jobs"][0]["iteration_s"] / 100
    written = spec.mix({"bandwidth": "400Gbps", "iterations": 2, "job": [job("a", workers=4)]}, "jobs.toml")
    assert faster["jobs"][0]["iteration_s"] == model.simulate_jobs(written).jobs[0].iteration_s
    for words in (
        ("--gpus-per-node", "2"),
        ("--cluster", "10g-ethernet"),
        ("--network", "fluid"),
        ("--iterations", "3"),
    ):
        assert run(*words).exit_code == 0
    assert "--strategy has no effect with --jobs" in run("--strategy", "ring").output
    for value, reason in (("fast", "is not a rate"), ("1Gbps,2Gbps", "is a list, and one value is expected")):
        refused = run("--bandwidth", value)
        assert refused.exit_code == 2 and f"--bandwidth: '{value}' {reason}" in refused.output


def test_the_order_in_the_file_makes_no_difference():
    jobs = [job("a", nodes="spread"), job("b", strategy="sharp"), job("c", workers=2, start="1ms")]
    top = {"nodes": 12, **RACKS}
    one, other = (json.dumps(table.to_dict(model.simulate_jobs(mix(*order, **top)))) for order in (jobs, jobs[::-1]))
    assert one == other


def test_jobs_apart_are_as_fast_as_alone_and_jobs_together_are_not():
    apart = model.simulate_jobs(mix(job("a", nodes=[0, 1, 2, 3]), job("b", nodes=[4, 5, 6, 7]), **RACKS))
    assert [one.slowdown for one in apart.jobs] == [1.0, 1.0]
    assert all(len(link.jobs) == 1 for link in apart.links)
    across = mix(job("a", nodes=[0, 1, 4, 5]), job("b", nodes=[2, 3, 6, 7]), network="fluid", **RACKS)
    together = model.simulate_jobs(across)
    assert together.jobs[0].slowdown == pytest.approx(2, rel=0.01)
    assert together.pairs[0][1] == together.jobs[0].slowdown
    wider = next(one for one in together.what_if if labels.measure(one.measure) == "twice the bandwidth")
    assert wider.mean_speedup == pytest.approx(2, rel=0.01)
    aggregated = next(one for one in together.what_if if labels.measure(one.measure).startswith("aggregation"))
    assert terms.remark(aggregated.about) == "a: sharp, b: sharp" and aggregated.mean_speedup > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"job": []}, "jobs.toml: job: is missing"),
        ({"bandwith": "1Gbps"}, "jobs.toml: unknown key 'bandwith'"),
        ({"bandwidth": "fast"}, "jobs.toml: "),
        ({"nodes": 2}, "jobs.toml: nodes: the jobs and their servers need 4, not 2"),
        ({"seed": 1}, "jobs.toml: seed: needs a cluster with jitter"),
        ({"job": [job("a"), job("a")]}, "jobs.toml: job 1 (a): name: there are two jobs 'a'"),
        ({"job": [job("a", worker=1)]}, "jobs.toml: job 1: unknown key 'worker'"),
        ({"job": [{"name": "a", "workers": 2}]}, "jobs.toml: job 1 (a): trace: is missing"),
        ({"job": [job("a", workers="many")]}, "jobs.toml: job 1 (a): workers: 'many' is not a number of ranks"),
        ({"job": [job("a", strategy="rign")]}, "jobs.toml: job 1 (a): strategy: unknown strategy 'rign'"),
        ({"job": [job("a", nodes="wide")]}, 'jobs.toml: job 1 (a): nodes: must be "packed", "spread" or a list'),
        (
            {"job": [job("a", nodes="spread")]},
            'jobs.toml: job 1 (a): nodes: "spread" has no effect: one switch connects all nodes',
        ),
        (
            {**RACKS, "nodes": 4, "job": [job("a", nodes="spread")]},
            'jobs.toml: job 1 (a): nodes: "spread" has no effect: a rack or switch has 4 nodes',
        ),
        (
            {"nodes": 4, "fabric": {"kind": "torus", "dimensions": [4, 4]}, "job": [job("a", nodes="spread")]},
            'jobs.toml: job 1 (a): nodes: "spread" has no effect: every node has a switch of its own',
        ),
        ({"job": [job("a", nodes=[0, 1])]}, "jobs.toml: job 1 (a): nodes: workers need 4, not 2"),
        ({"job": [job("a", start="soon")]}, "jobs.toml: job 1 (a): start: 'soon' is not a time"),
        ({"job": [job("a", servers=2)]}, "jobs.toml: job 1 (a): servers: has no effect on ring"),
        ({"job": [job("a", bucket_size=25.5)]}, "jobs.toml: job 1 (a): bucket_size: 25.5 has no unit"),
        ({"job": [job("a", chunk="1XB")]}, "jobs.toml: job 1 (a): chunk: "),
        ({"job": [job("a", nodes=[0, 1, 2, 10**14])]}, "jobs.toml: job 1 (a): nodes: there is no node 1000000"),
        ({"job": [job("a\nb")]}, "jobs.toml: job 1: name: 'a\\nb' has control characters"),
        ({"job": [job("a\u202eb")]}, "jobs.toml: job 1: name: 'a\\u202eb' has control characters"),
        ({"iterations": 100_000}, "jobs.toml: iterations: must be at most"),
    ],
)
def test_mistakes_name_file_job_and_key(change, message):
    document = {"nodes": 8, "job": [job("a")], **change}
    with pytest.raises(InvalidArgumentError) as error:
        spec.mix(document, "jobs.toml")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert error.value.remedy


@pytest.mark.parametrize(
    "own",
    [
        {"sharding": "zero1"},
        {"sharding": "zero2", "accumulate": 2},
        {"sharding": "zero3", "reshard_after_forward": "no"},
        {"sharding": "hsdp:2"},
        {"accumulate": 3},
        {"compression": "powersgd:4"},
        {"sync_every": 4},
    ],
    ids=str,
)
def test_a_planned_job_alone_takes_what_a_forecast_of_one_job_says(own):
    def one(sharding):
        bucket = {} if sharding in ("zero3", "hsdp:2") else {"bucket_size": "25MiB"}
        return {"trace": "gpt2-small", "workers": 8, "strategy": "ring", **bucket}

    given = one(own.get("sharding")) | own
    alone = paceline.simulate(bandwidth="10Gbps", gpus_per_node=2, **given)
    [result] = model.simulate_jobs(mix(given, bandwidth="10Gbps", gpus_per_node=2)).jobs
    assert result.iteration_s == pytest.approx(alone.iteration_s, rel=1e-9)
    assert result.samples_per_s == pytest.approx(alone.samples_per_s, rel=1e-9)
    assert result.iterations >= 3 * own.get("sync_every", 1)
    assert result.sharding == own.get("sharding", "none")


def test_sharded_jobs_keep_their_strategy_where_others_use_the_switch():
    sharded = job("a", trace="gpt2-small", strategy="ring", sharding="zero3")
    result = model.simulate_jobs(mix(sharded, job("b")))
    noted = {labels.measure(one.measure): terms.remark(one.about) for one in result.what_if}
    assert noted["aggregation in the switch"] == "b: sharp"
    alone = model.simulate_jobs(mix(sharded))
    [aggregated] = [one for one in alone.what_if if labels.measure(one.measure).startswith("aggregation")]
    assert (
        aggregated.iteration_s is None
        and terms.remark(aggregated.about) == "not for a, which does more than all-reduces"
    )


@pytest.mark.slow
def test_tensor_parallel_ranks_have_as_many_gpus_as_they_need():
    given = job("a", trace="llama-2-7b@h100", workers=32, strategy="native")
    result = spec.mix({"cluster": "dgx-h100", "job": [given | {"tensor_parallel": 4}]}, "jobs.toml")
    [one] = result.jobs
    assert (one.nodes, one.ranks_per_node, one.scenario.workers) == ((0, 1, 2, 3), 2, 8)
    assert "a: a worker here is a data-parallel rank of 4 GPUs" in result.notes
    beside = {"network": "fluid", "gpus_per_node": 8, "intra_bandwidth": "200Gbps", "nodes": 4, "iterations": 2}
    other = {"name": "b", "trace": "llama-2-7b@h100", "workers": 16, "strategy": "native", "sharding": "zero3"}
    small = given | {"workers": 16, "sharding": "zero1"}
    alone = {
        ways: model.simulate_jobs(spec.mix({**beside, "job": [small | {"tensor_parallel": ways}, other]}, "jobs.toml"))
        for ways in (1, 4)
    }
    # What a rank's GPUs have together is not what others get inside nodes.
    assert alone[1].jobs[1].alone_s == alone[4].jobs[1].alone_s
    with pytest.raises(InvalidArgumentError, match="unknown key 'memory'"):
        spec.mix({"job": [given | {"memory": "1GB"}]}, "jobs.toml")
    full = [given | {"tensor_parallel": 4, "nodes": [0, 1, 2, 3]}, given | {"name": "b", "workers": 8, "nodes": [3]}]
    with pytest.raises(InvalidArgumentError, match="b: nodes: node 3 has 8 GPUs, which a and this job use 16 times"):
        model.simulate_jobs(spec.mix({"cluster": "dgx-h100", "job": full}, "jobs.toml"))
    with pytest.raises(InvalidArgumentError, match="pipeline_parallel: is not modeled for several jobs"):
        spec.mix({"job": [given | {"pipeline_parallel": 2, "microbatches": 4}]}, "jobs.toml")


@pytest.mark.parametrize(
    ("top", "own"),
    [
        ({"bandwidth": "10Gbps", **RACKS}, {"strategy": "ring"}),
        ({"bandwidth": "10Gbps", "gpus_per_node": 2, "network": "fluid", **RACKS}, {"strategy": "native"}),
        ({"bandwidth": "10Gbps", "cluster": "leaf-spine-25g"}, {"trace": "resnet-18", "strategy": "tree"}),
        (
            {"cluster": "dgx-h100", "bandwidth": "400Gbps"},
            {"trace": "gpt2-small@h100", "workers": 8, "gpus_per_node": 4},
        ),
        (
            {"cluster": "dgx-h100", "bandwidth": "400Gbps", "racks": {"nodes_per_rack": 1, "oversubscription": 3.0}},
            {"trace": "gpt2-small@h100", "workers": 8, "gpus_per_node": 4, "sharding": "zero3"},
        ),
    ],
    ids=str,
)
def test_a_what_if_is_what_the_mix_with_that_change_takes(top, own):
    document = {"nodes": 8, "iterations": 2, **top, "job": [job("a", **own), job("b", **own, start="1ms")]}
    mix = spec.mix(document, "jobs.toml")
    cluster = mix.jobs[0].by_itself.cluster
    changes = {"twice the bandwidth": {"bandwidth": f"{2 * int(top['bandwidth'].removesuffix('Gbps'))}Gbps"}}
    if "racks" in top:
        halved = {**top["racks"], "oversubscription": top["racks"]["oversubscription"] / 2}
        changes["half the oversubscription"] = {"racks": halved}
    if "sharding" not in own and cluster.fabric is None:
        aggregating = {"switch": {"multicast": cluster.switch.multicast, "aggregation": True}}
        with_sharp = [one | {"strategy": "sharp"} for one in document["job"]]
        changes["aggregation in the switch"] = {**aggregating, "job": with_sharp}
    forecast = {labels.measure(one.measure): one.iteration_s for one in model.simulate_jobs(mix).what_if}
    for name, change in changes.items():
        really = model.simulate_jobs(spec.mix(document | change, "jobs.toml"))
        assert forecast[name] == pytest.approx([one.iteration_s for one in really.jobs]), name


def test_half_the_oversubscription_is_tried_where_there_is_one():
    def gained(over):
        racks = {"racks": {"nodes_per_rack": 4, "oversubscription": over}}
        jobs = [job(name, nodes="spread") for name in "ab"]
        result = model.simulate_jobs(spec.mix({"nodes": 8, "iterations": 3, **racks, "job": jobs}, "jobs.toml"))
        return {labels.measure(one.measure): (one.mean_speedup, terms.remark(one.about)) for one in result.what_if}

    gain, note = gained(4.0)["half the oversubscription"]
    assert gain == pytest.approx(2, rel=0.05) and note == "2:1"
    assert gained(1.5)["no oversubscription"][1] == "1:1"
    assert not {"half the oversubscription", "no oversubscription"} & gained(1.0).keys()


def test_two_jobs_do_not_share_a_gpu():
    result = mix(job("a", nodes=[0, 1, 2, 3]), job("b", nodes=[3, 4, 5, 6]))
    with pytest.raises(InvalidArgumentError, match="b: nodes: node 3 has 1 GPUs"):
        model.simulate_jobs(result)


def test_the_example_of_sharded_jobs():
    result = spec.read(EXAMPLE.with_name("gpu-jobs.toml"))
    assert {one.name: one.is_planned for one in result.jobs} == {"grouped": True, "pretraining": True, "vision": False}


@pytest.mark.slow
def test_sharded_jobs_of_the_example_slow_each_other_down():
    result = spec.read(EXAMPLE.with_name("gpu-jobs.toml"))
    assert model.simulate_jobs(replace(result, iterations=1)).jobs[1].slowdown > 2


@pytest.mark.slow
def test_the_command(tmp_path):
    text = EXAMPLE.read_text()
    small = tmp_path / "jobs.toml"
    # Others go on until the last has begun and ended: with small jobs, soon.
    text = re.sub(r"trace = .*", 'trace = "allreduce:8MB/4"', text).replace("300ms", "30ms")
    small.write_text("iterations = 2\n" + text)
    run = cli.output("simulate", "--jobs", small, "--plot", tmp_path / "jobs.png")
    for words in ("Slowdown next to one other job", "Shared links", "rack 0 up", "2x network bandwidth", "Notes"):
        assert words in run
    assert run.startswith("vision is hit hardest: ") and "  Bottleneck   " in run
    assert (tmp_path / "jobs.png").stat().st_size > 10_000
    timeline = tmp_path / "timeline.json"
    answer = cli.call("simulate", "--jobs", small, "--json", "--timeline", timeline)
    document = json.loads(answer.stdout)
    assert document["schema"] == 1
    assert {one["name"] for one in document["jobs"]} == {"vision", "big model", "old code"}
    processes = {
        event["args"]["name"]
        for event in json.loads(timeline.read_text())["traceEvents"]
        if event["name"] == "process_name"
    }
    assert {"vision: worker 0", "old code: worker 15", "rack 0", "node 15"} <= processes
    refused = cli.call("simulate", "--jobs", small, "--workers", "8")
    assert refused.exit_code == 2 and "--workers has no effect with --jobs" in refused.output


def test_changes_that_do_not_exist_are_left_out_with_a_note():
    def changes(**top):
        result = model.simulate_jobs(spec.mix({**top, "job": [job("a"), job("b")]}, "jobs.toml"))
        return {
            labels.measure(one.measure): (one.iteration_s is None, terms.remark(one.about)) for one in result.what_if
        }

    of_a_fabric = changes(cluster="fat-tree-k16")
    assert not of_a_fabric["twice the bandwidth"][0]
    assert of_a_fabric["multicast in the switch"] == (True, "not modeled in this kind of fabric")
    assert of_a_fabric["aggregation in the switch"] == (False, "a: sharp, b: sharp")
    # Servers have no switch that adds up for them there, but one that multicasts.
    with_servers = {"strategy": "ps", "servers": 1}
    jobs = [job("a"), {**job("b"), **with_servers}]
    result = model.simulate_jobs(spec.mix({"cluster": "leaf-spine-25g", "job": jobs}, "jobs.toml")).what_if
    notes = {labels.measure(one.measure): terms.remark(one.about) for one in result}
    assert notes["aggregation in the switch"] == "a: sharp"
    assert notes["multicast in the switch"] == "a: ring-multicast, b: ps-multicast"
    assert changes(bandwidth="900000Tbps")["twice the bandwidth"] == (True, "more than the highest rate of a cluster")


def test_a_cluster_with_slow_ranks_is_refused_by_file(tmp_path):
    slow = tmp_path / "slow.json"
    fields = {"format": "paceline-cluster", "version": 1, "bandwidth": "10Gbps"}
    slow.write_text(json.dumps({**fields, "stragglers": [{"rank": 1, "factor": 2.0}]}))
    with pytest.raises(InvalidArgumentError, match=r"^jobs\.toml: cluster: has stragglers by rank"):
        mix(job("a"), cluster=str(slow))


def test_a_mesh_limits_jobs_as_it_limits_one():
    fields = {"trace": "alexnet", "workers": 16, "strategy": "hierarchical", "inside": "root"}
    alone = paceline.simulate("alexnet", "p3.16xlarge", "hierarchical", workers=16, inside="root", library="ddp")
    [result] = model.simulate_jobs(spec.mix({"cluster": "p3.16xlarge", "job": [fields]}, "jobs.toml")).jobs
    assert result.alone_s == pytest.approx(alone.iteration_s, rel=0.02)
    both = spec.mix({"cluster": "p3.16xlarge", "job": [fields, {**fields, "name": "b", "inside": "ring"}]}, "jobs.toml")
    assert "b gets only the" in both.notes[0] and "mesh leaves to alexnet" in both.notes[0]


ALONE = [
    *(
        {"trace": f"{trace}@{gpu}", "workers": workers, "strategy": strategy, **sharding}
        for trace, gpu, workers, strategy, sharding in (
            ("gpt2-xl", "h100", 8, "ring", {}),
            ("gpt2-xl", "a100", 16, "native", {}),
            ("gpt2-small", "rtx3090", 4, "tree", {}),
            ("gpt2-small", "h100-pcie", 12, "hierarchical", {}),
            ("bert-large", "v100", 24, "native", {"sharding": "zero1"}),
            ("llama-3-8b", "h100", 16, "native", {"sharding": "zero3"}),
            ("llama-3-8b", "b200", 16, "ring", {"sharding": "hsdp"}),
            ("gpt2-medium", "h100", 16, "native", {"accumulate": 4}),
        )
    ),
    {"trace": "resnet-50", "workers": 6, "strategy": "halving-doubling"},
    {"trace": "vgg-16", "workers": 5, "strategy": "ps", "servers": 2},
    {"trace": "resnet-50", "workers": 4, "strategy": "ring", "library": "horovod"},
    {"trace": "gpt2-small", "workers": 8, "strategy": "native", "library": "none", "bucket_size": "10MB"},
    {"trace": "allreduce:40MB", "workers": 8, "strategy": "ring"},
]


@pytest.mark.parametrize("given", ALONE, ids=lambda given: " ".join(map(str, given.values())))
def test_one_job_alone_takes_what_simulate_says_of_it(given):
    alone = paceline.simulate(**given)
    result = model.simulate_jobs(spec.mix({"job": [given], "iterations": 2}, "jobs.toml"))
    [one] = result.jobs
    assert one.iteration_s == pytest.approx(alone.iteration_s, rel=1e-9)
    assert one.samples_per_s == pytest.approx(alone.samples_per_s or one.samples_per_s, rel=1e-9)
    assert one.library == alone.library
    said = " ".join(table.to_dict(result)["notes"])
    assert "Alone, jobs take as long as in simulate" in said
    assert ("@" in given["trace"]) == (" nodes" in said)


def test_jobs_on_different_gpus_need_a_cluster():
    jobs = [job("a", trace="gpt2-small@h100"), job("b", trace="gpt2-small@a100")]
    with pytest.raises(
        InvalidArgumentError, match=r"jobs\.toml: cluster: jobs are on .*H100.* and .*A100.*, whose nodes"
    ):
        spec.mix({"job": jobs}, "jobs.toml")
    assert model.simulate_jobs(spec.mix({"cluster": "dgx-h100", "job": jobs, "iterations": 2}, "jobs.toml")).jobs
