"""Table 5: forward and backward passes on two Titan X, and those of their data sheets. The table is never read.

The table is taken from J. Johnson, cnn-benchmarks (github.com/jcjohnson/cnn-benchmarks, README at 83d441f): batch 16,
224x224 pixels. Its rows tell which library each value is of: both of VGG-16, both of Inception-v1 and those of ResNets
on the Pascal are without cuDNN; ResNet-101 on the Maxwell is with cuDNN 4, ResNet-200 there with cuDNN 5.1. So ResNets
appear slower on the newer GPU; with cuDNN 5.1 on both, the benchmark has them 1.6 to 1.9 times as fast there.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline import load_trace
from paceline.catalog.rates import on_device

from paceline_lab.studies.claims import Figures

BATCH = 16
GPUS = {"Maxwell": "titan-x-maxwell", "Pascal": "titan-x-pascal"}
TABLE_5 = {
    ("ResNet-200", "resnet-200"): {"Maxwell": (0.170, 0.384), "Pascal": (0.315, 0.520)},
    ("VGG-16", "vgg-16"): {"Maxwell": (0.173, 0.416), "Pascal": (0.0982, 0.260)},
    ("ResNet-101", "resnet-101"): {"Maxwell": (0.109, 0.190), "Pascal": (0.162, 0.258)},
    ("Inception-v1", "googlenet"): {"Maxwell": (0.0913, 0.141), "Pascal": (0.0575, 0.0859)},
}
"""Published seconds of forward and backward passes."""


def passes(model: str, gpu: str) -> tuple[float, float]:
    """Return the seconds of a recording's passes on a GPU, by its data sheet."""
    trace = on_device(load_trace(model), GPUS[gpu]).with_batch(BATCH)
    return trace.forward_s, trace.backward_s


def titan_figures() -> Iterator[Figures]:
    """Return the figures of the claims about Table 5, in the order of claims.toml."""
    own = {(title, gpu): passes(model, gpu) for title, model in TABLE_5 for gpu in GPUS}
    yield {
        f"{title}, {gpu}: {which} (ms)": 1e3 * seconds
        for (title, gpu), both in own.items()
        for which, seconds in zip(("forward", "backward"), both, strict=True)
    }
    yield {f"{title}, {gpu} (ms)": 1e3 * sum(both) for (title, gpu), both in own.items()}
    published = {(title, gpu): sum(both) for (title, _), row in TABLE_5.items() for gpu, both in row.items()}
    yield {f"{title}, {gpu}": sum(own[title, gpu]) / seconds for (title, gpu), seconds in published.items()}
