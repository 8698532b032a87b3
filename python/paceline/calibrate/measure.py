"""A calibration: steps of random programs within a budget of seconds, and the medians of their operators."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

from paceline.calibrate.apart import apart
from paceline.calibrate.programs import KINDS, Setup, program
from paceline.calibrate.timing import PHASES, Clock, bare_step, timed_step
from paceline.operators.operator import Operator

_STEPS, _LARGE_STEPS, _LARGE_S = 3, 2, 0.05
"""Steps of a program; those of programs whose step takes longer than the last; as many again as a whole, if its
operators are small."""
_WARM_UP = 2
"""Steps before: the first makes gradients and an optimizer's states, and in the second the heap is not yet what it
becomes (glibc raises its threshold for mappings of their own with what is freed)."""
_LEAST_FLOPS = 3e6
_LONGEST_STEP_S = 0.06
"""Of a program's forward pass, at the peak of the device."""
_PROGRAMS = 400
"""In shorter calibrations, forward passes are shorter than that part of all."""
_ORDER = (
    *("transformer", "separate", "convolutional", "separate", "elementwise", "separate"),
    *("transformer", "separate", "convolutional", "separate", "dense", "separate"),
)
"""Of the kinds of programs, again and again."""
_SMALL_S = 5e-5
"""Mean time of an operator in programs that show what dispatching takes: in others it drowns in noise."""
_SHARES = ("dropout_p",)
"""Numbers that decide a kernel; others are values of a step, such as an optimizer's."""
_SQUARE = 1024
_COPY_BYTES = 1 << 28
_REPEATS = 5


@dataclass(frozen=True)
class Rates:
    """The rates of large operators."""

    peak_flops: dict[str, float]
    """FLOP/s of square products by precision."""
    memory_bandwidth: float
    """Bytes per second, read and written, of copies far larger than caches."""
    start_s: float
    """Of the smallest operator."""


@dataclass(frozen=True)
class Timed:
    """An operator that was measured several times."""

    operator: Operator
    seconds: float
    """The median."""
    spread: float
    """Half the range between the quartiles, of the median."""
    count: int


@dataclass(frozen=True)
class Steps:
    """The steps of a program."""

    timed: list[list[tuple[Operator, float]]]
    """Operators and their seconds, step by step."""
    bare: list[dict[str, float]]
    """Seconds of each phase in steps whose operators were not timed."""
    reference_s: float
    """Of a product that is the same for all programs."""
    is_host: bool = True
    """Whether the thread that dispatches operators runs them."""
    is_small: bool = True
    """Whether operators take so little that the time to dispatch them can be told."""


@dataclass
class Measurements:
    """All that was measured on a device."""

    rates: Rates
    samples: dict[str, tuple[Operator, list[float]]] = field(default_factory=dict)
    """Operators and their seconds, by their text: attributes are not hashable."""
    host_s: dict[str, list[float]] = field(default_factory=dict)
    """By phase, the host's time for an operator, of each program of small operators."""
    references: list[float] = field(default_factory=list)
    """Seconds of one product at several times: whether the device slows down."""
    programs: int = 0
    failed: int = 0

    def operators(self) -> list[Timed]:
        """Return the medians, in the order in which operators came up."""
        return [_median(operator, seconds) for operator, seconds in self.samples.values()]

    def add(self, operator: Operator, seconds: float) -> None:
        """Keep the time of an operator in one step."""
        deciding = {
            name: value
            for name, value in operator.attributes.items()
            if not isinstance(value, float) or name in _SHARES
        }
        kept = replace(operator, attributes=deciding, sources=())
        self.samples.setdefault(repr(kept), (kept, []))[1].append(seconds)

    @property
    def dispatch_s(self) -> dict[str, float]:
        """Median host time for an operator by phase, besides its kernels; 0 if no program was small enough."""
        return {phase: max(0.0, statistics.median(self.host_s.get(phase, [0.0]))) for phase in PHASES}

    @property
    def spread(self) -> float:
        """Mean spread of the operators, weighted by their times."""
        timed = [each for each in self.operators() if each.count >= _LARGE_STEPS]
        whole = sum(each.seconds for each in timed)
        return sum(each.spread * each.seconds for each in timed) / whole if whole else 0.0

    @property
    def drift(self) -> float:
        """How much longer the reference took in the second half than in the first, of its median."""
        half = len(self.references) // 2
        if not half:
            return 0.0
        before, after = (statistics.median(part) for part in (self.references[:half], self.references[half:]))
        return after / before - 1

    def take(self, steps: Steps) -> None:
        """Keep the times of a program's steps."""
        self.programs += 1
        self.references.append(steps.reference_s)
        pace = dict.fromkeys(PHASES, 1.0)
        for phase in PHASES if steps.bare else ():
            times = [[seconds for operator, seconds in calls if operator.phase == phase] for calls in steps.timed]
            if count := len(times[0]):
                busy = statistics.median(map(sum, times)) if steps.is_host else 0.0
                host = statistics.median(step[phase] for step in steps.bare)
                if host < busy:
                    # Threads sleep while a mark is set, and are woken for the next operator.
                    pace[phase] = host / busy
                elif steps.is_small:
                    self.host_s.setdefault(phase, []).append((host - busy) / count)
        for calls in steps.timed:
            for operator, seconds in calls:
                self.add(operator, seconds * pace[operator.phase])


def _median(operator: Operator, seconds: list[float]) -> Timed:
    median = statistics.median(seconds)
    spread = 0.0
    if len(seconds) > 1:
        lower, _, upper = statistics.quantiles(seconds, n=4, method="inclusive")
        spread = (upper - lower) / 2 / median if median else 0.0
    return Timed(operator, median, spread, len(seconds))


def rates(device: torch.device, clock: Clock, dtypes: dict[str, torch.dtype]) -> Rates:
    """Measure the rates of large operators.

    Args:
        device: Where.
        clock: Of the device.
        dtypes: Of products, by precision.
    """
    peaks = {}
    for precision, dtype in dtypes.items():
        size = _SQUARE if device.type == "cpu" else 8 * _SQUARE
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        peaks[precision] = 2 * size**3 / _fastest(lambda a=left, b=right: a @ b, clock)  # type: ignore[misc]
    source = torch.zeros(_COPY_BYTES // 4, device=device)
    target = torch.zeros_like(source)
    copied = _fastest(lambda: target.copy_(source), clock)
    small = torch.zeros(1, device=device)
    started = _fastest(lambda: small.add_(1.0), clock, repeats=50 * _REPEATS)
    return Rates(peaks, 2 * _COPY_BYTES / copied, started)


def _fastest(call: Callable[[], object], clock: Clock, *, repeats: int = _REPEATS) -> float:
    """Return the least seconds of a call, after a first one that counts not."""
    call()
    clock.wait()
    marks = []
    for _ in range(repeats):
        begin = clock.mark()
        call()
        marks.append((begin, clock.mark()))
    clock.wait()
    return min(clock.seconds(begin, end) for begin, end in marks)


def measure(
    device: torch.device,
    clock: Clock,
    *,
    seconds: float,
    seed: int = 0,
    dtypes: dict[str, torch.dtype],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measurements:
    """Measure a device's operators.

    Programs of a CPU run in a process each, as scripts do: what the heap of a process has released to the system has to
    be mapped again, page by page, and that depends on all that it has held before.

    Args:
        device: Which.
        clock: Of the device.
        seconds: For all; a program that has begun is ended, and each kind runs once.
        seed: Of the programs.
        dtypes: Of products whose peak is measured, by precision. Programs use them in turn.
        progress: Called with the seconds that have passed, and all.
    """
    begin = time.perf_counter()
    run: Callable[..., Any] = apart if clock.is_host else _here
    measurements = Measurements(run(rates, device, clock, dtypes))
    random = Random(seed)
    longest_s = min(_LONGEST_STEP_S, seconds / _PROGRAMS)
    for setup, kind in _setups(device, random, measurements.rates, dtypes, longest_s):
        passed = time.perf_counter() - begin
        progress(round(min(passed, seconds)), round(seconds))
        if passed >= seconds and measurements.programs + measurements.failed >= len(_ORDER):
            break
        try:
            steps = run(run_program, kind, setup, clock)
        except (RuntimeError, EOFError):
            measurements.failed += 1  # Too large for the memory, or a kernel that the device lacks.
            continue
        measurements.take(steps)
    return measurements


def _here(call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
    return call(*args)


def _setups(
    device: torch.device, random: Random, known: Rates, dtypes: dict[str, torch.dtype], longest_s: float
) -> Iterator[tuple[Setup, str]]:
    """Yield sizes and kinds of programs without end: kinds in turn, sizes in logarithms, and large ones more often.

    Large operators are most of what steps take.
    """
    assert set(_ORDER) == set(KINDS)
    place = 0
    while True:
        precision, dtype = list(dtypes.items())[place // len(_ORDER) % len(dtypes)]
        largest = max(_LEAST_FLOPS, known.peak_flops[precision] * longest_s)
        flops = _LEAST_FLOPS * (largest / _LEAST_FLOPS) ** math.sqrt(random.random())
        yield Setup(device, random, flops, dtype), _ORDER[place % len(_ORDER)]
        place += 1


def run_program(kind: str, setup: Setup, clock: Clock) -> Steps:
    """Run a program, and return the times of its operators and of its steps.

    Args:
        kind: Of `programs.KINDS`.
        setup: Its device and size.
        clock: Of the device.
    """
    torch.manual_seed(setup.random.randrange(1 << 30))
    one = program(kind, setup)
    side = torch.randn(_SQUARE, _SQUARE, device=setup.device)
    reference = _fastest(lambda: side @ side, clock, repeats=1)
    warm = [bare_step(one, clock) for _ in range(_WARM_UP)]
    large = sum(warm[-1].values()) > _LARGE_S
    timed = [timed_step(one, clock) for _ in range(_LARGE_STEPS if large else _STEPS)]
    small = sum(seconds for _, seconds in timed[0]) / len(timed[0]) <= _SMALL_S
    is_small = small or not clock.is_host
    bare = [bare_step(one, clock) for _ in range(_STEPS if is_small else 1)]
    return Steps(timed, bare, reference, clock.is_host, is_small)
