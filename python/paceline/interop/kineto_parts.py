"""Splits the steps of torch.profiler's trace into parts: computation, optimizer, exposed communication, input, idle.

Unlike an import (`interop.kineto`), it needs neither gradients nor shapes, so it reads traces of FSDP, of pipelines and
of anything else that runs kernels. Without kernels, the operators of the CPU count in their place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from paceline.interop import collectives
from paceline.interop.kineto import windows_of
from paceline.interop.kineto_file import Event, Profile, read_profile
from paceline.interop.kineto_step import ON_GPU, Source
from paceline.interop.timeline import Interval, difference, intersection, length, union

_INPUT = re.compile(r"enumerate\(DataLoader\)|.*DataLoader.*__next__|.*data_loader.*__next__", re.IGNORECASE)
_OPTIMIZER = "Optimizer.step"


@dataclass(frozen=True)
class StepParts:
    """Medians over the steps of a profile, in seconds."""

    step_s: float
    computation_s: float
    """Without the optimizer's."""
    optimizer_s: float
    communication_s: float
    """While nothing is computed."""
    hidden_s: float
    """Communication beside computation."""
    input_s: float
    """Neither, while the script waits for its data loader."""
    idle_s: float
    """The rest: between kernels."""
    steps: int
    world_size: int
    device: str
    on_gpu: bool
    gathered: str
    """The type of most bytes of all-gathers, such as `bfloat16`; empty if the profile does not say."""


def parts_of(path: Path) -> StepParts:
    """Return the parts of the steps of a profile. Raises InvalidArgumentError."""
    profile = read_profile(path)
    source, windows = Source(profile), windows_of(profile)
    each = [_parts(source, profile, (window.start, window.end)) for window in windows]
    # The first step of several has what happens once.
    each = each[1:] if len(each) > 1 else each
    step, computation, optimizer, communication, hidden, waiting, idle = (
        median(column) * 1e-6 for column in zip(*each, strict=True)
    )
    about = (len(each), profile.world_size, profile.device, source.on_gpu, _gathered(profile))
    return StepParts(step, computation, optimizer, communication, hidden, waiting, idle, *about)


def _gathered(profile: Profile) -> str:
    sizes: Counter[str] = Counter()
    for one in map(collectives.describe, filter(collectives.is_kernel, profile.of(*ON_GPU))):
        if one.kind == "all-gather" and one.bytes and one.dtype:
            sizes[one.dtype] += one.bytes
    return max(sizes, key=sizes.__getitem__, default="")


def _parts(source: Source, profile: Profile, window: Interval) -> tuple[float, ...]:
    """Return the times of `StepParts`, in its order, in microseconds."""
    marks = [one for one in profile.of("user_annotation") if window[0] <= one.start < window[1]]
    optimizer = union((one.start, one.end) for one in marks if one.name.startswith(_OPTIMIZER))
    loading = union((one.start, one.end) for one in marks if _INPUT.match(one.name))
    if source.on_gpu:
        work = [one for one in profile.of(*ON_GPU) if window[0] <= one.start < window[1]]
        sent = [one for one in work if collectives.is_kernel(one)]
        kept = {id(one) for one in sent}
        computed = [one for one in work if id(one) not in kept]
        updates = [one for one in computed if _is_launched_in(source, one, optimizer)]
    else:
        operators = source.within("cpu_op", window)
        sent = [one for one in (*operators, *marks) if collectives.is_call(one)]
        computed = [one for one in operators if not collectives.is_call(one) and not collectives.is_library_code(one)]
        updates = [one for one in computed if _is_in(one.start, optimizer)]
    busy, moving, updating = (_within(some, window) for some in (computed, sent, updates))
    exposed = difference(moving, busy)
    idle = difference([window], union([*busy, *moving]))
    waiting = intersection(idle, loading)
    hidden, waited = length(moving) - length(exposed), length(waiting)
    step, computation = window[1] - window[0], length(busy) - length(updating)
    return step, computation, length(updating), length(exposed), hidden, waited, length(idle) - waited


def _is_launched_in(source: Source, kernel: Event, intervals: list[Interval]) -> bool:
    launch = source.launch_of(kernel)
    return launch is not None and _is_in(launch.start, intervals)


def _is_in(moment: float, intervals: list[Interval]) -> bool:
    return any(start <= moment < end for start, end in intervals)


def _within(events: Iterable[Event], window: Interval) -> list[Interval]:
    return intersection(union((one.start, one.end) for one in events), [window])
