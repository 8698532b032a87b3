"""Which arrays paceline.job accepts, and its errors for others. In a job of one rank, in this process."""

import array
import mmap
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import paceline
import pytest
from job_workers.launch import clean
from job_workers.values import DTYPES, said, stored
from paceline.job.job import JobError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and memfd")


@pytest.fixture(scope="module")
def job():
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("PACELINE_", "OMPI_", "PMI_", "SLURM_")) or name in (
                "RANK",
                "WORLD_SIZE",
                "LOCAL_RANK",
            ):
                patch.delenv(name)
        job = paceline.job.join()
    with job:
        yield job


def refuses(message, function, *args, **how):
    with pytest.raises(ValueError, match=message):
        function(*args, **how)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype(job, dtype):
    given = np.arange(6, dtype=stored(dtype)).reshape(2, 3)
    want = given.copy()
    assert job.all_reduce(given, **said(dtype)) is given
    assert (given == want).all()
    assert job.all_gather(given, **said(dtype)).shape == (1, 2, 3)


def test_buffers_of_every_kind(job):
    for given in (
        bytearray(b"abc"),
        array.array("f", [1]),
        array.array("q", [1]),
        array.array("l", [1, 2]),
        mmap.mmap(-1, 9),
    ):
        before = bytes(given)
        assert job.all_reduce(given) is given
        assert bytes(given) == before
    assert job.all_gather(b"xy", got := bytearray(2)) is got
    assert got == b"xy"
    assert job.all_gather(memoryview(b"xyz")[1:], bytearray(2)) == b"yz"
    assert job.all_gather(b"", bytearray()) == b""


def test_a_bytearray_can_be_resized_afterwards(job):
    given = bytearray(8)
    handle = job.all_reduce(given, async_=True)
    handle.wait()
    del handle
    given.extend(b"now it may")


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "uint32", "bool", "complex64", "object", "S3", "M8[ns]"])
def test_other_dtypes(job, dtype):
    given = np.zeros(3, dtype)
    refuses(r"array: .* is not one of float32, [^\n]*\n  try: array.astype", job.all_reduce, given)
    if dtype not in ("object", "S3"):
        assert job.all_gather(given.view("uint8")).size == given.nbytes


def test_tensors_of_torch_by_dlpack(job):
    torch = pytest.importorskip("torch")
    for dtype in ("float32", "float16", "bfloat16", "int64", "uint8"):
        tensor = torch.arange(6, dtype=getattr(torch, dtype)).reshape(2, 3)
        assert job.all_reduce(tensor, "average" if dtype.startswith("float") else "sum") is tensor
        assert tensor.flatten().tolist() == list(range(6))
    refuses("array: is not contiguous", job.all_reduce, torch.ones(3, 4).t())
    refuses("Tensor does not give its memory: .* requires? gradient", job.all_reduce, torch.ones(3, requires_grad=True))
    refuses("complex64 is not one of", job.all_reduce, torch.ones(3, dtype=torch.complex64))


def test_what_is_no_array(job):
    refuses("array: int is not an array", job.all_reduce, 3)
    refuses(r"array\[1\]: float is not an array", job.all_reduce, [np.ones(1), 2.0])
    refuses("array: float64 does not own memory", job.all_reduce, np.float64(3))
    refuses("array: an empty list", job.all_reduce, [])
    refuses(
        r"array\[1\]: arrays of one call must have one dtype, not float32 and float64",
        job.all_reduce,
        [np.ones(1), np.ones(1, "f")],
    )


def test_layouts(job):
    square = np.ones((4, 4), "float32")
    refuses("array: is not contiguous", job.all_reduce, square[:, 1])
    refuses("array: is not contiguous", job.all_reduce, square[::2])
    refuses("array: is not contiguous", job.all_reduce, np.ones((2, 3)).T)
    refuses("array: is not contiguous", job.all_reduce, np.ones(3)[::-1])
    refuses("array: is not contiguous", job.all_gather, np.broadcast_to(np.ones(3), (2, 3)))
    refuses("array: is not contiguous", job.broadcast, np.asfortranarray(np.ones((2, 3))))
    refuses("array: is not contiguous", job.all_reduce, memoryview(bytearray(9))[::-1])
    refuses("out: is not contiguous", job.all_gather, np.ones(3), np.ones((3, 2)).T[:1])
    refuses("array: is not contiguous", job.all_reduce, memoryview(bytearray(9))[::2])
    refuses("array: has the byte order of other machines", job.all_reduce, np.ones(3, ">f4"))
    job.all_reduce(square[1:3])
    job.all_reduce(square[:, :0])
    job.all_reduce(np.ones((3, 1)).T)
    odd = np.frombuffer(bytearray(9), "float32", 2, offset=1)
    job.all_reduce(odd)


def test_read_only(job):
    fixed = np.ones(3)
    fixed.flags.writeable = False
    refuses("array: is read-only", job.all_reduce, fixed)
    refuses("array: is read-only", job.all_reduce, b"abc")
    refuses("out: is read-only", job.all_gather, fixed, fixed)
    assert (job.all_gather(fixed) == 1).all()
    assert job.broadcast(fixed) is fixed


def test_dtype_by_name(job):
    refuses("dtype: unknown dtype 'float8'", job.all_reduce, np.zeros(3, "uint16"), dtype="float8")
    refuses("array: float32, and dtype says bfloat16", job.all_reduce, np.ones(3, "f"), dtype="bfloat16")
    refuses(
        "array: int16, and dtype says bfloat16",
        job.all_reduce,
        np.ones(3, "i2"),
        dtype="bfloat16",
    )
    refuses(
        r"array: uint16 is not one of .*\n  try: .*dtype='bfloat16' if it holds such", job.all_reduce, np.ones(3, "u2")
    )
    assert job.all_reduce(np.ones(3, "f"), dtype="float32").sum() == 3
    assert job.all_reduce(array.array("H", [1]), dtype="bfloat16")[0] == 1


@pytest.mark.skipif(find_spec("ml_dtypes") is None, reason="needs ml_dtypes")
def test_bfloat16_of_ml_dtypes(job):
    import ml_dtypes

    given = np.ones(3, ml_dtypes.bfloat16)
    assert (job.all_gather(job.all_reduce(given)) == 1).all()


def test_arrays_that_share_memory(job):
    given = np.ones(8)
    refuses("array: two of the arrays share memory", job.all_reduce, [given[:5], given[4:]])
    refuses("all_gather: out shares memory with array", job.all_gather, given, given)
    job.all_reduce([given[:4], given[4:]])
    job.all_gather([given, given], np.empty(16))


def test_arguments(job):
    ones = np.ones(4)
    refuses("try: one of sum, average, min, max, product", job.all_reduce, ones, "mean")
    refuses("the sum of uint8 wraps before it is divided", job.all_reduce, np.ones(4, "uint8"), "average")
    refuses("ringg", job.all_reduce, ones, strategy="ringg")
    refuses("root: there is no rank 1 in a group of 1", job.broadcast, ones, 1)
    refuses("root: there is no rank -1", job.reduce, ones, root=-1)
    refuses("to: there is no rank 1", job.send, ones, 1)
    refuses("source: there is no rank -1", job.recv, ones, -1)
    refuses("tag: must be 0-4294967295, not -1", job.recv, ones, tag=-1)
    refuses("send/recv: rank 0 cannot exchange with itself", job.send, ones, 0)
    refuses("array is float64, out is float32", job.all_gather, ones, np.empty(4, "f"))
    refuses("the input has 4 elements; it needs 5", job.all_gather, ones, np.empty(5))
    refuses(r"counts: must be 1 numbers, the elements of each rank, not \[1, 3\]", job.all_gather, ones, counts=[1, 3])
    refuses("array is for root, rank 0", job.scatter, ones)
    refuses("all_gather: out is missing", job.all_gather, bytearray(3))
    refuses("counts need out_counts", job.all_to_all, ones, counts=[4])
    refuses(r"group 'g': must be distinct ranks of a job of 1, not \[\]", job.group, [], "g")
    refuses(r"group 'g': \[0, 0\] must be distinct ranks", job.group, [0, 0], "g")
    refuses("group 'g': ", job.group, [1], "g")


def test_groups_of_one_name(job):
    first, second = job.group([0], "same"), job.group([0], "same")
    assert (first.rank, first.size, first.ranks, first.name) == (0, 1, [0], "same")
    first.barrier()
    second.barrier()


def test_after_the_end(job):
    other = paceline.job.join()
    group = other.group([0])
    other.close()
    other.close()
    for function in (other.barrier, group.barrier, other.status, group.choices, lambda: other.group([0], "x")):
        with pytest.raises(JobError, match="the job has been closed; join again"):
            function()
    job.barrier()


def test_importing_paceline_is_light():
    code = "import sys, paceline; assert not {'numpy', 'torch', 'paceline.job', 'ctypes'} & set(sys.modules);"
    code += "paceline.job.join().all_reduce(bytearray(3)); assert 'numpy' not in sys.modules; from paceline import job"
    subprocess.run([sys.executable, "-c", code], check=True, env=clean(), timeout=60)
    with pytest.raises(AttributeError, match="jobb"):
        _ = paceline.jobb
