"""Settings of coordinators from Horovod's environment variables (docs/reference/settings.md)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import InvalidArgumentError
from paceline.settings.horovod import HOROVOD, read


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Settings of coordinators. Made by `from_environment`; every field has been checked."""

    cycle_time_s: float = HOROVOD["cycle_time"].default / 1000.0
    threshold: int = HOROVOD["fusion_threshold"].default
    """Bytes."""
    threshold_given: bool = False
    capacity: int = HOROVOD["cache_capacity"].default
    warn_after_s: float | None = HOROVOD["stall_check_time"].default
    give_up_after_s: float | None = HOROVOD["stall_shutdown_time"].default
    give_up_given: bool = False
    cores: tuple[int, ...] | None = None
    """One for each local rank."""
    hierarchical: bool = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Knobs:
        """Read the variables (of this process, if none are given).

        Raises InvalidArgumentError naming variable, value and remedy.
        """
        environ = os.environ if environ is None else environ
        values = read(environ)
        given = {name for name, setting in HOROVOD.items() if environ.get(setting.variable)}
        silent, warn, give_up = values["stall_check_disable"], values["stall_check_time"], values["stall_shutdown_time"]
        if silent and "stall_shutdown_time" in given and give_up:
            raise _wrong("stall_shutdown_time", "has no effect with HOROVOD_STALL_CHECK_DISABLE=1")
        if not warn:
            raise _wrong("stall_check_time", "0 is not a time; HOROVOD_STALL_CHECK_DISABLE=1 disables the check")
        return cls(
            cycle_time_s=values["cycle_time"] / 1000.0,
            threshold=values["fusion_threshold"],
            threshold_given="fusion_threshold" in given,
            capacity=values["cache_capacity"],
            warn_after_s=None if silent else warn,
            give_up_after_s=None if silent or not give_up else give_up,
            give_up_given="stall_shutdown_time" in given,
            cores=values["thread_affinity"],
            hierarchical=values["hierarchical_allreduce"],
        )

    def give_up_s(self, limit_s: float) -> float | None:
        """Return after which time a tensor fails that a rank does not submit, in a job with this limit; None: never."""
        if self.give_up_given or self.give_up_after_s is None:
            return self.give_up_after_s
        return max(self.give_up_after_s, limit_s)

    @property
    def bucket(self) -> tuple[int, int]:
        """Return the maximum bytes of the first planned bucket and of others: the threshold, or those of DDP."""
        return (self.threshold, self.threshold) if self.threshold_given else (1 << 20, 25 << 20)

    def core(self, local_rank: int, local_size: int) -> int | None:
        """Return the core for this rank's threads. Raises InvalidArgumentError if not every local rank has a core."""
        if self.cores is None:
            return None
        if len(self.cores) < local_size:
            text = ",".join(map(str, self.cores))
            raise InvalidArgumentError(
                f"HOROVOD_THREAD_AFFINITY={text}: names {len(self.cores)} cores for {local_size} local ranks",
                remedy=f"HOROVOD_THREAD_AFFINITY={','.join(map(str, range(local_size)))}",
            )
        return self.cores[local_rank]


def timeline_path(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the file named by HOROVOD_TIMELINE, if any: DYNAMIC leaves it to `start_timeline`."""
    named = (os.environ if environ is None else environ).get("HOROVOD_TIMELINE")
    return named if named and named != "DYNAMIC" else None


def _wrong(name: str, reason: str) -> InvalidArgumentError:
    source = HOROVOD[name].source("variable")
    return InvalidArgumentError(reason, setting=name, source=source, remedy="unset {this}, or another value")
