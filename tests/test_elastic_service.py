"""The driver's socket against strangers, and a worker against launchers that are none."""

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from pathlib import Path

import cli
import pytest
from paceline.errors import InvalidArgumentError, JobError
from paceline.job.elastic_member import Membership, WorldEndedError, membership
from paceline.job.elastic_protocol import Decoder, encode, proof, proves, world_secret
from paceline.launch.elastic.discovery import Discovery
from paceline.launch.elastic.roster import End, Exit, Limits, Slot, Start
from paceline.launch.elastic.service import Service

SECRET = "a secret of the job"


class Running:
    """A service that a thread pumps, as a launcher would."""

    def __init__(self, count):
        self.service = Service(Limits(least=count, most=count), secret=SECRET, job="job")
        self.lock = threading.Lock()
        self.over = self.closed = False
        self.actions = []
        self.workers = []
        for action in self.service.offer([Slot("a", number) for number in range(count)]):
            assert isinstance(action, Start)
            self.workers.append(action.worker)
        self.thread = threading.Thread(target=self._pump)
        self.thread.start()

    def _pump(self):
        while not self.over:
            select.select([self.service.fileno()], [], [], 0.02)
            with self.lock:
                self.actions += self.service.pump()

    def exited(self, worker, how):
        with self.lock:
            self.actions += self.service.exited(worker, how)

    def connect(self):
        host, port = self.service.endpoint.split(":")
        return socket.create_connection((host, int(port)), 5)

    def member(self, worker, secret=SECRET):
        return Membership(self.service.endpoint, worker, secret, "job")

    def close(self):
        self.over = True
        self.thread.join()
        if not self.closed:
            self.closed = True
            self.service.close()


@pytest.fixture
def running():
    made = []

    def make(count):
        made.append(Running(count))
        return made[-1]

    yield make
    for each in made:
        each.close()


def together(*calls):
    """All at the same time: what they give, or raise."""
    results = [None] * len(calls)

    def run(at):
        try:
            results[at] = calls[at]()
        except BaseException as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def test_workers_meet_in_a_world_with_a_secret_of_its_own(running):
    job = running(2)
    members = [job.member(worker) for worker in job.workers]
    places = together(*[member.ask for member in members])
    assert sorted(place.rank for place in places) == [0, 1] and {place.size for place in places} == {2}
    blobs = together(*[lambda member=member: member.exchange(b"I am %d" % member.worker) for member in members])
    assert blobs[0] == blobs[1] and sorted(blobs[0]) == [b"I am 0", b"I am 1"]
    assert (
        members[0].secret() == members[1].secret() == world_secret(SECRET, "job", 1) != world_secret(SECRET, "job", 2)
    )


def test_a_round_is_void_when_a_rank_dies_in_it(running):
    job = running(2)
    members = [job.member(worker) for worker in job.workers]
    together(*[member.ask for member in members])
    killed = Exit(code=-9, words="rank 1 was killed")
    (first, _) = together(
        lambda: members[0].exchange(b"here"), lambda: (time.sleep(0.3), job.exited(job.workers[1], killed))
    )
    assert isinstance(first, WorldEndedError)
    assert any(isinstance(action, Start) for action in job.actions)


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 2000) + b"x" * 2000,
        struct.pack(">I", 3) + b"\xff\xfe\xfd",
        struct.pack(">I", 2) + b"[]",
        encode({"ask": [1], "why": ""}),
        encode({"finished": True}),
        encode({"worker": 0, "nonce": "0", "proof": "0" * 64}),
        encode({"worker": "0", "nonce": "0", "proof": None}),
        encode({"worker": 0}),
        struct.pack(">I", 900) + b"[" * 900,
    ],
    ids=lambda words: repr(words[:24]),
)
def test_strangers_are_dropped_and_change_nothing(running, words):
    job = running(1)
    with job.connect() as stranger:
        stranger.settimeout(10)
        stranger.sendall(words)
        while stranger.recv(1 << 16):  # its own greeting, and then the end
            pass
    assert job.member(job.workers[0]).ask().size == 1, "the worker still comes in"


def test_strangers_who_say_nothing_do_not_keep_workers_out(running):
    job = running(2)
    over = threading.Event()

    def flood():
        silent = []
        while not over.is_set():
            for stranger in select.select(silent, [], [], 0)[0]:
                with contextlib.suppress(OSError):
                    if stranger.recv(1000):
                        continue
                silent.remove(stranger)
                stranger.close()
            while len(silent) < 400 and not over.is_set():
                try:
                    silent.append(job.connect())
                except OSError:
                    break
        for stranger in silent:
            stranger.close()

    stranger = threading.Thread(target=flood)
    stranger.start()
    try:
        time.sleep(0.5)  # until there are more of them than have room
        for worker in job.workers:
            member = job.member(worker)
            member._close()
    finally:
        over.set()
        stranger.join()


def test_a_worker_retries_its_first_connection():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        made = []
        worker = threading.Thread(target=lambda: made.append(Membership(address, 0, SECRET, "job")))
        worker.start()
        for _ in range(2):  # cut at once, as by a driver that has no room
            busy.accept()[0].close()
        connection, _ = busy.accept()
        with connection:
            connection.sendall(encode({"driver": "nonce"}))
            [said] = Decoder(1 << 16).feed(connection.recv(1 << 16))
            assert proves(said["proof"], proof(SECRET, "worker 0", "nonce", said["nonce"]))
            connection.sendall(encode({"proof": proof(SECRET, "driver", "nonce", said["nonce"])}))
            worker.join(10)
        assert made
        made[0]._close()


def test_a_stranger_who_says_nothing_is_dropped_in_time(running, monkeypatch):
    monkeypatch.setattr("paceline.launch.elastic.service._PROVE_S", 0.2)
    job = running(1)
    with job.connect() as stranger:
        stranger.settimeout(10)
        while stranger.recv(1 << 16):
            pass


def test_the_secret_is_proved_both_ways(running):
    job = running(1)
    with pytest.raises(JobError, match=r"the launcher at .* is gone"):
        job.member(job.workers[0], secret="another secret of somebody")
    with pytest.raises(JobError, match="is gone"):
        job.member(77)
    with socket.create_server(("127.0.0.1", 0)) as false:

        def answer():
            connection, _ = false.accept()
            with connection:
                connection.sendall(encode({"driver": "0"}))
                connection.recv(4096)
                connection.sendall(encode({"proof": "0" * 64}))
                connection.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(JobError, match="does not know the job's secret"):
            Membership(f"127.0.0.1:{false.getsockname()[1]}", 0, SECRET, "job")
        thread.join(10)
    assert not proves("é", proof(SECRET, "driver", "a", "b")) and not proves(None, "")


def test_a_launcher_that_is_silent_or_gone_is_an_error(running, monkeypatch):
    job = running(2)
    member = job.member(job.workers[0])
    monkeypatch.setattr("paceline.job.elastic_member._SILENT_S", 0.5)
    monkeypatch.setattr("paceline.job.elastic_member._CONNECT_S", 1.0)
    with job.lock, pytest.raises(JobError, match=r"has been silent for 0 s|silent"):
        member.ask()
    monkeypatch.setattr("paceline.job.elastic_member._SILENT_S", 30)
    (failed, _) = together(member.ask, lambda: (time.sleep(0.2), job.close()))
    assert isinstance(failed, JobError) and "does not answer" in str(failed)
    with pytest.raises(JobError, match="does not answer"):
        job.member(0)


def test_a_worker_whose_connection_is_cut_asks_again(running):
    job = running(2)
    members = [job.member(worker) for worker in job.workers]

    def cut():
        time.sleep(0.3)
        with job.lock:
            job.service._by_worker[job.workers[0]].connection.shutdown(socket.SHUT_RDWR)
        time.sleep(0.3)
        return members[1].ask()

    places = together(members[0].ask, cut)
    assert [place.size for place in places] == [2, 2], places
    with job.lock:
        for line in list(job.service._by_worker.values()):
            line.connection.shutdown(socket.SHUT_RDWR)
    time.sleep(0.3)
    assert members[0].updated(), "it may have missed that others wait"
    members[0].synced()
    members[1].finished()
    assert job.service.driver._finished


def test_the_last_to_finish_ends_the_job(running):
    job = running(1)
    job.member(job.workers[0]).finished()
    job.exited(job.workers[0], Exit(code=0, words="ended"))
    assert End(None) in job.actions


def test_variables_that_contradict_each_other():
    assert membership({}) is None
    with pytest.raises(
        InvalidArgumentError, match="PACELINE_RUN_ELASTIC is set, and PACELINE_RUN_WORKER and PACELINE_SECRET are not"
    ):
        membership({"PACELINE_RUN_ELASTIC": "127.0.0.1:1"})


def test_messages_come_back_in_any_pieces():
    message = {"text": "é", "numbers": list(range(100))}
    data = encode(message) * 3
    decoder = Decoder(10_000)
    assert [result for byte in data for result in decoder.feed(bytes([byte]))] == [message] * 3
    assert json.loads(data[4 : 4 + len(data) // 3 - 4]) == message


def looked(discovery, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = discovery.look(time.monotonic())
        if result is not None:
            return result
        time.sleep(0.02)
    raise AssertionError("the script has not ended")


def test_what_a_discovery_script_says(tmp_path):
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho node1:4; echo node2\n")
    script.chmod(0o755)
    discovery = Discovery(str(script), every_s=0.05)
    assert looked(discovery) == {"node1": 4, "node2": 1}
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(Exception, match="ended with exit code 3; 5 times in a row"):
        looked(discovery)
    script.write_text("#!/bin/sh\nseq -f node%g:16 10000\n")
    with pytest.raises(Exception, match="printed more than 64 KiB"):
        looked(discovery)
    discovery.close()
    missing = Discovery(str(tmp_path / "none"))
    with pytest.raises(InvalidArgumentError, match="No such file"):
        looked(missing)
    missing.close()
    with pytest.raises(InvalidArgumentError, match="is empty"):
        Discovery("")


def test_a_host_that_a_script_misses_for_a_moment_stays(tmp_path, capsys):
    """Answers that alternate between two hosts and none would otherwise start and kill processes for ever."""
    answers = tmp_path / "answers"
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {answers}\n")
    script.chmod(0o755)
    discovery = Discovery(str(script), every_s=0.02)
    for turn in range(5):
        answers.write_text("" if turn % 2 else "a:2 b:1")
        assert looked(discovery) == {"a": 2, "b": 1}
    assert capsys.readouterr().err.count("was missing from an answer and is back; slots are gone after 3 answers") == 1
    answers.write_text("b:1 c:1")
    assert [looked(discovery) for _ in range(3)] == [
        {"b": 1, "c": 1, "a": 2},
        {"b": 1, "c": 1, "a": 2},
        {"b": 1, "c": 1},
    ]
    answers.write_text("a:1 b:1 c:1")
    assert looked(discovery) == {"a": 1, "b": 1, "c": 1}, "a new host is used at once"
    discovery.close()


def test_a_discovery_script_that_hangs_ends_with_what_it_has_started(tmp_path):
    script = tmp_path / "hosts.sh"
    script.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; wait\n"
    )
    script.chmod(0o755)
    discovery = Discovery(str(script))
    discovery.look(time.monotonic())
    deadline = time.monotonic() + 10
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    started = Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline"
    discovery.close()
    deadline = time.monotonic() + 10
    while started.exists() and started.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not (started.exists() and started.read_bytes())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-np", "2", "--min-np", "1"], "--elastic, or drop --min-np"),
        (["-np", "2", "--reset-limit", "1"], "--elastic, or drop --reset-limit"),
        (["--elastic"], "paceline run --elastic -np 4 -- python train.py"),
        (["--elastic", "-np", "2", "--max-np", "4"], "--host-discovery-script FILE, or drop --max-np"),
        (["--elastic", "-np", "2", "--min-np", "3"], "--min-np must be at most -np, 2, not 3 try: --min-np 2"),
        (
            ["--elastic", "-np", "4", "--max-np", "2", "--host-discovery-script", "x"],
            "--max-np must be at least -np, 4, not 2 try: --max-np 4",
        ),
        (["--elastic", "-np", "2", "--timeline", "t.json"], "--timeline does not work with --elastic"),
        (["--elastic", "-np", "2", "--record", "t.json"], "--record does not work with --elastic"),
        (
            ["--elastic", "-np", "2", "--switch", "--strategy", "ps-aggregation"],
            "--switch does not work with --elastic",
        ),
        (["--elastic", "-np", "9", "--hosts", "a:2,b:2"], "the hosts have 4 slots"),
    ],
)
def test_options_that_cannot_be(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PACELINE_")]:
        monkeypatch.delenv(name)
    result = cli.output("run", *options, "--", "true", code=2)
    assert message in " ".join(result.split()), result


def test_random_bytes_are_no_message():
    for _ in range(200):
        decoder = Decoder(100)
        with contextlib.suppress(ValueError):
            assert all(isinstance(result, dict) for result in decoder.feed(secrets.token_bytes(50)))
