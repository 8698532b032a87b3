"""Python objects between ranks, as pickle. It is loaded from ranks that have proven themselves by the job's secret.

cloudpickle is used where it is installed, as Horovod does: it takes functions and classes that pickle does not.
"""

from __future__ import annotations

import ctypes
import importlib
import pickle
from typing import Any

import torch
from torch import Tensor

from paceline.torch.hvd.broadcasting import broadcast_
from paceline.torch.hvd.gathering import gathered
from paceline.torch.hvd.process_sets import ProcessSet, global_process_set
from paceline.torch.hvd.world import members_of, rank

Picklable = Any
"""Whatever pickle takes."""


def broadcast_object(
    obj: Picklable, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Picklable:
    """The root's object: the same one at the root, a copy elsewhere, where `obj` is not looked at.

    `root_rank` is a rank of the job. Without a name, ranks call this in the same order. Raises what pickle raises for
    an object that it cannot take, ValueError for a root outside of the set, JobError if a rank is gone.
    """
    own = dumped(obj) if rank() == root_rank else torch.empty(0, dtype=torch.uint8)
    base = _name("broadcast_object", name, process_set)
    length = broadcast_(torch.tensor([own.numel()]), root_rank, f"{base}.sz", process_set)
    text = own if rank() == root_rank else torch.empty(int(length.item()), dtype=torch.uint8)
    broadcast_(text, root_rank, f"{base}.t", process_set)
    return obj if rank() == root_rank else _loaded(text)


def allgather_object(
    obj: Picklable, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Picklable]:
    """The objects of all ranks, in rank order; this rank's own is a copy. Without a name, in the same order on all.

    Ranks that have joined give none, and the list is shorter by them. Raises what pickle raises for an object that it
    cannot take, JobError if a rank is gone.
    """
    members = members_of(process_set)
    own = dumped(obj)
    base = _name("allgather_object", name, process_set)
    found = members.begin("allgather", f"{base}.t", lambda full: gathered(members, full, own), waits=True)()
    return [_loaded(part) for part in found.parts() if part.numel()]


def _name(call: str, name: str | None, process_set: ProcessSet) -> str:
    """Horovod names an object after its type, which is not the same on all ranks where only the root has it."""
    if name is not None:
        return name
    with members_of(process_set).naming(call, None) as full:
        return full


def dumped(obj: Picklable) -> Tensor:
    """The object as pickle, bytes. Raises what pickle raises."""
    return torch.frombuffer(bytearray(_pickler().dumps(obj)), dtype=torch.uint8)


def _loaded(text: Tensor) -> Picklable:
    return pickle.loads(ctypes.string_at(text.data_ptr(), text.numel()))


def _pickler() -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle
