"""All-reduces and reduce-scatters against plain torch."""

import signal
import threading
import time
import warnings

import paceline.torch as hvd
import pytest
import torch
from torch_workers import values
from torch_workers.checks import run_all

DTYPES = [*values.REDUCED, *values.WIDENED, torch.uint16, torch.uint32, torch.bool]
OPS = {hvd.Sum: "sum", hvd.Min: "min", hvd.Max: "max", hvd.Product: "product", hvd.Average: "avg"}


def everything(rank, size):
    run_all([every_dtype, shapes, complex_numbers, factors, older_argument, groups, compressed, refusals], rank, size)
    run_all([scattered, scattered_groups, sparse, sparse_in_place, in_flight, threads, interrupted], rank, size)


def _mine(dtype, shape, size, *seed):
    """The tensors of all ranks; sums of four are within the range of every dtype."""
    tensors = [values.tensor(dtype, shape, rank, *seed) for rank in range(size)]
    return [tensor % 32 if tensor.dtype in (torch.uint8, torch.int8) else tensor for tensor in tensors]


def _wanted(op, tensors):
    return values.reduced(OPS[op], tensors)


def _assert(got, op, tensors, what):
    values.assert_reduced(got, OPS[op], tensors, what)


def every_dtype(rank, size):
    for number, dtype in enumerate(DTYPES):
        for op in OPS:
            if dtype is torch.bool and op is hvd.Average:
                continue
            tensors = _mine(dtype, (3, 5), size, number)
            own = tensors[rank].clone()
            got = hvd.allreduce(own, op=op, name=f"{dtype}.{op}")
            _assert(got, op, tensors, f"{dtype}")
            assert got.dtype is dtype and torch.equal(own, tensors[rank]), "the input is as before"
            back = hvd.allreduce_(own, op=op)
            assert back is own
            _assert(own, op, tensors, f"{dtype} in place")


def shapes(rank, size):
    for shape in [(), (0,), (1,), (2, 0, 3), (1000, 7)]:
        tensors = _mine(torch.float32, shape, size, 7)
        values.assert_reduced(hvd.allreduce(tensors[rank], op=hvd.Sum), "sum", tensors)
    tensors = _mine(torch.float64, (6, 8), size, 8)
    turned = tensors[rank].clone().t()
    values.assert_reduced(hvd.allreduce(turned, op=hvd.Sum).t(), "sum", tensors)
    hvd.allreduce_(turned, op=hvd.Sum)
    values.assert_reduced(turned.t(), "sum", tensors, "in place, transposed")
    part = tensors[rank].clone()
    hvd.allreduce_(part[:, ::2], op=hvd.Sum)
    values.assert_reduced(part[:, ::2].contiguous(), "sum", [t[:, ::2].contiguous() for t in tensors])
    assert torch.equal(part[:, 1::2], tensors[rank][:, 1::2]), "the rest is as before"
    weights = torch.nn.Parameter(tensors[rank].clone())
    hvd.allreduce_(weights, op=hvd.Sum)
    values.assert_reduced(weights.data, "sum", tensors, "a parameter")


def complex_numbers(rank, size):
    for dtype in (torch.complex64, torch.complex128):
        tensors = [values.tensor(dtype, (4,), other) for other in range(size)]
        whole = torch.stack(tensors).sum(0)
        torch.testing.assert_close(hvd.allreduce(tensors[rank], op=hvd.Sum), whole)
        torch.testing.assert_close(hvd.allreduce(tensors[rank]), whole / size)


def factors(rank, size):
    tensors = _mine(torch.float32, (9,), size, 9)
    got = hvd.allreduce(tensors[rank], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(got, torch.stack(tensors).sum(0) * 1.5)
    got = hvd.allreduce(tensors[rank], prescale_factor=0.5, postscale_factor=3.0)
    torch.testing.assert_close(got, torch.stack(tensors).mean(0) * 1.5)
    whole = _mine(torch.int32, (9,), size, 10)
    got = hvd.allreduce(whole[rank], op=hvd.Sum, prescale_factor=0.5)
    assert torch.equal(got, sum((tensor.double() * 0.5).trunc().int() for tensor in whole))
    got = hvd.allreduce(whole[rank], postscale_factor=3.0)
    assert torch.equal(got, (sum(whole).double() * (3.0 / size)).trunc().int())
    # What Horovod 0.28.1 returns on two ranks for [-3, -7, 5, -37].
    shared = torch.tensor([-6, -14, 10, -74], dtype=torch.int32)
    own = shared if rank == 0 else torch.zeros_like(shared)
    assert hvd.allreduce(own, op=hvd.Sum, postscale_factor=0.3).tolist() == [-1, -4, 3, -22]


def older_argument(rank, size):
    tensors = _mine(torch.float32, (3,), size, 11)
    with warnings.catch_warnings(record=True) as result:
        warnings.simplefilter("always")
        values.assert_reduced(hvd.allreduce(tensors[rank], average=False), "sum", tensors)
        values.assert_reduced(hvd.allreduce(tensors[rank], True), "avg", tensors)
    assert [warning.category for warning in result] == [DeprecationWarning] * 2
    with pytest.raises(ValueError, match="op and average"):
        hvd.allreduce(tensors[rank], average=True, op=hvd.Sum)


def groups(rank, size):
    dtypes = [torch.float32, torch.int64, torch.bfloat16]
    tensors = [_mine(dtype, (2, 3 + n), size, 12, n) for n, dtype in enumerate(dtypes)]
    mine = [each[rank].clone() for each in tensors]
    for got in (hvd.grouped_allreduce(mine, name="g", op=hvd.Sum), hvd.grouped_allreduce(mine, op=hvd.Sum)):
        for one, each in zip(got, tensors, strict=True):
            values.assert_reduced(one, "sum", each)
    handle = hvd.grouped_allreduce_async(mine, name="g")
    for one, each in zip(hvd.synchronize(handle), tensors, strict=True):
        _assert(one, hvd.Average, each, "grouped")
    back = hvd.synchronize(hvd.grouped_allreduce_async_(mine[:1], op=hvd.Sum))
    assert back[0] is mine[0]
    hvd.grouped_allreduce_(mine[1:], op=hvd.Sum)
    for one, each in zip(mine, tensors, strict=True):
        values.assert_reduced(one, "sum", each)
    with pytest.raises(ValueError, match="empty"):
        hvd.grouped_allreduce([])


def compressed(rank, size):
    tensors = _mine(torch.float32, (50,), size, 13)
    for compression, tolerance in ((hvd.Compression.fp16, 2e-3), (hvd.Compression.bf16, 2e-2)):
        got = hvd.allreduce(tensors[rank], compression=compression)
        assert got.dtype is torch.float32
        torch.testing.assert_close(got, torch.stack(tensors).mean(0), rtol=tolerance, atol=tolerance)
        whole = hvd.grouped_allreduce([tensors[rank], torch.arange(4)], compression=compression, op=hvd.Sum)
        assert torch.equal(whole[1], torch.arange(4) * size), "integers are left as they are"


def refusals(rank, size):
    one = torch.ones(2)
    for wrong in (
        lambda: hvd.allreduce(one.bool(), name="flags"),
        lambda: hvd.allreduce(one.to(torch.float8_e5m2), name="flags"),
        lambda: hvd.allreduce(one.to(torch.complex64), op=hvd.Min, name="flags"),
        lambda: hvd.allreduce(one.bool(), op=hvd.Sum, prescale_factor=2.0, name="flags"),
        lambda: hvd.allreduce([1.0, 2.0], name="flags"),
    ):
        with pytest.raises(TypeError, match=r"'allreduce\.flags'"):
            wrong()
    with pytest.raises(ValueError, match=r"hvd\.Average"):
        hvd.allreduce(one, op=17)
    for adasum in (lambda: hvd.allreduce(one, op=hvd.Adasum), lambda: hvd.reducescatter(one, op=hvd.Adasum)):
        with pytest.raises(NotImplementedError, match=r"Adasum.*hvd\.Average"):
            adasum()
    with pytest.raises(ValueError, match=r"'allgather.s'.*to_dense"):
        hvd.allgather(one.to_sparse(), name="s")


def scattered(rank, size):
    for dtype in [*DTYPES, torch.complex64]:
        for op in OPS:
            if (dtype is torch.bool and op is hvd.Average) or (dtype.is_complex and op not in (hvd.Sum, hvd.Average)):
                continue
            tensors = _mine(dtype, (2 * size + 1, 3), size, 14)
            if dtype.is_complex:
                whole = torch.stack(tensors).sum(0) / (size if op is hvd.Average else 1)
            else:
                whole = _wanted(op, tensors)
            got = hvd.reducescatter(tensors[rank], op=op, name="rs")
            want = torch.tensor_split(whole, size)[rank]
            assert got.dtype is dtype and got.shape == want.shape
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    for shape in [(size,), (1, 4), (0, 3), (5, 0), (size + 1, 2, 2)]:
        tensors = _mine(torch.float32, shape, size, 15)
        want = torch.tensor_split(torch.stack(tensors).mean(0), size)[rank]
        torch.testing.assert_close(hvd.reducescatter(tensors[rank]), want)
        torch.testing.assert_close(hvd.synchronize(hvd.reducescatter_async(tensors[rank], op=hvd.Average)), want)
    tensors = _mine(torch.float32, (4, 6), size, 16)
    want = torch.tensor_split(torch.stack(tensors).sum(0).t(), size)[rank]
    torch.testing.assert_close(hvd.reducescatter(tensors[rank].t(), op=hvd.Sum, compression=hvd.Compression.none), want)
    got = hvd.reducescatter(tensors[rank].t(), op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    torch.testing.assert_close(got, want * 2)
    whole = _mine(torch.int64, (size,), size, 17)
    before = whole[rank].clone()
    got = hvd.reducescatter(whole[rank], op=hvd.Sum, prescale_factor=0.5)
    assert torch.equal(got, sum((tensor.double() * 0.5).trunc().long() for tensor in whole)[rank : rank + 1])
    assert torch.equal(whole[rank], before), "the input is as before"
    with pytest.raises(ValueError, match="no dimension to scatter"):
        hvd.reducescatter(torch.tensor(1.0))


def scattered_groups(rank, size):
    tensors = [_mine(dtype, (size + 1, 2), size, 18, n) for n, dtype in enumerate([torch.float32, torch.int32])]
    mine = [each[rank] for each in tensors]
    for got in (
        hvd.grouped_reducescatter(mine, op=hvd.Sum, name="grs"),
        hvd.synchronize(hvd.grouped_reducescatter_async(mine, op=hvd.Sum)),
    ):
        for one, each in zip(got, tensors, strict=True):
            torch.testing.assert_close(one, torch.tensor_split(sum(each), size)[rank])


def _sparse(rank, n=5, d=3):
    """Different numbers of indices, some duplicated; rank 1 has none."""
    count = 0 if rank == 1 else rank + 2
    indices = torch.tensor([[(rank + 2 * at) % n for at in range(count)]], dtype=torch.int64).view(1, count)
    return torch.sparse_coo_tensor(indices, values.tensor(torch.float32, (count, d), rank, 19), (n, d))


def sparse(rank, size):
    own = _sparse(rank)
    whole = sum(_sparse(other).to_dense() for other in range(size))
    torch.testing.assert_close(hvd.sparse_allreduce_async(own, name="s", op=hvd.Sum)().to_dense(), whole)
    handle = hvd.sparse_allreduce_async(own, name="s", op=hvd.Average)
    torch.testing.assert_close(hvd.synchronize(handle).to_dense(), whole / size)
    torch.testing.assert_close(hvd.allreduce(own).to_dense(), whole / size)
    torch.testing.assert_close(hvd.synchronize(hvd.allreduce_async(own, op=hvd.Sum)).to_dense(), whole)
    flat = torch.eye(4)[rank % 4].repeat(2, 1).long().to_sparse()
    torch.testing.assert_close(
        hvd.allreduce(flat, op=hvd.Sum).to_dense(),
        sum(torch.eye(4)[other % 4].repeat(2, 1).long() for other in range(size)),
    )
    negative = [torch.tensor([0, -3 - 2 * other]) for other in range(size)]
    # Each value separately: readers of the tensor add them up.
    got = hvd.allreduce(negative[rank].to_sparse(), name="negative")
    assert got.to_dense()[1] == sum(int(each[1] / size) for each in negative)
    if size > 1:
        large = torch.sparse_coo_tensor(torch.tensor([[7]]), torch.ones(1, 3), (9, 3))
        handle = hvd.sparse_allreduce_async(large if rank == 0 else own, name="s")
        if rank == 0:
            hvd.synchronize(handle)
        else:
            with pytest.raises(ValueError, match=r"'allgather.s': has a shape other than \[5, 3\]"):
                hvd.synchronize(handle)
    with pytest.raises(ValueError, match=r"'allgather.s': Max of sparse"):
        hvd.sparse_allreduce_async(own, "s", hvd.Max)
    with pytest.raises(ValueError, match="use allreduce"):
        hvd.sparse_allreduce_async(whole, "s", hvd.Sum)


def sparse_in_place(rank, size):
    own = _sparse(rank)
    assert hvd.allreduce_(own, op=hvd.Sum) is own
    torch.testing.assert_close(own.to_dense(), sum(_sparse(other).to_dense() for other in range(size)))


def in_flight(rank, size):
    """Orders that differ between ranks; more unnamed operations than there are names for; dropped handles."""
    tensors = {name: _mine(torch.float32, (40,), size, 20, name) for name in range(20)}
    order = sorted(tensors, key=lambda name: (name * (2 * rank + 3)) % 20)
    handles = {name: hvd.allreduce_async(tensors[name][rank], name=f"n{name}", op=hvd.Sum) for name in order}
    for name in reversed(order):
        values.assert_reduced(hvd.synchronize(handles[name]), "sum", tensors[name])
    assert hvd.synchronize(handles[0]) is None, "as in Horovod"
    with pytest.raises(ValueError, match=r"allreduce\.n0.*already been synchronized"):
        hvd.poll(handles[0])
    assert "cleared" in repr(handles[0])
    with pytest.raises(TypeError, match="not a handle"):
        hvd.synchronize(7)
    many = [hvd.allreduce_async(torch.full((3,), float(number)), op=hvd.Sum) for number in range(150)]
    for number, handle in enumerate(many):
        assert hvd.synchronize(handle).tolist() == [number * size] * 3
    for number in range(150):
        hvd.allreduce_async_(torch.full((1000,), float(number)), name=f"dropped{number}")
    last = hvd.allreduce_async(torch.ones(1))
    hvd.barrier()
    while not hvd.poll(last):
        pass
    assert hvd.synchronize(last).item() == 1


def threads(rank, size):
    """Several threads, each with its own names, begin and wait at the same time."""
    failed = []

    def work(number):
        for step in range(30):
            own = torch.full((5 + number,), float(rank + step))
            got = hvd.allreduce(own, op=hvd.Sum, name=f"thread{number}")
            if not got.eq(sum(range(size)) + size * step).all():
                failed.append((number, step, got))

    several = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
    assert not failed


def interrupted(rank, size):
    """Ctrl-C ends the wait, not the operation."""
    handle = None
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(1), name="late", op=hvd.Sum)
        if size > 1:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            with pytest.raises(KeyboardInterrupt):
                hvd.synchronize(handle)
    else:
        time.sleep(0.6)
        handle = hvd.allreduce_async(torch.ones(1), name="late", op=hvd.Sum)
    assert hvd.synchronize(handle).item() == size
