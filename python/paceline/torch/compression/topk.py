"""Top-k: a rank sends the values of largest magnitude and their places; what it does not send it adds to the next step.

S. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018; A. Aji, K. Heafield, "Sparse
communication for distributed gradient descent", EMNLP 2017. Ranks choose different places, so an all-gather takes the
place of the all-reduce: a rank receives what all others send.
"""

# No `from __future__ import annotations`: DDP inspects the hook's annotations.
import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from paceline.errors import InvalidArgumentError
from paceline.torch.compression.residuals import Residuals

_WORD = 4
_MOST = 2**31
"""Places have 32 bits."""


class TopKState:
    """The state of `topk_hook`."""

    def __init__(
        self, group: dist.ProcessGroup | None = None, density: float = 0.01, *, error_feedback: bool = True
    ) -> None:
        """Check the options.

        Args:
            group: The ranks that average; None: the default group.
            density: Share of each bucket's values that is sent, above 0 and up to 1.
            error_feedback: Whether what was not sent is added to the next step's gradient.

        Raises:
            InvalidArgumentError: The density is out of range.
        """
        if not 0 < density <= 1:
            raise InvalidArgumentError(f"density: must be above 0 and at most 1, not {density}", remedy="density=0.01")
        self.group, self.density, self.error_feedback = group, density, error_feedback
        self.residuals = Residuals()


def topk_hook(state: TopKState, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket's gradients, of which each rank sends the largest. A DDP communication hook.

    Sends `density` of the values of the bucket, rounded up, each with a place of 4 bytes, by one all-gather. All ranks
    get the same sum, added in the order of ranks.

    Args:
        state: Density, ranks, and what is left over.
        bucket: The gradients.

    Returns:
        The average, in the bucket's buffer.

    Raises:
        InvalidArgumentError: The bucket has more than 2^31 values.

    Example:
        >>> model.register_comm_hook(TopKState(density=0.01), topk_hook)  # doctest: +SKIP
    """
    group = state.group if state.group is not None else dist.group.WORLD
    assert group is not None, "there is a default group in a job"
    buffer, world = bucket.buffer(), group.size()
    if len(buffer) > _MOST:
        raise InvalidArgumentError(
            f"top-k: a bucket has {len(buffer)} values, more than 2^31", remedy="a smaller bucket_cap_mb"
        )
    kept = max(1, math.ceil(len(buffer) * state.density))
    if state.error_feedback:
        values = state.residuals.of(bucket)
        values.add_(buffer)
    else:
        values = buffer
    places = torch.topk(values.abs(), kept, sorted=False).indices
    chosen = values[places]
    if state.error_feedback:
        values[places] = 0
    sent = _packed(chosen, places.to(torch.int32))
    received = sent.new_empty(world * len(sent))
    work = dist.all_gather_into_tensor(received, sent, group=group, async_op=True)
    assert work is not None, "it is asynchronous"

    def add(future: Future[list[Tensor]]) -> Tensor:
        future.value()  # Raises the error of the all-gather.
        buffer.zero_()
        for one in received.view(world, -1):
            theirs, where = _unpacked(one, kept, buffer.dtype)
            buffer.index_add_(0, where.long(), theirs)
        buffer.div_(world)
        return buffer

    averaged: Future[Tensor] = work.get_future().then(add)
    return averaged


def _packed(values: Tensor, places: Tensor) -> Tensor:
    """Return both as bytes, in whole words: those of plans (crates/iteration)."""
    data = torch.cat([values.view(torch.uint8), places.view(torch.uint8)])
    return torch.nn.functional.pad(data, (0, -len(data) % _WORD))


def _unpacked(data: Tensor, kept: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    # Copies: parts of a buffer of bytes need not begin where their type can.
    size = kept * dtype.itemsize
    return data[:size].clone().view(dtype), data[size : size + 4 * kept].clone().view(torch.int32)
