"""Operators as torch dispatches them, with the shapes, dtypes and layouts of their tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from paceline.operators.operator import Operator, Tensor, is_multi_tensor

_NOTHING = ("empty", "new_empty", "lift_fresh", "_local_scalar_dense", "_unsafe_view", "detach", "alias", "sym_", "is_")

_OF_BITSANDBYTES = "optimizer_update_"
"""Begins the names of its optimizers' kernels, of which each updates a tensor."""


def operator_of(
    func: Any,  # noqa: ANN401
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    out: Any,  # noqa: ANN401
    *,
    compiled: bool = False,
    phase: str = "forward",
    tf32: bool = False,
    writers: Mapping[int, int],
) -> Operator | None:
    """Return a call as an operator; None if it runs no kernel.

    Args:
        func: What is called.
        args: Its arguments.
        kwargs: Its arguments by name.
        out: Its result.
        compiled: Whether torch.compile may fuse it.
        phase: `forward`, `backward` or `update`.
        tf32: Whether products in FP32 may use TF32.
        writers: The places of operators by the storages that they have written last.
    """
    name = func._schema.name.partition("::")[2]
    if func.namespace != "aten" and func.namespace.startswith(("prim", "profiler")):
        return None
    outputs = tensors_in(out)
    if not outputs and not func._schema.is_mutable:
        return None
    if name.startswith(_NOTHING) or is_view(func):
        return None
    inputs = tensors_in((args, kwargs))
    if name.startswith(_OF_BITSANDBYTES):
        # A name, the gradient, the parameter, and one or two states.
        gradient, *held = (tensor_of(one) for one in args[1:5] if one is not None)
        return Operator(f"multi_tensor_{name}", (gradient, *held), tuple(held), phase=phase)
    if func.overloadpacket not in flop_registry:
        inputs = list({id(tensor): tensor for tensor in inputs}.values())  # x * x reads x once.
    if not outputs and is_multi_tensor(name):
        outputs = list(_written(func, args, kwargs))
    attributes = _attributes(func, args, kwargs)
    sources = tuple(writers.get(storage_of(tensor), -1) for tensor in inputs)
    described = tuple(map(tensor_of, inputs)), tuple(map(tensor_of, outputs))
    return Operator(name, *described, attributes, compiled, phase, sources, tf32)


def kernels_of(operator: Operator) -> Iterable[Operator]:
    """Return the operators that torch runs for one: itself, as a rule.

    `block_diag` fills the result with zeros, and copies its blocks one by one (aten/src/ATen/native/TensorShape.cpp).
    """
    if operator.name != "block_diag":
        return (operator,)
    filled = replace(operator, name="zeros", inputs=(), sources=())
    copies = (replace(operator, name="copy_", inputs=(it, it), outputs=(it,), sources=()) for it in operator.inputs)
    return (filled, *copies)


def storage_of(tensor: torch.Tensor) -> int:
    """Return a number of the memory that a tensor is a view of."""
    return int(memory_of(tensor)._cdata)


def memory_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Return the memory that a tensor is a view of; of a sparse tensor, that of its values."""
    return _values(tensor).untyped_storage()


def written_by(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """Return the tensors that a call has written."""
    return [*tensors_in(out), *_written(func, args, kwargs)]


def tensor_of(tensor: torch.Tensor) -> Tensor:
    """Return the shape, dtype and strides of a tensor; of a sparse tensor, those of its values."""
    tensor = _values(tensor)
    return Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tuple(tensor.stride()))


def _values(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout == torch.strided:
        return tensor
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()


def _attributes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, object]:  # noqa: ANN401
    attributes: dict[str, object] = {}
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
        listed = isinstance(value, list | tuple) and all(map(_is_finite, value))
        if isinstance(value, str) or _is_finite(value) or listed:
            attributes[argument.name] = value
    return attributes


def _is_finite(value: object) -> bool:
    """Return whether it is a number that JSON has: masks are filled with minus infinity."""
    return isinstance(value, bool | int | float) and math.isfinite(value)


def tensors_in(tree: object) -> list[torch.Tensor]:
    """Return the tensors of nested lists, tuples, dictionaries and what torch registers as such."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def is_view(func: Any) -> bool:  # noqa: ANN401
    """Return whether a call's results are views of its arguments."""
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:  # noqa: ANN401
    """Yield the tensors that an operator without a result writes (`_foreach_add_`, `_fused_adamw_`)."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(args[index] if index < len(args) else kwargs.get(argument.name))
