"""The studies `ray-sgd`, `ddl-nccl` and `cuda-aware-mpi`: their rows, their claims and their output."""

import json
from dataclasses import replace
from pathlib import Path

import cli
import pytest
from paceline.catalog.builtin import load_trace
from paceline.catalog.channels import constant
from paceline.catalog.libraries import find_library
from paceline_lab.studies import STUDIES, claims, cuda_aware_mpi, ddl_nccl, ray_sgd, report, run_study
from paceline_lab.studies.published.rows import forecast
from paceline_lab.studies.ray_sgd import NCCL, SIMPLE, Layout, port_bps

# The study runs once, on one worker.
pytestmark = pytest.mark.xdist_group("studies")
ROOT = Path(__file__).parent.parent
NAMES = ("ray-sgd", "ddl-nccl", "cuda-aware-mpi")


@pytest.fixture(scope="module")
def results():
    return {name: run_study(name) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_json(results, name):
    done = cli.printed("study", name, "--json")
    answer = json.loads(done)
    assert answer == results[name].to_dict(), "a second run differs"
    assert answer["rows"] and answer["claims"] and answer["forecasts"]
    for row in answer["rows"]:
        assert row["error"] == pytest.approx(row["simulated"] / row["published"] - 1)
    assert {claim["verdict"] for claim in answer["claims"]} <= {"holds here", "does not hold here"}
    assert all(claim["figures"] for claim in answer["claims"])
    assert all(value["simulated"] > 0 for value in answer["forecasts"])


@pytest.mark.parametrize("name", NAMES)
def test_documentation_says_what_comes_out(results, name):
    page = (ROOT / "docs" / "results" / "studies.md").read_text()
    for row in results[name].rows:
        assert f"| {row.row} | {row.model} | {row.published:g} {row.unit} |" in page
        assert f"| {row.error:+.1%} |" in page
    for claim in results[name].claims:
        assert f"| {claim.claim} | {claim.verdict} |" in page


@pytest.mark.parametrize("name", NAMES)
def test_figures(tmp_path, name):
    pytest.importorskip("matplotlib")
    drawn = [Path(figure) for figure in run_study(name, tmp_path).figures]
    assert drawn and sorted(drawn) == sorted(tmp_path.iterdir())
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in drawn)


def test_every_claim_has_a_condition_and_nothing_unknown():
    known = {"claim", "by", *claims._CONDITIONS}
    for name, each in claims._claims().items():
        assert name in STUDIES
        for claim in each:
            assert set(claim) <= known and set(claim) & set(claims._CONDITIONS), claim
    assert claims.holds({"rising": ["a", "b"], "by": 1.5}, {"a": 1, "b": 2})
    assert not claims.holds({"rising": ["a", "b"], "by": 1.5}, {"a": 1, "b": 1.5})
    assert not claims.holds({"each": [0, 1], "above": 0.5}, {"a": 1, "b": 0.1})


def test_every_study_is_in_the_help():
    assert all(name in cli.output("study", "--help") for name in STUDIES)


def test_the_path_inside_a_mesh():
    link, bus = constant("inside.nvlink-one"), constant("inside.qpi")
    assert port_bps(2, SIMPLE) == link
    assert port_bps(4, SIMPLE) == 3 * link
    # Of 7 gradients 3 cross the bus: all take as long as those.
    assert 7 / port_bps(8, SIMPLE) == pytest.approx(3 / bus)
    # As long as a ring: 2 (n - 1) / n of the bytes.
    for gpus in (4, 8):
        assert 2 * (gpus - 1) / port_bps(gpus, NCCL) == pytest.approx(
            2 * (gpus - 1) / gpus / find_library("tensorflow-replicas").required("intra_bandwidth")
        )


def test_a_node_is_no_faster_than_its_gpus():
    for gpus in (2, 4, 8):
        assert ray_sgd.rate(Layout(ray_sgd.RAY, gpus, gpus, SIMPLE)) < 218 * gpus
    for system in ray_sgd.SYSTEMS:
        alone = ray_sgd.throughput(system, 4)
        assert alone < 4 * 218
        assert 1 < ray_sgd.throughput(system, 8) / alone <= 2


def test_a_row_has_one_forecast_in_all_studies(results):
    rows = {
        (it.row.system, it.row.gpus): it.value
        for it in run_study("published").rows
        if it.row.id == "RAYSGD" and "over 4 GPUs" in it.row.metric_text
    }
    assert len(rows) == 12
    factors = [row.simulated for row in results["ray-sgd"].rows if row.table.startswith("weak scaling")]
    assert sorted(factors) == sorted(rows.values())


def test_one_connection_between_nodes_is_what_slows_horovod():
    """Outside a cluster placement group, 16 GPUs on two nodes are slower than 8 on one; inside one they are not."""
    row = ray_sgd.published_factors()[ray_sgd.HOROVOD, 16].row
    outside, inside, free = (forecast(replace(row, flow_bps=bps)).iteration_s for bps in (row.flow_bps, 10e9, 25e9))
    assert outside > inside > free
    on_one = ray_sgd.published_factors()[ray_sgd.HOROVOD, 8].iteration_s
    assert outside > 2 * on_one > 2 * inside * 0.5
    # The ring's bytes at 5 Gbit/s, less what the backward pass hides.
    ring = 2 * 15 / 16 * load_trace("resnet-101").gradient_bytes * 8 / 5e9
    assert ring < outside < ring + on_one


def test_slopes_of_a_line():
    # Linear to one percent, so that the slope is each GPU's contribution.
    assert ddl_nccl.slope(ddl_nccl.NCCL) == pytest.approx(ddl_nccl.rate(ddl_nccl.NCCL, 24) / 24, rel=0.01)


RDMA = constant("rdma.latency") + constant("rdma.message")


def test_small_messages_cost_their_steps():
    ring = 2 * 15 * (find_library("horovod").required("message_overhead") + RDMA)
    assert cuda_aware_mpi.latency("NCCL2", 8) == pytest.approx(ring, rel=0.01)
    halving = 2 * 4 * (find_library("horovod-mpi-gpu").required("message_overhead") + RDMA)
    assert cuda_aware_mpi.latency("CUDA-aware MPI", 8) == pytest.approx(halving, rel=0.01)


def test_large_messages_are_bound_by_the_wire():
    size, wire = 1 << 28, 100e9 * constant("rdma.share")
    least = 2 * 15 / 16 * size * 8 / wire
    for name in ("NCCL2", "CUDA-aware MPI"):
        assert least <= cuda_aware_mpi.latency(name, size) <= 1.02 * least


def test_channels_are_ordered():
    rates = [cuda_aware_mpi.rate(name, "resnet-50", 64) for name in ("gRPC", "gRPC+Verbs", "gRPC+GDR")]
    assert rates == sorted(rates)


def test_without_a_name_the_studies_are_listed():
    assert (
        "try: paceline study network-operator (or ray-sgd, ddl-nccl, cuda-aware-mpi, load-imbalance, published, collect"
        in cli.refused("study")
    )


def test_figures_that_differ_look_different():
    figures = {"ResNet-50": 2.45228, "MobileNet": 2.45234}
    assert report._figures({"one": 2.0, "same": 2.0}) == {"one": "2", "same": "2"}
    study = report.Study("t, 10 Gbit/s", [], [report.ClaimResult("gains more at 10 Gbit/s", True, figures)])
    text = "\n".join(study.text(100))
    assert "ResNet-50 2.45228; MobileNet 2.45234" in text
    assert "10 Gbps" in text and "Gbit/s" not in text
    assert study.to_dict()["claims"][0]["claim"] == "gains more at 10 Gbit/s"


def test_a_long_study_says_so_where_no_bar_does(monkeypatch):
    monkeypatch.setattr("paceline_lab.studies.run_study", lambda *_, **__: report.Study("t", [], []))
    assert "load-imbalance takes about 2 minutes" in cli.call("study", "load-imbalance").stderr
    assert cli.call("study", "ddl-nccl").stderr == ""
