"""Whether others wait to come in, or ranks are to leave: all ranks hear of it at the same commit."""

from __future__ import annotations

import torch

from paceline.elastic.membership import membership
from paceline.torch.hvd.all_reduce import allreduce_
from paceline.torch.hvd.operators import Operator
from paceline.torch.hvd.world import size


class HostsUpdatedInterrupt(RuntimeError):
    """There is to be another world; `run` catches it. Nothing is lost: all ranks are at the same point."""

    def __init__(self, skip_sync: bool = False) -> None:
        """`skip_sync` is Horovod's: whether no rank comes in. Ranks are synchronized in any case."""
        super().__init__("ranks are to come or to leave; hvd.elastic.run goes on with them")
        self.skip_sync = skip_sync


def check() -> None:
    """All ranks call this at the same point, and wait for each other. Raises HostsUpdatedInterrupt on all, or on none.

    That they wait is what keeps their commits at most one apart.
    """
    member = membership()
    updated = member is not None and member.updated()
    if size() > 1:
        flag = torch.tensor([int(updated)], dtype=torch.int32)
        updated = bool(allreduce_(flag, name="hvd.elastic.updated", op=Operator.Max).item())
    if updated:
        raise HostsUpdatedInterrupt
