"""Summary and overhead of a recording, of whatever framework, and writing traces to files."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol, TypeVar

from paceline._internal.parameters import not_trained
from paceline.errors import PacelineError

INPUT_LAYER = "(input)"
LOSS_LAYER = "(loss)"
ACCUMULATION_LAYER = "(accumulation)"


class RecordingError(PacelineError, RuntimeError):
    """The recorded steps do not give a trace; the message says why."""


@dataclass(frozen=True)
class Medians:
    """A worker of the trace, and values for which the trace has no field. Times are in seconds."""

    worker: dict[str, Any]
    dtype: str
    batch: int
    """0 if unknown."""
    loss_s: float
    input_s: float | None
    step_s: float
    """Median of the whole steps."""
    steps: int
    unused: tuple[str, ...]
    frozen: tuple[str, ...]
    not_trained: tuple[dict[str, Any], ...]
    """Both, as the trace has them: names and bytes."""
    notes: tuple[str, ...]


class Step(Protocol):
    """The durations of a recorded step, in seconds; steps of one shape have the same layers, passes and gradients."""

    @property
    def shape(self) -> Hashable:
        """All that has to be the same in steps of which medians are taken."""

    @property
    def accumulation_s(self) -> float:
        """Duration of the passes before the last one."""

    @property
    def loss_s(self) -> float:
        """Duration of the loss."""

    @property
    def input_s(self) -> float | None:
        """From the end of the previous step to the first forward."""


OneStep = TypeVar("OneStep", bound=Step)


def of_the_usual_shape(steps: Sequence[OneStep]) -> list[OneStep]:
    """Return the steps of the shape that most have; of several such, that of the last step."""
    shapes = Counter(step.shape for step in steps)
    most = max(shapes.values())
    usual = next(step.shape for step in reversed(steps) if shapes[step.shape] == most)
    return [step for step in steps if step.shape == usual]


def numbered(layers: Sequence[int], name_of: Callable[[int], str]) -> Iterator[str]:
    """Yield the names of layers in the order of their calls; `#2` marks the second call of a layer."""
    calls: Counter[int] = Counter()
    for layer in layers:
        calls[layer] += 1
        yield name_of(layer) + (f"#{calls[layer]}" if calls[layer] > 1 else "")


def with_special_layers(
    forward: list[dict[str, Any]], steps: Sequence[Step], *, with_input: bool
) -> tuple[list[dict[str, Any]], float, float | None]:
    """Return the layers with those of accumulation, loss and input, and the medians of the loss and of the input.

    The first pass waits for parameters, so the others follow the layers and precede the loss.
    """
    loss_s = median(step.loss_s for step in steps)
    accumulation_s = median(step.accumulation_s for step in steps)
    inputs = [step.input_s for step in steps if step.input_s is not None]
    input_s = median(inputs) if inputs else None
    before = [(INPUT_LAYER, input_s)] if with_input and input_s else []
    after = [(ACCUMULATION_LAYER, accumulation_s), (LOSS_LAYER, loss_s)]
    first, last = (
        [{"layer": name, "duration_s": seconds(value)} for name, value in special if seconds(value) > 0]
        for special in (before, after)
    )
    return [*first, *forward, *last], loss_s, input_s


def whole_elements(size_bytes: int, itemsize: int) -> int:
    """Return bytes rounded up to whole elements of `itemsize` bytes."""
    return math.ceil(size_bytes / itemsize) * itemsize


def seconds(value: float) -> float:
    """Return seconds as a trace has them, in whole nanoseconds."""
    return round(value, 9)


def notes_of_steps(alike: int, steps: int) -> list[str]:
    """Return a note on steps that were left out, if there are any."""
    left = steps - alike
    return [f"{left} of {steps} steps had different layers or passes and were left out"] if left > 0 else []


def notes_of_passes(passes: int) -> list[str]:
    """Return a note on several passes in a step, if there are several."""
    return [f"{passes} passes per step: all but the last are in the layer {ACCUMULATION_LAYER}"] if passes > 1 else []


@dataclass(frozen=True)
class Summary:
    """Totals of a trace, and omitted parameters. Times are in seconds."""

    name: str
    device: str
    batch: int
    steps: int
    """Recorded steps, over which the medians are taken."""
    warmup: int
    forward_s: float
    """All forward layers, `(accumulation)` and `(loss)` included, but not `(input)`."""
    loss_s: float
    backward_s: float
    optimizer_s: float
    input_s: float | None
    """Time between steps: input, zero_grad, logging."""
    input_in_trace: bool
    """Whether that time is the trace's first layer, `(input)`."""
    step_s: float
    """Duration of a whole step, without hooks if that was measured."""
    samples_per_s: float
    parameters: int
    """Elements of all parameters, including those without a gradient."""
    gradients: int
    """Number of tensors with a gradient."""
    gradient_bytes: int
    overhead: Overhead | None
    unused: tuple[str, ...]
    """Parameters without a gradient."""
    frozen: tuple[str, ...]
    """Parameters with requires_grad=False."""
    not_trained_bytes: int
    """Of both, which ranks hold, and gather if they shard them."""
    notes: tuple[str, ...]
    in_order: bool = True
    """Whether ranks compute gradients in the same order, one after another."""
    why_no_overhead: str = "too few steps"
    """Why `overhead` is None, if it is."""
    forecast_options: str = ""
    """Of `paceline simulate`, which a forecast of the script needs, such as `--sharding zero3`."""

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON; `overhead_ratio` is None if it was not measured."""
        data = asdict(self)
        data["overhead_ratio"] = self.overhead.ratio if self.overhead else None
        return data

    def __str__(self) -> str:
        """Return a few lines for people."""
        lines = [
            f"{self.name}: batch {self.batch} on {self.device}",
            f"median of {self.steps} steps after {self.warmup} of warm-up",
            f"forward {_ms(self.forward_s)} (loss {_ms(self.loss_s)}), backward {_ms(self.backward_s)}, "
            f"optimizer {_ms(self.optimizer_s)}, "
            f"input {'not seen' if self.input_s is None else _ms(self.input_s)}"
            f"{'' if self.input_in_trace else ' (not in the trace)'}",
            f"{self.parameters:,} parameters, {self.gradients} gradients of {self.gradient_bytes:,} bytes",
            f"{self.samples_per_s:.4g} samples/s; {self.overhead or f'overhead not measured: {self.why_no_overhead}'}",
        ]
        lines += not_trained(self.unused, self.frozen, self.not_trained_bytes)
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def summary_of(
    trace: dict[str, Any],
    medians: Medians,
    cost: Overhead | None,
    **others: Any,  # noqa: ANN401
) -> Summary:
    """Return the summary of a trace of one worker; `others` are the fields that neither it nor its medians have."""
    worker = trace["workers"][0]
    step_s = cost.bare_s if cost else medians.step_s
    return Summary(
        name=trace["name"],
        device=trace["device"],
        batch=trace["batch"],
        steps=medians.steps,
        forward_s=sum(layer["duration_s"] for layer in worker["forward"] if layer["layer"] != INPUT_LAYER),
        loss_s=medians.loss_s,
        backward_s=worker["backward_s"],
        optimizer_s=worker["optimizer_s"],
        input_s=medians.input_s,
        step_s=step_s,
        samples_per_s=trace["batch"] / step_s,
        gradients=len(worker["gradients"]),
        gradient_bytes=sum(gradient["bytes"] for gradient in worker["gradients"]),
        overhead=cost,
        unused=medians.unused,
        frozen=medians.frozen,
        not_trained_bytes=sum(one["bytes"] for one in medians.not_trained),
        **others,
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def check_writable(path: Path) -> None:
    """Raise OSError if `path` cannot be written, so that the error comes before recording, not after."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"the folder {path.parent} is not writable")


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write JSON to a temporary file and rename it to `path`, so readers never see a partial file; follow links."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        return
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
        # mkstemp makes files that only the owner can read; a trace gets the user's default mode.
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class Overhead:
    """Median step with and without the hooks, from the end of one step to the end of the next, in seconds."""

    recorded_s: float
    bare_s: float
    recorded_steps: int
    bare_steps: int
    noise: float
    """Half the interquartile range of the bare steps divided by their median; smaller differences are noise."""

    @property
    def ratio(self) -> float:
        """Recorded divided by bare; 1.014 means 1.4 % longer."""
        return self.recorded_s / self.bare_s

    def __str__(self) -> str:
        """Return one sentence for people."""
        percent = abs(self.ratio - 1) * 100
        change = f"{percent:.1f} % {'longer' if self.ratio >= 1 else 'shorter'}"
        recorded = f"median {self.recorded_s * 1e3:.4g} ms of {self.recorded_steps}"
        bare = f"{self.bare_s * 1e3:.4g} ms of {self.bare_steps} without hooks"
        spread = f", which vary by ±{self.noise * 100:.1f} %" if self.bare_steps > 1 else ""
        return f"recording made the step {change} ({recorded} against {bare}{spread})"


def overhead(recorded_s: Sequence[float], bare_s: Sequence[float]) -> Overhead | None:
    """Compare the durations of recorded and bare steps; None if either is empty."""
    if not recorded_s or not bare_s or median(bare_s) <= 0:
        return None
    bare = median(bare_s)
    low, _, high = quantiles(bare_s, n=4, method="inclusive") if len(bare_s) > 1 else (bare, bare, bare)
    return Overhead(median(recorded_s), bare, len(recorded_s), len(bare_s), noise=(high - low) / 2 / bare)
