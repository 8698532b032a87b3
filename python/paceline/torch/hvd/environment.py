"""Horovod's environment variables: those that have a meaning here, and those that ask for what is not there.

| variable | meaning | default |
| --- | --- | --- |
| HOROVOD_FUSION_THRESHOLD | bytes that go in one all-reduce at most | 128 MiB; with parameter servers 0 |
| HOROVOD_CYCLE_TIME | milliseconds within which tensors that become ready go together | 1 |
| HOROVOD_CACHE_CAPACITY | tensors that are remembered, so that they need no new agreement | 1024 |
| HOROVOD_STALL_CHECK_DISABLE | 1: say nothing of tensors that only some ranks have asked for | 0 |
| HOROVOD_STALL_CHECK_TIME_SECONDS | say it after so long | 60 |
| HOROVOD_STALL_SHUTDOWN_TIME_SECONDS | such a tensor fails after so long; 0: never | 600 (Horovod: 0) |
| HOROVOD_THREAD_AFFINITY | cores for the background threads, one for each local rank: 0,8 | the system's choice |
| HOROVOD_HIERARCHICAL_ALLREDUCE | 1: the strategy hierarchical, unless PACELINE_STRATEGY is set | 0 |
| HOROVOD_TIMELINE | file that a timeline is written to; DYNAMIC: by start_timeline | none |

An empty variable is as good as none. Variables of Horovod's build (HOROVOD_WITH_...) and launcher (HOROVOD_RANK, ...),
and those for what Paceline does not use (MPI, CCL, NCCL), are let be.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import InvalidArgumentError

LONGEST_S = 30 * 86_400.0
_NOT_THERE: dict[str, str] = {
    "HOROVOD_AUTOTUNE": "unset it: which strategy is fastest for each size is measured at the start",
    "HOROVOD_ELASTIC": "unset it: `paceline run --elastic` starts elastic jobs (docs/how-to/elastic.md)",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "unset it: hierarchical strategies are for all-reduce",
    "HOROVOD_TORUS_ALLREDUCE": "unset it, or name a strategy of `paceline strategies` by PACELINE_STRATEGY",
    "HOROVOD_DISABLE_GROUP_FUSION": "unset it: groups are fused with what else is ready",
}
"""Switches: no harm is in 0."""
_CHOICES: dict[str, str] = {
    "HOROVOD_CONTROLLER": "unset it: ranks agree by themselves; start them by paceline run, torchrun, mpirun or srun",
    "HOROVOD_CPU_OPERATIONS": "unset it: Paceline's own runtime moves the tensors",
    "HOROVOD_GLOO_IFACE": "set PACELINE_INTERFACE instead",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "set PACELINE_START_TIMEOUT instead",
    "HOROVOD_NUM_NCCL_STREAMS": "unset it; for several connections between two ranks set PACELINE_STREAMS",
}


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """How coordinators work. Made by `from_environment`; every field has been checked."""

    cycle_time_s: float = 0.001
    threshold: int = 128 << 20
    """Bytes."""
    threshold_given: bool = False
    capacity: int = 1024
    warn_after_s: float | None = 60.0
    give_up_after_s: float | None = 600.0
    cores: tuple[int, ...] | None = None
    """One for each local rank."""
    hierarchical: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Knobs:
        """Read the variables (of this process, if none are given).

        Raises InvalidArgumentError: variable, value and remedy.
        """
        read = _Reader(os.environ if environ is None else environ)
        read.refuse_what_is_not_there()
        silent = read.switch("HOROVOD_STALL_CHECK_DISABLE")
        never = read.has("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") and not read.seconds(
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0
        )
        if silent and read.has("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS") and not never:
            raise read.wrong("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "has no effect with HOROVOD_STALL_CHECK_DISABLE=1")
        warn = read.seconds("HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0)
        if not warn:
            raise read.wrong(
                "HOROVOD_STALL_CHECK_TIME_SECONDS", "is no time; HOROVOD_STALL_CHECK_DISABLE=1 keeps silent"
            )
        give_up = read.seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 600.0)
        return cls(
            cycle_time_s=read.number("HOROVOD_CYCLE_TIME", 1.0, 10_000.0, "milliseconds") / 1000.0,
            threshold=read.whole("HOROVOD_FUSION_THRESHOLD", 128 << 20, "bytes"),
            threshold_given=read.has("HOROVOD_FUSION_THRESHOLD"),
            capacity=read.whole("HOROVOD_CACHE_CAPACITY", 1024, "tensors", 1 << 24),
            warn_after_s=None if silent else warn,
            give_up_after_s=None if silent or never else give_up,
            cores=read.cores("HOROVOD_THREAD_AFFINITY"),
            hierarchical=read.switch("HOROVOD_HIERARCHICAL_ALLREDUCE"),
        )

    @property
    def bucket(self) -> tuple[int, int]:
        """Bytes of the first planned bucket and of others at most: a threshold that is given, else as torch's DDP."""
        return (self.threshold, self.threshold) if self.threshold_given else (1 << 20, 25 << 20)

    def core(self, local_rank: int, local_size: int) -> int | None:
        """Where this rank's threads are to run. Raises InvalidArgumentError if not every local rank has a core."""
        if self.cores is None:
            return None
        if len(self.cores) < local_size:
            text = ",".join(map(str, self.cores))
            raise InvalidArgumentError(
                f"HOROVOD_THREAD_AFFINITY={text}: names {len(self.cores)} cores for {local_size} local ranks; name one "
                "for each, or unset it"
            )
        return self.cores[local_rank]


def timeline_path(environ: Mapping[str, str] | None = None) -> str | None:
    """The file that HOROVOD_TIMELINE names, if it does: DYNAMIC leaves it to `start_timeline`."""
    named = (os.environ if environ is None else environ).get("HOROVOD_TIMELINE")
    return named if named and named != "DYNAMIC" else None


@dataclass(frozen=True)
class _Reader:
    environ: Mapping[str, str]

    def has(self, name: str) -> bool:
        return bool(self.environ.get(name))

    def wrong(self, name: str, why: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{name}={self.environ[name][:80]}: {why}; correct it, or unset it")

    def refuse_what_is_not_there(self) -> None:
        asked = [name for name in _NOT_THERE if self.switch(name)] + [name for name in _CHOICES if self.has(name)]
        for name in asked:
            remedy = _NOT_THERE.get(name) or _CHOICES[name]
            raise InvalidArgumentError(f"{name}={self.environ[name][:80]}: Paceline has nothing of that kind; {remedy}")

    def switch(self, name: str) -> bool:
        text = self.environ.get(name, "").strip()
        if text not in ("", "0", "1"):
            raise self.wrong(name, "is neither 1 nor 0")
        return text == "1"

    def whole(self, name: str, default: int, unit: str, most: int = 1 << 40) -> int:
        if not self.has(name):
            return default
        text = self.environ[name].strip()
        if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
            raise self.wrong(name, f"is not a whole number of {unit} between 0 and {most}")
        return int(text)

    def number(self, name: str, default: float, most: float, unit: str) -> float:
        if not self.has(name):
            return default
        try:
            value = float(self.environ[name])
        except ValueError:
            value = math.nan
        if not 0 <= value <= most:
            raise self.wrong(name, f"is not a number of {unit} between 0 and {most:.0f}")
        return value

    def seconds(self, name: str, default: float) -> float:
        return self.number(name, default, LONGEST_S, "seconds")

    def cores(self, name: str) -> tuple[int, ...] | None:
        if not self.has(name):
            return None
        there = os.cpu_count() or 1
        words = [word.strip() for word in self.environ[name].split(",")]
        good = all(word.isascii() and word.isdigit() and len(word) < 8 and int(word) < there for word in words)
        if not good:
            raise self.wrong(name, f"is not a list of cores between 0 and {there - 1}, such as 0,1")
        return tuple(map(int, words))
