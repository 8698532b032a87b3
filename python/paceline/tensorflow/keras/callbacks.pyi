"""Horovod's `horovod.tensorflow.keras.callbacks`: at run time the same module as `paceline.keras.callbacks`."""

from paceline.keras.callbacks import *
