"""Two ranks train with XLA as without it: auto-clustering, or a compiled loss whose gradients are reduced outside."""

import sys

import keras
import numpy as np
import paceline.tensorflow as hvd
import tensorflow as tf

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
GENERATOR = np.random.default_rng(5)
X, Y = GENERATOR.standard_normal((64, 6)).astype("float32"), GENERATOR.standard_normal((64, 1)).astype("float32")
OWN = slice(RANK, None, SIZE)
WAY = sys.argv[1]


def trained(*, clustered, compiled, x, y, distributed):
    tf.config.optimizer.set_jit(clustered)
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 6))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)

    @tf.function(jit_compile=True if compiled else None)
    def loss_of(x, y):
        return tf.reduce_mean(tf.square(model(x, training=True) - y))

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
        tape = hvd.DistributedGradientTape(tape) if distributed else tape
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for _ in range(10):
        step(tf.constant(x), tf.constant(y))
    tf.config.optimizer.set_jit(False)
    return model.get_weights()


whole = trained(clustered=False, compiled=False, x=X, y=Y, distributed=False)
plain = trained(clustered=False, compiled=False, x=X[OWN], y=Y[OWN], distributed=True)
print("plain steps done", flush=True)
result = trained(clustered=WAY == "clusters", compiled=WAY == "loss", x=X[OWN], y=Y[OWN], distributed=True)
for other in (plain, whole):
    for mine, theirs in zip(result, other, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
print(f"{WAY}: same weights on rank {RANK}")
hvd.shutdown()
