"""Element types of tensors."""

from __future__ import annotations

from collections.abc import Mapping

DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element of a gradient in a trace."""
SHORT_DTYPES: Mapping[str, str] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
"""Other names of them."""
