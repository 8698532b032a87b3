"""The inputs, results and attributes that operators need so that they can be timed, as torch's schemas have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from paceline.operators.operator import ITEM_BYTES, Operator, is_attention, is_flash_attention, operands_of

_Test = Callable[[object], bool]


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_sizes(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(_is_whole(size, 1) for size in value)


def _is_mask(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(part, bool) for part in value)


_ATTRIBUTES: dict[str, tuple[_Test, str]] = {
    "normalized_shape": (_is_sizes, "a list of sizes"),
    "stride": (_is_sizes, "a list of sizes"),
    "groups": (lambda value: _is_whole(value, 1), "a whole number from 1"),
    "output_mask": (_is_mask, "a list of three truth values"),
}
"""Of each attribute that some operator needs: whether a value is one, and what it must be."""


@dataclass(frozen=True)
class _Form:
    inputs: int
    """At least."""
    outputs: int = 0
    """At least."""
    attributes: tuple[str, ...] = ()


_NORM = ("normalized_shape",)
_FORMS = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm"), _Form(2, 1)),
    "convolution": _Form(2, 1, ("groups", "stride")),
    "convolution_backward": _Form(3, 0, ("groups", "stride", "output_mask")),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _Form(1, 0, _NORM)),
    **dict.fromkeys(("native_layer_norm_backward", "_fused_rms_norm_backward"), _Form(2, 0, _NORM)),
    **dict.fromkeys(
        (
            *("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "native_batch_norm_backward"),
            *("cudnn_batch_norm_backward", "_softmax", "_log_softmax", "_safe_softmax", "_softmax_backward_data"),
            *("_log_softmax_backward_data", "copy_", "slice_backward", "select_backward"),
        ),
        _Form(1),
    ),
    "max_pool2d_with_indices_backward": _Form(1, 1),
    "native_dropout": _Form(0, 1),
}


def problem_of(operator: Operator) -> str | None:
    """Return why an operator cannot be timed; None if it can be."""
    name = operator.name
    unknown = next((t.dtype for t in (*operator.inputs, *operator.outputs) if t.dtype not in ITEM_BYTES), None)
    if unknown is not None:
        return f"unknown dtype {unknown!r:.40}"
    form = _Form(4 if "backward" in name else 3) if is_attention(name) else _FORMS.get(name, _Form(0))
    for word, tensors, least in (("input", operator.inputs, form.inputs), ("output", operator.outputs, form.outputs)):
        if len(tensors) < least:
            return f"{name} needs {word}s: at least {least}, not {len(tensors)}"
    for attribute in form.attributes:
        is_valid, kind = _ATTRIBUTES[attribute]
        if not is_valid(operator.attributes.get(attribute)):
            return f'"{attribute}" of {name} must be {kind}'
    return _shape_problem(operator)


def _shape_problem(operator: Operator) -> str | None:
    name = operator.name
    if is_attention(name):
        tensors, ranks = operands_of(operator), range(3 if is_flash_attention(name) else 4, 5)
    elif name.startswith("convolution"):
        tensors = (*operator.inputs[: _FORMS[name].inputs], *operator.outputs[:1])
        ranks = range(3, 6)
    elif name in ("mm", "addmm", "_scaled_mm"):
        tensors, ranks = (*operands_of(operator), operator.outputs[0]), range(2, 3)
    elif name in ("bmm", "baddbmm"):
        tensors, ranks = (*operands_of(operator), operator.outputs[0]), range(3, 4)
    elif name in ("_grouped_mm", "_scaled_grouped_mm"):
        tensors, ranks = (*operands_of(operator), operator.outputs[0]), range(2, 4)
    else:
        return None
    wrong = next((tensor for tensor in tensors if len(tensor.shape) not in ranks), None)
    if wrong is not None:
        span = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        return f"{name} takes tensors of {span} dimensions, not of {len(wrong.shape)}"
    if name in ("_grouped_mm", "_scaled_grouped_mm") and not any(len(t.shape) == 3 for t in tensors):
        return f"{name} has no tensor of 3 dimensions, which says the number of groups"
    if name == "convolution" and math.prod(tensors[1].shape) == 0:
        return f"{name} has a weight without elements"
    return None
