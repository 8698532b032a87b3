"""Where graphs come from: a file of ours, or one of TensorFlow's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline._core import Graph
from paceline.errors import InvalidArgumentError

TENSORFLOW_ENDINGS = (".pb", ".pbtxt")


@dataclass(frozen=True)
class TensorflowOptions:
    """How a graph of TensorFlow's is read.

    `all_reduce`: which nodes are all-reduces besides the known operations, as a pattern of the operation or of the
    node's name, with * and ?. `unknown_size_bytes`: what an all-reduce counts whose shape the graph does not tell;
    without, it is an error. `signature`: of a SavedModel, whose outputs are fetched.
    """

    all_reduce: str | None = None
    unknown_size_bytes: int | None = None
    signature: str | None = None


def read_graph(
    path: Path, fetches: Sequence[str] | None = None, options: TensorflowOptions | None = None
) -> tuple[Graph, list[str]]:
    """The graph in a file, and the names of the nodes to fetch: those that are given, or that the file names.

    A folder is a SavedModel, a file that ends in .pb or .pbtxt a GraphDef (or, if it is called saved_model, a
    SavedModel); any other is in the format of docs/reference/coordinator-plan.md. Raises InvalidArgumentError.
    """
    given = options or TensorflowOptions()
    if path.is_dir() or path.suffix in TENSORFLOW_ENDINGS:
        from paceline.plan.tensorflow_files import read_tensorflow

        return read_tensorflow(path, fetches, given)
    named = {
        "--all-reduce": given.all_reduce,
        "--unknown-size": given.unknown_size_bytes,
        "--signature": given.signature,
    }
    for option, value in named.items():
        if value is not None:
            raise InvalidArgumentError(
                f"{option}: has no effect on {path}, which is no graph of TensorFlow's; leave it out"
            )
    graph = Graph.read(path)
    found = list(graph.fetches if fetches is None else fetches)
    if not found:
        raise InvalidArgumentError(
            f"{path}: names no fetches; give --fetch NAME, the nodes from which it is traversed backward"
        )
    return graph, found
