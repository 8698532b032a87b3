"""The recorder: warm-up steps, recorded steps, and in eager execution steps without marks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import tensorflow as tf

from paceline._internal import units
from paceline._internal.recording import Overhead, RecordingError, Summary, overhead, summary_of, write_json
from paceline._internal.system import cores, cpu_name, own_version
from paceline.tensorflow.recorder.steps import Mark, StepTimes, Update, take_apart
from paceline.tensorflow.recorder.table import OwnUpdates, Table
from paceline.tensorflow.recorder.trace import Medians, combine


class Recorder:
    """Keeps the marks of a script's steps. A step ends with that of the optimizer that holds most elements.

    The first `warmup` steps, two at least, find that optimizer. The next `steps` are recorded. In eager execution as
    many run without marks. The marks of a graph stay in it.
    """

    def __init__(
        self, *, warmup: int, steps: int, name: str | None = None, batch: int | None = None, alone: bool = True
    ) -> None:
        """Take the options of `paceline record`. `alone`: whether this is the only rank of its job."""
        self.warmup, self.steps = max(warmup, 2), steps
        self.table = Table()
        self.modules: dict[int, frozenset[int]] = {}
        """The parameters of outermost layers."""
        self.in_graph = False
        """Whether graphs have marks, which stay there."""
        self.library = ""
        self.error: str | None = None
        """Why nothing can be recorded."""
        self.remedy: str | None = None
        self.gradients_seen = False
        self.on_gradient: Callable[[], None] = lambda: None
        """Called when a tape computes gradients of variables, or a graph is made that does."""
        self.on_step: Callable[[], None] = lambda: None
        """Called after each step of the chosen optimizer, in whatever thread."""
        self.on_return: Callable[[], None] = lambda: None
        """Called in the script's thread after an optimizer has stepped eagerly."""
        self.on_choice: Callable[[], bool] = lambda: True
        """Called once the optimizer is known; returns whether this process records."""
        self._name, self._batch, self._alone = name, batch, alone
        self._lock = threading.RLock()
        self._marks: list[Mark] = []
        self._ends: dict[int, list[float]] = {}
        self._chosen: int | None = None
        self._stopped = False
        self._medians: Medians | None = None

    @property
    def steps_seen(self) -> int:
        """Number of steps of the chosen optimizer, or of all while none is chosen."""
        if self._chosen is None:
            return sum(map(len, self._ends.values()))
        return len(self._ends[self._chosen])

    @property
    def recorded(self) -> int:
        """Number of steps recorded so far."""
        return 0 if self._chosen is None else max(0, min(self.steps_seen - self.warmup, self.steps))

    @property
    def finished(self) -> bool:
        """Whether all requested steps are recorded."""
        return self.recorded >= self.steps

    @property
    def done(self) -> bool:
        """Whether more steps would tell nothing more."""
        # Graphs may deliver a step's marks after its end.
        more = 1 if self.in_graph else self.steps
        return self.finished and self.steps_seen >= self.warmup + self.steps + more

    @property
    def marking(self) -> bool:
        """Whether marks are wanted at all."""
        return not self._stopped and self.error is None

    @property
    def marking_now(self) -> bool:
        """Whether eager execution is to be marked: not in the steps without marks."""
        return self.marking and not self.finished

    @property
    def optimizer_name(self) -> str:
        """The class of the chosen optimizer, or what stands for one."""
        if self._chosen is None:
            return ""
        optimizer = self.table.optimizers[self._chosen].optimizer
        return str(optimizer) if isinstance(optimizer, OwnUpdates) else type(optimizer).__name__

    @property
    def parameters(self) -> int:
        """Elements of the parameters that the chosen optimizer holds."""
        return 0 if self._chosen is None else self.table.elements(self._held)

    @property
    def _last_end(self) -> float:
        """The end of the last recorded step."""
        assert self._chosen is not None
        return self._ends[self._chosen][self.warmup + self.steps - 1]

    @property
    def _held(self) -> frozenset[int]:
        assert self._chosen is not None
        return self.table.optimizers[self._chosen].parameters

    def sees_gradients(self) -> None:
        """Note that a tape has computed gradients of variables."""
        self.gradients_seen = True
        self.on_gradient()

    def give_up(self, error: str | None, *, remedy: str | None = None) -> None:
        """Mark nothing any more, and remember why; without an error, another process records."""
        self.error, self.remedy = error or "", remedy
        self._marks.clear()

    def stop(self) -> None:
        """Mark nothing any more."""
        self._stopped = True

    def stepped(self) -> None:
        """Note that an optimizer has stepped eagerly, in the script's thread."""
        self.on_return()

    def take(self, mark: Mark) -> None:
        """Keep a mark. Any thread may call it."""
        with self._lock:
            if not self.marking:
                return
            if not self.finished or mark.middle <= self._last_end:
                self._marks.append(mark)
            if not isinstance(mark, Update):
                return
            ends = self._ends.setdefault(mark.optimizer, [])
            ends.append(mark.end)
            if self._chosen is None and len(ends) > 1:
                # At the second step of any optimizer, all optimizers of the loop have been seen.
                every = [(number, self.table.optimizers[number]) for number in self._ends]
                sizes = {
                    number: (not isinstance(one.optimizer, OwnUpdates), self.table.elements(one.parameters))
                    for number, one in every
                }
                self._chosen = max(sizes, key=lambda number: sizes[number])
                if not self.on_choice():
                    self.give_up(None)
                    return
            if self._chosen == mark.optimizer:
                self.on_step()

    @property
    def trace(self) -> dict[str, Any]:
        """The trace in the format of docs/reference/trace-format.md. Raises RecordingError until a step is recorded."""
        medians = self._combined()
        assert self._chosen is not None
        batch = self._batch or medians.batch
        if batch < 1:
            raise RecordingError("the batch size cannot be inferred from a model's arguments", remedy="--batch 32")
        trained = self.table.elements(medians.ready)
        held = self.table.elements(self._held)
        states = self.table.optimizers[self._chosen].state_bytes
        return {
            "format": "paceline-trace",
            "version": 1,
            "name": self._shown(medians),
            "provenance": self._provenance(medians),
            "batch": batch,
            "dtype": medians.dtype,
            "device": cpu_name(),
            **({"library": self.library} if self.library and not self._alone else {}),
            "workers": [medians.worker],
            **({"frozen": list(medians.not_trained)} if medians.not_trained else {}),
            "optimizer_bytes": round(states * trained / held) if held else 0,
        }

    def _shown(self, medians: Medians) -> str:
        if self._name:
            return self._name
        if not medians.modules:
            return "model"
        largest = max(medians.modules, key=lambda one: self.table.elements(self.modules.get(one, ())))
        layer = self.table.layers[largest]
        kind = type(layer).__name__
        return str(layer.name) if kind in {"Sequential", "Functional"} else kind

    @property
    def summary(self) -> Summary:
        """Totals, overhead, and what the trace leaves out. Raises RecordingError until a step is recorded."""
        medians = self._combined()
        return summary_of(
            self.trace,
            medians,
            self.overhead,
            warmup=self.warmup,
            input_in_trace=self._alone,
            parameters=self.table.elements(self._held | medians.left),
            notes=self._notes(medians),
            in_order=False,
            why_no_overhead="marks stay in the graphs" if self.in_graph else "too few steps",
        )

    @property
    def overhead(self) -> Overhead | None:
        """Overhead of the marks in eager execution; None if graphs have marks, or no step without them was timed."""
        if self.in_graph or self._chosen is None:
            return None
        ends = self._ends[self._chosen]
        periods = [after - before for before, after in pairwise(ends)]
        first = self.warmup - 1
        return overhead(periods[first : first + self.steps], periods[first + self.steps : first + 2 * self.steps])

    def save(self, path: Path) -> None:
        """Write the trace. Raises RecordingError and OSError."""
        write_json(path, self.trace)

    def _combined(self) -> Medians:
        with self._lock:
            if self._medians is not None:
                return self._medians
            if self._chosen is None or not self.recorded:
                raise RecordingError(
                    f"no step was recorded: {units.count(self.steps_seen, 'optimizer step')} seen, and the first "
                    f"{self.warmup} are warm-up",
                    remedy=f"at least {self.warmup + 1} steps",
                )
            steps = [step for step in map(self._step, range(self.warmup, self.warmup + self.recorded)) if step]
            medians = combine(steps, self.recorded, self.table, self.modules, alone=self._alone)
            if self.done or self._stopped:
                self._medians = medians
            return medians

    def _step(self, index: int) -> StepTimes | None:
        assert self._chosen is not None
        ends = self._ends[self._chosen]
        before, end = ends[index - 1], ends[index]
        # Graphs deliver marks in any order, so their times say which step they belong to.
        marks = [mark for mark in self._marks if before < mark.middle <= end]
        return take_apart(marks, self._held, self.modules, before=before, alone=self._alone)

    def _notes(self, medians: Medians) -> tuple[str, ...]:
        short = [] if self.finished else [f"only {self.recorded} of {self.steps} requested steps were recorded"]
        ranks = [] if self._alone else ["one rank of several: without waits for others, and without input"]
        graph = (
            ["timestamps stay in the graphs of tf.function, and keep it from fusing operations across layers"]
            if self.in_graph
            else []
        )
        assigned = (
            ["the script assigns its variables itself: states of its optimizer, if there are any, are unknown"]
            if self._chosen is not None and isinstance(self.table.optimizers[self._chosen].optimizer, OwnUpdates)
            else []
        )
        return (*short, *ranks, *medians.notes, *assigned, *graph)

    def _provenance(self, medians: Medians) -> str:
        threads = tf.config.threading.get_intra_op_parallelism_threads() or cores()
        where = f"{cpu_name()}, {units.count(threads, 'thread')}"
        cost = str(self.overhead or "the overhead of recording was not measured")
        return "; ".join(
            [
                f"recorded by paceline {own_version()} with tensorflow {tf.__version__} on {where}",
                f"median of {units.count(medians.steps, 'step')} after {self.warmup} of warm-up",
                cost,
                *self._notes(medians),
            ]
        )
