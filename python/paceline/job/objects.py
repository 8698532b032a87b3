"""Text and JSON exchanged between the ranks of a job, and joining for the command-line tools that use them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import click

from paceline.catalog.names import StrategyName
from paceline.errors import InvalidArgumentError
from paceline.job.settings import Settings

if TYPE_CHECKING:
    from paceline.job.job import Job


def gather(ranks: Job, text: str) -> list[str]:
    """Return each rank's text, in rank order, at rank 0; an empty list elsewhere."""
    own, lengths = bytearray(text.encode()), array("q", [0] * ranks.size)
    ranks.all_gather(array("q", [len(own)]), lengths)
    out: Any = bytearray(sum(lengths)) if ranks.rank == 0 else None
    ranks.gather(own, out, counts=list(lengths))
    if out is None:
        return []
    return [bytes(out[end - length : end]).decode() for end, length in zip(accumulate(lengths), lengths, strict=True)]


def share(ranks: Job, text: str = "") -> str:
    """Return rank 0's text at all ranks."""
    encoded = bytearray(text.encode())
    length = array("q", [len(encoded)])
    ranks.broadcast(length)
    shared = encoded if ranks.rank == 0 else bytearray(length[0])
    ranks.broadcast(shared)
    return shared.decode()


def share_last(ranks: Job, text: str) -> None:
    """Send rank 0's last text: no rank leaves until all have received it; the others call `heard`."""
    share(ranks, text)
    heard(ranks)


def heard(ranks: Job) -> None:
    """Confirm that this rank has received the last text."""
    ranks.barrier(name="the last word")


def from_first(ranks: Job, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - what JSON holds
    """Return rank 0's result at all ranks. Its InvalidArgumentError is raised at rank 0; the others exit silently."""
    if ranks.rank == 0:
        try:
            made = make()
        except InvalidArgumentError:
            share_last(ranks, json.dumps({"wrong": True}))
            raise
        share(ranks, json.dumps({"made": made}))
        return made
    message = json.loads(share(ranks))
    if "wrong" in message:
        heard(ranks)
        raise click.exceptions.Exit(2)
    return message["made"]


@contextmanager
def reported_once(ranks: Job) -> Iterator[None]:
    """Let only rank 0 report an InvalidArgumentError that all ranks raise."""
    try:
        yield
    except InvalidArgumentError:
        if ranks.rank:
            raise click.exceptions.Exit(2) from None
        raise


def join(strategies: Sequence[StrategyName]) -> Job:
    """Join the job. If no strategy is set, use the first of these that agrees with the other settings.

    This avoids measurements at the start. Raises JobError and InvalidArgumentError, like `paceline.job.join`.
    """
    from paceline.job import job

    if Settings.from_environment().strategy is None:
        for name in strategies:
            with suppress(InvalidArgumentError):
                Settings.from_environment(None, strategy=name)
                break
        else:
            return job.join()
        return job.join(strategy=name)
    return job.join()
