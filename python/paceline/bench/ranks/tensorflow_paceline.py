"""A rank of Paceline's front for TensorFlow: a traced step with a distributed gradient tape."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from paceline.bench.ranks.rank_spec import place, read
from paceline.bench.ranks.stopwatch import Stopwatch
from paceline.bench.ranks.tensorflow_common import alone, checker, loader, threads
from paceline.bench.ranks.tensorflow_layers import Model


def main() -> None:
    """Train."""
    import paceline.tensorflow as hvd

    spec, (rank, size, _) = read(), place()
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    hvd.init()
    model = Model(str(spec.graph))
    weights = {name: tf.Variable(value, dtype=tf.float32) for name, value in model.initial.items()}
    moving = {name: tf.Variable(tf.zeros_like(value)) for name, value in weights.items()}
    statistics = {name: tf.Variable(value) for name, value in model.statistics.items()}
    names = list(weights)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            loss = model.loss(weights, images, labels, statistics)
        together = hvd.DistributedGradientTape(tape).gradient(loss, [weights[name] for name in names])
        for name, gradient in zip(names, together, strict=True):
            moving[name].assign(spec.momentum * moving[name] + gradient)
            weights[name].assign_sub(spec.learning_rate * moving[name])
        return loss

    def train(batch: tuple[Any, Any]) -> float:
        return float(step(tf.convert_to_tensor(batch[0]), tf.convert_to_tensor(batch[1])))

    stopwatch, load = Stopwatch(spec, rank), loader(spec, rank, size)

    def values() -> dict[str, Any]:
        return model.torchs({name: weights[name].numpy() for name in names})

    stopwatch.run(load, train, checker([0], stopwatch, values))
    final = values()
    alone(spec, model, load, stopwatch)
    stopwatch.write(final, engine=f"TensorFlow {tf.__version__}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
