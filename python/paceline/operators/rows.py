"""Operators in JSON: those that differ, each once, over a table of the tensors that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.operators.operator import Operator, Tensor, contiguous


def row_of(operator: Operator, place: int, tensors: dict[Tensor, int], *, sourced: bool) -> dict[str, Any]:
    """Return an operator as a row; what is usual is left out.

    Args:
        operator: The operator.
        place: In the list of all.
        tensors: The table, by tensor; what it lacks is added.
        sourced: Whether sources are kept, as distances: they are alike in blocks that are alike.
    """

    def indices(those: Sequence[Tensor]) -> list[int]:
        return [tensors.setdefault(one, len(tensors)) for one in those]

    row: dict[str, Any] = {"name": operator.name}
    if operator.inputs:
        row["inputs"] = indices(operator.inputs)
    if operator.outputs:
        row["outputs"] = indices(operator.outputs)
    if sourced and operator.sources:
        row["sources"] = [place - source if 0 <= source < place else 0 for source in operator.sources]
    if operator.attributes:
        row["attributes"] = dict(operator.attributes)
    if operator.phase != "forward":
        row["phase"] = operator.phase
    if operator.compiled:
        row["compiled"] = True
    if operator.tf32:
        row["tf32"] = True
    return row


def operator_of(row: Mapping[str, Any], tensors: Sequence[Tensor]) -> Operator:
    """Return the operator of a row, whose sources are distances."""
    return Operator(
        row["name"],
        tuple(tensors[index] for index in row.get("inputs", ())),
        tuple(tensors[index] for index in row.get("outputs", ())),
        row.get("attributes", {}),
        row.get("compiled", False),
        row.get("phase", "forward"),
        tuple(row.get("sources", ())),
        row.get("tf32", False),
    )


def described(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor's entry in the table."""
    entry = {"dtype": tensor.dtype, "shape": list(tensor.shape)}
    plain = contiguous(tensor.shape, tensor.dtype).strides == tensor.strides
    return entry if plain else entry | {"strides": list(tensor.strides)}


def tensor_of(entry: Mapping[str, Any]) -> Tensor:
    """Return the tensor of an entry."""
    shape, dtype = tuple(entry["shape"]), entry["dtype"]
    strides = entry.get("strides")
    return contiguous(shape, dtype) if strides is None else Tensor(shape, dtype, tuple(strides))
