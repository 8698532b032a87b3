"""Horovod's errors, as in `horovod.common.exceptions`."""

from paceline._internal.lazy import public_names
from paceline.hvd.elastic.state import HostsUpdatedInterrupt
from paceline.hvd.world import HorovodInternalError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt"]

__dir__ = public_names(__name__)
