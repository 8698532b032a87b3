"""Parts of `paceline bench`: places, processes, data, weights, layers."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from paceline_lab.bench import weights
from paceline_lab.bench.host_group import Alone
from paceline_lab.bench.places import arrange
from paceline_lab.bench.processes import EngineFailedError, Process, run
from paceline_lab.bench.ranks import data, start
from paceline_lab.bench.ranks.graph import UntranslatableError, layers_of
from paceline_lab.bench.ranks.models import build
from paceline_lab.bench.ranks.rank_spec import RankSpec
from paceline_lab.bench.ranks.stopwatch import Stopwatch


def spec(tmp_path, **more):
    fields = {
        **{"mode": "ddp", "model": "cnn", "batch": 2, "batches": 5, "warmup": 2, "alone": 2, "seed": 1},
        **{"learning_rate": 0.1, "momentum": 0.9, "image_size": 16, "classes": 10, "folder": str(tmp_path)},
    }
    return RankSpec(**{**fields, **more})


class Hosts:
    """Several hosts including this one; the others answer as this one does."""

    def __init__(self, host, hosts):
        self.host, self.hosts = host, hosts

    def gather(self, value):
        return [{**value, "address": f"10.0.0.{host + 1}", "ports": range(1000, 1100)} for host in range(self.hosts)]


@pytest.mark.parametrize(("hosts", "workers", "each"), [(4, 4, [1, 1, 1, 1]), (3, 4, [2, 1, 1]), (4, 2, [1, 1])])
def test_ranks_are_spread_evenly_and_servers_are_beside_them(hosts, workers, each):
    places = arrange(Hosts(0, hosts), workers, 3, "127.0.0.1")
    assert [sum(slot.host == host for slot in places.ranks) for host in range(len(each))] == each
    assert [slot.number for slot in places.ranks] == list(range(workers))
    assert [slot.host for slot in places.servers] == [places.ranks[number % workers].host for number in range(3)]
    ports = [(slot.address, port) for slot in (*places.ranks, *places.servers) for port in slot.ports]
    assert len(set(ports)) == len(ports)


def test_images_are_the_same_for_the_same_seed_rank_and_number_alone():
    def images(*key):
        return data.batch(*key, 2, 8, 10)[0]

    assert np.array_equal(images(1, 0, 0), images(1, 0, 0))
    for other in ((2, 0, 0), (1, 1, 0), (1, 0, 1)):
        assert not np.array_equal(images(1, 0, 0), images(*other))


def test_the_difference_of_weights_is_relative_to_what_training_has_changed():
    initial = {"a": np.zeros(2, "float32"), "b": np.ones(3, "float32")}
    theirs = {"a": np.array([3, 4], "float32"), "b": np.ones(3, "float32")}  # moved by 5
    ours = {"a": np.array([3, 4], "float32"), "b": np.array([1, 1, 1.5], "float32")}  # 0.5 apart
    assert weights.difference(ours, theirs, initial) == pytest.approx(0.1)
    assert weights.difference(theirs, theirs, initial) == 0
    with pytest.raises(ValueError, match="names of the weights differ: b"):
        weights.difference({"a": ours["a"]}, theirs, initial)


def test_weights_are_kept_in_the_warm_up_and_steps_are_counted(tmp_path):
    kept, stopwatch = [], Stopwatch(spec(tmp_path), 0)
    stopwatch.run(lambda step: step, float, lambda: kept.append(1))
    stopwatch.write({"a": np.ones(1, "float32")})
    answer = json.loads((tmp_path / "result-0.json").read_text())
    assert len(kept) == 2  # as many as warm-up steps
    assert answer["losses"] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert sum(answer["seconds"]) <= answer["lasted_s"]
    events = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events] == [-2, -1, 0, 1, 2, 3, 4]


def python(name, code, **more):
    return Process(name, [sys.executable, "-c", code], {"PATH": "/usr/bin:/bin"}, **more)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; sys.exit('out of memory')", "rank 1 .* exited with code 1: out of memory"),
        ("import os; os.kill(os.getpid(), 9)", "rank 1 .* was killed by SIGKILL"),
        ("import time; time.sleep(60)", "rank 1 did not finish within 2 s"),
    ],
)
def test_the_rank_that_failed_is_named(tmp_path, code, says):
    with pytest.raises(EngineFailedError, match=says):
        run(Alone(), [python("rank 0", "pass"), python("rank 1", code)], tmp_path, 2.0)


def test_a_command_that_is_not_there_is_named(tmp_path):
    with pytest.raises(EngineFailedError, match="mpirun cannot be started: /none: No such file"):
        run(Alone(), [Process("mpirun", ["/none"], {})], tmp_path, 2.0)


def test_servers_end_with_the_ranks_and_not_before(tmp_path):
    server = python("server 0", "import time; time.sleep(60)", serves=True)
    run(Alone(), [python("rank 0", "pass"), server], tmp_path, 20.0)
    with pytest.raises(EngineFailedError, match=r"server 0 .* exited with code 0"):
        run(
            Alone(), [python("rank 0", "import time; time.sleep(9)"), python("server 0", "", serves=True)], tmp_path, 20
        )


@pytest.mark.parametrize("model", ["resnet18", "vgg11", "alexnet", "mobilenet_v2", "squeezenet1_0", "cnn", "mlp"])
def test_layers_name_every_weight_of_the_model_once(tmp_path, model):
    size = 64 if model in ("cnn", "mlp") else 224
    made = build(spec(tmp_path, model=model, image_size=size))
    layers = layers_of(made, size)
    named = [one["weights"] for one in layers if "weights" in one]
    assert len(set(named)) == len(named)
    owners = {name.rpartition(".")[0] for name, _ in made.named_parameters()}
    assert set(named) == owners


def test_pools_with_ceil_mode_reach_over_the_edge():
    pool = torch.nn.Sequential(torch.nn.MaxPool2d(3, 2, ceil_mode=True), torch.nn.Flatten(), torch.nn.Linear(48, 2))
    layer = next(one for one in layers_of(pool, 8) if one["kind"] == "max-pool")
    # 8 pixels give windows from 0, 2, 4 and 6; the last ends one pixel outside.
    assert layer["padding"] == [[0, 1], [0, 1]]


def test_layers_that_have_no_word_are_named():
    with pytest.raises(UntranslatableError, match="Softplus"):
        layers_of(torch.nn.Sequential(torch.nn.Softplus()), 8)
    with pytest.raises(UntranslatableError, match="2 groups"):
        layers_of(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 4, 1, groups=2)), 8)


def test_ranks_start_in_an_environment_without_paceline(tmp_path):
    # -S: without site-packages.
    command = [sys.executable, "-S", start.__file__, "rank_spec", "spec.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
