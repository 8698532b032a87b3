"""Helpers for tests of emulated clusters: whether clusters work here, commands, and what remains after their end."""

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from job_workers.launch import TESTS, clean
from paceline import InvalidArgumentError, emulate
from paceline_lab.emulate import state

LIMIT_S = 90


@functools.cache
def forbidden():
    """Why clusters do not work here; None if they do."""
    try:
        with emulate.cluster(workers=1, bandwidth_bps=100e6):
            return None
    except (emulate.CannotEmulateError, emulate.ClusterError, InvalidArgumentError) as error:
        return str(error)


def skip_where_forbidden():
    if forbidden() is not None:
        pytest.skip(f"no emulated cluster here: {forbidden()}")


def prepare(folder, monkeypatch):
    """Skips where clusters do not work; only the folder's clusters are found, and ranks can import the workers."""
    skip_where_forbidden()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.chdir(TESTS)


def environment(folder, **more):
    """Clusters are found in this folder only."""
    return {**clean(), "XDG_RUNTIME_DIR": str(folder), "OMP_NUM_THREADS": "1", **more}


def start(folder, *words, python=sys.executable, **settings):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [python, "-m", "paceline.cli", "emulate", *map(str, words)]
    return subprocess.Popen(command, **{"cwd": TESTS, "env": environment(folder), **pipes, **settings})


def call(folder, *words, **settings):
    """Exit code, standard output, standard error."""
    with start(folder, *words, **settings) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return process.returncode, out, err


def cluster_in(folder, name=None):
    """The state of a cluster in the folder, or of the only one."""
    paths = list((Path(folder) / "paceline-emulate").glob(f"{name or '*'}.json"))
    assert len(paths) == 1, paths
    fields = json.loads(paths[0].read_text())
    fields.pop("format")
    return state.State(**fields)


def links():
    """The machine's own NICs whose names are a cluster's."""
    return {path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(("worker", "server", "br"))}


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def marked(token):
    """Processes that run in the cluster."""
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit() and alive(folder.name)]
    return [folder.name for folder in folders if token.encode() in _environ(folder)]


def _environ(folder):
    try:
        return (folder / "environ").read_bytes()
    except OSError:
        return b""


def wait_until(condition, within=20.0, what="it has not come to pass"):
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def assert_gone(cluster, within=20.0):
    """Neither the holder nor a process on a host exists; the kernel has then removed the namespaces, too."""
    wait_until(lambda: not alive(cluster.pid), within, "the holder is still there")
    wait_until(lambda: not marked(cluster.token), within, f"still there: {marked(cluster.token)}")
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"))
    assert not (folder / "paceline-emulate" / f"{cluster.name}.json").exists()
