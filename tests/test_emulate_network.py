"""Emulated networks keep to their rate, and multicast reaches members only."""

import subprocess
import sys
from itertools import pairwise

import cli
import pytest
from emulate_workers.here import TESTS, call, skip_where_forbidden
from paceline import InvalidArgumentError, emulate
from paceline_lab.emulate.fidelity import Fidelity, Load, Pattern
from paceline_lab.emulate.shaping import MTU, shape

pytestmark = [pytest.mark.process, pytest.mark.timed]

GROUP, PORT = "239.1.2.3", "7001"
# Other work on the cores makes transfers longer, never shorter.
LEAST, MOST = -0.02, 0.1


@pytest.fixture
def possible():
    skip_where_forbidden()


def test_buckets_hold_a_segment_and_rates_are_goodput():
    rates = [1e6 * rate for rate in (1, 50, 100, 150, 200, 300, 499, 500, 700, 1000, 2000, 5000, 20_000)]
    shapes = [shape(rate) for rate in rates]
    for rate, one in zip(rates, shapes, strict=True):
        assert one.burst > one.segment + MTU / 4
        # Full packets with 52 bytes of headers, in frames that add 14 bytes.
        assert one.rate * 8 * (MTU - 52) / (MTU + 14) == pytest.approx(rate, rel=1e-5)
    for low, high in pairwise(shapes):
        assert (low.segment, low.burst) <= (high.segment, high.burst)
    assert (shape(500e6).segment, shape(500e6).burst) == (65_536, 80_000)
    for wrong in (0, -1e9, 1e5, 1e12, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="bandwidth"):
            shape(wrong)


def test_shaping(possible):
    with emulate.cluster(workers=3, bandwidth_bps=100e6) as cluster:
        for rate in (100e6, 200e6):
            cluster.set_bandwidth(rate)
            best = best_errors(cluster, rate)
            assert all(LEAST < error < MOST for error in best.values()), best
        with pytest.raises(InvalidArgumentError):
            cluster.set_bandwidth(1)


def best_errors(cluster, rate, attempts=8):
    """The smallest error of each pattern, measured until all are good: a busy machine makes some transfers longer."""
    best = {}
    for _ in range(attempts):
        fidelity = cluster.check(repeats=1)
        assert fidelity.bandwidth_bps == rate
        assert [pattern.flows for pattern in fidelity.patterns] == [1, 2, 2]
        for pattern in fidelity.patterns:
            assert len(pattern.times_s) == 1
            assert pattern.ideal_s == pytest.approx(0.4, rel=0.01)
            best[pattern.name] = min(pattern.error, best.get(pattern.name, pattern.error))
        if max(best.values()) < MOST:
            break
    return best


def test_the_switch_is_not_shaped(possible):
    move = (
        "import socket,sys,time\n"
        "if sys.argv[1]=='listen':\n"
        " s=socket.create_server(('',7000));print('ready',flush=True);c=s.accept()[0]\n"
        " while c.recv(1<<20): pass\n"
        "else:\n"
        " c=socket.create_connection((sys.argv[1],7000),10);b=bytes(1<<20);t=time.monotonic()\n"
        " for _ in range(6): c.sendall(b)\n"
        " c.shutdown(1);c.recv(1);print(time.monotonic()-t)\n"
    )
    with emulate.cluster(workers=1, switch=True, bandwidth_bps=50e6) as cluster:

        def seconds(sender, receiver):
            address = next(host.address for host in cluster.hosts if host.name == receiver)
            pipe = {"stdout": subprocess.PIPE, "text": True}
            with cluster.popen(receiver, [sys.executable, "-c", move, "listen"], **pipe) as listener:
                assert listener.stdout.readline() == "ready\n"
                with cluster.popen(sender, [sys.executable, "-c", move, address], **pipe) as process:
                    return float(process.communicate(timeout=60)[0])

        ideal_s = 6 * 2**20 * 8 / 50e6
        assert seconds("worker0", "switch") > ideal_s * 0.97
        assert seconds("switch", "worker0") > ideal_s * 0.97
        # The switch's own NIC adds nothing: within the switch, traffic is as fast as the machine.
        assert seconds("switch", "switch") < ideal_s / 2


def received(cluster, host):
    """Bytes received by the host's NIC."""
    out = cli.ended(*cluster.entering(host), "cat", "/proc/self/net/dev", check=True, timeout=20).stdout
    return next(int(line.split()[1]) for line in out.splitlines() if "eth0:" in line)


def test_multicast_reaches_members_only(possible):
    command = [sys.executable, "-m", "emulate_workers.multicast"]
    pipe = {"stdout": subprocess.PIPE, "text": True, "cwd": TESTS}
    number = 200
    with emulate.cluster(workers=4, bandwidth_bps=100e6) as cluster:
        addresses = {host.name: host.address for host in cluster.hosts}
        receivers = [
            cluster.popen(host, [*command, "receive", GROUP, PORT, addresses[host]], **pipe)
            for host in ("worker1", "worker2")
        ]
        assert [receiver.stdout.readline() for receiver in receivers] == ["joined\n"] * 2
        before = received(cluster, "worker3")
        with cluster.popen("worker0", [*command, "send", GROUP, PORT, str(number)], **pipe) as sender:
            assert sender.wait(30) == 0
        for receiver in receivers:
            out, _ = receiver.communicate(timeout=30)
            assert int(out) == number * 8192
        assert received(cluster, "worker3") - before < 500  # the bridge's own question: who is a member?


def test_the_verdict_names_a_cause():
    def fidelity(measured_s, realtime=True, **load):
        patterns = (Pattern("incast", 7, 1000, 0.4, measured_s, (measured_s,)),)
        return Fidelity(8, 5e8, realtime, patterns, Load(**{"cores": 2, "busy": 0.5, "steal": 0, "others": 0, **load}))

    assert fidelity(0.401).verdict() == "all within 2% of the ideal"
    assert fidelity(0.401).good and not fidelity(0.401).causes()
    assert not fidelity(0.44).good
    assert fidelity(0.44).verdict() == "incast 10.0% longer than the ideal"
    assert fidelity(0.44).causes() == ["the load of this machine does not explain it"]
    for load, cause in (
        ({"others": 1.2}, "other processes used 1.2 of 2 cores"),
        ({"steal": 0.1}, "(steal)"),
        ({"busy": 1.0}, "lower --bandwidth or --workers"),
        ({"realtime": False}, "without SCHED_FIFO"),
    ):
        [said] = fidelity(0.44, **load).causes()
        assert cause in said and cause in fidelity(0.44, **load).to_dict()["verdict"]


@pytest.mark.slow
def test_check_prints_what_it_measured(possible, tmp_path):
    code, out, err = call(tmp_path, "check", "--workers", 3, "--bandwidth", "100Mbps", "--repeats", 1)
    assert (code, "patterns" in err) == (0, False)
    lines = out.splitlines()
    assert lines[0].startswith("Emulated 100 Mbps network: ")
    assert any(line.startswith("  Setup        3 hosts, 100 Mbps per NIC, MTU 9,000") for line in lines)
    assert [line.split("  ")[0] for line in lines if " ms " in line] == ["one stream", "incast", "1:N"]


def test_one_worker_has_nobody_to_talk_to(possible):
    with (
        emulate.cluster(workers=1, bandwidth_bps=1e8) as cluster,
        pytest.raises(InvalidArgumentError, match="at least 2"),
    ):
        cluster.check()
