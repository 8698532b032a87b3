"""Horovod's environment variables: those that Paceline reads, and those that it refuses because it cannot honor them.

An empty variable counts as unset. Variables of Horovod's build (HOROVOD_WITH_...) and launcher (HOROVOD_RANK, ...), and
those for libraries that Paceline does not use (MPI, CCL, NCCL), are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import InvalidArgumentError, Source
from paceline.settings import kinds
from paceline.settings.kinds import Kind
from paceline.settings.table import Setting

_HINT = "correct it, or unset it"


def _whole(most: int, unit: str) -> Kind:
    """Whole numbers from 0."""
    numbers = kinds.whole(0, most, unit.upper())

    def check(value: object) -> int:
        try:
            number: int = numbers.check(value)
        except InvalidArgumentError:
            raise InvalidArgumentError(
                f"must be whole {unit}, 0-{most}, not '{value!s:.80}'", remedy=f"{{this=1}} ({_HINT})"
            ) from None
        return number

    return Kind(unit.upper(), check)


def _number(most: float, unit: str) -> Kind:
    """Numbers from 0."""
    return kinds.number(0, most, f"a number of {unit}, 0-{most:.0f}", unit.upper(), example=_HINT)


def _one_or_zero(value: object) -> bool:
    text = str(int(value)) if isinstance(value, bool) else str(value).strip()
    if text not in ("0", "1"):
        raise InvalidArgumentError(f"must be 1 or 0, not '{text[:80]}'", remedy=f"{{this=1}} ({_HINT})")
    return text == "1"


def _cores(value: object) -> tuple[int, ...]:
    count = os.cpu_count() or 1
    words = [word.strip() for word in str(value).split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 8 and int(word) < count for word in words):
        raise InvalidArgumentError(
            f"must be cores of 0-{count - 1}, not '{value!s:.80}'", remedy=f"{{this=0}} ({_HINT})"
        )
    return tuple(map(int, words))


_SWITCH = Kind("1|0", _one_or_zero, is_switch=True)
_SECONDS = _number(kinds.LONGEST_TIMEOUT_S, "seconds")

_ALL = (
    Setting(
        name="fusion_threshold",
        variable="HOROVOD_FUSION_THRESHOLD",
        kind=_whole(1 << 40, "bytes"),
        help="Largest fused all-reduce, in bytes.",
        default=128 << 20,
        default_words="128 MiB; with parameter servers 0",
    ),
    Setting(
        name="cycle_time",
        variable="HOROVOD_CYCLE_TIME",
        kind=_number(10_000, "milliseconds"),
        help="Cycle in milliseconds: tensors that become ready within it are fused.",
        default=1.0,
    ),
    Setting(
        name="cache_capacity",
        variable="HOROVOD_CACHE_CAPACITY",
        kind=_whole(1 << 24, "tensors"),
        help="Tensors in the response cache, which need no negotiation.",
        default=1024,
    ),
    Setting(
        name="stall_check_disable",
        variable="HOROVOD_STALL_CHECK_DISABLE",
        kind=_SWITCH,
        help="Do not report stalled tensors, which only some ranks have submitted.",
        default=False,
    ),
    Setting(
        name="stall_check_time",
        variable="HOROVOD_STALL_CHECK_TIME_SECONDS",
        kind=_SECONDS,
        help="Report a stalled tensor after this time.",
        default=60.0,
    ),
    Setting(
        name="stall_shutdown_time",
        variable="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        kind=_SECONDS,
        help="Fail a stalled tensor after this time; 0: never.",
        default=600.0,
        default_words="600, or `PACELINE_TIMEOUT` if that is longer (Horovod: 0)",
    ),
    Setting(
        name="thread_affinity",
        variable="HOROVOD_THREAD_AFFINITY",
        kind=Kind("CORE,…", _cores, is_list=True),
        help="Cores for the background threads, one per local rank.",
        default_words="the system's choice",
    ),
    Setting(
        name="hierarchical_allreduce",
        variable="HOROVOD_HIERARCHICAL_ALLREDUCE",
        kind=_SWITCH,
        help="The strategy `hierarchical`, unless `PACELINE_STRATEGY` is set.",
        default=False,
    ),
    Setting(
        name="timeline",
        variable="HOROVOD_TIMELINE",
        kind=kinds.TEXT,
        help="Timeline file; DYNAMIC: `start_timeline` names it.",
    ),
)
HOROVOD: Mapping[str, Setting] = {setting.name: replace(setting, flag="") for setting in _ALL}
"""By name."""


@dataclass(frozen=True)
class Refused:
    """A variable for a feature that Paceline does not have."""

    remedy: str
    is_switch: bool = False
    """0 is allowed."""


REFUSED: Mapping[str, Refused] = {
    "HOROVOD_AUTOTUNE": Refused("unset {this} (Paceline tunes the strategy for each message size at startup)", True),
    "HOROVOD_ELASTIC": Refused("unset {this} (paceline run --elastic starts elastic jobs)", True),
    "HOROVOD_HIERARCHICAL_ALLGATHER": Refused("unset {this} (hierarchical strategies are for all-reduce)", True),
    "HOROVOD_TORUS_ALLREDUCE": Refused("PACELINE_STRATEGY=ring (list: paceline list strategies)", True),
    "HOROVOD_DISABLE_GROUP_FUSION": Refused("unset {this} (Paceline fuses groups with other ready tensors)", True),
    "HOROVOD_CONTROLLER": Refused("unset {this} (paceline run, torchrun, mpirun or srun start ranks)"),
    "HOROVOD_CPU_OPERATIONS": Refused("unset {this} (Paceline's own runtime moves the tensors)"),
    "HOROVOD_GLOO_IFACE": Refused("PACELINE_INTERFACE=eth0"),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": Refused("PACELINE_START_TIMEOUT=60"),
    "HOROVOD_NUM_NCCL_STREAMS": Refused("PACELINE_STREAMS=2"),
}
"""By variable."""


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values by name, with defaults for variables that are not set.

    Raises InvalidArgumentError, which names the variable, its value and the remedy.
    """
    for variable, refused in REFUSED.items():
        source = Source("variable", variable)
        text = environ.get(variable, "")
        try:
            enabled = _one_or_zero(text) if refused.is_switch and text else bool(text)
        except InvalidArgumentError as error:
            raise error.at(variable, source) from None
        if enabled:
            raise InvalidArgumentError(
                f"'{text[:80]}' is not supported", setting=variable, source=source, remedy=refused.remedy
            )
    return {
        name: setting.check(environ[setting.variable], setting.source("variable"))
        if environ.get(setting.variable)
        else setting.default
        for name, setting in HOROVOD.items()
    }
