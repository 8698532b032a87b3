"""Tensors in every memory layout, which may differ between ranks, in every call; results are compared by index."""

import copy
import functools
import itertools
import random
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from paceline.torch import strategy_hook
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from torch_workers.handles import raises
from torch_workers.values import MOVED, REDUCED, WIDENED, reduced, same, tensor

COMPLEX = [torch.complex64, torch.complex128]
REDUCIBLE = [*REDUCED, *WIDENED, torch.uint16, torch.uint32, torch.bool, *COMPLEX]
SHAPES = [(4, 6), (2, 4, 3), (4, 2, 2, 3), (4,), (), (0, 3), (2, 0, 3)]


# Layouts: the shape of the memory for a tensor of a shape, and the view that is the tensor.

VIEWS = {
    "contiguous": (lambda shape: shape, lambda base: base),
    "transposed": (lambda shape: shape[::-1], lambda base: base.permute(*reversed(range(base.dim())))),
    "sliced": (lambda shape: (*shape[:-1], 2 * shape[-1]), lambda base: base[..., ::2]),
    "rows": (lambda shape: (3 * shape[0], *shape[1:]), lambda base: base[1::3]),
    "inner": (lambda shape: tuple(n + 2 for n in shape), lambda base: base[(slice(1, -1),) * base.dim()]),
    "offset": (lambda shape: (shape[0] + 3, *shape[1:]), lambda base: base[3:]),
    "channels_last": (lambda shape: (*shape[:1], *shape[2:], shape[1]), lambda base: base.movedim(-1, 1)),
    "conjugated": (lambda shape: shape, lambda base: base.conj()),
    "negated": (lambda shape: (*shape, 2), lambda base: torch.view_as_complex(base).conj().imag),
    "expanded": (lambda shape: (1, *shape[1:]), None),
}


def layouts(dtype, shape, *, read=False, conjugated=False):
    """The names of those that a tensor of this dtype and shape can have; expanded ones can only be read."""
    names = ["contiguous"]
    if dtype.is_complex and conjugated:
        names.append("conjugated")
    if dtype in (torch.float32, torch.float64, torch.float16):
        names.append("negated")
    if shape:
        names += ["transposed", "sliced", "rows", "inner", "offset"]
    if len(shape) > 2:
        names.append("channels_last")
    if shape and shape[0] > 1 and read:
        names.append("expanded")
    return names


@dataclass
class Placed:
    """A tensor, and the memory that it is a view of."""

    tensor: torch.Tensor
    base: torch.Tensor
    before: torch.Tensor
    inside: torch.Tensor
    """Which elements of the memory belong to the tensor."""

    def assert_rest(self, what):
        """What does not belong to the tensor is as it was."""
        assert same(self.base[~self.inside], self.before[~self.inside]), f"{what}: wrote beside the tensor"

    def assert_all(self, what):
        """All is as it was."""
        assert same(self.base, self.before), f"{what}: changed its input"


def place(values, layout):
    """The values in a layout; memory around them holds other values."""
    shape_of, view = VIEWS[layout]
    shape = shape_of(tuple(values.shape))
    base = torch.empty(shape, dtype=values.dtype).copy_(tensor(values.dtype, shape, 99))
    inside = torch.zeros(shape, dtype=torch.bool)
    if layout == "expanded":
        made = base.expand(values.shape)
        base.copy_(values[:1])
        inside.fill_(True)
    else:
        made = view(base)
        made.copy_(values)
        (inside[..., 1] if layout == "negated" else inside if layout == "conjugated" else view(inside)).fill_(True)
    return Placed(made, base, base.clone(), inside)


class Call:
    """The tensors of one call: what each rank gives, in which layout, and what becomes of it."""

    def __init__(self, draw, rank, size, layout, what, *, conjugated):
        """`layout` of all tensors; None: each has its own, also on each rank."""
        self.draw, self.rank, self.size, self.layout, self.what = draw, rank, size, layout, what
        self.conjugated = conjugated
        self._read, self._written = [], []
        self.later = draw.random() < 0.3

    def _pick(self, dtype, shape, *, read):
        known = layouts(dtype, shape, read=read, conjugated=self.conjugated)
        picked = self.draw.choice(known)
        if self.layout is None:
            return picked
        return self.layout if self.layout in known else "contiguous"

    def given(self, dtype, shape, *seed, written=False):
        """The values of all ranks; and this rank's tensor, which is changed in place if it is `written`."""
        every, own = [], None
        for source in range(self.size):
            layout = self._pick(dtype, shape, read=not written)
            values = tensor(dtype, shape, source, *seed)
            if layout == "expanded":
                values = values[:1].expand(shape).clone()
            every.append(values)
            if source == self.rank:
                own = place(values, layout)
                (self._written if written else self._read).append(own)
        return every, own.tensor

    def result(self, dtype, shape):
        """A tensor to be written."""
        made = None
        for source in range(self.size):  # all ranks draw the same numbers
            layout = self._pick(dtype, shape, read=False)
            if source == self.rank:
                made = place(tensor(dtype, shape, 98), layout)
        self._written.append(made)
        return made.tensor

    def wait(self, work):
        """Wait for a call that was begun with `async_op=self.later`."""
        if work is not None:
            work.get_future().wait() if self.draw.random() < 0.5 else work.wait()

    def assert_memory(self):
        """Only results are written."""
        for one in self._read:
            one.assert_all(self.what)
        for one in self._written:
            one.assert_rest(self.what)

    def assert_same(self, got, want):
        assert same(got.resolve_conj().resolve_neg(), want), f"{self.what}: {got} instead of {want}"

    def assert_reduced(self, got, op, parts):
        """Exactly, except for sums and products of floating-point numbers."""
        want = combined(op, parts)
        got = got.resolve_conj().resolve_neg()
        if not (got.dtype.is_floating_point or got.dtype.is_complex) or op in ("min", "max"):
            assert same(got, want), f"{self.what}: {got} instead of {want}"
            return
        real = got.dtype.to_real() if got.dtype.is_complex else got.dtype
        roundings = 2 * len(parts) * torch.finfo(real).eps
        torch.testing.assert_close(
            got, want, rtol=roundings, atol=4 * roundings, msg=lambda text: f"{self.what}: {text}"
        )


FACTOR = 0.25


def combined(op, parts):
    """The reduction of all ranks' values by numpy; complex numbers by their parts."""
    if parts[0].dtype.is_complex:
        return torch.complex(*(combined(op, [getattr(part, side) for part in parts]) for side in ("real", "imag")))
    if op == "premul_sum":
        wide = [(part.double() * FACTOR) for part in parts]
        if not parts[0].dtype.is_floating_point:
            wide = [part.trunc() for part in wide]
        return sum(wide).to(torch.int64 if not parts[0].dtype.is_floating_point else torch.float64).to(parts[0].dtype)
    if op in ("band", "bor"):
        return reduced("min" if op == "band" else "max", parts)
    return reduced(op, parts)


def operators(dtype):
    """The names of the reductions that a dtype has, and torch's operators."""
    kinds = dist.ReduceOp
    values = {"sum": kinds.SUM}
    if dtype is torch.bool:
        return values | {
            "min": kinds.MIN,
            "max": kinds.MAX,
            "product": kinds.PRODUCT,
            "band": kinds.BAND,
            "bor": kinds.BOR,
        }
    values |= {"avg": kinds.AVG, "premul_sum": dist._make_nccl_premul_sum(FACTOR)}
    if dtype.is_complex:
        return values
    return values | {"min": kinds.MIN, "max": kinds.MAX, "product": kinds.PRODUCT}


# Calls that reduce: each makes its tensors by `call`, and compares what it gets.


def all_reduce(call, dtype, shape, op, kind):
    every, own = call.given(dtype, shape, 1, written=True)
    call.wait(dist.all_reduce(own, kind, async_op=call.later))
    call.assert_reduced(own, op, every)


def reduce(call, dtype, shape, op, kind):
    every, own = call.given(dtype, shape, 2, written=True)
    root = call.draw.randrange(call.size)
    call.wait(dist.reduce(own, root, kind, async_op=call.later))
    if call.rank == root:
        call.assert_reduced(own, op, every)
    else:
        call.assert_same(own, every[call.rank])


def reduce_from_expanded(call, dtype, shape, op, kind):
    """Only the root's tensor is written."""
    root = call.size - 1
    every, own = call.given(dtype, shape, 3)
    if call.rank == root:
        own = place(every[root], "contiguous").tensor
    dist.reduce(own, root, kind)
    if call.rank == root:
        call.assert_reduced(own, op, every)


def all_reduce_coalesced(call, dtype, shape, op, kind):
    pairs = [call.given(dtype, shape, number, written=True) for number in (4, 5)]
    if call.later or dtype.is_complex:
        dist.all_reduce_coalesced([own for _, own in pairs], kind)
    else:
        with dist._coalescing_manager():
            for _, own in pairs:
                dist.all_reduce(own, kind)
    for every, own in pairs:
        call.assert_reduced(own, op, every)


def reduce_scatter(call, dtype, shape, op, kind):
    pairs = [call.given(dtype, shape, 6, target) for target in range(call.size)]
    got = call.result(dtype, shape)
    call.wait(dist.reduce_scatter(got, [own for _, own in pairs], kind, async_op=call.later))
    call.assert_reduced(got, op, pairs[call.rank][0])


def reduce_scatter_tensor(call, dtype, shape, op, kind):
    if not shape:
        return
    every, own = call.given(dtype, (call.size * shape[0], *shape[1:]), 7)
    got = call.result(dtype, shape)
    call.wait(dist.reduce_scatter_tensor(got, own, kind, async_op=call.later))
    call.assert_reduced(got, op, [part.reshape(call.size, *shape)[call.rank] for part in every])


def reduce_scatter_coalesced(call, dtype, shape, op, kind):
    if not shape or not shape[0]:
        return
    pairs = [call.given(dtype, (call.size * shape[0], *shape[1:]), number) for number in (8, 9)]
    outs = [call.result(dtype, shape) for _ in pairs]
    with dist._coalescing_manager():
        for out, (_, own) in zip(outs, pairs, strict=True):
            dist.reduce_scatter_tensor(out, own, kind)
    for out, (every, _) in zip(outs, pairs, strict=True):
        call.assert_reduced(out, op, [part.chunk(call.size)[call.rank] for part in every])


def functional_reduce(call, dtype, shape, op, _kind):
    if op not in ("sum", "avg", "min", "max", "product", "band", "bor"):
        return
    every, own = call.given(dtype, shape, 10)
    call.assert_reduced(functional.all_reduce(own, op, dist.group.WORLD), op, every)
    if not shape or not shape[-1] or not shape[0]:
        return
    for dim in {0, len(shape) - 1}:
        whole = [*shape]
        whole[dim] *= call.size
        every, own = call.given(dtype, tuple(whole), 11)
        got = functional.reduce_scatter_tensor(own, op, dim, dist.group.WORLD)
        call.assert_reduced(got, op, [part.chunk(call.size, dim)[call.rank] for part in every])


REDUCTIONS = [all_reduce, reduce, reduce_from_expanded, all_reduce_coalesced, reduce_scatter, reduce_scatter_tensor]
REDUCTIONS += [reduce_scatter_coalesced, functional_reduce]


# Calls that move tensors.


def broadcast(call, dtype, shape):
    root = call.draw.randrange(call.size)
    every, own = call.given(dtype, shape, 12, written=True)
    call.wait(dist.broadcast(own, root, async_op=call.later))
    call.assert_same(own, every[root])


def broadcast_from_expanded(call, dtype, shape):
    every, own = call.given(dtype, shape, 13)
    got = own if call.rank == 0 else call.result(dtype, shape)
    if call.rank == 0:
        call.result(dtype, shape)  # the others draw
    dist.broadcast(got, 0)
    call.assert_same(got, every[0])


def all_gather(call, dtype, shape):
    every, own = call.given(dtype, shape, 14)
    outs = [call.result(dtype, shape) for _ in every]
    call.wait(dist.all_gather(outs, own, async_op=call.later))
    for out, want in zip(outs, every, strict=True):
        call.assert_same(out, want)


def all_gather_of_any_size(call, dtype, shape):
    if not shape:
        return
    shapes = [(shape[0] + source, *shape[1:]) for source in range(call.size)]
    tables = [call.given(dtype, one, 15) for one in shapes]
    outs = [call.result(dtype, one) for one in shapes]
    dist.all_gather(outs, tables[call.rank][1])
    for source, out in enumerate(outs):
        call.assert_same(out, tables[source][0][source])


def all_gather_into_tensor(call, dtype, shape):
    every, own = call.given(dtype, shape, 16)
    if shape:
        got = call.result(dtype, (call.size * shape[0], *shape[1:]))
        call.wait(dist.all_gather_into_tensor(got, own, async_op=call.later))
        call.assert_same(got, torch.cat(every))
    got = call.result(dtype, (call.size, *shape))
    call.wait(dist.all_gather_into_tensor(got, own, async_op=call.later))
    call.assert_same(got, torch.stack(every))


def all_gather_in_place(call, dtype, shape):
    """Each rank's part of the result is its input, as FSDP does it."""
    every, _ = call.given(dtype, shape, 17)
    got = call.result(dtype, (call.size, *shape))
    got[call.rank].copy_(every[call.rank])
    dist.all_gather_into_tensor(got, got[call.rank])
    call.assert_same(got, torch.stack(every))


def all_gather_coalesced(call, dtype, shape):
    pairs = [call.given(dtype, shape, number) for number in (18, 19)]
    if dtype.is_complex:
        return
    lists = [[call.result(dtype, shape) for _ in pairs] for _ in range(call.size)]
    dist.all_gather_coalesced(lists, [own for _, own in pairs])
    wholes = [call.result(dtype, (call.size, *shape)) for _ in pairs]
    with dist._coalescing_manager():
        for whole, (_, own) in zip(wholes, pairs, strict=True):
            dist.all_gather_into_tensor(whole, own)
    for number, (every, _) in enumerate(pairs):
        call.assert_same(wholes[number], torch.stack(every))
        for source, want in enumerate(every):
            call.assert_same(lists[source][number], want)


def gather(call, dtype, shape):
    root = call.draw.randrange(call.size)
    every, own = call.given(dtype, shape, 20)
    outs = [call.result(dtype, shape) for _ in every]
    call.wait(dist.gather(own, outs if call.rank == root else None, root, async_op=call.later))
    for out, want in zip(outs, every, strict=True):
        if call.rank == root:
            call.assert_same(out, want)
    if hasattr(dist, "gather_single") and shape:
        whole = call.result(dtype, (call.size * shape[0], *shape[1:]))
        dist.gather_single(own, whole if call.rank == root else None, root)
        if call.rank == root:
            call.assert_same(whole, torch.cat(every))


def scatter(call, dtype, shape):
    root = call.draw.randrange(call.size)
    pairs = [call.given(dtype, shape, 21, target) for target in range(call.size)]
    got = call.result(dtype, shape)
    call.wait(dist.scatter(got, [own for _, own in pairs] if call.rank == root else None, root, async_op=call.later))
    call.assert_same(got, pairs[call.rank][0][root])


def all_to_all(call, dtype, shape):
    pairs = [call.given(dtype, shape, 22, target) for target in range(call.size)]
    outs = [call.result(dtype, shape) for _ in pairs]
    call.wait(dist.all_to_all(outs, [own for _, own in pairs], async_op=call.later))
    for source, out in enumerate(outs):
        call.assert_same(out, pairs[call.rank][0][source])


def all_to_all_single(call, dtype, shape):
    if not shape:
        return
    every, own = call.given(dtype, (call.size * shape[0], *shape[1:]), 23)
    got = call.result(dtype, (call.size * shape[0], *shape[1:]))
    call.wait(dist.all_to_all_single(got, own, async_op=call.later))
    rows = [part.reshape(call.size, *shape)[call.rank] for part in every]
    call.assert_same(got, torch.cat(rows))
    # Unequal parts: one row more for each rank.
    splits = [1 + target for target in range(call.size)]
    every, own = call.given(dtype, (sum(splits), *shape[1:]), 24)
    got = call.result(dtype, (splits[call.rank] * call.size, *shape[1:]))
    dist.all_to_all_single(got, own, [splits[call.rank]] * call.size, splits)
    call.assert_same(got, torch.cat([part.split(splits)[call.rank] for part in every]))


def send_and_receive(call, dtype, shape):
    every, own = call.given(dtype, shape, 25)
    got, after, before = call.result(dtype, shape), (call.rank + 1) % call.size, (call.rank - 1) % call.size
    if call.size == 1:
        return
    if call.later:
        works = [dist.isend(own, after), dist.irecv(got, before)]
    else:
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, own, after), dist.P2POp(dist.irecv, got, before)])
    for work in works:
        work.wait()
    call.assert_same(got, every[before])
    got = call.result(dtype, shape)
    if call.rank == 0:
        dist.send(own, 1)
    elif call.rank == 1:
        assert dist.recv(got, None if call.later else 0) == 0
        call.assert_same(got, every[0])


def functional_moves(call, dtype, shape):
    every, own = call.given(dtype, shape, 26)
    call.assert_same(functional.broadcast(own, call.size - 1, dist.group.WORLD), every[-1])
    for dim in {0, len(shape) - 1} if shape else ():
        if dtype not in FLOAT8 or dim == 0:  # torch cannot concatenate them
            call.assert_same(functional.all_gather_tensor(own, dim, dist.group.WORLD), torch.cat(every, dim))
    if shape:
        splits = [1 + target for target in range(call.size)]
        every, own = call.given(dtype, (sum(splits), *shape[1:]), 27)
        got = functional.all_to_all_single(own, [splits[call.rank]] * call.size, splits, dist.group.WORLD)
        call.assert_same(got, torch.cat([part.split(splits)[call.rank] for part in every]))


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
MOVES = [broadcast, broadcast_from_expanded, all_gather, all_gather_of_any_size, all_gather_into_tensor]
MOVES += [all_gather_in_place, all_gather_coalesced, gather, scatter, all_to_all, all_to_all_single, send_and_receive]
MOVES += [functional_moves]


def _in_shared_memory(rank, size, dtype):
    """Results that share memory with what is sent, as this rank's own part or anywhere else in it."""

    def parts(*seed):
        return [[tensor(dtype, (3,), source, target, *seed) for target in range(size)] for source in range(size)]

    def whole(tensors):
        return torch.cat([torch.zeros(4, dtype=dtype), *tensors, torch.zeros(4, dtype=dtype)])

    every, sent = [part[0] for part in parts()], parts()
    columns = [row[rank] for row in sent]
    added = combined("sum", columns)
    for shift in range(-2, 3):
        memory = whole(every)
        own, got = memory[4 + 3 * rank + shift :][:3], memory[4:-4]
        own.copy_(every[rank])
        dist.all_gather_into_tensor(got, own)
        assert same(got, torch.cat(every)), f"all_gather_into_tensor {dtype} {shift}"
        memory = whole(sent[rank])
        given, got = memory[4:-4], memory[4 + 3 * rank + shift :][:3]
        dist.reduce_scatter_tensor(got, given)
        assert same(got, added), f"reduce_scatter_tensor {dtype} {shift}"
        memory = whole(sent[rank])
        given, got = memory[4:-4], memory[4 + shift :][: 3 * size]
        dist.all_to_all_single(got, given)
        assert same(got, torch.cat(columns)), f"all_to_all_single {dtype} {shift}"
        for turn in range(size):
            memory = whole(sent[rank])
            rows = list(memory[4:-4].chunk(size))
            dist.all_to_all(rows[turn:] + rows[:turn], rows)
            assert same(torch.cat(rows[turn:] + rows[:turn]), torch.cat(columns)), f"all_to_all {dtype} {turn}"
            rows = [part.clone() for part in sent[rank]]
            dist.reduce_scatter(rows[turn], rows)
            assert same(rows[turn], added), f"reduce_scatter {dtype} {turn}"
            rows = [part.clone() for part in every]
            rows[turn].copy_(every[rank])
            dist.all_gather(rows, rows[turn])
            assert same(torch.cat(rows), torch.cat(every)), f"all_gather {dtype} {turn}"
            rows = [part.clone() for part in every]
            rows[turn].copy_(every[rank])
            dist.gather(rows[turn], rows if rank == 0 else None, 0)
            assert rank or same(torch.cat(rows), torch.cat(every)), f"gather {dtype} {turn}"
            rows = [part.clone() for part in sent[0]]
            dist.scatter(rows[turn], rows if rank == 0 else None, 0)
            assert same(rows[turn], sent[0][rank]), f"scatter {dtype} {turn}"


def everything(rank, size, seed, share):
    """Every call, dtype and operator with layouts that differ between ranks; with one layout, a share of these."""
    for dtype in (torch.int8, torch.int64, torch.bool):
        _in_shared_memory(rank, size, dtype)
    draw = random.Random(seed)
    shapes = itertools.cycle(SHAPES)
    reductions = [(act, dtype, *pair) for dtype in REDUCIBLE for pair in operators(dtype).items() for act in REDUCTIONS]
    for act, dtype, *operator in [*reductions, *itertools.product(MOVES, MOVED)]:
        for layout in [None, *(layout for layout in VIEWS if draw.random() < share)]:
            call(draw, rank, size, layout, act, dtype, next(shapes), *operator)
    _hooks(rank, size)
    _refused(rank, size)


def call(draw, rank, size, layout, act, dtype, shape, *operator):  # noqa: PLR0917 - one combination
    """Make one call with tensors in a layout, or in several; says which one failed."""
    what = f"{act.__name__} {''.join(operator[:1])} {dtype} {list(shape)} {layout or 'mixed'}"
    # torch's own calls view complex numbers as real ones, which it refuses for conjugated ones.
    made = Call(draw, rank, size, layout, what, conjugated=act.__name__.startswith("functional"))
    try:
        act(made, dtype, shape, *operator)
        made.assert_memory()
    except BaseException as error:
        error.add_note(f"in {what}")
        raise


def _hooks(rank, size):
    """Gradients of weights in channels_last, with torch's average, with strategies, and with compression."""
    for hook in (None, strategy_hook(None, "ring"), default_hooks.fp16_compress_hook):
        torch.manual_seed(5)
        alone = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        ours = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(alone), gradient_as_bucket_view=hook is not None)
        if hook is not None:
            ours.register_comm_hook(None, hook)
        images = [tensor(torch.float32, (2, 3, 5, 5), source) for source in range(size)]
        ours(images[rank].to(memory_format=torch.channels_last if rank else torch.contiguous_format)).sum().backward()
        for image in images:
            (alone(image).sum() / size).backward()
        for got, want in zip(ours.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-2 if hook is not None else 1e-5, atol=1e-3)
    for strategy in ("ring", "halving-doubling", "ps"):
        call = Call(random.Random(strategy), rank, size, None, strategy, conjugated=True)
        for dtype in (torch.float32, torch.bfloat16, torch.complex64):
            every, own = call.given(dtype, (5, 8), 27, written=True)
            dist.group.WORLD.allreduce([own], strategy=strategy, prescale=0.5).wait()
            call.assert_reduced(own, "sum", [part * 0.5 for part in every])
        call.assert_memory()


def _refused(rank, size):
    """A result cannot be written to an expanded tensor; this is said before anything is sent."""
    for dtype in (torch.float32, torch.int8, torch.bool, torch.complex64):
        own, flat = tensor(dtype, (6, 3), rank), place(tensor(dtype, (6, 3), rank), "expanded")
        rows = [own for _ in range(size)]
        refused = [
            functools.partial(dist.all_reduce, flat.tensor),
            functools.partial(dist.reduce, flat.tensor, rank),
            functools.partial(dist.broadcast, flat.tensor, (rank + 1) % size),
            functools.partial(dist.all_gather, [flat.tensor for _ in rows], own),
            functools.partial(dist.all_gather_into_tensor, flat.tensor, own[:1].repeat(6 // size, 1)),
            functools.partial(dist.gather, own, [flat.tensor for _ in rows], rank),
            functools.partial(dist.scatter, flat.tensor, rows, rank),
            functools.partial(dist.reduce_scatter, flat.tensor, rows),
            functools.partial(dist.reduce_scatter_tensor, flat.tensor, torch.cat(rows)),
            functools.partial(dist.all_to_all, [flat.tensor for _ in rows], rows),
            functools.partial(dist.all_to_all_single, flat.tensor, own),
            functools.partial(dist.recv, flat.tensor, (rank + 1) % size),
        ]
        for begin in refused:
            raises(ValueError, r"expand\(\).*give .contiguous\(\)", begin)
        flat.assert_all("a refused call")
    dist.barrier()
