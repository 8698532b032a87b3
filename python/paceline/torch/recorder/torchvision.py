"""Recording torchvision's classification models, and MobileNet v1, on random images."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

from paceline.errors import PacelineError
from paceline.torch.recorder.mobilenet_v1 import mobilenet_v1
from paceline.torch.recorder.recorder import Recorder

# The weights of the auxiliary losses: for inception_v3 those of torchvision's reference script
# (references/classification/train.py), for googlenet those of the paper (Szegedy et al. 2014, section 5).
_AUXILIARY_WEIGHT = {"aux_logits": 0.4, "aux_logits1": 0.3, "aux_logits2": 0.3}

# Their default initialization (truncated normal) is slow, and does not affect step times.
_SLOW_TO_INITIALIZE = ("googlenet", "inception_v3")


_OWN: dict[str, Callable[[], nn.Module]] = {"mobilenet_v1": mobilenet_v1}
"""Models that torchvision does not have."""


class UnknownModelError(PacelineError, ValueError):
    """No classification model of torchvision has this name; the message suggests similar ones."""


def model_names() -> list[str]:
    """Return the names of torchvision's classification models, and of ours."""
    return [*torchvision.models.list_models(module=torchvision.models), *_OWN]


def resolve(name: str) -> str:
    """Return torchvision's name for `name`, ignoring case, hyphens and underscores."""
    by_key = {_key(known): known for known in model_names()}
    match = by_key.get(_key(name))
    if match is not None:
        return match
    near = difflib.get_close_matches(_key(name), by_key, n=3, cutoff=0.5)
    hint = " or ".join(by_key[key] for key in near) or "resnet50 (list: torchvision.models.list_models())"
    raise UnknownModelError(f"torchvision has no classification model {name!r}", remedy=hint)


def default_image_size(name: str) -> int:
    """Return the image size in pixels with which the model was published."""
    return 299 if name == "inception_v3" else 224


def build(name: str, image_size: int) -> nn.Module:
    """Return the model for images of `image_size` pixels, with random weights, in training mode."""
    if name in _OWN:
        return _OWN[name]().train()
    options: dict[str, Any] = {}
    if name in _SLOW_TO_INITIALIZE:
        options["init_weights"] = False
    if name.startswith("vit_"):
        options["image_size"] = image_size
    if name.startswith("maxvit"):
        options["input_size"] = (image_size, image_size)
    model: nn.Module = torchvision.models.get_model(name, weights=None, **options)
    return model.train()


def total_loss(output: torch.Tensor | tuple[Any, ...], target: torch.Tensor, criterion: nn.Module) -> torch.Tensor:
    """Return the loss of `output`, with auxiliary classifiers at their published weights."""
    if isinstance(output, torch.Tensor):
        loss: torch.Tensor = criterion(output, target)
        return loss
    fields: dict[str, torch.Tensor | None] = output._asdict()  # type: ignore[attr-defined]
    loss = criterion(fields["logits"], target)
    for field, weight in _AUXILIARY_WEIGHT.items():
        auxiliary = fields.get(field)
        if auxiliary is not None:
            loss = loss + weight * criterion(auxiliary, target)
    return loss


def record_model(
    name: str,
    *,
    batch: int,
    warmup: int,
    steps: int,
    device: str = "cpu",
    image_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Recorder:
    """Train model `name` on one random batch with SGD and momentum, and return the recorder.

    `progress` is called after every step with the number of finished steps and the total. Raises UnknownModelError.
    """
    name = resolve(name)
    size = image_size or default_image_size(name)
    where = torch.device(device)
    torch.manual_seed(0)
    model = build(name, size).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    images = torch.randn(batch, 3, size, size, device=where)
    target = torch.randint(0, 1000, (batch,), device=where)
    with Recorder(model, optimizer, warmup=warmup, steps=steps, name=name, batch=batch, alternate=True) as recorder:
        while not recorder.done:
            optimizer.zero_grad()
            total_loss(model(images), target, criterion).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if progress is not None:
                progress(recorder.steps_seen, recorder.steps_wanted)
    return recorder


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
