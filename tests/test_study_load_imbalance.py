"""The study `load-imbalance`: rows, calibration, claims, output."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from paceline.catalog.strategies import all_coordinators
from paceline.cli.study import study
from paceline.forecast.coordination.model import execute
from paceline.forecast.coordination.networks import networks
from paceline.studies import run_study
from paceline.studies.load_imbalance import runs

# The study runs once, on one worker.
pytestmark = pytest.mark.xdist_group("study_load_imbalance")
ROOT = Path(__file__).parent.parent
GPUS = (6, 96, 384, 1536, 6144, 12288, 24576)
NAMES = [it.name for it in all_coordinators()]


@pytest.fixture(scope="module")
def result():
    return run_study("load-imbalance")


@pytest.fixture(scope="module")
def rows(result):
    return {(row["network"], row["coordinator"], row["gpus"], row["scaling"]): row for row in result.rows()}


def gain(rows, network, coordinator, gpus, scaling="weak"):
    base = rows[network, "negotiate", gpus, scaling]["iteration_s"]
    return base / rows[network, coordinator, gpus, scaling]["iteration_s"] - 1


def test_rows_are_those_published(rows):
    weak = {(network, name, gpus, "weak") for network in networks() for name in NAMES for gpus in GPUS}
    strong = {("resnet-50", name, gpus, "strong") for name in NAMES for gpus in GPUS[1:]}
    assert set(rows) == weak | strong
    assert len(networks()) == 9
    for row in rows.values():
        assert sum(row["breakdown"].values()) == pytest.approx(row["iteration_s"])
        batch = 32 if row["scaling"] == "weak" else 24576 // row["gpus"]
        assert row["images_per_s"] == pytest.approx(batch * row["gpus"] / row["iteration_s"])


def test_json_is_the_same_a_second_time(result):
    done = CliRunner().invoke(study, ["load-imbalance", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == result.to_dict()


def test_what_it_is_calibrated_on_comes_out(result):
    calibrated = [row for row in result.study.rows if row.calibrated]
    assert len(calibrated) == 13
    assert all(abs(row.error) < 0.05 for row in calibrated)
    assert all(claim.holds for claim in result.study.claims)


def test_computation_stays_as_it_is(rows):
    for network, known in networks().items():
        for key, row in rows.items():
            if key[0::3] == (network, "weak"):
                assert row["breakdown"]["compute_s"] == pytest.approx(known.compute_ms * 1e-3)


def test_policies_that_remove_more_of_the_cause_gain_more(rows):
    for network in networks():
        gains = {name: gain(rows, network, name, 24576) for name in NAMES}
        assert max(gains, key=gains.get) == "graph"
        assert gains["partitioned"] >= gains["nonblocking"] - 0.001
        assert min(gains.values()) > -0.005
    assert all(gain(rows, "resnet-50", "graph", gpus) <= 0.215 for gpus in GPUS)
    # The price of partitioned cores shows where there is nothing to gain yet; nothing else loses.
    for (network, name, gpus, scaling), _ in rows.items():
        assert gain(rows, network, name, gpus, scaling) > (-0.04 if name == "partitioned" else -0.025)


def test_under_the_graphs_order_waiting_is_in_the_collective(rows):
    for network in networks():
        parts = {name: rows[network, name, 24576, "weak"]["breakdown"] for name in ("negotiate", "graph")}
        assert parts["graph"]["coordinator_s"] == 0
        assert parts["graph"]["collective_s"] > parts["negotiate"]["collective_s"]
        assert parts["graph"]["copy_s"] == pytest.approx(parts["negotiate"]["copy_s"])


def test_one_set_of_constants_holds_for_all():
    points = [runs.Point(network, "graph", 96) for network in networks()]
    constants = [dict(runs.run_of(point).constants) for point in points]
    assert all(set(given) <= {"contention_share"} for given in constants)
    assert len(execute([runs.run_of(point, 5) for point in points])) == 9


def test_output(result, tmp_path):
    text = "\n".join(result.text(100))
    assert "24576 GPUs, negotiate, used for calibration" in text
    lines = result.to_csv().splitlines()
    assert lines[0].split(",") == [
        *("network", "coordinator", "gpus", "scaling", "iteration_s", "images_per_s"),
        *("compute_s", "coordinator_s", "copy_s", "collective_s"),
    ]
    assert len(lines) == 1 + 9 * 7 * 5 + 6 * 5


def test_figures(tmp_path):
    pytest.importorskip("matplotlib")
    drawn = [Path(figure) for figure in run_study("load-imbalance", tmp_path).to_dict()["figures"]]
    assert len(drawn) == 3
    assert sorted(drawn) == sorted(tmp_path.iterdir())
    assert all(figure.read_bytes().startswith(b"\x89PNG") for figure in drawn)


def test_documentation_says_what_comes_out(result):
    page = (ROOT / "docs" / "explanation" / "coordinator-model.md").read_text()
    for row in result.study.rows:
        assert f"| {row.row} | {row.model} | {row.published:g} {row.unit} |" in page
        assert f"| {row.error:+.1%} |" in page
    for claim in result.study.claims:
        assert f"| {claim.claim} | {claim.verdict} |" in page
