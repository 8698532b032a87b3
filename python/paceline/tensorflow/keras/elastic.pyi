"""Horovod's `horovod.tensorflow.keras.elastic`: at run time the same module as `paceline.keras.elastic`."""

from paceline.keras.elastic import *
