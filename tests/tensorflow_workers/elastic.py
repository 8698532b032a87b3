"""Elastic training of a model of Keras, in a graph that is traced once; a rank is killed on the way."""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np
import paceline.tensorflow as hvd
import tensorflow as tf

STEPS, MARK = 12, Path(sys.argv[1])
hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])
model.build((None, 4))
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
traces = []


@tf.function
def step(x, y):
    traces.append(1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )


@hvd.elastic.run
def train(state):
    while state.step < STEPS:
        if state.step == 5 and hvd.rank() == 0 and not MARK.exists():
            MARK.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        draw = np.random.default_rng(100 * state.step + hvd.rank())
        x = draw.standard_normal((8, 4)).astype("float32")
        step(tf.constant(x), tf.constant(x.sum(1, keepdims=True)))
        state.step += 1
        state.commit()


state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)
train(state)
assert len(traces) == 1
digest = float(sum(np.abs(weight).sum() for weight in model.get_weights()))
print(f"done with {hvd.size()} ranks, {digest:.7f}", flush=True)
hvd.shutdown()
