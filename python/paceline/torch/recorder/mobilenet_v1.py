"""MobileNet v1, which torchvision does not have.

A. G. Howard et al., "MobileNets: Efficient Convolutional Neural Networks for Mobile Vision Applications",
arXiv:1704.04861, table 1: a convolution, 13 pairs of a 3x3 depthwise and a 1x1 pointwise convolution, each with batch
normalization and ReLU, an average pool and a fully connected layer: 4.23 million weights, 569 million multiply-adds on
224x224 pixels.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

_CLASSES = 1000
_FIRST = 32
_PAIRS = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1),
    (1024, 2), (1024, 1),
)  # fmt: skip
"""Channels and stride of each pair. The last has stride 1: table 1 prints 2, with which its own sizes do not fit."""


def _convolution(channels: int, out: int, kernel: int, stride: int, groups: int) -> list[nn.Module]:
    size = kernel // 2
    return [
        nn.Conv2d(channels, out, kernel, stride, size, groups=groups, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    ]


def mobilenet_v1() -> nn.Module:
    """Return the network at full width for 1,000 classes, with random weights."""
    layers: OrderedDict[str, nn.Module] = OrderedDict([("conv", nn.Sequential(*_convolution(3, _FIRST, 3, 2, 1)))])
    channels = _FIRST
    for number, (out, stride) in enumerate(_PAIRS):
        depthwise = _convolution(channels, channels, 3, stride, channels)
        layers[f"pair{number}"] = nn.Sequential(*depthwise, *_convolution(channels, out, 1, 1, 1))
        channels = out
    layers["pool"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    layers["classifier"] = nn.Linear(channels, _CLASSES)
    return nn.Sequential(layers)
