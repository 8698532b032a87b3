"""The peers' own tests, as far as torch's wheel has them, and the harness that runs them."""

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path

import cli
import pytest
from conformance import trainers
from conformance.__main__ import judged
from conformance.suites import SUITES, Suite, run

process = pytest.mark.process
TORCH = tuple(int(part) for part in version("torch").split("+")[0].split(".")[:2])
ALONE = """
import time
import unittest
import torch
import horovod.torch as hvd

class Toy(unittest.TestCase):
    def test_1_passes(self):
        hvd.init()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2

    def test_2_fails_on_one_rank(self):
        assert hvd.rank() == 0, "only here"
        hvd.allreduce(torch.ones(1), name="never")

    def test_3_goes_on_with_new_ranks(self):
        self.test_1_passes()

    def test_4_does_not_end_on_one_rank(self):
        hvd.init()
        while hvd.rank() == 1:
            time.sleep(0.1)

    def test_5_is_skipped(self):
        self.skipTest("no GPU")

def test_6_is_a_function():
    hvd.init()
    assert hvd.size() == 2
"""


def test_what_becomes_of_a_test():
    known = {"a": "why"}
    cases = {
        ("a", "failed"): "known",
        ("b", "failed"): "failed",
        ("a", "passed"): "surprise",
        ("b", "passed"): "passed",
    }
    for (test, outcome), kind in {**cases, ("a", "skipped"): "skipped"}.items():
        assert judged({"test": test, "outcome": outcome, "message": "", "seconds": 0.0}, known) == kind


def test_suites_say_what_they_need(monkeypatch, tmp_path):
    (suite,) = [suite for suite in SUITES if suite.name == "horovod-torch-3"]
    assert suite.tests == "horovod-torch"
    monkeypatch.delenv("HOROVOD_SOURCE", raising=False)
    assert suite.missing().startswith("HOROVOD_SOURCE is not set")
    monkeypatch.setenv("HOROVOD_SOURCE", str(tmp_path))
    assert suite.missing() == f"HOROVOD_SOURCE={tmp_path} has no test/parallel/test_torch.py"


@process
@pytest.mark.timeout(900)
def test_a_test_that_fails_on_one_rank_is_the_only_one_that_fails(monkeypatch, tmp_path):
    (tmp_path / "test_toy.py").write_text(ALONE)
    monkeypatch.setenv("TOY_SOURCE", str(tmp_path))
    suite = Suite("toy-2", "horovod", 2, "test_toy.py", "TOY_SOURCE", alone_s=15)
    listed = []
    records = run(suite, "paceline", None, {"test_5_is_skipped"}, listed.append)
    assert listed == records
    values = {record["test"]: (record["outcome"], record["message"]) for record in records}
    assert [values[name][0] for name in sorted(values)] == ["passed", "failed", "passed", "failed", "skipped", "passed"]
    assert "only here" in values["test_2_fails_on_one_rank"][1]
    assert "time.sleep(0.1)" in values["test_4_does_not_end_on_one_rank"][1]
    assert values["test_4_does_not_end_on_one_rank"][1].endswith("no end after 15 s")
    assert list(values)[-1] == "test_5_is_skipped"  # By itself, after the others.


@process
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    importlib.util.find_spec("expecttest") is None or TORCH < (2, 15), reason="the tests of torch 2.15, with expecttest"
)
def test_torchs_own_tests_of_process_groups_pass():
    command = [sys.executable, "-m", "conformance", "torch-2", "torch-4"]
    done = cli.ended(*command, cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stdout + done.stderr


@process
def test_tests_of_trainers_give_records(tmp_path):
    file = tmp_path / "test_toy.py"
    file.write_text(
        "import pytest\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert 1 == 2\n"
        "def test_options_of_ddp(): assert False, 'not selected'\n"
        "@pytest.mark.skip(reason='needs lightning')\n"
        "def test_is_skipped(): pass\n"
    )
    records = {record["test"]: record for record in trainers.tests(Path(sys.executable), [str(file)], None)}
    assert {name: record["outcome"] for name, record in records.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_is_skipped": "skipped",
    }
    assert "1 == 2" in records["test_fails"]["message"] and "lightning" in records["test_is_skipped"]["message"]
    assert [record["test"] for record in trainers.tests(Path(sys.executable), [str(file)], ["passes"])] == [
        "test_passes"
    ]
    assert f"torch {version('torch').split('+')[0]}" in trainers.versions(Path(sys.executable))
