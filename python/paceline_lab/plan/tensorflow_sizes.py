"""The dtype and bytes of all-reduces in TensorFlow graphs, from the shapes of their outputs."""

from __future__ import annotations

import math
from typing import Any

from paceline._internal import tensorflow_marks as marks
from paceline.errors import InvalidArgumentError

from paceline_lab.plan.tensorflow_functions import OWN, Operation

Shape = list[int | None]


class Sizes:
    """Dtypes and sizes. The shapes of the whole graph are inferred at the first node without a shape."""

    def __init__(self, graph_def: Any, all_reduces: set[str], unknown_bytes: int | None, source: str) -> None:  # noqa: ANN401
        """`all_reduces` are names; `unknown_bytes` is used where no shape is known."""
        self._graph_def = graph_def
        self._all_reduces = all_reduces
        self._unknown_bytes = unknown_bytes
        self._source = source
        self._inferred: dict[str, list[Shape]] | None = None
        self._why_not = ""
        self.used_unknown = False

    def of(self, operation: Operation) -> tuple[str, int]:
        """Dtype and bytes of an all-reduce. Raises InvalidArgumentError if it is unknown."""
        import tensorflow as tf

        if operation.kind == OWN:
            return self._of_own(operation, tf.dtypes.as_dtype(operation.attr["dtype"]).name)
        dtype = tf.dtypes.as_dtype(self._dtype(operation))
        shapes = _written_shapes(operation.attr) or self._infer().get(operation.name, [])
        if shapes and all(shape is not None and None not in shape for shape in shapes):
            elements = sum(math.prod(size or 0 for size in shape) for shape in shapes)
            return dtype.name, elements * dtype.size
        if self._unknown_bytes is None:
            why = f" ({self._why_not})" if self._why_not else ""
            raise InvalidArgumentError(
                f"{self._source}: the all-reduce '{operation.name}' has no known shape{why}",
                remedy="--unknown-size 4MB, or as_graph_def(add_shapes=True)",
            )
        self.used_unknown = True
        return dtype.name, self._unknown_bytes

    def _of_own(self, operation: Operation, dtype: str) -> tuple[str, int]:
        if operation.attr["bytes"] != marks.UNKNOWN:
            return dtype, operation.attr["bytes"]
        if self._unknown_bytes is None:
            raise InvalidArgumentError(
                f"{self._source}: the all-reduce '{operation.name}' has no known shape", remedy="--unknown-size 4MB"
            )
        self.used_unknown = True
        return dtype, self._unknown_bytes

    def _dtype(self, operation: Operation) -> int:
        for name in ("T", "dtype", "Tout"):
            value = operation.attr.get(name)
            if value is not None:
                types = {int(value.type)} if value.WhichOneof("value") == "type" else {int(t) for t in value.list.type}
                if len(types) == 1:
                    return types.pop()
        raise InvalidArgumentError(
            f"{self._source}: the all-reduce '{operation.name}' ({operation.kind}) does not have one dtype",
            remedy="--all-reduce '*AllReduce*' (nodes with T, dtype or Tout)",
        )

    def _infer(self) -> dict[str, list[Shape]]:
        """Shapes as TensorFlow infers them, by node.

        An all-reduce's output has the shape of its input, so an Identity replaces one whose library is not loaded.
        """
        if self._inferred is None:
            import tensorflow as tf

            self._inferred = {}
            copy = tf.compat.v1.GraphDef()
            copy.CopyFrom(self._graph_def)
            for node in copy.node:
                if node.name in self._all_reduces and not hasattr(tf.raw_ops, node.op):
                    _stand_in(node)
            with tf.Graph().as_default() as graph:
                try:
                    tf.graph_util.import_graph_def(copy, name="")
                except (ValueError, TypeError) as error:
                    self._why_not = str(error).split(";")[0].split("\n")[0][:120]
                    return self._inferred
            for operation in graph.get_operations():
                self._inferred[operation.name] = [_as_list(output.shape) for output in operation.outputs]
        return self._inferred


def _stand_in(node: Any) -> None:  # noqa: ANN401
    """Turn it into an Identity."""
    data = [reference for reference in node.input if not reference.startswith("^")]
    control = [reference for reference in node.input if reference.startswith("^")]
    dtype = node.attr["T"].type
    count = node.attr["num_tensors"].i if "num_tensors" in node.attr else 0
    taken = data[: count or 1]
    others = ["^" + reference.split(":")[0] for reference in data[len(taken) :]]
    for name in list(node.attr):
        del node.attr[name]
    del node.input[:]
    node.input.extend([*taken, *control, *others])
    if count:
        node.op = "IdentityN"
        node.attr["T"].list.type.extend([dtype] * count)
    else:
        node.op = "Identity"
        node.attr["T"].type = dtype


def _written_shapes(attr: Any) -> list[Shape]:  # noqa: ANN401
    """Return the shapes that the graph was saved with."""
    if "_output_shapes" not in attr:
        return []
    import tensorflow as tf

    return [_as_list(tf.TensorShape(shape)) for shape in attr["_output_shapes"].list.shape]


def _as_list(shape: Any) -> Shape:  # noqa: ANN401
    return [None] if shape.rank is None else shape.as_list()
