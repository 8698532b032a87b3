"""A rank of TensorFlow's MultiWorkerMirroredStrategy: gradients are reduced in rings over gRPC.

TF_CONFIG lists the workers (https://www.tensorflow.org/guide/distributed_training).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from paceline.bench.ranks.rank_spec import place, read
from paceline.bench.ranks.stopwatch import Stopwatch
from paceline.bench.ranks.tensorflow_common import alone, checker, loader, threads
from paceline.bench.ranks.tensorflow_layers import Model


def main() -> None:
    """Train."""
    spec, (rank, size, _) = read(), place()
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    implementation = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation, timeout_seconds=spec.limit_s, bytes_per_pack=spec.fusion_bytes or 0
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if strategy.num_replicas_in_sync != size:
        raise RuntimeError(f"TensorFlow sees {strategy.num_replicas_in_sync} replicas of {size}")
    model = Model(str(spec.graph))
    # One replica per process: each has its own variables, and ranks exchange gradients.
    weights = {name: tf.Variable(value, dtype=tf.float32) for name, value in model.initial.items()}
    moving = {name: tf.Variable(tf.zeros_like(value)) for name, value in weights.items()}
    statistics = {name: tf.Variable(value) for name, value in model.statistics.items()}
    names = list(weights)

    def replica(images: Any, labels: Any) -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            loss = model.loss(weights, images, labels, statistics)
        gradients = tape.gradient(loss, [weights[name] for name in names])
        together = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients, options)
        for name, gradient in zip(names, together, strict=True):
            moving[name].assign(spec.momentum * moving[name] + gradient)
            weights[name].assign_sub(spec.learning_rate * moving[name])
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
        return strategy.run(replica, args=(images, labels))

    def train(batch: tuple[Any, Any]) -> float:
        return float(step(tf.convert_to_tensor(batch[0]), tf.convert_to_tensor(batch[1])))

    stopwatch, load = Stopwatch(spec, rank), loader(spec, rank, size)

    def values() -> dict[str, Any]:
        return model.torchs({name: weights[name].numpy() for name in names})

    stopwatch.run(load, train, checker([0], stopwatch, values))
    final = values()
    alone(spec, model, load, stopwatch)
    stopwatch.write(final, engine=f"TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
