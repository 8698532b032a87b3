"""Requests from rank 0, which all ranks carry out and answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paceline.job import objects
from paceline.probe.worker import Answer, RankWorker

if TYPE_CHECKING:
    from paceline.job.job import Job

_END = "end"


class Controller:
    """Rank 0's side."""

    def __init__(self, ranks: Job) -> None:
        """Control a job whose other ranks are in `obey`."""
        self._ranks, self._worker = ranks, RankWorker(ranks)
        self.sent = 0
        """Bytes transferred by all ranks."""

    def ask(self, do: str, **order: Any) -> list[Answer]:  # noqa: ANN401
        """Return the answers of all ranks. Raises JobError."""
        text = objects.share(self._ranks, json.dumps({"do": do, **order}))
        return _answers(self._ranks, self._worker, json.loads(text))

    def transfer(self, flows: list[tuple[int, int]], size: int, repeats: int) -> list[list[float]]:
        """Return the seconds of each repeat, by flow."""
        self.sent += len(flows) * size * (repeats + 1)
        taken: dict[str, list[float]] = {}
        for answer in self.ask("transfer", flows=flows, size=size, repeats=repeats):
            taken |= answer["seconds"]
        return [taken[str(number)] for number in range(len(flows))]

    def end(self, then: object = None) -> None:
        """Make the others return this result from `obey`."""
        objects.share_last(self._ranks, json.dumps({"do": _END, "then": then}))


def obey(ranks: Job) -> object:
    """Carry out requests on this rank until rank 0 ends them; return its final value. Raises JobError."""
    worker = RankWorker(ranks)
    while (order := json.loads(objects.share(ranks)))["do"] != _END:
        _answers(ranks, worker, order)
    objects.heard(ranks)
    return order["then"]


def _answers(ranks: Job, worker: RankWorker, order: dict[str, Any]) -> list[Answer]:
    replies = objects.gather(ranks, json.dumps(worker.do(order)))
    return [json.loads(text) for text in replies]
