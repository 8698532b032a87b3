"""A rank dies in the middle of a graph; the other one is told by an error that names it."""

import os
import signal

import paceline.tensorflow as hvd
import tensorflow as tf

hvd.init()
weight = tf.Variable([1.0])


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = weight * 2.0
    return hvd.DistributedGradientTape(tape).gradient(loss, [weight])


for count in range(1000):
    if count == 3 and hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        step()
    except tf.errors.OpError as error:
        print(f"step {count}: {error.message.splitlines()[0]}", flush=True)
        raise SystemExit(7) from None
