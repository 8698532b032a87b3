"""Optimizers of Keras 3 whose gradients are those of all ranks."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.tensorflow.compression import Compression, Compressor
from paceline.tensorflow.execution import refuse_xla
from paceline.tensorflow.gradients import Gradient, Groups, Reducer, Variable, identity
from paceline.tensorflow.operations import allreduce
from paceline.tensorflow.tape import reducer, variables_of_layers

Optimizer = Any
"""A `keras.optimizers.Optimizer`."""


class _Sums:
    """Gradients added up on this rank, one for each variable, and the number of backward passes."""

    def __init__(self, passes: int, average: bool) -> None:
        self.passes, self.average = passes, average
        self.count: Any = None
        self._sums: dict[int, Any] = {}

    def add(self, grads: Sequence[Gradient], variables: Sequence[Variable], sparse_as_dense: bool) -> None:
        """Add the gradients of a backward pass. Raises ValueError for slices."""
        with tf.init_scope():
            if self.count is None:
                self.count = tf.Variable(0, trainable=False, name="backward_passes")
        for grad, variable in zip(grads, variables, strict=True):
            if grad is None:
                continue
            if isinstance(grad, tf.IndexedSlices) and not sparse_as_dense:
                raise ValueError(
                    "IndexedSlices are not supported when `backward_passes_per_step` > 1 and `sparse_as_dense` is "
                    "False."
                )
            key = identity(variable)
            if key not in self._sums:
                with tf.init_scope():
                    self._sums[key] = tf.Variable(tf.zeros(variable.shape, grad.dtype), trainable=False)
            self._sums[key].assign_add(tf.convert_to_tensor(grad))
        self.count.assign_add(1)

    def take(self, grads: Sequence[Gradient], variables: Sequence[Variable]) -> list[Gradient]:
        """Return the sums, or the averages, and start again."""
        gradients: list[Gradient] = []
        for grad, variable in zip(grads, variables, strict=True):
            if grad is None:
                gradients.append(None)
                continue
            kept = self._sums[identity(variable)]
            value = tf.identity(kept)
            gradients.append(value / tf.cast(self.passes, value.dtype) if self.average else value)
            with tf.control_dependencies([value]):
                kept.assign(tf.zeros_like(kept))
        self.count.assign(0)
        return gradients


class Distributed:
    """Mixed in before an optimizer's class: `apply` reduces the gradients first."""

    _reducer: Reducer
    _sums: _Sums | None

    def register_local_var(self, var: Variable) -> None:
        """Leave the gradients of a variable to this rank."""
        self._reducer.register_local(var)

    @property
    def process_set(self) -> ProcessSet:
        """The ranks that reduce gradients together."""
        return self._reducer.process_set

    def is_finite_everywhere(self, is_finite: Any, grads: Sequence[Gradient]) -> Any:  # noqa: ANN401
        """Return whether gradients are finite on all ranks, as a tensor.

        Args:
            is_finite: Whether they are on this rank.
            grads: The gradients.

        Raises:
            InvalidArgumentError: Keras compiles the step by XLA.
            JobError: A rank is gone.
        """
        if self._reducer.alone():
            return is_finite
        name, own = f"{self._reducer.prefix(grads)}.finite", tf.cast(is_finite, tf.int32)
        return tf.cast(allreduce(own, op=Operator.Min, name=name, process_set=self.process_set), tf.bool)

    def apply(self, grads: Sequence[Gradient], trainable_variables: Sequence[Variable] | None = None) -> Any:  # noqa: ANN401
        """Reduce the gradients and update the variables.

        Args:
            grads: One for each variable: tensors, `tf.IndexedSlices` or None.
            trainable_variables: The variables; by default those with which the optimizer was built.

        Returns:
            What the optimizer's own `apply` returns.

        Raises:
            InvalidArgumentError: Keras compiles the step by XLA.
            JobError: A rank is gone, or the ranks disagree about a gradient; the message names both.
        """
        refuse_xla()
        base: Any = super()
        if not grads:
            return base.apply(grads, trainable_variables)
        given = trainable_variables if trainable_variables is not None else self._trainable_variables  # type: ignore[attr-defined]
        variables = list(given)
        if self._sums is None:
            return base.apply(self._reducer(grads, variables), variables)
        if not self.built:  # type: ignore[has-type]
            with tf.init_scope():
                self.build(variables)  # type: ignore[attr-defined]
            self.built = True
        sums = self._sums
        sums.add(grads, variables, self._reducer.sparse_as_dense)

        def step() -> Any:  # noqa: ANN401
            base.apply(self._reducer(sums.take(grads, variables), variables), variables)
            return tf.constant(0)

        def skip() -> Any:  # noqa: ANN401
            self.iterations.assign_add(1)  # type: ignore[attr-defined]
            return tf.constant(0)

        tf.cond(tf.equal(sums.count, sums.passes), step, skip)
        return None


_is_finite_here = keras.mixed_precision.LossScaleOptimizer.check_finite


def _check_finite(self: Any, grads: Sequence[Gradient]) -> Any:  # noqa: ANN401
    """Return whether gradients are finite, on all ranks if the optimizer within is distributed.

    Keras decides before the gradients are reduced: a rank that skipped a step alone would miss an exchange.
    """
    is_finite, inner = _is_finite_here(self, grads), self.inner_optimizer
    return inner.is_finite_everywhere(is_finite, grads) if isinstance(inner, Distributed) else is_finite


# `Model.compile` puts this optimizer around another one if the policy is mixed_float16.
keras.mixed_precision.LossScaleOptimizer.check_finite = _check_finite


def distributed(
    optimizer: Optimizer,
    name: str | None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    op: int | None = Operator.Average,
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Any = None,  # noqa: ANN401
) -> Optimizer:
    """Wrap an optimizer of Keras; `paceline.keras.DistributedOptimizer` describes arguments and errors."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; give an optimizer of Keras 3, "
            "such as keras.optimizers.SGD(0.1); those of Keras 2 are not supported"
        )
    if isinstance(optimizer, Distributed):
        raise ValueError("the optimizer is already distributed; wrap it once")
    passes = backward_passes_per_step
    if isinstance(passes, bool) or not (isinstance(passes, int) and passes > 0):
        raise ValueError("backward_passes_per_step must be > 0")
    made = reducer(
        name or f"Distributed{type(optimizer).__name__}",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for variable in variables_of_layers(local_layers):
        made.register_local(variable)
    # Of the same name and module: a saved model can be loaded without Paceline.
    origin = type(optimizer)
    kind = type(origin.__name__, (Distributed, origin), {"__module__": origin.__module__})
    wrapped: Any = object.__new__(kind)
    wrapped.__dict__.update(vars(optimizer))
    wrapped.__dict__["_reducer"] = made
    wrapped.__dict__["_sums"] = _Sums(passes, average_aggregated_gradients) if passes > 1 else None
    return wrapped


def DistributedOptimizer(
    optimizer: Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int | None = Operator.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Optimizer:
    """Wrap an optimizer of Keras 3 so that it steps with the gradients of all ranks.

    The wrapped optimizer also has `register_local_var(variable)`, for variables whose gradients stay on this rank.

    Args:
        optimizer: The optimizer, new or in use; it must not be used any more.
        name: Begins the names of operations; by default "Distributed" and the class of the optimizer.
        device_dense: Accepted for compatibility with Horovod; gradients are reduced in the memory of the host.
        device_sparse: The same.
        compression: Compression of dense gradients: `hvd.Compression.none`, `.fp16` or `.bf16`.
        sparse_as_dense: Whether `tf.IndexedSlices` are reduced as dense tensors.
        gradient_predivide_factor: Splits the average: gradients are divided by it before the sum; after the sum they
            are multiplied by it and divided by the number of ranks.
        op: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        backward_passes_per_step: Number of backward passes whose gradients are added up before they are reduced and
            applied.
        average_aggregated_gradients: Whether gradients that were added up are divided by `backward_passes_per_step`.
        num_groups: Deprecated name of `groups` for a number.
        groups: Gradients that are reduced together or not at all: a number of groups, or lists of variables.
        process_set: The ranks that take part; others step by themselves.
        scale_local_gradients: Whether gradients that stay on this rank are divided by the number of ranks.

    Returns:
        The distributed optimizer, of a class derived from the optimizer's and of the same name.

    Raises:
        NotImplementedError: `op` is Adasum.
        TypeError: It is no optimizer of Keras 3.
        ValueError: Arguments contradict each other, or the optimizer is already distributed.

    Example:
        >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))
        >>> weight = keras.Variable(3.0)
        >>> _ = optimizer.apply_gradients([(tf.constant(2.0), weight)])
        >>> float(weight.numpy())
        2.0
    """
    return distributed(
        optimizer,
        name,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def PartialDistributedOptimizer(
    optimizer: Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int | None = Operator.Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,  # noqa: ANN401 - a layer, or several
    scale_local_gradients: bool = True,
) -> Optimizer:
    """Wrap an optimizer as `DistributedOptimizer` does; gradients of some layers stay on this rank.

    Args:
        optimizer: As for `DistributedOptimizer`.
        name: The same.
        device_dense: The same.
        device_sparse: The same.
        compression: The same.
        sparse_as_dense: The same.
        gradient_predivide_factor: The same.
        op: The same.
        backward_passes_per_step: The same.
        average_aggregated_gradients: The same.
        groups: The same.
        process_set: The same.
        local_layers: A layer of Keras, or several, which have been built and whose gradients are not reduced.
        scale_local_gradients: As for `DistributedOptimizer`.

    Returns:
        The distributed optimizer.

    Raises:
        NotImplementedError: `op` is Adasum.
        TypeError: It is no optimizer of Keras 3.
        ValueError: Arguments contradict each other, or `local_layers` has something else than layers.
    """
    return distributed(
        optimizer,
        name,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        local_layers=local_layers,
    )


def load_model(
    filepath: Any,  # noqa: ANN401 - a path, or what Keras takes
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
    legacy_opts: bool = False,
) -> Any:  # noqa: ANN401
    """Load a saved model of Keras, with its optimizer and the optimizer's state, and make the optimizer distributed.

    Args:
        filepath: The file, as for `keras.models.load_model`.
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Other objects that Keras does not know, by name.
        compression: Compression of dense gradients: `hvd.Compression.none`, `.fp16` or `.bf16`.
        legacy_opts: For optimizers of Keras 2, which are not supported: only False.

    Returns:
        The model.

    Raises:
        ValueError: `legacy_opts` is set, or Keras cannot read the file.
    """
    if legacy_opts:
        raise ValueError("legacy_opts: optimizers of Keras 2 are not supported; save the model with Keras 3")
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | (custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if model.optimizer is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
