"""Batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import members_of, ranks_of
from paceline.torch.hvd.gathering import gathered
from paceline.torch.hvd.reducing import ReduceArgs

Context = Any
"""The values that torch keeps between forward and backward."""


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over the joint batch of all ranks.

    Batches of the ranks may differ in size. In evaluation it is plain batch normalization. It works on any device;
    Horovod's needs GPUs. Means and variances are merged as by Chan, Golub and LeVeque (1979), because differences of
    sums of squares lose digits.

    Example:
        >>> hvd.SyncBatchNorm(3)(torch.zeros(2, 3, 4)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(  # noqa: PLR0917 - Horovod's
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Take the arguments of `torch.nn.BatchNorm2d`, and a process set.

        Args:
            num_features: Number of channels C of inputs of shape (N, C, ...).
            eps: Added to the variance.
            momentum: Weight of a new batch in the running statistics; None for the plain average over all batches.
            affine: Whether to learn a scale and a shift.
            track_running_stats: Whether to keep running statistics for evaluation.
            process_set: The ranks whose batches are normalized together.
        """
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, (N, C, ...), got {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalized input.

        Args:
            input: Tensor of shape (N, C, ...), at least 2 dimensions.

        Returns:
            A tensor of the same shape and dtype.

        Raises:
            ValueError: The input has fewer than 2 dimensions, or all ranks together have a single value per channel.
            JobError: A rank is gone.
        """
        self._check_input_dim(input)
        tracks = self.training and self.track_running_stats
        if (not self.training and self.track_running_stats) or len(ranks_of(self.process_set)) == 1:
            # Evaluation, or a single rank: like torch's own, which also counts batches.
            return super().forward(input)
        factor = 0.0 if self.momentum is None else self.momentum
        if tracks and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        running = (self.running_mean, self.running_var) if tracks else (None, None)
        result = _Normalize.apply(input, self.weight, self.bias, *running, self.eps, factor, self.process_set)
        return cast(Tensor, result)


class _Normalize(torch.autograd.Function):
    """Forward gathers counts, means and variances; backward sums the terms of the statistics' gradient."""

    @staticmethod
    def forward(  # noqa: PLR0917 - torch passes them on so
        ctx: Context,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        eps: float,
        factor: float,
        process_set: ProcessSet,
    ) -> Tensor:
        count, mean, var = _joined(input, process_set)
        if count <= 1:
            raise ValueError(f"expected more than 1 value per channel when training, got {count} on all ranks together")
        if running_mean is not None and running_var is not None:
            unbiased = var * (count / (count - 1))
            running_mean.mul_(1 - factor).add_(mean.to(running_mean.dtype), alpha=factor)
            running_var.mul_(1 - factor).add_(unbiased.to(running_var.dtype), alpha=factor)
        at = _wide(input.dtype)
        mean, invstd = mean.to(at), (var + eps).rsqrt().to(at)
        ctx.save_for_backward(input, weight, mean, invstd)
        ctx.count, ctx.process_set = count, process_set
        scale = invstd if weight is None else invstd * weight
        result = (input - _channels(mean, input)) * _channels(scale, input)
        if bias is not None:
            result = result + _channels(bias, input)
        return result.to(input.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input, weight, mean, invstd = ctx.saved_tensors
        grad, centered = grads[0].to(mean.dtype), input - _channels(mean, input)
        dims = _others(input)
        sums = torch.stack([grad.sum(dims), (grad * centered).sum(dims)])
        own = sums.clone()
        gradient: Tensor | None = None
        if ctx.needs_input_grad[0]:
            terms = ReduceArgs(Operator.Sum, 1.0, 1.0, ctx.process_set)
            total = terms.begin(sums, "sync_batch_norm.gradient", in_place=True, waits=True)() / ctx.count
            slope = _channels(total[1] * invstd * invstd, input)
            gradient = grad - _channels(total[0], input) - centered * slope
            gradient = (gradient * _channels(invstd if weight is None else invstd * weight, input)).to(input.dtype)
        by_weight = (own[1] * invstd).to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        by_bias = own[0].to(weight.dtype) if weight is not None and ctx.needs_input_grad[2] else None
        return gradient, by_weight, by_bias, None, None, None, None, None


def _joined(input: Tensor, process_set: ProcessSet) -> tuple[int, Tensor, Tensor]:
    """Return the number of values per channel over all ranks, their mean and their biased variance, in float64.

    Means and variances are merged as in Chan, Golub and LeVeque (1979, "Updating formulae and a pairwise algorithm for
    computing sample variances"), because differences of sums of squares lose digits.
    """
    count = input.numel() // input.shape[1]
    own = torch.zeros(1, 1 + 2 * input.shape[1], dtype=torch.float64, device=input.device)
    if count:
        var, mean = torch.var_mean(input.to(_wide(input.dtype)), _others(input), correction=0)
        own[0] = torch.cat([torch.tensor([float(count)], dtype=torch.float64, device=input.device), mean, var])
    members = members_of(process_set)
    name = "sync_batch_norm.statistics"
    joined = members.begin("allgather", name, lambda full: gathered(members, full, own), waits=True)().tensor
    counts, (means, variances) = joined[:, :1], joined[:, 1:].chunk(2, dim=1)
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    return int(total), mean, (counts * (variances + (means - mean).square())).sum(0) / total


def _others(input: Tensor) -> list[int]:
    return [0, *range(2, input.dim())]


def _channels(values: Tensor, input: Tensor) -> Tensor:
    """Return one value per channel, in a shape that broadcasts to the input's."""
    return values.view(1, -1, *[1] * (input.dim() - 2))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which statistics are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32
