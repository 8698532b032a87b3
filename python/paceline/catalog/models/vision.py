"""Towers that make tokens of images in front of a language model: those of Qwen2.5-VL, Qwen3-VL and Qwen3.5.

The tokens of a sample (`--seq`) are those of its text and of its image. Their layers are called `vision.…`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.catalog.models.blocks import stack
from paceline.catalog.models.config import Config
from paceline.catalog.models.layers import Layer
from paceline.catalog.models.steps import Norm, Pointwise, Product, Step, Weight
from paceline.catalog.models.stepwise import layer_of
from paceline.catalog.models.traits import Block

TOWERS = ("qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
"""Families with a tower, by `model_type`."""
_PIXELS = 1024
"""Of a side of an image, if half of a sample's tokens are enough for it."""
_DEFAULTS: Mapping[str, Any] = {
    **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16},
    **{"out_hidden_size": 3584, "num_position_embeddings": 2304},
}
_OLDER: Mapping[str, Any] = {
    **{"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14},
    **{"out_hidden_size": 3584, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
}
"""Of fields that files leave out, as transformers has them: of Qwen3, and of Qwen2.5."""
_DEEPSTACK = {"qwen3_vl": [8, 16, 24], "qwen3_vl_moe": [8, 16, 24]}
"""Layers whose results are added to the language model's first layers (`deepstack_visual_indexes`)."""


@dataclass(frozen=True)
class Tower:
    """The layers of a tower."""

    layers: tuple[Layer, ...]
    note: str
    """Assumptions, as notes."""


def tower_of(whole: Config, tokens: int) -> Tower | None:
    """Return the tower of a configuration for samples of so many tokens; None if it has none that is known.

    Raises InvalidArgumentError.
    """
    if whole.kind not in TOWERS or not isinstance(whole.fields.get("vision_config"), dict):
        return None
    config = whole.part("vision_config")
    config = replace(config, fields={**(_OLDER if whole.kind == "qwen2_5_vl" else _DEFAULTS), **config.fields})
    merge, patch = config.whole("spatial_merge_size", 2), config.whole("patch_size")
    of_image = max(1, min((_PIXELS // (patch * merge)) ** 2, tokens // 2))
    layers = _layers(config, whole.kind, of_image * merge**2, merge)
    note = f"Assumed that {of_image:,} of a sample's {tokens:,} tokens are of images, whose tower is trained, too"
    return Tower(tuple(layers), f"{note} (freeze=vision.*: it is not)")


def _layers(config: Config, kind: str, patches: int, merge: int) -> list[Layer]:
    hidden, heads, is_rms = config.whole("hidden_size"), config.whole("num_heads"), kind == "qwen2_5_vl"
    patch, count = config.whole("patch_size"), config.layers("depth")
    pixels = config.whole("in_channels", 3) * config.whole("temporal_patch_size", 2) * patch * patch
    block = Block(
        hidden,
        heads,
        heads,
        config.per_head(hidden, heads, "hidden_size", "num_heads"),
        config.whole("intermediate_size"),
        patches,
        causal=False,
        gated=is_rms,
        one_qkv=True,
        norm=1 if is_rms else 2,
        rms=is_rms,
        rotary=1.0,
        activation="silu" if is_rms else "gelu",
    )
    blocks = [block] * count
    if is_rms:
        whole = config.members("fullatt_block_indexes", count)
        window = (config.whole("window_size") // patch) ** 2
        blocks = [block if index in whole else replace(block, window=max(1, window)) for index in range(count)]
    embedding: list[Step] = [Product("in", pixels, hidden, patches, bias=not is_rms)]
    if not is_rms:
        embedding.append(Weight("positions", (config.whole("num_position_embeddings"), hidden)))
    deep = config.fields.get("deepstack_visual_indexes", _DEEPSTACK.get(kind, []))
    count_deep = len(
        replace(config, fields={"deepstack_visual_indexes": deep}).members("deepstack_visual_indexes", count)
    )
    if kind not in _DEEPSTACK:
        count_deep = 0
    out, wide, rows = config.whole("out_hidden_size"), hidden * merge**2, patches // merge**2
    mergers = [_merger("vision.merger", Norm("norm", hidden, patches, 2 - is_rms, rms=is_rms), wide, out, rows)]
    mergers += [
        _merger(f"vision.deep_merger.{index}", Norm("norm", wide, rows, 2, rms=False), wide, out, rows)
        for index in range(count_deep)
    ]
    return [
        layer_of("vision.embed", embedding, tokens=patches, hidden=hidden),
        *stack(blocks, "vision"),
        *mergers,
    ]


def _merger(name: str, norm: Norm, wide: int, out: int, rows: int) -> Layer:
    """Return the products that make a token of the language model of several patches."""
    steps: list[Step] = [
        norm,
        Product("up", wide, wide, rows, bias=True),
        Pointwise("gelu", wide, rows),
        Product("down", wide, out, rows, bias=True),
    ]
    return layer_of(name, steps, tokens=rows, hidden=wide)
