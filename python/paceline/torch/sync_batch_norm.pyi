"""Horovod's `horovod.torch.sync_batch_norm`: at run time the same module as `paceline.torch.hvd.sync_batch_norm`."""

from paceline.torch.hvd.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
