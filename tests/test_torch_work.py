"""Results that are copied back: once, before any thread that waits goes on, and in an order that all streams keep."""

import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from paceline.torch.backend import on_device  # noqa: E402
from paceline.torch.backend.buffers import Memory  # noqa: E402
from paceline.torch.backend.completion import Completion, Lineage  # noqa: E402
from paceline.torch.backend.work import Work  # noqa: E402


class Over:
    """An operation that is over; notes which streams wait for its result."""

    def __init__(self, said):
        self.said = said

    def wait(self, timeout_s=None):
        return True

    def ready(self):
        return True

    def hold(self, stream):
        self.said.append((stream, "waits for the result"))


def work_of(operation, back, place=None):
    tensor = torch.zeros(2, 3).T  # not dense
    memory = Memory([tensor], [tensor], back=back)
    return Work(Completion(None), operation, "sum", memory, token=None, lineage=Lineage("g", None), place=place)


def test_no_thread_goes_on_before_the_result_has_been_copied():
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Memory):
        def copy_back(self):
            begun.set()
            assert go_on.wait(10)

    work = work_of(Over([]), [])
    work._memory = Slow([], [])
    one, other = (threading.Thread(target=work.wait) for _ in range(2))
    one.start()
    assert begun.wait(10)
    other.start()
    other.join(0.1)
    early = not other.is_alive()
    go_on.set()
    one.join(10), other.join(10)
    assert not early


def test_streams_wait_for_what_another_one_copies(monkeypatch):
    said, current = [], ["a"]
    monkeypatch.setattr(on_device, "current_stream", lambda device: current[0])
    monkeypatch.setattr(on_device, "mark", lambda place: f"copied in {current[0]}")
    monkeypatch.setattr(on_device, "wait_for", lambda event, place: said.append((current[0], event)))
    tensor, values = torch.zeros(2, 3).T, torch.ones(3, 2)
    work = work_of(Over(said), [(tensor, values)], on_device.Place(torch.device("cuda"), 1))
    work.wait()
    current[0] = "b"
    tensor.zero_()
    work.wait()
    assert said[2:] == [("b", "waits for the result"), ("b", "copied in a")]
    assert tensor.sum() == 0, "copied once"


def test_a_call_in_a_capture_is_refused(monkeypatch):
    """Streams are told nothing while a graph is captured, so that ranks would wait until their time limit."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match="a CUDA graph is being captured"):
        on_device.place_of([SimpleNamespace(device=torch.device("cuda"))])
    assert on_device.place_of([torch.ones(1)]) is None
