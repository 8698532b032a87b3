"""Which parameters are trained: adapters beside frozen weights (LoRA, DoRA), and parts of a model that are frozen.

LoRA adds a product of two narrow matrices to that of a weight, W x + s B A x, and trains only A (rank x inputs) and B
(outputs x rank): E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. DoRA also trains the length
of each row of W + s B A (S. Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024). Names of modules are
those of transformers, as in PEFT's `target_modules`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from paceline._internal.nearest import nearest
from paceline.catalog import names
from paceline.catalog.models.heads import ROBERTAS
from paceline.catalog.models.layers import SAVED, Layer, Model, Tensor
from paceline.errors import InvalidArgumentError

GROUPS = ("all-linear", "attention", "mlp")
"""Words for several modules: all products of blocks, those of attention, and those of MLPs."""
EXPERTS = "experts"
"""The word for the products of a mixture's experts, which no group has."""
_LLAMA: dict[str, tuple[str, ...]] = {
    **{"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "o_proj": ("attention.out",)},
    **{"gate_proj": ("gate",), "up_proj": ("up",), "down_proj": ("down",)},
}
_GPT: dict[str, tuple[str, ...]] = {"c_attn": ("qkv",), "c_proj": ("attention.out", "down"), "c_fc": ("up",)}
_FALCON: dict[str, tuple[str, ...]] = {
    **{"query_key_value": ("qkv",), "dense": ("attention.out",)},
    **{"dense_h_to_4h": ("up",), "dense_4h_to_h": ("down",)},
}
_OPT: dict[str, tuple[str, ...]] = {
    **{"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "out_proj": ("attention.out",)},
    **{"fc1": ("up",), "fc2": ("down",)},
}
_BERT: dict[str, tuple[str, ...]] = {
    "query": ("q",),
    "key": ("k",),
    "value": ("v",),
    "dense": ("out", "up", "down"),
}
_LATENT: dict[str, tuple[str, ...]] = {
    **{"q_a_proj": ("q_down",), "q_b_proj": ("q_up",), "kv_a_proj_with_mqa": ("kv_down",), "kv_b_proj": ("kv_up",)},
    **_LLAMA,
}
_MAMBA: dict[str, tuple[str, ...]] = {**_LLAMA, "in_proj": ("in",), "out_proj": ("mixer.out",)}
_DELTA: dict[str, tuple[str, ...]] = {
    **_LLAMA,
    **{"in_proj_qkvz": ("qkvz",), "in_proj_ba": ("ba",), "in_proj_qkv": ("mixer.qkv",), "in_proj_z": ("z",)},
    **{"in_proj_b": ("mixer.b",), "in_proj_a": ("mixer.a",), "out_proj": ("mixer.out",)},
}
_OF_T5: dict[str, tuple[str, ...]] = {
    **{"q": ("q",), "k": ("k",), "v": ("v",), "o": ("attention.out",)},
    **{"wi": ("up",), "wi_0": ("gate",), "wi_1": ("up",), "wo": ("down",)},
}
_MODULES: dict[str, dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), _GPT),
    "chatglm": {
        **{"query_key_value": ("qkv",), "dense": ("attention.out",)},
        **{"dense_h_to_4h": ("gate_up",), "dense_4h_to_h": ("down",)},
    },
    "mpt": {"Wqkv": ("qkv",), "out_proj": ("attention.out",), "up_proj": ("up",), "down_proj": ("down",)},
    **dict.fromkeys(("falcon", "gpt_neox"), _FALCON),
    **dict.fromkeys(("opt", "bart", "whisper"), _OPT),
    **dict.fromkeys(("bert", *ROBERTAS, "vit"), _BERT),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "kimi_k2", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite"),
        _LATENT,
    ),
    **dict.fromkeys(("mamba2", "nemotron_h", "falcon_h1"), _MAMBA),
    "lfm2": {
        **{"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "in_proj": ("in",), "out_proj": ("out",)},
        **{"w1": ("gate",), "w2": ("down",), "w3": ("up",)},
    },
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _DELTA),
    "qwen": {"c_attn": ("qkv",), "c_proj": ("attention.out", "down"), "w1": ("up",), "w2": ("gate",)},
    "phi3": {
        **{"qkv_proj": ("qkv",), "o_proj": ("attention.out",)},
        **{"gate_up_proj": ("gate_up",), "down_proj": ("down",)},
    },
    **{kind: {**_LLAMA, "gate_up_proj": ("gate_up",)} for kind in ("glm", "glm4")},
    "starcoder2": {
        **{"q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "o_proj": ("attention.out",)},
        **{"c_fc": ("up",), "c_proj": ("down",)},
    },
    **dict.fromkeys(("t5", "mt5"), _OF_T5),
}
"""The linear layers of a block by transformers' names, and what they are called here; of other families, Llama's."""
_BITS: Mapping[names.Quantization, tuple[float, int]] = {
    # Blocks of 64 have a scale in FP32, which double quantization holds in 8 bits, with one in FP32 for 256 of them.
    "nf4": (4 + 32 / 64, 0),
    "nf4-double": (4 + 8 / 64 + 32 / (64 * 256), 0),
    # A row of outputs has a scale in FP32.
    "int8": (8, 4),
    # Groups of 128 have a scale in 16 bits and a zero in 4.
    "gptq-int4": (4 + (16 + 4) / 128, 0),
}
"""Bits of a quantized weight, and bytes of each of its rows: T. Dettmers et al., "QLoRA", 2023, section 3, and
"LLM.int8()", 2022, section 3; E. Frantar et al., "GPTQ", 2022, with the group size of released models."""
_GPT2 = {"words": "wte", "positions": "wpe"}
_T5 = {"words": "shared", "labels": "classification_head"}
_ENCODER = {"words": "word_embeddings", "positions": "position_embeddings", "labels": "classifier"}
_ENDS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "mpt", "qwen"), _GPT2),
    "chatglm": {"words": "word_embeddings", "head": "output_layer"},
    "bert": {**_ENCODER, "head": "cls"},
    **dict.fromkeys(ROBERTAS, _ENCODER),
    "vit": _ENCODER,
    "gpt_neox": {"words": "embed_in", "head": "embed_out"},
    "falcon": {"words": "word_embeddings"},
    **dict.fromkeys(("t5", "mt5", "bart"), _T5),
    "mamba2": {"words": "embeddings"},
}
"""Names of the tables and the head of transformers' families, where they are not Llama's."""
_HEADS: Mapping[str, str] = {
    "ForTokenClassification": "classifier",
    "ForQuestionAnswering": "qa_outputs",
    "ForImageClassification": "classifier",
    "ForSequenceClassification": "score",
}
"""Names of heads over labels, by the end of a class's name."""
_NOT_LINEAR = ("out_down", "router", "shared_gate", "positions", "relative_bias", "labels", "norm", "after")
"""Parts of blocks whose matrices get no adapter: tables, transformers' routers, which are no `nn.Linear`, and products
by groups, which PEFT's are not."""


@dataclass(frozen=True)
class Adapter:
    """Adapters of the linear layers of blocks."""

    rank: int
    modules: tuple[str, ...] = GROUPS[:1]
    """Words of `GROUPS`, or names as in PEFT's `target_modules`."""
    dora: bool = False
    """Whether the length of each row of a weight is trained, too."""
    saved: tuple[str, ...] = ()
    """Modules that are trained wholly beside the adapters (PEFT's `modules_to_save`)."""
    dropout: float = 0.0
    """The share of an adapter's inputs that is dropped."""

    @property
    def words(self) -> str:
        """For prose."""
        saved = f", {'+'.join(self.saved)} trained" if self.saved else ""
        dropout = f" with dropout of {self.dropout:g}" if self.dropout else ""
        return f"{'DoRA' if self.dora else 'LoRA'} of rank {self.rank} on {'+'.join(self.modules)}{dropout}{saved}"


def parse_adapter(text: str, *, dora: bool = False, saved: Sequence[str] = (), dropout: float = 0.0) -> Adapter:
    """Return the adapter of `RANK` or `RANK:MODULES`, with commas or plus signs between modules.

    Args:
        text: Rank and modules.
        dora: Whether it is DoRA's.
        saved: Modules that are trained wholly.
        dropout: The share of an adapter's inputs that is dropped.

    Raises InvalidArgumentError for a rank that is no number, or an empty module.
    """
    rank, colon, rest = text.partition(":")
    words = [word.strip() for word in rest.replace("+", ",").split(",")] if colon else GROUPS[:1]
    modules = tuple(dict.fromkeys(word.lower() if word.lower() in GROUPS else word for word in words))
    if not (rank.isascii() and rank.isdigit() and 1 <= len(rank) <= 6 and int(rank) > 0):
        raise InvalidArgumentError(f"'{rank[:40]}' is no rank", remedy="{this=16}, or {this=16:attention}")
    if not all(modules):
        raise InvalidArgumentError(f"'{text[:80]}' has an empty module", remedy=f"{{this={rank}:q_proj,v_proj}}")
    return Adapter(int(rank), modules, dora, tuple(dict.fromkeys(saved)), dropout)


def linear_name(tensor: Tensor) -> str | None:
    """Return which linear layer of a block a weight is of: `attention.q`, `mlp.down`; None if it is of none.

    Experts are none: all are in one tensor, which PEFT does not adapt unless it is named (`target_parameters`).
    """
    return _linear_name(tensor.name) if len(tensor.shape) == 2 else None


@lru_cache(maxsize=65_536)
def _linear_name(name: str) -> str | None:
    *path, what, kind = name.split(".")
    numbers = [place for place, part in enumerate(path) if part.isdigit()]
    if kind != "weight" or not numbers or what.endswith(_NOT_LINEAR):
        return None
    return ".".join([*path[numbers[-1] + 1 :], what])


def is_quantized(tensor: Tensor) -> bool:
    """Whether quantization holds a weight in fewer bits: of blocks' products and experts, not of norms and the ends.

    The frozen copy of a module that is trained has as many bits as the trained one.
    """
    is_product = tensor.is_of_experts or linear_name(tensor) is not None
    is_held = not tensor.trains and tensor.active > 0 and not tensor.unquantized
    return is_held and len(tensor.shape) >= 2 and is_product


def quantized_bytes(tensor: Tensor, quantization: names.Quantization) -> int:
    """Return the bytes of a quantized weight with its scales."""
    bits, a_row = _BITS[quantization]
    return math.ceil(tensor.size * bits / 8) + a_row * math.prod(tensor.shape[:-1])


def adapted_name(tensor: Tensor) -> str | None:
    """Return which linear layer, or which product of experts, an adapter's first matrix is of; None for others."""
    stem, is_first, _ = tensor.name.partition(".lora_A.")
    return _linear_name(f"{stem}.weight") if is_first else None


def adapted(model: Model, adapter: Adapter, without: Sequence[str] = (), *, wide_experts: bool = False) -> Model:
    """Return the model with adapters, whose own weights are not trained.

    Args:
        model: The model.
        adapter: Its adapters.
        without: Patterns of the names of layers that have none.
        wide_experts: Whether quantization leaves experts as they are.

    Raises InvalidArgumentError for a module that no block has.
    """
    key = id(model), adapter, tuple(without), wide_experts
    if key not in _ADAPTED:
        if len(_ADAPTED) >= _MOST_ADAPTED:
            _ADAPTED.clear()
        own = _with_wide_experts(model) if wide_experts else model
        _ADAPTED[key] = model, _adapted(own, adapter, without)
    return _ADAPTED[key][1]


_ADAPTED: dict[tuple[int, Adapter, tuple[str, ...], bool], tuple[Model, Model]] = {}
_MOST_ADAPTED = 16
"""Searches ask for the same model thousands of times."""


def _with_wide_experts(model: Model) -> Model:
    """Return the model with experts that quantization leaves as they are."""
    layers = [
        replace(layer, tensors=tuple(replace(one, unquantized=one.is_of_experts) for one in layer.tensors))
        for layer in model.layers
    ]
    return replace(model, layers=tuple(layers))


def _adapted(model: Model, adapter: Adapter, without: Sequence[str]) -> Model:
    saved = _saved(model, adapter.saved)
    chosen = _chosen(model, adapter, saved)
    _check_patterns(model, without)
    layers = []
    for layer in model.layers:
        tensors: list[Tensor] = []
        for tensor in layer.tensors:
            is_saved = module_of(layer, tensor) in saved
            tensors.append(_frozen(model, tensor, saved) if is_saved else replace(tensor, trains=False))
            has_adapters = layer.block and not _matches(layer, without)
            if is_saved:
                tensors.append(_copy(tensor))
            elif has_adapters and _adaptable(tensor) in chosen:
                tensors += _tensors_of(tensor, adapter)
        layers.append(_untied(replace(layer, tensors=tuple(tensors)), saved))
    return _trained(model, layers, "freeze" if without else "lora")


def _copy(tensor: Tensor) -> Tensor:
    """Return the trained copy of a parameter."""
    path, _, kind = tensor.name.rpartition(".")
    if kind not in ("weight", "bias"):
        path, kind = tensor.name, "weight"
    return replace(tensor, name=f"{path}.{SAVED}.{kind}", trains=True)


def _frozen(model: Model, tensor: Tensor, saved: Collection[str]) -> Tensor:
    """Return the frozen original of a trained copy, which is not used unless a tied head reads it still."""
    is_shared = any(tensor in layer.shared and module_of(layer, None) not in saved for layer in model.layers)
    return replace(tensor, trains=False, active=tensor.active if is_shared else 0.0)


def _untied(layer: Layer, saved: Collection[str]) -> Layer:
    """Return a head with a trained copy of its own of the tied tables, if it is trained."""
    if not layer.shared or module_of(layer, None) not in saved:
        return layer
    copies = tuple(replace(tensor, name=f"{layer.name}.{SAVED}.{tensor.name}", trains=True) for tensor in layer.shared)
    return replace(layer, tensors=(*layer.tensors, *copies), shared=(), form=replace(layer.form, tied=False))


def frozen(model: Model, patterns: Sequence[str]) -> Model:
    """Return the model without training of the layers that match one of the patterns.

    Raises InvalidArgumentError for a pattern that no layer matches, or if nothing is left to train.
    """
    _check_patterns(model, patterns)
    layers = []
    for layer in model.layers:
        is_frozen = _matches(layer, patterns)
        tensors = tuple(replace(tensor, trains=False) for tensor in layer.tensors) if is_frozen else layer.tensors
        layers.append(replace(layer, tensors=tensors))
    return _trained(model, layers, "freeze")


def _matches(layer: Layer, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(layer.name, pattern) for pattern in patterns)


def _check_patterns(model: Model, patterns: Sequence[str]) -> None:
    """Raise InvalidArgumentError for a pattern that no layer matches."""
    names = list(dict.fromkeys(layer.name for layer in model.layers))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = nearest(pattern, names) or names[0]
            raise InvalidArgumentError(
                f"'{pattern[:80]}' is no layer of {model.name}",
                setting="freeze",
                remedy=f"{{this={near}}}, or a pattern: {{this={names[len(names) // 2].rpartition('.')[0]}.*}}",
            )


def _trained(model: Model, layers: Sequence[Layer], setting: str) -> Model:
    """Return a model of other layers, each of which knows whether one before it is trained.

    Raises InvalidArgumentError if nothing is.
    """
    trains = {tensor.name: tensor.trains for layer in layers for tensor in layer.tensors}
    made, passes = [], False
    for layer in layers:
        shared = tuple(replace(tensor, trains=trains[tensor.name]) for tensor in layer.shared)
        made.append(replace(layer, shared=shared, passes=passes))
        passes = passes or bool(layer.trained)
    if not passes:
        raise InvalidArgumentError(
            f"leaves nothing of {model.name} to train", setting=setting, remedy="fewer layers: {freeze=model.embed}"
        )
    return replace(model, layers=tuple(made))


def _tensors_of(weight: Tensor, adapter: Adapter) -> Iterator[Tensor]:
    """Yield the tensors that an adapter adds to a weight, with PEFT's names; each expert has its own."""
    *experts, outer, inner = weight.shape
    stem = weight.name.removesuffix(".weight")
    yield Tensor(f"{stem}.lora_A.weight", (*experts, adapter.rank, inner), weight.active)
    yield Tensor(f"{stem}.lora_B.weight", (*experts, outer, adapter.rank), weight.active)
    if adapter.dora:
        yield Tensor(f"{stem}.lora_magnitude_vector.weight", (outer,), weight.active)


def _adaptable(tensor: Tensor) -> str | None:
    """Return which linear layer or product of experts a weight is of; None if it gets no adapter."""
    is_of_experts = tensor.is_of_experts and len(tensor.shape) == 3
    return _linear_name(tensor.name) if is_of_experts else linear_name(tensor)


def _experts(model: Model) -> dict[str, set[str]]:
    """Return the products of experts by what names them, as PEFT's `target_parameters` do: `experts.down_proj`."""
    names = {
        name
        for layer in model.layers
        for tensor in layer.tensors
        if tensor.is_of_experts and (name := _adaptable(tensor)) is not None and len(tensor.shape) == 3
    }
    each = {f"experts.{name.rpartition('.')[2]}_proj": {name} for name in sorted(names)}
    return {EXPERTS: names, **each} if names else {}


def _linears(model: Model) -> dict[str, Tensor]:
    """Return the linear layers of blocks by name, one of each."""
    return {
        name: tensor
        for layer in model.layers
        if layer.block
        for tensor in layer.tensors
        if (name := linear_name(tensor)) is not None
    }


def module_of(layer: Layer, tensor: Tensor | None) -> str:
    """Return the module that a parameter is of, within its block if it is in one; of a layer, its own."""
    if tensor is None:
        return layer.name
    path, _, kind = tensor.name.rpartition(".")
    path = path if kind in ("weight", "bias") else tensor.name
    if not layer.block:
        return path
    parts = path.split(".")
    last = max((place for place, part in enumerate(parts) if part.isdigit()), default=-1)
    return ".".join(parts[last + 1 :])


def _saved(model: Model, words: Sequence[str]) -> set[str]:
    """Return the modules that some words name. Raises InvalidArgumentError for a word that names none."""
    if not words:
        return set()
    ends = _ends(model)
    choices = ends | _named(_linears(model), model.family)
    modules: set[str] = set()
    for word in words:
        if word not in choices:
            near = nearest(word, list(choices))
            raise InvalidArgumentError(
                f"'{word[:80]}' is no module of {model.name}",
                setting=SAVED,
                remedy=f"{{this={near or next(iter(choices))}}} (of {', '.join(choices)})",
            )
        modules |= choices[word]
    return modules


def _ends(model: Model) -> dict[str, set[str]]:
    """Return the modules that are no products of blocks, by transformers' names."""
    own, layers = _ENDS.get(model.family, {}), [layer for layer in model.layers if not layer.block]
    words = own.get("words", "embed_tokens")
    ends: dict[str, set[str]] = {}
    for layer in layers:
        role = layer.form.role
        for tensor in (*layer.tensors, *layer.shared):
            module = module_of(layer, tensor)
            last = [part for part in module.split(".") if not part.isdigit()][-1]
            if role == "head" or (role == "plain" and layer.logits):
                word, module = _head_of(model, own), (layer.name if tensor in layer.shared else module)
            elif role == "embedding" and "norm" not in last:
                word = {"tokens": words, "positions": own.get("positions", "embed_positions")}.get(last, last)
            else:
                word = "norm" if "norm" in module else module
            ends.setdefault(word, set()).add(module)
    norms = {
        module
        for layer in model.layers
        for tensor in layer.tensors
        if "norm" in (module := module_of(layer, tensor)).rpartition(".")[2] or module.endswith(".after")
    }
    if not any(module.endswith(".after") for module in norms) and model.family not in _ENDS:
        own_norms = {"input_layernorm": "attention.norm", "post_attention_layernorm": "mlp.norm"}
        ends |= {word: {module} for word, module in own_norms.items() if module in norms}
    return ends | ({"norm": norms} if norms else {})


def _head_of(model: Model, own: Mapping[str, str]) -> str:
    """Return the name of a model's head."""
    ends = (name for end, name in _HEADS.items() if model.architecture.endswith(end))
    name = next(ends, own.get("head", "lm_head"))
    return own.get("labels", name) if name == "score" else name


def _named(linears: Collection[str], family: str) -> dict[str, set[str]]:
    """Return linear layers by their family's names; those that these do not reach are called as they are here."""
    known = _MODULES.get(family, _LLAMA)
    named = {word: modules for word, parts in known.items() if (modules := _of_parts(linears, parts))}
    left = {name.rpartition(".")[2] for name in set(linears).difference(*named.values())}
    return named | {word: _of_parts(linears, (word,)) for word in sorted(left)}


def modules_of(model: Model) -> list[str]:
    """Return the words that name linear layers or experts of a model: groups of them, and transformers' names."""
    return list(_choices(model)[-1])


def _choices(model: Model) -> tuple[dict[str, set[str]], dict[str, set[str]], dict[str, set[str]]]:
    """Return the linear layers of each of transformers' names, the products of experts, and these with all groups."""
    linears = _linears(model)
    named = _named(linears, model.family)
    groups = {
        "all-linear": set(linears),
        "attention": {name for name in linears if "attention" in name},
        "mlp": {name for name in linears if "attention" not in name},
    }
    experts = _experts(model)
    return named, experts, {word: modules for word, modules in groups.items() if modules} | named | experts


def _chosen(model: Model, adapter: Adapter, saved: Collection[str]) -> set[str]:
    """Return the names of the linear layers that have adapters: of groups of them, not those that are trained wholly.

    Raises InvalidArgumentError for a word that names none, and for a module that is named twice.
    """
    named, experts, choices = _choices(model)
    chosen: set[str] = set()
    for word in adapter.modules:
        if word not in choices:
            near = nearest(word, list(choices)) or next(iter(choices))
            remedy = f"{{this={adapter.rank}:{near}}} (of {', '.join(choices)})"
            if word in _ends(model):
                remedy = f"{{{SAVED}={word}}}, which trains it wholly, or {remedy}"
            raise InvalidArgumentError(
                f"'{word[:80]}' is no linear layer of {model.name}'s blocks", setting="lora", remedy=remedy
            )
        if word in named and named[word] & set(saved):
            raise InvalidArgumentError(
                f"'{word}' has an adapter (--lora), and cannot be trained wholly as well",
                setting=SAVED,
                remedy=f"drop {word} from {{this}}, or name other modules: {{lora={adapter.rank}:MODULES}}",
            )
        if word in experts and adapter.dora:
            raise InvalidArgumentError(
                f"is not modeled for the experts of {model.name}", setting="dora", remedy="drop {this}"
            )
        chosen |= choices[word] - set(saved)
    return chosen


def _of_parts(linears: Collection[str], parts: Sequence[str]) -> set[str]:
    """Return the linear layers whose names end in one of some parts."""
    return {name for name in linears for part in parts if f".{name}".endswith(f".{part}")}
