"""What each value of the settings may be, whether a variable, an option or a script says it.

A check takes the value and what to call it in an error, and gives the value as `Settings` holds it.
"""

from __future__ import annotations

import ipaddress
import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._core import UserError
from paceline.files import read_small
from paceline.interfaces import check_interface
from paceline.library import find_coordinator, find_strategy

TRANSPORTS = ("auto", "shm", "tcp", "mpi", "grpc", "grpc+tcp", "grpc+mpi")
OVER_MPI = ("mpi", "grpc+mpi")
"""Transports whose tensors are messages of an MPI library."""
INSIDE = ("root", "ring")
PLACEMENTS = ("round-robin", "even")
DISTRIBUTIONS = ("round-robin", "block")
PULLS = ("layer", "step")
BAIDU_RING = "baidu-ring"
"""A preset: the ring over MPI, every tensor by itself, no coordinator that negotiates."""
MOST_SERVERS = 60_000
MOST_STREAMS = 64
LONGEST_TIMEOUT_S = 30 * 86_400.0
SHORTEST_SECRET = 16


def read_secret(path: object, source: str) -> str:
    """The secret in a file that none but its owner may read. Raises UserError."""
    if not isinstance(path, str | Path):
        raise UserError(f"{source}: {path!r:.80} is not a path")
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        if mode & 0o077:
            raise UserError(f"{source} {path}: others may read it (mode {mode:o}); run: chmod 600 {path}")
        text = read_small(Path(path)).strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise UserError(f"{source} {path}: {reason}; make one with: openssl rand -hex 32") from None
    return _secret(text, f"{source} {path}")


def _strategy(value: object, source: str) -> str:
    try:
        strategy = find_strategy(_text(value, source))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return strategy.name


def _choice(choices: tuple[str, ...]) -> Callable[[object, str], str]:
    def check(value: object, source: str) -> str:
        if value in choices:
            return str(value)
        near = _core.nearest(str(value)[:80], list(choices))
        hint = f"; did you mean {near}?" if near else f"; it is one of {', '.join(choices)}"
        raise UserError(f"{source}: '{value!s:.80}' is unknown{hint}")

    return check


def _transport(value: object, source: str) -> str:
    kind, plus, tensors = str(value)[:80].partition("+")
    if plus and kind == "grpc" and value not in TRANSPORTS:
        carriers = [name.removeprefix("grpc+") for name in TRANSPORTS if name.startswith("grpc+")]
        raise UserError(
            f"{source}: control over gRPC goes with tensors over {' or '.join(carriers)}, not over '{tensors}'; "
            f"write grpc+{carriers[0]}, or grpc for both"
        )
    return _choice(TRANSPORTS)(value, source)


def check_whole(most: int) -> Callable[[object, str], int]:
    """A check for whole numbers from 1 to `most`, in digits too. It raises UserError that names its source."""

    def check(value: object, source: str) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"{source}: '{value!s:.80}' is not a whole number; write one between 1 and {most}")
        if not 1 <= value <= most:
            raise UserError(f"{source}: {value} is not between 1 and {most}")
        return value

    return check


def _seconds(value: object, source: str) -> float:
    try:
        seconds = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds <= LONGEST_TIMEOUT_S:
        raise UserError(
            f"{source}: '{value!s:.80}' is not a number of seconds above 0 and up to {LONGEST_TIMEOUT_S:.0f}; write 30"
        )
    return seconds


def _chunk(value: object, source: str) -> str | int:
    if isinstance(value, str):
        if value in ("whole", "per-worker"):
            return value
        try:
            return _core.parse_size(value)
        except UserError as error:
            raise UserError(f"{source}: {error}, or whole, or per-worker") from None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise UserError(f"{source}: {value!s:.80} is not whole, per-worker, or a size above 0 bytes such as 512KiB")


def _interface(value: object, source: str) -> str:
    text = _text(value, source)
    check_interface(text, source)
    return text


def _secret(value: object, source: str) -> str:
    text = _text(value, source)
    if len(text) < SHORTEST_SECRET:
        raise UserError(
            f"{source}: holds {len(text)} characters, at least {SHORTEST_SECRET} are needed; "
            "make one with: openssl rand -hex 32"
        )
    return text


def check_rendezvous(value: object, source: str) -> str:
    """`host:port`. Raises UserError that names `source`."""
    text = _text(value, source)
    host, colon, port = text.rpartition(":")
    bare = host.strip("[]")
    bracketed = host.startswith("[") and host.endswith("]")
    numeric = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536
    if not colon or not bare or not numeric or (":" in bare and not bracketed) or any(map(str.isspace, host)):
        raise UserError(f"{source}: '{text[:80]}' is not host:port; write node1:29400, or [fd00::1]:29400")
    return text


def check_multicast(value: object, source: str) -> str:
    """`group:port`, an IPv4 one. Raises UserError that names `source`."""
    text = _text(value, source)
    group, _, port = text.rpartition(":")
    try:
        multicast = ipaddress.IPv4Address(group).is_multicast
    except ValueError:
        multicast = False
    if not multicast or not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536):
        raise UserError(
            f"{source}: '{text[:80]}' is not a multicast group (224.0.0.0 to 239.255.255.255) and a port; write "
            "239.77.0.0:47700, another group for each job"
        )
    return f"{group}:{int(port)}"


def _placement(value: object, source: str) -> str:
    text = _text(value, source)
    if text in PLACEMENTS:
        return text
    if not Path(text).is_file():
        near = _core.nearest(text[:80], list(PLACEMENTS))
        hint = f"did you mean {near}?" if near else f"it is {', '.join(PLACEMENTS)} or a file"
        raise UserError(f"{source}: there is no file '{text[:80]}'; {hint}")
    return str(Path(text).absolute())


def check_timeline(value: object, source: str) -> str:
    """An absolute path in a folder that exists. Raises UserError that names `source`."""
    path = Path(value) if isinstance(value, Path) else Path(_text(value, source))
    try:
        path = path.absolute()
        if not path.parent.is_dir():
            raise UserError(f"{source} {path}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise UserError(f"{source} {path}: is a folder; name a file in it")
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{source}: '{value!s:.80}' is no path: {error}") from None
    return str(path)


def _path(value: object, source: str) -> str:
    text = str(value) if isinstance(value, Path) else _text(value, source)
    if not Path(text).exists():
        raise UserError(f"{source}: there is no file or folder '{text[:200]}'; name libmpi_abi.so.1 or libmpi.so.40")
    return text


def _flag(value: object, source: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    word = str(value).lower()
    if word not in words:
        raise UserError(f"{source}: '{value!s:.80}' is neither 1 nor 0")
    return words[word]


def _text(value: object, source: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{source}: {value!r:.80} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{source}: is not UTF-8 text") from None
    return value


CHECKS: dict[str, Callable[[object, str], Any]] = {
    "strategy": _strategy,
    "transport": _transport,
    "chunk": _chunk,
    "servers": check_whole(MOST_SERVERS),
    "placement": _placement,
    "distribution": _choice(DISTRIBUTIONS),
    "pull": _choice(PULLS),
    "coordinator": lambda value, source: find_coordinator(_text(value, source), source),
    "inside": _choice(INSIDE),
    "streams": check_whole(MOST_STREAMS),
    "multicast": check_multicast,
    "tls": _flag,
    "single_copy": _flag,
    "mpi_library": _path,
    "timeout_s": _seconds,
    "start_timeout_s": _seconds,
    "interface": _interface,
    "secret": _secret,
    "rendezvous": check_rendezvous,
    "timeline": check_timeline,
    "verbose": _flag,
}
