"""Asynchronous training in processes: weights are those of a replay, bounds hold, failures name who failed."""

import json
import os
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from cli import begun, ended, launched
from hvd_workers import asynchronous as workers
from paceline.async_ps.clock import Clock
from replay_async import replay

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]
SCRIPT = [sys.executable, "-m", "hvd_workers.asynchronous"]
ROOT = Path(__file__).parent.parent


def run(*words, ranks=3, servers=1, options=(), code=0, **env):
    """What the ranks say, and what the command prints on standard error."""
    started = ["-np", ranks, "--strategy", "async-ps", "--servers", servers, *options]
    done = launched(*started, "--", *SCRIPT, *words, env=env, timeout=170)
    assert done.returncode == code, done.stdout + done.stderr
    return [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if "{" in line], done.stderr


def weights(values):
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def assert_replayed(result):
    kind = result["kind"]
    want = replay(result["order"], workers.model, workers.loss_of, lambda net: workers.optimizer_of(net, kind))
    for name, value in weights(result["weights"]).items():
        assert torch.equal(value, want[name].double()), (kind, name, (value - want[name]).abs().max())


@pytest.mark.parametrize(
    ("kinds", "servers", "options"),
    [
        ("momentum,adam,plain", 1, []),
        ("momentum,adamw", 2, ["--staleness", 1]),
        ("adagrad,rmsprop", 2, ["--transport", "tcp"]),
    ],
)
def test_weights_are_those_of_a_replay_of_the_recorded_order(kinds, servers, options):
    said, _ = run("train", kinds, 2, servers=servers, options=options)
    assert [result["kind"] for result in said] == kinds.split(",")
    for result in said:
        entries = [entry for server in result["order"] for entry in server]
        assert len(result["order"]) == servers
        assert len(entries) == 3 * workers.STEPS * 4
        assert_replayed(result)
        seen = [entry["version"] - entry["pulled"] for entry in entries]
        assert {int(it): count for it, count in result["staleness"].items()} == {it: seen.count(it) for it in set(seen)}
        if "--staleness" in options:
            assert max(seen) <= Clock.most_stale(3, 1)


@pytest.mark.parametrize("bound", [0, 2])
def test_the_bound_holds(bound):
    [result], _ = run("train", "plain", 1, options=["--staleness", bound])
    assert_replayed(result)
    [server] = result["order"]
    assert max(entry["version"] - entry["pulled"] for entry in server) <= Clock.most_stale(3, bound)
    # No gradient of iteration c before all others of iteration c - N - 1.
    for at, entry in enumerate(server):
        others = [
            sum(1 for e in server[:at] if e["worker"] == worker and e["iteration"] < entry["iteration"] - bound)
            for worker in range(3)
            if worker != entry["worker"]
        ]
        assert all(count == 4 * max(0, entry["iteration"] - bound) for count in others), (at, entry)


def test_in_lock_step_without_momentum_it_is_the_sum_of_synchronous_training():
    """With N = 0 and pulls that come before all pushes, an iteration applies the sum of the workers' gradients."""
    said, _ = run("together", "plain", options=["--staleness", 0])
    net = workers.model()
    optimizer, _ = workers.optimizer_of(net, "plain")
    for step in range(workers.STEPS):
        optimizer.zero_grad()
        sum(workers.loss_of(net, rank, step) for rank in range(3)).backward()
        optimizer.step()
    for result in said:
        for name, value in weights(result["weights"]).items():
            torch.testing.assert_close(value, dict(net.named_parameters())[name].double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("mode", "kind"), [("resume", "adam"), ("clipped", "plain")])
def test_alone_it_is_plain_training(mode, kind):
    [result], _ = run(mode, ranks=1, servers=2, options=["--placement", "even"] if mode == "resume" else [])
    torch.set_num_threads(1)
    net = workers.model()
    optimizer, _ = workers.optimizer_of(net, kind)
    for step in range(workers.STEPS if mode == "resume" else 3):
        optimizer.zero_grad()
        workers.loss_of(net, 0, step).backward()
        if mode == "clipped":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    for name, value in weights(result["weights"]).items():
        assert torch.equal(value, dict(net.named_parameters())[name].double()), name


@pytest.mark.parametrize("how", ["leave", "join"])
def test_workers_that_have_finished_keep_nobody_waiting(how):
    said, _ = run("uneven", how, options=["--staleness", 0])
    assert sorted(result["rank"] for result in said if "rank" in result) == [0, 1, 2]
    assert [result["gradients"] for result in said if "gradients" in result] == [4 * (4 + 8 + 12)] * (
        3 if how == "join" else 0
    )


def test_a_worker_that_dies_is_named():
    said, err = run("lose", "SIGKILL", 2, code=1)
    assert sorted(result["rank"] for result in said) == [0, 1]
    assert all(re.search(r"rank 2 \(host \S+, pid \d+\) died", result["error"]) for result in said), said
    assert re.search(r"paceline: error: rank 2 \(host \S+, pid \d+\) was killed by SIGKILL", err), err


@pytest.mark.parametrize("options", [[], ["--staleness", 1]])
def test_a_worker_that_is_stopped_is_named(options):
    process = begun("-np", 3, "--strategy", "async-ps", "--timeout", 5, *options, "--", *SCRIPT, "lose", "SIGSTOP", 2)
    out, err = process.communicate(timeout=170)
    assert process.returncode == 1, out + err
    said = [json.loads(line[line.index("{") :]) for line in out.splitlines() if "{" in line]
    assert sorted(result["rank"] for result in said) == [0, 1], out + err
    assert all("rank 2" in result["error"] for result in said), said
    if options:
        assert all(result["steps"] == 6 for result in said), said  # Rank 2 has finished 5.
    else:
        assert all(result["steps"] > 20 for result in said), said  # The others have gone on meanwhile.


def test_a_worker_that_is_behind_is_named_and_its_iterations_counted():
    began = time.monotonic()
    said, _ = run("sleep", 1, options=["--staleness", 2, "--timeout", 4], code=1)
    assert time.monotonic() - began < 100
    result = next(result for result in said if result["rank"] in (0, 2))
    assert re.search(r"to start iteration 8 with staleness 2: missing rank 1 \(has finished 5\)", result["error"]), said


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("shape", ["rank 1", r"float64\[3, 8\]", r"float64\[4, 8\]"]),
        ("dtype", ["rank 1", r"float64\[3, 8\]", r"float32\[3, 8\]"]),
        ("rule", ["Adam", "SGD"]),
        ("weights", ["rank 1 starts with other parameters than rank 0", "broadcast_parameters"]),
    ],
)
def test_a_worker_with_another_model_is_named(what, words):
    _, err = run("differ", what, code=1)
    for word in words:
        assert re.search(word, err), err


def test_what_servers_cannot_do_is_refused():
    said, _ = run("refusals", ranks=1)
    refused = {result["what"]: result for result in said}
    for what, words in {
        "own": "cannot run the optimizer __main__.refusals.<locals>.Own",
        "lbfgs": "cannot run the optimizer torch.optim.lbfgs.LBFGS",
        "fused": "fused=True runs only where the gradients are",
        "compression": "compression has no effect",
        "op": "op has no effect",
        "scaled": "the gradient of .* was changed after backward had pushed it",
        "faster": "the options of .* were changed after backward had pushed its gradient",
        "overwritten": "was changed outside of the optimizer",
        "hooked": "hooks of step",
        "synchronize": "gradients were pushed in the backward pass",
        "sparse": "is sparse",
        "frozen": "'allreduce.noname.0.0' has a gradient that no backward pass has pushed",
        "by hand": "'allreduce.noname.0.0' has a gradient that no backward pass has pushed",
        "scaler": "GradScaler divides gradients that backward had pushed",
        "class": "the optimizer's options have no momentum",
        "flags": "nesterov or maximize of .* was changed",
        "converted": r"is torch.float16.* now",
    }.items():
        assert re.search(words, refused[what]["error"]), (what, refused.get(what))
        assert refused[what]["remedy"], what

    assert "backward_passes_per_step is 0" in refused["passes"]["error"]


@pytest.mark.parametrize("how", ["leave", "wait"])
def test_who_waits_for_parameters_learns_that_the_first_rank_does_not_train(how):
    said, _ = run("alone", how, ranks=2, options=["--timeout", 5], code=1)
    [result] = said
    assert re.search(r"rank 1 waited .* parameters of its optimizer 1: missing rank 0, which", result["error"]), result
    assert ("has left" if how == "leave" else "has not begun to train it") in result["error"]
    assert "the same optimizers on all ranks" in result["remedy"]


def test_a_forked_process_waits_for_nobody_and_says_nothing_at_its_end():
    said, err = run("forked", ranks=1)
    assert {"status": 0, "child": True} in said and "Traceback" not in err and "died" not in err, err
    assert any("was forked from a rank" in result.get("error", "") for result in said)


def test_a_scaler_that_skips_a_step_trains_as_alone():
    [result], _ = run("scaler", ranks=1)
    torch.set_num_threads(1)
    net, scaler = workers.model(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    workers.scaled_steps(net, workers.optimizer_of(net, "plain")[0], scaler)
    for name, value in weights(result["weights"]).items():
        assert torch.equal(value, dict(net.named_parameters())[name].double()), name


def test_training_is_recorded(tmp_path):
    """The recorder's hooks are no hooks of the script's."""
    path = tmp_path / "asynchronous.json"
    script = [sys.executable, ROOT / "examples" / "async_ps.py", "--steps", 40]
    done = launched("-np", 2, "--strategy", "async-ps", "--record", path, "--", *script, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    trace = json.loads(path.read_text())
    assert len(trace["workers"]) == 2
    for worker in trace["workers"]:
        assert [gradient["tensor"] for gradient in worker["gradients"]] == ["2.bias", "2.weight", "0.bias", "0.weight"]
    assert "staleness in updates: mean" in done.stdout


def test_a_launcher_without_servers_is_refused():
    env = {**os.environ, "PACELINE_STRATEGY": "async-ps"}
    done = ended(sys.executable, "-c", "import paceline.torch as hvd; hvd.init()", env=env)
    assert done.returncode != 0 and "needs server processes" in done.stderr, done.stderr
    assert "paceline run --strategy async-ps --servers 1" in done.stderr


def test_recordings_of_asynchronous_workers(tmp_path):
    """The recorder watches steps that servers run, and says whose time is not in the trace."""
    path, example = tmp_path / "mine.json", Path(__file__).parent.parent / "examples" / "async_ps.py"
    options = ["-np", 2, "--strategy", "async-ps", "--record", path, "--record-steps", 4]
    done = launched(*options, "--", sys.executable, example, "--steps", 30, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    trace = json.loads(path.read_text())
    assert [len(worker["gradients"]) for worker in trace["workers"]] == [4, 4]
    assert "servers ran the optimizer, so its updates are not in the trace" in trace["provenance"]
