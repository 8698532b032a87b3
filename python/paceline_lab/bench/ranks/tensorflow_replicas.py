"""One process of TensorFlow with a replica per device: MirroredStrategy over GPUs, or over logical CPUs.

Variables are mirrored on all devices, and gradients are reduced by NCCL between GPUs, and on one device for CPUs
(tf.distribute.ReductionToOneDevice), as in tf_cnn_benchmarks' `--num_gpus` with `--variable_update=replicated`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from paceline_lab.bench.ranks.rank_spec import RankSpec, place, read
from paceline_lab.bench.ranks.stopwatch import Stopwatch
from paceline_lab.bench.ranks.tensorflow_common import Clusters, Variables, checker, loader, threads
from paceline_lab.bench.ranks.tensorflow_layers import Model, Weights


def main() -> None:
    """Train on all devices."""
    spec, (_, size, _) = read(), place()
    tf.config.threading.set_intra_op_parallelism_threads(size * threads())
    replicas = Replicas(spec, tf.distribute.MirroredStrategy(_devices(spec, size)), size)
    replicas.train()


def _devices(spec: RankSpec, size: int) -> list[str]:
    """Return the names of the devices."""
    if spec.device == "cuda":
        has = len(tf.config.list_physical_devices("GPU"))
        if has < size:
            raise RuntimeError(f"this TensorFlow sees {has} GPUs for {size} replicas: a smaller -np, or --device cpu")
        return [f"/gpu:{number}" for number in range(size)]
    (cpu, *_) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(size)])
    return [f"/cpu:{number}" for number in range(size)]


class Replicas:
    """The replicas of a model, and their training."""

    def __init__(self, spec: RankSpec, strategy: Any, size: int) -> None:  # noqa: ANN401
        """Build the model on each device of the strategy."""
        self.spec, self.strategy, self.size = spec, strategy, size
        self.loaders = [loader(spec, rank, size) for rank in range(size)]
        model = Model(str(spec.graph))
        with strategy.scope():
            self.weights = {name: tf.Variable(value, dtype=tf.float32) for name, value in model.initial.items()}
            self.moving = {name: tf.Variable(tf.zeros(value.shape)) for name, value in model.initial.items()}
            self.statistics = {name: _own(value) for name, value in model.statistics.items()}
            self.apart = Variables(spec, model, _own)
        self.model = model

    def load(self, step: int) -> tuple[Any, Any]:
        """Return the batches of a step, one for each device."""
        batches = [load(step) for load in self.loaders]
        images, labels = (
            self.strategy.experimental_distribute_values_from_function(
                lambda context, part=part: tf.convert_to_tensor(batches[context.replica_id_in_sync_group][part])
            )
            for part in (0, 1)
        )
        return images, labels

    def train(self) -> None:
        """Train by a traced step, measure it, and write a result for each replica."""

        @tf.function  # type: ignore[untyped-decorator]
        def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
            return self._first(self.strategy.run(self._replica, args=(images, labels)))

        stopwatch, traced = Stopwatch(self.spec, 0), Clusters(self.spec, step)
        stopwatch.run(self.load, lambda batch: float(traced(*batch)), checker([0], stopwatch, lambda: self.values(0)))
        final = [self.values(replica) for replica in range(self.size)]
        self._alone(stopwatch)
        apart = max(_apart(weights, final[0], self.model.torchs(self.model.initial)) for weights in final)
        for replica, weights in enumerate(final):
            stopwatch.write(weights, replica, self.size, replicas_apart=apart, **traced.software)

    def _replica(self, images: Any, labels: Any) -> Any:  # noqa: ANN401
        """Train one replica on its batch, and return its loss."""
        with tf.GradientTape() as tape:
            loss = self.model.loss(self.weights, images, labels, self.statistics)
        context = tf.distribute.get_replica_context()
        gradients = tape.gradient(loss, list(self.weights.values()))
        reduced = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
        context.merge_call(self._update, args=(reduced,))
        return loss

    def _update(self, strategy: Any, gradients: list[Any]) -> None:  # noqa: ANN401
        """Update all mirrors of the weights, each by its own copy of the reduced gradient."""

        def move(moving: Any, gradient: Any) -> None:  # noqa: ANN401
            moving.assign(self.spec.momentum * moving + gradient)

        def descend(weight: Any, moving: Any) -> None:  # noqa: ANN401
            weight.assign_sub(self.spec.learning_rate * moving)

        for name, gradient in zip(self.weights, gradients, strict=True):
            strategy.extended.update(self.moving[name], move, args=(gradient,))
            strategy.extended.update(self.weights[name], descend, args=(self.moving[name],))

    def _alone(self, stopwatch: Stopwatch) -> None:
        """Measure steps without communication: every replica trains private variables, at once."""

        @tf.function  # type: ignore[untyped-decorator]
        def forward(images: Any, labels: Any) -> Any:  # noqa: ANN401
            return self._first(self.strategy.run(self.apart.loss, args=(images, labels)))

        @tf.function  # type: ignore[untyped-decorator]
        def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
            private = (images, labels, tf.GradientTape.gradient)
            return self._first(self.strategy.run(self.apart.step, args=private))

        for work in (forward, step):
            work(*self.load(0))
        for number in range(self.spec.alone):
            batch = self.load(number)
            stopwatch.part("forward", partial(_value, forward, batch))
            stopwatch.part("step", partial(_value, step, batch))

    def _first(self, losses: Any) -> Any:  # noqa: ANN401
        """Return the first replica's loss, once all have finished."""
        own = self.strategy.experimental_local_results(losses)
        with tf.control_dependencies(own):
            return tf.identity(own[0])

    def values(self, replica: int) -> dict[str, Any]:
        """Return a replica's weights under torch's names."""
        parts = {
            name: self.strategy.experimental_local_results(weight)[replica].numpy()
            for name, weight in self.weights.items()
        }
        return self.model.torchs(parts)


def _apart(ours: Weights, theirs: Weights, initial: Weights) -> float:
    """Return the distance of two replicas' weights, relative to the change by training (2-norm)."""
    apart, change = (
        sum(float(np.sum((one[name].astype(np.float64) - theirs[name]) ** 2)) for name in theirs)
        for one in (ours, initial)
    )
    return float((apart / change) ** 0.5) if change else 0.0


def _value(function: Callable[..., Any], batch: tuple[Any, Any]) -> float:
    return float(function(*batch))


def _own(value: Any) -> Any:  # noqa: ANN401
    """Return a variable of which every replica has its own value."""
    own, first = tf.VariableSynchronization.ON_READ, tf.VariableAggregation.ONLY_FIRST_REPLICA
    return tf.Variable(value, dtype=tf.float32, synchronization=own, aggregation=first, trainable=True)


if __name__ == "__main__":
    main()
