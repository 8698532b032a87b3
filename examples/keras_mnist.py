"""Trains a small net on handwritten digits like Horovod's public Keras example; only the import differs.

paceline run -np 2 -- python examples/keras_mnist.py
paceline run -np 2 -- python examples/keras_mnist.py --data ~/mnist.npz
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import paceline.keras as hvd  # import horovod.keras as hvd
from tensorflow2_mnist import digits


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="a file mnist.npz; without it, pictures are made up")
    parser.add_argument("--batch", type=int, default=32, help="pictures a batch and rank")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", type=Path, help="a file that rank 0 writes after each epoch, .keras")
    options = parser.parse_args()

    # Horovod: initialize Horovod.
    hvd.init()

    x_train, y_train = digits(options.data, 2048)
    x_test, y_test = x_train[:256], y_train[:256]
    x_train, y_train = x_train[hvd.rank() :: hvd.size()], y_train[hvd.rank() :: hvd.size()]

    keras.utils.set_random_seed(hvd.rank())
    model = keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )

    # Horovod: adjust learning rate based on number of GPUs.
    scaled_rate = 0.05 * hvd.size()
    optimizer = keras.optimizers.SGD(scaled_rate, momentum=0.9)

    # Horovod: add Horovod Distributed Optimizer.
    optimizer = hvd.DistributedOptimizer(optimizer)

    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=optimizer,
        metrics=["accuracy"],
        jit_compile=False,  # gradients cannot leave a step that XLA has compiled
    )

    callbacks = [
        # Horovod: broadcast initial variable states from rank 0 to all other processes.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Horovod: average metrics among workers at the end of every epoch.
        hvd.callbacks.MetricAverageCallback(),
        # Horovod: raise the learning rate during the first epochs. See https://arxiv.org/abs/1706.02677
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_rate, warmup_epochs=2, verbose=1),
    ]

    # Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
    if hvd.rank() == 0 and options.checkpoint is not None:
        callbacks.append(keras.callbacks.ModelCheckpoint(options.checkpoint))

    model.fit(
        x_train,
        y_train,
        batch_size=options.batch,
        callbacks=callbacks,
        epochs=options.epochs,
        verbose=2 if hvd.rank() == 0 else 0,
    )

    sums = hvd.allgather([float(sum(np.sum(weight) for weight in model.get_weights()))])
    assert np.ptp(sums.numpy()) == 0, sums
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    if hvd.rank() == 0:
        print(f"Test accuracy: {accuracy:.0%}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
