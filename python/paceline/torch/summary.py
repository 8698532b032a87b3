"""What a recording says about itself, for people and as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paceline.torch.overhead import Overhead


@dataclass(frozen=True)
class Summary:
    """The totals of a trace and what does not stand in it; times in seconds."""

    name: str
    device: str
    batch: int
    steps: int
    """Steps of which the medians are."""
    warmup: int
    forward_s: float
    """All forward layers, `(accumulation)` and `(loss)` included."""
    loss_s: float
    backward_s: float
    optimizer_s: float
    input_s: float | None
    """Between two steps: input, zero_grad, logging. Not a part of the trace."""
    step_s: float
    """One whole step without hooks where that was measured, else with them."""
    samples_per_s: float
    parameters: int
    """Elements of all parameters, those without a gradient included."""
    gradients: int
    """Tensors that have a gradient."""
    gradient_bytes: int
    overhead: Overhead | None
    unused: tuple[str, ...]
    """Parameters that never got a gradient: not in the trace."""
    frozen: tuple[str, ...]
    """Parameters with requires_grad=False: not in the trace."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as JSON can hold it; `overhead_ratio` is None where it was not measured."""
        data = asdict(self)
        data["overhead_ratio"] = self.overhead.ratio if self.overhead else None
        return data

    def __str__(self) -> str:
        """Say it in a few lines."""
        lines = [
            f"{self.name}: batch {self.batch} on {self.device}",
            f"median of {self.steps} steps after {self.warmup} of warm-up",
            f"forward {_ms(self.forward_s)} (loss {_ms(self.loss_s)}), backward {_ms(self.backward_s)}, "
            f"optimizer {_ms(self.optimizer_s)}, "
            f"input {'not seen' if self.input_s is None else _ms(self.input_s)} (not in the trace)",
            f"{self.parameters:,} parameters, {self.gradients} gradients of {self.gradient_bytes:,} bytes",
            f"{self.samples_per_s:.4g} samples/s; {self.overhead or 'overhead not measured: too few steps'}",
        ]
        if self.unused:
            lines.append(f"without a gradient, left out: {', '.join(self.unused)}")
        if self.frozen:
            lines.append(f"frozen, left out: {', '.join(self.frozen)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
