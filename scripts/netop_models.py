"""The four networks of the network-operator study as lists of layers and tensors, from their public architectures.

Sizes are counts of parameters. Names and the order of variables follow TensorFlow's slim: a layer's weight comes before
its bias, beta or gamma, and a residual unit's shortcut before its convolutions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """One forward layer: the tensors it needs, with their numbers of parameters."""

    name: str
    tensors: tuple[tuple[str, int], ...] = ()


def _convolution(name: str, kernel: tuple[int, int], channels_in: int, channels_out: int) -> list[tuple[str, int]]:
    """With batch normalisation that has beta but no gamma, as in slim's Inception."""
    weights = kernel[0] * kernel[1] * channels_in * channels_out
    return [(f"{name}/weights", weights), (f"{name}/BatchNorm/beta", channels_out)]


def vgg_16(pixels: int = 299) -> list[Layer]:
    """K. Simonyan, A. Zisserman, arXiv:1409.1556, configuration D; `flatten` makes it the 22 layers of the paper."""
    layers: list[Layer] = []
    channels_in = 3
    for block, (count, channels) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], start=1):
        for number in range(1, count + 1):
            name = f"conv{block}_{number}"
            tensors = ((f"{name}/weights", 9 * channels_in * channels), (f"{name}/biases", channels))
            layers.append(Layer(name, tensors))
            channels_in = channels
        layers.append(Layer(f"pool{block}"))
        pixels //= 2
    layers.append(Layer("flatten"))
    width = pixels * pixels * channels_in
    for name, outputs in (("fc6", 4096), ("fc7", 4096), ("fc8", 1000)):
        layers.append(Layer(name, ((f"{name}/weights", width * outputs), (f"{name}/biases", outputs))))
        width = outputs
    return layers


# Branches of Inception's modules: (name, kernel height, kernel width, output channels); a branch that begins with a
# pool is marked by its name. C. Szegedy et al., arXiv:1512.00567, as in TensorFlow's slim/nets/inception_v3.py.
_Branch = list[tuple[str, int, int, int]]


def _module_35(pool: int) -> list[_Branch]:
    return [
        [("0a_1x1", 1, 1, 64)],
        [("0a_1x1", 1, 1, 48), ("0b_5x5", 5, 5, 64)],
        [("0a_1x1", 1, 1, 64), ("0b_3x3", 3, 3, 96), ("0c_3x3", 3, 3, 96)],
        [("0b_1x1", 1, 1, pool)],
    ]


def _module_17(narrow: int) -> list[_Branch]:
    return [
        [("0a_1x1", 1, 1, 192)],
        [("0a_1x1", 1, 1, narrow), ("0b_1x7", 1, 7, narrow), ("0c_7x1", 7, 1, 192)],
        [
            ("0a_1x1", 1, 1, narrow),
            ("0b_7x1", 7, 1, narrow),
            ("0c_1x7", 1, 7, narrow),
            ("0d_7x1", 7, 1, narrow),
            ("0e_1x7", 1, 7, 192),
        ],
        [("0b_1x1", 1, 1, 192)],
    ]


# In the last two modules a branch ends in two convolutions side by side: a trailing "|" marks the one whose input is
# that of the convolution before it.
_MODULE_8: list[_Branch] = [
    [("0a_1x1", 1, 1, 320)],
    [("0a_1x1", 1, 1, 384), ("0b_1x3", 1, 3, 384), ("0b_3x1|", 3, 1, 384)],
    [("0a_1x1", 1, 1, 448), ("0b_3x3", 3, 3, 384), ("0c_1x3", 1, 3, 384), ("0d_3x1|", 3, 1, 384)],
    [("0b_1x1", 1, 1, 192)],
]
_INCEPTION: list[tuple[str, int, int, list[_Branch]]] = [
    ("Mixed_5b", 192, 256, _module_35(32)),
    ("Mixed_5c", 256, 288, _module_35(64)),
    ("Mixed_5d", 288, 288, _module_35(64)),
    (
        "Mixed_6a",
        288,
        768,
        [[("1a_3x3", 3, 3, 384)], [("0a_1x1", 1, 1, 64), ("0b_3x3", 3, 3, 96), ("1a_3x3", 3, 3, 96)]],
    ),
    ("Mixed_6b", 768, 768, _module_17(128)),
    ("Mixed_6c", 768, 768, _module_17(160)),
    ("Mixed_6d", 768, 768, _module_17(160)),
    ("Mixed_6e", 768, 768, _module_17(192)),
    (
        "Mixed_7a",
        768,
        1280,
        [
            [("0a_1x1", 1, 1, 192), ("1a_3x3", 3, 3, 320)],
            [("0a_1x1", 1, 1, 192), ("0b_1x7", 1, 7, 192), ("0c_7x1", 7, 1, 192), ("1a_3x3", 3, 3, 192)],
        ],
    ),
    ("Mixed_7b", 1280, 2048, _MODULE_8),
    ("Mixed_7c", 2048, 2048, _MODULE_8),
]


def _mixed(name: str, channels_in: int, branches: list[_Branch]) -> Layer:
    tensors: list[tuple[str, int]] = []
    for number, branch in enumerate(branches):
        width, before = channels_in, channels_in
        for label, height, across, channels in branch:
            source = before if label.endswith("|") else width
            path = f"{name}/Branch_{number}/Conv2d_{label.rstrip('|')}"
            tensors += _convolution(path, (height, across), source, channels)
            before, width = source, channels
    return Layer(name, tuple(tensors))


def inception_v3() -> list[Layer]:
    """94 convolutions and a fully connected layer, without the auxiliary head."""
    stem = [
        ("Conv2d_1a_3x3", 3, 3, 32),
        ("Conv2d_2a_3x3", 3, 32, 32),
        ("Conv2d_2b_3x3", 3, 32, 64),
        ("MaxPool_3a_3x3", 0, 0, 0),
        ("Conv2d_3b_1x1", 1, 64, 80),
        ("Conv2d_4a_3x3", 3, 80, 192),
        ("MaxPool_5a_3x3", 0, 0, 0),
    ]
    layers = [
        Layer(name, tuple(_convolution(name, (kernel, kernel), inputs, outputs)) if kernel else ())
        for name, kernel, inputs, outputs in stem
    ]
    layers += [_mixed(name, channels_in, branches) for name, channels_in, _, branches in _INCEPTION]
    logits = (("Logits/weights", 2048 * 1000), ("Logits/biases", 1000))
    return [*layers, Layer("AvgPool_1a_8x8"), Layer("Dropout_1b"), Layer("Logits", logits)]


def _normalised(name: str, kernel: int, channels_in: int, channels_out: int) -> Iterator[tuple[str, int]]:
    """A convolution with batch normalisation that has gamma and beta, as in slim's ResNets."""
    yield f"{name}/weights", kernel * kernel * channels_in * channels_out
    yield f"{name}/BatchNorm/gamma", channels_out
    yield f"{name}/BatchNorm/beta", channels_out


def resnet(units: tuple[int, int, int, int]) -> list[Layer]:
    """K. He et al., arXiv:1512.03385: bottleneck units of three layers; a shortcut belongs to its unit's first."""
    layers = [Layer("conv1", tuple(_normalised("conv1", 7, 3, 64))), Layer("pool1")]
    channels = 64
    for block, (count, narrow) in enumerate(zip(units, (64, 128, 256, 512), strict=True), start=1):
        for unit in range(1, count + 1):
            name = f"block{block}/unit_{unit}"
            shortcut = _normalised(f"{name}/shortcut", 1, channels, 4 * narrow) if unit == 1 else ()
            first = _normalised(f"{name}/conv1", 1, channels, narrow)
            layers.append(Layer(f"{name}/conv1", (*shortcut, *first)))
            layers.append(Layer(f"{name}/conv2", tuple(_normalised(f"{name}/conv2", 3, narrow, narrow))))
            layers.append(Layer(f"{name}/conv3", tuple(_normalised(f"{name}/conv3", 1, narrow, 4 * narrow))))
            channels = 4 * narrow
    logits = (("logits/weights", channels * 1000), ("logits/biases", 1000))
    return [*layers, Layer("pool5"), Layer("logits", logits)]
