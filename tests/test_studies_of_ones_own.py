"""Studies with workers, rates and traces of one's own."""

import csv
import io
import json

import cli
import paceline
import pytest
from paceline import InvalidArgumentError
from paceline.forecast.run import result_of
from paceline_lab.studies import (
    STUDIES,
    WITH_OWN,
    comparison_of,
    cuda_aware_mpi,
    ddl_nccl,
    ray_sgd,
    run_study,
)
from paceline_lab.studies.load_imbalance.runs import Point, run_of
from paceline_lab.studies.own import Own


def own(*words):
    return json.loads(cli.call("study", *words, "--json").stdout)


def test_a_study_with_own_values_forecasts_its_systems(tmp_path):
    result = own("network-operator", "--workers", "4,8", "--bandwidth", "10Gbps", "--trace", "netop-vgg-16")
    assert result["rows"] == [] and result["claims"] == []
    times = {(it["row"], it["model"]): it["simulated"] for it in result["forecasts"] if it["unit"] == "s"}
    gains = {(it["row"], it["model"]): it["simulated"] for it in result["forecasts"] if it["unit"] == "x"}
    assert len(times) == len(gains) == 8 * 2
    alone = paceline.simulate("netop-vgg-16", None, "ps-multicast", workers=8, library="none", bandwidth="10Gbps")
    assert times["multicast", "8 GPUs"] == alone.iteration_s
    for (name, count), gain in gains.items():
        assert gain == times["parameter server", count] / times[name, count]


def iterations(study, *workers):
    values = run_study(study, own=Own(workers=list(workers))).to_dict()["forecasts"]
    return {
        (it["table"], it["row"], int(it["model"].split()[0])): it["simulated"] for it in values if it["unit"] == "s"
    }


def test_the_studys_own_workers_give_the_studys_own_tables():
    times = iterations("cuda-aware-mpi", 8)
    assert len(times) == 2 * len(cuda_aware_mpi.DESIGNS)
    for (table, name, gpus), iteration_s in times.items():
        assert gpus * 64 / iteration_s == pytest.approx(cuda_aware_mpi.rate(name, table.split(":")[0], gpus))
    for (_, name, gpus), iteration_s in iterations("ddl-nccl", 4, 16).items():
        assert gpus * 32 / iteration_s == pytest.approx(ddl_nccl.rate(name, gpus))
    times = iterations("ray-sgd", 4, 8, 16)
    assert {name for _, name, _ in times} == set(ray_sgd.SYSTEMS)
    for (_, name, gpus), iteration_s in times.items():
        inside = ray_sgd.SIMPLE if name == ray_sgd.RAY else ray_sgd.NCCL
        layout = ray_sgd.Layout(name, gpus, min(gpus, 8), inside)
        assert gpus * 64 / iteration_s == pytest.approx(ray_sgd.rate(layout))


def test_coordinators_with_own_workers_are_those_of_the_study():
    result = own("load-imbalance", "--workers", "6", "--trace", "resnet-50,alexnet")["forecasts"]
    assert len(result) == 2 * 2 * 5
    for it in result:
        trace, _, table = it["table"].partition(": ")
        if table == "iteration time":
            assert it["simulated"] == result_of(run_of(Point(trace, it["row"], 6))).iteration_s


@pytest.mark.parametrize("study", ["ray-sgd", "cuda-aware-mpi", "ddl-nccl", "load-imbalance"])
def test_own_rates_and_odd_numbers_of_workers(study):
    values = run_study(study, own=Own(workers=[1, 12], bandwidth=["1Gbps", "50Gbps"], traces=["resnet-18"])).to_dict()
    times = {(it["table"], it["row"], it["model"]): it["simulated"] for it in values["forecasts"] if it["unit"] == "s"}
    slow, fast = sorted({table for table, _, _ in times}, key=lambda table: "50" in table)
    for (table, row, gpus), iteration_s in times.items():
        if table == slow:
            assert iteration_s >= times[fast, row, gpus] * (1 - 1e-9)


def test_own_traces_and_plots(tmp_path):
    trace = tmp_path / "mine.json"
    trace.write_text(paceline.load_trace("resnet-18").to_json(), encoding="utf-8")
    text = cli.output("study", "ddl-nccl", "--trace", trace, "--workers", "8", "--plots", tmp_path)
    assert "resnet-18" in text and "nothing is published for them" in " ".join(text.split())
    assert (tmp_path / "ddl-nccl-own.png").stat().st_size > 1000
    out = cli.call("study", "ddl-nccl", "--trace", trace, "--workers", "8", "--csv").stdout
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {row["row"] for row in rows} == {"Horovod, NCCL", "Horovod, DDL"} and len(rows) == 4


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_each_study_takes_own_values_or_says_that_it_does_not(name):
    values = Own(workers=[4], traces=["resnet-18"])
    if name in WITH_OWN:
        assert len(run_study(name, own=values).to_dict()["forecasts"]) == 2 * len(comparison_of(name).systems)
        return
    with pytest.raises(InvalidArgumentError, match="no effect") as error:
        run_study(name, own=values)
    assert "paceline study" in error.value.remedy


def test_traces_of_one_name_are_not_mistaken_for_each_other(tmp_path):
    """Rows are told apart by the names of their traces."""
    trace = paceline.load_trace("resnet-18")
    (tmp_path / "own.json").write_text(trace.to_json(), encoding="utf-8")
    for traces in (f"resnet-18,{tmp_path / 'own.json'}", "resnet-18,resnet-18"):
        error = cli.said("study", "ddl-nccl", "--trace", traces, "--workers", "2", code=2)
        assert "--trace" in error and "have the same name, 'resnet-18'" in " ".join(error.split())


def test_wrong_values_name_their_option():
    assert "--workers" in cli.said("study", "network-operator", "--workers", "0", code=2)
    assert "--bandwidth" in cli.said("study", "network-operator", "--bandwidth", "fast", code=2)
    assert "no such" in cli.said("study", "network-operator", "--trace", "none.json", "--workers", "2", code=2)
