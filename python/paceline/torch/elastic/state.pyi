"""Horovod's `horovod.torch.elastic.state`: at run time the same module as `paceline.torch.hvd.elastic.torch_state`."""

from paceline.torch.hvd.elastic.torch_state import TorchState as TorchState
