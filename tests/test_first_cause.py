"""Errors name what happened first, on every rank, and not who failed because of it."""

import re
import sys

import cli
import pytest
from job_workers.launch import Ranks

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]


def last_error(outcome):
    return [one["error"] for one in outcome.said if one.get("error")][-1]


@pytest.mark.parametrize(("how", "words"), [("SIGKILL", r"died \(connection "), ("close", "has left the job")])
def test_a_rank_outside_of_the_group_is_the_first_cause(tmp_path, how, words):
    with Ranks(tmp_path, 3, "partners", "bystander", how) as ranks:
        outcomes = ranks.outcomes(30)
    for rank in (0, 1):
        assert re.match(rf"rank 2 \(.*?\) {words}", last_error(outcomes[rank])), outcomes[rank]
    error = last_error(outcomes[1])
    assert re.search(
        r"; rank 0 \(.*\) has left the job because of that; rank 1 was waiting for it in barrier \(op \d+", error
    )


def test_a_parameter_server_is_the_first_cause():
    worker = (sys.executable, "-m", "job_workers.partners", "server_dies")
    result = cli.launched("-np", 2, "--strategy", "ps", "--servers", 1, "--grace", 10, "--", *worker)
    for rank in (0, 1):
        said = rf'^\[rank {rank}\] {{"kind": "JobError", "error": "server 0 \(rank 2, .*\) died \(.*'
        assert re.search(said, result.stdout, re.M), result.stdout + result.stderr


def test_the_first_cause_is_a_rank_that_ended_before_it_joined(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, paceline\nif os.environ['RANK'] != '1':\n    paceline.job.join()\n")
    result = cli.launched("-np", 3, "--", sys.executable, script)
    assert result.returncode == 1
    error = (
        r"^paceline: error: rank 1 \(host \S+, pid \d+\) exited with code 0 before it had joined the job, for which "
    )
    assert re.search(error, result.stderr, re.M), result.stderr
