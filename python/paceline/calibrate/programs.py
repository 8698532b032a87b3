"""Random training programs whose operators are measured: layers of all kinds, at sizes drawn from wide ranges.

What surrounds an operator decides its time, too: whether its operands are still in a cache, and whether its result is
in fresh memory. So operators are measured in training steps, as they are used, and not alone. Sizes are drawn from
logarithmic ranges, and none is that of a known model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import torch
from torch import nn
from torch.nn import functional

_HEADS = (32, 48, 64, 80, 96, 128)
"""Sizes of heads: multiples of 16, as kernels of attention want them."""
_ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU, lambda: nn.GELU("tanh"), nn.Hardswish)
_FIRST_KERNELS, _KERNELS, _PATCHES = (3, 5, 7), (1, 1, 3, 3, 3, 5, 7), (2, 4, 8, 12, 20, 24, 40)
"""Widths of convolutions, as often as they are drawn: of the first layer, of others, and of a first one that cuts its
image into patches."""
_MULTIPLES = (8, 16, 16, 32, 64)
"""Channels are multiples of one of them, as often as it is drawn."""
_CONVOLUTIONS, _BLOCKS, _PARTS = 12, 2, 12
"""Of a program, at most."""
_MOST_ELEMENTS = 1 << 28
"""Of a tensor, so that a program fits into a device's memory."""
_LEAST_FLOPS, _MOST_WEIGHTS = 1e6, 2e6
"""Of a layer beside others."""


@dataclass
class Program:
    """A training program: a step computes the loss, its gradients, and updates the parameters."""

    kind: str
    loss: Callable[[], torch.Tensor]
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Setup:
    """Where programs run, and how large they are."""

    device: torch.device
    random: Random
    flops: float
    """Of a forward pass, about."""
    dtype: torch.dtype = torch.float32

    def drawn(self, least: float, most: float, multiple: int = 1) -> int:
        """Return a size, uniform in its logarithm, and a multiple of some number."""
        size = math.exp(self.random.uniform(math.log(least), math.log(max(least, most))))
        return max(multiple, round(size / multiple) * multiple)

    def tensor(self, *shape: int) -> torch.Tensor:
        """Return random input."""
        return torch.randn(*shape, device=self.device, dtype=self.dtype)

    def indices(self, most: int, *shape: int) -> torch.Tensor:
        """Return random indices."""
        return torch.randint(0, most, shape, device=self.device)

    def program(self, kind: str, model: nn.Module, loss: Callable[[], torch.Tensor]) -> Program:
        """Return the program of a model, with a random optimizer."""
        parameters = list(model.parameters())
        make = self.random.choice(_OPTIMIZERS)
        return Program(kind, loss, make(parameters))


_OPTIMIZERS: tuple[Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer], ...] = (
    torch.optim.AdamW,
    torch.optim.Adam,
    lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4),
    lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    lambda parameters: torch.optim.AdamW(parameters, fused=True),
)


def program(kind: str, setup: Setup) -> Program:
    """Return a program of a kind of `KINDS`."""
    return KINDS[kind](setup)


class _Attention(nn.Module):
    """Self-attention with one projection for queries, keys and values, or three."""

    def __init__(self, hidden: int, size: int, *, joint: bool, causal: bool, bias: bool) -> None:
        super().__init__()
        self.size, self.causal = size, causal
        widths = [3 * hidden] if joint else [hidden] * 3
        self.inputs = nn.ModuleList(nn.Linear(hidden, width, bias=bias) for width in widths)
        self.output = nn.Linear(hidden, hidden, bias=bias)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = image.shape
        parts = [layer(image) for layer in self.inputs]
        if len(parts) == 1:
            parts = list(parts[0].split(hidden, dim=-1))
        query, key, value = (part.view(batch, length, -1, self.size).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return result


class _Multihead(nn.Module):
    """torch's own attention, which packs its projections."""

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(hidden, hidden // size, batch_first=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.attention(image, image, image, need_weights=False)[0]
        return result


class _Block(nn.Module):
    """A block of a transformer, with norms before its two parts."""

    def __init__(self, attention: nn.Module, hidden: int, inner: int, activation: nn.Module, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = attention
        self.inner = nn.Sequential(nn.Linear(hidden, inner), activation, nn.Linear(inner, hidden))
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        image = image + self.dropout(self.attention(self.first(image)))
        result: torch.Tensor = image + self.dropout(self.inner(self.second(image)))
        return result


def _transformer(setup: Setup) -> Program:
    random = setup.random
    size = random.choice(_HEADS)
    hidden = size * setup.drawn(2, 24)
    inner = hidden * random.choice((2, 3, 4))
    # FLOPs of a token: two for each weight of the projections and of the two layers of a block.
    tokens = max(8, setup.flops / _BLOCKS / (2 * (4 * hidden * hidden + 2 * hidden * inner)))
    tokens = min(tokens, _MOST_ELEMENTS / inner)
    length = setup.drawn(8, min(2048, tokens))
    batch = max(1, round(tokens / length))
    vocabulary = setup.drawn(64, 50_000)
    most = min(setup.flops / (2 * hidden), _MOST_ELEMENTS) / (batch * length)
    vocabulary = max(64, min(vocabulary, int(most)))
    blocks = nn.Sequential(*(_block(setup, hidden, inner, size if number == 0 else 0) for number in range(_BLOCKS)))
    embedding = nn.Embedding(vocabulary, hidden)
    head = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, vocabulary, bias=random.random() < 0.5))
    model = nn.ModuleList([embedding, blocks, head]).to(setup.device, setup.dtype)
    positions = nn.Parameter(setup.tensor(length, hidden))
    words, labels = setup.indices(vocabulary, batch, length), setup.indices(vocabulary, batch * length)

    def loss() -> torch.Tensor:
        image = blocks(embedding(words) + positions)
        return functional.cross_entropy(head(image).flatten(0, 1), labels)

    return setup.program("transformer", model, loss)


def _block(setup: Setup, hidden: int, inner: int, size: int) -> _Block:
    """Return a block of a random kind; `size` of a head, or 0 for a random one."""
    random = setup.random
    size = size or random.choice([other for other in _HEADS if hidden % other == 0])
    if random.random() < 0.5:
        attention: nn.Module = _Multihead(hidden, size)
    else:
        joint, causal, bias = (random.random() < 0.5 for _ in range(3))
        attention = _Attention(hidden, size, joint=joint, causal=causal, bias=bias)
    dropout = 0.1 if random.random() < 0.25 else 0.0
    return _Block(attention, hidden, inner, random.choice(_ACTIVATIONS)(), dropout)


class _Convolution(nn.Module):
    """A convolution, a norm and an activation; with a residual if the shape stays."""

    def __init__(self, convolution: nn.Conv2d, activation: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution
        self.norm, self.activation = nn.BatchNorm2d(convolution.out_channels), activation

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.convolution(image))
        if result.shape == image.shape:
            result += image
        activated: torch.Tensor = self.activation(result)
        return activated


def _convolutional(setup: Setup) -> Program:
    random = setup.random
    side, batch = setup.drawn(8, 256, 8), setup.drawn(1, 64)
    channels, multiple = 3, random.choice(_MULTIPLES)
    width = setup.drawn(16, 768, multiple)
    layers: list[nn.Module] = []
    left, images = setup.flops, (batch, 3, side, side)
    for depth in range(_CONVOLUTIONS):
        first = depth == 0
        stride = 1 if side < 8 else random.choice((1, 2, 4) if first else (1, 1, 1, 2))
        kernel = max(random.choice(_FIRST_KERNELS if first else _KERNELS), stride)
        if first and random.random() < 0.4:
            kernel = stride = random.choice([patch for patch in _PATCHES if patch <= side])
        depthwise = not first and random.random() < 0.15
        after = channels if depthwise else width if first else _nearby(channels, multiple, random)
        groups = channels if depthwise else 1
        cost = 2.0 * batch * (side // stride) ** 2 * after * (channels // groups) * kernel**2
        if first:
            while batch > 1 and (cost > left / 4 or batch * (side // stride) ** 2 * after > _MOST_ELEMENTS):
                batch, cost = batch // 2, cost / 2
            images = (batch, 3, side, side)
        elif cost > left:
            continue
        left -= cost
        activation = nn.ReLU(inplace=True) if random.random() < 0.6 else random.choice(_ACTIVATIONS)()
        padding = kernel // 2 if stride < kernel else 0
        convolution = nn.Conv2d(channels, after, kernel, stride, padding, groups=groups, bias=False)
        layers.append(_Convolution(convolution, activation))
        side, channels = max(1, side // stride), after
        if first and side >= 16 and random.random() < 0.4:
            layers.append(nn.MaxPool2d(3, 2, 1))
            side //= 2
    classes = setup.drawn(10, 2000)
    body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
    body = body.to(setup.device, setup.dtype)
    image = setup.tensor(*images)
    if setup.device.type == "cuda" or random.random() < 0.2:
        body, image = body.to(memory_format=torch.channels_last), image.to(memory_format=torch.channels_last)
    labels = setup.indices(classes, batch)
    return setup.program("convolutional", body, lambda: functional.cross_entropy(body(image), labels))


def _nearby(channels: int, multiple: int, random: Random) -> int:
    """Return the channels of the next layer: as many, more or fewer."""
    factor = random.choice((0.25, 0.5, 1, 1, 1, 2, 4)) * random.choice((1, 1, 0.75, 1.25))
    return min(2048, max(multiple, round(channels * factor / multiple) * multiple))


def _dense(setup: Setup) -> Program:
    random = setup.random
    widths = [setup.drawn(8, 8192, random.choice(_MULTIPLES)) for _ in range(5)]
    weights = sum(a * b for a, b in pairwise(widths))
    rows = max(1, min(1 << 16, round(setup.flops / (2 * weights))))
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=random.random() < 0.7), random.choice(_ACTIVATIONS)()]
        if random.random() < 0.3:
            layers.append(nn.Dropout(0.1))
    model = nn.Sequential(*layers).to(setup.device, setup.dtype)
    batch, target = setup.tensor(rows, widths[0]), setup.tensor(rows, widths[-1])
    return setup.program("dense", model, lambda: functional.mse_loss(model(batch), target))


class _Elementwise(nn.Module):
    """Operators between tensors of one shape, whose sizes are what counts."""

    def __init__(self, rows: int, columns: int, order: Sequence[int]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(columns))
        self.image = nn.Parameter(torch.randn(rows, columns))
        self.order = order

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        for number in self.order:
            image = _STEPS[number](image, self)
        return image.float().mean()


_STEPS: tuple[Callable[[torch.Tensor, _Elementwise], torch.Tensor], ...] = (
    lambda image, module: image * module.scale,
    lambda image, module: image + module.image,
    lambda image, module: image.sigmoid() * image,
    lambda image, module: image.tanh(),
    lambda image, module: image * torch.rsqrt(image.pow(2).mean(-1, keepdim=True) + 1e-6),
    lambda image, module: torch.cat([part.contiguous() for part in image.chunk(2, -1)], -1),
    lambda image, module: image.t().contiguous().relu().t().contiguous(),
    lambda image, module: image.softmax(-1),
    lambda image, module: image - image.mean(-1, keepdim=True),
    lambda image, module: image / (image.abs() + 1.0),
    lambda image, module: torch.where(image > 0, image, image * 0.1),
    lambda image, module: image.roll(1, -1).clone(),
    lambda image, module: functional.pad(image, (1, 1))[:, 1:-1] + image.exp().sum(0),
    lambda image, module: torch.stack([image, image.neg()]).sum(0) + image.clamp(-1.0, 1.0),
)


def _elementwise(setup: Setup) -> Program:
    random = setup.random
    # About as many bytes as a transformer's activations have at as many FLOPs.
    elements = min(max(256.0, setup.flops / 512), _MOST_ELEMENTS)
    columns = 2 * setup.drawn(8, min(4096, elements / 2))
    rows = max(2, round(elements / columns))
    model = _Elementwise(rows, columns, random.sample(range(len(_STEPS)), 8)).to(setup.device, setup.dtype)
    image = setup.tensor(rows, columns).requires_grad_()
    return setup.program("elementwise", model, lambda: model(image))


class _Parts(nn.Module):
    """Layers beside each other, each with an input of its own, and the sum of their means."""

    def __init__(self, parts: Sequence[tuple[nn.Module, torch.Tensor]]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer for layer, _ in parts)
        self.inputs = [image.requires_grad_() for _, image in parts]

    def forward(self) -> torch.Tensor:
        means = [layer(image).mean() for layer, image in zip(self.layers, self.inputs, strict=True)]
        return torch.stack(means).sum()


class _Mixed(nn.Module):
    """Attention alone."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(image, image, image, is_causal=self.causal)


def _separate(setup: Setup) -> Program:
    """Many layers in one program, whose sizes no other layer decides."""
    random = setup.random
    most = max(2 * _LEAST_FLOPS, 2 * setup.flops / _PARTS)
    parts: list[tuple[nn.Module, torch.Tensor]] = []
    for number in range(_PARTS):
        flops = setup.drawn(max(_LEAST_FLOPS, most / 16), most)
        if number % 6 == 0:
            size = random.choice(_HEADS)
            length = setup.drawn(16, min(2048.0, math.sqrt(flops / (4 * size))))
            heads = max(1, min(512, round(flops / (4 * length * length * size))))
            parts.append((_Mixed(causal=random.random() < 0.5), setup.tensor(1, heads, length, size)))
        elif number % 6 < 3:
            before = setup.drawn(16, 4096, random.choice(_MULTIPLES))
            after = setup.drawn(16, min(4096, _MOST_WEIGHTS / before), random.choice(_MULTIPLES))
            rows = max(1, min(1 << 15, round(flops / (2 * before * after))))
            parts.append((nn.Linear(before, after), setup.tensor(rows, before)))
        else:
            parts.append(_convolution(setup, flops))
    model = _Parts(parts).to(setup.device, setup.dtype)
    return setup.program("separate", model, model)


def _convolution(setup: Setup, flops: float) -> tuple[nn.Module, torch.Tensor]:
    """Return a convolution and its input, of about so many FLOPs."""
    random = setup.random
    multiple, kernel = random.choice(_MULTIPLES), random.choice(_KERNELS)
    before = setup.drawn(16, 1024, multiple)
    after = min(_nearby(before, multiple, random), int(_MOST_WEIGHTS / before / kernel**2 / multiple + 1) * multiple)
    stride = random.choice((1, 1, 1, 2))
    side = setup.drawn(4, 96)
    cost = 2.0 * math.ceil(side / stride) ** 2 * before * after * kernel**2
    batch = max(1, min(64, round(flops / cost)))
    layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    image = setup.tensor(batch, before, side, side)
    if setup.device.type == "cuda" or random.random() < 0.2:
        return layer.to(memory_format=torch.channels_last), image.to(memory_format=torch.channels_last)
    return layer, image


KINDS: dict[str, Callable[[Setup], Program]] = {
    "transformer": _transformer,
    "convolutional": _convolutional,
    "dense": _dense,
    "elementwise": _elementwise,
    "separate": _separate,
}
