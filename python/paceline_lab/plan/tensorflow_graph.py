"""Bucket plans of TensorFlow graphs: which nodes are all-reduces, and what depends on what."""

from __future__ import annotations

import fnmatch
import json
import sys
from collections.abc import Sequence
from typing import Any

from paceline._core import Graph
from paceline._internal.extras import install
from paceline.errors import InvalidArgumentError

from paceline_lab.plan.options import TensorflowOptions
from paceline_lab.plan.result import DEFAULT_BUCKET_SIZE, Plan, plan_graph

KNOWN_ALL_REDUCES = (
    "HorovodAllreduce*",
    "HorovodGroupedAllreduce*",
    "CollectiveReduce*",
    "NcclAllReduce",
)
"""Patterns of operations: Horovod's, and those of tf.distribute. Ours have attributes instead."""


def plan_tensorflow(
    function: Any,  # noqa: ANN401
    fetches: Sequence[str] | None = None,
    *,
    example: Sequence[Any] = (),
    bucket_size: str | int | None = DEFAULT_BUCKET_SIZE,
    ids: str = "depth",
    all_reduce: str | None = None,
    unknown_size_bytes: int | None = None,
) -> Plan:
    """Plan the all-reduces of a TensorFlow graph.

    Args:
        function: A `tf.function`, a concrete function, a `tf.Graph` or a `GraphDef`.
        fetches: Names of nodes or tensors, such as `"train_op"` or `"gradients:0"`. By default the outputs of a
            function and its side effects.
        example: Arguments with which to trace a `tf.function` that has not been traced yet.
        bucket_size: Maximum size of a fused bucket in bytes, or text such as `"64MB"`. `None` puts every tensor into
            its own bucket.
        ids: `"depth"` or `"listed"`, as for `paceline_lab.plan.plan_graph`.
        all_reduce: Pattern, with * and ?, of operations or nodes that are all-reduces in addition to the known ones.
        unknown_size_bytes: Size of an all-reduce whose shape the graph does not contain; without it, that is an error.

    Returns:
        The plan.

    Raises:
        InvalidArgumentError: TensorFlow is not installed, `function` is none of the above, or `fetches` has an unknown
            name.

    Example:
        >>> step = tf.function(train_step)  # doctest: +SKIP
        >>> paceline.plan_tensorflow(step, example=[images, labels], bucket_size="64MB").names()  # doctest: +SKIP
    """
    require_tensorflow()
    options = TensorflowOptions(all_reduce=all_reduce, unknown_size_bytes=unknown_size_bytes)
    graph_def, name, own = _graph_def_of(function, example)
    graph, wanted = to_graph(graph_def, name, own if fetches is None else fetches, options)
    plan = plan_graph(graph, wanted, bucket_size, ids=ids)
    if not plan.tensors and "paceline.tensorflow" in sys.modules:
        _refuse_alone(name)
    return plan


def _refuse_alone(name: str) -> None:
    """Raise InvalidArgumentError if Paceline's tapes and optimizers put no all-reduces into this process's graphs."""
    from paceline.hvd import world

    if not world.is_initialized() or world.current().size == 1:
        raise InvalidArgumentError(
            f"{name}: has no all-reduces, as this process trains alone",
            remedy="paceline run -np 2 -- python SCRIPT (hvd.init(), then plan_tensorflow on any rank)",
        )


def require_tensorflow() -> None:
    """Import TensorFlow quietly; raise InvalidArgumentError if it is not installed."""
    import os

    if "tensorflow" not in sys.modules:
        # Nothing is computed here, so TensorFlow's notes about the processor would only be noise.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    try:
        import tensorflow  # noqa: F401
    except ImportError as error:
        raise InvalidArgumentError(
            f"TensorFlow graphs need TensorFlow ({error})",
            remedy=f"{install('tensorflow')}, or the graph as JSON (docs/reference/coordinator-plan.md)",
        ) from None


def to_graph(
    graph_def: Any,  # noqa: ANN401
    source: str,
    fetches: Sequence[str] | None,
    options: TensorflowOptions,
    name: str | None = None,
) -> tuple[Graph, list[str]]:
    """Return a GraphDef as a Paceline graph, and the names of the nodes to fetch. Raises InvalidArgumentError."""
    from paceline_lab.plan.tensorflow_functions import flatten, with_own_all_reduces
    from paceline_lab.plan.tensorflow_sizes import Sizes

    if not graph_def.node:
        raise InvalidArgumentError(f"{source}: has no nodes", remedy="a GraphDef")
    patterns = (*KNOWN_ALL_REDUCES, *([options.all_reduce] if options.all_reduce else []))

    def is_all_reduce(kind: str, node: str) -> bool:
        return any(fnmatch.fnmatchcase(kind, pattern) for pattern in patterns) or bool(
            options.all_reduce and fnmatch.fnmatchcase(node, options.all_reduce)
        )

    operations = flatten(graph_def, is_all_reduce, source)
    _check_pattern(options.all_reduce, [(operation.kind, operation.name) for operation in operations], source)
    operations, own = with_own_all_reduces(operations)
    known = {operation.name for operation in operations}
    wanted = _node_names(fetches, known)
    if not wanted:
        needed = {parent for operation in operations for parent in operation.parents}
        last = [operation.name for operation in operations if operation.name not in needed]
        raise InvalidArgumentError(
            f"{source}: needs the nodes from which it is traversed backward",
            remedy=f"--fetch {last[0] if last else 'NAME'}"
            + (f" (nothing needs {', '.join(last[:5])}{' …' if len(last) > 5 else ''})" if last else ""),
        )
    all_reduces = {
        operation.name
        for operation in operations
        if operation.name in own or is_all_reduce(operation.kind, operation.name)
    }
    sizes = Sizes(graph_def, all_reduces, options.unknown_size_bytes, source)
    needed_only = _needed(operations, wanted)
    nodes: list[dict[str, Any]] = []
    for operation in operations:
        node: dict[str, Any] = {"name": operation.name}
        # All-reduces that nothing needs move nothing, so their size is not needed.
        if operation.name in all_reduces and operation.name in needed_only:
            dtype, size_bytes = sizes.of(operation)
            node["all_reduce"] = {"dtype": dtype, "bytes": size_bytes}
        nodes.append(node)
    if options.unknown_size_bytes is not None and not sizes.used_unknown:
        raise InvalidArgumentError(
            f"--unknown-size has no effect on {source}, all of whose all-reduces have shapes",
            remedy="drop --unknown-size",
        )
    document: dict[str, Any] = {
        "format": "paceline-graph",
        "version": 1,
        "provenance": f"a TensorFlow graph with {len(graph_def.node)} nodes",
        "nodes": nodes,
        "edges": [[parent, operation.name] for operation in operations for parent in operation.parents],
        "fetches": [fetch for fetch in wanted if fetch in known],
    }
    if name is not None:
        document["name"] = name
    return Graph.from_json(json.dumps(document).encode(), source), wanted


def _check_pattern(pattern: str | None, nodes: list[tuple[str, str]], source: str) -> None:
    if pattern and not any(fnmatch.fnmatchcase(word, pattern) for node in nodes for word in node):
        raise InvalidArgumentError(
            f"--all-reduce: no operation and no node of {source} matches '{pattern}'",
            remedy="--all-reduce '*AllReduce*' (* matches any characters)",
        )


def _node_names(fetches: Sequence[str] | None, known: set[str]) -> list[str]:
    """Return the names of nodes, also from tensors and control inputs. A call's results are separate nodes."""
    names = [fetch.removeprefix("^") for fetch in fetches or ()]
    return [name if name in known else name.split(":")[0] for name in names]


def _needed(operations: Sequence[Any], fetches: Sequence[str]) -> set[str]:
    parents = {operation.name: operation.parents for operation in operations}
    needed: set[str] = set()
    ahead = list(fetches)
    while ahead:
        name = ahead.pop()
        if name not in needed:
            needed.add(name)
            ahead.extend(parents.get(name, ()))
    return needed


def _graph_def_of(function: Any, example: Sequence[Any]) -> tuple[Any, str, list[str] | None]:  # noqa: ANN401
    """Return the GraphDef, its name, and what is fetched by default."""
    import tensorflow as tf

    if isinstance(function, tf.compat.v1.GraphDef):
        return function, "GraphDef", None
    if isinstance(function, tf.Graph):
        return function.as_graph_def(add_shapes=True), "tf.Graph", None
    if not hasattr(function, "graph"):
        if not hasattr(function, "get_concrete_function"):
            raise InvalidArgumentError(
                f"plan_tensorflow: {type(function).__name__} is no graph",
                remedy="a tf.function, a concrete function, a tf.Graph or a GraphDef",
            )
        try:
            function = function.get_concrete_function(*example)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"plan_tensorflow: this tf.function needs arguments to be traced: {error}", remedy="example=(…)"
            ) from None
    graph = function.graph
    done = [*(output.op.name for output in graph.outputs), *(operation.name for operation in graph.control_outputs)]
    return graph.as_graph_def(add_shapes=True), graph.name, done
