"""Several jobs of many ranks: collectives as single events, against every message; progress; Ctrl-C."""

import itertools
import json
import signal
import threading
import time

import click
import paceline
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline.cli.simulate import simulate
from paceline.forecast.jobs import model, spec, table
from paceline.forecast.run import result_of

EVERY_MESSAGE, NONE = 10**15, -1


def job(name, **fields):
    return {"name": name, "trace": "allreduce:4MB/2", "workers": 4, **fields}


def simulated(document, monkeypatch, most):
    monkeypatch.setattr(model, "_MOST_MESSAGES", most)
    monkeypatch.setattr(model, "_MOST_ON_FEW_NODES", most)
    return model.simulate_jobs(spec.mix(document, "jobs.toml"))


def worst_error(document):
    """Return by how much an iteration, alone or beside others, differs from that of all messages."""
    with pytest.MonkeyPatch.context() as patch:
        exact, result = (simulated(document, patch, most) for most in (EVERY_MESSAGE, NONE))
    assert result.by_collective and not exact.by_collective
    pairs = zip(exact.jobs, result.jobs, strict=True)
    return max(
        abs(getattr(two, name) / getattr(one, name) - 1) for one, two in pairs for name in ("iteration_s", "alone_s")
    )


RINGS = st.sampled_from(["ring", "native"])
SHARDINGS = st.sampled_from(["none", "zero1", "zero2", "zero3", "hsdp"])
FABRICS = st.sampled_from(
    [
        {},
        {"racks": {"nodes_per_rack": 2, "oversubscription": 2.0}},
        {"racks": {"nodes_per_rack": 2, "oversubscription": 3.0}},
    ]
)


@st.composite
def mixes(draw, network):
    """Two jobs on up to four nodes: spread over racks, packed or at random, the second one begins later."""
    per_node = draw(st.sampled_from([2, 4]))
    nodes = draw(st.permutations(range(4)))
    jobs = []
    for name, own in (("a", sorted(nodes[:2])), ("b", sorted(nodes[2:]))):
        sharding = draw(SHARDINGS)
        one = {"name": name, "workers": 2 * per_node, "nodes": own, "strategy": draw(RINGS)}
        one["trace"] = draw(st.sampled_from(["gpt2-small", "resnet-50", "bert-base"]))
        if sharding != "none":
            one["sharding"] = sharding
        jobs.append(one)
    jobs[1]["start"] = draw(st.sampled_from(["0ms", "3ms", "70ms"]))
    cluster = {"nodes": 4, "gpus_per_node": per_node, "intra_bandwidth": "200Gbps", "iterations": 3}
    bandwidth = draw(st.sampled_from(["25Gbps", "100Gbps"]))
    return {**cluster, "bandwidth": bandwidth, "network": network, **draw(FABRICS), "job": jobs}


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(mixes("fluid"))
def test_rings_share_a_network_nearly_as_their_messages_do(document):
    assert worst_error(document) < 0.04


@settings(max_examples=12, deadline=None, derandomize=True)
@given(mixes("fluid"), st.booleans())
def test_a_job_alone_takes_what_its_messages_take(document, is_fifo):
    document |= {"network": "fifo"} if is_fifo else {}
    del document["job"][1]
    assert worst_error(document) < 1e-5


def test_few_nodes_are_simulated_with_every_message():
    two = [
        job(name, trace="gpt2-xl@h100", workers=16, sharding="zero3", nodes=own)
        for name, own in (("a", [0, 2]), ("b", [1, 3]))
    ]
    mix = spec.mix({"nodes": 4, "gpus_per_node": 8, "bandwidth": "400Gbps", "iterations": 1, "job": two}, "jobs.toml")
    assert not model.simulate_jobs(mix).by_collective


def test_jobs_of_many_ranks_are_simulated_by_collective():
    many = {"trace": "gpt2-xl@h100", "workers": 64, "strategy": "ring"}
    mix = spec.mix({"gpus_per_node": 8, "bandwidth": "400Gbps", "network": "fluid", "job": [many]}, "jobs.toml")
    result = model.simulate_jobs(mix)
    assert result.by_collective and table.to_dict(result)["resolution"] == "collectives"
    assert "each collective as a whole" in " ".join(" ".join(table.lines(result)).split())
    small = model.simulate_jobs(spec.mix({"job": [job("a")]}, "jobs.toml"))
    assert not small.by_collective and "resolution" not in table.to_dict(small)


def test_servers_need_every_message(monkeypatch):
    servers = job("ps", trace="resnet-18", strategy="ps", servers=2)
    assert not simulated({"iterations": 1, "job": [servers, job("ring")]}, monkeypatch, NONE).by_collective


def test_progress_has_a_total():
    calls = []
    mix = spec.mix({"iterations": 300, "job": [job("a", workers=8), job("b", workers=8)]}, "jobs.toml")
    model.simulate_jobs(mix, bar=lambda done, total: calls.append((done, total)))
    assert calls and all(0 <= done <= total for done, total in calls)
    assert len({total for _, total in calls}) == 1 and calls == sorted(calls)


def test_ctrl_c_leaves_what_there_is(monkeypatch):
    mix = spec.mix({"iterations": 1000, "job": [job("a", workers=64), job("b", workers=64)]}, "jobs.toml")
    monkeypatch.setattr(model, "_MOST_MESSAGES", EVERY_MESSAGE)
    pressed = []

    def press(done, total):
        if done > 10:
            pressed.append(time.monotonic())
            raise KeyboardInterrupt

    result = model.simulate_jobs(mix, bar=press)
    assert time.monotonic() - pressed[0] < 1
    assert result.is_partial and table.to_dict(result)["partial"] is True
    assert all(one.iterations > 0 and one.iteration_s > 0 for one in result.jobs)
    lines = table.lines(result)
    assert "?" in "\n".join(lines) and click.unstyle(lines[0]).startswith("Interrupted: ")


@pytest.mark.parametrize("known", [0, 2])
def test_ctrl_c_does_not_wait_for_forecasts_of_single_jobs(known, monkeypatch):
    """`known`: how many are forecast before both threads are busy with others, and Ctrl-C is pressed."""
    forecasts, release, original = itertools.count(), threading.Event(), result_of
    main = threading.main_thread().ident

    def forecast(scenario):
        number = next(forecasts)
        if number < known:
            return original(scenario)
        if number == known + 1:
            signal.pthread_kill(main, signal.SIGINT)
        release.wait(30)
        raise AssertionError("nobody needs it")

    monkeypatch.setattr(model, "result_of", forecast)
    monkeypatch.setattr(model, "cores", lambda: 2)
    mix = spec.mix({"job": [job("a"), job("b")]}, "jobs.toml")
    started = time.monotonic()
    try:
        if known:
            assert model.simulate_jobs(mix).is_partial
        else:
            with pytest.raises(KeyboardInterrupt):
                model.simulate_jobs(mix)
        assert time.monotonic() - started < 10
    finally:
        release.set()


def test_the_command_prints_what_there_is_after_ctrl_c(monkeypatch, tmp_path):
    file = tmp_path / "jobs.toml"
    file.write_text('iterations = 1000\n[[job]]\ntrace = "allreduce:4MB/2"\nworkers = 64\n')
    monkeypatch.setattr(model, "_MOST_MESSAGES", EVERY_MESSAGE)

    def press(futures, timeout):
        time.sleep(0.3)
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "wait", press)
    # Not of `main`, which ends this process as Ctrl-C does.
    done = CliRunner().invoke(simulate, ["--jobs", str(file), "--json"])
    assert done.exit_code != 0
    assert json.loads(done.stdout)["partial"] is True
    assert "interrupted" in done.stderr


def test_a_hundred_thousand_gpus_of_a_sharded_plan():
    result = paceline.simulate("llama-3-8b", gpu="h100", workers=131_072, sharding="hsdp")
    assert result.workers == 131_072 and result.iteration_s > 0
