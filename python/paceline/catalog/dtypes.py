"""Element types of tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from paceline._internal.recording import RecordingError

DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of a gradient in a trace."""
SHORT_DTYPES: Mapping[str, str] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""Other names of them."""


def wire_dtype(elements: Iterable[tuple[str, int]]) -> str:
    """Return the dtype of most gradient elements, among those that the trace format allows. Raises RecordingError.

    Args:
        elements: Dtype and number of elements of each gradient.
    """
    counts: Counter[str] = Counter()
    for dtype, count in elements:
        counts[dtype] += count
    known = [dtype for dtype, _ in counts.most_common() if dtype in DTYPE_BYTES]
    if not known:
        raise RecordingError(
            f"the gradients are {', '.join(sorted(counts))}", remedy=f"one of {', '.join(DTYPE_BYTES)}"
        )
    return known[0]
