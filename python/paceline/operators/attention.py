"""Fused attention: cuDNN's kernels, FlashAttention-2 and CUTLASS's."""

from __future__ import annotations

from typing import NamedTuple

from paceline.operators.machine import Machine, constant
from paceline.operators.operator import Operator, Tensor, is_flash_attention, operands_of

_KERNELS = ("flash", "efficient", "cudnn")
_OVERHEAD = {
    ("forward", True): 350,
    ("forward", False): 200,
    ("backward", True): 500,
    ("backward", False): 370,
}
"""Keys that a row of queries takes longer than its own, by phase and whether later keys are masked: cuDNN 9.19 on an
H200 (NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training)."""
_RECOMPUTING = 2.5
"""The backward pass has 5 matrix products to the forward pass's 2 (T. Dao, FlashAttention-2, 2023)."""


class Sizes(NamedTuple):
    """Of attention."""

    heads: int
    """Of the whole batch."""
    queries: int
    """Of a sequence."""
    keys: int
    """Of a sequence."""
    size: int
    """Of a head's queries and keys."""


def flops(operator: Operator) -> int:
    """Return the FLOPs of all scores; those of a causal mask count as well."""
    heads, queries, keys, size = sizes(operator)
    value = operands_of(operator)[2]
    forward = 2 * heads * queries * keys * (size + value.shape[-1])
    return int(forward * (_RECOMPUTING if "backward" in operator.name else 1))


def sizes(operator: Operator) -> Sizes:
    """Return the sizes of attention.

    `_scaled_dot_product_*` takes batch x heads x length x size; `_flash_attention_*` takes batch x length x heads x
    size, or tokens x heads x size of sequences in a row, which count as if each had the greatest length.
    """
    query, key, _ = operands_of(operator)
    if not is_flash_attention(operator.name):
        batch, heads, queries, size = query.shape
        return Sizes(batch * heads, queries, key.shape[2], size)
    *batches, queries, heads, size = query.shape
    keys = key.shape[-3]
    if batches:
        return Sizes(batches[0] * heads, queries, keys, size)
    most_queries, most_keys = (_length(operator, name, most) for name, most in (("max_q", queries), ("max_k", keys)))
    return Sizes(-(-queries // most_queries) * heads, most_queries, most_keys, size)


def _length(operator: Operator, name: str, most: int) -> int:
    """Return the greatest length of sequences in a row."""
    value = operator.attributes.get(name)
    return min(value, most) if isinstance(value, int) and value > 0 else most


def is_causal(operator: Operator) -> bool:
    """Return whether later keys are masked."""
    return any(bool(operator.attributes.get(name)) for name in ("is_causal", "causal"))


def kernels(operator: Operator, machine: Machine) -> list[float]:
    """Return the seconds of each kernel."""
    query, key, value = operands_of(operator)
    heads, queries, length, size = sizes(operator)
    phase = "backward" if "backward" in operator.name else "forward"
    kernel = next((name for name in _KERNELS if name in operator.name), "flash")
    causal = is_causal(operator)
    keys = length / 2 if causal else length
    row = keys + _OVERHEAD[phase, causal]
    work = flops(operator) / length * row
    seconds = work / machine.attention_rate(kernel, phase, size, query.dtype)
    if operator.attributes.get("version") == 1:
        seconds /= constant("attention.flash.first")
    if operator.attributes.get("dropout_p"):
        seconds *= constant("attention.dropout")
    bias = _bias(operator, (queries, length))
    if bias is not None:
        # A mask that is added is read for each head, from L2.
        scores = heads * queries * length
        seconds = max(seconds, scores * bias.item_bytes / (machine.feed_rate / 2))
    moved = (2 * query.bytes + key.bytes + value.bytes) * (_RECOMPUTING if phase == "backward" else 1)
    seconds = max(seconds, moved / machine.plain_rate)
    # Before and after the backward pass, kernels make the row sums and convert the gradient of the queries.
    return [seconds + constant("kernel") * (3 if phase == "backward" else 1)]


def _bias(operator: Operator, scores: tuple[int, int]) -> Tensor | None:
    rest = operator.inputs[3:]
    return next((t for t in rest if len(t.shape) == 4 and t.shape[-2:] == scores), None)
