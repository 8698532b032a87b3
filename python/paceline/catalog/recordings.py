"""Recordings on the GPUs for which options are given: published rates, and what has no effect on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paceline._core import Trace
from paceline._internal.nearest import like_gpu
from paceline._internal.units import shown
from paceline.catalog.builtin import load_trace
from paceline.catalog.builtin_names import COLLECTIVES
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.names import unknown_model
from paceline.catalog.models.spec import ONLY_MODELS, is_file, is_recorded
from paceline.catalog.rates import rate_on, rates_of
from paceline.errors import InvalidArgumentError


def refuse_on_recording(source: str | Path | Trace, given: dict[str, Any]) -> None:
    """Raise InvalidArgumentError for options that only models from a configuration have."""
    for option in ONLY_MODELS:
        is_used = option == "gpu" and given.get(option) is not None and is_known(source, given["gpu"])
        is_used = is_used or (option == "power_limit" and has_operators(source))
        is_off = option == "quantize" and given.get(option) == "none"
        if given.get(option) is not None and not is_used and not is_off:
            if isinstance(source, str) and source.partition(":")[0] in COLLECTIVES:
                cluster = (find_hardware(given["gpu"]).node if option == "gpu" else None) or "dgx-h100"
                raise InvalidArgumentError(
                    f"needs a model, and {source:.80} is a collective",
                    setting=option,
                    remedy=f"{{cluster={cluster}}}, and drop {{this}}",
                )
            if isinstance(source, str) and not is_recorded(source) and not is_file(source):
                raise unknown_model(source)
            name = source.name if isinstance(source, Trace) else shown(source)
            if option == "gpu":
                raise InvalidArgumentError(
                    f"{name} was recorded without operators to time on another GPU, and no rate of it is published",
                    setting=option,
                    remedy=_instead(source, given["gpu"]),
                )
            raise InvalidArgumentError(
                f"needs a model, and {name} was recorded",
                setting=option,
                remedy="drop {this} (models: paceline list models)",
            )


def is_known(source: str | Path | Trace, gpu: str) -> bool:
    """Return whether there are times of a recording on a GPU: by its operators, a published rate, or data sheets."""
    return has_operators(source) or is_published(source, gpu)


def has_operators(source: str | Path | Trace) -> bool:
    """Return whether a trace can be timed on any GPU."""
    if isinstance(source, str) and not is_recorded(source) and not is_file(source):
        return False
    return load_trace(source).has_operators


def is_published(source: str | Path | Trace, gpu: str) -> bool:
    """Return whether a recording has a rate on a GPU: a published one, or one by data sheets."""
    if isinstance(source, str) and source.partition(":")[0] in COLLECTIVES:
        return False
    if isinstance(source, str) and not is_recorded(source) and not is_file(source):
        return False
    return rate_on(load_trace(source), gpu) is not None


_WITH_TENSORFLOW = re.compile(r"\brecorded by paceline \S+ with tensorflow ")


def is_of_tensorflow(trace: Trace) -> bool:
    """Return whether a trace was recorded from TensorFlow or Keras, as its provenance says."""
    return _WITH_TENSORFLOW.search(trace.provenance) is not None


def _instead(source: str | Path | Trace, gpu: str) -> str:
    """Return what forecasts a recording on a GPU: a published rate, one that the user knows, or an estimate."""
    hardware = find_hardware(gpu)
    trace = load_trace(source)
    rates = rates_of(trace.name)
    near = like_gpu(hardware.name, {device: (device,) for device in rates})
    nodes = "{gpus_per_node=8}" if hardware.node is None else f"{{cluster={hardware.node}}}"
    ways = [] if near is None else [f"{{gpu={near}}}"]
    ways += [f"{nodes} {{samples_per_s=N}}, and drop {{gpu}}"]
    if is_of_tensorflow(trace):  # TensorFlow's operators cannot be estimated for a GPU, only measured on it.
        ways += ["a profile from that GPU: paceline import tensorflow"]
    else:
        ways += [f"paceline record --gpu {hardware.name} -o mine.json -- python train.py (times it on that GPU)"]
    return ", or ".join(ways)
