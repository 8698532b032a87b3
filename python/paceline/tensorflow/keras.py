"""Horovod's `horovod.tensorflow.keras`: the same as `paceline.keras`.

import paceline.tensorflow.keras as hvd  # instead of: import horovod.tensorflow.keras as hvd
"""

from paceline._internal.lazy import public_names
from paceline.keras import *  # noqa: F403 - listed there

__dir__ = public_names(__name__)
