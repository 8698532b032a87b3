"""Remedies that several causes share, by what the script synchronises gradients with."""

from __future__ import annotations

from paceline.doctor.analysis import Interface


def less_often(interface: Interface) -> str:
    """Communicate half as often."""
    return {
        Interface.HOROVOD: "half as often: DistributedOptimizer(backward_passes_per_step=2)",
        Interface.DDP: "half as often: accumulate gradients over two batches, the first under model.no_sync()",
        Interface.PLAIN: "half as often: add up twice as much on each rank before it is reduced",
    }[interface]


def fewer_bytes(interface: Interface) -> str:
    """Communicate half as much."""
    return {
        Interface.HOROVOD: "half the bytes: DistributedOptimizer(compression=hvd.Compression.fp16)",
        Interface.DDP: "half the bytes: model.register_comm_hook(None, fp16_compress_hook)",
        Interface.PLAIN: "half the bytes: reduce float16 or bfloat16 instead of float32",
    }[interface]


def larger_buckets(interface: Interface) -> str:
    """Fewer operations for as many bytes."""
    return {
        Interface.HOROVOD: "more tensors together: HOROVOD_FUSION_THRESHOLD higher (bytes; default 128 MiB), "
        "HOROVOD_CYCLE_TIME higher than it was (milliseconds; default 1)",
        Interface.DDP: "larger buckets: DistributedDataParallel(bucket_cap_mb=25) or more",
        Interface.PLAIN: "reduce one array that holds all the small ones",
    }[interface]


def smaller_buckets(interface: Interface, size: str) -> str:
    """First gradients that go earlier; `size` is what goes in a step now."""
    return {
        Interface.HOROVOD: "first gradients before the last ones are ready: HOROVOD_FUSION_THRESHOLD lower, a "
        f"tenth of {size}, say",
        Interface.DDP: "smaller buckets, the first of which goes sooner: DistributedDataParallel(bucket_cap_mb=…), "
        f"a tenth of {size}, say",
        Interface.PLAIN: "begin operations with async_=True, and wait for them when their results are needed",
    }[interface]
