"""Joining a job: errors name missing, wrong or interfering processes, and every launcher and process layout works."""

import re
import shutil
import socket
import subprocess
import sys

import cli
import pytest
from job_workers.launch import TESTS, Ranks, clean, free_port, run

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd"),
]

SHORT = {"PACELINE_START_TIMEOUT": "2"}


def refused(folder, size, **how):
    """The errors of joining, by rank; all must come within 5 s."""
    with Ranks(folder, size, "starts", "simple", **how) as ranks:
        outcomes = ranks.outcomes(30)
    assert all(outcome.code == 3 for outcome in outcomes.values()), outcomes
    assert all(outcome.said[0]["after"] < 5 for outcome in outcomes.values()), outcomes
    return {rank: outcome.said[0]["error"] for rank, outcome in outcomes.items()}


def test_alone():
    result = cli.ended(
        sys.executable, "-m", "job_workers.starts", "simple", check=True, timeout=60, cwd=TESTS, env=clean()
    )
    assert '"rank": 0, "size": 1, "local_rank": 0' in result.stdout


def test_a_users_mistake_is_told_with_the_line_of_the_script_and_nothing_between(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import paceline\n\npaceline.job.join(transport='carrier')\n")
    ended = cli.ended(sys.executable, script, env=clean())
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{script}:3: transport: unknown value 'carrier'\n  try: transport='"), ended.stderr
    assert ended.stderr.count("\n") == 2


def test_the_fastest_is_measured_and_the_same_everywhere(tmp_path):
    said = run(tmp_path, 2, "starts", "simple", env={"PACELINE_STRATEGY": ""})
    assert said[0]["choices"] == said[1]["choices"]
    assert len(said[0]["choices"]) > 1


def test_jobs_one_after_the_other_leave_nothing(tmp_path):
    run(tmp_path, 3, "starts", "again")


def test_threads(tmp_path):
    run(tmp_path, 3, "starts", "threads")


@pytest.mark.parametrize("missing", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_missing_rank_is_named(tmp_path, missing):
    errors = refused(tmp_path, 3, env=SHORT, start=[rank for rank in range(3) if rank != missing])
    for error in errors.values():
        assert re.search(rf"rank[s]? {missing}\b", error), error


@pytest.mark.parametrize("wrong", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_wrong_secret(tmp_path, wrong):
    errors = refused(tmp_path, 3, env=SHORT, env_of={wrong: {"PACELINE_SECRET": "not what the others know"}})
    for rank, error in errors.items():
        assert "secret" in error or re.search(rf"rank[s]? .*\b{wrong}\b", error), (rank, error)
    assert "secret" in errors[wrong]


def test_the_rendezvous_is_taken(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        errors = refused(tmp_path, 2, env={**SHORT, "PACELINE_RENDEZVOUS": address})
    assert address in errors[0] and "in use" in errors[0]
    assert address in errors[1]


def test_no_rendezvous(tmp_path):
    errors = refused(tmp_path, 2, env={"PACELINE_RENDEZVOUS": ""})
    assert all("start with `paceline run`, or set PACELINE_RENDEZVOUS" in error for error in errors.values())


def test_ranks_that_were_told_different_things(tmp_path):
    errors = refused(tmp_path, 2, env_of={1: {"PACELINE_STRATEGY": "tree"}})
    assert all("ring" in error and "tree" in error for error in errors.values()), errors


@pytest.mark.parametrize("limited", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("FSIZE=65536", r"shared memory for 3 ranks cannot be reserved: .*"),
        pytest.param("NOFILE=9", r"(?i)too many open files", marks=pytest.mark.slow),
    ],
)
def test_what_a_rank_cannot_get(tmp_path, limit, message, limited):
    """The rank reports what it lacks; the others report that it is missing."""
    errors = refused(tmp_path, 3, env=SHORT, env_of={limited: {"JOB_TEST_LIMIT": limit}})
    assert re.search(message, errors.pop(limited)), errors
    assert all(re.search(rf"rank[s]? .*\b{limited}\b", error) for error in errors.values()), errors


def unshared(*words):
    """A command to put before a rank's, if this user may run it."""
    command = ["unshare", *words]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to make namespaces")
    return command


def test_a_full_dev_shm_does_not_matter(tmp_path):
    command = unshared("--mount", "sh", "-c", 'mount -t tmpfs -o size=4096 none /dev/shm && exec "$@"', "sh")
    said = run(tmp_path, 2, "starts", "simple", command=command, env={"PACELINE_TRANSPORT": "shm"})
    assert [one["transports"].count("shm") for one in said] == [1, 1]


@pytest.mark.parametrize("proc", [["--mount-proc"], []])
def test_ranks_in_different_containers_talk_over_tcp(tmp_path, proc):
    command = unshared("--pid", "--fork", *proc)
    said = run(tmp_path, 3, "starts", "simple", command=command)
    assert all(sorted(one["transports"]) == ["self", "tcp", "tcp"] for one in said), said
    errors = refused(tmp_path, 2, command=command, env={"PACELINE_TRANSPORT": "shm"})
    assert all("share no memory" in error for error in errors.values()), errors


@pytest.mark.slow
def test_under_torchrun():
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", f"--master-port={free_port()}"]
    result = cli.ended(*command, "-m", "job_workers.starts", "simple", timeout=120, cwd=TESTS, env=clean())
    assert result.returncode == 0, result
    assert sorted(re.findall(r'"rank": (\d), "size": 2', result.stdout)) == ["0", "1"]
