"""The process group for torch.distributed.

torch has two kinds of plug-in. A `ProcessGroup` is called by torch.distributed directly; a `Backend` is one of several
below torch's own group, one for each kind of device, and is called through torch's dispatcher. On torch 2.15 the second
costs 7 us more per call, and torch hides its handles, so that `is_completed` is always False. A group of Paceline alone
is therefore a `ProcessGroup`, and `cpu:paceline,cuda:nccl` contains a `Backend`. Inside, they are the same.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from torch._C._distributed_c10d import Backend as C10dBackend
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup, distributed_c10d

from paceline._core import Communicator
from paceline.torch.backend.collectives import PointToPoint
from paceline.torch.backend.group import Loose, explicit
from paceline.torch.backend.job import ProcessGroupJob
from paceline.torch.backend.tensor_collectives import TensorCollectives

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import GroupName
else:
    GroupName = getattr(distributed_c10d, "GroupName", str)  # torch 2.7 does not have it

NAME = "paceline"
CPU = torch.device("cpu")
CUDA = torch.device("cuda")


_PATIENCE_S = 5.0
"""How long a group that is ended waits for other ranks to begin what this one has begun, while nothing moves."""


def _backends_can_be_subclassed() -> bool:
    try:
        C10dBackend(0, 1)
    except TypeError:
        return False
    return True


BACKENDS_CAN_BE_SUBCLASSED = _backends_can_be_subclassed()
"""Whether torch allows a `Backend` in Python: not before 2.15, which excludes groups with several backends."""


class Operations(TensorCollectives, PointToPoint):
    """All operations of a group, and its end."""

    _owns_job: bool
    backend_name = NAME
    """Its name; "gloo" if that was requested (see `paceline.as_gloo`)."""

    def getBackendName(self) -> str:
        """Return "paceline": C++ asks for this name, and takes a group that says "gloo" for its own class."""
        return NAME

    def name(self) -> str:
        """Return "paceline", or "gloo" for a group that takes its place."""
        return self.backend_name

    _get_backend_name = name

    def size(self) -> int:
        """Return the number of ranks."""
        return self._comm.size

    def rank(self) -> int:
        """Return this process's rank in the group."""
        return self._comm.rank

    def shutdown(self) -> None:
        """Complete what this rank has begun; end the job, if this group started it."""
        if self._owns_job:
            self._job.close()
        elif self._job.broken is None:
            # If torch ends all groups, the job's end has more patience; a group alone cannot tell.
            self._comm.drain(_PATIENCE_S)

    def abort(self) -> None:
        """End the job at once; operations in flight fail, here and on the other ranks."""
        self._job.close(0.0)

    def _split(self, ranks: list[int], name: str) -> Communicator | None:
        """Return a communicator of these ranks of this group; None if this rank is not one of them."""
        if self._comm.rank not in ranks:
            return None
        return self._job.group([self._comm.ranks[rank] for rank in ranks], name)


class PacelineBackend(Operations, C10dBackend):
    """Paceline for the CPU tensors of a group that also has other backends."""

    def __init__(
        self,
        store: Store,
        job: ProcessGroupJob,
        comm: Communicator,
        name: str,
        timeout_s: float | None,
        *,
        owns_job: bool,
    ) -> None:
        """`store` is the group's own; `owns_job`: whether ending this backend ends the job."""
        C10dBackend.__init__(self, comm.rank, comm.size)
        self._join(job, comm, name, timeout_s, store)
        self._owns_job = owns_job

    # All of c10d's queries are answered here: on torch 2.15 one of the inherited methods calls itself endlessly.
    supports_splitting = True
    supports_coalescing = False
    supports_shrinking = False
    supports_reconfigure = False
    supports_window = False
    _supports_time_estimate = True

    @property
    def options(self) -> C10dBackend.Options:
        """Return options for a split."""
        return C10dBackend.Options(NAME)

    def split(self, store: Store, ranks: list[int], opts: Loose = None) -> PacelineBackend | None:
        """Return the backend of a part of this group."""
        name = str(getattr(opts, "group_name", "") or f"{self._name}/split")
        comm = self._split(list(ranks), name)
        if comm is None:
            return None
        return PacelineBackend(PrefixStore(f"{name}/", store), self._job, comm, name, self._timeout_s, owns_job=False)


class PacelineProcessGroup(Operations, ProcessGroup):  # type: ignore[misc]  # as above
    """A process group of Paceline alone."""

    def __init__(
        self,
        store: Store,
        job: ProcessGroupJob,
        comm: Communicator,
        name: str,
        timeout_s: float | None,
        *,
        owns_job: bool,
    ) -> None:
        """`store` is the group's own; `owns_job`: whether ending this group ends the job."""
        if BACKENDS_CAN_BE_SUBCLASSED:
            ProcessGroup.__init__(self, store, comm.rank, comm.size)
        else:
            ProcessGroup.__init__(self, comm.rank, comm.size)
        self._join(job, comm, name, timeout_s, store)
        self._owns_job = owns_job
        self._description = "undefined"
        self._bound: torch.device | None = None
        # For code that asks the group for its backend: FSDP, split_group, DeviceMesh, C++.
        self._below: PacelineBackend | None = None
        self._given_name = ""
        if BACKENDS_CAN_BE_SUBCLASSED:
            self._below = PacelineBackend(store, job, comm, name, timeout_s, owns_job=False)
            # torch starts the estimate below, and calls the collectives here.
            self._below._estimates = self._estimates
            for device in (CPU, CUDA):
                self._register_backend(device, ProcessGroup.BackendType.CUSTOM, self._below)
        self._set_default_backend(ProcessGroup.BackendType.CUSTOM)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time limit of operations that have none of their own."""
        super().set_timeout(timeout)
        if self._below is not None:
            self._below.set_timeout(timeout)

    def _set_group_name(self, name: GroupName) -> None:
        """Set the name from torch, which keeps it in a backend if there is one."""
        self._given_name = name
        if self._below is not None:
            super()._set_group_name(name)

    @property
    def group_name(self) -> GroupName:
        """The name set by torch."""
        return super().group_name if self._below is not None else GroupName(self._given_name)

    def split_group(  # noqa: PLR0917 - as c10d declares it
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: C10dBackend.Options | None = None,
        group_name: GroupName | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> PacelineProcessGroup | None:
        """Return the process group of a part of this group; None if this rank is not in it."""
        name = group_name or GroupName(f"{self._name}/split")
        comm = self._split(list(new_ranks), name)
        if comm is None:
            return None
        store = PrefixStore(f"{name}/", self._store)
        timeout_s = (explicit(timeout) if timeout is not None else None) or self._timeout_s
        part = PacelineProcessGroup(store, self._job, comm, name, timeout_s, owns_job=False)
        part._set_group_name(name)
        with contextlib.suppress(AttributeError):
            part._set_group_desc(group_desc or f"{self._description}:split")
        return part
