"""The models: torchvision's and two small ones, with weights from a seed, the same in every process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from paceline_lab.bench.ranks.rank_spec import RankSpec

SMALL = ("mlp", "cnn")
"""Small models for tests and slow machines."""


class Mlp(nn.Sequential):
    """Three layers on the flattened image."""

    def __init__(self, image_size: int, classes: int, hidden: int = 256) -> None:
        """Make two layers of `hidden` units each."""
        super().__init__(
            nn.Flatten(),
            nn.Linear(3 * image_size * image_size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )


class Cnn(nn.Sequential):
    """Two convolutions with batch normalization, the second with a stride."""

    def __init__(self, classes: int) -> None:
        """Make `classes` outputs."""
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, padding=1),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        )


def build(spec: RankSpec) -> nn.Module:
    """Return the model in training mode, on the CPU, without auxiliary classifiers. Raises ValueError if it is unknown.

    Dropout is off, because frameworks draw different random numbers.
    """
    torch.manual_seed(spec.seed)
    model: nn.Module
    if spec.model == "mlp":
        model = Mlp(spec.image_size, spec.classes)
    elif spec.model == "cnn":
        model = Cnn(spec.classes)
    else:
        import torchvision

        options: dict[str, Any] = {"num_classes": spec.classes}
        if spec.model.startswith("vit_"):
            options["image_size"] = spec.image_size
        if spec.model in ("googlenet", "inception_v3"):
            options |= {"aux_logits": False, "init_weights": False}
        model = torchvision.models.get_model(spec.model, weights=None, **options)
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
    return model.train()
