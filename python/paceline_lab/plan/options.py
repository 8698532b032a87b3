"""Options of reading graphs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorflowOptions:
    """How a TensorFlow graph is read."""

    all_reduce: str | None = None
    """Pattern, with * and ?, of operations or nodes that are all-reduces in addition to the known ones."""
    unknown_size_bytes: int | None = None
    """Size of an all-reduce whose shape the graph does not contain; without it, that is an error."""
    signature: str | None = None
    """Signature of a SavedModel whose outputs are fetched."""
