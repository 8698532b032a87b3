"""Diffusion transformers of diffusers, by the `_class_name` of a config.json: DiT, Flux and Stable Diffusion 3.

A sample is an image's patches (the tokens of `--seq`) beside a text's tokens. Each stream of tokens has weights of its
own; one attention is over both. Scales and shifts of each block are products of one row of a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.catalog.models.config import Config
from paceline.catalog.models.layers import Layer, Tensor
from paceline.catalog.models.steps import Add, Attend, Norm, Pointwise, Product, Step
from paceline.catalog.models.stepwise import layer_of

TEXT_TOKENS = {"FluxTransformer2DModel": 512, "SD3Transformer2DModel": 333, "DiTTransformer2DModel": 0}
"""Tokens of text of a sample: `max_sequence_length` of diffusers' pipelines, for SD3 256 of T5 and 77 of CLIP."""
_TIMES = 256
"""Channels of a time step's sinusoids (`Timesteps` in diffusers' embeddings.py)."""
_OF_1024_PIXELS = 4096
"""Patches of an image of 1024 x 1024 pixels: latents are an eighth as wide, and packed two by two."""

_WIDEST = 2**14
"""Heads, and the size of one: a hundred times what published models have."""


@dataclass(frozen=True)
class _Stream:
    """Tokens with weights of their own."""

    name: str
    tokens: int
    is_normed: bool
    has_out: bool = True


@dataclass(frozen=True)
class _Shape:
    """The sizes of a model's blocks."""

    width: int
    heads: int
    size: int

    def layer(self, block: str, name: str, tokens: int, steps: list[Step]) -> Layer:
        """Return a layer of a block."""
        return layer_of(f"{block}.{name}", steps, tokens=tokens, hidden=self.width, block=block)

    def modulated(self, rows: int) -> list[Step]:
        """Return a norm without weights, with a scale and a shift."""
        width = self.width
        return [
            Norm("norm", width, rows, vectors=0, rms=False),
            Pointwise("mul", width, rows),
            Pointwise("add", width, rows),
        ]

    def gated(self, rows: int) -> list[Step]:
        """Return a gate and the residual sum."""
        return [Pointwise("mul", self.width, rows), Add(self.width, rows)]

    def modulation(self, block: str, **vectors: int) -> Layer:
        """Return the products that make scales, shifts and gates of a sample."""
        products = [
            Product(name, self.width, count * self.width, 1, bias=True, again=place > 0)
            for place, (name, count) in enumerate(vectors.items())
        ]
        return self.layer(block, "modulation", 1, [Pointwise("silu", self.width, 1), *products])

    def queries(self, stream: _Stream, *, bias: bool = True) -> list[Step]:
        """Return products of queries, keys and values, and the norms of the first two."""
        rows, wide = stream.tokens, self.heads * self.size
        steps: list[Step] = [
            Product(one, self.width, wide, rows, bias=bias, again=place > 0) for place, one in enumerate("qkv")
        ]
        if stream.is_normed:
            steps += [Norm(f"{one}_norm", self.size, rows * self.heads) for one in "qk"]
        return steps

    def attention(self, block: str, stream: _Stream, keys: int, *, bias: bool = True) -> Layer:
        """Return a stream's part of attention; `keys`: tokens of all streams, 0 if another one's layer attends."""
        rows, wide = stream.tokens, self.heads * self.size
        steps = [*self.modulated(rows), *self.queries(stream, bias=bias)]
        if keys:
            steps.append(Attend(keys, keys, self.heads, self.size, causal=False))
        if stream.has_out:
            steps += [Product("out", wide, self.width, rows, bias=True), *self.gated(rows)]
        return self.layer(block, f"attention{stream.name}", rows, steps)

    def mlp(self, block: str, stream: _Stream, ffn: int) -> Layer:
        """Return a stream's MLP."""
        rows = stream.tokens
        steps = [
            *self.modulated(rows),
            Product("up", self.width, ffn, rows, bias=True),
            Pointwise("gelu", ffn, rows),
            Product("down", ffn, self.width, rows, bias=True),
            *self.gated(rows),
        ]
        return self.layer(block, f"mlp{stream.name}", rows, steps)

    def end(self, name: str, tokens: int, *steps: Step) -> Layer:
        """Return a layer that is in no block."""
        return layer_of(f"model.{name}", steps, tokens=tokens, hidden=self.width)

    def embedded(self, name: str, inner: int) -> Layer:
        """Return two products of one row of a sample, of a time step or a text's vector."""
        width = self.width
        first, second = Product("up", inner, width, 1, bias=True), Product("down", width, width, 1, bias=True)
        return self.end(name, 1, first, Pointwise("silu", width, 1), second)


def _shape(config: Config, heads: int, size: int) -> _Shape:
    heads = config.whole("num_attention_heads", heads, _WIDEST)
    size = config.whole("attention_head_dim", size, _WIDEST)
    return _Shape(heads * size, heads, size)


def _flux(config: Config, tokens: int) -> list[Layer]:
    shape, text = _shape(config, 24, 128), TEXT_TOKENS[config.kind]
    channels, patch = config.whole("in_channels", 64), config.whole("patch_size", 1)
    width, both = shape.width, tokens + text
    image_stream, text_stream = _Stream("", tokens, is_normed=True), _Stream("_text", text, is_normed=True)
    layers = [
        shape.embedded("embed.time", _TIMES),
        *([shape.embedded("embed.guidance", _TIMES)] if config.flag("guidance_embeds", default=False) else []),
        shape.embedded("embed.pooled", config.whole("pooled_projection_dim", 768)),
        shape.end("embed.text", text, Product("in", config.whole("joint_attention_dim", 4096), width, text, bias=True)),
        shape.end("embed", tokens, Product("in", channels, width, tokens, bias=True)),
    ]
    for index in range(config.layers("num_layers", 19)):
        block = f"model.layers.{index}"
        layers += [
            shape.modulation(block, image=6, text=6),
            shape.attention(block, text_stream, 0),
            shape.attention(block, image_stream, both),
            shape.mlp(block, image_stream, 4 * width),
            shape.mlp(block, text_stream, 4 * width),
        ]
    joined = _Stream("", both, is_normed=True)
    for index in range(config.layers("num_single_layers", 38)):
        block = f"model.single_layers.{index}"
        steps = [
            *shape.modulated(both),
            Product("up", width, 4 * width, both, bias=True),
            Pointwise("gelu", 4 * width, both),
            *shape.queries(joined),
            Attend(both, both, shape.heads, shape.size, causal=False),
            Product("out", 5 * width, width, both, bias=True),
            *shape.gated(both),
        ]
        layers += [shape.modulation(block, image=3), shape.layer(block, "attention", both, steps)]
    out = patch * patch * config.whole("out_channels", channels)
    return [*layers, *_ends(shape, tokens, out)]


def _ends(shape: _Shape, tokens: int, out: int) -> list[Layer]:
    width = shape.width
    scales = shape.end("norm", 1, Pointwise("silu", width, 1), Product("scales", width, 2 * width, 1, bias=True))
    return [scales, shape.end("head", tokens, *shape.modulated(tokens), Product("out", width, out, tokens, bias=True))]


def _patches(shape: _Shape, channels: int, patch: int, tokens: int) -> Layer:
    """Return the product of each patch: a convolution whose strides are its window."""
    return shape.end("embed", tokens, Product("in", channels * patch * patch, shape.width, tokens, bias=True))


def _sd3(config: Config, tokens: int) -> list[Layer]:
    shape, text = _shape(config, 18, 64), TEXT_TOKENS[config.kind]
    channels, patch = config.whole("in_channels", 16), config.whole("patch_size", 2)
    count = config.layers("num_layers", 18)
    dual = config.members("dual_attention_layers", count)
    norm = config.get("qk_norm")
    if norm not in (None, "rms_norm"):
        raise config.wrong("qk_norm", f"{norm!r:.40} is not modeled", remedy='"rms_norm" or null')
    width, both, is_normed = shape.width, tokens + text, norm is not None
    of_text = config.whole("caption_projection_dim", 1152)
    if of_text != width:
        raise config.wrong("caption_projection_dim", f"{of_text} is not the width of all heads, {width}")
    image_stream = _Stream("", tokens, is_normed)
    layers = [
        shape.embedded("embed.time", _TIMES),
        shape.embedded("embed.pooled", config.whole("pooled_projection_dim", 2048)),
        shape.end("embed.text", text, Product("in", config.whole("joint_attention_dim", 4096), width, text, bias=True)),
        _patches(shape, channels, patch, tokens),
    ]
    for index in range(count):
        block, is_last = f"model.layers.{index}", index == count - 1
        text_stream = _Stream("_text", text, is_normed, has_out=not is_last)
        layers += [
            shape.modulation(block, image=9 if index in dual else 6, text=2 if is_last else 6),
            shape.attention(block, text_stream, 0),
            shape.attention(block, image_stream, both),
            *([shape.attention(block, _Stream("_image", tokens, is_normed), tokens)] if index in dual else []),
            shape.mlp(block, image_stream, 4 * width),
            *([] if is_last else [shape.mlp(block, text_stream, 4 * width)]),
        ]
    return [*layers, *_ends(shape, tokens, patch * patch * config.whole("out_channels", channels))]


def _dit(config: Config, tokens: int) -> list[Layer]:
    shape = _shape(config, 16, 72)
    channels, patch = config.whole("in_channels", 4), config.whole("patch_size", 2)
    labels, width = config.whole("num_embeds_ada_norm", 1000), shape.width
    if config.text("norm_type", "ada_norm_zero") != "ada_norm_zero":
        raise config.wrong("norm_type", "is not modeled", remedy='"norm_type": "ada_norm_zero"')
    has_bias = config.flag("attention_bias", default=True)
    layers = [_patches(shape, channels, patch, tokens)]
    stream = _Stream("", tokens, is_normed=False)
    for index in range(config.layers("num_layers", 28)):
        block = f"model.layers.{index}"
        # Every block embeds time and label itself (`AdaLayerNormZero`); one label more stands for none.
        time: list[Step] = [
            Product("up", _TIMES, width, 1, bias=True),
            Pointwise("silu", width, 1),
            Product("down", width, width, 1, bias=True),
        ]
        name = f"{block}.time"
        table = Tensor(f"{name}.labels.weight", (labels + 1, width), 1 / (labels + 1))
        layers += [
            layer_of(name, time, tokens=1, hidden=width, block=block, more=(table,)),
            shape.modulation(block, image=6),
            shape.attention(block, stream, tokens, bias=has_bias),
            shape.mlp(block, stream, 4 * width),
        ]
    return [*layers, *_ends(shape, tokens, patch * patch * config.whole("out_channels", channels))]


FAMILIES: dict[str, Callable[[Config, int], list[Layer]]] = {
    "FluxTransformer2DModel": _flux,
    "SD3Transformer2DModel": _sd3,
    "DiTTransformer2DModel": _dit,
}
"""Layers of a configuration with so many patches, by `_class_name`."""


def default_patches(config: Config) -> int:
    """Return the patches of an image of the size that the configuration names, or of 1024 x 1024 pixels."""
    if config.kind == "FluxTransformer2DModel":
        return _OF_1024_PIXELS
    side, patch = (
        config.whole("sample_size", 128 if config.kind.startswith("SD3") else 32),
        config.whole("patch_size", 2),
    )
    if side % patch:
        raise config.wrong("patch_size", f"{patch} does not divide the sample_size, {side}")
    return (side // patch) ** 2
