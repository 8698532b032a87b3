"""Reads `--placement FILE`, which assigns tensors to servers: `{"tensor name": server number}`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline._core import Trace
from paceline._internal.documents import MB, read_limited
from paceline._internal.files import unread
from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError

_LARGEST_FILE = 256 * MB  # as for traces


def read_placement(path: Path, trace: Trace, bucket_size: int | None, servers: int) -> list[int]:
    """Return the server of each bucket of the trace. Raises InvalidArgumentError naming the file and the tensor."""
    table = _read(path)
    groups = trace.buckets(bucket_size)
    known = {tensor for group in groups for tensor in group}
    for tensor, server in table.items():
        if tensor not in known:
            near = nearest(tensor, sorted(known))
            hint = _name(near) if near else f"one of {', '.join(map(_name, sorted(known)[:3]))}, …"
            raise InvalidArgumentError(f"{path}: {_name(tensor)}: the trace has no such tensor", remedy=hint)
        _check(path, tensor, server, servers)
    return [_server(path, group, table) for group in groups]


def read_table(path: Path, servers: int) -> dict[str, int]:
    """Return the server of each tensor, for training. Raises InvalidArgumentError naming the file and the tensor."""
    table = _read(path)
    for tensor, server in table.items():
        _check(path, tensor, server, servers)
    return table


def _check(path: Path, tensor: str, server: object, servers: int) -> None:
    if isinstance(server, bool) or not isinstance(server, int):
        raise InvalidArgumentError(
            f"{path}: {_name(tensor)}: must be the number of a server", remedy=f"{_name(tensor)}: 0"
        )
    if not 0 <= server < servers:
        raise InvalidArgumentError(
            f"{path}: {_name(tensor)}: {_numbered(server, servers)}",
            remedy=f"{_name(tensor)}: 0, or {{servers={_needed(server)}}}",
        )


def _server(path: Path, group: list[str], table: dict[str, Any]) -> int:
    for tensor in group:
        if tensor not in table:
            raise InvalidArgumentError(f"{path}: {_name(tensor)}: is missing", remedy=f"{_name(tensor)}: 0")
        if table[tensor] != table[group[0]]:
            raise InvalidArgumentError(
                f"{path}: {_name(tensor)} and {_name(group[0])} are one bucket, on servers {table[tensor]} and "
                f"{table[group[0]]}",
                remedy="{bucket_size=none}",
            )
    server: int = table[group[0]]
    return server


def _numbered(server: int, servers: int) -> str:
    return f"there is no server {server} among {servers}, numbered from 0"


def _needed(server: int) -> int:
    """Return how many servers there must be for one of this number."""
    return max(server, 0) + 1


def _name(tensor: str) -> str:
    return json.dumps(tensor[:80], ensure_ascii=False)


def _read(path: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise InvalidArgumentError(f"{path}: {constant} is not JSON", remedy="the number of a server")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:
                raise InvalidArgumentError(f"{path}: {_name(key)}: appears twice", remedy="one of the two")
            table[key] = value
        return table

    try:
        if path.exists() and not path.is_file():
            raise InvalidArgumentError(
                f"{path}: is {'a directory' if path.is_dir() else 'a pipe or a device'}",
                remedy=f"a file (list: ls {path})",
            )
        table = json.loads(read_limited(path, _LARGEST_FILE), object_pairs_hook=once, parse_constant=refuse)
    except FileNotFoundError:
        raise InvalidArgumentError(f"{path}: no such file", remedy="{placement=round-robin}, even, or a file") from None
    except OSError as error:
        raise unread(f"{path}", error, path) from None
    except RecursionError:
        raise InvalidArgumentError(
            f"{path}: is nested too deeply", remedy='{"conv1.weight": 0, "fc.weight": 1}'
        ) from None
    except InvalidArgumentError:
        raise
    except ValueError as error:  # not JSON, not UTF-8, or a NUL in the path
        raise InvalidArgumentError(
            f"{path}: is not JSON: {error}", remedy=f"JSON (see: python -m json.tool {path})"
        ) from None
    if not isinstance(table, dict):
        raise InvalidArgumentError(f"{path}: must be an object", remedy='{"conv1.weight": 0, "fc.weight": 1}')
    return table
