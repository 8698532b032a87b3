"""Code shared by all operations of a process group: starting, naming, time limits and coalescing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypedDict, Unpack

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from paceline._core import Communicator
from paceline.torch.backend import on_device
from paceline.torch.backend.blocks import current
from paceline.torch.backend.buffers import Memory, Region, name_of
from paceline.torch.backend.completion import Lineage
from paceline.torch.backend.estimate import Estimated, Estimates
from paceline.torch.backend.job import ProcessGroupJob
from paceline.torch.backend.work import CoalescedWork, Work

Loose = Any
"""Arguments that c10d passes in several forms: options by position or by name; in the convenience forms of
`ProcessGroup`, an operator, a root or a timeout instead; and a tensor, or a list of one tensor."""


class Call(TypedDict, total=False):
    """The arguments of `Communicator.submit`."""

    inputs: Sequence[Region]
    outputs: Sequence[Region]
    dtype: str
    op: str
    root: int
    tag: int
    counts: Sequence[int] | None
    out_counts: Sequence[int] | None
    prescale: float
    postscale: float
    strategy: str | None
    label: str
    timeout_s: float | None
    keep: object
    notify: int | None
    stream: int | None


class Group:
    """The ranks of one process group. The mix-ins of `collectives` and `tensor_collectives` add the operations."""

    _job: ProcessGroupJob
    _comm: Communicator
    _name: str
    _timeout_s: float | None
    _extra_s: float
    _gathered: list[Work] | None
    _estimates: Estimates
    _plain: bool
    """Whether operations have no time limit other than the job's."""

    _store: Store
    _meetings: int
    """How often this rank has come to a monitored barrier."""

    def _join(self, job: ProcessGroupJob, comm: Communicator, name: str, timeout_s: float | None, store: Store) -> None:
        self._job, self._comm, self._name, self._store, self._meetings = job, comm, name, store, 0
        self._timeout_s, self._extra_s = timeout_s if timeout_s != job.timeout_s else None, 0.0
        self._plain = self._timeout_s is None
        self._gathered = None
        self._estimates = Estimates()

    def _begin(self, call: str, memory: Memory, options: Loose, **what: Unpack[Call]) -> Work:
        """Submit an operation; `options` may be c10d's, or a timeout, or None."""
        job = self._job
        job.check()
        label = self._label(call, memory.named)
        # A caller without a handle waits at once, and drives the operation while it waits.
        if self._estimates.running:
            return self._estimated(call, memory, label)
        background = getattr(options, "asyncOp", True) or self._gathered is not None
        completion, number, lineage = job.completion, None, None
        place = on_device.place_of(memory.keep)
        if place is not None:
            # The result comes to the device even if nobody waits.
            completion.start()
            # Once there are such operations, others, too: they may be on the same memory.
            if background or place.device in job.beside:
                place = on_device.beside(place, job.beside)
        if completion.wanted:
            number, lineage = completion.begin(self._name)
        token = number if background else None
        what |= {"label": label, "timeout_s": self._limit_s(options), "keep": memory.keep, "notify": token}
        what["stream"] = place.stream if place is not None else None
        operation = self._comm.submit(call, background=background, **what)
        lineage = lineage or Lineage(self._name, number)
        work = Work(completion, operation, label, memory, token=token, lineage=lineage, place=place)
        if self._gathered is not None:
            self._gathered.append(work)
        return work

    def _estimated(self, call: str, memory: Memory, label: str) -> Work:
        """Add the operation to the estimate that is running, without running it."""
        self._estimates.add(call, memory.named, self._comm.ranks)
        memory.back.clear()
        completion = self._job.completion
        work = Work(completion, Estimated(), label, memory, token=None, lineage=Lineage(self._name, None))
        if self._gathered is not None:
            self._gathered.append(work)
        return work

    # Of torch's `dist._time_estimator`, which torch 2.15 has.

    def _start_time_estimate(self) -> None:
        self._estimates.start()

    def _end_time_estimate(self) -> float:
        return self._estimates.end()

    def _label(self, call: str, tensors: Sequence[Tensor]) -> str:
        what = f"{call} {name_of(tensors[0].dtype)}{list(tensors[0].shape)}" if tensors else call
        if len(tensors) > 1:
            what += f" and {len(tensors) - 1} more"
        if (block := current()) is not None:
            what = f"{block}: {what}"
        return what if self._comm.size == self._job.size else f"{what} in group {self._name}"

    def _limit_s(self, options: Loose) -> float | None:
        """Return the time limit of this operation; None for the job's. An unset timeout of c10d is negative."""
        given = options if isinstance(options, timedelta) else getattr(options, "timeout", None)
        seconds = given.total_seconds() if given is not None else 0.0
        limit = seconds if seconds > 0 else self._timeout_s
        if self._extra_s:
            limit, self._extra_s = (limit or self._job.timeout_s) + self._extra_s, 0.0
        return limit

    # Coalescing: operations are started one by one and waited for as one.

    def start_coalescing(self, device: object = None) -> None:
        """Start to collect operations; `device` is ignored, because there is only one."""
        self._gathered = []

    def end_coalescing(self, device: object = None) -> CoalescedWork:
        """Return one handle for all operations that were started since `start_coalescing`."""
        gathered, self._gathered = self._gathered, None
        return CoalescedWork(list(gathered or []))

    # The time limit.

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of operations that have none of their own."""
        self._timeout_s, self._plain = timeout.total_seconds(), False

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.set_timeout(timeout)

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        self._extra_s += timeout.total_seconds()


def explicit(timeout: timedelta) -> float | None:
    """Return a chosen timeout in seconds; None for torch's default, which torch passes if the caller gives none.

    Therefore an explicit `timedelta(seconds=1800)` counts as not given: `--timeout`, PACELINE_TIMEOUT or the same
    default of Paceline's hold.
    """
    # torch keeps it in single precision, and returns 1800.999877 for 1801.
    seconds = float(f"{timeout.total_seconds():.6g}")
    return None if seconds == dist.constants.default_pg_timeout.total_seconds() else seconds


def one(call: str, tensors: Loose, role: str = "tensor") -> Tensor:
    """Return the only tensor of a list: a process has one device here."""
    if isinstance(tensors, Tensor):
        return tensors
    if len(tensors) != 1:
        raise ValueError(f"{call}: {len(tensors)} {role}s; it takes one (use the coalesced form for several)")
    tensor: Tensor = tensors[0]
    return tensor


def parts(call: str, lists: Loose, size: int, role: str) -> list[Tensor]:
    """Return the tensors of a list with one per rank."""
    tensors = lists[0] if len(lists) == 1 and not isinstance(lists[0], Tensor) else lists
    if len(tensors) != size:
        raise ValueError(f"{call}: {len(tensors)} {role}s for {size} ranks; give one for every rank of the group")
    return list(tensors)
