"""Trains a small net on handwritten digits like Horovod's public TensorFlow 2 example; only the import differs.

paceline run -np 2 -- python examples/tensorflow2_mnist.py
paceline run -np 2 -- python examples/tensorflow2_mnist.py --data ~/mnist.npz
"""

import argparse
from pathlib import Path

import numpy as np
import paceline.tensorflow as hvd  # import horovod.tensorflow as hvd
import tensorflow as tf


def digits(path: Path | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    """MNIST from a file as Keras keeps it; without one, noise with a bright bar at one of ten heights."""
    if path is not None:
        with np.load(path) as data:
            return data["x_train"][..., np.newaxis] / np.float32(255), data["y_train"].astype("int64")
    generator = np.random.default_rng(1)
    labels = generator.integers(10, size=count)
    pictures = 0.3 * generator.standard_normal((count, 28, 28, 1), dtype="float32")
    for index, label in enumerate(labels):
        pictures[index, 4 + 2 * label : 6 + 2 * label] += 1.0
    return pictures, labels


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a file mnist.npz; without it, pictures are made up")
    parser.add_argument("--batch", type=int, default=32, help="pictures a batch and rank")
    parser.add_argument("--steps", type=int, default=120, help="steps of all ranks together")
    options = parser.parse_args()

    # Horovod: initialize Horovod.
    hvd.init()

    # Horovod: pin GPU to be used to process local rank (one GPU per process)
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    tf.random.set_seed(hvd.rank())
    images, labels = digits(options.data, 4096)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shard(hvd.size(), hvd.rank())
    dataset = dataset.repeat().shuffle(1000, seed=hvd.rank()).batch(options.batch)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            tf.keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dropout(0.2),
            tf.keras.layers.Dense(10),
        ]
    )
    model.build((None, 28, 28, 1))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # Horovod: adjust learning rate based on number of GPUs.
    optimizer = tf.keras.optimizers.Adam(0.001 * hvd.size())

    @tf.function
    def training_step(images: tf.Tensor, labels: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss_value = loss(labels, model(images, training=True))

        # Horovod: add Horovod Distributed GradientTape.
        tape = hvd.DistributedGradientTape(tape)

        grads = tape.gradient(loss_value, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))

        # Horovod: broadcast initial variable states from rank 0 to all other processes.
        # Note: broadcast should be done after the first gradient step to ensure optimizer initialization.
        if first_batch:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return loss_value

    # Horovod: adjust number of steps based on number of GPUs.
    for batch, (some, their) in enumerate(dataset.take(options.steps // hvd.size())):
        loss_value = training_step(some, their, batch == 0)
        if batch % 10 == 0 and hvd.rank() == 0:
            print(f"Step #{batch}\tLoss: {loss_value:.6f}", flush=True)

    # Both ranks have the same model now.
    sums = hvd.allgather(tf.reshape(sum(tf.reduce_sum(weight) for weight in model.trainable_variables), [1]))
    assert np.ptp(sums.numpy()) == 0, sums
    right = tf.reduce_mean(tf.cast(tf.argmax(model(images[:500]), 1) == labels[:500], tf.float32))
    if hvd.rank() == 0:
        print(f"{right:.0%} of 500 training pictures are recognized")
    hvd.shutdown()


if __name__ == "__main__":
    main()
