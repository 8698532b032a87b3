"""Training by parameter servers, pulled in step() or by layer: weights equal those of one process with all batches."""

import json
import sys

import cli
import pytest
from hvd_workers import pulling
from hvd_workers.launch import RankError, run
from job_workers.launch import TESTS, clean

pytestmark = pytest.mark.process

SERVERS = {"PACELINE_STRATEGY": "ps", "PACELINE_SERVERS": "2"}


@pytest.mark.parametrize("pull", ["step", "layer"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"PACELINE_PLACEMENT": "even", "HOROVOD_FUSION_THRESHOLD": "2000"},
        {"PACELINE_STRATEGY": "sharded-ps"},
    ],
)
def test_weights_after_fifty_steps(pull, more):
    run(2, pulling.kinds, env={**SERVERS, "PACELINE_PULL": pull, **more})


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"PACELINE_CHUNK": "64B", "PACELINE_PLACEMENT": "tensorflow"},
        {"PACELINE_PLACEMENT": "even", "PACELINE_TRANSPORT": "tcp"},
        {"PACELINE_STRATEGY": "sharded-ps"},
        {"PACELINE_STRATEGY": "ps-multicast-aggregation", "HOROVOD_FUSION_THRESHOLD": "2000"},
    ],
)
def test_weights_after_fifty_steps_without_the_barrier(more):
    run(2, pulling.kinds, env={**SERVERS, "PACELINE_BARRIER": "0", **more})


def test_without_the_barrier_the_weights_are_the_same_bit_for_bit():
    one = {**SERVERS, "PACELINE_SERVERS": "1"}
    assert run(2, pulling.digest, env=one) == run(2, pulling.digest, env={**one, "PACELINE_BARRIER": "0"})


@pytest.mark.parametrize(
    "task",
    [
        pulling.step_waits_for_nothing,
        pulling.closures_are_refused,
        pulling.clipping_needs_synchronize,
        pulling.scalers_need_synchronize,
    ],
    ids=lambda task: task.__name__,
)
def test_what_scripts_do_without_the_barrier(task):
    run(2, task, env={**SERVERS, "PACELINE_BARRIER": "0"})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"PACELINE_STRATEGY": "ring"}, "PACELINE_BARRIER: has no effect on ring"),
        ({"PACELINE_STRATEGY": "async-ps"}, "PACELINE_BARRIER: has no effect on async-ps"),
        ({"PACELINE_STRATEGY": "ps", "PACELINE_PULL": "step"}, "PACELINE_PULL: step waits for all sums"),
        (
            {"PACELINE_STRATEGY": "ps", "PACELINE_DISTRIBUTION": "block"},
            "PACELINE_DISTRIBUTION: block needs the barrier",
        ),
    ],
)
def test_where_no_barrier_cannot_be(more, says):
    with pytest.raises(RankError, match=says):
        run(1, pulling.kinds, env={"PACELINE_BARRIER": "0", **more})


def test_a_file_places_tensors_by_name(tmp_path):
    path = tmp_path / "placement.json"
    names = ["first", "norm", "seldom", "last"]
    table = {f"{name}.{kind}": 1 for name in names for kind in ("weight", "bias")} | {"twice.weight": 0}
    path.write_text(json.dumps(table))
    environ = {**SERVERS, "PACELINE_PLACEMENT": str(path)}
    check_servers(environ, tmp_path / "t.json", table)
    path.write_text(json.dumps({name: 0 for name in table if name != "last.bias"}))
    with pytest.raises(RankError, match=r'last\.bias": is missing'):
        run(2, pulling.kinds, env=environ)
    path.write_text(json.dumps(dict.fromkeys(table, 2)))
    with pytest.raises(RankError, match="there is no server 2 among 2"):
        run(2, pulling.kinds, env=environ)


def check_servers(environ, timeline, table):
    """Train, and check in the timeline that every message of a tensor to a server goes to that of the table."""
    run(2, pulling.kinds, env={**environ, "PACELINE_TIMELINE": str(timeline)})
    events = [event for event in json.loads(timeline.read_text())["traceEvents"] if event["ph"] == "b"]
    operations = {
        (event["pid"], event["args"]["operation"]): event["name"] for event in events if event["cat"] == "operation"
    }
    seen = set()
    for event in events:
        if event["cat"] == "message" and event["args"]["to"].startswith("server"):
            name = operations[event["pid"], event["args"]["operation"]].removeprefix("allreduce.")
            if name in table:
                assert event["args"]["to"] == f"server {table[name]}", name
                seen.add(name)
    assert seen == set(table)


def test_tensorflow_places_parameters_in_the_order_of_their_creation(tmp_path):
    names = ["first.weight", "first.bias", "norm.weight", "norm.bias", "twice.weight", "seldom.weight", "seldom.bias"]
    table = {name: number % 3 for number, name in enumerate([*names, "last.weight", "last.bias"])}
    environ = {**SERVERS, "PACELINE_SERVERS": "3", "PACELINE_PLACEMENT": "tensorflow"}
    check_servers(environ, tmp_path / "t.json", table)


def test_layers_catch_up_when_they_are_called():
    run(2, pulling.step_waits_for_nothing, env={**SERVERS, "PACELINE_PULL": "layer"})


@pytest.mark.parametrize(
    "task",
    [
        pulling.copies_are_whole,
        pulling.what_is_loaded_stays,
        pulling.changes_before_the_pull_are_told,
        pulling.compiled_models_train,
    ],
    ids=lambda task: task.__name__,
)
def test_what_else_touches_parameters_that_are_behind(task):
    run(2, task, env={**SERVERS, "PACELINE_PULL": "layer"})


def test_pull_is_for_parameter_servers():
    with pytest.raises(RankError, match="PACELINE_PULL: has no effect on ring"):
        run(1, pulling.kinds, env={"PACELINE_PULL": "layer"})


@pytest.mark.slow
def test_the_example_trains_with_servers_of_its_own():
    script = str(TESTS.parent / "examples" / "horovod_mnist.py")
    options = ["-np", "2", "--strategy", "ps", "--servers", "2", "--pull", "layer"]
    command = [sys.executable, "-m", "paceline.cli", "run", *options, "--", sys.executable, script]
    ended = cli.ended(*command, "--synthetic", "--epochs", "1", env=clean(), timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "epoch 1: " in ended.stdout
