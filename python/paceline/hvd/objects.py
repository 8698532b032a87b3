"""Exchange of Python objects between ranks, pickled; ranks accept them only from peers that know the job's secret.

cloudpickle is used if installed, as in Horovod: it also handles functions and classes that pickle cannot.
"""

from __future__ import annotations

import importlib
import pickle
import struct
from typing import Any

from paceline.hvd.messages import broadcast_bytes, gather_bytes
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of, rank, root_in

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
        Exception: The error that pickle raises for an object that it cannot serialize.
        JobError: A rank is gone, or the ranks disagree about the operation; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.
        ValueError: `root_rank` or this rank is not in `process_set`.

    Example:
        >>> hvd.broadcast_object({"epoch": 3})
        {'epoch': 3}
    """
    own = dumped(obj) if rank() == root_rank else b""
    base = _name("broadcast_object", name, process_set)
    members = members_of(process_set)
    root = root_in(members, root_rank, base, process_set)
    length = broadcast_bytes(members, f"{base}.sz", bytearray(struct.pack("=q", len(own))), root)
    text = bytearray(own) if rank() == root_rank else bytearray(struct.unpack("=q", length)[0])
    broadcast_bytes(members, f"{base}.t", text, root)
    return obj if rank() == root_rank else pickle.loads(text)


def allgather_object(
    obj: Picklable, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Picklable]:
    """Gather the objects of all ranks at all ranks.

    Args:
        obj: Any object that pickle, or cloudpickle if installed, can serialize.
        name: Name by which the ranks match the operation, also used in error messages. Unnamed operations are
            matched by the order of the calls.
        process_set: The ranks that take part; by default all.

    Returns:
        Copies of the objects in rank order. Ranks that have called `hvd.join` contribute none.

    Raises:
        Exception: The error that pickle raises for an object that it cannot serialize.
        JobError: A rank is gone, or the ranks disagree about the operation; the message names both. Horovod scripts
            catch it as `hvd.HorovodInternalError`.

    Example:
        >>> hvd.allgather_object(("rank", hvd.rank()))
        [('rank', 0)]
    """
    members = members_of(process_set)
    own = dumped(obj)
    base = _name("allgather_object", name, process_set)
    return [pickle.loads(part) for part in gather_bytes(members, f"{base}.t", own) if part]


def _name(call: str, name: str | None, process_set: ProcessSet) -> str:
    """Horovod names an object after its type, which differs between ranks if only the root has the object."""
    if name is not None:
        return name
    with members_of(process_set).naming(call, None) as full:
        return full


def dumped(obj: Picklable) -> bytes:
    """Return the pickled object. Raises pickle's errors."""
    text: bytes = _pickler().dumps(obj)
    return text


def _pickler() -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle
