"""Wraps functions of TensorFlow and Keras, so that training marks its steps.

| function | marks |
| --- | --- |
| `tf.GradientTape.__enter__`, `gradient` | the backward pass: its start, and when each gradient has a value |
| `keras.Layer.__call__` | the forward pass, by layer |
| `apply` of Keras' optimizers, `apply_gradients` of TensorFlow 1's | the end of a step |
| `assign…`, `scatter…` of variables with gradients | the same, where no optimizer steps |

Marks are made only where a tape watches, so evaluation and saved models have none. In a graph the optimizer waits for
all gradients, as it does when they are exchanged. Wrappers keep the names and modules of what they wrap: AutoGraph
converts neither.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from paceline.tensorflow.execution import compiled_by_xla
from paceline.tensorflow.recorder import marks
from paceline.tensorflow.recorder.assignments import METHODS, OWNER, Assignments
from paceline.tensorflow.recorder.marks import Tensor, deliver, now, tensors_in, timestamp
from paceline.tensorflow.recorder.recorder import Recorder
from paceline.tensorflow.recorder.steps import Backward, Forward, Update
from paceline.tensorflow.recorder.table import Layer, Variable, identity, is_variable, parameters


@dataclass
class _Call:
    """A layer that is being called."""

    layer: Layer
    called: list[Layer] = field(default_factory=list)
    """The layers that it calls itself."""


@dataclass
class _Model:
    """The outermost layer that is being called, and where each layer in it can begin: in the order of their calls."""

    graph: Any
    stack: list[_Call] = field(default_factory=list)
    begins: list[tuple[int, Any] | None] = field(default_factory=list)
    """Numbers of layers with tensors to wait for, or in eager execution with times."""


class _Thread(threading.local):
    """The tapes and the model of a thread."""

    def __init__(self) -> None:
        self.tapes: list[float] = []
        """When the tapes that watch were opened, by the host's clock."""
        self.model: _Model | None = None


class Hooks:
    """Wraps the functions for the rest of the process's life."""

    def __init__(self, recorder: Recorder) -> None:
        """Wrap those of TensorFlow; those of Keras follow when it has been imported."""
        self._recorder = recorder
        self._thread = _Thread()
        self._keras = False
        self._assignments = Assignments(recorder, self._may_mark, self._deliver)
        for name in METHODS:
            _wrap(OWNER, name, self._assignments.assign)
        tape = tf.GradientTape
        _wrap(tape, "__enter__", self._enter)
        _wrap(tape, "__exit__", self._exit)
        _wrap(tape, "gradient", self._gradient)
        _wrap(tf.compat.v1.train.Optimizer, "apply_gradients", self._apply_pairs)

    def wrap_keras(self, keras: Any) -> None:  # noqa: ANN401 - the module
        """Wrap the functions of Keras, once."""
        if self._keras:
            return
        self._keras = True
        _wrap(_owner(keras.Layer, "__call__"), "__call__", self._call)
        _wrap(_owner(keras.Optimizer, "apply"), "apply", self._apply)

    def watch_functions(self, after: Callable[[], None]) -> None:
        """Call a function whenever a `tf.function` has returned to Python."""

        def call(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            result = original(function, *args, **kwargs)
            if tf.executing_eagerly():
                after()
            return result

        _wrap(type(tf.function(lambda: None)), "__call__", call)

    # Tapes.

    def _enter(self, original: Any, tape: Any) -> Any:  # noqa: ANN401
        entered = original(tape)
        self._thread.tapes.append(now())
        tape.__dict__["_paceline_opened"] = self._thread.tapes[-1]
        return entered

    def _exit(self, original: Any, tape: Any, *error: Any) -> Any:  # noqa: ANN401
        if self._thread.tapes:
            self._thread.tapes.pop()
        return original(tape, *error)

    def _gradient(self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        flat = tf.nest.flatten(sources)
        if not any(is_variable(one) for one in flat) or not self._recorder.marking:
            return original(tape, target, sources, *args, **kwargs)
        self._recorder.sees_gradients()
        numbers = [self._recorder.table.parameter(one) if is_variable(one) else None for one in flat]
        if hasattr(tape, "_reducer"):
            self._recorder.library = "horovod"
        if not self._may_mark(flat):
            return original(tape, target, sources, *args, **kwargs)
        if marks.graph() is None:
            return self._gradient_now(lambda: original(tape, target, sources, *args, **kwargs), tape, numbers)
        gradients = original(tape, target, sources, *args, **kwargs)
        ready = [
            (number, tensors_in(gradient))
            for number, gradient in zip(numbers, _flat(gradients, len(flat)), strict=True)
            if number is not None and gradient is not None
        ]
        self._describe(numbers, _flat(gradients, len(flat)))
        if not ready:
            return gradients
        trained = [number for number, _ in ready]
        self._assignments.await_all(tape, trained, [tensor for _, tensors in ready for tensor in tensors])
        times = [timestamp([]), timestamp(tensors_in(target)), *(timestamp(tensors) for _, tensors in ready)]

        def take(values: list[float]) -> None:
            opened, begin, *at = values
            self._recorder.take(Backward(opened, begin, tuple(zip(trained, at, strict=True)), max(at)))

        self._deliver(times, take)
        return gradients

    def _gradient_now(self, compute: Callable[[], Any], tape: Any, numbers: Sequence[int | None]) -> Any:  # noqa: ANN401
        if not self._recorder.marking_now:
            gradients = compute()
            self._assignments.await_all(tape, _trained(numbers, _flat(gradients, len(numbers))), [])
            return gradients
        made: dict[int, float] = {}

        # The name comes by place from TensorFlow's fast path, and by keyword otherwise.
        def executed(
            _kind: str, _inputs: object, _attrs: object, outputs: Sequence[Tensor], *_name: object, **_more: object
        ) -> None:
            at = now()
            for output in outputs:
                made[output._id] = at

        begin = now()
        op_callbacks.add_op_callback(executed)
        try:
            gradients = compute()
        finally:
            op_callbacks.remove_op_callback(executed)
        end = now()
        flat = _flat(gradients, len(numbers))
        self._describe(numbers, flat)
        ready = []
        for number, gradient in zip(numbers, flat, strict=True):
            if number is not None and gradient is not None:
                at = [made[one._id] for one in tensors_in(gradient) if one._id in made]
                ready.append((number, max(at) if at else end))
        opened = tape.__dict__.get("_paceline_opened", begin)
        self._recorder.take(Backward(opened, begin, tuple(ready), end))
        self._assignments.await_all(tape, _trained(numbers, flat), [])
        return gradients

    def _describe(self, numbers: Sequence[int | None], gradients: Sequence[Any]) -> None:
        """Note the types of gradients, which may differ from those of variables."""
        for number, gradient in zip(numbers, gradients, strict=True):
            if number is None or gradient is None:
                continue
            parameter = self._recorder.table.parameters[number]
            parameter.dtype, parameter.itemsize = gradient.dtype.name, gradient.dtype.size
            parameter.sparse = isinstance(gradient, tf.IndexedSlices)

    # Layers.

    def _call(self, original: Any, layer: Layer, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        thread, recorder = self._thread, self._recorder
        graph = marks.graph()
        model = thread.model
        outermost = model is None
        if not thread.tapes or not recorder.marking or (graph is None and not recorder.marking_now):
            return original(layer, *args, **kwargs)
        if model is None:
            if not self._may_mark([]) or _symbolic(args, kwargs):
                return original(layer, *args, **kwargs)
            model = thread.model = _Model(graph)
        elif graph is not model.graph:  # In the body of a loop, or in a function of its own.
            return original(layer, *args, **kwargs)
        if model.stack:
            model.stack[-1].called.append(layer)
        call, place = _Call(layer), len(model.begins)
        model.begins.append(None)
        model.stack.append(call)
        try:
            begin: Any = tensors_in((args, kwargs)) if graph is not None else now()
            outputs = original(layer, *args, **kwargs)
            number = recorder.table.layer(layer)
            inside = {identity(variable) for one in call.called for variable in parameters(one)}
            own = [variable for variable in parameters(layer) if identity(variable) not in inside]
            recorder.table.need(number, own)
            if own or not call.called:
                model.begins[place] = (number, begin)
            if outermost:
                self._model_called(model, number, (args, kwargs), outputs)
        finally:
            model.stack.pop()
            if outermost:
                thread.model = None
        return outputs

    def _model_called(self, model: _Model, number: int, inputs: Any, outputs: Any) -> None:  # noqa: ANN401
        table = self._recorder.table
        self._recorder.modules[number] = frozenset(table.parameter(one) for one in parameters(table.layers[number]))
        begins = [one for one in model.begins if one is not None]
        if model.graph is None:
            self._recorder.take(Forward(number, tuple(begins), now(), _length(inputs)))
            return
        first = next((one for one in tensors_in(inputs) if one.shape.rank), None)
        size = tf.constant(0.0, tf.float64) if first is None else tf.cast(tf.shape(first)[0], tf.float64)
        layers = [layer for layer, _ in begins]
        times = [timestamp(tensors) for _, tensors in begins]

        def take(values: list[float]) -> None:
            batch, end, *at = values
            self._recorder.take(Forward(number, tuple(zip(layers, at, strict=True)), end, int(batch)))

        self._deliver([size, timestamp(tensors_in(outputs)), *times], take)

    # Optimizers.

    def _apply(self, original: Any, optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:  # noqa: ANN401
        grads = list(grads)
        variables = trainable_variables
        if variables is None:
            variables = getattr(optimizer, "_trainable_variables", None)
        if variables is None or not self._updates(grads):
            return original(optimizer, grads, trainable_variables)
        variables = list(variables)
        if hasattr(optimizer, "_reducer"):
            self._recorder.library = "horovod"
        return self._update(
            optimizer, grads, variables, lambda waited: original(optimizer, waited, trainable_variables)
        )

    def _apply_pairs(self, original: Any, optimizer: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        pairs = list(pairs)
        grads, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        if not self._updates(grads):
            return original(optimizer, pairs, *args, **kwargs)
        return self._update(
            optimizer,
            grads,
            variables,
            lambda waited: original(optimizer, list(zip(waited, variables, strict=True)), *args, **kwargs),
        )

    def _updates(self, grads: Sequence[Any]) -> bool:
        return self._recorder.marking and any(one is not None for one in grads)

    def _update(
        self,
        optimizer: Any,  # noqa: ANN401
        grads: Sequence[Any],
        variables: Sequence[Variable],
        apply: Callable[[list[Any]], Any],
    ) -> Any:  # noqa: ANN401
        number = self._recorder.table.optimizer(optimizer, variables)
        graph = marks.graph()
        if graph is None:
            begin = now()
            with self._assignments.by_optimizer():
                result = apply(list(grads))
            self._recorder.take(Update(number, begin, now()))
            self._recorder.stepped()
            return result
        if not self._may_mark(variables):
            with self._assignments.by_optimizer():
                return apply(list(grads))
        every = tensors_in([one for one in grads if one is not None])
        begin_at = timestamp(every)
        with tf.control_dependencies([begin_at]):
            waited = [None if one is None else _same(one) for one in grads]
        before = len(graph.get_operations())
        with self._assignments.by_optimizer():
            result = apply(waited)
        made = graph.get_operations()[before:]
        last = [one for one in made if not any(output.consumers() for output in one.outputs)]
        end_at = timestamp(last or every)

        def take(values: list[float]) -> None:
            self._recorder.take(Update(number, *values))

        self._deliver([begin_at, end_at], take)
        return result

    # Common.

    def _deliver(self, values: Sequence[Tensor], take: Callable[[list[float]], None]) -> None:
        self._recorder.in_graph = True
        recorder = self._recorder

        def guarded(values: list[float]) -> None:
            if not recorder.marking:
                return
            try:
                take(values)
            except Exception as error:
                recorder.give_up(f"a mark could not be kept: {error!r}")

        deliver(values, guarded)

    def _may_mark(self, variables: Sequence[Variable]) -> bool:
        """Return whether nodes may be added here; if not, the recorder knows why."""
        if marks.graph() is not None and (owner := compiled_by_xla()) is not None:
            self._recorder.give_up(
                f"XLA compiles the {owner}, which hides when its gradients are ready", remedy="jit_compile=False"
            )
            return False
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            self._recorder.give_up(
                f"tf.distribute trains on {context.num_replicas_in_sync} devices, and a trace describes one worker",
                remedy="the script without a strategy of tf.distribute",
            )
            return False
        if any("GPU" in str(getattr(getattr(one, "_value", one), "device", "")) for one in variables):
            self._recorder.give_up(
                "TensorFlow trains on a GPU, whose kernels end after their marks",
                remedy="paceline import tensorflow HOST.xplane.pb --batch 32 --sizes sizes.json (a profile has the "
                "kernels' times: docs/how-to/other-tools.md)",
            )
            return False
        return True


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:  # noqa: ANN401 - a class
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return wrapper(original, self, *args, **kwargs)

    setattr(owner, name, call)


def _owner(kind: type, name: str) -> type:
    """Return the class, among a class and its bases, that defines a method."""
    return next(one for one in kind.__mro__ if name in vars(one))


def _flat(gradients: Any, number: int) -> list[Any]:  # noqa: ANN401
    """Return one gradient for each source; sparse ones are whole."""
    flat = tf.nest.flatten(gradients)
    return flat if len(flat) == number else [None] * number


def _trained(numbers: Sequence[int | None], gradients: Sequence[Any]) -> list[int]:
    """Return the numbers of variables that have a gradient."""
    pairs = zip(numbers, gradients, strict=True)
    return [number for number, gradient in pairs if number is not None and gradient is not None]


def _same(gradient: Any) -> Any:  # noqa: ANN401
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return tf.identity(gradient)


def _length(inputs: Any) -> int:  # noqa: ANN401
    """Return the first dimension of the first tensor or array; 0 if there is none."""
    shapes = (tuple(getattr(one, "shape", ())) for one in tf.nest.flatten(inputs, expand_composites=True))
    return next((int(shape[0]) for shape in shapes if shape), 0)


def _symbolic(args: Any, kwargs: Any) -> bool:  # noqa: ANN401
    return any(type(one).__name__ == "KerasTensor" for one in tf.nest.flatten((args, kwargs)))
