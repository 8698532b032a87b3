"""The settings of a job: the environment's PACELINE_* variables, and over them what the script says.

| variable | field | value | default |
| --- | --- | --- | --- |
| PACELINE_STRATEGY | strategy | as `paceline strategies` lists them | chosen by size |
| PACELINE_TRANSPORT | transport | auto, shm, tcp, mpi, grpc, grpc+tcp, grpc+mpi | auto |
| PACELINE_MPI_LIBRARY | mpi_library | an MPI library, or its folder (docs/how-to/mpi.md) | the launcher's |
| PACELINE_CHUNK | chunk | whole, per-worker or a size (512KiB) | the strategy's |
| PACELINE_SERVERS | servers | parameter servers | 1 |
| PACELINE_PLACEMENT | placement | round-robin, even, a file: which server adds up what | round-robin |
| PACELINE_DISTRIBUTION | distribution | round-robin, block: in which order servers send | round-robin |
| PACELINE_PULL | pull | layer, step: when a DistributedOptimizer waits for servers | step |
| PACELINE_COORDINATOR | coordinator | how ranks agree on an order (docs/explanation/coordinator.md) | graph |
| PACELINE_INSIDE | inside | root, ring: inside a node (hierarchical) | ring |
| PACELINE_STREAMS | streams | connections between two ranks | 1 |
| PACELINE_MULTICAST | multicast | group and port (239.77.0.0:47700) by which the network copies multicasts | unicasts |
| PACELINE_TLS | tls | 1, 0: whether gRPC is encrypted | 1, unless ranks listen on loopback |
| PACELINE_SINGLE_COPY | single_copy | 0: ranks of a host never read each other's memory | 1 |
| PACELINE_TIMEOUT | timeout_s | seconds without progress until a job fails | 30 |
| PACELINE_START_TIMEOUT | start_timeout_s | seconds for which ranks wait for each other at the start | 60 |
| PACELINE_INTERFACE | interface | interface (eth0), network (10.0.0.0/24) or address of this machine | 127.0.0.1 |
| PACELINE_SECRET | secret | text that all ranks share and nobody else knows | none |
| PACELINE_SECRET_FILE | secret | a file that holds it, readable by its owner alone | none |
| PACELINE_RENDEZVOUS | rendezvous | host:port at which rank 0 listens | none |
| PACELINE_TIMELINE | timeline | file: record what every rank does (docs/reference/timeline.md) | none |
| PACELINE_VERBOSE | verbose | 1: say what was chosen | 0 |

For tests, PACELINE_RUN_DISTURBANCE has receivers of multicasts lose, repeat and reorder datagrams: JSON with rates from
0 to 1 and a seed, `{"lose": 0.2, "repeat": 0.1, "reorder": 0.1, "seed": 7}`.

An empty variable is as good as none. A PACELINE_ variable that nothing reads is an error, for it is most likely a
misspelt one.
"""

from __future__ import annotations

import ipaddress
import json
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from paceline import _core
from paceline._internal.files import read_small
from paceline._internal.netif import address_of, check_interface
from paceline.catalog.strategies import GRAPH, check_knobs, find_coordinator, find_strategy
from paceline.errors import InvalidArgumentError

VARIABLES = {
    "PACELINE_STRATEGY": "strategy",
    "PACELINE_TRANSPORT": "transport",
    "PACELINE_MPI_LIBRARY": "mpi_library",
    "PACELINE_CHUNK": "chunk",
    "PACELINE_SERVERS": "servers",
    "PACELINE_PLACEMENT": "placement",
    "PACELINE_DISTRIBUTION": "distribution",
    "PACELINE_PULL": "pull",
    "PACELINE_COORDINATOR": "coordinator",
    "PACELINE_INSIDE": "inside",
    "PACELINE_STREAMS": "streams",
    "PACELINE_MULTICAST": "multicast",
    "PACELINE_TLS": "tls",
    "PACELINE_SINGLE_COPY": "single_copy",
    "PACELINE_TIMEOUT": "timeout_s",
    "PACELINE_START_TIMEOUT": "start_timeout_s",
    "PACELINE_INTERFACE": "interface",
    "PACELINE_SECRET": "secret",
    "PACELINE_SECRET_FILE": "secret_file",
    "PACELINE_RENDEZVOUS": "rendezvous",
    "PACELINE_TIMELINE": "timeline",
    "PACELINE_VERBOSE": "verbose",
}
# Variables that other parts read: those of `paceline run`, `record` and `emulate`.
OTHER_PREFIXES = ("PACELINE_RUN_", "PACELINE_RECORD_")
OTHER_VARIABLES = frozenset({"PACELINE_EMULATED", "PACELINE_AS_GLOO"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the native module is told. Made by `from_environment`; every field has been checked."""

    strategy: str | None = None
    transport: str = "auto"
    mpi_library: str | None = None
    chunk: str | int | None = None
    servers: int = 1
    placement: str = "round-robin"
    distribution: str = "round-robin"
    pull: str = "step"
    coordinator: str | None = None
    inside: str = "ring"
    streams: int = 1
    multicast: str | None = None
    tls: bool | None = None
    single_copy: bool = True
    timeout_s: float = 30.0
    start_timeout_s: float = 60.0
    interface: str = "127.0.0.1"
    secret: str | None = field(default=None, repr=False)
    rendezvous: str | None = None
    timeline: str | None = None
    server_processes: int = 0
    """Parameter servers that `paceline run` has started; their ranks follow those that train."""
    switch_process: bool = False
    """Behind them it has started a process that adds up in the switch's place."""
    unfused: bool = False
    """Every tensor is reduced by itself: `baidu-ring`."""
    disturbance: dict[str, float] | None = None
    """Of multicasts, for tests."""
    verbose: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Read the variables (of this process, if none are given); a field that the script names wins.

        An override of None leaves what the environment says. Raises InvalidArgumentError, which names variable, value
        and remedy.
        """
        environ = os.environ if environ is None else environ
        _refuse_unknown(environ)
        values, sources = _gather(environ, overrides, [entry.name for entry in fields(cls)])
        unfused = values.get("strategy") == BAIDU_RING
        if unfused:
            _preset(values, sources)
        checked = {name: CHECKS[name](value, sources[name]) for name, value in values.items()}
        servers = _server_processes(environ)
        settings = cls(
            **checked,
            unfused=unfused,
            server_processes=servers,
            switch_process=servers > 0 and environ.get("PACELINE_RUN_SWITCH") == "1",
            disturbance=_disturbance(environ),
        )
        _check_launcher(settings, environ)
        _check_together(settings, sources)
        return settings

    def placed(self) -> dict[str, int]:
        """The server of each tensor, by name, if a file says.

        Raises InvalidArgumentError naming the file and the tensor.
        """
        from paceline.catalog.placement import read_table

        return {} if self.placement in PLACEMENTS else read_table(Path(self.placement), self.servers)

    def refuse_coordinator(self) -> None:
        """For jobs whose operations come in one order on all ranks.

        Raises InvalidArgumentError if a coordinator is named.
        """
        if self.coordinator is not None:
            raise InvalidArgumentError(
                f"coordinator {self.coordinator}: has no effect: this job's operations come in one order on all "
                "ranks; it is for paceline.torch.hvd. Leave --coordinator (PACELINE_COORDINATOR) out"
            )

    @property
    def helpers(self) -> int:
        """Processes of the job that do not train."""
        return self.server_processes + self.switch_process

    def has_switch(self) -> bool:
        """Whether a switch adds up."""
        return self.strategy is not None and "aggregation" in find_strategy(self.strategy).knobs

    def has_servers(self) -> bool:
        """Whether parameter servers add up."""
        return self.strategy is not None and "servers" in find_strategy(self.strategy).knobs

    def to_json(self) -> str:
        """For the native module.

        The interface becomes this machine's address; raises InvalidArgumentError if it has none.
        """
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in _ELSEWHERE}
        if self.server_processes:
            values |= {"dedicated": True, "servers": self.server_processes}
        if self.switch_process:
            values |= {"switch": True}
        if self.disturbance is not None:
            values["disturbance"] = self.disturbance
        if self.placement not in PLACEMENTS:
            values["placement"] = "round-robin"
        values["interface"] = address_of(self.interface, "PACELINE_INTERFACE")
        return json.dumps(values)


def _gather(
    environ: Mapping[str, str], overrides: Mapping[str, object], known: Sequence[str]
) -> tuple[dict[str, object], dict[str, str]]:
    """By field what was given for it, unchecked, and what an error calls it."""
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for variable, name in VARIABLES.items():
        if environ.get(variable, ""):
            values[name], sources[name] = environ[variable], variable
    if "secret" in values and "secret_file" in values and not _said(overrides, "secret"):
        raise InvalidArgumentError("PACELINE_SECRET and PACELINE_SECRET_FILE are both set; unset one of them")
    known = [*known, "secret_file"]
    for name, value in overrides.items():
        if name not in known:
            near = _core.nearest(name, known)
            raise InvalidArgumentError(
                f"there is no setting '{name[:80]}'" + (f"; did you mean {near}?" if near else "")
            )
        if value is not None:
            values[name], sources[name] = value, name
            if name in ("secret", "secret_file"):
                values.pop({"secret": "secret_file", "secret_file": "secret"}[name], None)
    if "secret_file" in values:
        values["secret"] = read_secret(values.pop("secret_file"), sources.pop("secret_file"))
        sources["secret"] = "the secret"
    return values, sources


def _check_launcher(settings: Settings, environ: Mapping[str, str]) -> None:
    """Refuse MPI that a script chose under `paceline run`, which had to know of it before it started the ranks."""
    launched = environ.get("PACELINE_RUN_ID") and (
        environ.get("PACELINE_RENDEZVOUS") or environ.get("PACELINE_RUN_ELASTIC")
    )
    if launched and settings.transport in OVER_MPI:
        raise InvalidArgumentError(
            f"transport {settings.transport}: MPI's own mpirun starts its ranks, and paceline run has started this "
            "one: mpirun -n N python … (docs/how-to/mpi.md); or take another transport"
        )


def _check_together(settings: Settings, sources: Mapping[str, str]) -> None:
    """Refuse a setting that was given (is in `sources`) and contradicts another, or has no effect."""
    for name, transports in _WITHOUT_EFFECT.items():
        if name in sources and settings.transport in transports:
            raise InvalidArgumentError(
                f"{sources[name]}: has no effect with transport {settings.transport}; leave one of them out"
            )
    if settings.strategy is not None:
        _check_library(settings, sources["strategy"])
        for name in ("servers", "chunk", "inside", "placement", "distribution", "pull", "multicast"):
            if name in sources:
                _check_knob(settings.strategy, name, sources[name])
    if settings.coordinator == GRAPH and settings.has_servers():
        raise InvalidArgumentError(
            f"{sources['coordinator']}: {GRAPH} plans all-reduces among ranks, and {settings.strategy} has "
            "servers; take negotiate, or leave one of them out"
        )
    if settings.strategy is None and "pull" in sources:
        raise InvalidArgumentError(
            f"{sources['pull']}: is for parameter servers; name a strategy that has them, such as ps"
        )


def _server_processes(environ: Mapping[str, str]) -> int:
    text = environ.get("PACELINE_RUN_SERVERS", "") if "PACELINE_RUN_ID" in environ else ""
    return check_whole(MOST_SERVERS)(text, "PACELINE_RUN_SERVERS") if text else 0


def _disturbance(environ: Mapping[str, str]) -> dict[str, float] | None:
    name = "PACELINE_RUN_DISTURBANCE"
    text = environ.get(name, "")
    try:
        value = json.loads(text) if text else None
    except ValueError:
        value = text
    if value is None or (isinstance(value, dict) and all(isinstance(rate, int | float) for rate in value.values())):
        return value
    raise InvalidArgumentError(f'{name}: \'{text[:80]}\' is not JSON such as {{"lose": 0.2, "seed": 7}}; unset it')


def _said(overrides: Mapping[str, object], *names: str) -> bool:
    return any(overrides.get(name) is not None for name in (*names, "secret_file"))


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    for variable in sorted(environ):
        if not variable.startswith("PACELINE_") or variable in VARIABLES or variable in OTHER_VARIABLES:
            continue
        if variable.startswith(OTHER_PREFIXES):
            continue
        near = _core.nearest(variable, list(VARIABLES))
        remedy = f"did you mean {near}?" if near else f"unset it (known are {', '.join(VARIABLES)})"
        raise InvalidArgumentError(f"{variable[:80]}: nothing reads this environment variable; {remedy}")


def _check_knob(strategy: str, name: str, source: str) -> None:
    try:
        check_knobs([find_strategy(strategy)], [name])
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}{str(error).removeprefix(name)}") from None


def _preset(values: dict[str, object], sources: dict[str, str]) -> None:
    """What `baidu-ring` stands for. Raises InvalidArgumentError for a setting that contradicts it."""
    source = sources["strategy"]
    if values.setdefault("transport", "mpi") not in OVER_MPI:
        raise InvalidArgumentError(
            f"{source}: {BAIDU_RING} is the ring over MPI; take ring, or leave {sources['transport']} out"
        )
    sources.setdefault("transport", source)
    if "chunk" in values:
        raise InvalidArgumentError(
            f"{sources['chunk']}: {BAIDU_RING} has a piece per worker; take ring, or leave it out"
        )
    if values.get("coordinator") not in (None, GRAPH):
        raise InvalidArgumentError(
            f"{sources['coordinator']}: {BAIDU_RING} does not negotiate; take ring, or leave the coordinator out"
        )


def _check_library(settings: Settings, source: str) -> None:
    if find_strategy(str(settings.strategy)).is_a_librarys and settings.transport not in OVER_MPI:
        raise InvalidArgumentError(
            f"{source}: {settings.strategy} is a library's all-reduce, and shared memory and TCP have none underneath; "
            "choose ring or tree (simulate forecasts it), or transport mpi under mpirun"
        )


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
    """The secret in a file that none but its owner may read. Raises InvalidArgumentError."""
    if not isinstance(path, str | Path):
        raise InvalidArgumentError(f"{source}: {path!r:.80} is not a path")
    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
        if mode & 0o077:
            raise InvalidArgumentError(f"{source} {path}: others may read it (mode {mode:o}); run: chmod 600 {path}")
        text = read_small(Path(path)).strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise InvalidArgumentError(f"{source} {path}: {reason}; make one with: openssl rand -hex 32") from None
    return _secret(text, f"{source} {path}")


def _strategy(value: object, source: str) -> str:
    try:
        strategy = find_strategy(_text(value, source))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{source}: {error}") from None
    return strategy.name


def _choice(choices: tuple[str, ...]) -> Callable[[object, str], str]:
    def check(value: object, source: str) -> str:
        if value in choices:
            return str(value)
        near = _core.nearest(str(value)[:80], list(choices))
        hint = f"; did you mean {near}?" if near else f"; it is one of {', '.join(choices)}"
        raise InvalidArgumentError(f"{source}: '{value!s:.80}' is unknown{hint}")

    return check


def _transport(value: object, source: str) -> str:
    kind, plus, tensors = str(value)[:80].partition("+")
    if plus and kind == "grpc" and value not in TRANSPORTS:
        carriers = [name.removeprefix("grpc+") for name in TRANSPORTS if name.startswith("grpc+")]
        raise InvalidArgumentError(
            f"{source}: control over gRPC goes with tensors over {' or '.join(carriers)}, not over '{tensors}'; "
            f"write grpc+{carriers[0]}, or grpc for both"
        )
    return _choice(TRANSPORTS)(value, source)


def check_whole(most: int) -> Callable[[object, str], int]:
    """A check for whole numbers from 1 to `most`, in digits too.

    It raises InvalidArgumentError that names its source.
    """

    def check(value: object, source: str) -> int:
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(
                f"{source}: '{value!s:.80}' is not a whole number; write one between 1 and {most}"
            )
        if not 1 <= value <= most:
            raise InvalidArgumentError(f"{source}: {value} is not between 1 and {most}")
        return value

    return check


def _seconds(value: object, source: str) -> float:
    try:
        seconds = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds <= LONGEST_TIMEOUT_S:
        raise InvalidArgumentError(
            f"{source}: '{value!s:.80}' is not a number of seconds above 0 and up to {LONGEST_TIMEOUT_S:.0f}; write 30"
        )
    return seconds


def _chunk(value: object, source: str) -> str | int:
    if isinstance(value, str):
        if value in ("whole", "per-worker"):
            return value
        try:
            return _core.parse_size(value)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{source}: {error}, or whole, or per-worker") from None
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InvalidArgumentError(
        f"{source}: {value!s:.80} is not whole, per-worker, or a size above 0 bytes such as 512KiB"
    )


def _interface(value: object, source: str) -> str:
    text = _text(value, source)
    check_interface(text, source)
    return text


def _secret(value: object, source: str) -> str:
    text = _text(value, source)
    if len(text) < SHORTEST_SECRET:
        raise InvalidArgumentError(
            f"{source}: holds {len(text)} characters, at least {SHORTEST_SECRET} are needed; "
            "make one with: openssl rand -hex 32"
        )
    return text


def check_rendezvous(value: object, source: str) -> str:
    """`host:port`. Raises InvalidArgumentError that names `source`."""
    text = _text(value, source)
    host, colon, port = text.rpartition(":")
    bare = host.strip("[]")
    bracketed = host.startswith("[") and host.endswith("]")
    numeric = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536
    if not colon or not bare or not numeric or (":" in bare and not bracketed) or any(map(str.isspace, host)):
        raise InvalidArgumentError(f"{source}: '{text[:80]}' is not host:port; write node1:29400, or [fd00::1]:29400")
    return text


def check_multicast(value: object, source: str) -> str:
    """`group:port`, an IPv4 one. Raises InvalidArgumentError that names `source`."""
    text = _text(value, source)
    group, _, port = text.rpartition(":")
    try:
        multicast = ipaddress.IPv4Address(group).is_multicast
    except ValueError:
        multicast = False
    if not multicast or not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65_536):
        raise InvalidArgumentError(
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
        raise InvalidArgumentError(f"{source}: there is no file '{text[:80]}'; {hint}")
    return str(Path(text).absolute())


def check_timeline(value: object, source: str) -> str:
    """An absolute path in a folder that exists. Raises InvalidArgumentError that names `source`."""
    path = Path(value) if isinstance(value, Path) else Path(_text(value, source))
    try:
        path = path.absolute()
        if not path.parent.is_dir():
            raise InvalidArgumentError(f"{source} {path}: there is no folder {path.parent}; make it first")
        if path.is_dir():
            raise InvalidArgumentError(f"{source} {path}: is a folder; name a file in it")
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"{source}: '{value!s:.80}' is no path: {error}") from None
    return str(path)


def _path(value: object, source: str) -> str:
    text = str(value) if isinstance(value, Path) else _text(value, source)
    if not Path(text).exists():
        raise InvalidArgumentError(
            f"{source}: there is no file or folder '{text[:200]}'; name libmpi_abi.so.1 or libmpi.so.40"
        )
    return text


def _flag(value: object, source: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    word = str(value).lower()
    if word not in words:
        raise InvalidArgumentError(f"{source}: '{value!s:.80}' is neither 1 nor 0")
    return words[word]


def _text(value: object, source: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{source}: {value!r:.80} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{source}: is not UTF-8 text") from None
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


# By setting: transports with which it has no effect.
_WITHOUT_EFFECT = {
    "streams": ("shm", "grpc", *OVER_MPI),
    "multicast": ("shm", "grpc", *OVER_MPI),
    "single_copy": ("tcp", "grpc", "grpc+tcp", *OVER_MPI),
    "rendezvous": OVER_MPI,
    "mpi_library": ("auto", "shm", "tcp", "grpc", "grpc+tcp"),
    "tls": ("auto", "shm", "tcp", "mpi"),
}

# Settings that the native module gets in other ways, or not at all.
_ELSEWHERE = frozenset(
    (
        "interface",
        "pull",
        "unfused",
        "coordinator",
        "timeline",
        "verbose",
        "server_processes",
        "switch_process",
        "disturbance",
    )
)
