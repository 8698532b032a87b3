"""Which server has which parameters: the placements of the strategy `ps`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.async_ps.protocol import DTYPES, Part, TensorSpec
from paceline.errors import InvalidArgumentError


def parts_by_server(
    tensors: Sequence[TensorSpec], servers: int, placement: str, placed: Mapping[str, int]
) -> list[list[Part]]:
    """Return each server's parts, in the order of its memory: larger elements first, so that all are aligned.

    Args:
        tensors: All parameters of a model.
        servers: Number of servers.
        placement: `round-robin`, `tensorflow` (the same here), `even`, or a file.
        placed: The server of each tensor by name, if it is a file.

    Returns:
        By server, its parts.

    Raises:
        InvalidArgumentError: A tensor is missing in the file, or there is no such placement.
    """
    parts: list[list[Part]] = [[] for _ in range(servers)]
    for index, tensor in enumerate(tensors):
        if placement == "even":
            for server in range(servers):
                start, end = (tensor.elements * share // servers for share in (server, server + 1))
                if end > start:
                    parts[server].append(Part(index, start, end - start))
            continue
        whole = Part(index, 0, tensor.elements)
        if placed:
            if tensor.name not in placed:
                raise InvalidArgumentError(
                    f'{placement}: "{tensor.name}": is missing', setting="placement", remedy=f'"{tensor.name}": 0'
                )
            parts[placed[tensor.name]].append(whole)
        elif placement in ("round-robin", "tensorflow"):  # Parameters are numbered in the order of creation.
            parts[index % servers].append(whole)
        else:
            raise InvalidArgumentError(
                f"{placement} does not place the tensors of async-ps",
                setting="placement",
                remedy="{this=round-robin} or even",
            )
    for own in parts:
        own.sort(key=lambda part: (-DTYPES[tensors[part.tensor].dtype], part.tensor))
    return parts
