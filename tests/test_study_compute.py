"""The study `compute`: its rows, their commands, and the errors that it sums up."""

import json
import math

import cli
import pytest
from paceline_lab.studies import finetune
from paceline_lab.studies.compute.ablation import ablated
from paceline_lab.studies.compute.data import GROUPS, read
from paceline_lab.studies.finetune.data import read_held_out
from paceline_lab.studies.priors import priors_without, publication
from paceline_lab.studies.steps.data import FOLDER, UNITS, Metric
from paceline_lab.studies.steps.forecast import answer_of, range_of
from paceline_lab.studies.steps.result import Computed, numbers, verdicts
from paceline_lab.studies.steps.runs import forecast_each, leave_one_source_out

ROWS = {row.id: row for row in read()}
SOME = ("neusight-h100-bert-large-2", "F43")


@pytest.fixture(scope="module")
def some():
    rows = [ROWS[name] for name in SOME]
    forecasts, skipped = forecast_each([*rows, ROWS["ft577"]])
    return Computed("Steps", forecasts, skipped, GROUPS)


def test_rows_are_well_formed():
    assert len(ROWS) == len(read())
    for row in ROWS.values():
        assert row.group in GROUPS
        assert row.source
        assert row.unit in UNITS or row.left_out
        assert row.command or row.left_out, f"{row.id}: a command, or the reason why there is none"
        assert row.measured > 0 or row.metric is Metric.FITS
        assert row.metric is not Metric.UNSPECIFIED or row.left_out
        assert not (row.assumed and row.left_out)


def test_files_of_commands_are_there():
    named = {
        word
        for row in [*ROWS.values(), *finetune.read(), *read_held_out()]
        for word in row.words
        if word.startswith(str(FOLDER))
    }
    assert named == {str(path) for path in FOLDER.glob("configs/*.json")}
    rows = [*ROWS.values(), *finetune.read()]
    recorded = {f"{word}.xz" for row in rows for word in row.words if word.startswith("traces/")}
    assert recorded == {str(path.relative_to(FOLDER)) for path in FOLDER.glob("traces/*")}


def test_recorded_steps_are_what_the_model_of_operators_was_fitted_to():
    forecasts, _ = forecast_each([row for row in ROWS.values() if row.group == "steps"])
    for kind in ("time", "memory"):
        actual = numbers(Computed("Steps", forecasts, [], GROUPS).of(kind))
        assert actual["rows"] == 8
        assert actual["mean"] <= 0.04
        assert actual["worst"] <= 0.1


@pytest.mark.slow
def test_a_mechanism_that_is_left_out_makes_it_worse():
    rows = [row for row in ROWS.values() if row.id in ("step-vgg16", "step-gpt2-medium")]
    errors = {it.name: it.mean for it in ablated(rows)}
    whole = errors.pop("nothing left out")
    for name in ("split-K", "fused attention: products and a softmax instead", "slow products of odd rows"):
        assert errors[name] > 2 * whole
    # Nothing of it is left behind.
    assert ablated(rows)[0].mean == whole


def test_constants_of_a_source_are_those_without_it():
    rows = [ROWS["step-resnet50"]]
    (blind,) = leave_one_source_out(rows)
    (known,), _ = forecast_each(rows)
    assert abs(blind.error) > abs(known.error)
    assert priors_without(rows[0].source) and not priors_without(ROWS["F03"].source)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('mosaicml/llm-foundry@8c8dd48f72 scripts/README.md "H100"', "llm-foundry"),
        ("karpathy/nanoGPT issue #110 (2023-02-02)", "nanoGPT"),
        ("Paceline benches/gpu/steps.py on an H200", "Paceline"),
    ],
)
def test_publications_have_the_name_of_their_repository(source, name):
    assert publication(source) == name


def test_a_command_names_one_scenario(some):
    assert [it.row.id for it in some.rows] == list(SOME)
    assert [(row.id, why) for row, why in some.skipped] == [("ft577", "no option has GaLore AdamW per-parameter")]


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
    actual = numbers(some.rows)
    assert actual["mean"] == pytest.approx(sum(sizes) / 2)
    assert (actual["rows"], actual["p90"], actual["worst"]) == (2, sizes[1], sizes[1])
    assert verdicts(some.rows)["rows"] == 0


def test_output(some):
    plain = some.to_dict()
    assert plain["summary"]["neusight"]["time"]["rows"] == 1
    assert plain["by"]["gpu"]["time"].keys() == {"h100", "H100 PCIe"}
    assert plain["rows"][0]["command"] == f"paceline simulate {ROWS[SOME[0]].command}"
    assert len(some.to_csv().splitlines()) == 3
    assert any("GaLore" in line for line in some.text(80))


@pytest.mark.parametrize(
    ("name", "model", "gpu", "kernels"),
    [
        ("step-vgg16", "vgg16", "h200", "as recorded"),
        ("catalog-llama-3.2-1b", "llama-3.2-1b", "h200", "eager"),
        ("neusight-h100-gpt3-xl-1", "gpt3-xl", "h100", "eager"),
        ("F43", "resnet-50", "H100 PCIe", "as recorded"),
    ],
)
def test_rows_are_summed_up_by_what_their_commands_name(name, model, gpu, kernels):
    row = ROWS[name]
    assert (row.forecast_model, row.forecast_gpu, row.kernels) == (model, gpu, kernels)


def test_a_row_whose_power_limit_is_not_stated_is_forecast_as_a_range():
    row = ROWS["F19"]
    assert row.left_out and "--power-limit" in row.words
    low, high = range_of(row)
    assert low < row.measured < high
    _, ((_, why),) = forecast_each([row])
    assert "forecast as" in why


def test_a_job_that_did_not_fit():
    row = ROWS["F34"]
    assert row.metric is Metric.FITS
    assert row.measured == 0


@pytest.mark.slow
def test_the_command_runs_it():
    data = json.loads(cli.call("study", "compute", "--json").stdout)
    assert {row["id"] for row in data["rows"]} | {row["id"] for row in data["skipped"]} == set(ROWS)
    assert {row["id"] for row in data["skipped"] if row["group"] != "finetune"} == {
        row.id for row in ROWS.values() if row.left_out and row.group != "finetune"
    }
    assert all(row["forecast"] > 0 or row["metric"] == "fits" for row in data["rows"])


def test_more_than_one_scenario_is_refused():
    with pytest.raises(Exception, match="scenarios instead of one"):
        answer_of(["resnet-50", "--gpus", "8"])
