"""The study `held-out`: measurements that nothing was fitted to, and their first forecasts."""

import json
from dataclasses import replace

import cli
import pytest
from paceline_lab.studies.finetune.data import HELD_OUT_GROUPS, read, read_held_out
from paceline_lab.studies.finetune.held_out import HELD_OUT
from paceline_lab.studies.finetune.measurement import measurements
from paceline_lab.studies.finetune.sources import source_of
from paceline_lab.studies.held_out import HeldOut, first_forecasts
from paceline_lab.studies.steps.data import UNITS, Metric
from paceline_lab.studies.steps.result import numbers
from paceline_lab.studies.steps.runs import forecast_each

ROWS = {row.id: row for row in read_held_out()}
LINES = {it.id: it for it in measurements("held-out.csv")}
FIRST = first_forecasts()


def command_of(name, **changes):
    it = replace(LINES[name], **changes)
    return source_of(it, HELD_OUT).read(it).command


def test_every_measurement_is_a_row_with_a_command_or_a_reason():
    assert len(ROWS) == len(LINES) == 360
    assert {row.group for row in ROWS.values()} == set(HELD_OUT_GROUPS)
    for row in ROWS.values():
        assert row.command or row.left_out, row.id
        assert row.unit in UNITS
        assert row.measured > 0 or row.metric is Metric.FITS


def test_none_of_the_measurements_are_among_those_that_made_the_rules():
    assert not {row.source for row in ROWS.values()} & {row.source for row in read()}
    assert not set(ROWS) & {row.id for row in read()}


def test_every_counted_row_has_a_first_forecast():
    since = ["ho157"]  # It had no forecast then: layers on several GPUs in turn.
    counted = [name for name, row in ROWS.items() if not row.left_out and name not in since]
    assert [it.row.id for it in FIRST if not it.row.left_out] == counted


def test_rows_with_a_first_forecast_are_left_out_by_what_their_source_states():
    reasons = {it.row.left_out for it in FIRST if it.row.left_out}
    stated = ("bitsandbytes before 0.43.2", "the peak is that of loading", "it contradicts itself", "each launch waits")
    assert len(reasons) == len(stated) and all(reason.startswith(stated) for reason in reasons)


def test_errors_of_first_forecasts_are_those_of_forecasts():
    forecasts, _ = forecast_each([ROWS["ho333"]])
    (now,) = forecasts
    then = next(it for it in FIRST if it.row.id == "ho333")
    same = replace(then, value=now.value)
    assert same.error == now.error
    assert same.residual == now.residual
    assert same.is_right == now.is_right


def test_the_first_errors_are_kept():
    # A row whose reading is left out later changes these numbers: docs/results/finetune.md states them.
    time = numbers([it for it in FIRST if it.row.metric.is_time])
    memory = numbers([it for it in FIRST if it.row.metric.is_memory])
    assert (time["rows"], memory["rows"]) == (134, 128)
    assert time["mean"] == pytest.approx(0.332, abs=0.001)
    assert memory["mean"] == pytest.approx(0.210, abs=0.001)


def test_a_time_of_a_pass_is_multiplied_to_a_step():
    assert ROWS["ho170"].measured == pytest.approx(32 * float(LINES["ho170"].measured))


def test_a_pair_is_two_sequences():
    assert "--batch 8 " in command_of("ho134")
    assert "--loss dpo" in command_of("ho134")
    assert "--batch 4 " in command_of("ho147")


def test_an_output_has_the_first_errors_apart():
    rows, skipped = forecast_each([ROWS["ho270"], ROWS["ho333"]])
    assert not skipped
    data = json.loads(json.dumps(HeldOut("title", rows, skipped, HELD_OUT_GROUPS).to_dict()))
    assert data["total"]["time"]["rows"] == 2
    assert data["first"]["total"]["fits"] == {
        "rows": 253,
        "right": 225,
        "fits_but_did_not": 17,
        "does_not_fit_but_did": 11,
    }


@pytest.mark.slow
def test_the_command_runs_it():
    data = json.loads(cli.call("study", "held-out", "--json").stdout)
    assert {row["id"] for row in data["rows"]} | {row["id"] for row in data["skipped"]} == set(ROWS)
