"""Futures whose callbacks wait for other operations, as those of DDP's PowerSGD and quantization hooks do."""

import threading
import time

import paceline.torch
import torch
import torch.distributed as dist
from paceline import JobError
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks as quantization
from torch.nn.parallel import DistributedDataParallel
from torch.torch_version import TorchVersion

from torch_workers.checks import run_all
from torch_workers.handles import raises

SOON_S = 30
WIDTH = 32


def _power_sgd(rank, wrap=lambda hook: hook):
    def register(model):
        state = power_sgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, wrap(power_sgd.powerSGD_hook))

    return register


HOOKS = {
    "PowerSGD of rank 1": _power_sgd(1),
    "PowerSGD of rank 2": _power_sgd(2),
}
if TorchVersion(torch.__version__) >= "2.15":  # the older ones expect NCCL's futures, and fail with gloo too
    HOOKS |= {
        "quantization of tensors": lambda model: model.register_comm_hook(
            None, quantization.quantization_pertensor_hook
        ),
        "quantization of channels": lambda model: model.register_comm_hook(
            None, quantization.quantization_perchannel_hook
        ),
    }


def _train(register, rank, bucket_mb=25.0):
    """The weights after some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    parallel = DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    register(parallel)
    optimizer = torch.optim.SGD(parallel.parameters(), 0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        parallel(torch.randn(16, WIDTH, generator=generator)).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def hooks_as_with_gloo(store, rank, size):
    """Every hook gives the same bits as with gloo."""
    weights, kept = {}, []
    for backend in ("gloo", "paceline"):
        dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=size)
        # Else a thread of gloo may drop the last reference to its group, and would wait for itself: it aborts.
        kept.append(dist.group.WORLD)
        weights[backend] = {name: _train(register, rank) for name, register in HOOKS.items()}
        dist.destroy_process_group()
    for name in HOOKS:
        for got, want in zip(weights["paceline"][name], weights["gloo"][name], strict=True):
            assert torch.equal(got, want), name


def several_buckets(rank, size):
    """In order, a hook that begins operations in callbacks gives the same on all ranks; a bucket for each layer."""
    for weight in _train(_power_sgd(1, paceline.torch.in_order), rank, bucket_mb=0.001):
        every = [torch.empty_like(weight) for _ in range(size)]
        dist.all_gather(every, weight)
        assert all(torch.equal(other, weight) for other in every)


def _reduced(value=1.0):
    return dist.all_reduce(torch.full((3,), value), async_op=True).get_future()


def nested(rank, size):
    """Callbacks that wait for operations they begin, nested."""

    def deeper(future, depth):
        total = future.value()[0][0].item()
        return total if depth == 0 else total + deeper(_waited(_reduced(depth)), depth - 1)

    def _waited(future):
        future.wait()
        return future

    got = _reduced(0.0).then(lambda future: deeper(future, 8)).wait()
    assert got == size * sum(range(1, 9)), got


def one_in_the_other(rank, size):
    """A callback within a callback begins operations, and then the outer one does."""

    def outer(future):
        inner = _reduced(2.0).then(lambda _: _reduced(3.0).wait()[0][0].item()).wait()
        return inner + _reduced(4.0).wait()[0][0].item()

    assert _reduced().then(outer).wait() == size * 7.0


def _after_rank_0(signal, begin, rank):
    """The result of `begin()`, called on rank 0 first: its operations cannot end before their callbacks are set.

    Otherwise the callbacks would run at once, in the thread that sets them.
    """
    if rank != 0:
        dist.barrier(signal)
    begun = begin()
    if rank == 0:
        dist.barrier(signal)
    return begun


def made_elsewhere(rank, size):
    """Callbacks that wait for other futures: nothing announces that they will wait."""
    gate = threading.Event()  # opens when all futures are made
    signal, *groups = [dist.new_group(range(size)) for _ in range(5)]
    seconds = []

    def wait_for(number):
        def callback(future):
            gate.wait(SOON_S)
            return future.value()[0][0].item() + seconds[number].wait()[0][0].item()

        return callback

    def begin():
        firsts = [dist.all_reduce(torch.ones(2), async_op=True, group=group).get_future() for group in groups]
        return [first.then(wait_for(number)) for number, first in enumerate(firsts)] if rank == 0 else []

    results = _after_rank_0(signal, begin, rank)
    if rank != 0:  # so that rank 0's callbacks wait before these end
        time.sleep(0.5)
    for number, group in enumerate(groups):
        seconds.append(dist.all_reduce(torch.full((2,), 10.0 + number), async_op=True, group=group).get_future())
    gate.set()
    for number, result in enumerate(results):
        assert result.wait() == size + size * (10.0 + number)
    for second in seconds:
        second.wait()


def errors(rank, size):
    """An exception in a callback is raised by the wait for its future and its dependents; others continue."""

    def fails(_):
        raise ValueError("no luck")

    failed = _reduced().then(fails)
    after = failed.then(lambda future: future.value())
    raises(Exception, "no luck", failed.wait)
    raises(Exception, "no luck", after.wait)
    assert (
        _reduced().then(lambda future: future.value()[0]).then(lambda future: future.value() * 2).wait()[0] == 2 * size
    )


def results_that_tensors_take_or_refuse(rank, size):
    """What must be copied back is copied in inference mode, too; a tensor that cannot take it is refused."""
    signal = dist.new_group(range(size))

    def begin(tensor):
        work = _after_rank_0(signal, lambda: dist.all_reduce(tensor, async_op=True), rank)
        return work, work.get_future()

    with torch.inference_mode():
        tensor = torch.ones(4, dtype=torch.int8)
        work, future = begin(tensor)
    assert future.wait()[0].tolist() == [size] * 4
    assert work.wait()
    raises(ValueError, "cannot be written to a tensor that expand", dist.all_reduce, torch.zeros(1).expand(4))
    assert _reduced().wait()[0][0] == size


def out_of_order(rank, size):
    """A callback that begins an operation after another thread did gets an error, so that ranks do not mix tensors."""
    begun, result = threading.Event(), []

    def late(future):
        begun.wait(SOON_S)
        try:
            _reduced()
        except JobError as error:
            result.append(f"{error}; {error.remedy}")

    def begin():
        first = _reduced().then(late if rank == 0 else lambda future: None)
        second = _reduced(5.0)
        begun.set()
        return first, second

    first, second = _after_rank_0(dist.new_group(range(size)), begin, rank)
    assert second.wait()[0][0] == 5.0 * size
    first.wait()
    assert rank != 0 or (len(result) == 1 and "in_order" in result[0]), result


def everything(rank, size):
    run_all(
        [
            nested,
            one_in_the_other,
            made_elsewhere,
            errors,
            results_that_tensors_take_or_refuse,
            out_of_order,
            several_buckets,
        ],
        rank,
        size,
    )


def the_end(store, rank, size):
    """Waits in callbacks when the job ends raise an error, as do later requests for a future."""
    dist.init_process_group("paceline", store=store, rank=rank, world_size=size)
    values = []
    never = dist.irecv(torch.empty(1), 1 - rank)

    def waits(future):
        try:
            never.get_future().wait()
        except Exception as error:
            values.append(str(error))

    callback = waits if rank == 0 else lambda future: None
    result = _after_rank_0(dist.new_group(range(size)), lambda: _reduced().then(callback), rank)
    dist.barrier()
    time.sleep(0.3)
    started = time.monotonic()
    dist.destroy_process_group()
    result.wait()
    raises(Exception, "has left the job", never.get_future().wait)
    assert len(values) == (rank == 0), values
    assert time.monotonic() - started < 5
