"""Compressed gradients: DDP communication hooks, by the names that `paceline simulate --compression` takes.

`register(model, "powersgd:4")` is all that DDP needs. torch's own hooks do fp16, bf16 and PowerSGD; top-k and int8 are
Paceline's. They run on any backend of `torch.distributed` and on any device. `Compression` is that of
Horovod's optimizers.
"""

from paceline._internal.lazy import public_names
from paceline.torch.compression.int8 import Int8State, int8_hook
from paceline.torch.compression.registry import hook_of, register
from paceline.torch.compression.topk import TopKState, topk_hook
from paceline.torch.hvd.compression import Compression

__all__ = ["Compression", "Int8State", "TopKState", "hook_of", "int8_hook", "register", "topk_hook"]

__dir__ = public_names(__name__)
