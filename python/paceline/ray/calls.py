"""Calls of several actors at once: their results, or the first failure that is not a consequence of another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import InvalidArgumentError, JobError
from paceline.job.failure import follows
from paceline.ray.worker import SIGNATURE, Place

_LOOK_S = 1.0
"""Duration of a single wait for Ray, short enough to handle Ctrl-C."""


@dataclass
class Calls:
    """Calls of actors, by the names of the actors: `rank 0`, …, `server 0`, and so on."""

    ray: Any
    refs: Mapping[str, Any]
    """References to the calls' results."""
    watched: Mapping[str, Any] = field(default_factory=dict)
    """References to calls that run until they are stopped; one that ends by itself has failed."""
    places: Mapping[str, Place] = field(default_factory=dict)
    earlier: Sequence[Mapping[str, Any]] = ()
    """References to calls whose results these calls need, stage by stage."""

    def results(
        self, *, grace_s: float, timeout_s: float | None = None, waited_s: float = 0.0, doing: str = ""
    ) -> dict[str, Any]:
        """Return the results of all calls, by name.

        After a failure the others have `grace_s` to answer; then the first failure not caused by another is raised:
        InvalidArgumentError for invalid input, otherwise JobError; both name the rank. After `timeout_s`, JobError
        names those that did not answer; `doing` says what they were doing. The limit began `waited_s` ago.
        """
        pending = {ref: name for name, ref in {**self.watched, **self.refs}.items()}
        values: dict[str, Any] = {}
        failures: dict[str, BaseException] = {}
        answered: set[str] = set()
        end = None if timeout_s is None else time.monotonic() + max(0.0, timeout_s - waited_s)
        while not answered.issuperset(self.refs):
            now = time.monotonic()
            if end is not None and now >= end:
                break
            wait_s = _LOOK_S if end is None else min(_LOOK_S, end - now)
            for ref in self.ray.wait(list(pending), num_returns=1, timeout=wait_s)[0]:
                name = pending.pop(ref)
                try:
                    value = self.ray.get(ref)
                    if name in self.watched:
                        raise JobError(f"{name} has ended", remedy="start() again")
                    values[name] = value
                    answered.add(name)
                except Exception as error:  # A user's function may raise anything.
                    failures.setdefault(self._culprit(error) or name, error)
                    answered.add(name)
                    end = min(end or time.monotonic() + grace_s, time.monotonic() + grace_s)
        self.silent = [name for name in self.refs if name not in answered]
        self.lost = [name for name, error in failures.items() if is_death(self.ray, error)]
        if failures:
            raise self._chosen(failures)
        if self.silent:
            guilty = self._guilty() or self.silent
            names = ", ".join(f"{name}{self._where(name)}" for name in guilty)
            raise JobError(
                f"{names} did not answer within {timeout_s:g} s{doing and ': '}{doing}", remedy="a longer timeout_s"
            )
        return {name: values[name] for name in self.refs}

    def _guilty(self) -> list[str]:
        """Return the silent actors whose earlier calls the others wait for."""
        for stage in self.earlier:
            refs = {ref: name for name, ref in stage.items()}
            waiting = self.ray.wait(list(refs), num_returns=len(refs), timeout=0)[1]
            if waiting:
                return [refs[ref] for ref in waiting]
        return []

    def _culprit(self, error: BaseException) -> str | None:
        """Return the actor that failed: it may be one whose result the called actor needed."""
        actor = getattr(error, SIGNATURE, None) or getattr(error, "actor_id", None)
        return next((name for name, place in self.places.items() if place.actor == actor), None)

    def _chosen(self, failures: Mapping[str, BaseException]) -> BaseException:
        """Choose the first cause: the death of a process before reports of it, a cause before its consequences."""

        def weight(item: tuple[str, BaseException]) -> tuple[bool, bool]:
            return (not is_death(self.ray, item[1]), follows(cause_of(item[1])))

        name, error = min(failures.items(), key=weight)
        if is_death(self.ray, error):
            return JobError(f"{name}{self._where(name)} died: {death_reason(error)}")
        cause = cause_of(error)
        if isinstance(cause, InvalidArgumentError):
            chosen: BaseException = InvalidArgumentError(f"{name}: {cause}", remedy=cause.remedy)
        elif isinstance(cause, JobError):
            chosen = JobError(f"{name}: {cause}", remedy=cause.remedy)
        else:
            chosen = JobError(f"{name}{self._where(name)} failed: {in_words(cause)}")
        chosen.__cause__ = error
        return chosen

    def _where(self, name: str) -> str:
        place = self.places.get(name)
        return f" ({place})" if place is not None else ""


def is_death(ray: Any, error: BaseException) -> bool:  # noqa: ANN401
    """Return whether this is Ray's exception for an actor whose process or node has died."""
    exceptions = ray.exceptions
    return isinstance(error, exceptions.RayActorError | exceptions.WorkerCrashedError | exceptions.NodeDiedError)


def cause_of(error: BaseException) -> BaseException:
    """Return the original exception, which Ray wraps once in each actor that needed the result."""
    while isinstance(inner := getattr(error, "cause", None), BaseException):
        error = inner
    return error


def in_words(cause: BaseException) -> str:
    """Return the exception in one line."""
    first_line = next(iter(str(cause).splitlines()), "")
    return f"{type(cause).__name__}: {first_line}" if first_line else type(cause).__name__


def death_reason(error: BaseException) -> str:
    """Return how an actor died, from Ray's description."""
    text = " ".join(str(error).split())
    for sign, reason in _SIGNS:
        if sign in text:
            return reason
    return text[:300]


_SIGNS = (
    ("node has died", "its node (raylet) died"),
    ("node is dead", "its node (raylet) died"),
    ("node was terminated", "its node (raylet) was terminated"),
    ("unavailable", "its node (raylet) died, or cannot be reached any more"),
    ("ray.kill", "ray.kill was called on it"),
    ("out of memory", "its node has no memory left"),
    ("placement group", "its placement group was removed"),
    ("SYSTEM_ERROR", "its process was killed, or crashed"),
)
"""Meanings of Ray's messages, in search order."""
