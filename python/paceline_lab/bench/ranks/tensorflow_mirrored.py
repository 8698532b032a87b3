"""A rank of TensorFlow's MultiWorkerMirroredStrategy: gradients are reduced in rings over gRPC.

TF_CONFIG lists the workers (https://www.tensorflow.org/guide/distributed_training).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from paceline_lab.bench.ranks.rank_spec import place, read
from paceline_lab.bench.ranks.tensorflow_common import Variables, threads, train
from paceline_lab.bench.ranks.tensorflow_layers import Model


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
    # One replica per process: each has its own variables, and ranks exchange gradients.
    variables = Variables(spec, Model(str(spec.graph)))

    def together(tape: tf.GradientTape, loss: Any, weights: list[Any]) -> Any:  # noqa: ANN401
        gradients = tape.gradient(loss, weights)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients, options)

    def replica(images: Any, labels: Any) -> Any:  # noqa: ANN401
        return variables.step(images, labels, together)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
        return strategy.run(replica, args=(images, labels))

    train(spec, rank, size, variables, step)


if __name__ == "__main__":
    main()
