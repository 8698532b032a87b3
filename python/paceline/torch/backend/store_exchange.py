"""The all-gather of small blobs through torch's store, by which ranks find each other before they are connected."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from torch._C._distributed_c10d import PrefixStore, Store

from paceline.errors import JobError
from paceline.job.bootstrap import named
from paceline.job.waiting import WaitReports

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S, PAUSE_PER_KEY_S = 0.05, 0.0005
"""The longest pause between two looks, and what each key adds, as all ranks ask one store for all keys."""


def wait_for(store: Store, keys: list[str], deadline: float, look: Callable[[], object]) -> bool:
    """Return whether the store has all keys before `deadline`, by time.monotonic(); call `look` between two looks.

    The store's own `wait` cannot report anything meanwhile, and each time it ends without success torch logs two lines.
    Raises RuntimeError if the store cannot be reached, and what `look` raises.
    """
    pause_s, longest_s = FIRST_PAUSE_S, LONGEST_PAUSE_S + PAUSE_PER_KEY_S * len(keys)
    while not store.check(keys):
        if time.monotonic() >= deadline:
            return False
        look()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
    return True


class StoreExchange:
    """An all-gather over a store; every rank creates one at the same time and calls it equally often.

    A store outlives a job (under torchrun it is the launcher's), and a second init_process_group finds the keys of the
    first. So the ranks count their arrivals, and each round of `size` arrivals has its own keys.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout_s: float, group: str | None = None) -> None:
        """`timeout_s`: how long a call waits for the others. `group`: what they make; None: the default group."""
        self.rank, self.size, self.timeout_s, self._group = rank, size, timeout_s, group
        self._root = PrefixStore("paceline", store)
        self.life = (self._root.add("arrivals", 1) - 1) // size
        """How many jobs have been found through this store before this one."""
        self._store = PrefixStore(str(self.life), self._root)
        self._calls = 0

    def __call__(self, blob: bytes) -> list[bytes]:
        """Return every rank's blob, in rank order. Raises JobError naming the missing ranks."""
        prefix, self._calls = self._calls, self._calls + 1
        keys = [f"{prefix}/{rank}" for rank in range(self.size)]
        # The store's interface takes text; hexadecimal keeps every byte, in every version of torch.
        self._store.set(keys[self.rank], blob.hex())
        reports = WaitReports(self.timeout_s, "timeout=" if self._group else "PACELINE_START_TIMEOUT or timeout=")

        def report() -> None:
            if reports.due() and self._speaks(missing := self._missing(keys)):
                reports.report(lambda waited: self._waits(waited, missing))

        if not wait_for(self._store, keys, time.monotonic() + self.timeout_s, report):
            remedy = "init_process_group(timeout=…) or PACELINE_START_TIMEOUT"
            raise JobError(
                self._waits(f"{self.timeout_s:g} s", self._missing(keys)),
                remedy=f"their output, or more time: {remedy if self._group is None else 'the timeout of the group'}",
            )
        return [bytes.fromhex(self._store.get(key).decode()) for key in keys]

    def _waits(self, waited: str, missing: list[int]) -> str:
        what = "call init_process_group"
        if self._group is not None:
            what = f"make group {self._group} with the same store"
        return f"rank {self.rank} has waited {waited} for {named(missing)} of {self.size} to {what}"

    def _speaks(self, missing: list[int]) -> bool:
        """Return whether this rank reports the wait: the first of those that have come does."""
        return self.rank == min(set(range(self.size)).difference(missing))

    def _missing(self, keys: list[str]) -> list[int]:
        return [rank for rank, key in enumerate(keys) if not self._store.check([key])]

    def finish(self) -> None:
        """Finish: the last rank deletes the keys of all. The ranks make no further calls."""
        with contextlib.suppress(RuntimeError):  # A store that cannot delete keeps a few short strings.
            if self._store.add("left", 1) == self.size:
                for call in range(self._calls):
                    for rank in range(self.size):
                        self._store.delete_key(f"{call}/{rank}")
                self._store.delete_key("left")
