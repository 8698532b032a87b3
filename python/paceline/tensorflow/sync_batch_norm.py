"""Batch normalization with the statistics of all ranks' batches."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import ProcessSet, global_process_set
from paceline.tensorflow.execution import Tensor
from paceline.tensorflow.reducing import ReduceArgs, differentiable_reduce


class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """Batch normalization over the joint batch of all ranks.

    Batches of the ranks may differ in size. Variances are computed around the joint mean, because differences of sums
    of squares, as Horovod computes them, lose digits. Evaluation is plain batch normalization.

    Example:
        >>> hvd.SyncBatchNormalization()(tf.zeros([2, 4, 3]), training=True).shape
        TensorShape([2, 4, 3])
    """

    def __init__(
        self,
        fused: bool | None = False,
        process_set: ProcessSet = global_process_set,
        **kwargs: Any,  # noqa: ANN401 - Keras's
    ) -> None:
        """Take the arguments of `keras.layers.BatchNormalization`, and a process set.

        Args:
            fused: Accepted for compatibility with Horovod; only False.
            process_set: The ranks whose batches are normalized together.
            **kwargs: Arguments of `keras.layers.BatchNormalization`; `synchronized` is Keras's own way, for
                `tf.distribute`.

        Raises:
            ValueError: `fused` or `synchronized` is set.
        """
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if kwargs.get("synchronized"):
            raise ValueError("synchronized=True is for tf.distribute; leave it out: ranks are synchronized anyway")
        super().__init__(**kwargs)
        self._process_set = process_set
        self.supports_jit = False

    def _moments(self, inputs: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and biased variance of each channel, over the values that the mask leaves."""
        if self._process_set.size() == 1:
            return super()._moments(inputs, mask)  # type: ignore[no-any-return]
        axes = list(self._reduction_axes)
        if mask is None:
            weights = tf.ones_like(inputs)
        else:
            mask = tf.cast(mask, inputs.dtype)
            missing = inputs.shape.rank - mask.shape.rank
            weights = tf.ones_like(inputs) * tf.reshape(mask, tf.concat([tf.shape(mask), [1] * missing], 0))
        sums = tf.stack([tf.reduce_sum(weights, axes), tf.reduce_sum(inputs * weights, axes)])
        count, total = tf.unstack(self._sum(sums, "mean"))
        count = tf.maximum(count, tf.cast(keras.config.epsilon(), count.dtype))
        mean = total / count
        shape = [1 if axis in axes else inputs.shape[axis] for axis in range(inputs.shape.rank)]
        centered = inputs - tf.reshape(mean, shape)
        return mean, self._sum(tf.reduce_sum(centered * centered * weights, axes), "variance") / count

    def _sum(self, values: Tensor, what: str) -> Tensor:
        """Return the sum over all ranks, whose gradient is the sum of the gradients."""
        args = ReduceArgs(Operator.Sum, 1.0, 1.0, self._process_set)
        name = None if tf.executing_eagerly() else f"sync_batch_norm.{what}"
        return differentiable_reduce(args, values, name)
