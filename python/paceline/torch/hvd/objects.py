"""Exchange of Python objects between ranks, pickled; ranks accept them only from peers that know the job's secret.

cloudpickle is used if installed, as in Horovod: it also handles functions and classes that pickle cannot.
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
"""Any object that can be pickled."""


def broadcast_object(
    obj: Picklable, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Picklable:
    """Copy the root's object to all ranks.

    Args:
        obj: The object; ignored except at the root.
        root_rank: Rank whose object is copied: a rank of the job, also within a process set.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        `obj` itself at the root, a copy elsewhere.

    Raises:
        Exception: The error that pickle raises for an object that it cannot serialise.
        JobError: A rank is gone, or the ranks disagree about the operation; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: `root_rank` or this rank is not in `process_set`.

    Example:
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
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
    """Gather the objects of all ranks at all ranks.

    Args:
        obj: Any object that pickle, or cloudpickle if installed, can serialise.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        Copies of the objects in rank order. Ranks that have called `hvd.join` contribute none.

    Raises:
        Exception: The error that pickle raises for an object that it cannot serialise.
        JobError: A rank is gone, or the ranks disagree about the operation; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.

    Example:
        >>> hvd.allgather_object(("rank", hvd.rank()))
        [('rank', 0)]
    """
    members = members_of(process_set)
    own = dumped(obj)
    base = _name("allgather_object", name, process_set)
    found = members.begin("allgather", f"{base}.t", lambda full: gathered(members, full, own), waits=True)()
    return [_loaded(part) for part in found.parts() if part.numel()]


def _name(call: str, name: str | None, process_set: ProcessSet) -> str:
    """Horovod names an object after its type, which differs between ranks if only the root has the object."""
    if name is not None:
        return name
    with members_of(process_set).naming(call, None) as full:
        return full


def dumped(obj: Picklable) -> Tensor:
    """Return the pickled object. Raises pickle's errors."""
    return torch.frombuffer(bytearray(_pickler().dumps(obj)), dtype=torch.uint8)


def _loaded(text: Tensor) -> Picklable:
    return pickle.loads(ctypes.string_at(text.data_ptr(), text.numel()))


def _pickler() -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle
