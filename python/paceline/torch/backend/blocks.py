"""Names the blocks of FSDP2 in timelines: whose parameters are gathered, and whose gradients are scattered.

FSDP2 tells a profiler, but not the process group, for which module it communicates. While a timeline is recorded, the
methods of its parameter groups that communicate are wrapped. They are internal to torch (`FSDPParamGroup` in
torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py): where one is missing, operations keep their usual names.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

_MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_METHODS = {
    "unshard": "all-gather",
    "wait_for_unshard": "all-gather",
    "post_backward": "reduce-scatter",
    "finalize_backward": "reduce-scatter",
}
ROOT = "root"
"""The block of parameters that belong to no other."""
_here = threading.local()
_originals: dict[str, Callable[..., Any]] = {}
"""The methods, while they are wrapped."""
_users: set[Blocks] = set()
"""Those for which they are wrapped."""


def current() -> str | None:
    """Return `all-gather of layers.3` while this thread communicates for a block of FSDP2, else None."""
    return getattr(_here, "name", None)


class Blocks:
    """Has FSDP2's methods wrapped from the first call of `find` on that finds them, until `remove`."""

    def find(self) -> None:
        """Wrap the methods if FSDP2 has been imported. Idempotent, and cheap until then."""
        if self in _users or _MODULE not in sys.modules:
            return
        owner = getattr(sys.modules[_MODULE], "FSDPParamGroup", None)
        if owner is None:
            return
        if not _users:
            for name, collective in _METHODS.items():
                if hasattr(owner, name):  # not in another version of torch
                    _originals[name] = getattr(owner, name)
                    setattr(owner, name, _named(_originals[name], collective))
        _users.add(self)

    def remove(self) -> None:
        """Put the methods back, unless another needs them. Idempotent."""
        _users.discard(self)
        if not _users:
            while _originals:
                name, method = _originals.popitem()
                setattr(sys.modules[_MODULE].FSDPParamGroup, name, method)


def _named(method: Callable[..., Any], collective: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever torch passes
        before = current()
        _here.name = f"{collective} of {getattr(self, '_module_fqn', None) or ROOT}"
        try:
            return method(self, *args, **kwargs)
        finally:
            _here.name = before

    return wrapped
