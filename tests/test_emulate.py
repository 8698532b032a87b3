"""`paceline emulate`: bringing clusters up, commands on their hosts, and that nothing of them remains."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from functools import partial
from pathlib import Path

import cli
import pytest
from emulate_workers.here import (
    alive,
    assert_gone,
    call,
    cluster_in,
    environment,
    links,
    skip_where_forbidden,
    start,
    wait_until,
)
from paceline import InvalidArgumentError, emulate
from paceline_lab.emulate import plan, state
from paceline_lab.emulate.cluster import bring_up, let_go

refused = partial(cli.refused, "emulate")

pytestmark = [
    pytest.mark.timed,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs network namespaces"),
]
WHERE = "import socket;print(socket.gethostname());print([name for _, name in socket.if_nameindex()])"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    skip_where_forbidden()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def up(folder):
    """Brings clusters up that end with the test."""
    names = []

    def bring(name="default", *more):
        words = ["up", "--workers", 2, "--bandwidth", "100Mbps", "--name", name, *more]
        code, out, err = call(folder, *words)
        assert code == 0, err
        names.append(name)
        return out

    yield bring
    for name in names:
        call(folder, "down", "--name", name)


@pytest.mark.process
def test_up_exec_down(folder, up):
    before = links()
    out = up("default", "--servers", 1, "--switch")
    listed = [line.split()[:2] for line in out.splitlines() if "10.77" in line]
    assert listed == [
        ["worker0", "10.77.1.1"],
        ["worker1", "10.77.1.2"],
        ["server0", "10.77.2.1"],
        ["switch", "10.77.3.1"],
    ]
    cluster = cluster_in(folder)
    for host in ("worker1", "switch"):
        code, out, err = call(folder, "exec", host, "--", sys.executable, "-c", WHERE)
        assert (code, err) == (0, "")
        assert out == f"{host}\n['lo', 'eth0']\n"
    assert call(folder, "exec", "worker0", "--", "sh", "-c", "exit 3")[0] == 3
    code, _, err = call(folder, "exec", "worker0", "--", "no-such-command")
    assert (code, err) == (127, "paceline: error: no-such-command: No such file or directory\n")
    code, _, err = call(folder, "exec", "worker2", "--", "true")
    assert code == 2
    assert err.startswith("paceline: error: there is no host 'worker2' in this cluster\n  try: worker")
    assert links() == before  # the machine's own network is left alone
    code, out, err = call(folder, "down")
    assert (code, out, err) == (0, "cluster 'default' is down\n", "")
    assert_gone(cluster)


@pytest.mark.process
def test_hosts_reach_each_other_and_nothing_else(folder, up):
    up()
    connect = textwrap.dedent("""
        import socket, sys
        with socket.socket() as s:
            s.settimeout(5)
            try:
                s.connect((sys.argv[1], int(sys.argv[2])))
            except OSError as error:
                sys.exit(type(error).__name__ + ": " + error.strerror)
    """)
    listen = "import socket;s=socket.create_server(('',7000));print('ready',flush=True);s.accept()"
    with start(folder, "exec", "worker1", "--", sys.executable, "-c", listen) as listener:
        assert listener.stdout.readline() == "ready\n"
        code, _, err = call(folder, "exec", "worker0", "--", sys.executable, "-c", connect, "10.77.1.2", "7000")
        assert code == 0, err
        assert listener.wait(10) == 0
    code, _, err = call(folder, "exec", "worker0", "--", sys.executable, "-c", connect, "198.51.100.1", "80")
    assert (code, err) == (1, "OSError: Network is unreachable\n")


@pytest.mark.slow
def test_two_clusters_at_once(folder, up):
    up("one")
    up("two")
    one, two = cluster_in(folder, "one"), cluster_in(folder, "two")
    assert not set(one.networks.values()) & set(two.networks.values())
    code, _, err = call(folder, "up", "--workers", 1, "--bandwidth", "1Gbps", "--name", "one")
    assert code == 2
    assert err.startswith("paceline: error: cluster 'one' is already up\n  try: paceline emulate down")
    code, _, err = call(folder, "down")
    assert (code, "; running: 'one' and 'two'; choose one with --name" in err) == (2, True)
    assert call(folder, "down", "--name", "one")[0] == 0
    assert_gone(one)
    assert alive(two.pid)


@pytest.mark.process
def test_down_ends_what_runs_on_hosts_and_says_so(folder, up):
    up()
    cluster = cluster_in(folder)
    background = "import os,subprocess;print(subprocess.Popen(['sleep','600'],stdout=2,start_new_session=True).pid)"
    _, out, _ = call(folder, "exec", "worker1", "--", sys.executable, "-c", background, stderr=subprocess.DEVNULL)
    code, said, _ = call(folder, "down")
    assert code == 0
    assert said == f"ended worker1: pid {int(out)} (sleep 600)\ncluster 'default' is down\n"
    assert not alive(int(out))
    assert_gone(cluster)


MANAGER = """
import subprocess, sys, time
from paceline_lab import emulate
with emulate.cluster(workers=3, bandwidth_bps=100e6, name="managed") as cluster:
    print(cluster.popen("worker0", ["sleep", "600"]).pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def manager(folder):
    """A process that has a cluster, and a command on a host of it."""
    pipes = {"stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", MANAGER], env=environment(folder), **pipes)
    sleeper = int(process.stdout.readline())
    yield process, cluster_in(folder, "managed"), sleeper
    process.kill()
    process.stdout.close()
    process.wait()


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_manager(manager, how):
    process, cluster, sleeper = manager
    process.send_signal(how)
    process.wait(20)
    assert_gone(cluster)
    assert not alive(sleeper)


@pytest.mark.process
def test_what_a_killed_holder_left_is_ended_by_down(folder, manager):
    process, cluster, sleeper = manager
    wait_until(lambda: Path(f"/proc/{sleeper}/cmdline").read_bytes().startswith(b"sleep"))
    for pid in (cluster.pid, process.pid):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(cluster.pid))
    assert alive(sleeper)
    code, _, err = call(folder, "up", "--workers", 1, "--bandwidth", "1Gbps", "--name", "managed")
    assert code == 2
    assert f"pid {sleeper} (sleep 600) is still running" in err
    code, out, _ = call(folder, "exec", "--name", "managed", "worker0", "--", "true")
    assert code == 2
    code, out, _ = call(folder, "down")
    assert code == 0
    assert (
        out == f"ended worker0: pid {sleeper} (sleep 600)\ncluster 'managed' had been killed; it has been cleaned up\n"
    )
    assert_gone(cluster)


@pytest.mark.process
def test_a_cluster_that_was_never_told_to_stay_does_not(folder):
    holder, state_of_it = bring_up(plan.plan(1, 0, switch=False), 1e8, realtime=True, name="early")
    let_go(holder)  # as if Ctrl-C had come during `up`
    assert holder.returncode == 0
    assert_gone(state_of_it)


@pytest.mark.process
def test_a_killed_holder_is_named(folder):
    with pytest.raises(emulate.ClusterError, match="SIGKILL"), emulate.cluster(workers=1, bandwidth_bps=1e8) as cluster:
        left = cluster.popen("worker0", ["sleep", "600"])
        os.kill(cluster_in(folder).pid, signal.SIGKILL)
        cluster.set_bandwidth(2e8)
    assert left.wait(20) != 0
    assert not list((folder / "paceline-emulate").iterdir())


@pytest.mark.process
def test_ctrl_c_during_a_job(folder):
    words = ["run", "--workers", 2, "--bandwidth", "100Mbps", "--", "sh", "-c", "echo $$; exec sleep 600"]
    with start(folder, *words, process_group=0) as process:
        pids = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        cluster = cluster_in(folder)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 130
    assert not any(map(alive, pids))
    assert_gone(cluster)


@pytest.mark.slow
def test_many_hosts_come_up():
    skip_where_forbidden()
    with emulate.cluster(workers=30, servers=4, switch=True, bandwidth_bps=200e6) as cluster:
        assert len(cluster.hosts) == 35
        assert cluster.popen("worker29", ["true"]).wait(20) == 0


def without_capabilities(kept=(31,)):
    """In a child that is about to start a command: it keeps root's file access, and its user is mapped."""
    libc = ctypes.CDLL(None)
    for capability in set(range(64)) - set(kept):  # 31: CAP_SETFCAP, see user_namespaces(7)
        libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run without root already")
@pytest.mark.parametrize("user", [0, 65_534])
def test_without_root(user):
    skip_where_forbidden()
    lowered = {"preexec_fn": without_capabilities} if user == 0 else {"user": user, "group": user, "extra_groups": []}
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, user, user)
        lowered |= {"cwd": "/", "env": environment(folder, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))}
        python = next((python for python in PYTHONS if starts(python, lowered)), None)
        if python is None:
            pytest.skip("another user cannot execute this Python, or cannot read its modules")
        words = ["run", "--workers", 2, "--bandwidth", "100Mbps", "--", "sh", "-c", "id -u; hostname"]
        code, out, err = call(folder, *words, python=python, **lowered)
        if code == 77:
            pytest.skip(err)
        assert code == 0, err
        assert sorted(out.splitlines()) == sorted(
            f"[rank {rank}] {said}" for rank in range(2) for said in (user, f"worker{rank}")
        )
        assert "SCHED_FIFO is not permitted" in err
        assert not list((Path(folder) / "paceline-emulate").iterdir())


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="takes away from root what it needs")
def test_where_nothing_is_permitted(folder):
    words = ["run", "--workers", 2, "--bandwidth", "100Mbps", "--", "true"]
    code, _, err = call(folder, *words, preexec_fn=lambda: without_capabilities(()))
    assert code == 77
    assert "needs root, or user namespaces, and this system permits neither: Operation not permitted" in err
    assert not list((folder / "paceline-emulate").iterdir())


PYTHONS = [sys.executable, f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"]


def starts(python, lowered):
    try:
        command = [python, "-c", "import paceline, pyroute2"]
        return subprocess.run(command, check=False, capture_output=True, **lowered).returncode == 0
    except OSError:
        return False


def test_bad_input(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    size = ["--workers", 2, "--bandwidth", "100Mbps"]
    for workers in ("0", "100000", "x", "-1", "1.5"):
        assert "--workers" in refused("up", "--workers", workers, "--bandwidth", "1Gbps")
    for bandwidth in ("500", "x", "0Mbps", "1Tbps", "1kbps", "-1Mbps"):
        assert "--bandwidth" in refused("up", "--workers", 2, "--bandwidth", bandwidth)
    assert "--workers is missing" in refused("up", "--bandwidth", "1Gbps")
    assert "--bandwidth is missing" in refused("check", "--workers", 2)
    assert "--servers" in refused("run", *size, "--servers", 2, "--", "true")
    assert "--servers: has no effect" in refused("run", *size, "--strategy", "ring", "--servers", 2, "--", "true")
    assert "--switch is for" in refused("run", *size, "--strategy", "ps", "--switch", "--", "true")
    assert "no command given" in refused("run", *size)
    assert "no command given" in refused("exec", "worker0")
    assert "-x" in refused("run", *size, "-x", "NOT_SET_HERE", "--", "true")
    assert "no cluster 'default' is up; paceline emulate up" in refused("down")
    assert "no cluster 'other' is up" in refused("down", "--name", "other")
    assert "no cluster 'default' is up" in refused("exec", "worker0", "--", "true")
    for name in ("", "a/b", "..", "-x", "a" * 50, "a\nb"):
        assert "--name" in refused("up", *size, "--name", name)
    (tmp_path / "paceline-emulate" / "broken.json").write_text("{}")
    assert "broken.json" in refused("down", "--name", "broken")
    (tmp_path / "paceline-emulate").chmod(0o777)
    assert "or XDG_RUNTIME_DIR=~/.run" in refused("down")


def test_an_unknown_host_is_told_of_those_that_there_are():
    with pytest.raises(InvalidArgumentError, match="try: worker0 to worker1"):
        plan.find(plan.plan(2, 0, switch=False), "elsewhere")


def test_bad_input_from_python():
    for wrong in (
        {"workers": 0},
        {"workers": "2"},
        {"servers": -1},
        {"bandwidth_bps": 5},
        {"bandwidth_bps": float("nan")},
    ):
        with pytest.raises(InvalidArgumentError), emulate.cluster(**{"workers": 2, "bandwidth_bps": 1e8, **wrong}):
            pass


def test_states_of_others_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "paceline-emulate").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgumentError, match="not a folder for you alone"):
        state.folder()


def test_without_pyroute2_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    assert "pip install '.[emulate]'" in refused("up", "--workers", 2, "--bandwidth", "1Gbps")


def test_the_rest_of_paceline_does_without_it():
    code = "import sys, paceline_lab.cli.emulate, paceline_lab.emulate.job\nsys.exit('pyroute2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
