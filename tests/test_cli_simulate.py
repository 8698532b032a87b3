"""`paceline simulate`: its output and files, and options that it rejects because they would have no effect."""

import csv
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from functools import partial
from itertools import pairwise
from pathlib import Path

import cli
import paceline
import pytest
from paceline.forecast.progress import SweepInterrupted
from paceline.forecast.run import result_of

call = partial(cli.call, "simulate")

TINY = Path(__file__).parent.parent / "examples" / "tiny.json"
KEYS = str.split(
    "trace strategy workers servers bandwidth_bps iteration_s samples_per_s scaling_efficiency "
    "exposed_communication_s forward_s backward_s bytes_sent_per_worker messages compute_speedup"
)


def runs(*words):
    result = call(*words, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def refused(*words):
    return cli.refused("simulate", *words).removeprefix("paceline: error: ").rstrip()


def test_json_has_the_documented_keys():
    [run] = runs(TINY, "--workers", 4, "--strategy", "ring")
    assert set(KEYS) <= set(run)
    assert run["trace"] == "tiny"
    assert run["workers"] == 4
    assert run["servers"] == 0
    assert run["bandwidth_bps"] == 25e9
    assert run["samples_per_s"] == pytest.approx(4 * 32 / run["iteration_s"])
    assert run["scaling_efficiency"] == pytest.approx(0.039 / run["iteration_s"])
    assert run["exposed_communication_s"] == pytest.approx(run["iteration_s"] - 0.039)


def test_the_default_is_all_strategies_on_2_to_64_workers():
    table = runs("allreduce:1MB")
    # Parameter servers come last: they are not what is compared with unless they are asked for.
    names = [one.name for one in sorted(paceline.all_strategies(), key=lambda one: "servers" in one.knobs)]
    assert [(run["workers"], run["strategy"]) for run in table] == [
        (workers, name) for workers in (2, 4, 8, 16, 32, 64) for name in names
    ]
    assert all(run["bandwidth_bps"] == 25e9 and run["servers"] in (0, 1) for run in table)


def test_a_sweep_is_the_product_in_order():
    table = runs(
        *(TINY, "--workers", "8,2", "--bandwidth", "100Gbps,10Gbps", "--compute-speedup", "2,1"),
        *("--strategy", "ring,ps", "--servers", "2,1"),
    )
    keys = ("workers", "bandwidth_bps", "compute_speedup", "strategy", "servers")
    assert [tuple(run[key] for key in keys) for run in table] == [
        (workers, rate, speedup, *strategy)
        for workers in (8, 2)
        for rate in (100e9, 10e9)
        for speedup in (2, 1)
        for strategy in (("ring", 0), ("ps", 2), ("ps", 1))
    ]
    for run in table:
        alone = paceline.simulate(
            TINY,
            strategy=run["strategy"],
            workers=run["workers"],
            bandwidth=f"{run['bandwidth_bps']:.0f}bps",
            compute_speedup=run["compute_speedup"],
            servers=run["servers"] or None,
        )
        assert alone.to_dict() == run


def test_two_runs_print_the_same_bytes():
    words = [TINY, "--workers", "2,3,16", "--servers", "1,3"]
    assert call(*words, "--json").stdout == call(*words, "--json").stdout
    assert call(*words).stdout == call(*words).stdout


def test_aliases_are_the_strategy_and_run_once():
    alias = runs(TINY, "--workers", 4, "--strategy", "butterfly,recursive-doubling,butterfly-mixing")
    assert alias == runs(TINY, "--workers", 4, "--strategy", "recursive-doubling")
    assert len(alias) == 1


def test_servers_concern_only_strategies_that_have_them():
    table = runs("allreduce:1MB", "--workers", 4, "--servers", "1,2", "--strategy", "ps,ring")
    assert [(run["strategy"], run["servers"]) for run in table] == [("ps", 1), ("ps", 2), ("ring", 0)]


def test_built_in_names_may_be_written_without_hyphens():
    assert runs("netopvgg16", "--workers", 2, "--strategy", "ring") == runs(
        "netop-vgg-16", "--workers", 2, "--strategy", "ring"
    )


def test_csv_has_units_in_its_header():
    result = call(TINY, "--workers", "2,4", "--strategy", "ps,ring", "--csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(rows) == 4
    assert {"iteration_s", "bandwidth_bps", "exposed_communication_s", "bottleneck"} <= set(rows[0])
    assert float(rows[0]["iteration_s"]) > 0
    assert call("allreduce:1MB", "--csv", "--json").exit_code == 2


def test_the_table_is_sorted_and_says_what_bounds_it():
    text = call(TINY, "--workers", 16, "--strategy", "ps,ring,tree").stdout
    rows = [line.split() for line in cli.table(text)[1]]
    assert {row[0] for row in rows} == {"ps", "ring", "tree"}
    times = [float(row[1]) for row in rows]
    assert times == sorted(times)
    assert "vs ps" in text
    assert {"Bottleneck", "Would help"} <= set(cli.facts(text))
    assert "\x1b" not in text


def test_the_last_words_are_computed():
    ring, ps = (
        paceline.simulate(TINY, strategy=name, workers=16, library="none").iteration_s for name in ("ring", "ps")
    )
    faster = paceline.simulate(TINY, strategy="ring", workers=16, bandwidth="50Gbps", library="none").iteration_s
    answer = cli.facts(call(TINY, "--workers", 16, "--strategy", "ps,ring", "--library", "none").stdout)
    assert answer["Strategy"].startswith(f"ring is fastest, {ps / ring:.2f}x as fast as ps")
    assert f"{ring / faster:.2f}x 2x network bandwidth" in answer["Would help"]


def test_the_verdict_begins_with_what_the_library_runs():
    words = ["resnet-50", "--gpus", 64, "--gpus-per-node", 8, "--bandwidth", "25Gbps"]
    said = call(*words).stdout
    assert said.startswith("resnet-50, DDP (NCCL), 64 GPUs: 158 ms/iteration, 12,979 samples/s\n")
    answer = cli.facts(said)
    assert answer["Scaling"].startswith("61.6% of linear")
    assert answer["Likely"].endswith("samples/s (80%)")
    assert answer["Strategy"] == "DDP (halving-doubling) is 1.33x faster (unmeasured with DDP)"
    explained = call(*words, "--explain").stdout.splitlines()[0]
    assert "native" in explained or "DDP (NCCL)" in explained


def test_the_channel_is_said_where_it_is_and_where_it_changes():
    def text(*words):
        return call(TINY, "--workers", 16, "--strategy", "native", *words).stdout

    changes = "Assumed TCP up to 25 Gbps and RDMA from 26 Gbps (--channel keeps one)"
    assert changes in cli.notes(text("--bandwidth", "20Gbps,25Gbps,26Gbps"))
    slow = text("--bandwidth", "20Gbps,25Gbps")
    assert cli.facts(slow)["Setup"].endswith("20 Gbps, TCP, 37 us") and not cli.notes(slow)
    one = cli.facts(text("--bandwidth", "25Gbps"))
    assert "2x network bandwidth, still over TCP" in one["Would help"]
    assert one["Setup"].endswith("25 Gbps, TCP, 37 us")
    assert "still over TCP" not in text("--bandwidth", "10Gbps")
    assert "still over TCP" in text("--bandwidth", "25Gbps", "--explain")


def test_several_libraries_have_their_own_rows_and_verdicts():
    words = [TINY, "--workers", "4,8", "--library", "ddp,byteps"]
    actual = runs(*words)
    rows = [(one["library"], one["strategy"], one["workers"]) for one in actual]
    own = paceline.simulate(TINY, workers=8, library="byteps")
    assert rows == [(name, of, n) for name, of in (("ddp", "native"), ("byteps", own.strategy)) for n in (4, 8)]
    assert actual[3]["iteration_s"] == own.iteration_s
    said = call(*words).stdout
    assert "tiny, DDP (NCCL), 8 workers: " in said and "\ntiny, byteps, 8 workers: " in said
    assert "\nlibrary " in said
    both = runs(TINY, "--workers", 4, "--library", "ddp,horovod", "--strategy", "ring,tree")
    assert [(one["library"], one["strategy"]) for one in both] == [
        (library, strategy) for library in ("ddp", "horovod") for strategy in ("ring", "tree")
    ]
    swept = paceline.sweep(TINY, None, "native", workers=4, library=["ddp", "horovod"])
    assert [one.library for one in swept] == ["ddp", "horovod"]
    assert "listed twice" in refused(TINY, "--library", "ddp,ddp")


def test_one_strategy_is_compared_with_the_others():
    answer = cli.facts(call(TINY, "--workers", 16, "--strategy", "ps", "--library", "none").stdout)
    assert answer["Strategy"] == "ring would be 5.56x faster"


def test_all_reduces_show_bus_bandwidth():
    text = call("allreduce:100MB", "--workers", 8, "--strategy", "ring").stdout
    assert text.startswith("allreduce:100MB, ring, 8 workers: 56 ms, bus bandwidth 25 Gbps\n")
    assert "samples/s" not in text
    assert "busbw Gbps" in call("allreduce:100MB", "--workers", 8, "--strategy", "ring,tree").stdout


def test_one_worker_is_legal():
    for trace in (TINY, "allreduce:1MB"):
        assert call(trace, "--workers", 1).exit_code == 0


def test_degenerate_cases_say_what_they_became():
    text = call("allreduce:1MB", "--workers", 4, "--strategy", "hierarchical").stdout
    assert "hierarchical is ring here (1 GPU per node)" in cli.notes(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategy", "ring", "--servers", "2"], "--servers: has no effect on ring"),
        (["--strategy", "ring,tree", "--placement", "even"], "--placement: has no effect on ring, tree"),
        (["--strategy", "ps-multicast", "--distribution", "block"], "--distribution: has no effect"),
        (["--strategy", "ring", "--pull", "step"], "--pull: has no effect"),
        (["--strategy", "ps,ring", "--inside", "root"], "--inside: has no effect"),
        (["--intra-bandwidth", "100Gbps"], "--intra-bandwidth: has no effect with one GPU per node"),
        (["--strategy", "hierarchical", "--inside", "root"], "--inside: has no effect with one GPU per node"),
        (["--seed", "3"], "--seed: needs a cluster with jitter"),
        (["--no-overlap"], "--no-overlap: needs computation, and allreduce:1MB computes nothing"),
        (["--compute-speedup", "2"], "--compute-speedup: needs computation, and allreduce:1MB computes nothing"),
        (["--samples-per-s", "100"], "computes nothing"),
        (["--batch", "64"], "a batch changes nothing"),
        (["--executor", "dask"], "try: --executor local (one of local, ray)"),
        (["--strategy", "ps", "--placement", "even", "--chunk", "whole"], "drop --chunk"),
    ],
)
def test_what_would_have_no_effect_is_refused(words, said):
    assert said in refused("allreduce:1MB", "--workers", 4, *words)


def test_a_knob_reaches_the_strategies_that_use_it():
    words = [TINY, "--workers", 8, "--strategy"]
    both = runs(*words, "ps,ring", "--servers", 4, "--placement", "even", "--pull", "step")
    [ps] = runs(*words, "ps", "--servers", 4, "--placement", "even", "--pull", "step")
    [ring] = runs(*words, "ring")
    assert both == [ps, ring]


def test_options_that_have_an_effect_are_accepted(tmp_path):
    cluster = tmp_path / "jittery.json"
    cluster.write_text(
        '{"format": "paceline-cluster", "version": 1, "bandwidth": "10Gbps", "jitter": {"sigma": 0.1}, '
        '"servers": "colocated"}'
    )
    first, second = (runs(TINY, "--cluster", cluster, "--workers", 4, "--seed", seed) for seed in (1, 2))
    assert first != second
    assert first[0]["bandwidth_bps"] == 10e9
    assert runs(TINY, "--cluster", cluster, "--bandwidth", "1Gbps", "--workers", 4)[0]["bandwidth_bps"] == 1e9
    assert runs(TINY, "--cluster", cluster, "--workers", 4, "--strategy", "ps", "--intra-bandwidth", "1Gbps")
    everything = (
        *("--workers", 8, "--gpus-per-node", 4, "--intra-bandwidth", "300Gbps", "--latency", "10us"),
        *("--network", "fluid", "--bucket-size", "1MB", "--chunk", "64KiB", "--distribution", "block"),
        *("--pull", "step", "--inside", "root", "--barrier", "--no-overlap", "--iterations", 2),
        *(
            "--samples-per-s",
            100,
            "--batch",
            64,
            "--dtype",
            "float16",
            "--add-module",
            "network:2",
            "--executor",
            "local",
            "--coordinator",
            "none",
        ),
    )
    assert len(runs(TINY, *everything)) == len(paceline.all_strategies())


def test_another_batch_and_another_element_type():
    [before] = runs("resnet-50", "--workers", 4, "--strategy", "ring")
    [after] = runs("resnet-50", "--workers", 4, "--strategy", "ring", "--batch", 64, "--dtype", "float16")
    assert (after["batch"], after["gradient_bytes"]) == (64, before["gradient_bytes"] / 2)
    assert after["bytes_sent_per_worker"] == before["bytes_sent_per_worker"] / 2
    assert after["backward_s"] == pytest.approx(2 * before["backward_s"])
    assert after["optimizer_s"] == before["optimizer_s"]
    [rated] = runs("resnet-50", "--workers", 1, "--strategy", "ring", "--batch", 64, "--samples-per-s", 100)
    assert rated["iteration_s"] == pytest.approx(0.64)


def test_copies_and_additions_of_the_cluster_bound_the_iteration(tmp_path):
    cluster = tmp_path / "staged.json"
    text = '{"format": "paceline-cluster", "version": 1, "bandwidth": "25Gbps", "host_bandwidth": "%s"%s}'
    words = ["allreduce:100MB", "--cluster", cluster, "--workers", 8, "--strategy", "ring"]
    cluster.write_text(text % ("5Gbps", ""))
    assert runs(*words)[0]["iteration_s"] == pytest.approx(2 * 7 / 8 * 0.16)
    assert cli.facts(call(*words).stdout)["Bottleneck"].startswith("host copies, ")
    cluster.write_text(text % ("50Gbps", ', "reduction_bandwidth": "1Gbps"'))
    assert runs(*words)[0]["iteration_s"] == pytest.approx(7 / 8 * (2 * 0.032 + 0.8))
    answer = cli.facts(call(*words).stdout)
    assert answer["Bottleneck"].startswith("additions, ")
    assert "2x rate of additions" in answer["Would help"]


def test_strategies_the_switch_cannot_do(tmp_path):
    result = call(TINY, "--cluster", "p3.16xlarge", "--workers", 16, "--json")
    assert result.exit_code == 0
    skipped = "Skipped 5 strategies that p3.16xlarge switches do not support: ring-multicast, sharp, ps-multicast"
    assert " ".join(result.stderr.split()).startswith(f"paceline: note: {skipped}")
    assert result.stderr.count("paceline: ") == 1
    assert not any("multicast" in run["strategy"] for run in json.loads(result.stdout))
    said = refused(TINY, "--cluster", "p3.16xlarge", "--strategy", "all,ring-multicast")
    assert "ring-multicast needs multicast" in said


def test_placement_by_hand(tmp_path):
    table = tmp_path / "placement.json"
    bare = (TINY, "--library", "none", "--workers", 4, "--strategy", "ps,ring", "--servers", 2)

    def place(text, *words):
        table.write_text(text)
        return (*bare, "--placement", table, *words)

    good = '{"fc.weight": 0, "conv.weight": 1, "conv.bias": 1}'
    assert [run["servers"] for run in runs(*place(good))] == [2, 0]
    round_robin = runs(*place('{"fc.weight": 0, "conv.weight": 0, "conv.bias": 1}'))
    by_hand = {"placement": "placement.json"}
    assert [run for run in round_robin if run["servers"]] == [run | by_hand for run in runs(*bare) if run["servers"]]
    for text, said in [
        ('{"fc.weight": 0, "conv.weight": 1}', '"conv.bias": is missing'),
        ('{"fc.weight": 0, "conv.weight": 1, "conv.bias": 1, "conv.wait": 0}', "conv.weight"),
        (
            '{"fc.weight": 0, "conv.weight": 2, "conv.bias": 1}',
            '"conv.weight": there is no server 2 among 2, numbered from 0',
        ),
        ('{"fc.weight": -1, "conv.weight": 0, "conv.bias": 1}', '"fc.weight": there is no server -1 among 2'),
        (
            '{"fc.weight": true, "conv.weight": 0, "conv.bias": 1}',
            '"fc.weight": must be the number of a server',
        ),
        ('{"fc.weight": 0, "fc.weight": 1}', '"fc.weight": appears twice'),
        ("[1, 2]", "must be an object"),
        ('{"fc.weight": NaN}', "NaN is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ("", "is not JSON"),
    ]:
        assert said in refused(*place(text)), text
    fused = refused(*place('{"fc.weight": 0, "conv.weight": 1, "conv.bias": 0}', "--bucket-size", "1GB"))
    assert "are one bucket, on servers 1 and 0" in fused
    assert "try: --bucket-size none" in fused
    table.write_bytes(b"\xff\xfe\x00")
    assert "is not JSON" in refused(TINY, "--placement", table)
    assert "--placement: no such file" in refused(TINY, "--placement", tmp_path / "none.json")
    assert "is a directory" in refused(TINY, "--placement", tmp_path)


def test_a_timeline_is_a_chrome_trace(tmp_path):
    path = tmp_path / "timeline.json"
    [run] = runs(TINY, "--workers", 4, "--strategy", "ps", "--servers", 2, "--timeline", path)
    events = json.loads(path.read_text())["traceEvents"]
    tracks = defaultdict(list)
    for event in events:
        assert {"ph", "pid", "tid", "name"} <= set(event)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert max(end for spans in tracks.values() for _, end in spans) >= run["iteration_s"] * 1e6
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"worker 0", "worker 1", "worker 2", "worker 3", "server 0", "server 1"}
    for spans in tracks.values():
        ordered = sorted(spans)
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(ordered))


def test_a_timeline_shows_one_run(tmp_path):
    said = refused(TINY, "--workers", "2,4", "--bandwidth", "1Gbps,2Gbps", "--timeline", tmp_path / "t.json")
    assert "one" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--timeline", "--plot"])
def test_output_folders_are_checked_first(tmp_path, option):
    one_run = (TINY, "--workers", 2, "--strategy", "ring")
    assert "does not exist" in refused(*one_run, option, tmp_path / "no" / "out.png")
    assert "is a folder" in refused(*one_run, option, tmp_path)
    if option == "--plot":
        assert "unknown kind of file" in refused(*one_run, option, tmp_path / "plot.gif")


@pytest.mark.parametrize(
    ("name", "begins"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.html", b"<!doctype html>"), ("p.pdf", b"%PDF")]
)
def test_plots(tmp_path, name, begins):
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    assert call(TINY, "--workers", "2,4", "--strategy", "ps,ring", "--servers", "1,2", "--plot", path).exit_code == 0
    assert path.read_bytes().startswith(begins)
    assert list(tmp_path.iterdir()) == [path]


def test_without_matplotlib_a_plot_says_what_to_install(tmp_path, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else real(name, *rest)
    )
    assert "pip install '.[plot]'" in refused(TINY, "--plot", tmp_path / "p.png")


def test_a_failure_of_one_run_names_it():
    words = ("--strategy", "ring,ps", "--distribution", "block", "--no-barrier")
    assert refused(TINY, "--workers", "2,4", *words).startswith("ps with 2 workers: --distribution: block")


def test_ring_of_a_thousand_workers_meets_the_closed_form():
    [run] = runs(
        *("allreduce:100MB", "--workers", 1024, "--bandwidth", "25Gbps", "--latency", "10us"),
        *("--strategy", "ring", "--chunk", "per-worker"),
    )
    assert run["iteration_s"] == pytest.approx(84.3975e-3, rel=1e-4)
    assert run["messages"] == 2_095_104


def test_a_published_rate_of_a_device():
    for option, name in (("--gpu", "a100"), ("--device", "A100")):
        reply = call("resnet-50", option, name, "--workers", 1, "--strategy", "ring", "--json")
        # Where the rate was measured: devices' rates are for other batches and programs.
        assert f"note: {option}: 938 samples/s at batch 256 on one A100-80GB" in reply.stderr
        [run] = json.loads(reply.stdout)
        assert (run["batch"], run["samples_per_s"]) == (256, pytest.approx(938))
        assert f"drop --batch, or drop {option}" in refused("resnet-50", option, name, "--batch", 4)
    assert "no published rate of resnet-50 on 'T4'" in refused("resnet-50", "--device", "T4")
    assert "no published rate of tiny is known" in refused(TINY, "--device", "V100")
    assert "or paceline record --gpu v100-16gb " in refused(TINY, "--gpu", "v100")
    # Of what is a model, too, --gpu computes it.
    computed, rescaled = (
        json.loads(call("bert-large", option, "V100", "--workers", 1, "--strategy", "ring", "--json").stdout)[0]
        for option in ("--gpu", "--device")
    )
    assert "assumed" in computed and "assumed" not in rescaled
    shown = cli.call("traces", "resnet-50").output
    assert "938 samples/s at batch 256" in " ".join(shown.split())


def test_native_is_a_tree_for_little_and_the_ring_for_much():
    def times(size):
        rows = runs(f"allreduce:{size}", "--cluster", "longhorn", "--workers", 256, "--strategy", "ring,native,tree")
        return {row["strategy"]: row["iteration_s"] for row in rows}

    little, much = times("16KiB"), times("256MiB")
    assert little["native"] < 0.5 * little["ring"]
    assert much["native"] == pytest.approx(much["ring"], rel=0.1)


def test_native_needs_a_library_underneath():
    result = cli.refused("run", "-np", "2", "--strategy", "native", "--", "python", "-c", "pass")
    assert "the all-reduce of a library" in result


def test_gpus_are_workers():
    assert runs(TINY, "--gpus", "2,4", "--strategy", "ring") == runs(TINY, "--workers", "2,4", "--strategy", "ring")
    assert refused(TINY, "--gpus", 4, "--workers", 4) == "--gpus: means the same as --workers\n  try: drop --gpus"
    assert refused(TINY, "--gpus", 0) == "--gpus: must be 1-1000000, not 0\n  try: --gpus 1"
    done = cli.call("validate", "--gpus", "2", "--workers", "2")
    assert (done.exit_code, "--gpus: means the same as --workers" in done.stderr) == (2, True)


def test_lists_make_columns_only_where_they_vary():
    words = ("--gpus", 4, "--strategy", "ring", "--latency", "5us,50us", "--bucket-size", "none,25MB")
    table = runs(TINY, "allreduce:1MB,allreduce:2MB", *words)
    keys = [
        (run["trace"], run["latency_s"], run["bucket_size"], run["cluster"], run["schema_version"]) for run in table
    ]
    assert keys == [
        (trace, latency, size, "flat", 1)
        for trace in ("tiny", "allreduce:1MB", "allreduce:2MB")
        for latency in (5e-6, 50e-6)
        for size in (None, 25_000_000)
    ]
    text = call(TINY, *words).stdout
    assert "latency" in text and "bucket" in text and "\ntrace" not in text
    assert "bucket" not in call(TINY, "--gpus", 4, "--strategy", "ring").stdout


def test_a_straggler_is_one_of_the_ranks():
    [slow] = runs(TINY, "--gpus", 16, "--strategy", "ring", "--straggler", "13:2")
    same = paceline.simulate(TINY, workers=16, strategy="ring", stragglers=[{"rank": 13, "factor": 2.0}])
    assert slow["iteration_s"] == same.iteration_s > paceline.simulate(TINY, workers=16, strategy="ring").iteration_s
    assert paceline.simulate(TINY, workers=16, strategy="ring", stragglers="13:2") == same
    assert paceline.simulate(TINY, workers=16, strategy="ring", stragglers={13: 2}) == same
    with pytest.raises(paceline.InvalidArgumentError, match="unknown option 'straggler'\n  try: stragglers"):
        paceline.simulate(TINY, workers=16, straggler={13: 2})
    with pytest.raises(
        paceline.InvalidArgumentError, match=r"^stragglers: a rank .*'3-4'\n  try: stragglers='13:1\.2'"
    ):
        paceline.simulate(TINY, workers=16, stragglers={"3-4": 2})
    with pytest.raises(paceline.InvalidArgumentError, match=r"^stragglers: .*0\.01-1000, not '0'"):
        paceline.simulate(TINY, workers=16, stragglers={13: 0})
    for wrong, why in (
        ("13", "'13' is not RANK:FACTOR"),
        ("13:0", "must be a factor, 0.01-1000, not '0'"),
        ("1:2,1:3", "rank 1 is listed twice"),
        ("16:2", "there is no rank 16 with 16 workers"),
    ):
        assert refused(TINY, "--gpus", 16, "--straggler", wrong).startswith(f"--straggler: {why}"), wrong


def test_the_verdict_comes_first_then_the_five_best():
    text = call(TINY, "--gpus", 16).stdout
    assert text.startswith("tiny, DDP (NCCL), 16 GPUs: ")
    *rows, rest = cli.table(text)[1]
    assert rest == f"{len(paceline.all_strategies()) - 5} more strategies: --all"
    assert len(rows) == 5 and not any(row.startswith(("ps", "sharded-ps")) for row in rows)
    for words in (("--all",), ("--strategy", "all")):
        _, rows = cli.table(call(TINY, "--gpus", 16, *words).stdout)
        assert len(rows) == len(paceline.all_strategies()), words
    # Parameter servers are meant where they are asked for.
    assert "vs ps" in call(TINY, "--gpus", 16, "--servers", 2).stdout
    assert "--all has no effect with --json" in refused(TINY, "--all", "--json")


@pytest.mark.parametrize("form", ["--json", "--csv", None])
def test_what_is_done_is_printed_and_marked(form, monkeypatch):
    def interrupted(scenarios, *_):
        raise SweepInterrupted({0: result_of(scenarios[0])}, len(scenarios))

    monkeypatch.setattr("paceline.forecast.execute.execute", interrupted)
    monkeypatch.setattr("paceline.cli.main.leave_threads", lambda _code: None)  # would end the tests
    done = call(TINY, "resnet-50", "--gpus", "2,4", "--strategy", "ring", *([form] if form else []))
    assert "paceline: interrupted after 1 of 4 forecasts" in done.stderr
    assert done.exit_code == 130
    if form == "--json":
        assert [run["incomplete"] for run in json.loads(done.stdout)] == [{"finished": 1, "scenarios": 4}]
    elif form == "--csv":
        assert [row["incomplete"] for row in csv.DictReader(io.StringIO(done.stdout))] == ["1 of 4"]
    else:
        assert done.stdout.startswith("incomplete: interrupted after 1 of 4 forecasts\n\ntiny, DDP (ring), 2 GPUs: ")


@pytest.mark.slow
def test_ctrl_c_of_a_real_sweep():
    words = [sys.executable, "-m", "paceline.cli", "simulate", "resnet-200", str(TINY), "--gpus", "2,4000"]
    words += ["--strategy", "ring", "--json"]
    # One of four takes ten times as long as the one that begins before it; how long depends on the machine.
    for patience_s in (1, 2, 3, 5, 8, 16, 32):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(patience_s)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:  # It was still starting, when Python handles no signal.
            process.kill()
            _, err = process.communicate()
            continue
        if process.returncode != 130:
            continue
        if actual := re.search(r"paceline: interrupted after ([1-3]) of 4 forecasts", err):
            assert len(json.loads(out)) == int(actual[1])
            return
    pytest.fail(f"nothing was done after {patience_s} s: {err}")
