"""Measured training steps: the rows of a study, and the models and recordings that their commands name."""

from __future__ import annotations

import lzma
import shlex
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from paceline._core import Trace

FOLDER = Path(__file__).parent
UNITS = {
    "": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "%": 1e-2,
    "MB": 1e6,
    "MiB": 2.0**20,
    "GB": 1e9,
    "GiB": 2.0**30,
    "TFLOP/s/GPU": 1e12,
    **dict.fromkeys(("tokens/s", "tokens/s/GPU", "samples/s", "seq/s", "img/s"), 1.0),
}
"""The SI value of each unit of rows."""


class Metric(StrEnum):
    """The quantity that a row measured."""

    STEP_TIME = "step_time"
    FORWARD_BACKWARD_TIME = "forward_backward_time"
    SAMPLES_PER_S = "samples_per_s"
    """Of all GPUs."""
    TOKENS_PER_S = "tokens_per_s"
    """Of all GPUs."""
    TOKENS_PER_S_PER_GPU = "tokens_per_s_per_gpu"
    MODEL_TFLOPS_PER_GPU = "model_tflops_per_gpu"
    HFU = "hfu"
    """The share of the GPU's peak, recomputation included."""
    ALLOCATED = "allocated"
    ACTIVE = "active"
    RESERVED = "reserved"
    NVIDIA_SMI = "nvidia_smi"
    UNSPECIFIED = "unspecified"
    """Memory, of a kind that the source does not state; only of rows that are left out."""
    FITS = "fits"

    @property
    def is_time(self) -> bool:
        """Whether it says how long a step takes."""
        return self in _TIMES or self.is_rate

    @property
    def is_rate(self) -> bool:
        """Whether more is faster."""
        return self in _RATES

    @property
    def is_memory(self) -> bool:
        """Whether it is bytes on a GPU."""
        return not self.is_time and self is not Metric.FITS


_TIMES = (Metric.STEP_TIME, Metric.FORWARD_BACKWARD_TIME)
_RATES = (
    *(Metric.SAMPLES_PER_S, Metric.TOKENS_PER_S, Metric.TOKENS_PER_S_PER_GPU),
    *(Metric.MODEL_TFLOPS_PER_GPU, Metric.HFU),
)


@dataclass(frozen=True)
class Row:
    """A measurement of a training step."""

    id: str
    group: str
    source: str
    model: str
    gpu: str
    metric: Metric
    measured: float
    """In `unit`; of `fits`: 1 or 0."""
    unit: str
    command: str
    """The words after `paceline simulate`, with paths from the folder of this module; empty if it is left out.

    Recordings are there as `traces/NAME.json.xz`."""
    assumed: str
    """The assumptions of the command where the source is silent."""
    left_out: str
    """Why the row is not counted; if it has a command, what this forecasts is said as well."""
    method: str = "full"
    """The parameters that are trained: `full`, `lora`, `qlora` or another method of fine-tuning."""

    @property
    def words(self) -> list[str]:
        """The command's words, with whole paths of configurations."""
        return [str(FOLDER / word) if word.startswith("configs/") else word for word in self._split]

    @property
    def kernels(self) -> str:
        """The kernels that the command names; those of a recording are its own."""
        return self._option("--kernels", "as recorded")

    @property
    def forecast_gpu(self) -> str:
        """The GPU that the command names, or that of the source if the time of one was measured."""
        return self._option("--gpu", self.gpu)

    @property
    def forecast_model(self) -> str:
        """The model, recording or configuration that the command names."""
        name = self._option("--config", self._split[0])
        return name.rpartition("/")[2].removesuffix(".json")

    @property
    def is_computed(self) -> bool:
        """Whether its times of computation are computed, not those of a measured rate."""
        return "--samples-per-s" not in self._split

    def _option(self, name: str, otherwise: str) -> str:
        words = self._split
        return words[words.index(name) + 1] if name in words else otherwise

    @property
    def _split(self) -> list[str]:
        return shlex.split(self.command)


def recording(word: str) -> Trace:
    """Return a recording, `traces/NAME.json`, which is stored compressed."""
    return Trace.from_json(lzma.decompress((FOLDER / f"{word}.xz").read_bytes()).decode())
