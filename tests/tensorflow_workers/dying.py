"""A rank dies in the middle of a graph; the other one is told by an error that names it."""

import os
import signal
import time

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
        began = time.monotonic()
        step()
    except tf.errors.OpError as error:
        answer = next(line for line in error.message.splitlines() if "JobError" in line)
        print(f"step {count} after {time.monotonic() - began:.0f} s: {answer}", flush=True)
        raise SystemExit(7) from None
