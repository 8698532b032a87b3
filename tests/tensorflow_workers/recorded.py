"""A script that knows nothing of its recording: trains in one of several ways, and prints what it trained."""

import json
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

FORWARD_S, BACKWARD_S = 0.05, 0.08
WAYS = sys.argv[1].split("-")
STEPS = int(sys.argv[2])
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
if RANKS > 1:
    import paceline.keras
    import paceline.tensorflow as hvd

    hvd.init()


def slept(seconds, array):
    time.sleep(seconds)
    return array


@tf.custom_gradient
def sleepy(x):
    def backward(gradient):
        (late,) = [tf.numpy_function(lambda a: slept(BACKWARD_S, a), [gradient], gradient.dtype)]
        late.set_shape(gradient.shape)
        return late

    late = tf.numpy_function(lambda a: slept(FORWARD_S, a), [x], x.dtype)
    late.set_shape(x.shape)
    return late, backward


class Sleepy(keras.layers.Layer):
    def call(self, x):
        return sleepy(x)


class Frozen(keras.layers.Dense):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.trainable = False


keras.utils.set_random_seed(int(os.environ.get("RANK", "0")))
first = Frozen if "frozen" in WAYS else keras.layers.Dense
model = keras.Sequential(
    [
        keras.Input((8,)),
        first(32, name="one"),
        keras.layers.BatchNormalization(name="norm"),
        Sleepy(name="sleepy"),
        keras.layers.Dense(16, activation="relu", name="two"),
        keras.layers.Dense(4, name="three"),
    ],
    name="net",
)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
images, labels = np.random.rand(6, 8).astype("float32"), np.arange(6) % 4
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
if "gpu" in WAYS:  # Only what variables say of themselves: there is none.
    type(model.trainable_variables[0].value).device = property(lambda variable: "/job:localhost/device:GPU:0")


def step(images, labels):
    with tf.GradientTape(persistent="singly" in WAYS) as tape:
        value = loss(labels, model(images, training=True))
    if RANKS > 1:
        tape = hvd.DistributedGradientTape(tape)
    if "singly" in WAYS:
        for variable in model.trainable_variables:
            variable.assign_sub(0.01 * tape.gradient(value, variable))
        return value
    gradients = tape.gradient(value, model.trainable_variables)
    if "alone" in WAYS:
        pairs = list(zip(model.trainable_variables, gradients, strict=True))
        for variable, gradient in pairs[1:] if "partly" in WAYS else pairs:
            variable.assign_sub(0.01 * gradient)
    elif "nothing" not in WAYS:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if "clip" in WAYS:
        for variable in model.trainable_variables:
            variable.assign(tf.clip_by_value(variable, -1, 1))
    return value


@tf.function
def loop(images, labels):
    for _ in tf.range(STEPS):
        step(images, labels)


if "fit" in WAYS:
    chosen = paceline.keras.DistributedOptimizer(optimizer) if RANKS > 1 else optimizer
    model.compile(chosen, loss, metrics=["accuracy"], jit_compile=False, run_eagerly="eager" in WAYS)
    model.fit(np.tile(images, (STEPS, 1)), np.tile(labels, STEPS), batch_size=6, verbose=0)
elif "loop" in WAYS:
    loop(images, labels)
else:
    run = step if "eager" in WAYS else tf.function(step, jit_compile="xla" in WAYS)
    for _ in range(STEPS):
        if "tensors" in WAYS:
            run(tf.constant(images), tf.constant(labels))
        else:
            run(images, labels)
if "save" in WAYS:
    model.predict(images, verbose=0)
    model.export("exported", verbose=False)
    loaded = tf.saved_model.load("exported")
    assert loaded.serve(images).shape == (6, 4)
weights = [float(np.sum(np.abs(variable.numpy()))) for variable in model.trainable_variables]
variables = [[one.path, int(np.prod(one.shape)) * 4] for one in model.trainable_variables]
print("TRAINED", json.dumps({"variables": variables, "weights": weights}))
