"""Trains a small net with TensorFlow, on pictures that are made up, in one of three ways.

paceline record -o tf.json -- python examples/tensorflow_train.py
paceline record -o tf.json -- python examples/tensorflow_train.py --loop eager
paceline record -o tf.json -- python examples/tensorflow_train.py --loop fit
"""

import argparse

import keras
import tensorflow as tf


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=["function", "eager", "fit"], default="function")
    parser.add_argument("--batch", type=int, default=32, help="pictures a step")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    keras.utils.set_random_seed(0)
    pictures = tf.random.uniform((options.batch * 10, 32, 32, 3))
    labels = tf.random.uniform((options.batch * 10,), maxval=10, dtype=tf.int32)
    data = tf.data.Dataset.from_tensor_slices((pictures, labels)).batch(options.batch).repeat().take(options.steps)
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    if options.loop == "fit":
        model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
        model.fit(data, steps_per_epoch=options.steps, verbose=2)
        return

    def step(batch: tf.Tensor, expected: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(expected, model(batch, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    run = tf.function(step) if options.loop == "function" else step
    for number, (batch, expected) in enumerate(data):
        value = run(batch, expected)
        if number % 10 == 0:
            print(f"step {number}: loss {float(value):.3f}")


if __name__ == "__main__":
    main()
