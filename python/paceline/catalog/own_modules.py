"""Adds modules to a trace, and names the layer and tensor of a module's file whose shape does not fit its bytes."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from paceline._core import Trace
from paceline._internal.documents import MB, read_limited
from paceline._internal.units import shown
from paceline.catalog.dtypes import DTYPE_BYTES
from paceline.errors import InvalidArgumentError

_LARGEST = 64 * MB


def with_modules(trace: Trace, spec: str) -> Trace:
    """Return the trace with modules, as `Trace.with_modules` does. Raises InvalidArgumentError."""
    try:
        return trace.with_modules(spec)
    except InvalidArgumentError as error:
        raise _of_file(trace, Path(spec.rpartition(":")[0])) or error from None


def _of_file(trace: Trace, path: Path) -> InvalidArgumentError | None:
    """Return the error of a tensor that is not whole elements, or not those of its shape; None if there is none."""
    try:
        layers = json.loads(read_limited(path, _LARGEST))["layers"]
        for at, layer in enumerate(layers):
            for number, tensor in enumerate(layer.get("tensors", [])):
                names = f"{shown(tensor['tensor'], repr)} of {shown(layer['layer'], repr)}"
                place = f"{path}: layers[{at}].tensors[{number}]: {names}"
                if (problem := _problem(trace.dtype, tensor)) is not None:
                    return InvalidArgumentError(f"{place}: {problem[0]}", setting="add_module", remedy=problem[1])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # The error of the trace says what is wrong with the document.
    return None


def _problem(dtype: str, tensor: dict[str, Any]) -> tuple[str, str] | None:
    """Return what is wrong with a tensor's size, and what it should be."""
    size, element, shape = tensor["bytes"], DTYPE_BYTES[dtype], tensor.get("shape")
    if shape is not None and prod(shape) * element != size:
        needed = prod(shape) * element
        if needed < 1:
            return None
        return f"{size} bytes of {dtype} are not the {prod(shape)} elements of shape {shape}", f'"bytes": {needed}'
    if size % element:
        needed = -(-size // element) * element
        return f"{size} bytes are not whole {dtype} elements of {element} bytes", f'"bytes": {needed}'
    return None
