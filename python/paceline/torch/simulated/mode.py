"""The mode in which a script runs without its GPU: every operator advances the clock and is counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

import paceline
from paceline._internal.recording import RecordingError
from paceline.catalog.gpus import Hardware, find_hardware
from paceline.operators.machine import Machine
from paceline.operators.operator import is_multi_tensor
from paceline.operators.power import limited
from paceline.torch.recorder.backward import inside_backward
from paceline.torch.simulated.account import Account
from paceline.torch.simulated.calls import is_view, kernels_of, operator_of, storage_of, tensors_in, written_by
from paceline.torch.simulated.clock import SimulatedClock
from paceline.torch.simulated.dispatch import dispatch_as, stand_in_for_transformers
from paceline.torch.simulated.distributed import stand_in_for_distributed
from paceline.torch.simulated.quantized import INSTEAD, stand_in_for_bitsandbytes
from paceline.torch.simulated.stand_ins import HereInsteadOfCuda, enable_autocast, stand_in
from paceline.torch.simulated.values import is_drawn, keep_value, value_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": None, "fp32": None}
"""Dtypes of operators by `--dtype`; for None, those of the script."""


@dataclass
class Simulation:
    """A GPU that is not there."""

    hardware: Hardware
    dtype: str | None
    clock: SimulatedClock
    tf32: Callable[[], bool]
    """Whether matrix products in FP32 may use TF32."""
    account: Account = field(default_factory=Account)
    notes: list[str] = field(default_factory=list)
    forecast_options: str = ""
    """Options that forecasts of the script need, if it shards its model."""
    _writers: dict[int, int] = field(default_factory=dict)
    """By storage, the place of the operator that has written it last."""
    updating: bool = False
    """Whether an optimizer runs: it reads its step counters on the host, without waiting for the GPU."""

    @property
    def device(self) -> str:
        """The GPU's name, for the trace."""
        return self.hardware.title

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:  # noqa: ANN401
        """Let the GPU run a call."""
        account = self.account
        compiled = not self.updating and account.fuses()
        phase = "update" if self.updating else "backward" if inside_backward() else "forward"
        operator = operator_of(
            func, args, kwargs, out, compiled=compiled, phase=phase, tf32=self.tf32(), writers=self._writers
        )
        place = -1
        if operator is not None:
            for kernel in kernels_of(operator):
                place = self.clock.run(kernel)
                account.count(place)
        elif is_view(func):
            return
        # An optimizer's outputs are too many to be told apart, and nothing is fused with it.
        writer = -1 if operator is not None and is_multi_tensor(operator.name) else place
        for tensor in written_by(func, args, kwargs, out):
            self._writers[storage_of(tensor)] = writer

    def note(self, text: str) -> None:
        """Keep a note for the summary, once."""
        if text not in self.notes:
            self.notes.append(text)

    def shard(self, options: str) -> None:
        """Keep the options with which what the script shards is forecast."""
        self.forecast_options = options

    def update_begins(self, *_: object) -> None:
        """Before a step of an optimizer."""
        self.updating = True
        self.account.end_backward()

    def update_ends(self, *_: object) -> None:
        """After a step of an optimizer."""
        self.updating = False
        self.account.end_step()

    def provenance(self) -> str:
        """How the times were made."""
        kinds = self.dtype or "the script's dtypes"
        calibration = self.hardware.calibration
        measured = "" if calibration is None else f", as measured there ({calibration.accuracy}),"
        return (
            f"computed for {self.hardware.under_limit}{measured} operator by operator from the script ({kinds}), run "
            f"without data by torch {torch.__version__}"
        )

    def summary(self, model: nn.Module) -> dict[str, Any]:
        """Return what was counted in a step, by class of operator and by module."""
        steps = max(1, self.account.steps)
        self.clock.advance()
        works = self.clock.works
        return {
            "gpu": self.hardware.name,
            "dtype": self.dtype,
            "classes": [
                {"class": kind, "phase": phase, **totals.per_step(steps)}
                for (kind, phase), totals in sorted(self.account.by_kind(works).items())
            ],
            "modules": self.account.by_module(model, works),
        }


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator below autograd, and above the fake tensors that compute its result's shape."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._simulation = simulation

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # Two thirds of all calls: torch asks with each operator.
        given = dict(kwargs or {})
        simulation = self._simulation
        if func is torch.ops.aten._local_scalar_dense.default:
            value = value_of(args[0])
            if not simulation.updating and not is_drawn(args[0]):
                simulation.clock.synchronize()
                _note_branch(simulation, value)
            return value
        if func is torch.ops.aten.equal.default:
            return False
        if (instead := INSTEAD.get(func._schema.name)) is not None:
            with self:
                return instead(*args, **given)
        try:
            out = func(*args, **given)
        except (DynamicOutputShapeException, DataDependentOutputException) as error:
            raise RecordingError(
                f"{func} gives a result that depends on data, which a recording without the device does not have",
                remedy="a recording on a device, or the script without it",
            ) from error
        gpu = not simulation.hardware.is_cpu
        if gpu and func is torch.ops.aten.convolution_backward.default and out[1] is not None:
            # On a GPU, it has the layout of the weight.
            out = (out[0], torch.empty_like(args[2], dtype=out[1].dtype), out[2])
        simulation.dispatch(func, args, given, out)
        keep_value(func, args, out)
        if inside_backward():
            simulation.account.made(tensors_in((args, given)), tensors_in(out))
        return out


def _note_branch(simulation: Simulation, value: float) -> None:
    """Note that a layer has read a value, by which it may choose what to compute."""
    if isinstance(value, float):
        return
    frame: FrameType | None = sys._getframe(1)
    place, in_layer = "", False
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_NOT_THE_SCRIPT):
            place = place or f"{Path(path).name}:{frame.f_lineno}"
        in_layer = in_layer or frame.f_code.co_name == "_call_impl"
        frame = frame.f_back
    if in_layer and place:
        simulation.note(
            f"{place}: a layer reads a number that does not exist without the device, and gets {value}: what it "
            "computes only otherwise is missing from the estimate"
        )


_NOT_THE_SCRIPT = (str(Path(torch.__file__).parent), str(Path(paceline.__file__).parent), "<")
_current: list[Simulation] = []


def enter(gpu: str, dtype: str | None, power_limit: float | None = None) -> Simulation:
    """Let the rest of this process run without data on the named GPU."""
    hardware = find_hardware(gpu)
    if power_limit is not None:
        hardware = limited(hardware, power_limit)
    clock = SimulatedClock(Machine(hardware))

    def tf32() -> bool:
        return dtype == "tf32" or (dtype is None and torch.backends.cuda.matmul.allow_tf32)

    simulation = Simulation(hardware, dtype, clock, tf32)
    stand_in(hardware, clock.synchronize, simulation.note)
    if not hardware.is_cpu:
        dispatch_as(hardware)
    stand_in_for_transformers(simulation.account.fuses)
    stand_in_for_bitsandbytes()
    stand_in_for_distributed(simulation.shard, simulation.account.ignore)
    simulation.account.attach()
    simulation.account.compiled.noted = simulation.note
    simulation.account.compiled.attach()
    register_optimizer_step_pre_hook(simulation.update_begins)
    register_optimizer_step_post_hook(simulation.update_ends)
    low = DTYPES[dtype] if dtype is not None else None
    if low is not None:
        enable_autocast(low)
    FakeTensorMode(allow_non_fake_inputs=True).__enter__()
    if not hardware.is_cpu:
        HereInsteadOfCuda().__enter__()  # type: ignore[no-untyped-call]
    _Operators(simulation).__enter__()  # type: ignore[no-untyped-call]
    _current.append(simulation)
    return simulation
