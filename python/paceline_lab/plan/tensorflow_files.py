"""TensorFlow's files: GraphDefs, in binary and as text, and SavedModels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline._core import Graph
from paceline._internal.documents import read_limited
from paceline._internal.files import NO_SUCH_FILE, list_of, unread
from paceline.errors import InvalidArgumentError

from paceline_lab.plan.options import TensorflowOptions
from paceline_lab.plan.tensorflow_graph import require_tensorflow, to_graph

_MOST_BYTES = 2_000_000_000
"""A protocol buffers message has at most 2 GB."""


def read_tensorflow(path: Path, fetches: Sequence[str] | None, options: TensorflowOptions) -> tuple[Graph, list[str]]:
    """Return the graph in a file or in the folder of a SavedModel, and what to fetch. Raises InvalidArgumentError.

    A SavedModel is read, not loaded: its operations may belong to libraries that are not installed.
    """
    file = _file_of(path)
    require_tensorflow()
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    if file.stem != "saved_model":
        if options.signature is not None:
            raise InvalidArgumentError(
                f"--signature has no effect on {path}, which is not a SavedModel", remedy="drop --signature"
            )
        graph_def = _parsed(file, tf.compat.v1.GraphDef(), "a GraphDef")
        return to_graph(graph_def, str(path), fetches, options)
    model = _parsed(file, saved_model_pb2.SavedModel(), "a SavedModel")
    if not model.meta_graphs:
        raise InvalidArgumentError(f"{file}: has no graph", remedy="a SavedModel's folder")
    content = model.meta_graphs[0]
    if fetches is not None and options.signature is not None:
        raise InvalidArgumentError(
            "--signature and --fetch cannot be combined", remedy="drop --signature, or drop --fetch"
        )
    wanted = _outputs(content, options.signature, path) if fetches is None else fetches
    return to_graph(content.graph_def, str(path), wanted, options, name=path.resolve().name)


def _file_of(path: Path) -> Path:
    if path.is_dir():
        for name in ("saved_model.pb", "saved_model.pbtxt"):
            if (path / name).is_file():
                return path / name
        raise InvalidArgumentError(
            f"{path}: is a folder without saved_model.pb", remedy="a SavedModel's folder, or a file"
        )
    if not path.exists():
        raise InvalidArgumentError(f"{path}: {NO_SUCH_FILE}", remedy=list_of(path))
    if not path.is_file():
        raise InvalidArgumentError(f"{path}: is a pipe or a device", remedy=f"a regular file: cat {path} > graph.pb")
    if path.stat().st_size > _MOST_BYTES:
        raise InvalidArgumentError(
            f"{path}: has more than 2 GB, the maximum of a protocol buffer", remedy="a smaller graph"
        )
    return path


def _parsed(path: Path, message: Any, what: str) -> Any:  # noqa: ANN401
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    try:
        content = read_limited(path, _MOST_BYTES)
    except OSError as error:
        raise unread(f"{path}", error, path) from None
    try:
        if path.suffix == ".pbtxt":
            text_format.Parse(content.decode(), message)
        else:
            message.ParseFromString(content)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{path}: is not UTF-8 (at byte {error.start}), so it is not {what} as text",
            remedy=f"a file that ends in .pb, or {what} as text",
        ) from None
    except (text_format.ParseError, DecodeError) as error:
        raise InvalidArgumentError(f"{path}: is not {what}: {error}", remedy=f"{what}") from None
    return message


def _outputs(content: Any, signature: str | None, path: Path) -> list[str]:  # noqa: ANN401
    """Return the outputs of a signature; of the only one, if none is named."""
    # TensorFlow adds one for restoring variables.
    signatures = {
        name: definition for name, definition in content.signature_def.items() if name != "__saved_model_init_op"
    }
    known = ", ".join(sorted(signatures))
    if signature is None:
        if len(signatures) != 1:
            has = f"has the signatures {known}; name one by --signature" if known else "has no signature"
            raise InvalidArgumentError(f"{path}: {has}", remedy="--signature NAME, or --fetch NAME")
        signature = next(iter(signatures))
    if signature not in signatures:
        raise InvalidArgumentError(
            f"{path}: has no signature '{signature}'",
            remedy=f"--signature {min(signatures, default='NAME')} (it has {known or 'none'})",
        )
    return [output.name for output in signatures[signature].outputs.values()]
