"""Lists of modules, placements, chunks, distributions, orders and GPUs per node; speed-ups over a baseline."""

import csv
import io
import json
from itertools import product

import cli
import paceline
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline import InvalidArgumentError
from paceline.catalog.distribution import ordered
from paceline.forecast.baseline import Baseline
from paceline.settings.table import SETTINGS, SIMULATE, SWEEP

INCEPTION, VGG = "netop-inception-v3", "netop-vgg-16"


def rows_of(*words):
    return json.loads(cli.call("simulate", *words, "--library", "none", "--json").stdout)


LISTS = {
    "add_module": ["compute:0", "compute:5", "network:2"],
    "send_order": ["recorded", "reverse", "last:fc6"],
    "gpus_per_node": [1, 2],
    "chunk": ["whole", "per-worker", "1MB"],
    "placement": ["round-robin", "even"],
    "distribution": ["round-robin", "block"],
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_gives_what_its_values_give_by_themselves(name):
    """Each row of a sweep has the bytes of a forecast with one value."""
    flag, values = f"--{name.replace('_', '-')}", LISTS[name]
    base = (VGG, "--workers", "4", "--servers", "2", "--strategy", "ps,ps-aggregation")
    swept = rows_of(*base, flag, ",".join(map(str, values)))
    alone = [row for value in values for row in rows_of(*base, flag, str(value))]
    key = lambda row: (str(row.get(name)), row["strategy"])  # noqa: E731
    assert len(swept) == 2 * len(values) == len({key(row) for row in swept})
    assert sorted(swept, key=key) == sorted(alone, key=key)


def test_python_takes_the_same_lists():
    options = {name: values for name, values in LISTS.items() if name not in ("send_order", "placement")}
    results = paceline.sweep("resnet-50", None, "ps", workers=2, servers=2, library="none", **options)
    assert len(results) == 3 * 2 * 3 * 2
    seen = {(it.add_module, it.gpus_per_node, it.chunk, it.distribution) for it in results}
    chunks = ["whole", "per-worker", 1_000_000]
    assert seen == set(product(LISTS["add_module"], [1, 2], chunks, LISTS["distribution"]))
    with pytest.raises(InvalidArgumentError, match="chunk"):
        paceline.simulate("resnet-50", None, "ps", workers=2, chunk=["whole", "per-worker"])


def test_a_strategy_without_a_knob_is_forecast_once():
    rows = rows_of(VGG, "--workers", "4", "--strategy", "ps,ring", "--placement", "round-robin,even")
    assert [row["strategy"] for row in rows] == ["ps", "ps", "ring"]


def test_a_list_of_servers_is_one_placement():
    check = SETTINGS["placement"].check
    assert check([0, 1, 0], None, SWEEP) == [[0, 1, 0]]
    assert check([[0, 1], "even"], None, SWEEP) == [[0, 1], "even"]
    assert check([0, 1, 0], None, SIMULATE) == [0, 1, 0]
    buckets = len(paceline.load_trace(VGG).buckets())
    places = [[0] * buckets, [number % 2 for number in range(buckets)]]
    one, two = paceline.sweep(VGG, None, "ps", workers=2, servers=2, library="none", placement=places)
    assert (one.placement, two.placement) == ("list 1", "list 2")
    assert one.iteration_s != two.iteration_s


def test_a_number_is_of_the_kind_before_it():
    check = SETTINGS["add_module"].check
    assert check("compute:0,5,network:1,2", None, SWEEP) == ["compute:0", "compute:5", "network:1", "network:2"]
    for wrong, says in (("5", "not KIND:COUNT"), ("compute:5,5", "listed twice"), ("", "not KIND:COUNT"), (7, "list")):
        with pytest.raises(InvalidArgumentError, match=says) as error:
            check(wrong, None, SWEEP)
        assert error.value.remedy


@given(st.lists(st.tuples(st.sampled_from(["compute", "network"]), st.integers(0, 9)), min_size=1, unique=True))
@settings(max_examples=50, deadline=None)
def test_modules_written_short_and_long_are_the_same(pairs):
    check = SETTINGS["add_module"].check
    words, last = [], None
    for kind, number in pairs:
        words.append(str(number) if kind == last else f"{kind}:{number}")
        last = kind
    assert check(",".join(words), None, SWEEP) == [f"{kind}:{number}" for kind, number in pairs]


@given(st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_baseline_or_a_clear_error(text):
    try:
        Baseline.of(text)
    except InvalidArgumentError as error:
        assert error.remedy


def test_speed_ups_are_quotients_of_the_rows():
    """Table 4 of the network-operator paper, by one command: aggregation 1.34x, multicast 1.69x, both 3.28x."""
    mechanisms = "ps-multicast,ps-aggregation,ps-multicast-aggregation"
    rows = rows_of(INCEPTION, "--workers", "32", "--strategy", mechanisms, "--baseline", "ps")
    times = {row["strategy"]: row["iteration_s"] for row in rows}
    assert {row["baseline"] for row in rows} == {"ps"} and rows[0]["speedup"] == 1.0
    for row in rows:
        assert row["speedup"] == times["ps"] / row["iteration_s"]
    published = {"ps-aggregation": 1.34, "ps-multicast": 1.69, "ps-multicast-aggregation": 3.28}
    for row in rows[1:]:
        assert row["speedup"] == pytest.approx(published[row["strategy"]], rel=0.05)


def test_a_baseline_is_of_the_same_configuration():
    results = paceline.sweep(
        VGG, None, ["ps", "ring"], workers=[2, 4], servers=[1, 2], library="none", bandwidth=["10Gbps", "25Gbps"],
        baseline="ps,servers=1",
    )  # fmt: skip
    own = {(it.workers, it.bandwidth_bps): it.iteration_s for it in results if it.servers == 1}
    assert all(it.speedup == own[it.workers, it.bandwidth_bps] / it.iteration_s for it in results)
    assert {it.baseline for it in results} == {"ps, servers 1"}
    by_workers = paceline.sweep(VGG, None, "ps", workers=[2, 4], library="none", baseline="workers=2")
    assert [it.speedup for it in by_workers] == [1.0, by_workers[0].iteration_s / by_workers[1].iteration_s]


def test_a_baseline_that_no_row_has_is_an_error():
    error = cli.said("simulate", VGG, "--workers", "2", "--strategy", "ring", "--baseline", "servers=3", code=2)
    assert "--baseline" in error and "--servers 3" in error
    error = cli.said("simulate", VGG, "--workers", "2", "--baseline", "rng", code=2)
    assert "unknown strategy 'rng'" in error


def test_the_remedy_has_the_value_as_it_was_written():
    error = cli.said("simulate", VGG, "--workers", "2", "--baseline", "ring,bandwidth=5Gbps", code=2)
    assert "--bandwidth 5Gbps among the values" in error and "--strategy ring" in error


def test_traces_of_one_name_have_baselines_of_their_own():
    trace = paceline.load_trace("resnet-18")
    slow = json.loads(trace.to_json())
    for worker in slow["workers"]:
        worker["optimizer_s"] = 1.0
    both = [trace, paceline.Trace.from_dict(slow)]
    results = paceline.sweep(both, None, ["ps", "ring"], workers=2, library="none", baseline="ps")
    ps, ring = ([it for it in results if it.strategy == name] for name in ("ps", "ring"))
    assert [it.speedup for it in ps] == [1.0, 1.0]
    own = [base.iteration_s / it.iteration_s for base, it in zip(ps, ring, strict=True)]
    assert [it.speedup for it in ring] == own and own[0] > own[1]


def test_tables_csv_and_plots_have_the_columns(tmp_path):
    words = ("simulate", INCEPTION, "--workers", "4", "--library", "none", "--strategy", "ps,ring", "--baseline", "ps")
    plot = tmp_path / "figure.svg"
    text = cli.output(*words, "--add-module", "compute:0,5", "--gpus-per-node", "1,2", "--plot", str(plot))
    assert "speed-up over" in text and "modules" in text and "compute:5" in text
    assert plot.read_text(encoding="utf-8").startswith("<?xml")
    out = cli.call(*words, "--add-module", "compute:0,5", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["add_module"], row["modules"]) for row in rows] == [("compute:0", "0")] * 2 + [("compute:5", "5")] * 2
    assert all(float(row["speedup"]) >= 1 for row in rows)


def test_an_order_moves_tensors_and_nothing_else():
    trace = paceline.load_trace(VGG)
    names = [entry.tensor for entry in trace.distribution]
    last = [entry.tensor for entry in ordered(trace, "last:fc6").distribution]
    assert last == [name for name in names if "fc6" not in name] + ["fc6/weights", "fc6/biases"]
    first = [entry.tensor for entry in ordered(trace, "first:fc?/biases").distribution]
    assert first[:3] == ["fc6/biases", "fc7/biases", "fc8/biases"] and sorted(first) == sorted(names)
    forward, reverse = (ordered(trace, word).distribution for word in ("forward", "reverse"))
    assert [it.tensor for it in forward] == [it.tensor for it in reverse][::-1]
    assert ordered(trace, "last:fc6").replace(distribution=trace.distribution) == trace


def test_an_order_in_a_file_is_checked(tmp_path):
    trace, file = paceline.load_trace(VGG), tmp_path / "order.json"
    names = [entry.tensor for entry in trace.distribution]
    file.write_text(json.dumps(names[::-1]), encoding="utf-8")
    assert [it.tensor for it in ordered(trace, str(file)).distribution] == names[::-1]
    for wrong, says in (
        (["fc99"], "no tensor 'fc99'"),
        ({}, "must be a list"),
        ([], "must be a list"),
        ([names[0]] * 2, "twice"),
    ):
        file.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(InvalidArgumentError, match=says) as error:
            ordered(trace, str(file))
        assert error.value.remedy
    error = cli.said("simulate", VGG, "--workers", "2", "--strategy", "ring", "--send-order", "forward", code=2)
    assert "has no effect on ring" in error
