"""`paceline validate`: cells, disturbances by the machine, output and files."""

import csv
import io
import json
import sys
from itertools import pairwise

import cli
import paceline
import pytest
from paceline_lab.cli import validate as cli_validate
from paceline_lab.validate import cells as all_cells
from paceline_lab.validate.cells import Network, Selection, auto_shrink, cells
from paceline_lab.validate.compare import ComparisonOptions, compare
from paceline_lab.validate.plot import figure
from paceline_lab.validate.real import MOST_RUNS
from paceline_lab.validate.timeline import both
from validate_workers.clusters import Invented, Local

pytestmark = pytest.mark.timed

RATE = 500e6
NETWORK = Network((RATE,))
KEYS = {
    *("trace", "strategy", "sharding", "compression", "workers", "servers", "staleness", "ranks_per_host"),
    *("updates", "rate_bps", "shrink", "scale"),
    *("measured_s", "measured_min_s", "measured_max_s", "simulated_s", "error", "network", "simulated_fifo_s"),
    *("simulated_fluid_s", "repeats", "disturbed", "undisturbed", "runs", "late_s", "cpu_s", "cpu_share", "steal_s"),
    *("involuntary_switches", "realtime", "fidelity"),
}


def some(strategy="ring", workers=4, servers=1, trace="resnet-50"):
    return cells([Selection((trace,), (strategy,), (workers,), (servers,))], NETWORK)


def quietly(*_):
    pass


@pytest.fixture
def invented(monkeypatch):
    made = Invented()
    monkeypatch.setattr(cli_validate, "emulator", lambda: made)
    return made


def run(*words):
    ended = cli.call("validate", *words)
    return ended.exit_code, ended.stdout, ended.stderr


@pytest.mark.parametrize(("tier", "least", "most"), [("QUICK", 10, 12), ("DEFAULT", 55, 80), ("FULL", 300, 700)])
def test_tiers_have_their_sizes_and_every_strategy(tier, least, most):
    result = cells(getattr(all_cells, tier), NETWORK)
    assert least <= len(result) <= most
    assert len(set(result)) == len(result)
    assert {cell.strategy.name for cell in result} == {
        entry.name for entry in paceline.all_strategies() if not entry.is_offloaded
    }


def test_bytes_are_divided_for_the_rate():
    trace = paceline.load_trace("netop-vgg-16")
    size = trace.gradient_bytes
    for rate in (100e6, 500e6, 10e9):
        shrink = auto_shrink(trace, rate)
        assert shrink == 1 or size * 8 / rate / shrink == pytest.approx(all_cells.LINK_S, rel=0.2)
    assert auto_shrink(paceline.load_trace("allreduce:1GB"), 1e8) == 1


def test_times_are_multiplied_where_many_ranks_share_a_core(monkeypatch):
    monkeypatch.setattr(all_cells, "cores", lambda: 2)
    assert [cell.scale for workers in (2, 4, 8) for cell in some("ring", workers)] == [1, 1, 4]
    assert [cell.scale for cell in some("ring", 8, trace=all_cells.SMALL)] == [1]
    (few,), (many,) = some("ring", 4), some("ring", 8)
    assert many.shrink * many.scale == pytest.approx(few.shrink, rel=0.2)


def test_sharded_cells_fuse_and_name_their_groups():
    result = cells([Selection(("resnet-50",), ("all",), (2, 4), shardings=("zero1", "hsdp"))], NETWORK)
    able = {"ring", "halving-doubling", "hierarchical"}
    assert {cell.strategy.name for cell in result} <= able and "ring" in {cell.strategy.name for cell in result}
    ring = [cell for cell in result if cell.strategy.name == "ring"]
    assert [(cell.workers, cell.sharding, cell.ranks_per_host) for cell in ring] == [
        (2, "zero1", 1),
        (2, "hsdp:1", 1),
        (4, "zero1", 1),
        (4, "hsdp:2", 2),
    ]
    assert {cell.bucket_size for cell in ring} == {f"{int(25 * 2**20 / ring[0].shrink)}B"}
    with pytest.raises(
        paceline.InvalidArgumentError, match="ps has no all-gather and reduce-scatter, which sharded ranks need"
    ):
        cells([Selection(("resnet-50",), ("ps",), (2,), shardings=("zero1",))], NETWORK)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sharding", "zero3", "--full"], "--sharding and --full cannot be combined"),
        (["--sharding", "zero3", "--servers", "2"], "--sharding and --servers cannot be combined"),
        (["--sharding", "zero9"], "zero9"),
        (["--sharding", "zero3", "--compression", "fp16"], "--sharding and --compression cannot be combined"),
        (["--compression", "fp16", "--full"], "--compression and --full cannot be combined"),
        (["--compression", "fp16", "--here"], "--compression has no effect with --here: compressed exchanges"),
        (["--compression", "fp61"], "try: fp16 ("),
        (
            ["--compression", "powersgd:2", "--shrink", "4"],
            "--compression: powersgd:2 needs the shapes of tensors",
        ),
    ],
)
def test_mistakes_about_plans_are_named(words, message):
    code, _, said = run(*words)
    assert code == 2 and message in said


def compressed(*methods, strategies=("all",), traces=("resnet-50",), network=NETWORK):
    return cells([Selection(traces, strategies, (4,), compressions=methods)], network)


def test_what_is_compressed_decides_strategies_buckets_and_bytes():
    result = compressed("none", "fp16", "int8", "powersgd:4")
    able = {
        method: {cell.strategy.name for cell in result if cell.compression == method} for method in ("fp16", "int8")
    }
    assert able["int8"] == {"ring", "halving-doubling", "hierarchical"}
    assert able["fp16"] == {cell.strategy.name for cell in result if cell.compression == "none"} > able["int8"]
    assert not any(cell.servers or cell.needs_switch for cell in result)
    ring = {cell.compression: cell for cell in result if cell.strategy.name == "ring"}
    assert {method: cell.bucket_size for method, cell in ring.items()} == {
        **dict.fromkeys(("none", "fp16", "int8"), f"{int(25 * 2**20 / ring['fp16'].shrink)}B"),
        "powersgd:4": f"{25 * 2**20}B",
    }
    assert ring["powersgd:4"].shrink == 1 < ring["int8"].shrink
    assert {(cell.sharding, cell.planned_sharding) for cell in result} == {(None, "none")}


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ({"strategies": ("ps",)}, "ps exchanges by servers or the switch"),
        ({"strategies": ("tree",)}, "tree has no all-gather, which int8 needs"),
        ({"traces": ("netop-vgg-16",)}, "nobody measured what int8 takes to compute on the device of netop-vgg-16"),
        ({"traces": ("allreduce:8MB",)}, "needs computation, and allreduce:8MB computes nothing"),
    ],
)
def test_compressions_that_cannot_be_compared_are_refused(selected, message):
    with pytest.raises(paceline.InvalidArgumentError, match=message):
        compressed("int8", **selected)


def test_compressed_cells_are_replayed_as_they_are_simulated(invented):
    code, out, _ = run("--compression", "none,topk:0.01", "--strategy", "ring", "--quick", "--json")
    assert code == 0
    plain, sparse = json.loads(out)["rows"]
    assert (plain["compression"], sparse["compression"]) == ("none", "topk:0.01")
    for row, (command, *_) in zip((plain, sparse), invented.runs, strict=True):
        words = command[command.index("--sharding") :]
        assert words[:4] == ["--sharding", "none", "--compression", row["compression"]]
        simulated = paceline.simulate(
            all_cells.shrunk(paceline.load_trace("resnet-50"), row["shrink"]),
            paceline.load_cluster(None, bandwidth="500Mbps"),
            "ring",
            workers=4,
            library="none",
            bucket_size=words[-1],
            compression=row["compression"],
            sharding="none",
        )
        assert row["simulated_s"] == pytest.approx(simulated.iteration_s, rel=1e-6)
    code, out, _ = run("--compression", "none,topk:0.01", "--strategy", "ring", "--quick")
    assert [line.split()[:2] for line in out.splitlines() if line.startswith(("strategy  comp", "ring  "))][:3] == [
        *(["strategy", "compression"], ["ring", "none"], ["ring", "topk:0.01"])
    ]


ASYNCHRONOUS = ["--strategy", "async-ps,ps", "--workers", "2", "--repeats", "2"]


def test_asynchronous_workers_are_compared_by_time_and_staleness(invented):
    code, out, err = run(*ASYNCHRONOUS, "--servers", "1,2", "--staleness", "none,0,2", "--network", "fluid", "--json")
    assert code == 0, err
    said = json.loads(out)["rows"]
    own = [row for row in said if row["strategy"] == "async-ps"]
    cells = [(servers, bound) for servers in (1, 2) for bound in ("none", 0, 2)]
    assert [(row["servers"], row["staleness"]) for row in own] == cells
    assert [(row["staleness"], row["updates"]) for row in said if row["strategy"] == "ps"] == [(None, None)] * 2
    for row, (command, _, settings) in zip(
        own, [one for one in invented.runs if one[2]["strategy"] != "ps"], strict=True
    ):
        option = dict(pairwise(command))
        # Their order settles first; then two windows of ten iterations are measured.
        assert (option["--warmup"], option["--iterations"]) == ("10" if row["staleness"] == 0 else "120", "20")
        assert settings == {
            "strategy": "async-ps",
            "servers": row["servers"],
            **({} if row["staleness"] == "none" else {"staleness": row["staleness"]}),
        }
        simulated = paceline.simulate(
            all_cells.shrunk(paceline.load_trace("resnet-50"), row["shrink"]),
            paceline.load_cluster(None, bandwidth="500Mbps"),
            "async-ps",
            workers=2,
            library="none",
            servers=row["servers"],
            staleness=row["staleness"],
            network="fluid",
            pull="step",
        )
        assert row["measured_s"] == pytest.approx(1.0)
        assert row["simulated_s"] == pytest.approx(simulated.iteration_s, rel=1e-6)
        updates, forecast = row["updates"], simulated.asynchronous
        assert (updates["measured_mean"], updates["measured_most"]) == (pytest.approx(0.7), 1)
        assert updates["measured_shares"] == [[0, 0.3], [1, 0.7]]
        assert updates["simulated_mean"] == pytest.approx(forecast.mean_staleness)
        assert updates["simulated_most"] == forecast.max_staleness
        shares = {each: count / sum(count for _, count in forecast.staleness) for each, count in forecast.staleness}
        assert dict(updates["simulated_shares"]) == pytest.approx(shares)
        assert updates["distance"] == pytest.approx(abs(shares[0] - 0.3))
    assert "staleness 0.70 and 0.50" in err


def test_staleness_is_printed(invented):
    invented.staleness = tuple((each, 10) for each in range(10))
    code, out, _ = run(*ASYNCHRONOUS, "--staleness", "0")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["async-ps", "0", "2", "1"] in [words[:4] for words in lines]
    assert ["ps", "-", "2", "1"] in [words[:4] for words in lines]
    measured = next(words for words in lines if "measured" in words and words[0] == "0")
    assert measured == ["0", "2", "1", "measured", "4.50", "9", *["10%"] * 3, "70%", "80%"]
    assert ["simulated", "0.50", "1", "50%", "50%", "0%", "0%"] in lines
    code, out, _ = run(*ASYNCHRONOUS, "--csv")
    asynchronous, synchronous = csv.DictReader(io.StringIO(out))
    assert (asynchronous["staleness"], asynchronous["staleness_measured_mean"]) == ("none", "4.5")
    assert (synchronous["staleness"], synchronous["staleness_distance"]) == ("None", "None")


def test_a_hierarchy_has_hosts_with_two_ranks():
    (cell,) = some("hierarchical")
    assert (cell.ranks_per_host, cell.hosts) == (2, 2)
    assert some("hierarchical", 3)[0].ranks_per_host == some("ring")[0].ranks_per_host == 1


def test_multicasts_have_a_group():
    emulator = Invented()
    compare(some("ring-multicast"), emulator, ComparisonOptions(repeats=1), quietly)
    assert emulator.runs[0][2]["multicast"].startswith("239.")


def test_cells_are_grouped_by_hosts():
    emulator = Invented()
    answer = some("ring", 2) + some("ring", 4) + some("ps", 4, 2) + some("hierarchical", 4)
    result = compare(answer, emulator, ComparisonOptions(repeats=2), quietly)
    assert [(wanted["workers"], wanted["servers"]) for wanted in emulator.clusters] == [(4, 2), (2, 0)]
    assert [row.cell for row in result.rows] == answer
    assert [one[2]["strategy"] for one in emulator.runs] == ["ring", "ps", "ring", "hierarchical"]
    assert emulator.runs[1][2]["servers"] == 2
    assert emulator.runs[3][1] == 2
    assert all(row.fidelity == -0.011 for row in result.rows)


@pytest.mark.parametrize("what", [{"late_s": 0.3}, {"steal_s": 5.0}])
def test_disturbed_iterations_are_repeated_so_many_times(what):
    emulator = Invented(**what)
    (row,) = compare(some(), emulator, ComparisonOptions(repeats=3), quietly).rows
    assert len(emulator.runs) == MOST_RUNS
    said = row.to_dict()
    assert (said["runs"], said["disturbed"], said["repeats"], said["undisturbed"]) == (MOST_RUNS, 9, 9, False)


def test_a_run_that_was_disturbed_does_not_count():
    emulator = Invented(disturbed_runs=1)
    (row,) = compare(some(), emulator, ComparisonOptions(repeats=3), quietly).rows
    said = row.to_dict()
    assert (said["runs"], said["disturbed"], said["repeats"], said["undisturbed"]) == (2, 3, 3, True)
    assert said["measured_s"] == pytest.approx(1.0)


def test_json(invented):
    code, out, err = run("--strategy", "ring,ps,ps-multicast", "--workers", "2,4", "--json")
    assert code == 0
    said = json.loads(out)
    assert len(said["rows"]) + len(said["skipped"]) == 6
    for row in said["rows"]:
        assert set(row) == KEYS
        assert row["error"] == pytest.approx(row["simulated_s"] / row["measured_s"] - 1)
        assert row["rate_bps"] == RATE
    for one in said["skipped"]:
        assert one["reason"]
    assert set(said["summary"]) == {row["strategy"] for row in said["rows"]}
    sizes = [abs(row["error"]) for row in said["rows"]]
    assert said["overall"] == {
        "rows": len(sizes),
        "mean": pytest.approx(sum(sizes) / len(sizes)),
        "worst": pytest.approx(max(sizes)),
    }
    assert f"[{len(sizes)}/{len(sizes)}] resnet-50, " in err


def test_text_csv_and_plot(invented, tmp_path):
    path = tmp_path / "plot.png"
    words = ["--strategy", "ring,tree", "--workers", "4", "--plot", str(path)]
    code, out, _ = run(*words)
    assert code == 0
    assert "equivalent to 7 Gbps" in out
    assert [line.split()[0] for line in out.splitlines() if line.startswith(("ring ", "tree ", "all "))] == [
        *("ring", "tree", "ring", "tree", "all")
    ]
    assert path.read_bytes().startswith(b"\x89PNG")
    code, out, _ = run(*words, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["strategy"] for row in rows] == ["ring", "tree"]
    assert float(rows[0]["measured_s"]) == 1.0


def test_the_plot_has_every_row():
    result = compare(some("ring") + some("tree"), Invented(), ComparisonOptions(repeats=1), quietly)
    (axes,) = figure(result.rows).axes
    points = [tuple(points.get_offsets()[0]) for points in axes.collections[1:]]
    assert points == [(row.measured_s, row.simulated_s) for row in result.rows]


def test_a_run_that_fails_is_told_and_the_others_go_on(invented):
    invented.code = 3
    code, out, err = run("--strategy", "ring", "--json")
    assert code == 1
    said = json.loads(out)
    assert said["rows"] == []
    assert said["overall"] is None
    assert said["skipped"][0]["failed"]
    assert said["skipped"][0]["reason"] == "failed: exit code 3: rank 0: OSError: no route to host"
    assert "resnet-50, ring, 4 workers: failed" in err


def test_an_interrupted_run_ends_it_all(invented):
    invented.code = 130
    code, out, _ = run("--strategy", "ring,tree", "--json")
    assert code == 130
    assert len(invented.runs) == 1
    said = json.loads(out)
    assert said["rows"] == []
    assert [one["reason"] for one in said["skipped"]] == ["not run: ended by SIGINT"] * 2


def test_what_was_measured_before_an_interrupt_is_kept(invented, monkeypatch):
    before = type(invented).run

    def run_once(self, *words, **options):
        self.code = 130 if self.runs else 0
        return before(self, *words, **options)

    monkeypatch.setattr(type(invented), "run", run_once)
    code, out, _ = run("--strategy", "ring,tree", "--json")
    assert code == 130
    said = json.loads(out)
    assert [row["strategy"] for row in said["rows"]] == ["ring"]
    assert [one["strategy"] for one in said["skipped"]] == ["tree"]


def test_a_rank_without_a_result_is_named(invented):
    invented.silent = True
    code, out, _ = run("--strategy", "ring", "--json")
    assert code == 1
    assert "rank 0 left no result" in json.loads(out)["skipped"][0]["reason"]


def test_cells_that_take_too_long_are_skipped(invented):
    code, out, _ = run("--trace", "allreduce:10GB", "--strategy", "ring", "--json")
    assert code == 77
    assert "an iteration would take 240 s, more than 30 s" in json.loads(out)["skipped"][0]["reason"]
    assert invented.runs == []


def test_a_machine_that_cannot_is_said(monkeypatch):
    monkeypatch.setattr(cli_validate.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(cli_validate.CannotDoHereError, match="needs paceline emulate"):
        cli_validate.emulator()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trace", "resnet-5"], "unknown trace 'resnet-5'"),
        (["--strategy", "rings"], "unknown strategy 'rings'"),
        (["--scale", "0"], "--scale: must be a factor, 0.000001-1000000, not '0'"),
        (["--shrink", "much"], "--shrink: must be a factor, 0.000001-1000000, not 'much'"),
        (["--bandwidth", "500"], "no unit"),
        (["--workers", "0"], "must be 1-1000000, not 0"),
        (["--workers", "65"], "--workers: must be at most 64 ranks on one machine, not 65"),
        (["--strategy", "ring", "--servers", "2"], "--servers: has no effect on ring"),
        (["--strategy", "ring", "--staleness", "2"], "--staleness: has no effect on ring"),
        (["--strategy", "async-ps", "--staleness", "-1"], "--staleness"),
        (["--sharding", "zero1", "--staleness", "2"], "--sharding and --staleness cannot be combined"),
        (["--staleness", "2", "--full"], "--staleness and --full cannot be combined"),
        (["--staleness", "2", "--here"], "--staleness has no effect with --here: asynchronous workers"),
        (["--quick", "--full"], "cannot be combined"),
        (["--quick", "--trace", "resnet-50"], "--trace and --quick cannot be combined"),
        (["--json", "--csv"], "cannot be combined"),
        (["--plot", "x.html"], "try: --plot x.svg (one of .png, .svg or .pdf)"),
        (["--timeline", "/nowhere/t.json", "--strategy", "ring"], "the folder /nowhere does not exist"),
        (["--timeline", "t.json"], "--timeline shows one cell, and 77 are selected"),
        (["--repeats", "0"], "must be 1-1000, not 0"),
    ],
)
def test_mistakes_are_named(invented, words, message):
    code, _, err = run(*words)
    assert code == 2
    assert message in err
    assert not invented.runs


def event(ph, name, ts, **more):
    return {"ph": ph, "pid": 1, "tid": 0, "name": name, "ts": ts, **more}


def test_timelines_are_laid_over_each_other():
    process = {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "worker 0"}}
    real = [
        process,
        event("X", "iteration 0", 100.0, cat="iteration", dur=50),
        event("X", "iteration 1", 160.0, cat="iteration", dur=50),
        event("b", "early", 150.0, id="0.1", cat="message"),
        event("e", "early", 170.0, id="0.1", cat="message"),
        event("b", "late", 165.0, id="0.2", cat="message"),
        event("e", "late", 175.0, id="0.2", cat="message"),
    ]
    simulated = [process, event("X", "backward", 0.0, cat="backward", dur=5)]
    result = both(real, simulated, 1)
    names = [one["args"]["name"] for one in result if one["name"] == "process_name"]
    assert names == ["worker 0, measured", "worker 0, simulated"]
    assert [(one["name"], one["ts"]) for one in result if one["ph"] != "M"] == [
        ("iteration 1", 0.0),
        ("late", 5.0),
        ("late", 15.0),
        ("backward", 0.0),
    ]
    orders = [one["args"]["sort_index"] for one in result if one["name"] == "process_sort_index"]
    assert orders == [0, 1]
    assert len({one["pid"] for one in result}) == 2


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
def test_ranks_on_this_machine(monkeypatch, tmp_path):
    """Loopback is hardly a network, so the forecast has none either: 100 Gbit/s, and hardly any bytes."""
    monkeypatch.setattr(cli_validate, "emulator", Local)
    path = tmp_path / "both.json"
    words = ["--workers", "2", "--bandwidth", "100Gbps", "--shrink", "100", "--scale", "2", "--repeats", "3", "--json"]
    code, out, err = run(*words, "--strategy", "ps", "--timeline", str(path))
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert abs(row["error"]) < 0.08
    events = json.loads(path.read_text())["traceEvents"]
    names = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names == {
        f"{who}, {how}" for who in ("worker 0", "worker 1", "server 0") for how in ("measured", "simulated")
    }
    assert min(one["ts"] for one in events if one["ph"] != "M") >= 0
    first = {
        how: min(one["ts"] for one in events if one.get("cat") == "backward" and one["pid"] // 10_000_000 == how)
        for how in (0, 1)
    }
    assert first[0] == pytest.approx(first[1], rel=0.05)


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs memfd")
def test_ranks_on_this_machine_exchange_what_is_compressed(monkeypatch):
    monkeypatch.setattr(cli_validate, "emulator", Local)
    words = ["--workers", "2", "--bandwidth", "100Gbps", "--shrink", "100", "--scale", "2", "--repeats", "3", "--json"]
    code, out, err = run(*words, "--strategy", "ring", "--compression", "int8")
    assert code == 0, err
    (row,) = json.loads(out)["rows"]
    assert row["compression"] == "int8" and abs(row["error"]) < 0.08


@pytest.mark.process
def test_a_switch_that_adds_up_is_a_process_and_forwards_as_sums_come():
    emulator = Invented()
    (row,) = compare(some("ps-aggregation"), emulator, ComparisonOptions(repeats=1), quietly).rows
    assert emulator.clusters[0]["switch"]
    assert emulator.runs[0][2] == {"strategy": "ps-aggregation", "servers": 1, "switch": True}
    said = row.to_dict()
    assert (said["network"], said["simulated_fluid_s"]) == ("fifo", None)
    # A sum uses the server's port once; each of its four copies once.
    (alone,) = cells([Selection(("allreduce:8MB",), ("ps-aggregation",), (4,))], NETWORK)
    (row,) = compare([alone], emulator, ComparisonOptions(repeats=1), quietly).rows
    assert row.simulated_s == pytest.approx(5 * 8e6 * 8 / RATE, rel=1e-6)
