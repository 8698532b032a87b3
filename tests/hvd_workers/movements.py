"""All-gathers, broadcasts and all-to-alls against plain torch."""

import json
import time
from pathlib import Path

import paceline.torch as hvd
import pytest
import torch
from paceline.errors import InvalidArgumentError
from torch_workers import values
from torch_workers.checks import run_all


def everything(rank, size):
    run_all([gathers, gathered_shapes, grouped_gathers, broadcasts, broadcasts_in_place, exchanges], rank, size)
    run_all([exchanged_shapes, objects, barriers, other_memory], rank, size)


def _same(got, want):
    """The same bits, even of dtypes that torch cannot compare."""
    assert got.dtype is want.dtype and got.shape == want.shape, f"{got.dtype}{got.shape} {want.dtype}{want.shape}"
    assert got.contiguous().view(-1).view(torch.uint8).equal(want.contiguous().view(-1).view(torch.uint8))


def gathers(rank, size):
    for number, dtype in enumerate(values.MOVED):
        tensors = [values.tensor(dtype, (other + 1, 3), other, number) for other in range(size)]
        whole = torch.cat([tensor.view(-1) for tensor in tensors]).view(-1, 3)
        _same(hvd.allgather(tensors[rank], name=f"ag.{dtype}"), whole)
        _same(hvd.synchronize(hvd.allgather_async(tensors[rank])), whole)


def gathered_shapes(rank, size):
    assert hvd.allgather(torch.tensor(rank)).tolist() == list(range(size))
    none = hvd.allgather(torch.empty(0 if rank else 2, 5))
    assert none.shape == (2, 5)
    assert hvd.allgather(torch.empty(0, 5)).shape == (0, 5)
    assert hvd.allgather(torch.empty(rank + 1, 0)).shape == (size * (size + 1) // 2, 0)
    turned = torch.arange(6).view(2, 3).t() + rank
    _same(hvd.allgather(turned), torch.cat([torch.arange(6).view(2, 3).t() + other for other in range(size)]))
    got = hvd.allgather(torch.ones(2))
    got += 1
    assert got.tolist() == [2] * 2 * size, "the result may be written"


def grouped_gathers(rank, size):
    mine = [torch.full((rank + 1, 2), rank), torch.full((2,), rank, dtype=torch.bool), torch.tensor(rank)]
    for got in (hvd.grouped_allgather(mine, name="gag"), hvd.synchronize(hvd.grouped_allgather_async(mine))):
        assert got[0].tolist() == [[other] * 2 for other in range(size) for _ in range(other + 1)]
        assert got[1].tolist() == [bool(other) for other in range(size) for _ in range(2)]
        assert got[2].tolist() == list(range(size))


def broadcasts(rank, size):
    for number, dtype in enumerate(values.MOVED):
        root = number % size
        tensors = [values.tensor(dtype, (2, 3), other, number) for other in range(size)]
        _same(hvd.broadcast(tensors[rank], root, name=f"b.{dtype}"), tensors[root])
        _same(hvd.synchronize(hvd.broadcast_async(tensors[rank], root)), tensors[root])
        _same(tensors[rank], values.tensor(dtype, (2, 3), rank, number))
    for shape in [(), (0,), (3, 0)]:
        assert hvd.broadcast(torch.full(shape, float(rank)), size - 1).eq(size - 1).all()
    with pytest.raises(ValueError, match=rf"broadcast of 'x': root_rank {size} is not in"):
        hvd.broadcast(torch.ones(1), size, name="x")


def broadcasts_in_place(rank, size):
    root = size - 1
    own = torch.full((4, 6), float(rank))
    assert hvd.broadcast_(own, root) is own
    assert own.eq(root).all()
    turned = torch.full((4, 6), float(rank)).t()
    hvd.synchronize(hvd.broadcast_async_(turned, root, name="turned"))
    assert turned.eq(root).all()
    layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    torch.nn.init.constant_(layer[0].weight, rank)
    layer[1].num_batches_tracked.fill_(rank)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=root)
    assert layer[0].weight.eq(root).all() and layer[1].num_batches_tracked == root
    torch.nn.init.constant_(layer[0].weight, rank)
    hvd.broadcast_parameters(layer.named_parameters(), root_rank=0)
    assert layer[0].weight.eq(0).all()
    torch.nn.init.constant_(layer[0].bias, rank)
    hvd.broadcast_parameters(list(layer.parameters()), root_rank=root)
    assert layer[0].bias.eq(root).all()
    with pytest.raises(TypeError, match="'b' is not a tensor but str"):
        hvd.broadcast_parameters({"a": torch.ones(1), "b": "text"}, 0)
    with pytest.raises(ValueError, match="invalid params of type Tensor"):
        hvd.broadcast_parameters(torch.ones(1), 0)


def exchanges(rank, size):
    for number, dtype in enumerate(values.MOVED):
        # Rank r sends r + s + 1 rows to rank s.
        tensors = [[values.tensor(dtype, (a + b + 1, 2), a, b, number) for b in range(size)] for a in range(size)]
        own = torch.cat([tensor.view(-1) for tensor in tensors[rank]]).view(-1, 2)
        want = torch.cat([tensors[other][rank].view(-1) for other in range(size)]).view(-1, 2)
        splits = [rank + other + 1 for other in range(size)]
        got, received = hvd.alltoall(own, splits, name=f"a2a.{dtype}")
        _same(got, want)
        assert received.dtype is torch.int32 and received.tolist() == splits
    got, received = hvd.alltoall(own, torch.tensor(splits))
    assert received.dtype is torch.int64 and received.tolist() == splits


def exchanged_shapes(rank, size):
    own = torch.arange(2 * size) + 100 * rank
    want = torch.cat([torch.arange(2 * rank, 2 * rank + 2) + 100 * other for other in range(size)])
    assert torch.equal(hvd.alltoall(own), want)
    got, received = hvd.synchronize(hvd.alltoall_async(own, name="pairs"))
    assert torch.equal(got, want) and received.tolist() == [2] * size
    got, received = hvd.alltoall(own, [1 if other == 0 else 0 for other in range(size)])
    assert got.tolist() == ([100 * other for other in range(size)] if rank == 0 else [])
    assert received.tolist() == ([1] * size if rank == 0 else [0] * size)
    assert hvd.alltoall(torch.empty(0, 3)).shape == (0, 3)
    for wrong, why in (
        (lambda: hvd.alltoall(torch.tensor(1.0), name="w"), "no dimension to split"),
        (lambda: hvd.alltoall(torch.ones(3), [1] * (size + 1), name="w"), f"give {size} whole numbers"),
        (lambda: hvd.alltoall(torch.ones(3), [-1] * size, name="w"), f"give {size} whole numbers"),
        (lambda: hvd.alltoall(torch.ones(3), [4] * size, name="w"), "the tensor has 3"),
    ):
        with pytest.raises(ValueError, match=f"'alltoall.w'.*{why}"):
            wrong()
    if size > 1:
        with pytest.raises(ValueError, match="cannot be split equally"):
            hvd.alltoall(torch.ones(size + 1))


class Thing:
    def __init__(self, value):
        self.value = value


def objects(rank, size):
    thing = {"text": "ü" * 1000, "thing": Thing(rank), "tensor": torch.full((2,), rank)} if rank == size - 1 else None
    got = hvd.broadcast_object(thing, root_rank=size - 1)
    assert got["thing"].value == size - 1 and got["tensor"].tolist() == [size - 1] * 2
    assert (got is thing) == (rank == size - 1)
    assert hvd.broadcast_object(rank, 0, name="number") == 0
    assert hvd.allgather_object({"rank": rank, "more": "x" * rank}) == [
        {"rank": r, "more": "x" * r} for r in range(size)
    ]
    assert hvd.allgather_object(None, name="nothing") == [None] * size


def barriers(rank, size):
    for _ in range(3):
        hvd.barrier()
    hvd.barrier(process_set=hvd.global_process_set)


def live_timeline(rank, size, path):
    """Rank 0's file can be read while the job runs, and has all ranks once they have stopped."""
    hvd.start_timeline(path, mark_cycles=True)
    hvd.start_timeline(path)
    with pytest.raises(InvalidArgumentError, match="already being recorded"):
        hvd.start_timeline(f"{path}.2")
    until = time.monotonic() + 20
    while True:
        hvd.allreduce(torch.ones(3), name="grows")
        time.sleep(0.02)
        seen = rank > 0 or "NEGOTIATE_ALLREDUCE" in Path(path).read_text()
        if hvd.allreduce(torch.tensor(int(seen)), op=hvd.Sum) == size:
            break
        assert time.monotonic() < until, Path(path).read_text()
    if rank == 0:
        text = Path(path).read_text()
        events = json.loads(text[: text.rindex(",\n")] + "]")
        names = {event["name"] for event in events}
        assert {"allreduce.grows", "NEGOTIATE_ALLREDUCE", "ALLREDUCE", "CYCLE_START"} <= names
        (begun,) = [event["args"] for event in events if event["name"] == "start_time_since_epoch_in_micros"]
        assert abs(begun["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 60
    hvd.barrier()
    hvd.stop_timeline()
    hvd.barrier()
    assert not Path(path).is_symlink()
    events = json.loads(Path(path).read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["name"] == "ALLREDUCE"} == {1, 2}
    assert {event["args"]["rank"] for event in events if event["name"] == "paceline"} == {0, 1}


class Elsewhere(torch.Tensor):
    """Stands in for a tensor on a GPU: its elements must be copied to be read."""

    is_cpu = False

    def cpu(self):
        return self.as_subclass(torch.Tensor).clone()


def other_memory(rank, size):
    def there():
        return torch.full((2, 3), float(rank)).as_subclass(Elsewhere)

    total, x = size * (size - 1) / 2, there()
    assert hvd.allreduce(x, op=hvd.Sum).eq(total).all() and x.eq(rank).all()
    assert hvd.allreduce_(x, op=hvd.Sum) is x and x.eq(total).all()
    x, y = there(), there()
    hvd.grouped_allreduce_([x, y])
    assert x.eq(total / size).all() and y.eq(total / size).all()
    x = there()
    assert hvd.broadcast(x, size - 1).eq(size - 1).all() and x.eq(rank).all()
    assert hvd.broadcast_(x, size - 1) is x and x.eq(size - 1).all()
    assert hvd.allgather(there()).shape == (2 * size, 3)
    assert hvd.reducescatter(there().repeat(size, 1), op=hvd.Sum).eq(total).all()
    assert hvd.alltoall(there()[:1].repeat(size, 1))[:, 0].tolist() == list(range(size))
