"""The study `compute`: its rows, their commands, and the errors that it sums up."""

import json
import math

import cli
import pytest
from paceline_lab.studies.compute import forecast_each
from paceline_lab.studies.compute.data import FOLDER, GROUPS, UNITS, Metric, read
from paceline_lab.studies.compute.forecast import answer_of
from paceline_lab.studies.compute.result import Computed, numbers, verdicts

ROWS = {row.id: row for row in read()}
SOME = ("neusight-h100-bert-large-2", "F43")


@pytest.fixture(scope="module")
def some():
    rows = [ROWS[name] for name in SOME]
    forecasts, skipped = forecast_each([*rows, ROWS["ft577"]])
    return Computed(forecasts, skipped)


def test_rows_are_well_formed():
    assert len(ROWS) == len(read())
    for row in ROWS.values():
        assert row.group in GROUPS
        assert row.source
        assert row.unit in UNITS or row.left_out
        assert bool(row.command) != bool(row.left_out), f"{row.id}: a command, or the reason why there is none"
        assert row.measured > 0 or row.metric is Metric.FITS
        assert row.metric is not Metric.UNSPECIFIED or row.left_out
        assert not (row.assumed and row.left_out)


def test_files_of_commands_are_there():
    named = {word for row in ROWS.values() for word in row.words if word.startswith(str(FOLDER))}
    assert named
    assert all((FOLDER / word).is_file() for word in named)
    assert {str(path) for path in FOLDER.glob("configs/*.json")} <= named


def test_a_command_names_one_scenario(some):
    assert [it.row.id for it in some.rows] == list(SOME)
    assert [(row.id, why) for row, why in some.skipped] == [("ft577", "GaLore's optimizer is not known")]


def test_errors_are_of_times_whatever_was_measured(some):
    labels, images = some.rows
    result = labels.answer.result
    assert labels.value == result.forward_s + result.backward_s
    assert labels.error == labels.value / labels.measured - 1
    # A rate that is too high is a time that is too short.
    assert images.error == pytest.approx(images.measured / images.value - 1)
    assert images.residual == pytest.approx(math.log(images.value / images.measured))


def test_numbers(some):
    sizes = sorted(abs(it.error) for it in some.rows)
    found = numbers(some.rows)
    assert found["mean"] == pytest.approx(sum(sizes) / 2)
    assert (found["rows"], found["p90"], found["worst"]) == (2, sizes[1], sizes[1])
    assert verdicts(some.rows)["rows"] == 0


def test_output(some):
    plain = some.to_dict()
    assert plain["summary"]["neusight"]["time"]["rows"] == 1
    assert plain["by"]["gpu"]["time"].keys() == {"H100 80GB HBM3", "H100 PCIe"}
    assert plain["rows"][0]["command"] == f"paceline simulate {ROWS[SOME[0]].command}"
    assert len(some.to_csv().splitlines()) == 3
    assert any("GaLore" in line for line in some.text(80))


def test_a_job_that_did_not_fit():
    row = ROWS["F34"]
    assert row.metric is Metric.FITS
    assert row.measured == 0


def test_the_command_runs_it():
    data = json.loads(cli.call("study", "compute", "--json").stdout)
    assert {row["id"] for row in data["rows"]} | {row["id"] for row in data["skipped"]} == set(ROWS)


def test_more_than_one_scenario_is_refused():
    with pytest.raises(Exception, match="scenarios instead of one"):
        answer_of(["resnet-50", "--gpus", "8"])
