"""Reading graphs: files in Paceline's format, and TensorFlow's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline._core import Graph
from paceline.errors import InvalidArgumentError

from paceline_lab.plan.options import TensorflowOptions

TENSORFLOW_ENDINGS = (".pb", ".pbtxt")


def read_graph(
    path: Path, fetches: Sequence[str] | None = None, options: TensorflowOptions | None = None
) -> tuple[Graph, list[str]]:
    """Read a graph, and the names of the nodes to fetch.

    Args:
        path: A folder is a SavedModel. A file that ends in .pb or .pbtxt is a GraphDef, or a SavedModel if it is called
            saved_model. Any other file is in the format of docs/reference/coordinator-plan.md.
        fetches: Names of the nodes from which the graph is traversed backward; by default those that the file names.
        options: How a TensorFlow graph is read.

    Returns:
        The graph, and the names of the nodes to fetch.

    Raises:
        InvalidArgumentError: The file is missing or malformed, names no fetches, or an option has no effect on it.
    """
    given = options or TensorflowOptions()
    if path.is_dir() or path.suffix in TENSORFLOW_ENDINGS:
        from paceline_lab.plan.tensorflow_files import read_tensorflow

        return read_tensorflow(path, fetches, given)
    named = {
        "--all-reduce": given.all_reduce,
        "--unknown-size": given.unknown_size_bytes,
        "--signature": given.signature,
    }
    for option, value in named.items():
        if value is not None:
            raise InvalidArgumentError(
                f"{option} has no effect on {path}, which is not a TensorFlow graph", remedy=f"drop {option}"
            )
    graph = Graph.read(path)
    wanted = list(graph.fetches if fetches is None else fetches)
    if not wanted:
        raise InvalidArgumentError(
            f"{path}: names no fetches", remedy="--fetch NAME (a node from which the graph is traversed backward)"
        )
    return graph, wanted
