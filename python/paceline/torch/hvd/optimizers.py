"""The distributed optimizers of this process, which outlive a world that ranks leave for the next one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.torch.hvd.distributed import Distributed

_known: list[weakref.ref[Distributed]] = []


def add(optimizer: Distributed) -> None:
    """One was made. Ranks make theirs in the same order."""
    _known[:] = [known for known in _known if known() is not None]
    _known.append(weakref.ref(optimizer))


def leave() -> None:
    """The world has ended: they let go of it, and of gradients on their way."""
    for known in _known:
        optimizer = known()
        if optimizer is not None:
            optimizer._leave()


def enter() -> None:
    """There is another one. All ranks do this in the same order, new ones by making theirs."""
    for known in _known:
        optimizer = known()
        if optimizer is not None:
            optimizer._enter()
