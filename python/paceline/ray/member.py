"""The actor of an elastic job: a worker whose rank the driver says, world by world."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.ray.worker import Worker


@dataclass(frozen=True)
class Left:
    """An elastic job's worker has left before the end, as it was told, or with an exit code of its own."""

    code: int


class Member(Worker):
    """A worker of an elastic job."""

    def join(self, variables: Mapping[str, str], interface: str | None) -> None:
        """As `enter`; the driver says by and by which rank this is. `interface`: None for the node's address."""
        import ray

        own = ray.util.get_node_ip_address() if interface is None else self.interface(interface)
        self.enter({**variables, "PACELINE_INTERFACE": own})

    def run(self, call: tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]) -> tuple[int, Any] | Left:
        """Its rank at the end, and what the function returns."""
        from paceline.elastic.membership import membership

        try:
            result = self.attempt(*call)
        except SystemExit as leaving:
            return Left(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
        member = membership()
        place = member.place if member is not None else None
        return (place.rank if place is not None else 0), result
