"""Collectives in recordings of torch.profiler: kernels or calls, kinds and sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.interop.kineto_file import Event

_KERNEL = re.compile(r"(?:nccl|rccl|msccl)\w*?Kernel_?(?P<kind>[A-Z][A-Za-z]*)?", re.IGNORECASE)
"""`ncclDevKernel_AllReduce_Sum_bf16_RING_LL(…)` since NCCL 2.19, `ncclKernel_AllReduce_RING_LL_Sum_float(…)` before."""

_CALL = re.compile(r"(?:gloo|mpi|ucc|xccl|hccl|paceline):(?P<kind>\w+)")
"""The record function of a process group whose work runs on the CPU: `gloo:all_reduce`."""

_LIBRARY_CODE = re.compile(
    r"c10d::|torch::distributed::reducer::|torch\.distributed\.ddp\.reducer::|record_param_comms|FSDP::|nccl:"
)
"""Operators by which a wrapper hands over gradients on the rank's own thread and takes them back."""

_ITEMSIZE = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "byte": 1, "char": 1, "bool": 1, "uint8": 1, "int8": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
"""Bytes of an element by the name of its type (c10/core/ScalarType.h), in lower case and without `c10::`."""

_KINDS = {
    "allreduce": "all-reduce",
    "reducescatter": "reduce-scatter",
    "allgather": "all-gather",
    "broadcast": "broadcast",
    "alltoall": "all-to-all",
    "sendrecv": "send-receive",
    "send": "send-receive",
    "recv": "send-receive",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}


@dataclass(frozen=True, eq=False)
class Collective:
    """One collective of one rank."""

    kind: str
    event: Event
    bytes: int | None
    """Of the larger of input and output; None if not recorded."""
    dtype: str


def is_kernel(event: Event) -> bool:
    """Return whether a kernel of the GPU belongs to NCCL or a library of its kind."""
    return "Collective name" in event.args or _KERNEL.match(event.name) is not None


def is_call(event: Event) -> bool:
    """Return whether an event is the work of a collective on the CPU."""
    return _CALL.match(event.name) is not None


def is_library_code(event: Event) -> bool:
    """Return whether an event on a rank's own thread is part of synchronizing gradients, and not of the model."""
    return _LIBRARY_CODE.match(event.name) is not None


def describe(event: Event, described_by: Event | None = None) -> Collective:
    """Return what is known of a collective, from its own arguments or those of the call (`record_param_comms`)."""
    args = {**(described_by.args if described_by else {}), **event.args}
    name = str(args.get("Collective name") or "")
    if not name:
        match = _KERNEL.match(event.name) or _CALL.match(event.name)
        name = (match and match["kind"]) or ""
    elements = [n for key in ("In msg nelems", "Out msg nelems") if isinstance(n := args.get(key), int)]
    dtype = str(args.get("dtype") or "")
    size = max(elements) * itemsize(dtype) if elements and itemsize(dtype) else None
    if size is None:
        size = sum(input_bytes(event)) or None
        types = args.get("Input type")
        dtype = dtype or (str(types[0]) if isinstance(types, list) and types else "")
    return Collective(kind_of(name), event, size, dtype_name(dtype))


def kind_of(name: str) -> str:
    """Return the usual name of a collective: `all-reduce` for `_allreduce_base`, `all_reduce`, `AllReduce`."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for key, kind in _KINDS.items() if key in plain), "collective")


def itemsize(dtype: str) -> int:
    """Return the bytes of an element; 0 if the type is unknown."""
    return _ITEMSIZE.get(dtype.removeprefix("c10::").lower(), 0)


def dtype_name(dtype: str) -> str:
    """Return a trace's name for a type (`bfloat16` for `c10::BFloat16`), or the type in lower case."""
    plain = dtype.removeprefix("c10::").lower()
    return {"double": "float64", "float": "float32", "half": "float16"}.get(plain, plain)


def input_bytes(event: Event) -> list[int]:
    """Return the bytes of an operator's tensors, known if the profiler recorded shapes."""
    dims, types = event.args.get("Input Dims"), event.args.get("Input type")
    if not isinstance(dims, list) or not isinstance(types, list):
        return []
    sizes = []
    for shape, dtype in zip(dims, types, strict=False):
        if not isinstance(shape, list) or not itemsize(str(dtype)) or not all(isinstance(n, int) for n in shape):
            continue
        elements = 1
        for n in shape:
            elements *= n
        sizes.append(elements * itemsize(str(dtype)))
    return sizes
