"""int8: one byte for each value, and a scale for each block of 256; two exchanges, as in an all-reduce.

Each rank adds up a part of the values: an all-to-all brings it everybody's, quantized; an all-gather distributes the
sums, quantized again. What each quantization loses is added before the next one (H. Tang et al., "1-bit Adam:
Communication efficient large-scale training with Adam's convergence speed", ICML 2021, section 4, with 8 bits).
"""

# No `from __future__ import annotations`: DDP inspects the hook's annotations.
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from paceline.catalog.compression import INT8_BLOCK as BLOCK
from paceline.torch.compression.residuals import Residuals

_LARGEST = 127


class Int8State:
    """The state of `int8_hook`."""

    def __init__(self, group: dist.ProcessGroup | None = None, *, error_feedback: bool = True) -> None:
        """Nothing is left over yet.

        Args:
            group: The ranks that average; None: the default group.
            error_feedback: Whether what quantization loses is added to the next step's values.
        """
        self.group, self.error_feedback = group, error_feedback
        self.residuals = Residuals()
        self.of_sums: dict[int, Tensor] = {}
        """Losses of the second quantization, by bucket."""


def int8_hook(state: Int8State, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket's gradients in 8 bits. A DDP communication hook.

    A value is wrong by at most half a step of each quantization: 1/254 of the largest magnitude in its block. Values
    that are not finite make their block NaN, on all ranks. As its callback starts a collective, wrap it on this
    backend: `in_order(int8_hook)`.

    Args:
        state: Ranks, and what is left over.
        bucket: The gradients.

    Returns:
        The average, in the bucket's buffer.

    Example:
        >>> model.register_comm_hook(Int8State(), in_order(int8_hook))  # doctest: +SKIP
    """
    group = state.group if state.group is not None else dist.group.WORLD
    assert group is not None, "there is a default group in a job"
    buffer, world, index = bucket.buffer(), group.size(), bucket.index()
    part = -(-len(buffer) // (world * BLOCK)) * BLOCK
    values = buffer
    if state.error_feedback:
        values = state.residuals.of(bucket)
        values.add_(buffer)
    sent = _quantized(torch.nn.functional.pad(values, (0, world * part - len(buffer))).view(world, part))
    if state.error_feedback:
        values.sub_(_restored(sent, part).view(-1)[: len(buffer)])
    received = torch.empty_like(sent)
    exchanged = dist.all_to_all_single(received.view(-1), sent.view(-1), group=group, async_op=True)
    assert exchanged is not None, "it is asynchronous"

    def gather(future: Future[list[Tensor]]) -> Tensor:
        future.value()  # Raises the error of the all-to-all.
        mean = _restored(received, part).sum(0, keepdim=True).div_(world)
        left = state.of_sums.get(index)
        if state.error_feedback and left is not None and left.shape == mean.shape:
            mean.add_(left)
        own = _quantized(mean)
        if state.error_feedback:
            lost = mean.sub_(_restored(own, part))
            if left is not None and left.shape == lost.shape:
                # In the same memory: on a device, each callback has another stream, and what one frees another may get
                # before it has been read.
                left.copy_(lost)
            else:
                state.of_sums[index] = lost
        work = dist.all_gather_into_tensor(received.view(-1), own.view(-1), group=group, async_op=True)
        assert work is not None, "it is asynchronous"
        work.get_future().wait()
        buffer.copy_(_restored(received, part).view(-1)[: len(buffer)])
        return buffer

    averaged: Future[Tensor] = exchanged.get_future().then(gather)
    return averaged


def _quantized(values: Tensor) -> Tensor:
    """Return bytes, row by row: the quantized values, then the scales of their blocks."""
    blocks = values.to(torch.float32).view(len(values), -1, BLOCK)
    scales = blocks.abs().amax(-1) / _LARGEST
    # A block of zeros has no scale; what is not finite makes the scale, and so the block, NaN or infinite.
    steps = torch.where(scales > 0, scales, torch.ones_like(scales)).unsqueeze(-1)
    whole = (blocks / steps).round_().nan_to_num_(0.0, _LARGEST, -_LARGEST).to(torch.int8)
    return torch.cat([whole.view(len(values), -1).view(torch.uint8), scales.contiguous().view(torch.uint8)], dim=1)


def _restored(data: Tensor, part: int) -> Tensor:
    """Return the values of each row, as float32."""
    whole = data[:, :part].view(torch.int8).view(len(data), -1, BLOCK)
    scales = data[:, part:].contiguous().view(torch.float32)
    # 0 times infinity is NaN: a block whose scale is not finite is one of NaN.
    return (whole.to(torch.float32) * scales.unsqueeze(-1)).view(len(data), part)
