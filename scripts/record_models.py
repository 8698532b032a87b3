#!/usr/bin/env python3
"""Records the models of the built-in traces on this machine's CPU, for make_model_traces.py.

One file per model, as `paceline record` writes it. Convolutional nets come from torchvision (ResNet-200 from its block
counts: K. He et al., "Identity Mappings in Deep Residual Networks", 2016), language models from the configurations of
transformers, with random weights: nothing is downloaded. The latter need `pip install transformers`. Takes a few
minutes per model on two cores.

    python scripts/record_models.py FOLDER [MODEL ...]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paceline
import torch
from paceline.torch import Recorder
from paceline.torch.recorder import torchvision as vision
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

WARMUP, STEPS = 1, 4
CLASSES = 1000


@dataclass(frozen=True)
class Training:
    """A model, its optimizer, and the loss of one step on a batch that is always the same."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]


def _of_images(model: nn.Module, batch: int, pixels: int) -> Training:
    images, labels = torch.randn(batch, 3, pixels, pixels), torch.randint(0, CLASSES, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return Training(model, optimizer, lambda: vision.total_loss(model(images), labels, nn.CrossEntropyLoss()))


def _vision(name: str) -> Callable[[int], Training]:
    def make(batch: int) -> Training:
        known, pixels = vision.resolve(name), vision.default_image_size(vision.resolve(name))
        return _of_images(vision.build(known, pixels), batch, pixels)

    return make


def _resnet_200(batch: int) -> Training:
    return _of_images(ResNet(Bottleneck, [3, 24, 36, 3]).train(), batch, 224)


def _language(model: nn.Module, batch: int, length: int, words: int) -> Training:
    tokens = torch.randint(0, words, (batch, length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Training(model, optimizer, lambda: model(input_ids=tokens, labels=tokens).loss)


def _bert(**changes: int) -> Callable[[int], Training]:
    def make(batch: int) -> Training:
        from transformers import BertConfig, BertForMaskedLM

        config = BertConfig(**changes)
        return _language(BertForMaskedLM(config).train(), batch, 128, config.vocab_size)

    return make


def _gpt2(batch: int) -> Training:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config()
    return _language(GPT2LMHeadModel(config).train(), batch, 128, config.vocab_size)


# The batch is as large as two cores can process in a minute per step: in small batches, layers with many weights weigh
# too much.
MODELS: dict[str, tuple[int, Callable[[int], Training]]] = {
    "resnet-18": (32, _vision("resnet18")),
    "resnet-34": (32, _vision("resnet34")),
    "resnet-50": (32, _vision("resnet50")),
    "resnet-101": (16, _vision("resnet101")),
    "resnet-152": (16, _vision("resnet152")),
    "resnet-200": (16, _resnet_200),
    "vgg-16": (32, _vision("vgg16")),
    "alexnet": (128, _vision("alexnet")),
    "googlenet": (32, _vision("googlenet")),
    "inception-v3": (16, _vision("inception_v3")),
    "mobilenet-v2": (32, _vision("mobilenet_v2")),
    "bert-base": (16, _bert()),
    "bert-large": (
        8,
        _bert(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096),
    ),
    "gpt2-small": (16, _gpt2),
}


def record(name: str) -> dict[str, Any]:
    """The trace of a model's steps."""
    batch, make = MODELS[name]
    torch.manual_seed(0)
    training = make(batch)
    recorder = Recorder(
        training.model, training.optimizer, warmup=WARMUP, steps=STEPS, name=name, batch=batch, alternate=True
    )
    with recorder:
        while not recorder.done:
            training.optimizer.zero_grad()
            training.loss().backward()
            training.optimizer.step()
            print(f"\r{name}: step {recorder.steps_seen} of {recorder.steps_wanted}", end="", flush=True)
    print(f"\r{recorder.summary}", flush=True)
    return recorder.trace


def _wanted(names: Iterable[str]) -> list[str]:
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    return list(names) or list(MODELS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in _wanted(options.models):
        document = json.dumps(record(name))
        path = options.folder / f"{name}.json"
        path.write_text(paceline.Trace.from_json(document.encode(), name).to_json() + "\n")


if __name__ == "__main__":
    main()
