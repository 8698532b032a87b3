"""Orders from rank 0, which all ranks carry out and answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paceline.job import objects
from paceline.probe.worker import Answer, Hand

if TYPE_CHECKING:
    from paceline.job.job import Job

_END = "end"


class Conductor:
    """Rank 0's side."""

    def __init__(self, ranks: Job) -> None:
        """Start while the others are in `obey`."""
        self._ranks, self._hand = ranks, Hand(ranks)
        self.sent = 0
        """Bytes of transfers, of all ranks."""

    def ask(self, do: str, **order: Any) -> list[Answer]:  # noqa: ANN401
        """Return the answers of all ranks. Raises JobError."""
        text = objects.share(self._ranks, json.dumps({"do": do, **order}))
        return _answers(self._ranks, self._hand, json.loads(text))

    def transfer(self, flows: list[tuple[int, int]], size: int, repeats: int) -> list[list[float]]:
        """Return the seconds of each repeat, by flow."""
        self.sent += len(flows) * size * (repeats + 1)
        taken: dict[str, list[float]] = {}
        for answer in self.ask("transfer", flows=flows, size=size, repeats=repeats):
            taken |= answer["seconds"]
        return [taken[str(number)] for number in range(len(flows))]

    def end(self, then: object = None) -> None:
        """Let the others leave `obey` with this result."""
        objects.share_last(self._ranks, json.dumps({"do": _END, "then": then}))


def obey(ranks: Job) -> object:
    """Carry out orders at all other ranks until rank 0 ends it; return its last word. Raises JobError."""
    hand = Hand(ranks)
    while (order := json.loads(objects.share(ranks)))["do"] != _END:
        _answers(ranks, hand, order)
    objects.heard(ranks)
    return order["then"]


def _answers(ranks: Job, hand: Hand, order: dict[str, Any]) -> list[Answer]:
    said = objects.gather(ranks, json.dumps(hand.do(order)))
    return [json.loads(text) for text in said]
