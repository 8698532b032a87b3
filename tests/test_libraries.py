"""Libraries and channels: their files, how they become a simulation, and which of them a forecast has."""

import importlib.util
import json
from functools import partial
from pathlib import Path
from typing import get_args

import cli
import paceline
import pytest
from paceline.catalog import channels, names, reference
from paceline.catalog.channels import with_channel
from paceline.catalog.libraries import all_libraries, find_library, library_names, read_library
from paceline.errors import InvalidArgumentError
from paceline.forecast import evidence
from paceline.forecast.lowering import lowered
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.scenario import Scenario

reply = partial(cli.answer, "simulate")

ROOT = Path(__file__).parent.parent
NAMES = get_args(names.LibraryName)


def test_names_are_those_of_the_files():
    assert sorted(library_names()) == sorted(NAMES)
    assert library_names()[0] == "none"


def test_the_page_is_current():
    assert (ROOT / "docs/reference/libraries.md").read_text(encoding="utf-8") == reference.page()


def test_every_constant_is_listed():
    listed = cli.answer("libraries")
    assert [entry["name"] for entry in listed["libraries"]] == list(library_names())
    for entry in [*(it for one in listed["libraries"] for it in one["constants"]), *listed["channels"]]:
        assert entry["value"] > 0 and entry["unit"] and entry["source"] and entry["uncertainty"] >= 0
    one = cli.call("libraries", "horovod").output
    assert "fusion_threshold" in one and "HOROVOD_FUSION_THRESHOLD" in one
    assert "tcp.stream" in cli.call("libraries", "channels").output
    refused = cli.call("libraries", "horvod")
    assert refused.exit_code and "try: horovod (" in refused.output + str(refused.exception)


GOOD = {
    "format": "paceline-library",
    "version": 1,
    "name": "own",
    "summary": "a library",
    "family": "own",
    "strategy": "ring",
    "constants": [{"name": "call", "value": 1e-5, "unit": "s per tensor", "uncertainty": 0.1, "source": "measured"}],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "x"}, 'format: must be "paceline-library"'),
        ({"version": 2}, "version: must be 1"),
        ({"name": "other"}, "name: must be the file's name, 'own'"),
        ({"stratgy": "ring"}, "unknown field 'stratgy'"),
        ({"strategy": "rng"}, "unknown strategy 'rng'"),
        ({"coordinator": "boss"}, "unknown coordinator 'boss'"),
        ({"channel": "pigeon"}, "channel: unknown channel 'pigeon'"),
        ({"summary": ""}, "summary: is missing"),
        ({"constants": {}}, "constants: is not a list"),
        ({"constants": [{"name": "call"}]}, "constants[0]: needs name, value, unit, uncertainty and source"),
        ({"constants": [{**GOOD["constants"][0], "name": "cal"}]}, "unknown constant 'cal'"),
        ({"constants": [{**GOOD["constants"][0], "value": -1}]}, "call.value: must be above 0, not -1"),
        ({"constants": [{**GOOD["constants"][0], "unit": "ms"}]}, "call.unit: must be 's per tensor', not 'ms'"),
        ({"constants": [{**GOOD["constants"][0], "source": ""}]}, "call.source: is empty"),
        ({"constants": [{**GOOD["constants"][0], "uncertainty": -1}]}, "call.uncertainty: must be 0-10, not -1"),
        ({"constants": GOOD["constants"] * 2}, "call: is listed twice"),
        ({"small": 2048}, "small: needs to, strategy and source"),
        ({"small": {"to": 2048, "strategy": "ring"}}, "small: needs to, strategy and source"),
        ({"small": {"to": 0, "strategy": "ring", "source": "a"}}, "small.to: must be bytes, above 0, not 0"),
        ({"small": {"to": True, "strategy": "ring", "source": "a"}}, "small.to: must be bytes, above 0, not True"),
        ({"small": {"to": 9, "strategy": "rng", "source": "a"}}, "small: unknown strategy 'rng'"),
        ({"small": {"to": 9, "strategy": "ring", "source": ""}}, "small: strategy and source must be text"),
    ],
)
def test_bad_files_are_refused(tmp_path, changes, message):
    path = tmp_path / "own.json"
    path.write_text(json.dumps(GOOD))
    assert read_library(path).value("call") == 1e-5
    path.write_text(json.dumps(GOOD | changes))
    with pytest.raises(InvalidArgumentError) as error:
        read_library(path)
    assert "own.json" in str(error.value) and message in str(error.value)
    assert error.value.remedy


@pytest.mark.parametrize("library", NAMES)
def test_every_library_is_forecast(library):
    result = paceline.simulate("resnet-50", library=library, workers=16, gpus_per_node=4)
    assert (result.library, result.strategy) == (library, find_library(library).strategy)
    assert result.channel == ("none" if library == "none" else find_library(library).channel or "tcp")
    assert result.iteration_s > result.compute_s
    if result.servers == 0:
        alone = paceline.simulate("resnet-50", library=library, workers=1)
        assert alone.iteration_s == pytest.approx(alone.compute_s)


def test_none_is_the_bare_schedule():
    trace = paceline.load_trace("resnet-50")
    low = lowered(Scenario.of(trace, paceline.load_cluster(), "ring", 8))
    assert (low.flow_bps, low.channel, low.bucket_size) == (25e9, "none", None)
    assert low.cluster.latency_s == low.cluster.message_overhead_s == 0
    assert low.spread == 0 and not low.has_plan


def test_the_default_is_ddp_or_what_was_recorded(tmp_path):
    (actual,) = reply("resnet-50", "--workers", 8, "--strategy", "ring")
    assert (actual["library"], actual["channel"]) == ("ddp", "tcp")
    assert actual["buckets"] < 10
    document = json.loads(paceline.load_trace("resnet-50").to_json())
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps(document | {"library": "horovod"}))
    assert reply(path, "--workers", 8, "--strategy", "ring")[0]["library"] == "horovod"
    assert paceline.load_trace(path).library == "horovod"
    path.write_text(json.dumps(document | {"library": "a library of tomorrow"}))
    assert reply(path, "--workers", 8, "--strategy", "ring")[0]["library"] == "ddp"
    assert reply("allreduce:1MB", "--workers", 8, "--strategy", "ring")[0]["library"] == "none"


def test_a_question_about_a_library_is_about_its_strategy():
    assert [it["strategy"] for it in reply("resnet-50", "--workers", 8, "--library", "horovod-mpi")] == ["ring"]
    assert len(reply("resnet-50", "--workers", 8)) == len(paceline.all_strategies())


def test_the_release_of_nccl_is_the_librarys():
    """NCCL 2.30 takes a ring for more buckets than 2.8 does."""
    words = ["bert-large", "--workers", "144", "--cluster", "10g-ethernet", "--strategy", "native"]
    (old,) = reply(*words, "--library", "ddp@2.8")
    (new,) = reply(*words, "--library", "ddp@2.30")
    assert [new] == reply(*words)
    assert new["messages"] != old["messages"]
    assert (old["library"], new["library"]) == ("ddp@2.8", "ddp")


def test_explicit_options_win():
    words = ("resnet-50", "--workers", 16, "--library", "ddp", "--cluster", "p3.16xlarge")
    (own,) = reply(*words)
    (unfused,) = reply(*words, "--bucket-size", "none")
    assert (own["buckets"], unfused["buckets"]) == (5, 161)
    (quick,) = reply(*words, "--latency", "0us")
    assert quick["iteration_s"] < own["iteration_s"]
    (whole,) = reply(*words, "--channel", "none")
    assert whole["flow_bandwidth_bps"] == 25e9 > own["flow_bandwidth_bps"]
    (fast,) = reply(*words, "--channel", "rdma")
    assert fast["flow_bandwidth_bps"] == 25e9 * channels.constant("rdma.share.roce")
    assert paceline.simulate("resnet-50", library="tensorflow-grpc", workers=8, servers=3).servers == 3
    assert paceline.simulate("resnet-50", library="tensorflow-grpc", workers=8, gpus_per_node=4).servers == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--library", "dpd"], "--library: unknown library 'dpd'\n  try: ddp ("),
        (["--library", "horovod-mpi@2.8"], "--library: horovod-mpi is not NCCL's and has no release of it"),
        (["--library", "ddp@2.9"], "--library: ddp: unknown NCCL release '2.9'\n  try: ddp@2.30 (known: 2.8, 2.30)"),
        (["--channel", "udp"], "--channel: unknown value 'udp'"),
        (["--channel", "rdma", "--library", "ray-sgd"], "--channel: has no effect on ray-sgd, which sends over tcp"),
    ],
)
def test_mistakes_are_named(words, message):
    done = cli.call("simulate", "resnet-50", "--workers", "4", *words)
    assert done.exit_code and message in done.output + str(done.exception)


@pytest.mark.parametrize(("link", "racks"), [("node0", None), ("rack0", 1), ("rack0", 4)])
def test_a_slow_link_is_at_worst_as_bad_as_slow_links_everywhere(link, racks):
    """Few TCP connections carry 13.7 of 25 Gbit/s: half a link is more than half of that."""
    shape = {} if racks is None else {"racks": {"nodes_per_rack": 2, "oversubscription": racks}}

    def seconds(**fields):
        nodes = {"gpus_per_node": 8, "bandwidth": "25Gbps", **shape}
        return paceline.simulate("resnet-50", workers=64, strategy="native", **(nodes | fields)).iteration_s

    whole, slow = seconds(), seconds(degraded=[{"link": link, "factor": 0.5}])
    everywhere = seconds(bandwidth="12.5Gbps", latency="37us")
    assert whole <= slow <= everywhere * 1.01
    assert racks or slow > whole
    assert seconds(degraded=[{"link": link, "factor": 1.0}]) == pytest.approx(whole, rel=1e-6)


def test_a_channel_fills_in_what_a_cluster_does_not_say():
    own = paceline.load_cluster("p3.16xlarge", latency="5us")
    assert with_channel(own).latency_s == 5e-6
    on_rdma = with_channel(own, "rdma")
    assert (on_rdma.channel, on_rdma.latency_s) == ("rdma", 2.54e-6)
    assert with_channel(paceline.load_cluster(bandwidth="100Gbps")).channel == "rdma"
    assert with_channel(paceline.load_cluster(), bare=True).channel == "none"


@pytest.mark.parametrize("how", [{"channel": "tcp"}, {"library": "ray-sgd", "strategy": "sharded-ps"}])
def test_a_channel_leaves_what_a_cluster_measured(tmp_path, how):
    def reply(**fields):
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({"format": "paceline-cluster", "version": 1, "bandwidth": "10Gbps", **fields}))
        given = {"cluster": path, "workers": 2, "strategy": "ps", **how}
        [scenario] = prepare(Sweep.of("resnet-18", given, "paceline.simulate")).scenarios
        return scenario.cluster.latency_s, scenario.cluster.message_overhead_s

    usual = reply()
    assert usual[0] != 0
    assert reply(latency="3us", message_overhead="2us") == (3e-6, 2e-6)
    assert reply(latency="0s", message_overhead="0s") == (0, 0)
    assert reply(latency="3us") == (3e-6, usual[1])
    assert reply(latency="0s", channel="tcp") == (0, usual[1])


def test_a_mesh_limits_reductions_to_one_gpu():
    trace = paceline.load_trace("resnet-50")
    ray = find_library("ray-sgd")

    def inside(gpus):
        cluster = paceline.load_cluster("p3.16xlarge", gpus_per_node=gpus)
        low = lowered(Scenario.of(trace, cluster, "sharded-ps", 2 * gpus, library=ray))
        return low.cluster.intra_bandwidth_bps

    assert inside(4) == 960e9
    assert inside(8) == pytest.approx(7 / 3 * 40e9)


def test_explain_does_not_judge_buckets_without_costs():
    (bare,) = reply("resnet-50", "--workers", 8, "--library", "none", "--explain")
    changes = {change["what"] for change in bare["explanation"]["changes"]}
    assert "the best bucket size" not in changes and "half the latency" not in changes
    (ddp,) = reply("resnet-50", "--workers", 8, "--library", "ddp", "--explain")
    best = next(it for it in ddp["explanation"]["changes"] if it["what"] == "the best bucket size")
    assert "separately" not in best["note"]


def test_libraries_are_consistent():
    for library in all_libraries():
        assert library.family
        assert set(library.options) <= {"pull", "inside", "chunk", "servers", "overlap"}


def test_intervals_hold_what_was_not_calibrated_on():
    """Of rows whose source neither fitted a constant nor an interval, 80 % lie in the 80 % interval."""
    for actual in (evidence.coverage(), evidence.coverage_of_scaled()):
        assert actual.known >= 30
        assert 0.73 <= actual.share <= 0.87
        assert actual.times <= 1.2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--workers", 288], "288 GPUs are too far beyond published runs, of up to 128 (NCCL between nodes)"),
        (
            ["--workers", 64, "--bandwidth", "1Gbps"],
            "1 Gbps is too far from published runs, at 25-400 Gbps (",
        ),
        (["--workers", 64, "--strategy", "ps"], "nobody has published DDP with ps"),
        (["--workers", 64, "--library", "ray-sgd"], "constants were fitted to the only source, RAYSGD"),
        (["--workers", 16, "--library", "byteps", "--strategy", "ps"], "nobody has published byteps with ps"),
        (["--workers", 16, "--library", "ddp-gloo", "--strategy", "native"], "nobody has published DDP over Gloo with"),
        (["--workers", 64, "--library", "none"], "was validated up to 8 workers, one per node"),
        (["--workers", 1], "nothing is communicated"),
        (["--workers", 1, "--strategy", "ps"], "nobody has measured one worker with a server"),
        (["--workers", 16, "--latency", "50s"], "--latency: published runs have at most 37 us"),
        (["--workers", 16, "--straggler", "3:1000"], "--straggler: no published run has a slow rank"),
        (["--workers", 16, "--no-barrier"], "--no-barrier: published runs use the default of ddp"),
        (["--workers", 16, "--no-overlap"], "--no-overlap: published runs use the default of ddp"),
        (["--workers", 16, "--network", "fluid"], "--network: published runs use the default"),
        (["--workers", 16, "--bucket-size", "none"], "--bucket-size: published runs use the default"),
    ],
)
def test_outside_the_evidence_there_is_no_interval(words, reason):
    strategy = [] if "--strategy" in words or "--library" in words else ["--strategy", "native"]
    (actual,) = reply("resnet-50", "--cluster", "p3.16xlarge", *words, *strategy)
    assert actual["interval"] is None
    assert reason in actual["evidence"]
    answer = cli.facts(cli.printed("simulate", "resnet-50", "--cluster", "p3.16xlarge", *words, *strategy))
    # Of one worker that communicates nothing, nothing is said.
    assert answer.get("Likely", actual["evidence"]) == actual["evidence"]
    assert ("Likely" in answer) == (reason != "nothing is communicated")


def test_an_interval_ends_where_computation_alone_does():
    words = ["resnet-50", "--workers", 8, "--library", "none", "--strategy", "ring", "--bandwidth"]
    (actual,) = reply(*words, "50Gbps")
    alone = actual["forward_s"] + actual["backward_s"] + actual["optimizer_s"]
    assert actual["interval"]["clipped"]
    assert actual["interval"]["low_s"] == alone <= actual["iteration_s"]
    likely = cli.facts(cli.printed("simulate", *words, "50Gbps"))["Likely"]
    assert likely == "97.3-99.0 ms, 2,587-2,632 samples/s (80%, capped at linear)"
    (slow,) = reply(*words, "5Gbps")
    assert not slow["interval"]["clipped"]


def test_bare_schedules_have_the_evidence_of_validate():
    (ring,) = reply("resnet-50", "--workers", 8, "--library", "none", "--strategy", "ring")
    assert ring["interval"]["low_s"] < ring["iteration_s"] < ring["interval"]["high_s"]
    assert "emulated network, 2-8 workers" in ring["evidence"]
    words = ("resnet-50", "--workers", 8, "--library", "none", "--strategy", "ring")
    (fast,) = reply(*words, "--bandwidth", "3200Gbps")
    assert fast["interval"] is None and "validated at 0.5-53 Gbps" in fast["evidence"]


def test_oversubscribed_racks_are_outside_the_evidence():
    def of(oversubscription):
        racks = {"nodes_per_rack": 4, "oversubscription": oversubscription}
        return paceline.simulate("resnet-50", workers=16, strategy="ring", racks=racks)

    assert of(1.0).interval is not None
    assert of(1000.0).interval is None and "oversubscribed 1000:1" in of(1000.0).evidence


@pytest.mark.slow
def test_residuals_are_current():
    path = ROOT / "scripts/write_residuals.py"
    script = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("write_residuals", path))
    spec.loader.exec_module(script)
    for name, path in script.FILES.items():
        assert json.loads(path.read_text(encoding="utf-8"))["cases"] == json.loads(json.dumps(script.CASES[name]()))


@pytest.mark.parametrize(
    ("library", "size", "strategy"),
    [
        ("horovod-mpi", "9996B", "recursive-doubling"),
        ("horovod-mpi", "10000B", "ring"),
        ("horovod-mpich", "2048B", "recursive-doubling"),
        ("horovod-mpich", "2052B", "halving-doubling"),
        ("horovod-mpi-gpu", "8B", "halving-doubling"),
    ],
)
def test_an_mpi_library_chooses_by_the_size_of_a_message(library, size, strategy):
    [result] = reply(f"allreduce:{size}", "--library", library, "--workers", "16")
    assert result["strategy"] == strategy


def test_training_is_that_of_large_messages():
    [result] = reply("resnet-18", "--library", "horovod-mpi", "--workers", "4")
    assert result["strategy"] == "ring"
    assert find_library("horovod-mpi").for_message(8) != find_library("horovod-mpi")


def test_tensorflow_over_mpi_is_between_grpc_and_verbs():
    options = ("--workers", "16", "--bandwidth", "100Gbps", "--channel", "rdma")
    libraries = ("tensorflow-grpc", "tensorflow-mpi", "tensorflow-verbs", "tensorflow-gdr")
    took = [reply("resnet-50", "--library", one, *options)[0]["iteration_s"] for one in libraries]
    assert took == sorted(took, reverse=True)
