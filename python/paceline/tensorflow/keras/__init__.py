"""Horovod's `horovod.tensorflow.keras`: the same as `paceline.keras`.

import paceline.tensorflow.keras as hvd  # instead of: import horovod.tensorflow.keras as hvd
"""

import paceline.keras
from paceline._internal.lazy import also_as, public_names
from paceline.keras import *  # noqa: F403 - listed there

also_as({f"{__name__}.{name}": f"paceline.keras.{name}" for name in ("callbacks", "elastic")})
__all__ = paceline.keras.__all__
__dir__ = public_names(__name__)
