"""Gradient tapes whose gradients are those of all ranks."""

# ruff: noqa: PLR0917 - the signatures are Horovod's
from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from paceline.hvd.operators import Operator, operator_of
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.hvd.world import current, is_initialized
from paceline.tensorflow.compression import Compression, Compressor
from paceline.tensorflow.execution import Tensor
from paceline.tensorflow.gradients import Gradient, Groups, Reducer, Variable
from paceline.tensorflow.lifecycle import refuse_asynchronous


def reducer(
    label: str,
    *,
    op: int | None,
    compression: type[Compressor],
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    num_groups: int,
    groups: Groups,
    process_set: ProcessSet,
    scale_local_gradients: bool,
) -> Reducer:
    """Check the arguments of a tape or an optimizer. Raises ValueError, and NotImplementedError for Adasum."""
    if is_initialized():
        refuse_asynchronous(current().job.settings)
        current().job.settings.refuse_no_barrier(
            "TensorFlow applies all gradients of a step together",
            "paceline.torch's DistributedOptimizer, or drop {this}",
        )
    operator = operator_of(op)
    if gradient_predivide_factor != 1.0 and operator is not Operator.Average:
        raise ValueError("gradient_predivide_factor splits an average; leave it out, or use op=hvd.Average")
    if not gradient_predivide_factor > 0:
        raise ValueError(f"gradient_predivide_factor is {gradient_predivide_factor}; give a number above 0")
    if num_groups != 0:
        warnings.warn("num_groups is deprecated: give groups", DeprecationWarning, stacklevel=3)
        if groups is not None:
            raise ValueError("groups and num_groups mean the same; leave out num_groups")
        groups = num_groups
    if groups is not None and not (isinstance(groups, list | tuple) or (isinstance(groups, int) and groups > 0)):
        raise ValueError(f"groups is {groups!r:.80}; give a number of groups above 0, or a list of lists of variables")
    if not all(callable(getattr(compression, name, None)) for name in ("compress", "decompress")):
        raise ValueError(
            f"compression is {compression!r}; give hvd.Compression.none, .fp16 or .bf16, or a class with compress and "
            "decompress"
        )
    return Reducer(
        label,
        op=operator,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        predivide=gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
        scale_local=scale_local_gradients,
    )


class _Distributed:
    """Mixed in before a tape's class: `gradient` returns the gradients of all ranks."""

    _reducer: Reducer

    def register_local_source(self, source: Variable) -> None:
        """Leave the gradients of a source to this rank."""
        self._reducer.register_local(source)

    def gradient(
        self,
        target: Tensor,
        sources: Any,  # noqa: ANN401 - any structure of variables
        output_gradients: Any = None,  # noqa: ANN401
        use_generic_names: bool = False,
        **more: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        """Return the reduced gradients, in the structure of `sources`.

        `use_generic_names` is accepted for compatibility with Horovod: names are alike on all ranks anyway.
        """
        computed = super().gradient(target, sources, output_gradients, **more)  # type: ignore[misc]
        reduced = self._reducer(tf.nest.flatten(computed), tf.nest.flatten(sources))
        return tf.nest.pack_sequence_as(sources, reduced)

    def get_local_and_global_gradients(
        self,
        target: Tensor,
        sources: Sequence[Variable],
        output_gradients: Any = None,  # noqa: ANN401
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Variable, Gradient]], list[tuple[Variable, Gradient]]]:
        """Return pairs of sources and gradients: those of local sources, and the others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients, use_generic_names), strict=True))
        local = [pair for pair in pairs if self._reducer.is_local(pair[0])]
        return local, [pair for pair in pairs if not self._reducer.is_local(pair[0])]


def DistributedGradientTape(
    gradtape: Any,  # noqa: ANN401 - tf.GradientTape
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int | None = Operator.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:  # noqa: ANN401
    """Wrap a tape so that its `gradient` returns the gradients of all ranks.

    The wrapped tape also has `register_local_source(source)`, for variables whose gradients stay on this rank.

    Args:
        gradtape: The `tf.GradientTape`, recording or recorded; it must not be used any more.
        device_dense: Accepted for compatibility with Horovod; gradients are reduced in the memory of the host.
        device_sparse: The same.
        compression: Compression of dense gradients: `hvd.Compression.none`, `.fp16` or `.bf16`.
        sparse_as_dense: Whether `tf.IndexedSlices` are reduced as dense tensors.
        op: `hvd.Average`, `hvd.Sum`, `hvd.Min`, `hvd.Max` or `hvd.Product`.
        gradient_predivide_factor: Splits the average: gradients are divided by it before the sum; after the sum they
            are multiplied by it and divided by the number of ranks.
        num_groups: Deprecated name of `groups` for a number.
        groups: Gradients that are reduced together or not at all: a number of groups, or lists of variables.
        process_set: The ranks that take part; others keep their own gradients.
        scale_local_gradients: Whether gradients that stay on this rank are divided by the number of ranks.

    Returns:
        The distributed tape, of a class derived from the tape's.

    Raises:
        NotImplementedError: `op` is Adasum.
        ValueError: Arguments contradict each other.

    Example:
        >>> x = tf.Variable(3.0)
        >>> with tf.GradientTape() as tape:
        ...     y = x * x
        >>> float(hvd.DistributedGradientTape(tape).gradient(y, [x])[0])
        6.0
    """
    made = type(type(gradtape).__name__, (_Distributed, type(gradtape)), {})
    wrapped: Any = object.__new__(made)
    wrapped.__dict__.update(vars(gradtape))
    wrapped._reducer = reducer(
        "DistributedGradientTape",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        num_groups=num_groups,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    return wrapped


def PartialDistributedGradientTape(
    gradtape: Any,  # noqa: ANN401 - tf.GradientTape
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int | None = Operator.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,  # noqa: ANN401 - a layer of Keras, or several
    scale_local_gradients: bool = True,
) -> Any:  # noqa: ANN401
    """Wrap a tape as `DistributedGradientTape` does; gradients of some layers stay on this rank.

    Args:
        gradtape: As for `DistributedGradientTape`.
        device_dense: The same.
        device_sparse: The same.
        compression: The same.
        sparse_as_dense: The same.
        op: The same.
        gradient_predivide_factor: The same.
        num_groups: The same.
        groups: The same.
        process_set: The same.
        local_layers: A layer of Keras, or several, whose gradients are not reduced.
        scale_local_gradients: As for `DistributedGradientTape`.

    Returns:
        The distributed tape.

    Raises:
        NotImplementedError: `op` is Adasum.
        ValueError: Arguments contradict each other, or `local_layers` has something else than layers.
    """
    wrapped = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for variable in variables_of_layers(local_layers):
        wrapped.register_local_source(variable)
    return wrapped


def variables_of_layers(local_layers: Any) -> list[Variable]:  # noqa: ANN401 - checked here
    """Return the trainable variables of a layer or several. Raises ValueError for anything else."""
    if local_layers is None:
        return []
    layers = [local_layers] if isinstance(local_layers, tf.keras.layers.Layer) else list(local_layers)
    if not all(isinstance(layer, tf.keras.layers.Layer) for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return [variable for layer in layers for variable in layer.trainable_weights]
