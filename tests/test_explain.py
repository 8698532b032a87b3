"""`paceline simulate --explain`: the knee, what dominates, and what changes would bring."""

import json
import re
from functools import partial

import cli
import pytest

call = partial(cli.printed, "simulate")


def explained(*words):
    runs = json.loads(call(*words, "--explain", "--json"))
    answer = [run["explanation"] for run in runs if "explanation" in run]
    assert len(answer) == 1
    return answer[0], {change["what"]: change for change in answer[0]["changes"]}


def cluster(path, **fields):
    fields = {"format": "paceline-cluster", "version": 1, "bandwidth": "10Gbps", **fields}
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.slow
def test_a_server_that_is_full_has_a_knee_and_a_ring_has_none():
    answer, changes = explained("resnet-50", "--workers", "2,16", "--strategy", "ps", "--library", "none")
    assert answer["workers"] == 16
    assert answer["knee"]["workers"] <= 3
    assert "server" in answer["knee"]["bound"]
    assert changes["twice the bandwidth"]["gain"] == pytest.approx(2, rel=0.01)
    assert changes["another strategy"]["gain"] > 5
    assert changes["multicast in the switch"]["note"].startswith(("ps-multicast", "ring-multicast"))
    answer, _ = explained("resnet-50", "--workers", "16", "--strategy", "ring", "--library", "none")
    assert answer["knee"]["workers"] is None
    assert answer["knee"]["tried"] >= 64


def test_changes_of_an_all_reduce_are_the_closed_form():
    answer, changes = explained("allreduce:100MB", "--workers", 8, "--latency", "1ms", "--strategy", "ring")
    iteration = 14 * (100e6 / 8 * 8 / 25e9 + 1e-3)
    assert answer["iteration_s"] == pytest.approx(iteration)
    faster = 14 * (100e6 / 8 * 8 / 50e9 + 1e-3)
    assert changes["twice the bandwidth"]["iteration_s"] == pytest.approx(faster)
    assert changes["half the latency"]["gain"] == pytest.approx(iteration / (iteration - 7e-3))
    assert answer["knee"]["bound"] == "nothing is computed"
    assert changes["without the slowest rank"]["gain"] is None


def test_fusing_pays_where_messages_cost(tmp_path):
    path = cluster(tmp_path / "costly.json", message_overhead="1ms")
    words = ("resnet-50", "--library", "none", "--cluster", path, "--workers", 4, "--strategy", "ring")
    _, changes = explained(*words)
    best = changes["the best bucket size"]
    assert best["gain"] > 2
    assert "--bucket-size" in best["note"]
    size = best["note"].split()[1].rstrip(",")
    [again] = json.loads(call(*words, "--bucket-size", size, "--json"))
    assert again["iteration_s"] == pytest.approx(best["iteration_s"])


def test_the_slowest_rank_is_removed(tmp_path):
    path = cluster(tmp_path / "slow.json", stragglers=[{"rank": 1, "factor": 3.0}, {"rank": 2, "factor": 1.5}])
    _, changes = explained("resnet-50", "--cluster", path, "--workers", 4, "--strategy", "ring")
    change = changes["without the slowest rank"]
    assert change["note"] == "rank 1"
    assert 1.5 < change["gain"] <= 2


def test_the_interval_is_of_comparable_measurements():
    words = ("resnet-50", "--cluster", "p3.16xlarge", "--workers", 64, "--strategy", "native")
    answer, _ = explained(*words)
    likely = answer["interval"]
    assert likely["low_s"] < answer["iteration_s"] < likely["high_s"]
    assert likely["level"] == 0.8 and likely["cases"] >= 7
    assert answer["evidence"] == likely["basis"] == "NCCL over TCP and the like: HVD16, I779, DDP, P28X and 2 more"
    text = " ".join(call(*words, "--explain").split())
    assert (
        "samples/s (80%" in text
        and f"from {likely['cases']} published errors (NCCL over TCP and the like: HVD16" in text
    )


def test_one_of_explain_and_csv():
    assert "--explain and --csv cannot be combined" in cli.refused("simulate", "resnet-50", "--explain", "--csv")


def test_what_would_do_harm_is_no_help():
    words = ("resnet-50", "--cluster", "p3.16xlarge", "--workers", "64", "--strategy", "halving-doubling")
    _, changes = explained(*words)
    harm = changes["multicast in the switch"]
    assert (harm["iteration_s"], harm["gain"]) == (None, None)
    assert harm["note"].startswith("no gain: ring-multicast ")
    text = call(
        "resnet-50", "--cluster", "p3.16xlarge", "--workers", "64", "--strategy", "halving-doubling", "--explain"
    )
    assert re.search(r"\n  No gain      \d+ ms +ring-multicast \(switch multicast\)\n", text)
    assert "\n  Not tried    no straggler: ranks differ only by chance\n" in text
    gains = [change["gain"] for change in changes.values() if change["gain"] is not None]
    assert gains and min(gains) >= 0.995


def test_what_helps_most_comes_first_and_a_switch_does_what_it_can():
    answer, changes = explained(
        "vgg-16", "--workers", 16, "--bandwidth", "100Gbps", "--channel", "tcp", "--strategy", "ring"
    )
    gains = [change["gain"] for change in answer["changes"] if change["gain"] is not None]
    assert gains == sorted(gains, reverse=True) and min(gains) >= 1
    assert changes["RDMA instead of TCP"]["gain"] > 1.5
    assert changes["aggregation in the switch"]["note"] == "sharp"
    assert changes["multicast in the switch"]["note"].endswith("ring-multicast")
    assert changes["multicast and aggregation in the switch"]["note"].endswith("ps-multicast-aggregation")


def test_ddp_on_gpus_may_have_another_strategy():
    words = ("gpt2-small", "--gpu", "h100", "--seq", 256, "--gpus", 32, "--bandwidth", "25Gbps", "--strategy")
    answer, changes = explained(*words, "native", "--cluster", "flat")
    [table] = [json.loads(call(*words, name, "--cluster", "flat", "--json")) for name in ("halving-doubling",)]
    assert changes["another strategy"]["note"] == "halving-doubling"
    assert changes["another strategy"]["iteration_s"] == table[0]["iteration_s"]
    assert "aggregation in the switch" in changes and answer["strategy"] == "native"


def test_slow_links_are_explained_on_fewer_nodes():
    answer, _ = explained("resnet-50", "--cluster", "p3.16xlarge", "--gpus", 32, "--degrade", "node3:0.5")
    assert answer["knee"]["tried"] >= 2


@pytest.mark.parametrize("options", [("--sharding", "hsdp:2"), ("--sharding", "zero1:2")])
def test_groups_of_ranks_are_explained_in_whole_groups(options):
    answer, _ = explained("resnet-50", "--gpus", 8, *options)
    assert answer["knee"]["tried"] % 2 == 0


def test_a_trace_without_gradients_is_refused(tmp_path):
    layer = {"layer": "only", "duration_s": 0.01}
    worker = {"forward": [layer], "gradients": [], "backward_s": 0.01}
    fields = {"format": "paceline-trace", "version": 1, "name": "none", "batch": 1, "dtype": "float32"}
    path = tmp_path / "none.json"
    path.write_text(json.dumps({**fields, "workers": [worker]}))
    result = cli.call("simulate", path, "--gpus", "8")
    assert result.exit_code == 2 and "none: has no gradients, so there is nothing to synchronize" in result.output


def test_a_bare_all_reduce_has_no_knee_and_no_error_of_a_trace():
    text = " ".join(call("allreduce:100MB", "--workers", "8,16", "--strategy", "ring", "--explain").split())
    assert "Scales to any number: nothing is computed" in text and "each added one" not in text
    assert "measured errors (ring on an emulated network" in text


@pytest.mark.parametrize(
    ("cluster", "helps"),
    [
        ("fat-tree-k16", {"aggregation": "sharp"}),
        ("leaf-spine-25g", {"aggregation": "sharp", "multicast": "ring-multicast"}),
        ("tpu-v4-torus", {}),
    ],
)
def test_switches_of_some_fabrics_help(cluster, helps):
    _, changes = explained("allreduce:100MB", "--cluster", cluster, "--workers", 64, "--strategy", "ring")
    for kind in ("multicast", "aggregation"):
        note, took = (changes[f"{kind} in the switch"][name] for name in ("note", "iteration_s"))
        if kind in helps:
            assert note == helps[kind] and took > 0
        else:
            assert note == "not modeled in this kind of fabric" and took is None
    assert "multicast and aggregation in the switch" not in changes


def test_links_between_switches_bound_together_with_those_of_the_nodes(tmp_path):
    fabric = {"kind": "fat-tree", "radix": 8}
    tree = cluster(tmp_path / "tree.json", bandwidth="100Gbps", fabric=fabric, switch={"aggregation": True})
    for strategy in ("sharp", "ring"):
        words = ("allreduce:100MB", "--cluster", tree, "--workers", 64, "--strategy", strategy)
        _, changes = explained(*words)
        assert changes["twice the bandwidth of the nodes"]["gain"] < 1.03
        assert changes["twice the bandwidth of the nodes and between switches"]["gain"] > 1.9
        together = "links of nodes and between switches together"
        assert f"\n  Bottleneck   {together}\n" in call(*words)
        assert f", {strategy}, 64 workers: bound by {together} " in " ".join(call(*words, "--explain").split())


def test_hundreds_of_gpus_are_explained_as_well():
    words = ("llama-3-8b", "--gpu", "h100", "--gpus", 512, "--bandwidth", "400Gbps", "--sharding", "zero3")
    answer, changes = explained(*words)
    assert answer["workers"] == 512 and changes["twice the bandwidth"]["gain"] > 1.05
    assert changes["another strategy"]["note"] != "too many messages to try"
    assert 128 < answer["knee"]["workers"] < 4096


def test_what_communication_adds_to_computation_is_told_apart():
    words = ("llama-3-8b", "--gpu", "h100", "--gpus", 512, "--bandwidth", "400Gbps", "--sharding", "zero3")
    [result] = json.loads(call(*words, "--json"))
    parts = {part["part"]: part["seconds"] for part in result["critical_path"]}
    assert parts["compute"] == pytest.approx(
        sum(result[f"{name}_s"] for name in ("forward", "backward", "optimizer")), rel=1e-6
    )
    assert parts["slowed by NCCL"] == pytest.approx(result["sharded"]["slowed_s"], rel=1e-6)
    assert parts["library calls"] == pytest.approx(result["sharded"]["calls_s"], rel=1e-6)
    assert sum(parts.values()) == pytest.approx(result["iteration_s"], rel=1e-6)
    share, slowed = (round(100 * parts[name] / result["iteration_s"]) for name in ("compute", "slowed by NCCL"))
    both = f"Bottleneck compute, {share}% of the critical path (NCCL kernels slow it by another {slowed}%)"
    assert both in " ".join(call(*words).split()) and both in " ".join(call(*words, "--explain").split())
    assert f" 512x H100: compute-bound, {share}% of the critical path\n" in call(*words, "--explain")


def test_the_librarys_calls_may_be_what_bounds(tmp_path):
    trace = tmp_path / "small.json"
    layers = [f"layer.{number}" for number in range(60)]
    worker = {
        "forward": [{"layer": name, "duration_s": 1e-6, "tensors": [f"{name}.weight"]} for name in layers],
        "gradients": [
            {"tensor": f"{name}.weight", "ready_s": 1e-6 * (place + 1), "bytes": 400}
            for place, name in enumerate(reversed(layers))
        ],
    }
    document = {
        "format": "paceline-trace",
        "version": 1,
        "name": "small",
        "batch": 1,
        "dtype": "float32",
        "workers": [worker],
    }
    trace.write_text(json.dumps(document))
    said = " ".join(call(trace, "--cluster", "dgx-h100", "--workers", 16, "--strategy", "native").split())
    assert "Bottleneck framework overhead, " in said


@pytest.mark.parametrize(
    ("words", "has"),
    [
        ("resnet-50 --gpus-per-node 8 --workers 8 --strategy ring", False),
        ("resnet-50 --gpus-per-node 8 --workers 16 --strategy ring", True),
        ("resnet-50 --gpus-per-node 8 --workers 8 --strategy ps", True),
        ("gpt2-small --gpu h100 --gpus 8 --channel tcp --sharding zero3", False),
        ("gpt2-small --gpu h100 --gpus 16 --channel tcp --sharding zero3", True),
        ("gpt2-medium --gpu h100 --gpus 8 --tensor-parallel 4 --channel tcp", False),
        ("gpt2-medium --gpu h100 --gpus 16 --tensor-parallel 4 --channel tcp", True),
    ],
)
def test_changes_between_nodes_are_offered_where_something_is_sent_between_them(words, has):
    done = cli.printed("simulate", *words.split(), "--explain", "--json")
    said = done
    assert ('"RDMA instead of TCP"' in said) is has
    assert ('"twice the bandwidth' in said.replace('"twice the bandwidth inside', "")) is has
