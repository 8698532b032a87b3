"""Ports for servers that start later."""

import errno
import socket

import pytest
from paceline._internal import ports
from paceline._internal.ports import bind_free, free_ports
from paceline.launch.checks import Ports


@pytest.fixture
def range_of_system(tmp_path, monkeypatch):
    """The range from which the system chooses ports, as a function sets it."""

    def is_now(text):
        path = tmp_path / "range"
        path.write_text(text)
        monkeypatch.setattr(ports, "_EPHEMERAL", path)

    return is_now


def test_they_are_different_and_none_that_the_system_chooses_for_a_rank(range_of_system):
    range_of_system("32768\t60999\n")
    result = free_ports("127.0.0.1", 50)
    assert len(set(result)) == 50
    assert all(20_000 <= port < 30_000 for port in result)
    range_of_system("22000\t60999\n")
    assert all(20_000 <= port < 22_000 for port in free_ports("127.0.0.1", 50))


def test_those_of_a_launcher_are_too(range_of_system):
    range_of_system("32768\t60999\n")
    held = Ports(None)
    try:
        assert held.rendezvous != held.master
        assert all(20_000 <= port < 30_000 for port in (held.rendezvous, held.master))
    finally:
        held.release()


@pytest.mark.parametrize("text", ["1024 65535", "20500 60999"])
def test_if_the_system_chooses_from_nearly_all_it_chooses(range_of_system, text):
    range_of_system(text)
    with socket.socket() as server:
        port = bind_free(server, "127.0.0.1")
        assert port == server.getsockname()[1] > 0


def test_used_ports_are_left_alone(monkeypatch):
    with socket.socket() as other, socket.socket() as server:
        taken = bind_free(other, "127.0.0.1")
        other.listen(1)
        [free] = free_ports("127.0.0.1", 1)
        monkeypatch.setattr(ports, "_CHOICE", type("Next", (), {"sample": lambda *_: [taken, free]}))
        assert bind_free(server, "127.0.0.1") == free


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(OSError) as raised:
        free_ports("192.0.2.1", 1)
    assert raised.value.errno == errno.EADDRNOTAVAIL
