"""The all-gather of small blobs through torch's store, by which ranks find each other before they are connected."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from paceline.errors import JobError
from paceline.job.bootstrap import named

POLL_S = 0.05
"""How often to query the store for present ranks, once waiting for all of them at once has failed."""


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
        deadline = time.monotonic() + self.timeout_s
        try:
            self._store.wait(keys, timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            missing = self._missing(keys, deadline)
            if missing:
                what, remedy = "call init_process_group", "init_process_group(timeout=…)"
                if self._group is not None:
                    what, remedy = f"make group {self._group} with the same store", "the group's timeout"
                raise JobError(
                    f"rank {self.rank} waited {self.timeout_s:g} s for {named(missing)} of {self.size} to {what}; "
                    f"check their output, or give them more time with {remedy}"
                ) from error
        return [bytes.fromhex(self._store.get(key).decode()) for key in keys]

    def _missing(self, keys: list[str], deadline: float) -> list[int]:
        while True:
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(POLL_S)

    def finish(self) -> None:
        """Finish: the last rank deletes the keys of all. The ranks make no further calls."""
        with contextlib.suppress(RuntimeError):  # A store that cannot delete keeps a few short strings.
            if self._store.add("left", 1) == self.size:
                for call in range(self._calls):
                    for rank in range(self.size):
                        self._store.delete_key(f"{call}/{rank}")
                self._store.delete_key("left")
