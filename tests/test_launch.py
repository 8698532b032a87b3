"""`paceline run`: real processes, on this machine and through a remote shell that stays here."""

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import cli
import pytest
from cli import clean
from paceline import InvalidArgumentError
from paceline._internal.system import out_of_memory_kills
from paceline.job import failure, timeline_files
from paceline.launch import processes
from paceline.launch.frames import MAGIC, Decoder, FrameKind, Lines, encode
from paceline.launch.hosts import Host, Place, parse_hosts, place, read_hostfile, spread
from paceline.launch.outcomes import Notes, runs
from paceline.launch.output import prefixed

run = partial(cli.launched, cwd=None, timeout=60)

refused = partial(cli.refused, "run")

RUN = [sys.executable, "-m", "paceline.cli", "run"]
SHOW = "import os,json;print(json.dumps(dict(os.environ)))"
HOST = re.escape(socket.gethostname())
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


def test_a_timeline_replaces_files_only(tmp_path):
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text('[\n{"ph": "i"}\n]\n')
    link.symlink_to(file)
    for path in (pipe, tmp_path):
        with (
            pytest.raises(InvalidArgumentError, match=r"is a (device or a pipe|folder)"),
            timeline_files.replacing(str(path), "0c"),
        ):
            pass
        assert path.exists()
    with timeline_files.replacing(str(link), "0c"):
        assert link.is_symlink() and not file.exists()
        link.write_text("[]")
    assert link.is_symlink() and file.read_text() == "[]"


def test_the_link_that_stands_for_a_timeline(tmp_path):
    path, mine, theirs = (tmp_path / name for name in ("run.json", "run.json.0a.rank-0", "run.json.0b.rank-0"))
    user, elsewhere = tmp_path / "link", tmp_path / "folder" / "run.json"
    elsewhere.parent.mkdir()
    user.symlink_to(elsewhere)
    assert timeline_files.place(path) == path and not timeline_files.unmerged(path)
    assert timeline_files.place(user) == elsewhere and not timeline_files.unmerged(user)
    for part in (mine, theirs):
        part.write_text("[\n{}\n]\n")
    path.symlink_to(theirs.name)
    assert timeline_files.unmerged(path) and timeline_files.place(path) == path
    said = timeline_files.gather(str(path), "0a")  # Another job's link is not its timeline.
    assert said.startswith("timeline of 1 rank in ") and not path.is_symlink() and theirs.exists() and not mine.exists()
    with pytest.raises(InvalidArgumentError, match="another job has written it meanwhile"):
        timeline_files.gather(str(path), "0b")
    path.unlink()
    path.symlink_to(theirs)
    with timeline_files.replacing(str(path), "0c"):
        assert not path.is_symlink() and theirs.exists()


def test_a_timeline_without_room_leaves_no_half_file(tmp_path, monkeypatch):
    path, part = tmp_path / "run.json", tmp_path / "run.json.0a.rank-0"
    part.write_text("[\n{")
    path.symlink_to(part.name)
    with pytest.raises(InvalidArgumentError, match="no rank has completed its part"):
        timeline_files.gather(str(path), "0a")
    assert not path.is_symlink() and part.exists()

    part.write_text("[\n{}\n]\n")
    path.symlink_to(part.name)

    def full(_part):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(timeline_files, "_events", full)
        with pytest.raises(InvalidArgumentError, match="No space left on device"):
            timeline_files.gather(str(path), "0a")
    assert list(tmp_path.iterdir()) == [part]
    assert timeline_files.gather(str(path), "0a").startswith("timeline of 1 rank in ")


def test_a_rank_reports_to_the_launchers_pipe_only(monkeypatch):
    reports = Notes()
    with reports.pipe_for(0, {}) as (environment, _):
        monkeypatch.setenv(failure.PIPE, environment[failure.PIPE])
        with failure.joining(1):
            pass
        monkeypatch.setenv("WORLD_SIZE", "1")
        number, inode = environment[failure.PIPE].split(":")
        with failure.joining(1):
            assert reports.read(0)[0] == ["begun"]
        monkeypatch.setenv(failure.PIPE, f"{number}:{int(inode) + 1}")
        with failure.joining(1):
            assert reports.read(0)[0] == ["done"]
        os.write(int(number), b"[" * 4000 + b"\n")
        assert reports.read(0) == ([], False)


@pytest.fixture
def begin():
    """Starts jobs for tests that send signals; they end with the test, whatever its result."""
    begun = []

    def start(*words):
        command = [*RUN, *map(str, words)]
        begun.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean()))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.stdout.close()
        process.stderr.close()
        process.wait()


@pytest.fixture
def rsh(tmp_path):
    """A remote shell for any host, all of which are this machine. It does what sshd does: a shell runs the words."""
    script = tmp_path / "rsh"
    script.write_text('#!/bin/sh\nshift\nunset PYTHONPATH\ncd /\nexec sh -c "$*"\n')
    script.chmod(0o755)
    return script


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids, within):
    end = time.monotonic() + within
    while time.monotonic() < end:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False


def numbers(process, count):
    """The first number on each of the next lines."""
    return [int(re.search(r"(?:\] |^)(\d+)", process.stdout.readline())[1]) for _ in range(count)]


# Places and variables


def test_ranks_find_their_place():
    result = run("-np", 3, "--strategy", "ring", "--chunk", "64KiB", "--timeout", "7", "--", sys.executable, "-c", SHOW)
    assert (result.returncode, result.stderr) == (0, "")
    values = {}
    for line in result.stdout.splitlines():
        prefix, _, rest = line.partition("] ")
        environ = json.loads(rest)
        assert prefix == f"[rank {environ['RANK']}"
        values[int(environ["RANK"])] = environ
    assert sorted(values) == [0, 1, 2]
    for rank, environ in values.items():
        assert environ["LOCAL_RANK"] == str(rank)
        assert (environ["WORLD_SIZE"], environ["LOCAL_WORLD_SIZE"]) == ("3", "3")
        assert (environ["GROUP_RANK"], environ["GROUP_WORLD_SIZE"]) == ("0", "1")
        assert (environ["PACELINE_INTERFACE"], environ["MASTER_ADDR"]) == ("127.0.0.1", "127.0.0.1")
        assert environ["PACELINE_STRATEGY"] == "ring"
        assert environ["PACELINE_CHUNK"] == "64KiB"
        assert environ["PACELINE_TIMEOUT"] == "7"
        assert environ["PYTHONUNBUFFERED"] == "1"
        assert environ["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 3))
    same = ("PACELINE_SECRET", "PACELINE_RENDEZVOUS", "MASTER_PORT", "PACELINE_RUN_ID")
    assert all(len({environ[name] for environ in values.values()}) == 1 for name in same)
    assert re.fullmatch("[0-9a-f]{64}", values[0]["PACELINE_SECRET"])
    assert values[0]["PACELINE_RENDEZVOUS"] != f"127.0.0.1:{values[0]['MASTER_PORT']}"


@pytest.mark.process
def test_what_the_user_set_is_kept_and_what_is_stale_is_not(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of the user, long enough\n")
    secret.chmod(0o600)
    env = {"PACELINE_SECRET_FILE": str(secret), "OMP_NUM_THREADS": "3", "GIVEN": "a b", "TORCHELASTIC_RUN_ID": "old"}
    env |= {"OMPI_COMM_WORLD_RANK": "7", "SLURM_PROCID": "7", "RANK": "7"}
    result = run("-np", 1, "-x", "GIVEN", "--env", "MADE=x=y", "--", sys.executable, "-c", SHOW, env=env)
    assert result.stderr == ""
    environ = json.loads(result.stdout)
    assert environ["PACELINE_SECRET"] == "of the user, long enough"
    assert (environ["OMP_NUM_THREADS"], environ["GIVEN"], environ["MADE"]) == ("3", "a b", "x=y")
    stale = {"PACELINE_SECRET_FILE", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}
    assert not stale & set(environ)
    assert environ["RANK"] == "0"


@pytest.mark.process
def test_a_rank_knows_who_started_it():
    code = "from paceline.job.rank_environment import rank_environment as e\n"
    code += "from paceline.job.settings import Settings as s\n"
    code += "f=e();print(f.launcher,f.rank,f.local_size,f.rendezvous==s.from_environment().rendezvous)"
    result = run("-np", 2, "--", sys.executable, "-c", code)
    assert sorted(result.stdout.splitlines()) == ["[rank 0] paceline 0 2 True", "[rank 1] paceline 1 2 True"]


# Output


@pytest.mark.process
def test_lines_stay_whole_and_nothing_is_lost():
    code = "import os,sys\n"
    code += "for i in range(2000): print(os.environ['RANK']*50, i)\n"
    code += "sys.stderr.write('to stderr\\n'); sys.stdout.write('last')"
    result = run("-np", 3, "--", sys.executable, "-c", code)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 3 * 2001
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[rank {rank}] ")]
        assert mine == [*(f"[rank {rank}] {str(rank) * 50} {i}" for i in range(2000)), f"[rank {rank}] last"]
    assert sorted(result.stderr.splitlines()) == [f"[rank {rank}] to stderr" for rank in range(3)]


@pytest.mark.process
def test_without_prefix_and_with_one_rank():
    assert run("-np", 2, "--no-prefix", "--", "echo", "x").stdout == "x\nx\n"
    assert run("-np", 1, "--", "printf", r"a\r\nb\rc").stdout.encode() == b"a\nb\nc"  # text mode reads \r as \n


@pytest.mark.process
def test_garbage_passes():
    command = [*RUN, "-np", "2", "--", "printf", r"\377\000\001\n\033[31m\377"]
    result = subprocess.run(command, capture_output=True, check=False, timeout=60, env=clean())
    assert result.returncode == 0
    assert sorted(result.stdout.splitlines()) == sorted(
        b"[rank %d] %b" % (rank, line) for rank in range(2) for line in (b"\xff\0\1", b"\x1b[31m\xff")
    )


@pytest.mark.process
def test_log_files(tmp_path):
    folder = tmp_path / "a" / "logs"
    result = run("-np", 2, "--output-dir", folder, "--", "sh", "-c", "echo 1; echo 2 >&2; echo 3; exit $RANK")
    assert result.returncode == 1
    assert result.stdout == ""
    assert [(folder / f"rank-{rank}.log").read_text() for rank in range(2)] == ["1\n2\n3\n"] * 2
    (tmp_path / "file").write_text("")
    assert "--output-dir" in refused("-np", 1, "--output-dir", tmp_path / "file", "--", "true")


@pytest.mark.process
@LINUX
def test_100_mb_of_output_in_little_memory(tmp_path):
    code = "import os;b=(b'x'*99+b'\\n')*1000\nfor _ in range(1000): os.write(1,b)"
    watch = "import resource,subprocess,sys;c=subprocess.run(sys.argv[1:]).returncode;"
    watch += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,file=sys.stderr);sys.exit(c)"
    with (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-c", watch, *RUN, "-np", "2", "--", sys.executable, "-c", code]
        result = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False, timeout=60, env=clean())
    assert result.returncode == 0
    assert (tmp_path / "out").stat().st_size == 2 * (10**8 + 10**6 * len("[rank 0] "))
    assert int(result.stderr) < 100 << 10  # KiB
    (tmp_path / "out").unlink()


@pytest.mark.process
def test_a_reader_that_leaves_ends_the_ranks(begin):
    process = begin("-np", 2, "--", "sh", "-c", "echo $$; while :; do echo y; done")
    pids = numbers(process, 1)
    process.stdout.close()
    assert process.wait(10) == 1
    assert gone(pids, 1)
    assert "Traceback" not in process.stderr.read()


# Failures


@pytest.mark.process
def test_the_first_failure_is_named_and_the_others_get_their_grace():
    code = "if [ $RANK = 1 ]; then exit 3; fi; sleep 0.5; echo saved; exit 4"
    result = run("-np", 3, "--", "sh", "-c", code)
    assert result.returncode == 1
    assert result.stdout.count("saved") == 2
    *rest, last, remedy = result.stderr.splitlines()
    assert re.fullmatch(rf"paceline: error: rank 1 \(host {HOST}, pid \d+\) exited with code 3", last)
    assert remedy == "  try: the output of rank 1 above, or --output-dir DIR (a file per rank)"
    assert [re.split(" {2,}", line.strip()) for line in rest[2:]] == [
        ["1", "exited with code 3", "first failure"],
        ["0, 2", "exited with code 4"],
    ]


@pytest.mark.process
def test_the_cause_is_named_and_not_those_that_followed(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import time, numpy as np, paceline\n"
        "class Slow:\n"
        "    def __del__(self): time.sleep(1)\n"
        "job, slow = paceline.job.join(), Slow()\n"
        "if job.rank == 1:\n"
        "    job.close()\n"  # the others end before it does
        "    raise ValueError('a mistake in the script\\nin two lines')\n"
        "job.all_reduce(np.ones(4))\n"
    )
    result = run("-np", 3, "--", sys.executable, script)
    assert result.returncode == 1
    values = [line for line in result.stderr.splitlines() if line.startswith("paceline: error: ")]
    assert len(values) == 1, result.stderr
    named = r"paceline: error: rank 1 \(host \S+, pid \d+\) exited with code 1: ValueError: a mistake in the script"
    assert re.fullmatch(named, values[0]), result.stderr


@pytest.mark.process
def test_where_all_failed_because_of_others_the_first_is_named(tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        "import numpy as np, os, paceline\n"
        "with paceline.job.join() as job:\n"
        "    if job.rank == 1: os._exit(0)\n"
        "    job.all_reduce(np.ones(4))\n"
    )
    result = run("-np", 2, "--", sys.executable, script)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-2]
    died = r"paceline: error: rank 1 \(.*\) died \(.*\); rank 0 was waiting for it in all_reduce "
    assert re.fullmatch(died + r"\(float64\[4\], sum; op 1\)", last)


@pytest.mark.process
def test_each_line_has_one_prefix():
    printed = "echo '[rank'$RANK']: Traceback'; echo '[rank7]: of another'; echo \"[rank$RANK]:[W1 x.cpp] slow\" >&2"
    result = run("-np", 2, "--", "sh", "-c", printed)
    for rank in (0, 1):
        assert [line for line in result.stdout.splitlines() if line.startswith(f"[rank {rank}]")] == [
            f"[rank {rank}] Traceback",
            f"[rank {rank}] [rank7]: of another",
        ]
        assert f"[rank {rank}] [W1 x.cpp] slow" in result.stderr.splitlines()


@pytest.mark.process
def test_the_last_line_of_a_failed_job_is_its_cause_below_the_table(tmp_path):
    script = "if [ $RANK = 1 ]; then exit 3; fi; trap '' TERM; sleep 0.3; echo late >&2; exit 4"
    result = run("-np", 3, "--grace", "5", "--record", tmp_path / "t.json", "--", "sh", "-c", script)
    assert result.returncode == 1
    *before, last, _ = result.stderr.splitlines()
    assert re.fullmatch(r"paceline: error: rank 1 \(host \S+, pid \d+\) exited with code 3", last), result.stderr
    assert not any(line.startswith("paceline: error") for line in before)


def test_a_killed_rank_ends_the_job():
    start = time.monotonic()
    result = run("-np", 3, "--grace", "0.1", "--", "sh", "-c", "if [ $RANK = 2 ]; then kill -9 $$; fi; sleep 50")
    assert result.returncode == 1
    killed = (
        rf"paceline: error: rank 2 \(host {HOST}, pid \d+\) was killed by SIGKILL\n  try: dmesg on host {HOST} .*\n"
    )
    assert re.fullmatch(killed, result.stderr)
    assert time.monotonic() - start < 8


@pytest.mark.process
@LINUX
def test_a_rank_that_ignores_sigterm_is_killed_with_its_children(begin):
    process = begin(
        "-np",
        2,
        "--grace",
        "0.1",
        "--",
        "sh",
        "-c",
        "trap '' TERM; sleep 600 & echo $!; echo $$; [ $RANK = 0 ] && exit 1; while :; do sleep 1; done",
    )
    pids = numbers(process, 4)
    assert process.wait(15) == 1
    assert gone(pids, 0.5)
    assert "rank 0" in process.stderr.read()


@pytest.mark.process
@LINUX
def test_what_ranks_leave_behind_is_ended(begin):
    code = "sleep 600 & echo $!; setsid sleep 600 & echo $!; timeout 600 sleep 600 & echo $!; exit 0"
    process = begin("-np", 2, "--", "sh", "-c", code)
    pids = numbers(process, 6)
    assert process.wait(15) == 0
    assert gone(pids, 0.5)


def test_commands_that_cannot_run_are_the_users_mistake(tmp_path):
    missing = "paceline: error: there is no command 'no-such-command'\n  try: -- python train.py\n"
    assert refused("-np", 2, "--", "no-such-command") == missing
    assert refused("-np", 2, "--", "") == "paceline: error: the command is empty\n  try: -- python train.py\n"
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    assert "try: -- python " in refused("-np", 2, "--", script)
    assert "try: -- python no.py" in refused("-np", 2, "--", "no.py")
    assert "is a folder" in refused("-np", 2, "--", tmp_path)
    script.chmod(0o755)  # without a first line that names its interpreter
    assert "rank 0 cannot be started: Exec format error" in refused("-np", 2, "--", script)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command given"),
        (["true"], "paceline run -np 4"),
        (["-np", "0", "true"], "try: -np 1"),
        (["-np", "4097", "true"], "try: -np 4096"),
        (["-np", "many", "true"], "whole number"),
        (["--hosts", "a:2", "-np", "3", "true"], "2 slots"),
        (["--hosts", "a:4000,b:4000", "true"], "4096"),
        (["--hosts", "a", "--hostfile", "b", "true"], "cannot be combined"),
        (["-np", "1", "--strategy", "rnig", "true"], "try: ring"),
        (["-np", "1", "--strategy", "ring", "--servers", "2", "true"], "no effect on ring"),
        (["-np", "1", "--coordinator", "graph", "--strategy", "ps", "true"], "--coordinator: graph plans"),
        (["-np", "1", "--streams", "2", "--transport", "shm", "true"], "--streams: has no effect"),
        (["-np", "1", "--chunk", "12", "true"], "unit"),
        (["-np", "1", "--timeout", "0", "true"], "above 0"),
        (["-np", "1", "--interface", "0.0.0.0", "true"], "10.0.0.0/24"),
        (["-np", "1", "--interface", "eth99", "true"], "eth99"),
        (["-np", "1", "--rsh", "'", "true"], "quotes"),
        (["--hosts", "a", "--rsh", "/no/such/rsh", "true"], "/no/such/rsh"),
        (["-np", "1", "-x", "NOT_SET_ANYWHERE", "true"], "NOT_SET_ANYWHERE=VALUE"),
        (["-np", "1", "-x", "RANK=1", "true"], "sets it itself"),
        (["-np", "1", "-x", "PACELINE_SECRET=0123456789abcdef", "true"], "other users can read"),
        (["-np", "1", "-x", "PACELINE_STRATGEY=ring", "true"], "try: PACELINE_STRATEGY"),
        (["-np", "1", "-x", "1=2", "true"], "not a variable's name"),
        (["-np", "1", "--strategy", "ps", "--placement", "pyproject.toml", "true"], "pyproject.toml: is not JSON"),
        (["-np", "1", "--no-prefix", "--output-dir", "x", "true"], "--no-prefix"),
    ],
)
def test_mistakes_name_the_remedy(words, said):
    message = refused(*words)
    assert said in message


def test_a_port_in_use_is_named():
    import socket

    with socket.socket() as held:
        held.bind(("", 0))
        held.listen()
        port = held.getsockname()[1]
        assert f"--port {port}" in refused("-np", 1, "--port", port, "true")
        assert f"--port {port}: Address already in use" in refused("--elastic", "-np", 1, "--port", port, "true")
    result = run("-np", 1, "--port", port, "sh", "-c", "echo $PACELINE_RENDEZVOUS")
    assert result.stdout == f"127.0.0.1:{port}\n"


# Signals


@pytest.fixture
def small_group():
    """A cgroup in which processes get 200 MB, if this user may make one."""
    first = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
    group = first / f"paceline-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if first.name == "cgroup" else "memory.limit_in_bytes")).write_text("200000000")
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no cgroup can be made: {error.strerror}")
    yield group
    group.rmdir()


@pytest.mark.timed  # The kernel counts such processes of the whole machine, and other jobs' errors would name them.
@pytest.mark.process
@LINUX
def test_a_rank_that_the_kernel_kills_for_lack_of_memory(small_group):
    if "oom_kill " not in Path("/proc/vmstat").read_text():
        pytest.skip("this kernel does not count such processes")
    code = (
        "import os, pathlib, sys, time\n"
        f"if os.environ['RANK'] == '0': pathlib.Path('{small_group}/cgroup.procs').write_text(str(os.getpid()))\n"
        "else: time.sleep(60)\n"
        "kept = []\n"
        "while True: kept.append(os.urandom(1 << 20) * 8)\n"
    )
    result = run("-np", 2, sys.executable, "-c", code)
    assert result.returncode == 1
    assert "was killed by SIGKILL: the kernel has killed processes for lack of memory" in result.stderr


def test_processes_that_the_kernel_killed_are_counted(tmp_path):
    (tmp_path / "vmstat").write_text("nr_free_pages 5\noom_kill 12\ndrop_pagecache 0\n")
    assert out_of_memory_kills(tmp_path / "vmstat") == 12
    assert out_of_memory_kills(tmp_path / "none") == 0


@pytest.mark.process
@LINUX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_all_ranks(begin, number, code):
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip(f"{signal.Signals(number).name} is ignored here, as under nohup, and so the launcher ignores it")
    process = begin("-np", 2, "--", "sh", "-c", "sleep 600 & echo $!; echo $$; wait")
    pids = numbers(process, 4)
    process.send_signal(number)
    assert process.wait(10) == code
    assert gone(pids, 0.5)
    said = (
        f"paceline: interrupted by {signal.Signals(number).name}; the ranks are stopped, and what they wrote is kept\n"
    )
    assert process.stderr.read() == said


@pytest.mark.process
@LINUX
def test_ranks_are_terminated_together(monkeypatch):
    def slowly(group, number, send=os.killpg):
        send(group, number)
        time.sleep(0.2)

    monkeypatch.setattr(os, "killpg", slowly)
    monkeypatch.setattr(processes, "descendants", dict)  # those of other tests
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, start_new_session=True) as first:
        command = ["sh", "-c", "cat; echo the first has gone"]
        with subprocess.Popen(command, stdin=first.stdout, stdout=subprocess.PIPE, start_new_session=True) as second:
            first.stdout.close()
            processes.terminate_all([processes.Group(first, 0), processes.Group(second, 1)])
            assert second.stdout.read() == b""
    assert (first.returncode, second.returncode) == (-signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.process
@LINUX
def test_the_second_ctrl_c_does_not_wait(begin):
    process = begin("-np", 1, "--", "sh", "-c", "trap '' TERM INT; echo $$; while :; do sleep 0.1; done")
    pids = numbers(process, 1)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert time.monotonic() - start < 2.5
    assert gone(pids, 0.5)


@pytest.mark.process
@LINUX
def test_a_terminal_that_takes_no_more_does_not_keep_the_ranks(begin):
    process = begin("-np", 2, "--", "sh", "-c", "echo $$; while :; do echo y; done")
    pids = numbers(process, 1)
    time.sleep(0.5)  # pipes are full
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    assert gone(pids, 0.5)


@pytest.mark.process
@LINUX
@pytest.mark.parametrize("hosts", [["-np", "2"], ["--hosts", "a,b"]])
def test_nothing_outlives_a_launcher_that_is_killed(begin, hosts, rsh):
    script = "trap '' TERM; sleep 600 & echo $!; echo $$; while :; do sleep 0.1; done"
    process = begin(*hosts, "--rsh", rsh, "--", "sh", "-c", script)
    pids = numbers(process, 4)
    process.kill()
    assert gone(pids, 2)
    process.wait()


@pytest.mark.process
@LINUX
def test_nothing_outlives_an_agent_that_is_killed(begin):
    process = begin("-np", 2, "--", "sh", "-c", "sleep 600 & echo $!; echo $$; echo $PPID; wait")
    lines = numbers(process, 6)
    agent = next(pid for pid in lines if b"paceline.launch.agent" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(agent, signal.SIGKILL)
    assert process.wait(10) == 1
    assert gone(lines, 0.5)
    assert "lost host localhost: its agent was killed by signal 9" in process.stderr.read()


# Several hosts


def test_hosts_get_their_ranks(rsh, tmp_path):
    words = ["sh", "-c", "echo $RANK $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR $(pwd) $PACELINE_SERVERS"]
    env = {"PACELINE_SERVERS": "2"}
    result = run("--hosts", "a:2,alice@b:1", "--rsh", rsh, "--verbose", "--", *words, cwd=tmp_path, env=env)
    assert sorted(result.stdout.splitlines()) == [
        f"[rank 0] 0 0 2 0 127.0.0.1 {tmp_path} 2",
        f"[rank 1] 1 1 2 0 127.0.0.1 {tmp_path} 2",
        f"[rank 2] 2 0 1 1 127.0.0.1 {tmp_path} 2",
    ]
    assert "host a runs rank 0-1" in result.stderr
    assert result.returncode == 0
    mixed = run(
        "--hosts", "localhost,b", "--rsh", rsh, "--interface", "lo", "--", "sh", "-c", "echo $PACELINE_INTERFACE"
    )
    assert sorted(mixed.stdout.splitlines()) == ["[rank 0] 127.0.0.1", "[rank 1] 127.0.0.1"]


@pytest.mark.process
def test_arguments_arrive_as_they_are(rsh, tmp_path):
    words = ["", " ", "a b", "'", '"', "$HOME", "`id`", "\\", "\\n", "a\nb", "*", "!", "~", "ü", ";ls", "--", "-np"]
    code = "import sys,json;print(json.dumps(sys.argv[1:]))"
    folder = tmp_path / "it's a $HOME"
    folder.mkdir()
    env = {"PYTHONPATH": "/a b/$x:'"}
    result = run("--hosts", "a", "--rsh", f"'{rsh}' ", "--", sys.executable, "-c", code, *words, cwd=folder, env=env)
    assert json.loads(result.stdout) == words
    shown = run(
        "--hosts", "a", "--rsh", rsh, "-x", "ODD=$a'\n b", "--", sys.executable, "-c", SHOW, cwd=folder, env=env
    )
    environ = json.loads(shown.stdout)
    assert environ["PYTHONPATH"] == "/a b/$x:'"
    assert environ["ODD"] == "$a'\n b"
    assert os.environ["PATH"].split(":")[0] in environ["PATH"].split(":")


@pytest.mark.process
@LINUX
def test_the_secret_is_on_no_command_line(rsh):
    code = (
        "import glob,os\ns=os.environ['PACELINE_SECRET'].encode()\n"
        "def r(p):\n try: return open(p,'rb').read()\n except OSError: return b''\n"
        "print(any(s in r(p) for p in glob.glob('/proc/[0-9]*/cmdline')))"
    )
    for secret in ({}, {"PACELINE_SECRET": "a secret of the user"}):
        result = run("--hosts", "a,b", "--rsh", rsh, "--", sys.executable, "-c", code, env=secret)
        assert sorted(result.stdout.splitlines()) == ["[rank 0] False", "[rank 1] False"]


@pytest.mark.process
def test_hosts_that_cannot_be_used(tmp_path, rsh):
    broken = tmp_path / "broken"
    broken.write_text(
        "#!/bin/sh\n[ $1 = b ] && { echo 'ssh: no route to b' >&2; exit 255; }\nshift; exec sh -c \"$*\"\n"
    )
    broken.chmod(0o755)
    result = run("--hosts", "a,b", "--rsh", broken, "--", "echo", "ran")
    assert result.returncode == 1
    assert result.stdout == ""  # no rank starts before all hosts are ready
    assert "host b: its remote shell exited with code 255" in result.stderr
    assert "no route to b" in result.stderr
    missing = run("--hosts", "a,b", "--rsh", rsh, "--", "no-such-command")
    assert missing.returncode == 2
    assert re.search("host [ab]: there is no command 'no-such-command'", missing.stderr)
    noisy = tmp_path / "noisy"
    noisy.write_text('#!/bin/sh\nshift; echo "Welcome to this host"; exec sh -c "$*"\n')
    noisy.chmod(0o755)
    assert run("--hosts", "a", "--rsh", noisy, "--", "echo", "ran").stdout == "ran\n"


@pytest.mark.process
def test_a_lost_host_ends_the_job(tmp_path):
    dying = tmp_path / "dying"
    dying.write_text('#!/bin/sh\n[ $1 = b ] && { shift; exec timeout 1.5 sh -c "$*"; }\nshift; exec sh -c "$*"\n')
    dying.chmod(0o755)
    result = run("--hosts", "a,b", "--grace", "0.1", "--rsh", dying, "--", "sleep", "60")
    assert result.returncode == 1
    assert "host b" in result.stderr


# Host lists


def test_host_lists():
    assert parse_hosts("a:2, b,alice@c:3,[fd00::1]:4") == [
        Host("a", 2),
        Host("b", 1),
        Host("alice@c", 3),
        Host("[fd00::1]", 4),
    ]
    assert place([Host("a", 2), Host("b", 2), Host("c", 2)], 3) == [
        Place(Host("a", 2), 0, 2),
        Place(Host("b", 2), 2, 1),
    ]
    assert [each.servers for each in spread(place([Host("a", 1), Host("b", 1)], 2), 3)] == [(0, 2), (1,)]
    for text in ("", "a,,b", "a:0", "a:x", "a:", "-oProxyCommand=x", "a b", "a;b", "a,a", "a:1:2", "$(id)"):
        with pytest.raises(InvalidArgumentError, match="--hosts"):
            parse_hosts(text)


def test_host_files(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\n\nnode1 slots=2  # fast\nnode2:3\nnode3\nnode4 slots = 4\n")
    assert [(host.name, host.slots) for host in read_hostfile(file)] == [
        ("node1", 2),
        ("node2", 3),
        ("node3", 1),
        ("node4", 4),
    ]
    for line in ("node1 slots=0", "node1 slots=x", "node1 slots", "node1:2 slots=2", "-x", "node9 node8", "node3"):
        file.write_text(f"node3\n{line}\n")
        with pytest.raises(InvalidArgumentError, match=r"hosts:2: "):
            read_hostfile(file)
    file.write_text("# none\n")
    with pytest.raises(InvalidArgumentError, match="names no host"):
        read_hostfile(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError, match="not UTF-8"):
        read_hostfile(file)
    assert "no such file" in refused("--hostfile", tmp_path / "none", "true")
    file.write_text("a slots=1\nb slots=1\n")
    assert "2 slots" in refused("--hostfile", file, "-np", "3", "true")


# Parts


def test_frames_pass_whatever_the_cuts():
    data = (
        b"motd\n"
        + MAGIC
        + encode(FrameKind.STDOUT, 3, b"a\nb")
        + encode(FrameKind.EXITED, 4, {"code": -9})
        + encode(FrameKind.DONE)
    )
    for step in (1, 2, 7, 1000):
        decoder = Decoder()
        frames = [frame for at in range(0, len(data), step) for frame in decoder.feed(data[at : at + step])]
        assert [(frame.kind, frame.rank) for frame in frames] == [
            (FrameKind.STDOUT, 3),
            (FrameKind.EXITED, 4),
            (FrameKind.DONE, 0),
        ]
        assert frames[0].payload == b"a\nb"
        assert frames[1].json() == {"code": -9}
        assert decoder.junk == b"motd\n"
    with pytest.raises(ValueError, match="no agent"):
        list(Decoder().feed(b"x" * 100_000))
    with pytest.raises(ValueError, match="malformed"):
        list(Decoder().feed(MAGIC + b"\xff" * 20))


def test_lines_are_cut_at_their_ends():
    lines = Lines()
    assert lines.feed(b"a\nb", 0) == b"a\n"
    assert lines.feed(b"c\nd\n", 0) == b"bc\nd\n"
    assert lines.feed(b"end", 0) == b""
    assert lines.finish() == b"end"
    assert lines.finish() == b""
    long = b"x" * (Lines.LONGEST - 1)
    assert lines.feed(long, 0) == b""
    assert lines.feed(b"yz", 0) == long + b"yz"
    # A progress bar: once a second, up to its last return.
    bar = Lines()
    assert bar.feed(b"\r1%", 0.5) == b""
    assert bar.feed(b"\r2%", 1.5) == b"\r1%\r"
    assert bar.feed(b"\r3%", 1.6) == b""
    assert bar.finish() == b"2%\r3%"


def test_prefixes():
    assert prefixed(b"> ", b"a\n\nb\n") == b"> a\n> \n> b\n"
    assert prefixed(b"> ", b"1%\r2%\r\n") == b"> 1%\r> 2%\r\n"


def test_ranks_in_words():
    assert runs([0]) == "0"
    assert runs([0, 2, 3, 4, 9]) == "0, 2-4, 9"


def test_the_launcher_needs_no_heavy_module():
    code = (
        "import sys, paceline.cli.run, paceline.launch.supervisor, paceline.launch.agent\n"
        "heavy = {'torch', 'rich', 'numpy', 'asyncio', 'logging', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    ran = cli.ended(sys.executable, "-c", code)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
def test_many_ranks():
    result = run("-np", 300, "--", "sh", "-c", "echo $RANK")
    assert result.returncode == 0
    assert sorted(int(line.split()[-1]) for line in result.stdout.splitlines()) == list(range(300))


@pytest.mark.parametrize(
    ("words", "env", "named"),
    [([], {"PACELINE_INTERFACE": "nope0"}, "PACELINE_INTERFACE"), (["--interface", "nope0"], {}, "--interface")],
)
def test_an_interface_that_is_not_here_is_blamed_on_what_named_it(words, env, named):
    wrong = run("-np", 1, *words, "--", "true", env=env)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith(f"paceline: error: {named}: this machine has no interface 'nope0'")


def test_a_wrong_switch_in_the_environment_is_refused_once():
    wrong = run("-np", 2, "--", "true", env={"PACELINE_AS_GLOO": "2"})
    assert wrong.returncode == 2
    assert wrong.stderr == (
        "paceline: error: PACELINE_AS_GLOO: must be 1 or 0, not '2'\n"
        "  try: PACELINE_AS_GLOO=1 (1, true, yes, on; 0, false, no, off)\n"
    )


RECORDED = """
import sys, time
from pathlib import Path
import numpy as np
import paceline.job
job = paceline.job.join()
if len(sys.argv) > 2:
    Path(sys.argv[1]).touch()
    while not Path(sys.argv[2]).exists():
        time.sleep(0.01)
job.all_reduce(np.ones(4, np.float32))
job.close()
"""


def test_a_timeline_that_two_jobs_write_is_lost_by_neither(tmp_path, begin):
    path, started, go_on = tmp_path / "run.json", tmp_path / "started", tmp_path / "go on"
    words = ["-np", 2, "--timeline", path, "--", sys.executable, "-c", RECORDED]
    first = begin(*words, started, go_on)
    until = time.monotonic() + 30
    while not started.exists():
        assert first.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    second = run(*words)
    assert second.returncode == 0, second.stderr
    whole = path.read_bytes()
    go_on.touch()
    _, said = first.communicate(timeout=60)
    assert first.returncode == 1, said
    assert "another job has written it meanwhile" in said
    assert path.read_bytes() == whole
    assert len(list(tmp_path.glob("run.json.*.rank-*"))) == 2


def test_a_timeline_that_is_missing_at_the_end(tmp_path):
    missing = run("-np", 1, "--timeline", tmp_path / "run.json", "--", "true")
    assert missing.returncode == 1
    assert "no rank joined a job that records it" in missing.stderr


def test_the_path_of_a_timeline_is_quoted_and_printable(tmp_path):
    path = tmp_path / "a \x1b[31m.json"
    recorded = run("-np", 1, "--timeline", path, "--", sys.executable, "-c", RECORDED)
    assert recorded.returncode == 0, recorded.stderr
    assert path.exists()
    assert "run `paceline doctor '" in recorded.stderr
    assert "\x1b" not in recorded.stderr
