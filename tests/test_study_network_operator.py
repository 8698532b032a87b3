"""The study `network-operator`: its traces, its rows, its claims and its output."""

import json
import re
from pathlib import Path

import cli
import paceline
import pytest
from paceline_lab.studies import run_study
from paceline_lab.studies.network_operator.published import INPUTS, MODELS, TABLE_1_SERVERS, table_1
from paceline_lab.studies.network_operator.shares import weight_shares
from paceline_lab.studies.network_operator.variants import SLICES, in_forward_order, sliced
from paceline_lab.studies.report import errors

# The study runs once, on one worker.
pytestmark = pytest.mark.xdist_group("study_network_operator")
ROOT = Path(__file__).parent.parent
TENSORS = {"vgg-16": 32, "inception-v3": 190, "resnet-101": 314, "resnet-200": 611}


@pytest.fixture(scope="module")
def result():
    return run_study("network-operator")


@pytest.mark.parametrize("model", MODELS)
def test_traces_have_the_published_sizes(model):
    trace = paceline.load_trace(f"netop-{model}")
    inputs, worker = INPUTS[model], trace.workers[0]
    assert len(worker.gradients) == TENSORS[model]
    assert trace.layer_count == inputs.layers
    assert 8 * sum(one.bytes for one in worker.gradients) == pytest.approx(inputs.gigabits * 1e9, abs=32)
    assert trace.forward_s == pytest.approx(inputs.forward_s)
    ready = [gradient.ready_s for gradient in worker.gradients]
    assert max(ready) - min(ready) == pytest.approx(inputs.backward_after_first_s)
    assert trace.batch == 32
    for word in ("Published", "Derived", "Calibrated"):
        assert word in trace.provenance


def test_first_fully_connected_layer_of_vgg_is_that_of_299_pixels():
    worker = paceline.load_trace("netop-vgg-16").workers[0]
    size = next(one.bytes for one in worker.gradients if one.tensor == "fc6/weights")
    assert size == pytest.approx(9 * 9 * 512 * 4096 * 4, rel=0.001)


@pytest.mark.parametrize(
    ("model", "servers", "most"),
    [
        ("vgg-16", 4, 0.918),
        ("vgg-16", 8, 0.859),
        ("resnet-200", 4, 0.33),
        ("resnet-101", 4, 0.33),
        ("inception-v3", 8, 0.292),
        ("inception-v3", 4, 0.547),
        ("resnet-200", 8, 0.328),
    ],
)
def test_most_loaded_server(model, servers, most):
    # ResNet-101 is only said to be like ResNet-200, and the trace has 8.5 of 9.2 MB of the auxiliary head's largest.
    tolerance = {"resnet-101": 0.03, "inception-v3": 0.004}.get(model, 0.002)
    assert max(weight_shares(paceline.load_trace(f"netop-{model}"), servers)) == pytest.approx(most, abs=tolerance)


@pytest.mark.parametrize(("model", "servers", "listed"), [("inception-v3", 4, 0.451), ("resnet-200", 8, 0.22)])
def test_two_published_shares_are_those_of_the_second_most_loaded_server(model, servers, listed):
    *_, second, most = sorted(weight_shares(paceline.load_trace(f"netop-{model}"), servers))
    assert second == pytest.approx(listed, rel=0.01)
    # The published times say so: iterations of several servers against those of one.
    times = dict(zip(TABLE_1_SERVERS, table_1(model, "simulated"), strict=True))
    assert times[servers] / times[1] == pytest.approx(most, rel=0.1)


@pytest.mark.parametrize(("servers", "least"), [(4, 0.165), (8, 0.002)])
def test_least_loaded_server_of_resnet_200(servers, least):
    assert min(weight_shares(paceline.load_trace("netop-resnet-200"), servers)) == pytest.approx(least, abs=6e-4)


def test_rows_calibrated_on_are_close(result):
    rows = [row for row in result.rows if row.calibrated]
    assert len(rows) == 29
    mean, worst, within = errors(rows)
    assert mean <= 0.0125
    assert worst <= 0.06
    assert within >= 0.89


def test_rows_not_calibrated_on(result):
    rows = {(row.table, row.row, row.model): row for row in result.rows if not row.calibrated}
    assert all(abs(row.error) < 0.005 for key, row in rows.items() if key[0] == "toy example")
    # All of the paper's tables of mechanisms, at every rate and speed, with the same few parameters.
    others = [
        row for key, row in rows.items() if key[0] in ("mechanisms at 32 workers", "other rates", "faster computation")
    ]
    assert len(others) == 26
    assert max(abs(row.error) for row in others) <= 0.0305
    for servers in (4, 8):
        for model in ("ResNet-101", "ResNet-200"):
            assert abs(rows["Table 1", f"{servers} servers, simulated", model].error) < 0.02
    barrier = "no barrier, multicast + aggregation, 2 iterations"
    assert abs(rows["Table 9", barrier, "ResNet-200"].error) < 0.02


def test_cutting_finer_changes_nothing():
    # What stands for servers x workers pieces; VGG-16 has no row of it.
    trace = in_forward_order(paceline.load_trace("netop-inception-v3"))
    run = {"strategy": "ps-multicast-aggregation", "workers": 8, "servers": 8, "critical_path": False}
    even = paceline.simulate(trace, placement="even", **run).iteration_s
    assert paceline.simulate(sliced(trace, SLICES), **run).iteration_s == pytest.approx(even, rel=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS[1:])
def test_cutting_finer_changes_nothing_at_32_workers(model):
    trace = in_forward_order(paceline.load_trace(f"netop-{model}"))
    run = {"strategy": "ps-multicast-aggregation", "workers": 32, "servers": 8, "critical_path": False}
    even = paceline.simulate(trace, placement="even", **run).iteration_s
    assert paceline.simulate(sliced(trace, SLICES), **run).iteration_s == pytest.approx(even, rel=5e-4)


def test_every_claim_is_tested(result):
    holds = {claim.claim: claim.holds for claim in result.claims}
    assert len(holds) == len(result.claims) >= 29
    assert sum(holds.values()) >= 18
    assert all(claim.figures for claim in result.claims)


@pytest.mark.slow
def test_json(result):
    done = cli.printed("study", "network-operator", "--json")
    document = json.loads(done)
    assert document == result.to_dict(), "a second run differs"
    assert set(document) == {"rows", "claims", "forecasts", "figures", "skipped"}
    for row in document["rows"]:
        assert set(row) == {"table", "row", "model", "published", "simulated", "error", "unit", "calibrated"}
        assert row["error"] == pytest.approx(row["simulated"] / row["published"] - 1)
    assert {claim["verdict"] for claim in document["claims"]} == {"holds here", "does not hold here"}
    assert document["figures"] == []
    reasons = {(entry["row"], entry["model"]): entry["reason"] for entry in document["skipped"]}
    assert reasons["ring without messages, 10 Gbit/s", "ResNet-200"] == "no value is published"


def test_csv_has_a_line_per_row(result):
    lines = result.to_csv().splitlines()
    assert lines[0] == "table,row,model,unit,published,simulated,error,calibrated"
    assert len(lines) == 1 + len(result.rows)


def test_documentation_says_what_comes_out(result):
    documentation = (ROOT / "docs" / "results" / "network-operator.md").read_text()
    said = [line for line in result.text(100) if re.search("values (not )?used for calibration", line)]
    assert len(said) == 2
    for line in said:
        assert line.split("  ")[-1].strip() in documentation
    for claim in result.claims:
        assert f"| {claim.claim} | {claim.verdict} |" in documentation


@pytest.mark.slow
def test_figures(tmp_path):
    pytest.importorskip("matplotlib")
    figures = run_study("network-operator", tmp_path).figures
    assert [Path(figure).name for figure in figures] == [
        "bandwidth.png",
        "workers.png",
        "modules.png",
        "compute.png",
        "servers.png",
    ]
    for figure in figures:
        content = Path(figure).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert 5_000 < len(content) < 100_000


def test_unknown_study_names_the_nearest():
    with pytest.raises(paceline.InvalidArgumentError, match="network-operator"):
        run_study("network-operater")
