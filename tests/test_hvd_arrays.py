"""Named operations on numpy arrays: how dtypes are reduced, and the memory that is used again."""

import gc

import numpy as np
import pytest
from paceline.hvd import arrays
from paceline.hvd.operators import Operator


@pytest.mark.parametrize(
    ("op", "dtype", "planned"),
    [
        (Operator.Sum, "float32", ("sum", "float32", 1.0, 1.0)),
        (Operator.Average, "float64", ("sum", "float64", 1.0, 0.25)),
        (Operator.Average, "bfloat16", ("sum", "bfloat16", 1.0, 0.25)),
        (Operator.Max, "int64", ("max", "int64", 1.0, 1.0)),
        (Operator.Average, "uint8", ("sum", "int32", 1.0, 0.25)),
        (Operator.Sum, "uint8", ("sum", "uint8", 1.0, 1.0)),
        (Operator.Product, "int16", ("product", "int32", 1.0, 1.0)),
        (Operator.Sum, "uint32", ("sum", "int64", 1.0, 1.0)),
        (Operator.Sum, "bool", ("max", "uint8", 1.0, 1.0)),
        (Operator.Product, "bool", ("min", "uint8", 1.0, 1.0)),
        (Operator.Average, "complex64", ("sum", "float32", 1.0, 0.25)),
    ],
)
def test_how_dtypes_are_reduced(op, dtype, planned):
    assert arrays.lowered(op, dtype, 4) == planned


@pytest.mark.parametrize(
    ("op", "dtype", "remedy"),
    [
        (Operator.Max, "complex128", "sum and average are"),
        (Operator.Average, "bool", "convert it"),
        (Operator.Sum, "float8_e4m3fn", "convert it"),
        (Operator.Sum, "uint64", "convert it"),
    ],
)
def test_what_has_no_reduction_is_refused_with_a_remedy(op, dtype, remedy):
    with pytest.raises(TypeError, match=f"{op.name} of {dtype} is not defined; .*{remedy}"):
        arrays.lowered(op, dtype, 2)
    with pytest.raises(TypeError, match="bool cannot be scaled"):
        arrays.lowered(Operator.Sum, "bool", 2, 0.5)


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (300, 400)])
def test_copies_are_dense_and_aligned(shape):
    given = np.asfortranarray(np.arange(np.prod(shape, dtype=int), dtype="float32").reshape(shape))
    copy = arrays.copied(given)
    assert copy.flags.c_contiguous and copy.flags.writeable
    assert copy.size == 0 or arrays.address(copy) % arrays.ALIGNMENT == 0
    np.testing.assert_array_equal(copy, given)


def test_memory_is_used_again_only_when_nothing_holds_it():
    first = arrays.empty((123, 457), "float32")
    part, where = first[10:], arrays.address(first)
    part[:] = 3.0
    del first
    gc.collect()
    other = arrays.empty((123, 457), "float32")
    assert arrays.address(other) != where  # The part is still there.
    other[:] = 0.0
    assert (part == 3.0).all()
    del part
    gc.collect()
    assert arrays.address(arrays.empty((123, 457), "int32")) == where
