"""Hosts that have no IPv4 address, not even on loopback: as network namespaces, joined by a cable."""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import cli
import pytest
from job_workers.launch import clean
from paceline._internal import netif
from paceline.errors import InvalidArgumentError

FIRST, SECOND = "fd77::1", "fd77::2"
SECRET = "0123456789abcdef0123"
PORT = 29_600
PACELINE = (sys.executable, "-m", "paceline.cli")
JOB = (
    "import numpy, paceline.job as jobs; job = jobs.join(); "
    "print('sum', job.all_reduce(numpy.ones(1000))[0], 'of rank', job.rank, flush=True)"
)


@pytest.fixture
def only_ipv6(monkeypatch, tmp_path):
    """An interface with a global and a link-local address, one with the latter alone, and one with none."""
    listed = tmp_path / "if_inet6"
    listed.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fd770000000000000000000000000001 02 40 00 80     eth0\n"
        "fe80000000000000eca2f5fffe6b3951 02 40 20 80     eth0\n"
        "fe80000000000000eca2f5fffe6b3952 03 40 20 80     eth1\n"
        "fd880000000000000000000000000001 04 40 00 c0     eth2\n",
        encoding="ascii",
    )
    monkeypatch.setattr(netif, "_IF_INET6", listed)
    monkeypatch.setattr(netif, "_ipv4", lambda name: None)
    monkeypatch.setattr(netif.socket, "if_nameindex", lambda: list(enumerate(("lo", "eth0", "eth1", "eth2"))))
    monkeypatch.setattr(netif.sys, "platform", "linux")
    monkeypatch.setattr(netif, "is_own", lambda address: address in ("::1", FIRST))


@pytest.mark.usefixtures("only_ipv6")
def test_addresses_by_interface_network_and_address():
    assert netif.addresses() == {"lo": ["::1"], "eth0": [FIRST], "eth1": [], "eth2": []}, "eth2's is tentative"
    assert [netif.address_of(text, "") for text in ("eth0", "fd77::/64", FIRST, "fd77:0::1")] == [FIRST] * 4
    assert netif.loopback() == netif.address_of("lo", "") == "::1"


@pytest.mark.usefixtures("only_ipv6")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eth1", "interface eth1 has no address that other machines can use"),
        ("fe80::eca2:f5ff:fe6b:3951", "is a link-local address"),
        ("fe80::eca2:f5ff:fe6b:3951%eth0", "is a link-local address"),
        ("eth9", "this machine has no interface 'eth9'"),
        ("10.0.0.0/8", "this machine has no address in 10.0.0.0/8"),
        ("fd99::1", "fd99::1 is not an address of this machine"),
    ],
)
def test_what_cannot_be_is_refused_with_what_there_is(text, said):
    with pytest.raises(InvalidArgumentError) as error:
        netif.address_of(text, "PACELINE_INTERFACE")
    message = str(error.value)
    assert message.startswith("PACELINE_INTERFACE: ") and said in message, message
    assert error.value.remedy == f"one of lo ::1, eth0 {FIRST}"


@pytest.mark.parametrize(
    ("text", "host"), [("node1:80", "node1"), ("10.0.0.1:80", "10.0.0.1"), ("[fd00::1]:80", "fd00::1")]
)
def test_hosts_of_endpoints(text, host):
    assert netif.split_endpoint(text) == host
    assert netif.endpoint(host, 80) == text


class Hosts:
    """Two network namespaces with IPv6 addresses alone."""

    def __init__(self):
        self._stack = contextlib.ExitStack()
        self.pids = [self._namespace() for _ in range(2)]
        for here in self.pids:
            self._ip(here, "link set lo up")
            self._ip(here, "addr del 127.0.0.1/8 dev lo")
        first, second = self.pids
        self._ip(first, f"link add net0 type veth peer name net0 netns {second}")
        for own, here in zip((FIRST, SECOND), self.pids, strict=True):
            self._ip(here, f"addr add {own}/64 dev net0 nodad")
            self._ip(here, "link set net0 up")

    def _namespace(self):
        holder = self._stack.enter_context(subprocess.Popen(["unshare", "--net", "sleep", "300"]))
        self._stack.callback(holder.kill)
        ours = Path("/proc/self/ns/net").stat().st_ino
        until = time.monotonic() + 10
        while Path(f"/proc/{holder.pid}/ns/net").stat().st_ino == ours:
            if holder.poll() is not None or time.monotonic() > until:
                pytest.skip("network namespaces cannot be made here")
            time.sleep(0.01)
        return holder.pid

    @staticmethod
    def _ip(pid, words):
        made = cli.ended("nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words.split())
        if made.returncode:
            pytest.skip(f"ip {words}: {made.stderr.strip()}")

    def start(self, host, words, **environment):
        """Start a command on a host."""
        return subprocess.Popen(
            ["nsenter", f"--net=/proc/{self.pids[host]}/ns/net", *words],
            env={**clean(), "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def rsh(self, folder):
        """Return the path of a remote shell."""
        script = folder / "rsh"
        first, second = self.pids
        script.write_text(
            f"#!/bin/sh\nhost=$1; shift\ncase $host in *{FIRST}*) pid={first};; *) pid={second};; esac\n"
            'exec nsenter --net=/proc/$pid/ns/net sh -c "$*"\n'
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return str(script)

    def close(self):
        self._stack.close()


@pytest.fixture
def hosts():
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs {', '.join(missing) or 'root'} to make network namespaces")
    made = Hosts()
    yield made
    made.close()


def output(*processes, limit_s=90):
    """Wait for processes and return what they have printed."""
    try:
        return [process.communicate(timeout=limit_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def ranks(hosts, **environment):
    """One rank on each host, as a launcher of another kind starts them."""
    given = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "PACELINE_SECRET": SECRET}
    given["PACELINE_RENDEZVOUS"] = f"[{FIRST}]:{PORT}"
    return output(
        *(hosts.start(rank, [sys.executable, "-c", JOB], RANK=str(rank), **given, **environment) for rank in (0, 1))
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PACELINE_INTERFACE": "net0", "PACELINE_TRANSPORT": "grpc"},
        pytest.param({"PACELINE_INTERFACE": "fd77::/64"}, marks=pytest.mark.slow),
        pytest.param({"PACELINE_TRANSPORT": "grpc+tcp"}, marks=pytest.mark.slow),
    ],
)
def test_ranks_of_two_hosts(hosts, environment):
    for rank, said in enumerate(ranks(hosts, **environment)):
        assert f"sum 2.0 of rank {rank}\n" in said, said


@pytest.mark.process
def test_ranks_of_one_host(hosts):
    words = [*PACELINE, "run", "-np", "2", "--verbose", "--", sys.executable, "-c", JOB]
    [said] = output(hosts.start(0, words))
    assert "rendezvous [::1]:" in said and said.count("sum 2.0") == 2, said


@pytest.mark.process
def test_hosts_of_the_launcher(hosts, tmp_path):
    listed = f"[{FIRST}]:1,[{SECOND}]:1"
    words = [*PACELINE, "run", "--hosts", listed, "--rsh", hosts.rsh(tmp_path), "--interface", "net0"]
    [said] = output(hosts.start(0, [*words, "--", sys.executable, "-c", JOB]))
    assert said.count("sum 2.0") == 2, said


@pytest.mark.process
@pytest.mark.slow
def test_an_elastic_job(hosts, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import paceline.torch as hvd, torch\nhvd.init()\nstate = hvd.elastic.ObjectState(step=0)\n"
        "@hvd.elastic.run\ndef train(state):\n    while state.step < 5:\n"
        "        hvd.allreduce(torch.ones(3), name='x')\n        state.step += 1\n        state.commit()\n"
        "train(state)\nprint('done', hvd.rank(), 'of', hvd.size(), flush=True)\n"
    )
    listed = f"[{FIRST}]:1,[{SECOND}]:1"
    words = [*PACELINE, "run", "--elastic", "-np", "2", "--hosts", listed, "--rsh", hosts.rsh(tmp_path)]
    [said] = output(hosts.start(0, [*words, "--", sys.executable, str(script)]))
    assert "done 0 of 2" in said and "done 1 of 2" in said, said


@pytest.mark.process
@pytest.mark.slow
def test_torchrun(hosts, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('paceline')\n"
        "dist.all_reduce(t := torch.ones(3))\n"
        "print('sum', t[0].item(), flush=True)\ndist.destroy_process_group()\n"
    )
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--master-addr", FIRST]
    nodes = [
        hosts.start(node, [*words, "--master-port", str(PORT), "--node-rank", str(node), str(script)])
        for node in (0, 1)
    ]
    for said in output(*nodes):
        assert "sum 2.0" in said, said


@pytest.mark.process
@pytest.mark.slow
def test_what_cannot_work_says_why(hosts, tmp_path):
    listed = f"[{FIRST}]:1,[{SECOND}]:1"
    words = [*PACELINE, "run", "--hosts", listed, "--rsh", hosts.rsh(tmp_path), "--strategy", "ring-multicast"]
    words += ["--multicast", "239.77.0.0:47700", "--", sys.executable, "-c", JOB]
    [said] = output(hosts.start(0, words))
    assert re.search(r"multicast:? 239\.77\.0\.0:47700: the interface fd77::\d has no IPv4", said), said
    # Loopback of another host: known at once, and not after a minute of refused connections.
    began = time.monotonic()
    said = ranks(hosts, PACELINE_INTERFACE="lo")
    assert time.monotonic() - began < 40
    assert any("listens on ::1, which rank 1 (" in one and "try: PACELINE_INTERFACE=" in one for one in said), said


def test_ports_of_both_families_are_reserved():
    from paceline.launch.checks import Ports, Problem

    ports = Ports(None)
    with pytest.raises(Problem, match="--port"):
        Ports(ports.rendezvous)
    ports.release()
