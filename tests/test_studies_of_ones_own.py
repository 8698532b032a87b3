"""Studies with workers, rates and traces of one's own."""

import csv
import io
import json

import cli
import paceline
import pytest
from paceline import InvalidArgumentError
from paceline_lab.studies import STUDIES, run_study
from paceline_lab.studies.own import _COMPARISONS, Own


def own(*words):
    return json.loads(cli.call("study", *words, "--json").stdout)


def test_a_study_with_own_values_forecasts_its_systems(tmp_path):
    found = own("network-operator", "--workers", "4,8", "--bandwidth", "10Gbps", "--trace", "netop-vgg-16")
    assert found["rows"] == [] and found["claims"] == []
    times = {(it["row"], it["model"]): it["simulated"] for it in found["forecasts"] if it["unit"] == "s"}
    gains = {(it["row"], it["model"]): it["simulated"] for it in found["forecasts"] if it["unit"] == "x"}
    assert len(times) == len(gains) == 8 * 2
    alone = paceline.simulate("netop-vgg-16", None, "ps-multicast", workers=8, library="none", bandwidth="10Gbps")
    assert times["multicast", "8 GPUs"] == alone.iteration_s
    for (name, count), gain in gains.items():
        assert gain == times["parameter server", count] / times[name, count]


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
    if name in _COMPARISONS:
        assert len(run_study(name, own=values).to_dict()["forecasts"]) == 2 * len(_COMPARISONS[name].systems)
        return
    with pytest.raises(InvalidArgumentError, match="no effect") as error:
        run_study(name, own=values)
    assert "paceline study" in error.value.remedy


def test_wrong_values_name_their_option():
    assert "--workers" in cli.said("study", "network-operator", "--workers", "0", code=2)
    assert "--bandwidth" in cli.said("study", "network-operator", "--bandwidth", "fast", code=2)
    assert "no such" in cli.said("study", "network-operator", "--trace", "none.json", "--workers", "2", code=2)
