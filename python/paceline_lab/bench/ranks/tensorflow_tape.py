"""A rank of TensorFlow with the distributed gradient tape of Paceline or Horovod: a traced step."""

from __future__ import annotations

import importlib
from typing import Any

import tensorflow as tf

from paceline_lab.bench.ranks.rank_spec import read
from paceline_lab.bench.ranks.tensorflow_common import Variables, threads, train
from paceline_lab.bench.ranks.tensorflow_layers import Model


def main() -> None:
    """Train."""
    spec = read()
    hvd = importlib.import_module(f"{'horovod' if spec.mode == 'horovod' else 'paceline'}.tensorflow")
    tf.config.threading.set_intra_op_parallelism_threads(threads())
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    variables = Variables(spec, Model(str(spec.graph)))

    def together(tape: tf.GradientTape, loss: Any, weights: list[Any]) -> Any:  # noqa: ANN401
        return hvd.DistributedGradientTape(tape).gradient(loss, weights)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
        return variables.step(images, labels, together)

    train(spec, rank, size, variables, step)
    hvd.shutdown()


if __name__ == "__main__":
    main()
