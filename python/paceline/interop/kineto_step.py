"""Takes a step of torch.profiler's trace apart: layers, gradients, optimizer, and the collectives between them.

A step's times are those of the GPU if the profile has kernels: a layer lasts from the start of its first kernel to the
start of the next layer's. Kernels are traced to the operator that launched them by `correlation`. Otherwise they are
the times of the operators on the CPU. The clock stands still while computation waits for a collective, and during what
a wrapper does itself (copying buckets).

Backward operators carry the sequence number of the forward operator that they differentiate, which links gradients to
layers; `AccumulateGrad` runs directly after the operator that computed its gradient.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from paceline.interop import collectives
from paceline.interop.collectives import Collective
from paceline.interop.kineto_file import EVALUATION, Event, Profile
from paceline.interop.timeline import Clock, Interval, difference, intersection, length, union

_ACCUMULATE = "torch::autograd::AccumulateGrad"
_MODULE = "nn.Module: "
_WRAPPERS = re.compile(r"(DistributedDataParallel|FullyShardedDataParallel|OptimizedModule|CheckpointWrapper)_\d+$")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
LOSS_LAYER = "(loss)"
ACCUMULATION_LAYER = "(accumulation)"


@dataclass(frozen=True)
class Gradient:
    """One gradient, or with `bucket` all that were reduced together."""

    layers: tuple[int, ...]
    bytes: int
    dtype: str
    ready_s: float


@dataclass(frozen=True)
class Step:
    """The durations of one step, in seconds."""

    layers: tuple[str, ...]
    layer_s: tuple[float, ...]
    gradients: tuple[Gradient, ...]
    backward_s: float
    optimizer_s: float
    passes: int
    batch: int
    """0 if shapes were not recorded."""
    collectives: tuple[tuple[str, int, float, float], ...]
    """Kind, bytes (0: not recorded), duration and exposed duration of each."""
    buckets: bool
    """Whether `gradients` are buckets: the profile has no shapes."""
    unlinked: int
    """Kernels without the call that launched them, which were left out."""

    @property
    def shape(self) -> tuple[object, ...]:
        """Properties that steps must share for a median over them to be meaningful."""
        return self.layers, self.passes, tuple((g.layers, g.bytes) for g in self.gradients)


@dataclass(frozen=True, eq=False)
class _Kernel:
    event: Event
    launched: float


@dataclass(frozen=True)
class Marks:
    """Converts times on the CPU to times on the step's clock."""

    first_after: Callable[[float], float]
    """When the first work that was launched at a time or later begins."""
    last_before: Callable[[float], float]
    """When the last work that was launched before a time ends."""


@dataclass(eq=False)
class Source:
    """A profile with what the steps need to find."""

    profile: Profile
    launches: dict[int, Event] = field(default_factory=dict)
    by_external_id: dict[int, Event] = field(default_factory=dict)
    on_gpu: bool = False

    def __post_init__(self) -> None:
        """Index the launches."""
        for event in self.profile.of(*_LAUNCHES):
            if (number := event.number("correlation")) is not None:
                self.launches[number] = event
        for event in self.profile.of("cpu_op"):
            if (number := event.number("External id")) is not None:
                self.by_external_id[number] = event
        self.on_gpu = bool(self.profile.of("kernel"))
        self._starts = {category: [e.start for e in events] for category, events in self.profile.by_category.items()}

    def within(self, category: str, window: Interval) -> list[Event]:
        """Return the events of a category that start in a window."""
        events, starts = self.profile.by_category.get(category, []), self._starts.get(category, [])
        return events[bisect_left(starts, window[0]) : bisect_left(starts, window[1])]

    def launch_of(self, event: Event) -> Event | None:
        """Return the call that launched a kernel."""
        launch = self.launches.get(event.number("correlation") or -1)
        return launch or self.by_external_id.get(event.number("External id") or -1)


def take_apart(source: Source, step: Event) -> Step | None:
    """Return the durations of a step; None if it computed no gradient."""
    window = (step.start, step.end)
    operators = source.within("cpu_op", window)
    backwards = [e for e in operators if e.name.startswith(EVALUATION)]
    if not any(e.name == _ACCUMULATE for e in operators):
        return None
    main = step.thread
    in_backward = union((e.start, e.end) for e in backwards if e.thread == main)
    forward_operators = [
        e for e in operators if e.thread == main and not _inside(e.start, in_backward) and e.number("Sequence number")
        is not None
    ]  # fmt: skip
    # Nested operators see the same number as long as no node is made; the last to see it makes the node.
    creators = {e.number("Sequence number"): e for e in forward_operators}
    used = {e.number("Sequence number") for e in backwards} & set(creators)
    passes = _passes(backwards, sorted(creators[number].start for number in used))
    last = passes[-1]
    while len(passes) > 1 and not _accumulations(operators, last):
        passes.pop()  # Of another model.
        last = passes[-1]
    begins, ends = last[0].start, max(e.end for e in last)
    earliest = max((e.end for e in passes[-2]), default=window[0]) if len(passes) > 1 else window[0]

    library = [e for e in (*operators, *source.within("user_annotation", window)) if collectives.is_library_code(e)]
    exchanges, kernels, unlinked = _work(source, window)
    library_times = union((e.start, e.end) for e in library)
    if source.on_gpu:
        waits, marks = _gpu_clock(kernels, exchanges, library_times)
    else:
        busy = union((e.start, e.end) for e in operators if not collectives.is_library_code(e))
        waits, marks = _cpu_clock(difference(busy, library_times), exchanges, library_times)

    calls = [
        e for e in operators if e.thread == main and earliest <= e.start < begins and not _inside(e.start, in_backward)
    ]  # fmt: skip
    modules = [e for e in source.within("python_function", (earliest, begins)) if e.thread == main]
    names, starts, forward_ends = _layers(modules, calls, {creators[number] for number in used}, begins)
    if not names:
        return None
    edges = [marks.first_after(at) for at in starts] + [marks.first_after(forward_ends)]
    backward_start = marks.first_after(begins)
    layer_s = [max(0.0, b - a) for a, b in pairwise(edges)]
    loss = backward_start - edges[-1]
    if len(passes) > 1:
        first = _first_differentiated(passes[0], [e for e in operators if e.thread == main])
        before = marks.first_after(starts[0]) - marks.first_after(first)
        names, layer_s = [*names, ACCUMULATION_LAYER], [*layer_s, max(0.0, before)]
    if loss > 0:
        names, layer_s = [*names, LOSS_LAYER], [*layer_s, loss]

    gradients, buckets = _gradients(source, operators, last, creators, starts, exchanges, marks)
    backward_end = max([marks.last_before(ends), *(at for *_, at in gradients)])
    steps = [
        e for e in source.within("user_annotation", window) if e.name.startswith("Optimizer.step") and e.end > ends
    ]
    optimizer = marks.last_before(max(e.end for e in steps)) - backward_end if steps else 0.0
    return Step(
        layers=tuple(names),
        layer_s=tuple(t * 1e-6 for t in layer_s),
        gradients=tuple(
            Gradient(layers, size, dtype, max(0.0, at - backward_start) * 1e-6) for layers, size, dtype, at in gradients
        ),
        backward_s=max(0.0, backward_end - backward_start) * 1e-6,
        optimizer_s=max(0.0, optimizer) * 1e-6,
        passes=len(passes),
        batch=_batch(calls, starts[0]) * len(passes),
        collectives=tuple(
            (
                c.kind,
                c.bytes or 0,
                (c.event.end - c.event.start) * 1e-6,
                length(intersection([(c.event.start, c.event.end)], waits)) * 1e-6,
            )
            for c in exchanges
        ),
        buckets=buckets,
        unlinked=unlinked,
    )


def _inside(at: float, intervals: Sequence[Interval]) -> bool:
    index = bisect_right(intervals, (at, float("inf"))) - 1
    return index >= 0 and intervals[index][0] <= at < intervals[index][1]


def _passes(backwards: Sequence[Event], forwards: Sequence[float]) -> list[list[Event]]:
    """Split backward operators where a forward pass lies between them (gradient accumulation)."""
    passes: list[list[Event]] = [[]]
    reached = float("-inf")
    for event in backwards:
        index = bisect_left(forwards, reached)
        if passes[-1] and index < len(forwards) and forwards[index] < event.start:
            passes.append([])
        passes[-1].append(event)
        reached = max(reached, event.end)
    return passes


def _accumulations(operators: Sequence[Event], backward: Sequence[Event]) -> list[Event]:
    start, end = backward[0].start, max(e.end for e in backward)
    return [e for e in operators if e.name == _ACCUMULATE and start <= e.start <= end]


def _work(source: Source, window: Interval) -> tuple[list[Collective], list[_Kernel], int]:
    """Return the collectives of a step in order of their launch, the kernels that compute, and how many are unknown."""
    if not source.on_gpu:
        calls = [e for category in ("user_annotation", "cpu_op") for e in source.within(category, window)]
        return [collectives.describe(e) for e in calls if collectives.is_call(e)], [], 0
    exchanges: list[tuple[float, Collective]] = []
    kernels: list[_Kernel] = []
    unlinked = 0
    # A kernel may run long after its launch, but not before.
    for category in ON_GPU:
        for event in source.within(category, (window[0], float("inf"))):
            launch = source.launch_of(event)
            if launch is None:
                unlinked += event.start < window[1]
                continue
            if not window[0] <= launch.start < window[1]:
                continue
            if collectives.is_kernel(event):
                call = source.by_external_id.get(event.number("External id") or -1)
                exchanges.append((launch.start, collectives.describe(event, call)))
            else:
                kernels.append(_Kernel(event, launch.start))
    kernels.sort(key=lambda kernel: (kernel.launched, kernel.event.start))
    return [c for _, c in sorted(exchanges, key=lambda pair: pair[0])], kernels, unlinked


def _gpu_clock(
    kernels: Sequence[_Kernel], exchanges: Sequence[Collective], library: Sequence[Interval]
) -> tuple[list[Interval], Marks]:
    computing = [k for k in kernels if not _inside(k.launched, library)]
    copying = [k for k in kernels if _inside(k.launched, library)]
    communicating = union((c.event.start, c.event.end) for c in exchanges)
    busy = union((k.event.start, k.event.end) for k in computing)
    # A gap between kernels is a wait if the kernel behind it had been launched by then; else the CPU was too slow.
    gaps: list[Interval] = []
    reached = float("-inf")
    for kernel in sorted(computing, key=lambda k: k.event.start):
        if kernel.event.start > reached > float("-inf"):
            gaps.append((max(reached, kernel.launched), kernel.event.start))
        reached = max(reached, kernel.event.end)
    waits = intersection(union(gaps), communicating)
    copies = difference(union((k.event.start, k.event.end) for k in copying), busy)
    clock = Clock(union([*waits, *copies]))
    launched = [k.launched for k in computing]
    ends = list(accumulate((k.event.end for k in computing), max))
    starts = list(accumulate((k.event.start for k in reversed(computing)), min))[::-1]

    def first_after(at: float) -> float:
        index = bisect_left(launched, at)
        return clock(starts[index] if index < len(starts) else ends[-1]) if starts else 0.0

    def last_before(at: float) -> float:
        index = bisect_left(launched, at)
        return clock(ends[index - 1] if index else starts[0]) if starts else 0.0

    return waits, Marks(first_after, last_before)


def _cpu_clock(
    busy: Sequence[Interval], exchanges: Sequence[Collective], library: Sequence[Interval]
) -> tuple[list[Interval], Marks]:
    waits = difference(union((c.event.start, c.event.end) for c in exchanges), busy)
    clock = Clock(union([*waits, *library]))
    return waits, Marks(clock, clock)


def _layers(
    modules: Sequence[Event], calls: Sequence[Event], creators: set[Event], begins: float
) -> tuple[list[str], list[float], float]:
    """Return names and starts of the layers of the forward pass, and its end.

    The layers are the innermost modules called, if the profiler recorded Python's calls (`with_stack=True`), otherwise
    the outermost operators that a backward operator refers to.
    """
    modules = [m for m in modules if m.name.startswith(_MODULE)]
    if modules:
        return _module_layers(modules, begins)
    names, starts = [], []
    reached = float("-inf")
    seen: Counter[str] = Counter()
    at = sorted(e.start for e in creators)
    for call in calls:
        if call.start < reached:
            continue
        reached = call.end
        index = bisect_left(at, call.start)
        if index < len(at) and at[index] <= call.end and not collectives.is_library_code(call):
            seen[call.name] += 1
            names.append(call.name + (f"#{seen[call.name]}" if seen[call.name] > 1 else ""))
            starts.append(call.start)
    return names, starts, begins


def _module_layers(modules: Sequence[Event], begins: float) -> tuple[list[str], list[float], float]:
    stack: list[Event] = []
    paths: list[list[str]] = []
    leaf = [True] * len(modules)
    index_of: dict[Event, int] = {}
    for index, module in enumerate(modules):
        while stack and stack[-1].end <= module.start:
            stack.pop()
        for outer in stack:
            leaf[index_of[outer]] = False
        stack.append(module)
        index_of[module] = index
        paths.append([m.name.removeprefix(_MODULE) for m in stack])
    outermost = [m for i, m in enumerate(modules) if len(paths[i]) == 1]
    seen: Counter[str] = Counter()
    names = []
    chosen = [i for i in range(len(modules)) if leaf[i]]
    for index in chosen:
        path = [name for name in paths[index] if not _WRAPPERS.match(name)] or paths[index][-1:]
        name = ".".join(path[1:] or path)
        seen[name] += 1
        names.append(name + (f"#{seen[name]}" if seen[name] > 1 else ""))
    starts = [modules[index].start for index in chosen]
    starts[0] = min(starts[0], outermost[0].start)
    return names, starts, min(begins, max(m.end for m in outermost))


def _first_differentiated(backward: Sequence[Event], operators: Sequence[Event]) -> float:
    """Return when the first operator began that a backward pass refers to."""
    numbers = {e.number("Sequence number") for e in backward} - {None}
    begins = backward[0].start
    return min(
        (e.start for e in operators if e.start < begins and e.number("Sequence number") in numbers), default=begins
    )


def _gradients(  # noqa: PLR0917
    source: Source,
    operators: Sequence[Event],
    backward: Sequence[Event],
    creators: dict[int | None, Event],
    starts: Sequence[float],
    exchanges: Sequence[Collective],
    marks: Marks,
) -> tuple[list[tuple[tuple[int, ...], int, str, float]], bool]:
    """Return layers, bytes, dtype and time of each gradient in order, and whether they are buckets."""
    ordered: list[tuple[Event, int]] = []
    layer: dict[object, int] = {}
    begins, ends = backward[0].start, max(e.end for e in backward)
    for event in operators:
        if not begins <= event.start <= ends:
            continue
        if event.name == _ACCUMULATE:
            ordered.append((event, layer.get(event.thread, len(starts) - 1)))
        elif event.name.startswith(EVALUATION):
            creator = creators.get(event.number("Sequence number"))
            if creator is not None:
                layer[event.thread] = max(0, bisect_right(starts, creator.start) - 1)
    sizes = [collectives.input_bytes(event) for event, _ in ordered]
    if all(sizes):
        return [
            (
                (at,),
                size[0],
                collectives.dtype_name(str(event.args["Input type"][0])),
                marks.last_before(event.end),
            )
            for (event, at), size in zip(ordered, sizes, strict=True)
            if size[0]
        ], False
    # Without shapes, the collectives say how many bytes were reduced together.
    result = []
    reached = 0
    for collective in exchanges:
        launch = source.launch_of(collective.event) if source.on_gpu else collective.event
        if launch is None or launch.start < begins or not collective.bytes:
            continue
        if collective.kind not in {"all-reduce", "reduce-scatter"}:
            continue
        before = reached
        while reached < len(ordered) and ordered[reached][0].start <= launch.start:
            reached += 1
        inside = tuple(dict.fromkeys(at for _, at in ordered[before:reached]))
        if inside:
            result.append((inside, collective.bytes, collective.dtype, marks.last_before(launch.start)))
    return result, True


def _batch(calls: Sequence[Event], first: float) -> int:
    """Return the first dimension of the first operator's input; 0 if unknown."""
    for event in calls:
        dims = event.args.get("Input Dims")
        if event.start < first or not isinstance(dims, list):
            continue
        # An embedding's first argument is its table.
        shapes = dims[1:] if event.name == "aten::embedding" else dims
        for shape in shapes:
            if isinstance(shape, list) and len(shape) > 1 and all(isinstance(n, int) for n in shape):
                return int(shape[0])
    return 0
