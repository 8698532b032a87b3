"""Horovod's calls on tensors and arrays in every memory layout, which may differ between ranks."""

import copy
import functools
import itertools
import random

import numpy as np
import paceline.torch as hvd
import torch
from paceline.hvd import arrays
from paceline.hvd.operators import Operator
from paceline.hvd.process_sets import global_process_set
from paceline.hvd.world import members_of
from torch_workers.handles import raises
from torch_workers.layouts import REDUCIBLE, SHAPES, VIEWS, Call, place
from torch_workers.values import MOVED, tensor

OPS = {"sum": hvd.Sum, "avg": hvd.Average, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}


def operators(dtype):
    if dtype.is_complex:
        return ["sum", "avg"]
    return [op for op in OPS if not (op == "avg" and dtype is torch.bool)]


def all_reduce(call, dtype, shape, op):
    every, own = call.given(dtype, shape, 1)
    got = hvd.allreduce(own, op=OPS[op])
    call.assert_reduced(got, op, every)
    every, own = call.given(dtype, shape, 2, written=True)
    assert hvd.allreduce_(own, op=OPS[op]) is own
    call.assert_reduced(own, op, every)


def all_reduce_scaled(call, dtype, shape, op):
    if op not in ("sum", "avg") or not dtype.is_floating_point:
        return
    every, own = call.given(dtype, shape, 3, written=True)
    hvd.allreduce_(own, op=OPS[op], prescale_factor=0.5, postscale_factor=4.0)
    call.assert_reduced(own / 2, op, every)


def all_reduce_grouped(call, dtype, shape, op):
    pairs = [call.given(dtype, shape, number, written=True) for number in (4, 5)]
    copies = hvd.grouped_allreduce([own for _, own in pairs], op=OPS[op])
    hvd.synchronize(hvd.grouped_allreduce_async_([own for _, own in pairs], op=OPS[op]))
    for (every, own), other in zip(pairs, copies, strict=True):
        call.assert_reduced(own, op, every)
        call.assert_reduced(other, op, every)


def reduce_scatter(call, dtype, shape, op):
    if not shape:
        return
    every, own = call.given(dtype, (call.size * shape[0], *shape[1:]), 6)
    for got in (hvd.reducescatter(own, op=OPS[op]), *hvd.grouped_reducescatter([own], op=OPS[op])):
        call.assert_reduced(got, op, [part.reshape(call.size, *shape)[call.rank] for part in every])


def of_arrays(call, dtype, shape, op):
    """What TensorFlow, Keras and JAX call, in place and not."""
    if dtype is torch.bfloat16:
        return
    members = members_of(global_process_set)
    how = Operator(OPS[op])
    every, own = call.given(dtype, shape, 7)
    own = own.resolve_conj().resolve_neg().numpy()
    for in_place in (False, True):
        given = np.copy(own, order="K") if in_place else own
        if in_place and call.later and shape:
            given = np.asfortranarray(given)
        got = members.begin(
            "allreduce",
            None,
            lambda full, given=given, in_place=in_place: arrays.reduced(
                members, full, given, how, 1.0, 1.0, in_place=in_place
            ),
        )()
        call.assert_reduced(torch.from_numpy(np.asarray(got)), op, every)
    if shape:
        rows = [part.chunk(call.size)[call.rank] for part in every] if shape[0] % call.size == 0 else None
        if rows is not None and shape[0]:
            got = members.begin(
                "reducescatter", None, lambda full: arrays.scattered(members, full, own, how, 1.0, 1.0)
            )()
            call.assert_reduced(torch.from_numpy(np.asarray(got)), op, rows)


REDUCTIONS = [all_reduce, all_reduce_scaled, all_reduce_grouped, reduce_scatter, of_arrays]


def broadcast(call, dtype, shape):
    root = call.draw.randrange(call.size)
    every, own = call.given(dtype, shape, 8)
    call.assert_same(hvd.broadcast(own, root), every[root])
    every, own = call.given(dtype, shape, 9, written=True)
    assert hvd.broadcast_(own, root) is own
    call.assert_same(own, every[root])


def all_gather(call, dtype, shape):
    every, own = call.given(dtype, shape, 10)
    want = torch.cat(every) if shape else torch.stack(every)
    call.assert_same(hvd.allgather(own), want)
    for got in hvd.grouped_allgather([own, own]):
        call.assert_same(got, want)


def all_to_all(call, dtype, shape):
    if not shape:
        return
    splits = [1 + target for target in range(call.size)]
    every, own = call.given(dtype, (sum(splits) + 1, *shape[1:]), 11)
    got, received = hvd.alltoall(own, splits)
    call.assert_same(got, torch.cat([part.split([*splits, 1])[call.rank] for part in every]))
    assert received.tolist() == [splits[call.rank]] * call.size


def arrays_moved(call, dtype, shape):
    """The same with arrays."""
    if dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        return
    members, every, own = members_of(global_process_set), *call.given(dtype, shape, 12)
    given = own.resolve_conj().resolve_neg().numpy()
    for in_place in (False, True):
        copied = np.copy(given, order="K")
        got = members.begin(
            "broadcast",
            None,
            lambda full, copied=copied, in_place=in_place: arrays.broadcast(
                members, full, copied, 0, in_place=in_place
            ),
        )()
        call.assert_same(torch.from_numpy(np.asarray(got)), every[0])
    got = members.begin("allgather", None, lambda full: arrays.gathered(members, full, given))()
    call.assert_same(torch.from_numpy(np.asarray(got.array)), torch.cat(every) if shape else torch.stack(every))


MOVES = [broadcast, all_gather, all_to_all, arrays_moved]


def everything(rank, size, seed, share):
    draw = random.Random(seed)
    shapes = itertools.cycle(SHAPES)
    reductions = [(act, dtype, op) for dtype in REDUCIBLE for op in operators(dtype) for act in REDUCTIONS]
    for act, dtype, *op in [*reductions, *itertools.product(MOVES, MOVED)]:
        for layout in [None, *(layout for layout in VIEWS if draw.random() < share)]:
            shape = next(shapes)
            what = f"{act.__name__} {''.join(op)} {dtype} {list(shape)} {layout or 'mixed'}"
            call = Call(draw, rank, size, layout, what, conjugated=True)
            try:
                act(call, dtype, shape, *op)
                call.assert_memory()
            except BaseException as error:
                error.add_note(f"in {what}")
                raise
    _training(rank, size)
    _refused(rank, size)


def _training(rank, size):
    """Weights, gradients and an optimizer's state in layouts that differ between ranks."""
    torch.manual_seed(3)
    alone = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), hvd.SyncBatchNorm(4), torch.nn.Flatten(), torch.nn.Linear(36, 2)
    )
    alone[1] = torch.nn.BatchNorm2d(4)
    ours = copy.deepcopy(alone)
    ours[1] = hvd.SyncBatchNorm(4)
    layout = torch.channels_last if rank % 2 else torch.contiguous_format
    ours = ours.to(memory_format=layout)
    if rank % 2:
        ours[3].weight.data = ours[3].weight.data.t().contiguous().t()
    hvd.broadcast_parameters(ours.state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), 0.1, momentum=0.9), named_parameters=ours.named_parameters()
    )
    plain = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    for step in range(3):
        images = [tensor(torch.float32, (4, 3, 5, 5), source, step) for source in range(size)]
        optimizer.zero_grad()
        ours(images[rank].to(memory_format=layout)).square().mean().backward()
        optimizer.step()
        plain.zero_grad()
        alone(torch.cat(images)).square().mean().backward()
        plain.step()
    for (name, got), want in zip(ours.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    hvd.broadcast_optimizer_state(optimizer, size - 1)


def _refused(rank, size):
    for dtype in (torch.float32, torch.int8):
        flat = place(tensor(dtype, (4, 3), rank), "expanded")
        for begin in (hvd.allreduce_, functools.partial(hvd.broadcast_, root_rank=(rank + 1) % size)):
            raises(ValueError, r"expand\(\).*give .contiguous\(\)", begin, flat.tensor)
        flat.assert_all("a refused call")
