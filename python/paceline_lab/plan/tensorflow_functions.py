"""A GraphDef as a flat list of operations: calls of functions are replaced by their bodies.

As in TensorFlow's own inlining (core/common_runtime/inline_function_utils.h), a call leaves a node for each argument
and each result, so that an operation needs only the arguments that it reads. A branch is inlined if its predicate is a
constant, as Horovod's are (`tf.cond` on whether this process takes part).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline._internal import tensorflow_marks as marks
from paceline.errors import InvalidArgumentError

_CALLS = {"PartitionedCall": "f", "StatefulPartitionedCall": "f", "XlaLaunch": "function"}
_BRANCHES = ("If", "StatelessIf")
_DEEPEST = 200
OWN = "PacelineAllReduce"
"""The kind of nodes that stand for one tensor that Paceline reduces."""
_MOST_OPERATIONS = 1_000_000
"""The limit of a graph file. A few functions that call each other twice would exhaust any memory."""


@dataclass
class Operation:
    """A node; `attr` is that of the NodeDef, empty for nodes that stand for arguments and results."""

    name: str
    kind: str
    parents: list[str]
    attr: Any = field(default_factory=dict)


def flatten(graph_def: Any, is_all_reduce: Callable[[str, str], bool], source: str) -> list[Operation]:  # noqa: ANN401
    """Return every operation, in the graph's order; those of a called function have the call's name as prefix.

    Raises InvalidArgumentError if an all-reduce is in a branch or a loop that depends on data.
    """
    return _Flattening(graph_def, is_all_reduce, source).operations


def with_own_all_reduces(operations: Sequence[Operation]) -> tuple[list[Operation], dict[str, Operation]]:
    """Give each tensor that a node of Paceline's reduces a node of its own.

    A node that submits tensors needs all of them, and then each is reduced by itself: the next such node, which
    TensorFlow runs after it, needs no sum. Returns all operations, and those that are new by name.
    """
    sums: list[Operation] = []
    own: dict[str, Operation] = {}
    for operation in operations:
        reduced = _words(operation, marks.ALL_REDUCES)
        awaited = _words(operation, marks.AWAITS)
        at_once = set(reduced) & set(awaited)
        for place, name in enumerate(reduced):
            own[name] = Operation(
                name,
                OWN,
                list(operation.parents) if name in at_once else [operation.name],
                {
                    "dtype": operation.attr[marks.DTYPES].list.type[place],
                    "bytes": operation.attr[marks.BYTES].list.i[place],
                },
            )
        own_now = [own[name] for name in reduced]
        node = Operation(operation.name, operation.kind, [*operation.parents, *awaited], operation.attr)
        sums += [*own_now, node] if at_once else [node, *own_now]
    return sums, own


def _words(operation: Operation, name: str) -> list[str]:
    return [word.decode() for word in operation.attr[name].list.s] if name in operation.attr else []


class _Flattening:
    def __init__(self, graph_def: Any, is_all_reduce: Callable[[str, str], bool], source: str) -> None:  # noqa: ANN401
        self.operations: list[Operation] = []
        self._source = source
        self._is_all_reduce = is_all_reduce
        self._library = {function.signature.name: function for function in graph_def.library.function}
        self._with_all_reduce: dict[str, bool] = {}
        self._expand(graph_def.node, "", [], 0)

    def _expand(self, nodes: Sequence[Any], prefix: str, controls: list[str], depth: int) -> Callable[[str], str]:
        """Add the nodes; those without parents get `controls`. Returns the outer names of the inner names."""
        if depth > _DEEPEST:
            raise self._too_deep(prefix)
        by_name = {node.name: node for node in nodes}
        called = {node.name: function for node in nodes if (function := self._called(node, by_name)) is not None}

        def resolve(reference: str) -> str:
            if reference.startswith("^"):
                return prefix + reference[1:]
            name, *rest = reference.split(":")
            return f"{prefix}{name}:{rest[-1] if rest else 0}" if name in called else prefix + name

        for node in nodes:
            if len(self.operations) > _MOST_OPERATIONS:
                raise InvalidArgumentError(
                    f"{self._source}: has more than {_MOST_OPERATIONS} operations when calls are inlined",
                    remedy="the graph of one step",
                )
            function = called.get(node.name)
            if function is None:
                parents = [resolve(reference) for reference in node.input]
                self.operations.append(Operation(prefix + node.name, node.op, parents or list(controls), node.attr))
                continue
            before = [resolve(reference) for reference in node.input if reference.startswith("^")]
            data = [resolve(reference) for reference in node.input if not reference.startswith("^")]
            if node.op in _BRANCHES:
                before, data = [data[0], *before], data[1:]
            self._call(prefix + node.name, function, data, before or list(controls), depth)
        return resolve

    def _call(self, name: str, function: Any, data: list[str], before: list[str], depth: int) -> None:  # noqa: ANN401
        arguments = function.signature.input_arg
        for place, argument in enumerate(arguments):
            # A list argument takes several inputs: each is then assumed to need all.
            parents = [data[place]] if len(data) == len(arguments) else data
            self.operations.append(Operation(f"{name}/{argument.name}", "Arg", [*parents, *before]))
        resolve = self._expand(function.node_def, f"{name}/", before, depth + 1)
        results = []
        for place, result in enumerate(function.signature.output_arg):
            results.append(f"{name}:{place}")
            self.operations.append(Operation(results[-1], "Ret", [resolve(function.ret[result.name])]))
        effects = [resolve(f"^{effect}") for effect in function.control_ret.values()]
        self.operations.append(Operation(name, "Call", [*results, *effects, *before]))

    def _called(self, node: Any, siblings: dict[str, Any]) -> Any:  # noqa: ANN401
        """Return the function that a node calls; None if it is an operation."""
        if node.op in _CALLS:
            return self._library.get(node.attr[_CALLS[node.op]].func.name)
        if node.op in self._library:
            return self._library[node.op]
        functions = [name for name in _functions(node) if self._holds_all_reduce(name, ())]
        if not functions:
            return None
        predicate = siblings.get(node.input[0].split(":")[0]) if node.input else None
        if node.op not in _BRANCHES or predicate is None or predicate.op != "Const":
            raise InvalidArgumentError(
                f"{self._source}: '{node.name}' ({node.op}) has all-reduces in a branch or a loop that depends on data",
                remedy="PACELINE_COORDINATOR=negotiate (plans need the same graph in every step)",
            )
        taken = bool(_constant(predicate))
        return self._library.get(node.attr["then_branch" if taken else "else_branch"].func.name)

    def _too_deep(self, name: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"{self._source}: functions call each other more than {_DEEPEST} deep, at '{name[:80]}'",
            remedy="a graph without recursion",
        )

    def _holds_all_reduce(self, name: str, above: tuple[str, ...]) -> bool:
        if len(above) > _DEEPEST:
            raise self._too_deep(name)
        if name not in self._with_all_reduce:
            nodes = self._library[name].node_def if name in self._library and name not in above else ()
            self._with_all_reduce[name] = any(
                self._is_all_reduce(node.op, node.name)
                or marks.ALL_REDUCES in node.attr
                or any(self._holds_all_reduce(inner, (*above, name)) for inner in (*_functions(node), node.op))
                for node in nodes
            )
        return self._with_all_reduce[name]


def _functions(node: Any) -> Iterable[str]:  # noqa: ANN401
    """Return the names of the functions among a node's attributes."""
    for value in node.attr.values():
        if value.WhichOneof("value") == "func":
            yield value.func.name
        elif value.WhichOneof("value") == "list":
            yield from (function.name for function in value.list.func)


def _constant(node: Any) -> Any:  # noqa: ANN401
    import tensorflow as tf

    return tf.make_ndarray(node.attr["value"].tensor).any()
