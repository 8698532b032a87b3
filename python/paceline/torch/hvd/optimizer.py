"""The distributed optimizer: all-reduces gradients in place while the backward pass computes them."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from paceline._internal.nearest import nearest
from paceline.async_ps.rules import rule_of
from paceline.errors import InvalidArgumentError
from paceline.hvd.operators import Operator, operator_of
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import current
from paceline.torch.hvd.asynchronous import Asynchronous, Exchange
from paceline.torch.hvd.compression import Compression, Compressor
from paceline.torch.hvd.distributed import Distributed
from paceline.torch.hvd.gradients import Gradients
from paceline.torch.hvd.grouping import check_passes, checked_groups, checked_names

Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Mixin = TypeVar("Mixin", Distributed, Asynchronous)


def DistributedOptimizer(
    optimizer: Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int | None = Operator.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Optimizer:
    """Wrap an optimizer so that it steps with the gradients of all ranks.

    Use the returned optimizer instead of `optimizer`; it extends its class by `synchronize()`,
    `skip_synchronize()` and `set_backward_passes_per_step(passes)`. Under `--strategy async-ps`, servers run it, and it
    has `staleness()`, `record_order()`, `applied_order()` and `push_in_step()` as well.

    Args:
        optimizer: The optimizer to wrap; it must not be used any more.
        named_parameters: `model.named_parameters()`, for names in messages: all parameters of the optimizer, or none.
        compression: Compression of dense gradients: `hvd.Compression.none`, `.fp16` or `.bf16`.
        backward_passes_per_step: Number of backward passes whose gradients are added up before they are reduced.
        op: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        gradient_predivide_factor: Splits the average: gradients are divided by it before the sum; after the sum they
            are multiplied by it and divided by the number of ranks.
        num_groups: Deprecated name of `groups` for a number.
        groups: Gradients that are reduced together or not at all: a number of groups, or lists of parameters.
        sparse_as_dense: Whether sparse gradients are reduced as dense ones.
        process_set: The ranks that take part; others step by themselves.

    Returns:
        The distributed optimizer.

    Raises:
        NotImplementedError: `op` is Adasum.
        TypeError: `optimizer` is not an optimizer.
        ValueError: Parameters lack a name or share one, arguments contradict each other, or the optimizer is already
            distributed.
        InvalidArgumentError: A placement file names no server for a parameter.
        NotInitializedError: `hvd.init()` has not been called.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
    """
    operator = operator_of(op)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; give an optimizer, such as torch.optim.SGD(model.parameters())"
        )
    if isinstance(optimizer, Distributed | Asynchronous):
        raise ValueError("the optimizer is already distributed; wrap it once")
    if gradient_predivide_factor != 1.0 and operator is not Operator.Average:
        raise ValueError("gradient_predivide_factor splits an average; leave it out, or use op=hvd.Average")
    if not gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor is {gradient_predivide_factor}; give a number above 0")
    if num_groups != 0:
        warnings.warn("num_groups is deprecated: give groups", DeprecationWarning, stacklevel=2)
        if groups is not None:
            raise ValueError("groups and num_groups mean the same; leave out num_groups")
        groups = num_groups
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise ValueError(
            f"compression is {compression!r}; give hvd.Compression.none, .fp16 or .bf16, or a class with compress and "
            "decompress"
        )
    check_passes(backward_passes_per_step)
    names = checked_names(optimizer, named_parameters)
    if current().job.settings.is_asynchronous:
        for argument, given in (
            ("compression", compression is not Compression.none),
            ("op", operator is not Operator.Average),
            ("gradient_predivide_factor", gradient_predivide_factor != 1.0),
            ("groups", groups is not None),
            ("process_set", process_set is not global_process_set),
        ):
            if given:
                raise InvalidArgumentError(
                    f"async-ps: {argument} has no effect, as servers apply each gradient by itself",
                    remedy=f"drop {argument}, or {{strategy=ps}}",
                )
        exchange = Exchange(names, backward_passes_per_step, sparse_as_dense=sparse_as_dense)
        alone = _mixed(Asynchronous, optimizer)
        alone._begin(exchange, rule_of(optimizer))
        return cast(Optimizer, alone)
    checked_groups(groups)
    _check_placed(names.values())
    factors = 1.0 / gradient_predivide_factor, gradient_predivide_factor
    gradients = Gradients(
        names,
        compression=compression,
        op=operator,
        factors=factors,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        passes=backward_passes_per_step,
    )
    wrapped = _mixed(Distributed, optimizer)
    wrapped._begin(gradients, groups)
    return cast(Optimizer, wrapped)


def _mixed(mixin: type[Mixin], optimizer: torch.optim.Optimizer) -> Mixin:
    """Return an optimizer of a class that has `mixin` before the optimizer's own, with everything that it had."""
    made: type[Mixin] = type(optimizer.__class__.__name__, (mixin, optimizer.__class__), {})
    wrapped = object.__new__(made)
    # A scheduler created earlier refers to the old optimizer, and has put a method of it into its attributes.
    wrapped.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})
    return wrapped


def _check_placed(names: Iterable[str]) -> None:
    """Check that a placement file, if there is one, places all tensors. Raises InvalidArgumentError."""
    world = current()
    missing = sorted(set(names) - set(world.placed)) if world.placed else []
    if missing:
        near = nearest(missing[0], sorted(world.placed))
        hint = f"; is it '{near}' there?" if near else ""
        raise InvalidArgumentError(
            f'{world.job.settings.placement}: "{missing[0]}": is missing', remedy=hint or f'"{missing[0]}": 0'
        )
