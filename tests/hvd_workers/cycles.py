"""What coordinators do in steps whose gradients arrive at given times, for comparison with their simulation."""

import time

import numpy as np
import paceline.torch as hvd
from paceline.hvd.world import members_of


def steps(_rank, _size, gradients, count, *, apart=0, waits=0.0, period=0.0):
    """Counts and durations of `count` steps, in the form of the simulation's results.

    `gradients` are bytes and seconds after the start of the step; the first `apart` have another dtype. Ranks begin
    their steps `period` seconds apart, by the host's clock.
    """
    coordinator = members_of(hvd.global_process_set).coordinator
    dtypes = [np.float64 if number < apart else np.float32 for number in range(len(gradients))]
    arrays = [np.zeros(size // dtype().itemsize, dtype) for (size, _), dtype in zip(gradients, dtypes, strict=True)]
    begin = max(hvd.allgather_object(time.monotonic())) + 0.2
    _sleep_until(begin - 0.05)
    before, took = coordinator.counts(), []
    for step in range(count):
        start = begin + step * period if period else time.monotonic()
        operations = []
        for number, ((_, ready), array) in enumerate(zip(gradients, arrays, strict=True)):
            _sleep_until(start + ready)
            wanted = coordinator.request(
                "all_reduce",
                f"gradient {number}",
                inputs=[(array.ctypes.data, len(array))],
                dtype=array.dtype.name,
                shape=[len(array)],
                op="sum",
                keep=array,
            )
            coordinator.submit_step("7", [wanted])
            operations.append(wanted)
        _sleep_until(start + waits)
        coordinator.flush("7")
        for operation in operations:
            operation.wait()
        coordinator.ended("7")
        took.append(time.monotonic() - start)
    after = coordinator.counts()
    # The last rank reads its counters before others request anything or leave.
    time.sleep(0.3)
    hvd.barrier()
    return {name: after[name] - before[name] for name in after}, took


def _sleep_until(moment):
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
