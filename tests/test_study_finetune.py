"""The study `finetune`: how measurements are read, and the errors of their forecasts."""

import json
from dataclasses import replace

import cli
import pytest
from paceline_lab.studies.finetune.data import GROUPS, read
from paceline_lab.studies.finetune.measurement import measurements
from paceline_lab.studies.finetune.readings import NotForecast
from paceline_lab.studies.finetune.sources import SOURCES, source_of
from paceline_lab.studies.steps.data import FOLDER, UNITS, Metric
from paceline_lab.studies.steps.runs import forecast_each

ROWS = {row.id: row for row in read()}
LINES = {it.id: it for it in measurements()}
SOME = ("ft004", "ft120", "ft142", "ft242", "ft326", "ft393")
"""A row of each of several sources."""


def command_of(name, **changes):
    it = replace(LINES[name], **changes)
    return source_of(it).read(it).command


def test_every_measurement_is_a_row_with_a_command_or_a_reason():
    assert len(ROWS) == len(LINES) == 481
    for row in ROWS.values():
        assert row.group in GROUPS
        assert row.command or row.left_out, row.id
        assert row.unit in UNITS or row.left_out
        assert row.measured > 0 or row.metric is Metric.FITS
        assert row.metric is not Metric.UNSPECIFIED or row.left_out


def test_every_source_is_known():
    assert {source.group for source in SOURCES} == {row.group for row in ROWS.values()}
    assert len({source.title for source in SOURCES}) == len(GROUPS)


def test_a_configuration_has_one_command_for_time_and_memory():
    whole = {}
    for row in ROWS.values():
        if row.group != "peft" and row.command:
            it = LINES[row.id]
            key = tuple(
                value
                for name, value in vars(it).items()
                if name not in ("id", "metric", "measured", "unit", "not_stated")
            )
            whole.setdefault(key, set()).add(row.command)
    assert all(len(commands) == 1 for commands in whole.values())


def test_a_reading_follows_the_columns():
    assert "--batch 7 " in command_of("ft120", batch_per_gpu="7")
    assert "--seq 1000 " in command_of("ft120", seq="1000")
    assert "--lora 5:q_proj,v_proj " in command_of("ft014", lora_rank="5")
    assert "--quantize" not in command_of("ft326", quantization="none")
    assert "--loss-chunks 8" in command_of("ft242")


def test_padded_batches_are_read_by_their_mean_length_for_time_and_by_the_longest_for_memory():
    assert "--seq 210 " in ROWS["ft004"].command
    assert "--seq 768 " in ROWS["ft001"].command


def test_a_source_whose_memory_is_the_sum_over_gpus_is_read_per_gpu():
    row, it = ROWS["ft423"], LINES["ft423"]
    assert row.measured == pytest.approx(float(it.measured) / int(it.gpus))


def test_the_time_of_a_run_is_a_rate():
    row, it = ROWS["ft327"], LINES["ft327"]
    assert row.metric is Metric.SAMPLES_PER_S
    assert row.measured == pytest.approx(1024 / float(it.measured))


def test_methods_that_no_option_has_are_recorded_at_both_lengths():
    assert ROWS["ft031"].command.startswith("traces/peft-lora-fa-768.json --gpu l40s ")
    assert ROWS["ft044"].command.startswith("traces/peft-ia3-all-210.json ")
    named = {row.command.split(" ")[0] for row in ROWS.values() if row.command.startswith("traces/")}
    assert len(named) == 2 * 12
    assert all((FOLDER / f"{name}.xz").exists() for name in named)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ft275", "lengths of samples are not stated"),
        ("ft755", "Apple"),
        ("ft581", "NPU"),
        ("ft455", "mean length"),
    ],
)
def test_a_measurement_without_a_forecast_has_the_reason(name, why):
    assert why in ROWS[name].left_out
    if why != "mean length":
        with pytest.raises(NotForecast):
            command_of(name)


def test_some_rows_are_near():
    forecasts, skipped = forecast_each([ROWS[name] for name in SOME])
    assert not skipped
    assert len(forecasts) == len(SOME)
    assert sum(abs(it.error) for it in forecasts if it.row.method == "full") / 2 <= 0.1


@pytest.mark.slow
def test_the_command_runs_it():
    data = json.loads(cli.call("study", "finetune", "--json").stdout)
    assert {row["id"] for row in data["rows"]} | {row["id"] for row in data["skipped"]} == set(ROWS)
    assert data["total"]["fits"]["right"] >= 0.9 * data["total"]["fits"]["rows"]
