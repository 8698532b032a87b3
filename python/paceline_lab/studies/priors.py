"""Constants as they would be without a source of measurements that they were calibrated on."""

from __future__ import annotations

import re

from paceline.catalog import nccl
from paceline.catalog.constants import Constant
from paceline.operators import machine

_CALIBRATED_ON = (
    ("llm-foundry", "MPT|llm-foundry"),
    ("internevo", "InternEvo"),
    ("deeplearningexamples", "NVIDIA|DeepLearningExamples"),
    ("dlperf", "DLPerf"),
    ("fms-fsdp", "FMS"),
    ("neusight", "NeuSight"),
    ("benches/gpu/steps.py", "steps of eight models"),
)
"""Words of a source, and what constants call it that were calibrated on it."""


def priors_without(source: str) -> dict[Constant, float]:
    """Return the priors of all constants that were calibrated on a source, for `assuming`."""
    names = next((names for words, names in _CALIBRATED_ON if words in source.lower()), None)
    if names is None:
        return {}
    constants = [*nccl.all_constants().values(), *machine.all_constants().values()]
    return {it: it.prior for it in constants if it.prior is not None and re.search(names, it.calibrated)}


def publication(source: str) -> str:
    """Return the name of a source: that of its repository, whose tables are of one kind of software and machines."""
    return re.split(r"[@ ]", source, maxsplit=1)[0].rpartition("/")[2]
