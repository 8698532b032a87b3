"""The Python interface: simulate, sweep, to_frame and plot."""

from pathlib import Path

import paceline
import pytest

TINY = Path(__file__).parent.parent / "examples" / "tiny.json"


def test_simulate_takes_names_files_and_objects():
    from_file = paceline.simulate(TINY, strategy="ring", workers=4)
    assert paceline.simulate(TINY, workers=4).strategy == "native"
    assert paceline.simulate(TINY, workers=4, library="none").strategy == "ring"
    assert from_file == paceline.simulate(str(TINY), None, "ring", workers=4)
    assert from_file == paceline.simulate(paceline.load_trace(TINY), paceline.load_cluster(), "ring", workers=4)
    assert from_file == paceline.simulate(TINY, "flat", "ring-reduce", workers=4)
    assert from_file.strategy == "ring"
    assert paceline.simulate(TINY, workers=4, bandwidth="1Gbps").iteration_s > from_file.iteration_s


def test_sizes_may_be_text():
    as_text = paceline.simulate("allreduce:1MB/10", workers=4, chunk="1KiB", bucket_size="200kB")
    assert as_text == paceline.simulate("allreduce:1MB/10", workers=4, chunk=1024, bucket_size=200_000)


@pytest.mark.parametrize("strategy", ["ring", "halving-doubling", "tree", "recursive-doubling"])
def test_what_is_hidden_is_not_exposed_by_rounding(strategy):
    actual = [
        paceline.simulate("inception-v3", workers=count, bandwidth="10Tbps", strategy=strategy) for count in range(2, 9)
    ]
    assert all(one.exposed_communication_s == 0 or one.exposed_communication_s > 1e-9 for one in actual)


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"workers": -1},
        {"workers": 1.5},
        {"workers": True},
        {"workers": "four"},
        {"workers": 4, "servers": 2},
        {"workers": 4, "chunk": "25"},
        {"workers": 4, "bucket_size": -1},
        {"workers": 4, "compute_speedup": float("nan")},
        {"workers": 4, "compute_speedup": 0},
        {"workers": 4, "seed": -1},
        {"workers": 4, "bandwidth": "25"},
        {"workers": 4, "gpus_per_node": 0},
        {"workers": 4, "color": "blue"},
        {"workers": 4, "strategy": "rnig"},
        {"workers": 4, "cluster": "nowhere"},
        {"workers": 4, "network": "tcp"},
        {"workers": 4, "strategy": "ps", "placement": ""},
    ],
    ids=str,
)
def test_mistakes_are_user_errors(wrong):
    with pytest.raises(paceline.InvalidArgumentError) as caught:
        paceline.simulate(TINY, **wrong)
    assert "line 1 column" not in str(caught.value) or "network" in wrong


@pytest.mark.parametrize("name", ["sharding", "strategy", "network"])
def test_a_list_is_for_sweeps(name):
    with pytest.raises(
        paceline.InvalidArgumentError, match=rf"{name}.*\['ring'\] is a list, and one value is expected"
    ):
        paceline.simulate(TINY, workers=4, **{name: ["ring"]})


def test_the_page_of_commands_has_every_field_of_a_forecast():
    page = (Path(__file__).parent.parent / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    fields = paceline.simulate(TINY, workers=4, bandwidth="10Gbps").to_dict()
    assert [name for name in fields if f"`{name}`" not in page] == []


@pytest.mark.parametrize("value", [5, None, b"resnet-50", {}, 10**5000], ids=lambda value: type(value).__name__)
def test_what_names_no_trace_or_cluster(value):
    with pytest.raises(paceline.InvalidArgumentError, match=r"trace: .* is not text"):
        paceline.simulate(value, workers=4)
    if value is not None:
        with pytest.raises(paceline.InvalidArgumentError, match=r"cluster: .* is not text"):
            paceline.simulate(TINY, value, workers=4)
        with pytest.raises(paceline.InvalidArgumentError, match=r"cluster: .* is not text"):
            paceline.load_cluster(value)


def test_both_characters_for_micro():
    greek, micro = (paceline.simulate(TINY, workers=4, latency=f"10{mu}s") for mu in "\u03bc\u00b5")
    assert greek == micro == paceline.simulate(TINY, workers=4, latency="10us")


HUGE = 10**5000  # Python refuses to print it.


@pytest.mark.parametrize("value", [HUGE, -HUGE, [HUGE]], ids=["huge", "minus-huge", "in-a-list"])
@pytest.mark.parametrize(
    "name",
    [
        "workers",
        "servers",
        "strategy",
        "latency",
        "bandwidth",
        "gpus_per_node",
        "batch",
        "samples_per_s",
        "compute_speedup",
        "bucket_size",
        "chunk",
        "placement",
        "network",
        "overlap",
        "iterations",
        "seed",
        "device",
        "jitter",
    ],
)
def test_numbers_too_long_to_print(name, value):
    with pytest.raises(paceline.InvalidArgumentError, match=name):
        paceline.simulate(TINY, **{"strategy": "ps", "workers": 4, name: value})


def test_numbers_of_numpy():
    import numpy as np

    plain = paceline.simulate(TINY, strategy="ps", workers=4, servers=2, compute_speedup=2, bucket_size=1 << 20)
    assert plain == paceline.simulate(
        TINY,
        strategy="ps",
        workers=np.int64(4),
        servers=np.uint8(2),
        compute_speedup=np.float32(2),
        bucket_size=np.int64(1 << 20),
    )
    assert paceline.sweep(TINY, strategy="ring", workers=list(np.array([2, 4]))) == paceline.sweep(
        TINY, strategy="ring", workers=[2, 4]
    )
    for wrong in (np.bool_(True), np.float64(4)):
        with pytest.raises(paceline.InvalidArgumentError, match="workers: must be a whole number"):
            paceline.simulate(TINY, workers=wrong)


def test_none_is_the_default_except_for_workers():
    assert paceline.simulate(TINY, strategy=None, workers=4) == paceline.simulate(TINY, workers=4)
    with pytest.raises(paceline.InvalidArgumentError, match=r"workers: needs the numbers? of ranks"):
        paceline.simulate(TINY, workers=None)
    with pytest.raises(paceline.InvalidArgumentError, match=r"workers: needs the numbers? of ranks"):
        paceline.sweep(TINY, workers=None)


def test_user_errors_are_value_errors():
    assert issubclass(paceline.InvalidArgumentError, ValueError)


def test_a_timeline_that_cannot_be_written(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        paceline.simulate(TINY, workers=2, timeline=tmp_path / "nowhere" / "t.json")


def test_sweep_is_many_simulations_in_order():
    seen = []
    results = paceline.sweep(
        TINY,
        strategy=["ps", "ring"],
        workers=[4, 2],
        bandwidth=["10Gbps", "25Gbps"],
        servers=[1, 2],
        progress=lambda done, total: seen.append((done, total)),
    )
    assert [(r.workers, r.bandwidth_bps, r.strategy, r.servers) for r in results] == [
        (workers, rate, *which)
        for workers in (4, 2)
        for rate in (10e9, 25e9)
        for which in (("ps", 1), ("ps", 2), ("ring", 0))
    ]
    assert results[0] == paceline.simulate(TINY, strategy="ps", servers=1, workers=4, bandwidth="10Gbps")
    assert seen[-1] == (12, 12)


def test_sweep_takes_single_values_and_options():
    [one] = paceline.sweep(TINY, "flat", "ps", workers=2, options={"pull": "step", "barrier": None})
    assert one == paceline.simulate(TINY, strategy="ps", workers=2, pull="step")
    assert len(paceline.sweep(TINY, workers=2)) == len(paceline.all_strategies())
    able = paceline.sweep(TINY, "p3.16xlarge", workers=2, compute_speedup=2)
    assert {result.compute_speedup for result in able} == {2}
    assert not any("multicast" in result.strategy for result in able)


def test_sweep_refuses_what_has_no_effect():
    with pytest.raises(paceline.InvalidArgumentError, match="servers: has no effect on ring"):
        paceline.sweep(TINY, strategy="ring", workers=2, servers=2)
    with pytest.raises(paceline.InvalidArgumentError, match="empty list"):
        paceline.sweep(TINY, strategy="ring", workers=[])


def test_the_first_mistake_is_reported_every_time():
    for _ in range(5):
        with pytest.raises(paceline.InvalidArgumentError, match="ps with 3 workers"):
            paceline.sweep(
                "allreduce:1MB",
                strategy=["ring", "ps"],
                workers=[3, 4, 5, 60],
                options={"distribution": "block", "barrier": False},
            )


def test_to_frame():
    pandas = pytest.importorskip("pandas")
    frame = paceline.to_frame(paceline.sweep(TINY, strategy=["ps", "ring"], workers=[2, 4]))
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["workers"]) == [2, 2, 4, 4]
    assert {"iteration_s", "bandwidth_bps", "bottleneck", "bottleneck_share"} <= set(frame.columns)
    assert (frame["iteration_s"] > 0).all()
    assert paceline.to_frame([]).empty


def test_plot_of_one_result():
    assert paceline.plot(paceline.simulate("resnet-18", workers=2)).axes


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    results = paceline.sweep(TINY, workers=[2, 4, 8])
    paceline.plot(results, tmp_path / "lines.png")
    paceline.plot(results[:3], str(tmp_path / "bars.svg"))
    assert (tmp_path / "bars.svg").read_text().count("ring-multicast") >= 1
    with pytest.raises(paceline.InvalidArgumentError, match="no results"):
        paceline.plot([], tmp_path / "none.png")
    # What plot() returns is what a notebook shows.
    assert paceline.plot(results)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(paceline.InvalidArgumentError):
        paceline.plot(results, tmp_path / "lines.gif")


def test_the_line_without_communication_is_inside_the_axes():
    results = paceline.sweep(
        "resnet-50", strategy="native", workers=64, gpus_per_node=8, bandwidth=["10Gbps", "20Gbps", "25Gbps"]
    )
    _, throughput = paceline.plot(results).axes
    highest = max(max(line.get_ydata()) for line in throughput.lines)
    assert highest == pytest.approx(64 * 32 / results[0].compute_s)
    assert highest < throughput.get_ylim()[1]


def test_plots_are_the_same_bytes_every_time(tmp_path):
    pytest.importorskip("matplotlib")
    results = paceline.sweep(TINY, strategy=["ps", "ring"], workers=[2, 4])
    for name in ("a.svg", "b.svg", "a.png", "b.png", "a.html", "b.html"):
        paceline.plot(results, tmp_path / name)
    for suffix in ("svg", "png", "html"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_a_sweep_takes_lists_of_traces_latencies_and_bucket_sizes():
    results = paceline.sweep(
        [TINY, "allreduce:1MB"], strategy="ring", workers=2, latency=["1us", "1ms"], bucket_size=["none", "1MB"]
    )
    assert [(it.trace, it.latency_s, it.bucket_size) for it in results] == [
        (trace, latency, size)
        for trace in ("tiny", "allreduce:1MB")
        for latency in (1e-6, 1e-3)
        for size in (None, 1_000_000)
    ]
    alone = paceline.simulate(TINY, strategy="ring", workers=2, latency="1ms", bucket_size="1MB")
    assert results[3] == alone
    assert (alone.cluster, alone.to_dict()["schema_version"]) == ("flat", 1)


def test_the_former_name_of_strategy_warns():
    with pytest.warns(FutureWarning, match="now called strategy="):
        old = paceline.sweep(TINY, strategies="ring", workers=2)
    assert old == paceline.sweep(TINY, strategy="ring", workers=2)
    with pytest.raises(paceline.InvalidArgumentError, match=r"sweep\(strategies=\) is the former name of strategy="):
        paceline.sweep(TINY, strategy="ring", strategies="ps", workers=2)


def test_a_notebook_shows_a_table():
    [result] = paceline.sweep(TINY, strategy="ring", workers=2, latency="3us")
    page = result._repr_html_()
    for words in ("<table", "tiny", "ring", "samples/s", "25 Gbps", "3 us", "compute, "):
        assert words in page


def test_a_notebook_shows_what_a_forecast_depends_on():
    answer = paceline.simulate("resnet-50", workers=64, gpus_per_node=8, bandwidth="25Gbps")._repr_html_()
    for name, value in (
        ("Iteration", "158 ms, 12,979 samples/s"),
        ("Likely", "145-172 ms, 11,918-14,135 samples/s (80%)"),
        ("Bottleneck", "compute, 68% of the critical path (slowest worker)"),
    ):
        assert f'{name}</th><td style="text-align: left">{value}</td>' in answer
    setup = answer.partition("Setup</th>")[2].partition("</tr>")[0]
    for value in ("64 workers", "flat", "8 GPUs and 25 Gbps per node", "TCP", "37 us", "ddp", "5 buckets"):
        assert value in setup


def test_an_interrupted_sweep_keeps_what_is_done():
    def interrupt(done, _total):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(paceline.SweepInterrupted) as caught:
        paceline.sweep(TINY, strategy="ring", workers=[2, 4, 8, 16, 32, 64], progress=interrupt)
    done = caught.value.results
    assert 1 <= len(done) <= 6 and caught.value.scenarios == 6
    assert all(
        result == paceline.simulate(TINY, strategy="ring", workers=2 ** (place + 1)) for place, result in done.items()
    )
