"""The recorder: warm-up steps, recorded steps, then steps without hooks to measure the hooks' overhead."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from paceline._internal.recording import (
    LOSS_LAYER,
    Overhead,
    RecordingError,
    Summary,
    check_writable,
    of_the_usual_shape,
    overhead,
    summary_of,
    write_json,
)
from paceline.operators.steps import step_of
from paceline.torch.recorder.clock import Clock, Mark, clock_for
from paceline.torch.recorder.closures import Arguments, Closure, around_closure
from paceline.torch.recorder.communication_hooks import RankStepHooks
from paceline.torch.recorder.fsdp2 import ShardedUnits
from paceline.torch.recorder.modules import class_name, has_fsdp2, is_compiled_in_place, unwrapped
from paceline.torch.recorder.provenance import describe_environment, device_name, job_size, synchronizing_library
from paceline.torch.recorder.states import state_size
from paceline.torch.recorder.step import Event, EventKind, take_apart
from paceline.torch.recorder.step_hooks import RawEvent, StepHooks
from paceline.torch.recorder.trace import CALLED_TWICE, Medians, combine

if TYPE_CHECKING:
    from paceline.torch.simulated.mode import Simulation


class _Phase(Enum):
    WARMUP = "warm-up"
    RECORDED = "recorded"
    BARE = "bare"
    STOPPED = "stopped"


class Recorder:
    """Records the steps of a training loop; made by `record`.

    A step ends where `optimizer.step()` returns. The first `warmup` steps run without hooks, the next `steps` with
    them; then the hooks are removed, and up to `steps` more steps are timed to measure the hooks' overhead. A loop
    that ends earlier gives a trace of the steps recorded so far.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        warmup: int = 3,
        steps: int = 10,
        name: str | None = None,
        batch: int | None = None,
        output: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        earlier_steps: int = 0,
        alternate: bool = False,
        simulation: Simulation | None = None,
        with_input: bool = False,
        raises: bool = True,
    ) -> None:
        """Take the arguments of `record`, and some more for tests and launchers.

        Args:
            model: As for `record`.
            optimizer: As for `record`.
            warmup: As for `record`.
            steps: As for `record`.
            name: As for `record`.
            batch: As for `record`.
            output: As for `record`.
            clock: Replaces the device's own clock.
            earlier_steps: Steps that ran before recording started; they count as warm-up.
            alternate: Run a step without hooks after each recorded one, so that drift in the machine's speed does not
                count as overhead. A loop that ends early then has half as many recorded steps.
            simulation: The device that is simulated, whose clock is used; the hooks take none of its time.
            with_input: Make the time between steps the trace's first layer. Real input is a part of training; that of a
                benchmark, or of a simulated device, is not.
            raises: Whether a step that cannot be recorded raises an error in the loop, or only ends the recording.

        Raises:
            ValueError: A number is out of range, or the model is not on one CPU or CUDA device.
            OSError: `output` cannot be written.
        """
        if warmup < 0 or steps < 1:
            raise ValueError(f"warmup must be at least 0 and steps at least 1, not {warmup} and {steps}")
        if batch is not None and batch < 1:
            raise ValueError(f"batch must be at least 1, not {batch}")
        if isinstance(model, nn.DataParallel) and len(model.device_ids) > 1:
            raise ValueError("a trace describes one worker: record the model without DataParallel over several GPUs")
        self.warmup = max(warmup, earlier_steps)
        self.steps = steps
        self.name = name or class_name(unwrapped(model))
        self.steps_seen = earlier_steps
        self._alternate = alternate
        self._batch = batch
        self._output = None if output is None else Path(output)
        if self._output is not None:
            check_writable(self._output)
        self._model: nn.Module | None = model
        self._optimizer: torch.optim.Optimizer | None = optimizer
        # A simulated rank exchanges nothing. FSDP2 does on one rank what it does on several.
        self._distributed = simulation is None and job_size() > 1
        self._exchanges = self._distributed or (simulation is None and has_fsdp2(model))
        self._stepping = False
        self._with_input, self._raises = with_input, raises
        self._refused: RecordingError | None = None
        self._device = _device_of(model)
        self._simulation = simulation
        self._clock = clock or (simulation.clock if simulation else clock_for(self._device))
        self._phase = _Phase.STOPPED
        self._hooks: StepHooks | None = None
        self._handles: list[RemovableHandle] = []
        self._step_start: Mark | None = None
        self._periods: dict[_Phase, list[tuple[Mark, Mark]]] = {_Phase.RECORDED: [], _Phase.BARE: []}
        self._bare_before = 0
        self._logs: list[list[RawEvent]] = []
        self._remarks: list[str] = _remarks(model) if self._distributed else []
        if getattr(optimizer, "steps_on_servers", False):
            self._remarks.append("servers ran the optimizer, so its updates are not in the trace")
        self._library = synchronizing_library(model, optimizer) if simulation is None else ""
        if simulation is not None and isinstance(model, nn.parallel.DistributedDataParallel):
            self._library = "ddp"
        self._state_size: float | None = None
        self._medians: Medians | None = None
        self._kept: tuple[tuple[int, ...], tuple[tuple[int, int], ...]] | None = None

    def __enter__(self) -> Recorder:
        """Start watching the optimizer."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Remove all hooks. Raises RecordingError if no step was recorded, unless the block itself raised."""
        self.stop()
        if kind is None:
            self._combined()  # Raises RecordingError.
        if self._output is not None and self._logs:
            try:
                self.save(self._output)
            except Exception:
                if kind is None:
                    raise

    def start(self) -> None:
        """Start recording. Without a `with` block, call `stop` at the end.

        Raises:
            RecordingError: The recorder was used before.
        """
        if self._optimizer is None or self._phase is not _Phase.STOPPED:
            raise RecordingError("a recorder can be used once", remedy="paceline.torch.Recorder(…), a new one")
        if getattr(self._optimizer, "steps_on_servers", False):
            self._handles = self._watch_all_steps(self._optimizer)
        else:
            self._handles = [
                self._optimizer.register_step_pre_hook(self._before_step),
                self._optimizer.register_step_post_hook(self._after_step),
            ]
        try:
            self._enter(_Phase.RECORDED if self.steps_seen >= self.warmup else _Phase.WARMUP)
        except BaseException:
            self.stop()
            raise

    def _watch_all_steps(self, own: torch.optim.Optimizer) -> list[RemovableHandle]:
        """Watch an optimizer that has no hooks of its own, as nothing steps here, by those of all optimizers."""

        def before(optimizer: Any, args: Any, kwargs: Any) -> Any:  # noqa: ANN401 - as torch's
            return self._before_step(optimizer, args, kwargs) if optimizer is own else None

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401
            if optimizer is own:
                self._after_step(optimizer, args, kwargs)

        return [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]

    def stop(self) -> None:
        """Remove every hook and release the model and the optimizer. Idempotent."""
        self._phase = _Phase.STOPPED
        if self._hooks is not None:
            self._hooks.release()
        while self._handles:
            self._handles.pop().remove()
        self._model = None
        self._optimizer = None

    @property
    def recorded(self) -> int:
        """Number of steps recorded so far."""
        return len(self._logs)

    @property
    def finished(self) -> bool:
        """Whether all requested steps are recorded and the hooks removed."""
        return len(self._logs) >= self.steps

    @property
    def done(self) -> bool:
        """Whether the steps without hooks are timed as well, so that more steps would not help."""
        return self.finished and (
            self._phase is _Phase.STOPPED or len(self._periods[_Phase.BARE]) >= self._bare_before + self.steps
        )

    @property
    def steps_wanted(self) -> int:
        """Number of steps after which the recorder is `done`."""
        return self.warmup + 2 * self.steps

    @property
    def trace(self) -> dict[str, Any]:
        """The trace in the format of docs/reference/trace-format.md. Raises RecordingError until a step is recorded."""
        medians = self._combined()
        batch = self._batch or medians.batch
        if batch < 1:
            raise RecordingError("the batch size cannot be inferred from the model's arguments", remedy="batch=32")
        worker = self._with_activations(medians.worker, batch)
        operators = self._operators(worker)
        return {
            "format": "paceline-trace",
            "version": 1 if operators is None else 2,
            "name": self.name,
            "provenance": self._provenance(medians),
            "batch": batch,
            "dtype": medians.dtype,
            "device": self._simulation.device if self._simulation else device_name(self._device),
            **({"library": self._library} if self._library else {}),
            "workers": [worker],
            **({"frozen": list(medians.not_trained)} if medians.not_trained else {}),
            **({} if self._state_size is None else {"optimizer_bytes": round(self._state_size * medians.trained)}),
            **({} if operators is None else {"operators": operators}),
        }

    def _operators(self, worker: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the operators of the last usual step, if the device is simulated: there, marks are their places.

        Args:
            worker: The trace's, whose layers and gradients they are divided among.
        """
        if self._simulation is None or self._hooks is None:
            return None
        table, taken = self._hooks.table, []
        for log in self._logs:
            begin = log[0][2]
            step = take_apart([Event(kind, key, float(place - begin)) for kind, key, place in log], table)
            if step is not None:
                taken.append((step, log[-1][2]))
        last = of_the_usual_shape([step for step, _ in taken])[-1]
        end = next(end for step, end in taken if step is last)
        counted = combine([last], table, self._hooks.gradients, with_input=self._input_in_trace()).worker
        return step_of(worker, counted, self._simulation.clock.operators[:end]).document()

    def keep_activations(self, kept: Sequence[tuple[int, int]], passing: Mapping[int, int]) -> None:
        """Add to the layers the bytes that a simulated step kept for its backward pass, and what only that needed.

        Args:
            kept: Modules (by `id`, 0 outside) in the order of their calls, and the bytes kept from each call on.
            passing: The most bytes at once in a module's backward pass.
        """
        if self._hooks is None:
            return
        table, index = self._hooks.table, self._hooks.index_of_modules()
        calls = [(index.get(module), size, passing.get(module, 0)) for module, size in kept]
        inside = [module for module, *_ in calls if module is not None]
        following: dict[int, int | None] = dict(enumerate([*inside[1:], None]))
        layers: list[int] = []
        bytes_of: list[tuple[int, int]] = []
        loss, seen = (0, 0), 0
        around = 0
        """Of modules around all layers: their own operators are, in the backward pass, those of a loss in the model."""
        for module, size, only in calls:
            if module is None:
                loss = (loss[0] + size, max(loss[1], only))
                continue
            if table.is_layer(module, following[seen]):
                layers.append(module)
                bytes_of.append((0, 0))
            seen += 1
            if bytes_of:
                bytes_of[-1] = (bytes_of[-1][0] + size, max(bytes_of[-1][1], only))
            else:
                around = max(around, only)
        if bytes_of:
            bytes_of[-1] = (bytes_of[-1][0], max(bytes_of[-1][1], around))
        self._kept = (tuple(layers), (*bytes_of, loss))

    def _with_activations(self, worker: dict[str, Any], batch: int) -> dict[str, Any]:
        """Return the worker with bytes of one sample, if the layers are those of a pass.

        Of several passes in a step, which are alike, the last one counts: its bytes are there at once, `batch` the
        samples of all.
        """
        names = [layer["layer"] for layer in worker["forward"]]
        own = [name for name in names if not name.startswith("(")]
        if self._kept is None or not own or len(self._kept[0]) % len(own):
            return worker
        passes = len(self._kept[0]) // len(own)
        *kept, (size, only) = self._kept[1]
        kept, loss = kept[-len(own) :], (size // passes, only)
        if LOSS_LAYER not in names:
            # The model computes its loss itself, after its last layer.
            kept[-1] = (kept[-1][0] + loss[0], max(kept[-1][1], loss[1]))
        sizes = iter(kept)
        forward = []
        for layer in worker["forward"]:
            if layer["layer"].startswith("("):
                size, only = loss if layer["layer"] == LOSS_LAYER else (0, 0)
            else:
                size, only = next(sizes)
            forward.append({**layer, "activation_bytes": -(-size // batch), "backward_bytes": -(-only // batch)})
        return {**worker, "forward": forward}

    @property
    def summary(self) -> Summary:
        """Totals, overhead, and what the trace leaves out."""
        medians = self._combined()
        assert self._hooks is not None
        return summary_of(
            self.trace,
            medians,
            self.overhead,
            warmup=self.warmup,
            input_in_trace=self._input_in_trace(),
            parameters=sum(self._hooks.table.parameter_elements),
            notes=self._notes(medians),
            forecast_options=self._forecast_options,
        )

    @property
    def overhead(self) -> Overhead | None:
        """Overhead of recording; None until a step without hooks was timed, and on a simulated device."""
        if self._simulation is not None:
            return None
        periods = {phase: [self._clock.seconds(pair)[1] for pair in pairs] for phase, pairs in self._periods.items()}
        return overhead(periods[_Phase.RECORDED], periods[_Phase.BARE])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace atomically, replacing an existing file.

        Args:
            path: The file.

        Raises:
            RecordingError: No step was recorded.
            OSError: The file cannot be written.
        """
        write_json(Path(path), self.trace)

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        if phase is _Phase.RECORDED:
            assert self._model is not None
            if self._hooks is None:
                if self._alternate:  # The steps in between are a better comparison.
                    self._periods[_Phase.BARE].clear()
                self._bare_before = len(self._periods[_Phase.BARE])
                self._hooks = (RankStepHooks if self._exchanges else StepHooks)(self._model, self._clock)
            self._hooks.attach()
        elif phase is _Phase.BARE and self._hooks is not None:
            self._hooks.detach()

    def _before_step(self, _optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        self._stepping = True
        watched = around_closure(args, kwargs, self._watch_closure)
        if watched is None:
            self._optimizer_begins()
        return watched

    def _optimizer_begins(self) -> None:
        if self._phase is _Phase.RECORDED and self._exchanges and self._hooks is not None:
            self._hooks.mark(EventKind.OPTIMIZER_START)

    def _watch_closure(self, closure: Closure) -> Closure:
        """Return the closure to call instead, of which only one call in a step can be recorded."""
        calls = 0

        def called(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls > 1 and self._phase is not _Phase.STOPPED:
                self._refused = RecordingError(CALLED_TWICE, remedy="one call of the model in a step")
                self.stop()
                if self._raises:
                    raise self._refused
            value = closure(*args, **kwargs)
            self._optimizer_begins()
            return value

        return called

    def _after_step(self, _optimizer: object, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        # Horovod's step calls its base class's step: torch runs the hooks for both, and the inner one counts.
        if self._phase is _Phase.STOPPED or not self._stepping:
            return
        self._stepping = False
        self.steps_seen += 1
        end = self._clock.mark()
        # The second warm-up step is the first with a known start and warm caches.
        period = _Phase.RECORDED if self._phase is _Phase.RECORDED else _Phase.BARE
        if self._step_start is not None:
            self._periods[period].append((self._step_start, end))
        if self._phase is _Phase.RECORDED:
            assert self._hooks is not None
            self._logs.append([*self._hooks.take(), (EventKind.OPTIMIZER_END, 0, end)])
            if self._state_size is None and self._optimizer is not None:
                self._state_size = state_size(self._optimizer)
        if self._phase is _Phase.WARMUP and self.steps_seen >= self.warmup:
            self._enter(_Phase.RECORDED)
        elif self._phase is _Phase.RECORDED and (self._alternate or self.finished):
            self._enter(_Phase.BARE)
        elif self._phase is _Phase.BARE and self.done:
            self._leave_later()
        elif self._phase is _Phase.BARE and not self.finished:
            self._enter(_Phase.RECORDED)
        # Mark again, so that the work done here counts in no step.
        self._step_start = self._clock.mark()
        if self._hooks is not None:
            self._hooks.begin_step(self._step_start)

    def _leave_later(self) -> None:
        """Remove the hooks at the model's next forward: torch forbids removing a step hook while step hooks run."""
        self._phase = _Phase.STOPPED
        model = self._model
        if self._output is not None:
            self._save_early(self._output)
        # A hook on a module compiled in place would make torch recompile; leave the idle step hooks there.
        if model is not None and not is_compiled_in_place(model):
            self._handles.append(model.register_forward_pre_hook(self._leave))

    def _leave(self, *_: object) -> None:
        if not torch.compiler.is_compiling():
            self.stop()

    def _save_early(self, path: Path) -> None:
        """Save before the block ends, because a loop may run for days. Errors are raised when the block ends."""
        try:
            self.save(path)
        except (RecordingError, OSError):
            return

    def _combined(self) -> Medians:
        if self._refused is not None:
            raise self._refused
        if self._medians is not None:
            return self._medians
        if self._hooks is None or not self._logs:
            raise RecordingError(
                f"no step was recorded: the loop ran {self.steps_seen} optimizer "
                f"step{'s' if self.steps_seen != 1 else ''}, and the first {self.warmup} are warm-up",
                remedy=f"at least {self.warmup + 1} steps, or warmup=0",
            )
        table = self._hooks.table
        apart = self._hooks.take_apart if isinstance(self._hooks, RankStepHooks) else take_apart
        taken = [apart(self._timed(log), table) for log in self._logs]
        medians = combine(
            [step for step in taken if step is not None],
            table,
            self._hooks.gradients,
            with_input=self._input_in_trace(),
        )
        if self.finished or self._phase is _Phase.STOPPED:
            self._medians = medians
        return medians

    def _input_in_trace(self) -> bool:
        # Where waits for other ranks can be anywhere between steps, input cannot be told from waiting.
        waits = isinstance(self._hooks, RankStepHooks) and not self._hooks.waits_in_backward
        return self._with_input and not waits

    def _timed(self, log: list[RawEvent]) -> list[Event]:
        seconds = self._clock.seconds([mark for _, _, mark in log])
        return [Event(kind, key, at_s) for (kind, key, _), at_s in zip(log, seconds, strict=True)]

    def _notes(self, medians: Medians) -> tuple[str, ...]:
        short = [] if self.finished else [f"only {self.recorded} of {self.steps} requested steps were recorded"]
        sharded = [_sharded(self._units)] if self._units else []
        return (*short, *self._remarks, *sharded, *medians.notes, *self._simulated_notes())

    def _simulated_notes(self) -> list[str]:
        if self._simulation is None:
            return []
        options = self._simulation.forecast_options
        sharded = [f"FSDP in the script is left out; forecast it with {options}"] if options else []
        return [*self._simulation.notes, *sharded]

    @property
    def _units(self) -> ShardedUnits | None:
        return self._hooks.units if isinstance(self._hooks, RankStepHooks) else None

    @property
    def _forecast_options(self) -> str:
        if self._simulation is not None:
            return self._simulation.forecast_options
        return self._units.options if self._units else ""

    def _provenance(self, medians: Medians) -> str:
        if self._simulation is not None:
            return "; ".join([self._simulation.provenance(), *self._notes(medians)])
        parts = [
            f"recorded by {describe_environment(self._device)}",
            f"median of {medians.steps} steps after {self.warmup} of warm-up",
            str(self.overhead or "the overhead of recording was not measured"),
            *self._notes(medians),
        ]
        return "; ".join(parts)


def record(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    warmup: int = 3,
    steps: int = 10,
    name: str | None = None,
    batch: int | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Recorder:
    """Record a trace of the training loop inside a `with` block.

    A step ends where `optimizer.step()` returns. After `warmup` steps, `steps` are recorded. Later steps run without
    hooks, and as many of them are timed to measure the hooks' overhead.

    Args:
        model: The model, on the CPU or on one CUDA device.
        optimizer: The optimizer whose `step` ends a step.
        warmup: Steps before recording starts.
        steps: Steps to record; the trace holds medians over them.
        name: Name of the trace; by default the model's class.
        batch: Samples of a step; by default read from the model's first tensor argument, summed over its calls in a
            step.
        output: File to write the trace to at the end.

    Returns:
        The recorder, a context manager with `trace`, `summary` and `save`.

    Raises:
        ValueError: The model is neither on the CPU nor on CUDA, or an argument is out of range.
        RecordingError: Raised at the end of the block if no step was recorded, or by a second call of the closure in an
            `optimizer.step(closure)`.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with paceline.torch.record(model, optimizer, warmup=1, steps=2) as recording:
        ...     for _ in range(5):
        ...         model(torch.ones(8, 4)).sum().backward()
        ...         optimizer.step()
        >>> recording.trace["batch"], len(recording.trace["workers"][0]["gradients"])
        (8, 2)
    """
    return Recorder(
        model, optimizer, warmup=warmup, steps=steps, name=name, batch=batch, output=output, with_input=True
    )


def _device_of(model: nn.Module) -> torch.device:
    devices = {parameter.device for parameter in model.parameters()}
    if not devices:
        raise ValueError("the model has no parameters, hence no gradients to synchronize")
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise ValueError(
            f"the model's parameters are on several devices ({names}); a trace describes one worker on one"
        )
    return devices.pop()


def _remarks(model: nn.Module) -> list[str]:
    remarks = ["one rank of several: without gradient communication, and without what runs between it and the step"]
    if any(type(module).__name__ == "SyncBatchNorm" for module in model.modules()):
        remarks.append("forward and backward include the communication of SyncBatchNorm")
    if any(kind.__name__ == "FullyShardedDataParallel" for module in model.modules() for kind in type(module).__mro__):
        remarks.append(
            "sharded by FSDP1: forward and backward include its all-gathers and reduce-scatters, and the optimizer "
            "updates one shard; record fully_shard, or without sharding"
        )
    return remarks


def _sharded(units: ShardedUnits) -> str:
    return (
        "sharded by FSDP2: without gathering and freeing parameters, and without reducing gradients; the optimizer's "
        f"time, with clipping, is that of a shard; it is multiplied by {units.shards:.4g}; forecast it with "
        f"{units.options}"
    )
