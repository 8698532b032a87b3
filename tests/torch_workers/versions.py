"""What torch has kept in other places: DTensor until 2.5, FSDP2 until 2.6."""

try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    from torch.distributed._composable.fsdp import fully_shard

__all__ = ["Replicate", "Shard", "distribute_tensor", "fully_shard"]
