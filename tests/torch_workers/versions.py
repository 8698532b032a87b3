"""APIs that older torch keeps elsewhere: DTensor, FSDP2."""

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import fully_shard

__all__ = ["Replicate", "Shard", "distribute_tensor", "fully_shard"]
