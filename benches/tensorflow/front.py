"""What the front for TensorFlow costs: one rank, whose all-reduces move nothing, so what remains is the front.

Each operation is measured in turn with the same work without Paceline. The table has medians of wall-clock time and of
the process's CPU time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import paceline.tensorflow as hvd
import tensorflow as tf


def pair(rounds: int, one: Callable[[], Any], other: Callable[[], Any]) -> list[float]:
    """Return wall-clock and CPU time of two functions that are called in turn: medians, in seconds."""
    times: list[list[float]] = [[], [], [], []]
    for _ in range(rounds + 3):
        for function, (wall, cpu) in zip((one, other), (times[:2], times[2:]), strict=True):
            start, busy = time.perf_counter(), time.process_time()
            function()
            cpu.append(time.process_time() - busy)
            wall.append(time.perf_counter() - start)
    return [statistics.median(each[3:]) for each in times]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    hvd.init()
    small, large = tf.zeros([1]), tf.zeros([25_000_000])
    weights = [tf.Variable(tf.zeros([256, 256])) for _ in range(160)]

    def grads(distributed: bool) -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(weight * weight) for weight in weights])
        if not distributed:
            return tape.gradient(loss, weights)
        result = hvd.DistributedGradientTape(tape)
        result._reducer.alone = lambda: False  # of one rank, which would leave gradients as they are
        return result.gradient(loss, weights)

    reduce = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    copy = tf.function(lambda x: x + 1.0)
    step = tf.function(grads)
    cases = {
        "allreduce of 4 bytes, eager": (lambda: hvd.allreduce(small, op=hvd.Sum), lambda: small + 1.0),
        "allreduce of 4 bytes, in a graph": (lambda: reduce(small), lambda: copy(small)),
        "allreduce of 100 MB, eager": (lambda: hvd.allreduce(large, op=hvd.Sum), lambda: large + 1.0),
        "allreduce of 100 MB, in a graph": (lambda: reduce(large), lambda: copy(large)),
        "tape of 160 gradients, 42 MB, in a graph": (lambda: step(True), lambda: step(False)),
    }
    print(f"TensorFlow {tf.__version__}; ms, median of {options.rounds}")
    print(f"{'':42}{'paceline':>10}{'CPU':>10}{'without':>10}{'CPU':>10}")
    for name, (ours, other) in cases.items():
        print(f"{name:42}" + "".join(f"{each * 1e3:10.3f}" for each in pair(options.rounds, ours, other)), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
