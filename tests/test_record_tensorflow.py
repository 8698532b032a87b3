"""Recording scripts that train with TensorFlow and Keras, in processes of their own."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import cli
import paceline
import pytest
from test_record_format import check_trace, layers

HERE = Path(__file__).parent
SCRIPT = HERE / "tensorflow_workers" / "recorded.py"
EXAMPLE = HERE.parent / "examples" / "tensorflow_train.py"
FORWARD_S, BACKWARD_S, SLACK_S = 0.048, 0.078, 0.04  # What the script sleeps, but for late marks; 0.002 s less.

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed; make test-all installs it"
    ),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "T.json"


def environment():
    one_thread = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    return {**cli.clean(), **one_thread, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}


def record(path, *words, options=(), script=SCRIPT):
    """Return what the command has done."""
    command = ["record", "-o", str(path), *map(str, options), "--", sys.executable, str(script), *map(str, words)]
    return cli.ended(sys.executable, "-m", "paceline", *command, env=environment(), cwd=str(path.parent), timeout=300)


def trained(done):
    """Return what the script has printed of its variables."""
    return json.loads(re.search(r"TRAINED (.*)", done.stdout)[1])


def whole(trace):
    """Return the worker, its layers' durations and its gradients' times."""
    worker = check_trace(trace)
    durations = {layer["layer"]: layer["duration_s"] for layer in worker["forward"]}
    return worker, durations, {gradient["tensor"]: gradient["ready_s"] for gradient in worker["gradients"]}


@pytest.mark.parametrize("ways", ["eager", "eager-tensors", "function", "fit", "fit-eager", "loop"])
def test_layers_and_gradients_are_those_of_the_script(path, ways):
    done = record(path, ways, 24, options=["--steps", 5, "--json"])
    assert done.returncode == 0, done.stderr
    trace, summary = json.loads(path.read_text()), json.loads(done.stdout[done.stdout.index("{\n") :])
    worker, durations, ready = whole(trace)
    assert (trace["name"], trace["batch"], trace["dtype"]) == ("net", 6, "float32")
    variables = dict(trained(done)["variables"])
    assert {gradient["tensor"]: gradient["bytes"] for gradient in worker["gradients"]} == variables
    owners = {name: [] for name in ("one", "norm", "sleepy", "two", "three")}
    for name in variables:
        owners[name.split("/")[-2]].append(name)
    assert {name.removeprefix("net/"): sorted(some) for name, some in layers(worker).items()} == {
        name: sorted(some) for name, some in owners.items()
    }
    # One layer sleeps in both passes, between the others.
    assert FORWARD_S <= durations["net/sleepy"] < FORWARD_S + SLACK_S
    assert sum(seconds for name, seconds in durations.items() if name not in ("net/sleepy", "(input)")) < SLACK_S
    for name, at in ready.items():
        late = name.split("/")[-2] in ("one", "norm")
        assert BACKWARD_S * late <= at < BACKWARD_S * late + SLACK_S, (name, at)
    assert max(ready.values()) <= worker["backward_s"] < BACKWARD_S + SLACK_S
    assert worker["optimizer_s"] < SLACK_S
    # The parts add up to the step, as measured from the end of one to the end of the next.
    parts = sum(durations.values()) + worker["backward_s"] + worker["optimizer_s"]
    assert parts == pytest.approx(summary["step_s"], rel=0.15)
    assert summary["input_in_trace"] and summary["steps"] == 5
    # SGD's velocities, for which forecasts of memory need no assumption.
    assert trace["optimizer_bytes"] == sum(variables.values())
    if ways.startswith(("eager", "fit-eager")):
        assert "recording made the step" in trace["provenance"]
    else:
        assert "timestamps stay in the graphs" in trace["provenance"]
        assert summary["overhead"] is None and summary["why_no_overhead"] == "marks stay in the graphs"
    assert paceline.simulate(str(path), workers=4, strategy="ring", bandwidth="25Gbps").iteration_s > 0.1


@pytest.mark.parametrize("ways", ["eager-alone", "function-alone", "loop-alone"])
def test_updates_without_an_optimizer(path, ways):
    done = record(path, ways, 24, options=["--steps", 5, "--json"])
    assert done.returncode == 0, done.stderr
    assert "net (948 parameters) with assignments of its own, batch 6" in done.stderr
    trace, summary = json.loads(path.read_text()), json.loads(done.stdout[done.stdout.index("{\n") :])
    worker, durations, ready = whole(trace)
    assert {one["tensor"]: one["bytes"] for one in worker["gradients"]} == dict(trained(done)["variables"])
    assert FORWARD_S <= durations["net/sleepy"] < FORWARD_S + SLACK_S
    assert ready["net/one/kernel"] >= BACKWARD_S > SLACK_S > ready["net/three/kernel"]
    assert 0 < worker["optimizer_s"] < SLACK_S
    assert summary["steps"] == 5 and trace["optimizer_bytes"] == 0
    assert "the script assigns its variables itself" in trace["provenance"]
    assert ("recording made the step" in trace["provenance"]) == (ways == "eager-alone")


@pytest.mark.parametrize("ways", ["eager-clip", "function-clip"])
def test_assignments_beside_an_optimizer_are_no_updates(path, ways):
    done = record(path, ways, 24, options=["--steps", 5])
    assert done.returncode == 0, done.stderr
    assert "recorded 5 steps of net (948 parameters) with SGD" in done.stderr
    assert json.loads(path.read_text())["optimizer_bytes"] == 4 * 948


@pytest.mark.parametrize("ways", ["eager", "function", "fit", "eager-alone", "function-alone"])
def test_a_recorded_script_trains_like_another(path, ways):
    done = record(path, ways, 12, options=["--steps", 5])
    plain = cli.ended(sys.executable, str(SCRIPT), ways, "12", env=environment(), timeout=300)
    assert trained(done)["weights"] == pytest.approx(trained(plain)["weights"], rel=1e-5)


def test_a_recorded_model_can_be_saved(path):
    done = record(path, "function-save", 8, options=["--steps", 2, "--warmup", 2])
    assert done.returncode == 0, done.stderr
    check_trace(json.loads(path.read_text()))


def test_frozen_layers(path):
    done = record(path, "function-frozen", 10, options=["--steps", 4])
    trace = json.loads(path.read_text())
    check_trace(trace)
    frozen = [{"tensor": "net/one/kernel", "bytes": 1024}, {"tensor": "net/one/bias", "bytes": 128}]
    assert trace["frozen"] == frozen
    assert "frozen: 2 parameters, such as net/one/kernel" in " ".join(done.stderr.split())


@pytest.mark.parametrize("loop", ["function", "eager", "fit"])
def test_the_example(path, loop):
    done = record(path, "--loop", loop, script=EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert "Recorded sequential (153,994 parameters, batch 32)" in done.stderr
    worker = check_trace(json.loads(path.read_text()))
    assert len(worker["gradients"]) == 10


@pytest.mark.parametrize(
    ("ways", "steps", "options", "said"),
    [
        ("function-nothing", 5, [], "gradients were computed by a tape, but no optimizer step was seen"),
        ("function-xla-tensors", 5, [], "XLA compiles the function, which hides when its gradients are ready"),
        ("function-alone-partly", 5, [], "no optimizer step was seen; 7 of 8 variables with gradients were assigned"),
        ("eager-alone-singly", 5, [], "a tape computes gradients after variables of others were assigned"),
        ("function-gpu", 5, [], "TensorFlow trains on a GPU, whose kernels end after their marks"),
        ("eager-gpu", 5, [], "TensorFlow trains on a GPU, whose kernels end after their marks"),
        ("function", 2, [], "2 optimizer steps seen, which is too few"),
        ("eager", 5, ["--gpu", "h100"], "trains with TensorFlow, whose steps cannot be estimated for h100"),
    ],
)
def test_without_a_trace_the_reason_is_said(path, ways, steps, options, said):
    done = record(path, ways, steps, options=options)
    assert done.returncode == 1, done.stderr
    words = " ".join(done.stderr.split())
    assert "no trace: " in words and said in words
    assert "try: " in words
    assert not path.exists()


@pytest.mark.parametrize("ways", ["eager", "function", "fit"])
def test_the_script_is_ended_once_recorded(path, ways):
    done = record(path, ways, 100_000, options=["--steps", 3, "--stop-when-recorded"])
    assert done.returncode == 0, done.stderr
    assert "TRAINED" not in done.stdout
    check_trace(json.loads(path.read_text()))


@pytest.mark.parametrize("ways", ["eager", "function", "fit"])
def test_two_ranks(path, ways):
    options = ["-np", "2", "--record", path, "--record-steps", "4"]
    done = cli.launched(*options, "--", sys.executable, SCRIPT, ways, "14", cwd=None, timeout=300, env=environment())
    assert done.returncode == 0, done.stderr
    trace = json.loads(path.read_text())
    assert (trace["batch"], trace["library"], len(trace["workers"])) == (6, "horovod", 2)
    for worker in trace["workers"]:
        _, durations, ready = whole({**trace, "workers": [worker]})
        assert "(input)" not in durations  # It may be a wait for the other rank.
        assert FORWARD_S <= durations["net/sleepy"] < FORWARD_S + SLACK_S
        assert ready["net/one/kernel"] >= BACKWARD_S > SLACK_S > ready["net/three/kernel"]
        assert worker["optimizer_s"] < SLACK_S
    assert "one rank of several" in trace["provenance"]
    assert "Recorded 4 steps of 2 ranks: net, batch 6" in done.stderr
