"""The memory of tensors for the runtime: (address, elements) of dense tensors of one dtype, on one device.

The runtime reduces seven dtypes (`REDUCIBLE`). Operations that only move data treat all other dtypes as bytes;
`reductions` says how reductions treat them. A tensor that is not dense in row-major order is copied to a buffer and
back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from paceline.torch.backend.on_device import used_here

Region = tuple[int, int]
"""The address of the first element, and the number of elements."""

REDUCIBLE: dict[torch.dtype, str] = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
}


@dataclass(slots=True)
class Memory:
    """The tensors of one operation while it is in flight."""

    named: Sequence[Tensor]
    """The tensors that messages name."""
    value: list[Tensor] | Tensor
    """The operation's output tensors."""
    inputs: Sequence[Tensor] = ()
    """Tensors to send, as the caller gives them, where results may share memory with them."""
    keep: list[Tensor] = field(default_factory=list)
    """The owners of the memory that the runtime uses: to be kept until the operation has finished."""
    back: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Destinations and sources of the results of tensors that had to be copied."""
    _sent: list[tuple[int, int, Tensor]] = field(default_factory=list)
    """Dense inputs by address, each with the end of all up to it."""

    def __post_init__(self) -> None:
        """Sort the inputs."""
        if not self.inputs:
            return
        placed = sorted(((it.data_ptr(), it) for it in self.inputs if is_dense(it)), key=lambda pair: pair[0])
        ends = accumulate((start + it.nbytes for start, it in placed), max)
        self._sent = [(start, end, it) for (start, it), end in zip(placed, ends, strict=True)]

    def read(self, tensor: Tensor) -> Tensor:
        """Return a dense tensor with the values of `tensor`: itself, if it is dense."""
        dense = tensor if is_dense(tensor) else dense_copy(tensor)
        self.keep.append(dense)
        return dense

    def write(self, tensor: Tensor, own: int | None = None) -> Tensor:
        """Return a dense tensor to receive into; `copy_back` copies the result to `tensor`.

        What arrives must not overwrite an input that is still to be sent. `own` is the address at which this rank's own
        part may be both, as the runtime never moves it.
        """
        if is_dense(tensor) and not self._overwrites(tensor, own):
            self.keep.append(tensor)
            return tensor
        return self.instead(tensor, torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device))

    def _overwrites(self, output: Tensor, own: int | None) -> bool:
        begin = output.data_ptr()
        place = bisect_left(self._sent, begin + output.nbytes, key=lambda sent: sent[0])
        while place and self._sent[place - 1][1] > begin:
            place -= 1
            if _collide(output, self._sent[place][2], own):
                return True
        return False

    def update(self, tensor: Tensor) -> Tensor:
        """Return a dense tensor with the values of `tensor`, to be changed in place."""
        dense = self.read(tensor)
        return dense if dense is tensor else self.instead(tensor, dense)

    def instead(self, tensor: Tensor, dense: Tensor) -> Tensor:
        """Return the dense tensor, whose values `copy_back` copies to `tensor`. Raises ValueError if it cannot."""
        if overlaps_itself(tensor):
            raise ValueError(
                f"{describe('the result', None, tensor)} cannot be written to a tensor that expand() or "
                "as_strided() made so that several elements are in the same memory; give .contiguous() of it"
            )
        self.keep.append(dense)
        self.back.append((tensor, dense))
        return dense

    def copy_back(self) -> None:
        """Copy results to the tensors that were not dense, once the operation has finished."""
        back, self.back = self.back, []
        for tensor, dense in back:
            assign(tensor, dense)
            # By a thread that completes futures, for example, whose current stream is another one.
            used_here(tensor)
            used_here(dense)


def overlaps_itself(tensor: Tensor) -> bool:
    """Return whether several elements of a tensor are in the same memory."""
    steps = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    if not tensor.numel() or not steps:
        return False
    reach = 0
    for step, count in steps:
        if step <= reach:
            break
        reach += step * (count - 1)
    else:
        return False
    # Interleaved dimensions: only their offsets tell.
    offsets = torch.zeros((), dtype=torch.int64)
    for step, count in steps:
        offsets = (offsets.unsqueeze(-1) + step * torch.arange(count)).flatten()
        if len(set(offsets.tolist())) < offsets.numel():
            return True
    return False


def _collide(output: Tensor, given: Tensor, own: int | None) -> bool:
    """Return whether a dense output shares memory with a dense input, but for this rank's own part of the larger."""
    to, source = output.data_ptr(), given.data_ptr()
    if to >= source + given.nbytes or source >= to + output.nbytes:
        return False
    if given.nbytes == output.nbytes:
        return not to == source == own
    return own != (to if output.nbytes < given.nbytes else source)


def assign(tensor: Tensor, values: Tensor) -> None:
    """Copy values into a tensor: one made in inference mode only in that mode, which is a thread's own."""
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        tensor.copy_(values)


def is_dense(tensor: Tensor) -> bool:
    """Return whether the memory holds the tensor's values in row-major order, without lazy operations."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def dense_copy(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a new dense tensor with these values, of another dtype if one is given, detached from autograd."""
    with torch.no_grad():
        return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=tensor.device).copy_(tensor)


def elements(dtype: torch.dtype) -> tuple[str, int]:
    """Return the runtime's name for a dtype that is only moved, and the number of units per element."""
    name = REDUCIBLE.get(dtype)
    return (name, 1) if name is not None else ("uint8", dtype.itemsize)


def region(tensor: Tensor, scale: int = 1) -> Region:
    """Return the memory of a dense tensor, in units; `scale` is the number of units per element."""
    return tensor.data_ptr(), tensor.numel() * scale


def check(call: str, role: str, tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> None:
    """Raise if an argument is not a tensor, on another kind of device, not strided, or not of the first one's dtype.

    The message names the call, the tensor (`role` and index), its shape and dtype, and the remedy.
    """
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{call}: {role} {index} is a {type(tensor).__name__}, not a tensor")
        if not (tensor.is_cpu or tensor.is_cuda):
            raise ValueError(
                f"{call}: {describe(role, index, tensor)} is on {tensor.device}; paceline moves tensors on CPUs and "
                "CUDA devices: move it with .cpu()"
            )
        if tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise ValueError(
                f"{call}: {describe(role, index, tensor)} has the layout {layout}; paceline takes strided "
                "tensors: convert it with .to_dense() (for an embedding: sparse=False)"
            )
        if dtype is None:
            dtype = tensor.dtype
        elif tensor.dtype is not dtype:
            raise TypeError(
                f"{call}: {describe(role, index, tensor)} should be {name_of(dtype)} like the other tensors of the "
                f"call; convert it with .to(torch.{name_of(dtype)})"
            )


def describe(role: str, index: int | None, tensor: Tensor) -> str:
    """Return words for a tensor in a message, such as "input 1 (float32, shape [3, 4])"."""
    return f"{role if index is None else f'{role} {index}'} ({name_of(tensor.dtype)}, shape {list(tensor.shape)})"


def name_of(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")
