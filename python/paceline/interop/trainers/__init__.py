"""Reads the files of trainers: their fields as options of a forecast, and what becomes of each field.

| module | what it does |
| --- | --- |
| document | takes the values out of JSON, TOML and YAML |
| shell | takes the arguments out of a shell script |
| variables | the values of a script's variables |
| launch | the files that a script's command names |
| reading | fields with their checks, and what became of them |
| fields | fields without effect that trainers share |
| words | names of optimizers, types and modules that trainers share |
| models | the model that a file names or describes |
| fsdp, deepspeed, hf_trainer | what several trainers take from these |
| accelerate, axolotl, llama_factory, llama_factory_v1, megatron | one trainer each |
| ms_swift, nanotron, nemo, open_instruct, torchtitan, torchtune | one trainer each |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._internal.documents import read_limited
from paceline.catalog.models.config import is_config
from paceline.errors import InvalidArgumentError
from paceline.interop.trainers import launch
from paceline.interop.trainers.accelerate import ACCELERATE
from paceline.interop.trainers.axolotl import AXOLOTL
from paceline.interop.trainers.deepspeed import DEEPSPEED
from paceline.interop.trainers.document import LARGEST, SUFFIXES, Values, document
from paceline.interop.trainers.hf_trainer import HF_TRAINER, LAUNCHED
from paceline.interop.trainers.llama_factory import LLAMA_FACTORY
from paceline.interop.trainers.llama_factory_v1 import LLAMA_FACTORY_V1
from paceline.interop.trainers.megatron import MEGATRON
from paceline.interop.trainers.ms_swift import MEGATRON_SWIFT, MS_SWIFT
from paceline.interop.trainers.nanotron import NANOTRON
from paceline.interop.trainers.nemo import NEMO, PRIMUS
from paceline.interop.trainers.open_instruct import OPEN_INSTRUCT
from paceline.interop.trainers.reading import Assumption, Reading, Row, Trainer
from paceline.interop.trainers.torchtitan import TORCHTITAN
from paceline.interop.trainers.torchtune import TORCHTUNE

__all__ = ["NAMES", "Assumption", "Document", "Reading", "Row", "is_candidate", "read"]

_TRAINERS: tuple[Trainer, ...] = (
    *(AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_V1, MS_SWIFT, MEGATRON_SWIFT, ACCELERATE, TORCHTITAN, TORCHTUNE, NANOTRON),
    *(MEGATRON, PRIMUS, NEMO, OPEN_INSTRUCT, HF_TRAINER, DEEPSPEED, *LAUNCHED),
)  # fmt: skip
"""In the order in which they are tried: LLaMA-Factory's files have fields of transformers' Trainer, too."""
NAMES = tuple(sorted({one.name for one in _TRAINERS}, key=str.lower))


def is_candidate(path: Path) -> bool:
    """Return whether a file may be a trainer's: by its suffix, and neither Paceline's own nor a model's."""
    try:
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            return False
        if path.suffix.lower() != ".json":
            return True
        if path.stat().st_size > LARGEST:
            return False
        start = read_limited(path, LARGEST)
    except (OSError, ValueError):  # too long, or contains a NUL
        return False
    return not (b'"paceline-' in start[:4096] or b'"traceEvents"' in start[:4096] or is_config(path))


@dataclass(frozen=True)
class Document:
    """The values of a trainer's file, and of that of the program that it starts."""

    path: Path
    values: Values
    labels: Mapping[str, str]
    """The name of each field in its file, where that is another."""

    @classmethod
    def of(cls, path: Path) -> Document:
        """Load a file. Raises InvalidArgumentError, which names it, if it is malformed."""
        return cls(path, *launch.with_program(path, document(path), _is_known))


def read(file: Path | Document, given: Mapping[str, Any]) -> Reading | None:
    """Read the fields of a trainer's file; None if it is of none that is known.

    Args:
        file: The file, or its values, of which any number of readings can be made.
        given: Checked values of settings that win over the file's, such as the number of GPUs, of which the passes of
            a global batch depend.

    Raises:
        InvalidArgumentError: The file is malformed, or a value is wrong; the message names file and field.
    """
    own = Document.of(file) if isinstance(file, Path) else file
    for trainer in _TRAINERS:
        if trainer.recognizes(own.values):
            return Reading(trainer, own.path, dict(own.values), given, dict(own.labels)).run()
    return None


def _is_known(values: Values) -> bool:
    return any(one.recognizes(values) for one in _TRAINERS if one not in (ACCELERATE, *LAUNCHED))


def unknown(path: Path) -> InvalidArgumentError:
    """Return the error about a file that no known trainer reads."""
    return InvalidArgumentError(
        f"{path!s:.200}: is no file of a trainer that Paceline reads: {', '.join(NAMES)}",
        remedy="a file of one of these, or options: paceline simulate --help",
    )
