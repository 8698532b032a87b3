"""Seeded arrays of every dtype, and numpy's results for them. bfloat16 is stored as uint16: float32's upper half."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path

import numpy as np

DTYPES = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"]
FLOATS = DTYPES[:4]
NO_AVERAGE = ["uint8"]
OPS = ["sum", "average", "min", "max", "product"]
# The distance from 1 to the next number. Sums of n numbers above 0 are within n roundings of the exact one; so are
# products, and an average has one more.
EPS = {"float32": 2.0**-23, "float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
LENGTHS = [0, 1, 3, 1000]
LONG = 300_001


def stored(dtype):
    """The name in numpy."""
    return "uint16" if dtype == "bfloat16" else dtype


def said(dtype):
    """The `dtype` argument that it takes."""
    return {"dtype": dtype} if dtype == "bfloat16" else {}


def narrow(values, dtype):
    """float64 to the dtype, rounded to the nearest, ties to even."""
    if dtype != "bfloat16":
        return values.astype(dtype)
    bits = values.astype("float32").view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")


def wide(array, dtype):
    """The same numbers as float64; integers as they are."""
    if dtype == "bfloat16":
        return (array.astype("uint32") << 16).view("float32").astype("float64")
    return array.astype("float64") if dtype in FLOATS else array


@cache
def _values(dtype, length, seed):
    draw = np.random.default_rng([4711, *seed])
    if dtype in FLOATS:
        made = narrow(draw.uniform(0.5, 2, length), dtype)
    else:
        made = draw.integers(0 if dtype == "uint8" else -255, 255, length, dtype=stored(dtype), endpoint=True)
    made.flags.writeable = False
    return made


def values(dtype, length, *seed):
    """What the seed's rank gives: floats between 0.5 and 2, integers between 0 (or -255) and 255. A fresh copy."""
    return _values(dtype, length, seed).copy()


@cache
def _combined(op, dtype, length, seeds):
    every = np.stack([wide(_values(dtype, length, seed), dtype) for seed in seeds])
    if op in ("min", "max"):
        return every.min(0) if op == "min" else every.max(0)
    function = np.prod if op == "product" else np.sum
    result = function(every, axis=0, dtype=every.dtype)
    return average(result, len(seeds)) if op == "average" else result


def average(total, ranks):
    """Integers are rounded toward zero."""
    return total / ranks if total.dtype.kind == "f" else np.sign(total) * (np.abs(total) // ranks)


def check_combined(got, op, dtype, seeds, what=""):
    """`got` is the op's result for the values of these seeds: exactly, or for floats within the roundings above."""
    want, have = _combined(op, dtype, got.size, tuple(seeds)), wide(got, dtype)
    if dtype in FLOATS and op not in ("min", "max"):
        limit = (len(seeds) + 1) * EPS[dtype]
        good = np.allclose(have, want, rtol=limit, atol=0)
    else:
        good = np.array_equal(have, want)
    assert good, f"{what} {op} {dtype} x {got.size}: {have[:8]} instead of {want[:8]}"


def forget():
    """All values created so far."""
    _values.cache_clear()
    _combined.cache_clear()


class Digest:
    """Of all results so far."""

    def __init__(self):
        self.hash = hashlib.sha256()

    def add(self, array):
        self.hash.update(memoryview(array).cast("B") if array.size else b"-")

    def text(self):
        return self.hash.hexdigest()[:16]


def tell(**said):
    """One line of JSON for the test, in one write."""
    os.write(1, (json.dumps(said) + "\n").encode())


def holdings():
    """Descriptors, threads, and mappings of /dev/shm of this process."""
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "shm": maps.count("/dev/shm"),
        "memfd": maps.count("memfd:"),
    }
