"""Two ranks whose step is planned from its own graph, or that run by such a plan (a second argument)."""

import sys
from pathlib import Path

import keras
import numpy as np
import paceline
import paceline.tensorflow as hvd
import tensorflow as tf
from paceline.hvd.process_sets import global_process_set
from paceline.hvd.world import members_of

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
FILE = Path(sys.argv[1])
RUNS = len(sys.argv) > 2
GENERATOR = np.random.default_rng(5)
X, Y = GENERATOR.standard_normal((64, 6)).astype("float32"), GENERATOR.standard_normal((64, 1)).astype("float32")
OWN = slice(RANK, None, SIZE)
STEPS = 12
LIMIT = 200
"""Bytes: kernels of 120 and 20 bytes, and biases of 20 and 4."""


def net():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)])
    model.build((None, 6))
    return model


def step_of(model, *, distributed):
    rate = 0.05

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
            hvd.allreduce(loss, name="loss")
        variables = model.trainable_variables
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(rate * gradient)
        return loss

    return step


model = net()
step = step_of(model, distributed=True)
if not RUNS:
    plan = paceline.plan_tensorflow(step, example=[X[OWN], Y[OWN]], bucket_size=LIMIT)
    gradients = [tensor for tensor in plan.tensors if "Tape" in tensor.name]
    assert sorted(tensor.bytes for tensor in gradients) == [4, 20, 20, 120], plan
    assert {tensor.dtype for tensor in plan.tensors} == {"float32"}
    assert [tensor.bytes for tensor in plan.tensors if "loss" in tensor.name] == [4], plan
    # Gradients are concurrent with each other. They follow the mean of the loss, for which the function waits first.
    assert [bucket.bytes for bucket in plan.buckets] == [4, 164], plan
    alone = paceline.plan_tensorflow(step, example=[X[OWN], Y[OWN]], bucket_size=None)
    assert len(alone.buckets) == 5 and alone.edges > alone.nodes > 40
    if RANK == 0:
        alone.save(FILE)
else:
    whole = net()
    plain = step_of(whole, distributed=False)
    for _ in range(STEPS):
        step(X[OWN], Y[OWN])
        plain(X, Y)
    for mine, theirs in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    counts = members_of(global_process_set).coordinator.counts()
    print(f"planned {counts['planned']} of {STEPS} steps")
hvd.shutdown()
