"""benches/gpu without a device: what it says there, and what it counts as a failure."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path

import cli
import cuda_stand_in
import pytest

RUN = Path(__file__).resolve().parents[1] / "benches" / "gpu" / "run.py"


def said(library):
    """What `make gpu` says with this driver; it must exit with 77."""
    environ = {**os.environ, "PACELINE_CUDA_LIBRARY": library, "CUDA_VISIBLE_DEVICES": ""}
    done = cli.ended(sys.executable, RUN, env=environ)
    assert (done.returncode, done.stdout) == (77, ""), done.stderr
    return done.stderr.splitlines()


def test_without_a_driver_it_says_so_in_one_line():
    [line] = said("/nowhere/libcuda.so.1")
    assert line.startswith("make gpu: no CUDA device here: /nowhere/libcuda.so.1")


@pytest.mark.process
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the stand-in needs memfd")
def test_without_a_device_that_torch_uses_it_says_so_in_one_line():
    [line] = said(cuda_stand_in.library())
    assert "2 devices, but torch" in line


@pytest.fixture
def run():
    spec = importlib.util.spec_from_file_location("benches_gpu_run", RUN)
    run = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run)
    return run


def test_no_step_begins_after_its_minutes_and_what_is_missing_is_named(run, monkeypatch, tmp_path):
    now = 0.0
    monkeypatch.setattr(run.time, "monotonic", lambda: now)
    monkeypatch.setattr(run, "device", lambda: {"devices": ["one"], "driver": "1.0", "torch": "2.0"})

    def part(name, steps_s):
        def steps(options, content):
            nonlocal now
            content[name] = 0
            for step_s in steps_s:
                yield
                now += step_s
                content[name] += 1

        return steps

    monkeypatch.setattr(run, "PARTS", {"a": part("a", [10, 20]), "b": part("b", [20, 20, 5]), "c": part("c", [5])})
    options = argparse.Namespace(parts=["a", "b", "c"], minutes=1, json=tmp_path / "gpu.json")
    content = run.measure(options)
    assert {name: content[name] for name in "abc"} == {"a": 2, "b": 2, "c": 0}
    assert (content["cut"], content["took_s"]) == (["b", "c"], {"a": 30, "b": 40, "c": 0})
    assert json.loads(options.json.read_text()) == content
    options.minutes = 5
    assert run.measure(options)["cut"] == []


def test_it_fails_if_a_part_of_ours_fails(run):
    good = {
        "correct": [{"code": 0}],
        "faults": [{"right": True}],
        "training": [{"system": "ipc", "code": 0}, {"system": "nccl", "code": 1}],
        "times": {"host": {"code": 0}, "gloo": {"code": 1}},
        "sharded": [{"system": "ipc", "step_ms": 1.0}, {"system": "nccl", "said": "no"}],
        "horovod": {"code": 0},
        "recorded": {"device": {"step_s": 1.0}},
    }
    assert run.failed(good) == []
    bad = {
        "correct": [{"code": 1}],
        "faults": [{"right": False}],
        "training": [{"system": "cpu", "code": 1}],
        "times": {"ipc": {"code": 124}},
        "sharded": [{"system": "host", "said": "no"}],
        "horovod": {"code": 1},
        "recorded": {"device": {"said": "no"}},
    }
    for name, part in bad.items():
        assert run.failed({**good, name: part}) == [name]


def test_operators_are_run_on_the_cpu_where_a_device_only_is_missing():
    spec = importlib.util.spec_from_file_location("benches_gpu_operators", RUN.with_name("operators.py"))
    operators = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = operators
    spec.loader.exec_module(operators)
    bench = operators.Bench("cpu", tiny=True)
    for section in operators.SECTIONS:
        for case in itertools.islice(section(bench), 3):
            assert bench.median_us(case.call) > 0
            assert case.operator and case.shape
