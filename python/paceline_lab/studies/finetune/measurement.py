"""A public measurement of fine-tuning, in the words of its source."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measurement:
    """A line of a file of measurements: one metric of one configuration. Empty: the source does not state it."""

    id: str
    source: str
    model: str
    method: str
    """`full`, `lora`, `qlora`, …"""
    quantization: str
    """Of the base weights."""
    lora_rank: str
    lora_modules: str
    """With plus signs between them."""
    optimizer: str
    gpu: str
    gpus: str
    strategy: str
    """How GPUs share the work: `single`, `FSDP2`, `Megatron TP4 SP DP2 ZeRO-1`, …"""
    batch_per_gpu: str
    accumulate: str
    seq: str
    packed: str
    precision: str
    checkpointing: str
    offload: str
    attention: str
    loss_kernel: str
    framework: str
    metric: str
    measured: str
    unit: str
    not_stated: str
    """Gaps, and what was inferred."""

    @property
    def is_memory(self) -> bool:
        """Whether bytes were measured, or whether it fits."""
        return "memory" in self.metric or self.metric == "fits"

    @property
    def tokens(self) -> int:
        """The length of a sample; 0 if only a maximum is stated, or nothing."""
        first = self.seq.split(" ")[0]
        return int(first) if first.isdigit() else 0

    @property
    def most_tokens(self) -> int:
        """The length of the longest sample; 0 if it is not stated."""
        words = self.seq.removeprefix("max ").replace(";", " ").split(" ")
        return int(words[0]) if words[0].isdigit() else 0


def measurements(name: str = "measurements.csv") -> list[Measurement]:
    """Return all lines of a file."""
    with (Path(__file__).parent / name).open(encoding="utf-8", newline="") as file:
        return [Measurement(**cells) for cells in csv.DictReader(file)]
