"""The distributed optimizer, for optimizers of Keras and of TensorFlow 1."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

from typing import Any

import tensorflow as tf

from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.tensorflow.compression import Compression, Compressor
from paceline.tensorflow.gradients import Groups, Reducer, Variable
from paceline.tensorflow.tape import reducer


def DistributedOptimizer(
    optimizer: Any,  # noqa: ANN401 - of several classes
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int | None = Operator.Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:  # noqa: ANN401
    """Wrap an optimizer so that it steps with the gradients of all ranks.

    Args:
        optimizer: An optimizer of Keras 3, or a `tf.compat.v1.train.Optimizer`; it must not be used any more.
        name: Begins the names of operations; by default "Distributed" and the class of the optimizer.
        use_locking: For optimizers of TensorFlow 1.
        device_dense: Accepted for compatibility with Horovod; gradients are reduced in the memory of the host.
        device_sparse: The same.
        compression: Compression of dense gradients: `hvd.Compression.none`, `.fp16` or `.bf16`.
        sparse_as_dense: Whether `tf.IndexedSlices` are reduced as dense tensors.
        backward_passes_per_step: Number of backward passes whose gradients are added up before they are reduced; above
            1 for optimizers of Keras only.
        op: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        gradient_predivide_factor: Splits the average: gradients are divided by it before the sum; after the sum they
            are multiplied by it and divided by the number of ranks.
        average_aggregated_gradients: Whether gradients that were added up are divided by `backward_passes_per_step`.
        num_groups: Deprecated name of `groups` for a number.
        groups: Gradients that are reduced together or not at all: a number of groups, or lists of variables.
        process_set: The ranks that take part; others step by themselves.
        scale_local_gradients: Whether gradients that stay on this rank (`register_local_var`) are divided by the number
            of ranks.

    Returns:
        The distributed optimizer, of a class derived from the optimizer's.

    Raises:
        NotImplementedError: `op` is Adasum, or an optimizer of TensorFlow 1 is to add up gradients.
        TypeError: It is no such optimizer.
        ValueError: Arguments contradict each other.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from paceline.keras.optimizer import distributed

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
    if backward_passes_per_step != 1:
        raise NotImplementedError(
            "backward_passes_per_step: optimizers of TensorFlow 1 do not add up gradients here; use one of Keras"
        )
    name = name or f"Distributed{type(optimizer).__name__}"
    made = reducer(
        name,
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return _Distributed(optimizer, name, use_locking, made)


class _Distributed(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Reduces gradients before the wrapped optimizer applies them."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, reducer: Reducer) -> None:  # noqa: ANN401
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer, self._reducer = optimizer, reducer

    def register_local_var(self, var: Variable) -> None:
        """Leave the gradients of a variable to this rank."""
        self._reducer.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Variable]]:  # noqa: ANN401
        """Return pairs of reduced gradients and variables."""
        grads, variables = zip(*self._optimizer.compute_gradients(*args, **kwargs), strict=True)
        return list(zip(self._reducer(grads, variables), variables, strict=True))

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Apply gradients as the wrapped optimizer does."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return the names of its slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Return its variables."""
        return self._optimizer.variables(*args, **kwargs)
