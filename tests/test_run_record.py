"""`paceline run --record`: one trace of all ranks, in real processes."""

import json
import os
import sys
from pathlib import Path

import cli
import paceline
import pytest

WORKERS = Path(__file__).parent / "run_record_workers"


def run(*words, script=None, arguments=(), **settings):
    command = [] if script is None else ["--", sys.executable, WORKERS / f"{script}.py", *arguments]
    return cli.launched(*words, *command, **{"cwd": None, "timeout": 200, **settings})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "T.json"


@pytest.fixture
def rsh(tmp_path):
    """A remote shell for any host, all of which are this machine, with another folder for temporary files."""
    script = tmp_path / "rsh"
    script.write_text(f'#!/bin/sh\nshift\nunset PYTHONPATH\ncd /\nTMPDIR={tmp_path} exec sh -c "$*"\n')
    script.chmod(0o755)
    return script


# With torch


def compute_s(worker):
    return sum(layer["duration_s"] for layer in worker["forward"]) + worker["backward_s"] + worker["optimizer_s"]


def check_that_rank_1_alone_is_slow(path):
    """By what it sleeps in its forward pass; the other rank waits for it, and that is not in the trace."""
    trace = json.loads(path.read_text())
    fast, slow = trace["workers"]
    assert (trace["name"], trace["batch"]) == ("Net", 16)
    names = ["body.0", "body.1", "body.2", "body.3", "head"]
    layers = [[layer for layer in worker["forward"] if layer["layer"] != "(input)"] for worker in trace["workers"]]
    assert [[layer["layer"] for layer in worker][:5] for worker in layers] == [names] * 2
    assert {gradient["tensor"] for gradient in slow["gradients"]} == {
        f"{name}.{part}" for name in names if name != "body.1" for part in ("weight", "bias")
    }
    # The small model takes a few milliseconds; this machine may be busy.
    assert compute_s(fast) < 0.08
    sleeps_s = layers[1][1]["duration_s"]
    assert 0.15 <= sleeps_s < 0.2
    assert compute_s(slow) - sleeps_s < 0.08
    # The simulated workers behave as the recorded ones: the iteration is as long as the slowest one's.
    both = paceline.simulate(str(path), workers=2, strategy="ring", bandwidth="100Gbps")
    assert compute_s(slow) <= both.iteration_s < compute_s(slow) + 0.05
    path.write_text(json.dumps({**trace, "workers": [fast]}))
    alone = paceline.simulate(str(path), workers=2, strategy="ring", bandwidth="100Gbps")
    assert alone.iteration_s < 0.1
    return trace


def recorded(path, ranks, script, *arguments):
    """Record 4 steps of a script; return what the command said."""
    pytest.importorskip("torch")
    options = ["-np", ranks, "--record", path, "--record-steps", 4, "--record-warmup", 3]
    result = run(*options, script=script, arguments=list(arguments))
    assert result.returncode == 0, result.stderr
    return result


@pytest.mark.process
@pytest.mark.parametrize("backend", ["paceline", pytest.param("gloo", marks=pytest.mark.slow)])
def test_ddp(path, backend):
    result = recorded(path, 2, "ddp", backend)
    trace = check_that_rank_1_alone_is_slow(path)
    assert "one rank of several" in trace["provenance"]
    said = " ".join(result.stderr.replace("\\\n", "").split())
    assert "Recorded 4 steps of 2 ranks: Net, batch 16 Medians forward " in said
    assert " Slowest rank 1 computes " in said
    assert f"Wrote {path} try: paceline simulate {path} " in said and said.endswith("--workers 2,4,8")


@pytest.mark.process
@pytest.mark.parametrize("backend", ["paceline", pytest.param("gloo", marks=pytest.mark.slow)])
def test_fsdp2(path, backend):
    recorded(path, 2, "fsdp2", backend)
    trace = check_that_rank_1_alone_is_slow(path)
    assert "sharded by FSDP2" in trace["provenance"]
    sizes = {gradient["tensor"]: gradient["bytes"] for gradient in trace["workers"][0]["gradients"]}
    assert (sizes["body.3.weight"], sizes["body.3.bias"]) == (4 * 512 * 256, 4 * 512)


@pytest.mark.process
@pytest.mark.slow
def test_hsdp(path):
    recorded(path, 4, "fsdp2", "paceline", "hsdp")
    trace = json.loads(path.read_text())
    assert "it is multiplied by 2;" in trace["provenance"]
    body_1 = [worker["forward"][2]["duration_s"] for worker in trace["workers"]]
    assert [duration > 0.14 for duration in body_1] == [False, True, False, False]
    rests = [compute_s(worker) - sleeps for worker, sleeps in zip(trace["workers"], body_1, strict=True)]
    assert max(rests) < 0.14  # Rank 1 sleeps as long, and the others wait for it in each unit.


@pytest.mark.process
def test_horovod_on_two_hosts(path, rsh, tmp_path):
    pytest.importorskip("torch")
    options = ["--hosts", "a,b", "--rsh", rsh, "--record", path, "--record-steps", 4, "--record-warmup", 3]
    result = run(*options, script="horovod", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    check_that_rank_1_alone_is_slow(path)
    assert not list(tmp_path.glob("paceline-record-*"))


# Without


@pytest.mark.process
def test_traces_come_back_from_all_hosts(path, rsh, tmp_path):
    ranks = [f"{rank}:large" for rank in range(4)]
    options = ["--hosts", "a:2,b:2", "--rsh", rsh, "--record", path, "--record-steps", 20]
    result = run(*options, script="pretend", arguments=ranks, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    trace = json.loads(path.read_text())
    assert [worker["forward"][0]["duration_s"] for worker in trace["workers"]] == [0.01, 0.02, 0.03, 0.04]
    assert [len(worker["gradients"]) for worker in trace["workers"]] == [20_000] * 4
    assert "4 ranks of `paceline run`; rank 0: of rank 0; " in trace["provenance"]
    said = " ".join(result.stderr.split())
    assert "Recorded 20 steps of 4 ranks: " in said
    assert "Medians forward 25 ms, backward 20 ms, optimizer 1 ms " in said
    assert "Slowest rank 3 computes 1.97x as long as rank 0 " in said
    folders = [Path(line.split("] ")[1]) for line in result.stdout.splitlines()]
    assert len(set(folders)) == 4
    assert not any(folder.exists() for folder in folders)


@pytest.mark.process
@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (["1:nothing"], "no trace of rank 1: no optimizer step was seen (0 steps)"),
        (["0:nothing", "2:nothing"], "no trace of rank 0, 2: no optimizer"),
        (["1:error", "2:nothing"], "no trace of rank 1: something is wrong; rank 2: no optimizer"),
        (["2:other-model"], "no trace: rank 2 has a gradient of other (400 bytes), rank 0 has none"),
        (["1:too-large"], "no trace of rank 1: its trace has"),
    ],
)
def test_no_trace_of_some_ranks_alone(path, ranks, said):
    path.write_text("of before")
    result = run("-np", 3, "--record", path, script="pretend", arguments=ranks)
    assert result.returncode == 1
    assert f"paceline: error: {said}" in result.stderr
    assert path.read_text() == "of before"


@pytest.mark.process
def test_no_trace_of_training_that_failed(path):
    result = run("-np", 2, "--record", path, script="pretend", arguments=["1:fails"])
    assert result.returncode == 1
    assert "rank 1" in result.stderr
    assert f"paceline: no trace was written to {path}" in result.stderr
    assert not path.exists()


@pytest.mark.process
def test_what_is_no_python_has_no_trace(path):
    result = run("-np", 2, "--record", path, "--", "true")
    assert result.returncode == 1
    assert "paceline: error: no trace of rank 0-1: no optimizer step was seen" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--record-steps", "3"], "--record-steps needs --record"),
        (["--record-warmup", "0"], "--record-warmup needs --record"),
        (["--record", "/no/such/folder/T.json"], "--record /no/such/folder/T.json: the folder"),
        (["--record", "/tmp"], "--record /tmp: is a folder"),
        (["--record", "T.json", "--record-steps", "0"], "--record-steps: must be 1-100000, not 0"),
    ],
)
def test_mistakes(words, said, tmp_path):
    result = run("-np", 1, *words, "--", "echo", "ran", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


def test_inside_of_another_recording(path):
    result = run("-np", 1, "--record", path, "true", env={**os.environ, "PACELINE_RECORD_SETTINGS": "{}"})
    assert result.returncode == 2
    assert "inside `paceline record`" in result.stderr
