"""The names that settings accept, as types. Tests compare them with the native registries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

StrategyName = Literal[
    "ps",
    "ps-multicast",
    "ps-aggregation",
    "ps-multicast-aggregation",
    "ring",
    "ring-multicast",
    "recursive-doubling",
    "halving-doubling",
    "tree",
    "hierarchical",
    "sharded-ps",
    "sharp",
    "native",
]
StrategyAlias = Literal[
    "ring-reduce",
    "baidu-ring",
    "butterfly",
    "butterfly-mixing",
    "rabenseifner",
    "double-binary-tree",
    "collnet",
    "nccl",
]
Strategy = StrategyName | StrategyAlias
CoordinatorName = Literal["negotiate", "global-sleep", "nonblocking", "partitioned", "graph"]
CoordinatorAlias = Literal["gs", "nbcs", "scp", "topo"]
Coordinator = CoordinatorName | CoordinatorAlias
LibraryName = Literal[
    "none",
    "baidu-ring",
    "byteps",
    "ddp",
    "ddp-gloo",
    "horovod",
    "horovod-ddl",
    "horovod-mpi",
    "horovod-mpi-gpu",
    "horovod-uncached",
    "ray-sgd",
    "tensorflow-gdr",
    "tensorflow-grpc",
    "tensorflow-grpc-process",
    "tensorflow-host",
    "tensorflow-replicas",
    "tensorflow-verbs",
]
Transport = Literal["auto", "shm", "tcp", "mpi", "grpc", "grpc+tcp", "grpc+mpi"]
Distribution = Literal["round-robin", "block"]
Pull = Literal["layer", "step"]
Inside = Literal["root", "ring"]
Cuda = Literal["auto", "host", "ipc", "nccl", "mpi"]
Network = Literal["fifo", "fluid"]
Channel = Literal["auto", "none", "tcp", "rdma"]
Dtype = Literal["float64", "float32", "float16", "bfloat16"]
"""Of gradients in a trace."""
DTYPE_BYTES: Mapping[str, int] = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
ShortDtype = Literal["fp16", "bf16", "fp32"]
SHORT_DTYPES: Mapping[str, str] = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
Precision = Literal["fp8", "bf16", "fp16", "tf32", "fp32"]
"""Of the computation, for models from a configuration."""
Attention = Literal["flash", "unfused"]
Checkpointing = Literal["none", "selective", "full"]
Kernels = Literal["eager", "fused", "compiled", "transformer-engine"]
TRANSFORMER_ENGINE: Kernels = "transformer-engine"
MEGATRON: tuple[Kernels, ...] = ("fused", TRANSFORMER_ENGINE)
"""Kernels of Megatron-LM, whose pipelines, losses and gathered activations are its own; others are PyTorch's."""
Executor = Literal["local", "ray"]
Optimizer = Literal["adam", "sgd", "momentum"]


def members(type_: Any) -> tuple[str, ...]:  # noqa: ANN401 - a form of `typing`
    """Return the names in a `Literal`, in order."""
    return get_args(type_)
