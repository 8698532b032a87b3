#!/usr/bin/env python3
"""Makes the built-in traces netop-*, the inputs of the network-operator study.

M. A. Chang et al., "How to Train your DNN: The Network Operator Edition".

The authors' traces are not public. Layers and tensors come from the public architectures (netop_models.py), sizes and
times from the paper, and a few parameters from calibration (netop_parameters.json, written by calibrate_netop.py).
Needs only Python; the same input gives the same bytes.

    python scripts/make_netop_traces.py [FOLDER]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from netop_models import Layer, inception_v3, resnet, vgg_16

PARAMETERS = Path(__file__).parent / "netop_parameters.json"
TRACES = Path(__file__).parent.parent / "python" / "paceline" / "catalog" / "traces"
PAPER = (
    "M. A. Chang, D. Bottini, L. Jian, P. Kumar, A. Panda, S. Shenker, "
    '"How to Train your DNN: The Network Operator Edition"'
)
BATCH = 32
ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Published:
    """One row of the paper's table of inputs."""

    title: str
    gigabits: float
    forward_s: float
    # The backward pass without the last layer's part, which runs first.
    backward_after_first_s: float


@dataclass(frozen=True)
class Parameters:
    """What the paper does not publish and calibration chooses."""

    # The last layer's backward pass.
    first_layer_backward_s: float
    # How far workers differ: variation.backward_spread of the trace.
    backward_spread: float
    # Share of the distributed bytes that servers send before the first convolution's weights.
    first_conv_at: float
    # Distributed but without a gradient: Inception-v3's auxiliary head, and what ResNet-200's times ask for.
    extra_distributed_bytes: int


PUBLISHED = {
    "vgg-16": Published("VGG-16", 6.58, 0.169, 0.024),
    "inception-v3": Published("Inception-v3", 0.715, 0.176, 0.296),
    "resnet-101": Published("ResNet-101", 1.42, 0.176, 0.180),
    "resnet-200": Published("ResNet-200", 2.06, 0.357, 0.34),
}
ARCHITECTURES: dict[str, Callable[[], list[Layer]]] = {
    "vgg-16": vgg_16,
    "inception-v3": inception_v3,
    "resnet-101": lambda: resnet((3, 4, 23, 3)),
    "resnet-200": lambda: resnet((3, 24, 36, 3)),
}
EXTRA = {"inception-v3": "AuxLogits", "resnet-101": "without_gradient", "resnet-200": "without_gradient"}


def read_parameters(path: Path = PARAMETERS) -> dict[str, Parameters]:
    return {model: Parameters(**values) for model, values in json.loads(path.read_text()).items()}


def tensor_bytes(layers: list[Layer], gigabits: float) -> dict[str, int]:
    """Bytes of every tensor, in whole elements, scaled so that they add up to the published size."""
    elements = {name: count for layer in layers for name, count in layer.tensors}
    target = round(gigabits * 1e9 / 8 / ELEMENT_BYTES)
    scale = target / sum(elements.values())
    scaled = {name: max(1, round(count * scale)) for name, count in elements.items()}
    # The rounding remainder goes to the largest tensor, where it matters least.
    scaled[max(scaled, key=lambda name: scaled[name])] += target - sum(scaled.values())
    return {name: count * ELEMENT_BYTES for name, count in scaled.items()}


def gradients(layers: list[Layer], sizes: dict[str, int], published: Published, t0: float) -> list[dict[str, Any]]:
    """Layers in reverse: the last one's backward pass takes t0, the others share the published rest equally."""
    each = published.backward_after_first_s / (len(layers) - 1)
    return [
        {"tensor": name, "ready_s": round(t0 + position * each, 9), "bytes": sizes[name]}
        for position, layer in enumerate(reversed(layers))
        for name, _ in reversed(layer.tensors)
    ]


def distribution(model: str, layers: list[Layer], sizes: dict[str, int], it: Parameters) -> list[str | dict[str, Any]]:
    """In the order of the forward pass, except for the first convolution, which may come late."""
    order = [name for layer in layers for name, _ in layer.tensors]
    if model == "vgg-16":
        return list(order)
    first = order.pop(0)
    before, place = 0, 0
    while place < len(order) and before + sizes[order[place]] / 2 < it.first_conv_at * sum(sizes.values()):
        before += sizes[order[place]]
        place += 1
    listed: list[str | dict[str, Any]] = [*order[:place], first, *order[place:]]
    if it.extra_distributed_bytes:
        # Before the fully connected layer, which comes last, so that the forward pass does not end without them.
        last = layers[-1].tensors[0][0]
        listed.insert(listed.index(last), {"tensor": EXTRA[model], "bytes": it.extra_distributed_bytes})
    return listed


def provenance(model: str, published: Published, it: Parameters) -> str:
    calibrated = f"backward_spread {it.backward_spread:g}, last layer's backward {it.first_layer_backward_s * 1e3:g} ms"
    if model != "vgg-16":
        calibrated += f", first convolution sent after {it.first_conv_at:.0%} of the bytes"
    if it.extra_distributed_bytes:
        what = "the auxiliary head, " if model == "inception-v3" else ""
        calibrated += f", {what}{it.extra_distributed_bytes} bytes distributed without a gradient"
    return (
        f"{published.title} as in {PAPER}. "
        f"Published: size ({published.gigabits:g} Gb), forward time ({published.forward_s:g} s), backward time after "
        f"the last layer's ({published.backward_after_first_s:g} s), batch {BATCH}, number of layers. "
        "Derived: tensors from the public architecture, sizes scaled to the published total; times split equally over "
        "the layers; gradients in reverse order of layers; distribution in forward order, weights first. "
        f"Calibrated on other rows of the paper: {calibrated}. Made by scripts/make_netop_traces.py."
    )


def make_trace(model: str, it: Parameters) -> dict[str, Any]:
    """The trace as the object of docs/reference/trace-format.md."""
    published, layers = PUBLISHED[model], ARCHITECTURES[model]()
    sizes = tensor_bytes(layers, published.gigabits)
    duration = round(published.forward_s / len(layers), 12)
    forward: list[dict[str, Any]] = []
    for layer in layers:
        needs = [name for name, _ in layer.tensors]
        entry = {"layer": layer.name, "duration_s": duration}
        forward.append({**entry, "tensors": needs} if needs else entry)
    worker = {
        "forward": forward,
        "gradients": gradients(layers, sizes, published, it.first_layer_backward_s),
        "backward_s": round(it.first_layer_backward_s + published.backward_after_first_s, 9),
    }
    return {
        "format": "paceline-trace",
        "version": 1,
        "name": f"netop-{model}",
        "provenance": provenance(model, published, it),
        "batch": BATCH,
        "dtype": "float32",
        "device": "the paper's GPU workers, TensorFlow 1.4",
        # The paper forecasts bare schedules.
        "library": "none",
        "workers": [worker],
        "distribution": distribution(model, layers, sizes, it),
        "variation": {"backward_spread": it.backward_spread},
    }


def to_text(trace: dict[str, Any]) -> str:
    """JSON with one layer, gradient or tensor per line."""

    def block(values: list[Any], indent: str) -> str:
        lines = (f"{indent}  {json.dumps(value)}" for value in values)
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"

    worker = trace["workers"][0]
    inner = ",\n".join(
        f'      "{key}": {block(value, "      ") if isinstance(value, list) else json.dumps(value)}'
        for key, value in worker.items()
    )
    parts = []
    for key, value in trace.items():
        if key == "workers":
            text = f"[\n    {{\n{inner}\n    }}\n  ]"
        else:
            text = block(value, "  ") if isinstance(value, list) else json.dumps(value)
        parts.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(folder: Path = TRACES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for model, parameters in read_parameters().items():
        path = folder / f"netop-{model}.json"
        path.write_text(to_text(make_trace(model, parameters)))
        print(f"{path}: {asdict(parameters)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else TRACES)
