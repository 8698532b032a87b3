"""Answers that a forecast gives in corner cases, and the reasons of those that it refuses."""

import json
from functools import partial
from pathlib import Path

import cli
import paceline
import pytest
from paceline.errors import InvalidArgumentError
from paceline.forecast.execute import execute
from paceline.forecast.kinds import Measure
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.verdict.explain import explain
from paceline.forecast.verdict.groups import grouped
from paceline.forecast.wording import explanation as words
from paceline.forecast.wording import terms
from paceline_lab.report import spec

simulated = partial(cli.call, "simulate")

TINY = Path(__file__).parent.parent / "examples" / "tiny.json"

CLUSTER = {"format": "paceline-cluster", "version": 1, "bandwidth": "10Gbps"}


def explanation(traces="allreduce:1MB", **given):
    scenarios = prepare(Sweep.of(traces, given, "paceline.sweep")).scenarios
    return explain(grouped(scenarios, execute(scenarios)))


def notes(reply):
    return {change.measure: terms.remark(change.about) for change in reply.changes}


def test_the_network_does_not_change_one_node():
    def on(**network):
        return paceline.simulate(
            "resnet-50", workers=8, gpus_per_node=8, library="horovod", strategy="ring", **network
        ).iteration_s

    assert on(bandwidth="1Gbps") == on(bandwidth="25Gbps", latency="1ms")
    assert on(bandwidth="50Gbps") == on(bandwidth="400Gbps", latency="1ms")


def test_an_explanation_names_its_row_and_ranks_that_differ_by_chance():
    given = {"workers": [4], "strategy": ["ring"], "latency": ["0us"]}
    reply = explanation(["resnet-18", "allreduce:1MB"], bandwidth=["10Gbps", "25Gbps"], **given)
    assert words.answer(reply).headline.startswith("resnet-18, DDP (ring), 4 GPUs, 10 Gbps: ")
    assert "chance" in notes(reply)[Measure.WITHOUT_SLOWEST]
    alike = explanation(**given)
    assert "10 Gbps" not in words.answer(alike).headline
    assert "alike" in notes(alike)[Measure.WITHOUT_SLOWEST]


@pytest.mark.parametrize(
    ("chapter", "message"),
    [
        ("bucket_size = 25", "chapter 1: bucket_size: 25 has no unit"),
        ('bucket_size = ["1MB", 25]', "chapter 1: bucket_size: 25 has no unit"),
        ("chunk = 3", "chapter 1: chunk: 3 has no unit"),
        ("degraded = {node0 = 0.5}", "chapter 1: degraded: {'node0': 0.5} is not a link and what is left"),
        ("degraded = [{factor = 0.5}]", "chapter 1: degraded: {'factor': 0.5} is not a link and what is left"),
        ('timeline = {strategy = "rung"}', "chapter 1: timeline: strategy: unknown strategy 'rung'"),
    ],
)
def test_reports_refuse_with_file_chapter_and_key(tmp_path, chapter, message):
    file = tmp_path / "report.toml"
    file.write_text(f'[[chapter]]\ntrace = "resnet-18"\n{chapter}\n')
    with pytest.raises(InvalidArgumentError) as error:
        spec.read(file)
    assert str(error.value).startswith(f"{file}: {message}")


def test_usual_sizes_without_a_slow_rank_are_left_out(tmp_path):
    file = tmp_path / "slow.json"
    file.write_text(json.dumps({**CLUSTER, "stragglers": [{"rank": 3, "factor": 1.2}]}))
    words = ("allreduce:1MB", "--cluster", file, "--strategy", "ring")
    result = simulated(*words)
    assert result.exit_code == 0
    assert "Skipped 2 GPUs: the cluster's stragglers include rank 3" in cli.notes(result.stdout)
    reply = simulated(*words, "--workers", 2).stderr
    for part in (
        "--cluster",
        "slow.json",
        "there is no rank 3 with 2 workers",
        "try: --workers 4, or a cluster without it",
    ):
        assert part in reply


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--add-module", "compute:-1"), "--add-module"),
        (("--samples-per-s", "1e308"), "--samples-per-s"),
    ],
)
def test_mistakes_name_their_option(words, message):
    reply = simulated("resnet-18", "--workers", 2, *words)
    assert reply.exit_code == 2 and message in reply.stderr


def test_a_trace_of_an_unknown_library_says_how_it_is_forecast(tmp_path):
    document = json.loads(paceline.load_trace("resnet-18").to_json())
    file = tmp_path / "trace.json"
    file.write_text(json.dumps({**document, "library": "megatron"}))
    notes = cli.notes(cli.printed("simulate", file, "--workers", 2, "--strategy", "ring"))
    assumed = "Assumed ddp: resnet-18 was recorded with 'megatron', which is no known library (--library)"
    assert assumed in notes


def test_rows_of_two_libraries_name_theirs_once():
    reply = simulated("resnet-18", "--workers", 4, "--coordinator", "none,negotiate", "--strategy", "ring").stdout
    [head] = [line.split() for line in reply.splitlines() if "strategy" in line.split()]
    assert head.count("library") == 1


def test_ranks_of_a_recording_on_a_cpu_are_workers_unless_they_are_called_gpus(tmp_path):
    file, tiny = tmp_path / "mine.json", json.loads(TINY.read_text())
    for provenance, noun in (
        ("recorded by paceline 0.3.0 with torch 2.15.0 on AMD EPYC, 2 threads", "worker"),
        ("recorded by paceline 0.3.0 with torch 2.15.0+cu132", "GPU"),
    ):
        file.write_text(json.dumps({**tiny, "device": "AMD EPYC", "provenance": provenance}))
        text = simulated(file, "--bandwidth", "25Gbps").stdout
        assert f" 64 {noun}s: " in text.splitlines()[0] and f"per {noun}\n" in text
        assert ("GPU" in text.partition("Notes")[0]) == (noun == "GPU")
        assert " 4 GPUs: " in simulated(file, "--gpus", 4).stdout.splitlines()[0]
        assert " 4 workers: " in simulated(file, "--workers", 4).stdout.splitlines()[0]
        compared = cli.call("compare", file, "--gpus", 4, "--measured", "9s").stdout
        assert f"tiny, 4 {noun}s: " in compared.splitlines()[0]
