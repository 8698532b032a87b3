"""By which name ranks know an operation: what the script says, or a number that counts calls.

Ranks may ask for named tensors in any order. For those without a name, the order of the calls is what they have in
common, so that it must be the same on all ranks.
"""

from __future__ import annotations

import threading
from typing import Any

from paceline.torch.hvd.handles import Handle

SLOTS = 64
"""Names for unnamed operations of one kind. They come again, so that the runtime remembers them and agrees faster."""


class Names:
    """The names of one process set."""

    def __init__(self) -> None:
        """Nothing has been called yet."""
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._last: dict[str, Handle[Any]] = {}

    def of(self, call: str, name: str | None) -> str:
        """The name of an operation, such as "allreduce.layer1.weight" or "allreduce.noname.7".

        An unnamed operation waits for the one that had its name before, if that is still in flight.
        """
        if name is not None:
            return f"{call}.{name}"
        with self._lock:
            count = self._counts.get(call, 0)
            self._counts[call] = count + 1
            full = f"{call}.noname.{count % SLOTS}"
            before = self._last.pop(full, None)
        if before is not None:
            before.settle()
        return full

    def hold(self, name: str, handle: Handle[Any]) -> None:
        """An unnamed operation is in flight under this name."""
        with self._lock:
            self._last[name] = handle

    def take_back(self, call: str) -> None:
        """The last unnamed operation of this kind could not be asked for."""
        with self._lock:
            self._counts[call] -= 1

    def restart(self) -> None:
        """All ranks have joined: the number of calls they have made, which may differ, is forgotten."""
        with self._lock:
            self._counts.clear()
