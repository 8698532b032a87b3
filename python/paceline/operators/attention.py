"""Fused attention: cuDNN's kernels, FlashAttention-2 and CUTLASS's."""

from __future__ import annotations

from paceline.operators.machine import Machine, constant
from paceline.operators.operator import Operator, Tensor

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


def is_attention(name: str) -> bool:
    """Return whether an operator is fused attention."""
    return name.startswith("_scaled_dot_product") or name in ("_flash_attention_forward", "_flash_attention_backward")


def flops(operator: Operator) -> int:
    """Return the FLOPs of all scores; those of a causal mask count as well."""
    query, key, value = _tensors(operator)
    scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    forward = 2 * scores * (query.shape[3] + value.shape[3])
    return int(forward * (_RECOMPUTING if _is_backward(operator) else 1))


def sizes(operator: Operator) -> tuple[int, int, int, int]:
    """Return heads of the whole batch, lengths of queries and of keys, and the size of a head."""
    query, key, _ = _tensors(operator)
    return query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3]


def _is_backward(operator: Operator) -> bool:
    return "backward" in operator.name


def _tensors(operator: Operator) -> tuple[Tensor, ...]:
    start = 1 if _is_backward(operator) else 0
    return operator.inputs[start : start + 3]


def kernels(operator: Operator, machine: Machine) -> list[float]:
    """Return the seconds of each kernel."""
    query, key, value = _tensors(operator)
    phase = "backward" if _is_backward(operator) else "forward"
    kernel = next((name for name in _KERNELS if name in operator.name), "flash")
    causal = bool(operator.attributes.get("is_causal"))
    keys = key.shape[2] / 2 if causal else key.shape[2]
    row = keys + _OVERHEAD[phase, causal]
    work = flops(operator) / key.shape[2] * row
    seconds = work / machine.attention_rate(kernel, phase, query.shape[3])
    if operator.attributes.get("version") == 1:
        seconds /= constant("attention.flash.first")
    if operator.attributes.get("dropout_p"):
        seconds *= constant("attention.dropout")
    bias = _bias(operator)
    if bias is not None:
        # A mask that is added is read for each head, from L2.
        scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
        seconds = max(seconds, scores * bias.item_bytes / (machine.feed_rate / 2))
    moved = (2 * query.bytes + key.bytes + value.bytes) * (_RECOMPUTING if phase == "backward" else 1)
    seconds = max(seconds, moved / machine.plain_rate)
    # Before and after the backward pass, kernels make the row sums and convert the gradient of the queries.
    return [seconds + constant("kernel") * (3 if phase == "backward" else 1)]


def _bias(operator: Operator) -> Tensor | None:
    query, key, _ = _tensors(operator)
    scores = (query.shape[2], key.shape[2])
    rest = operator.inputs[3:]
    return next((t for t in rest if len(t.shape) == 4 and t.shape[-2:] == scores), None)
