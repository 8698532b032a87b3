"""The threads that complete futures have let go of every tensor when the process may end."""

import queue
import time

import pytest
from paceline.torch.backend.completion import Completion


class Engine:
    """Gives the notices of operations that are over."""

    def __init__(self):
        self.notices = queue.Queue()

    def next_notice(self, seconds):
        try:
            return self.notices.get(timeout=min(seconds, 0.05))
        except queue.Empty:
            return None


class Slow:
    """An operation whose memory takes a while to free, as torch's does when it waits for the interpreter."""

    lineage = None

    def __init__(self, freed, future):
        self.freed, self.future = freed, future

    def has_future(self):
        return self.future

    def land(self):
        pass

    def settle(self):
        pass

    def exception_after_wait(self):
        return None

    def __del__(self):
        time.sleep(0.3)
        self.freed.append(True)


@pytest.mark.parametrize("how", ["noticed", "with a future", "before any future"])
def test_when_it_has_finished_nothing_is_freed_any_more(how):
    engine, freed = Engine(), []
    completion = Completion(engine)
    work = Slow(freed, how == "with a future")
    if how == "before any future":
        completion.later(work)
    else:
        completion.start()
        completion.expect(1, work)
        engine.notices.put((1,))
    del work
    time.sleep(0.1)
    completion.close()
    time.sleep(0.15)  # The engine ends, which wakes listeners.
    completion.finish()
    assert freed == [True]
