"""Heads of models: the class in `architectures` of a configuration says whether and which head it has.

The classes, and the tensors of their heads, are those of Hugging Face's transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline._internal.units import listed
from paceline.catalog.models.blocks import embedding_layer, final_norm, head_layers, linear, stack
from paceline.catalog.models.config import Config, as_json
from paceline.catalog.models.layers import Activations, Layer, Matmul, Tensor
from paceline.catalog.models.traits import Block

What = Literal[
    "words",
    "none",
    "sequence",
    "tokens",
    "answers",
    "choice",
    "pretraining",
    "relation",
    "two heads",
    "encoder",
    "decoder",
    "patches",
]
"""Purposes of heads: words of the vocabulary, labels of a sequence, an image or of each token, both ends of an answer,
one of several choices, BERT's two tasks or the second of them, GPT-2's two; a body of which only one half is used; the
patches of an image that are masked."""
BASES: Mapping[str, tuple[str, ...]] = {
    "gpt2": ("GPT2",),
    "llama": ("Llama", "LLaMA"),
    "mistral": ("Mistral",),
    "ministral": ("Ministral",),
    "ministral3": ("Ministral3",),
    "mixtral": ("Mixtral",),
    "granite": ("Granite",),
    "qwen2": ("Qwen2",),
    "qwen2_moe": ("Qwen2Moe",),
    "qwen3": ("Qwen3",),
    "qwen3_moe": ("Qwen3Moe",),
    "internlm": ("InternLM",),
    "helium": ("Helium",),
    "hunyuan_v1_dense": ("HunYuanDenseV1",),
    "exaone4": ("Exaone4",),
    "smollm3": ("SmolLM3",),
    "seed_oss": ("SeedOss",),
    "phi3": ("Phi3",),
    "olmo2": ("Olmo2",),
    "olmo3": ("Olmo3",),
    "olmoe": ("Olmoe",),
    "glm": ("Glm",),
    "glm4": ("Glm4",),
    "glm4_moe": ("Glm4Moe",),
    "gemma": ("Gemma",),
    "gemma2": ("Gemma2",),
    "gemma3_text": ("Gemma3", "Gemma3Text"),
    "gemma4_text": ("Gemma4", "Gemma4Text"),
    "gpt_oss": ("GptOss",),
    "deepseek_v2": ("DeepseekV2",),
    "deepseek_v3": ("DeepseekV3",),
    "kimi_k2": ("DeepseekV3",),
    "deepseek_v32": ("DeepseekV32",),
    "deepseek_v4": ("DeepseekV4",),
    "glm_moe_dsa": ("GlmMoeDsa",),
    "glm4_moe_lite": ("Glm4MoeLite",),
    "minimax_m2": ("MiniMaxM2",),
    "llama4_text": ("Llama4", "Llama4Text"),
    "qwen": ("QWen",),
    "mamba2": ("Mamba2",),
    "nemotron_h": ("NemotronH",),
    "falcon_h1": ("FalconH1",),
    "lfm2": ("Lfm2",),
    "qwen3_5_text": ("Qwen3_5", "Qwen3_5Text"),
    "qwen3_5_moe_text": ("Qwen3_5Moe", "Qwen3_5MoeText"),
    "qwen3_next": ("Qwen3Next",),
    "FluxTransformer2DModel": ("FluxTransformer2D",),
    "SD3Transformer2DModel": ("SD3Transformer2D",),
    "DiTTransformer2DModel": ("DiTTransformer2D",),
    "mpt": ("Mpt", "MPT"),
    "falcon": ("Falcon", "RW"),
    "opt": ("OPT",),
    "gpt_neox": ("GPTNeoX",),
    "starcoder2": ("Starcoder2",),
    "gpt_bigcode": ("GPTBigCode",),
    "chatglm": ("ChatGLM",),
    "bert": ("Bert",),
    "roberta": ("Roberta",),
    "xlm-roberta": ("XLMRoberta",),
    "camembert": ("Camembert",),
    "t5": ("T5",),
    "mt5": ("MT5",),
    "bart": ("Bart",),
    "transfo-xl": ("TransfoXL",),
    "whisper": ("Whisper",),
    "vit": ("ViT",),
}
"""How the names of a family's classes begin: that of transformers first."""
_OF_DECODERS: Mapping[str, What] = {
    "ForCausalLM": "words",
    "Model": "none",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "answers",
}
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
"""Families that differ in their words alone. Their first two positions are not used."""
_OF_ROBERTAS: Mapping[str, What] = {
    "ForMaskedLM": "words",
    "ForCausalLM": "words",
    "Model": "none",
    "ForMultipleChoice": "choice",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "answers",
}
_OF_T5: Mapping[str, What] = {
    "ForConditionalGeneration": "words",
    "WithLMHeadModel": "words",
    "Model": "none",
    "EncoderModel": "encoder",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tokens",
    "ForQuestionAnswering": "answers",
}
_OF_FAMILIES: Mapping[str, Mapping[str, What]] = {
    "gpt2": {"LMHeadModel": "words", **_OF_DECODERS, "DoubleHeadsModel": "two heads"},
    "qwen": {"LMHeadModel": "words"},
    # The class in the file is the body, of which AutoModelForCausalLM makes the other one.
    "chatglm": {
        "ForConditionalGeneration": "words",
        "Model": "words",
        "ForCausalLM": "words",
        "ForSequenceClassification": "sequence",
    },
    "FluxTransformer2DModel": {"Model": "patches"},
    "SD3Transformer2DModel": {"Model": "patches"},
    "DiTTransformer2DModel": {"Model": "patches"},
    "transfo-xl": {"LMHeadModel": "words", "Model": "none", "ForSequenceClassification": "sequence"},
    "bert": {
        "ForPreTraining": "pretraining",
        "ForMaskedLM": "words",
        "LMHeadModel": "words",
        "Model": "none",
        "ForNextSentencePrediction": "relation",
        "ForMultipleChoice": "choice",
        "ForSequenceClassification": "sequence",
        "ForTokenClassification": "tokens",
        "ForQuestionAnswering": "answers",
    },
    **dict.fromkeys(ROBERTAS, _OF_ROBERTAS),
    "t5": _OF_T5,
    "mt5": _OF_T5,
    "bart": {
        "ForConditionalGeneration": "words",
        "Model": "none",
        "ForCausalLM": "decoder",
        "ForSequenceClassification": "sequence",
        "ForQuestionAnswering": "answers",
    },
    "whisper": {"ForConditionalGeneration": "words", "Model": "none"},
    "vit": {"ForImageClassification": "sequence", "Model": "none", "ForMaskedImageModeling": "patches"},
}
"""The classes of families by what follows the family's name, that of a file without `architectures` first."""
OF_COMPOSITES: Mapping[str, What] = {
    "ForConditionalGeneration": "words",
    "ChatModel": "words",
    **_OF_DECODERS,
}
"""The classes of models with a text part by how their names end."""


@dataclass(frozen=True)
class Head:
    """The head of a model."""

    architecture: str
    """Its class."""
    what: What
    is_assumed: bool
    """Whether the configuration does not say."""


def ends_of(kind: str) -> Mapping[str, What]:
    """Return the heads of a family by how the names of their classes end."""
    return _OF_FAMILIES.get(kind, _OF_DECODERS)


def head_of(config: Config) -> Head:
    """Return the head of a configuration of a known family. Raises InvalidArgumentError if its class is unknown."""
    known = {f"{base}{end}": what for base in BASES[config.kind] for end, what in ends_of(config.kind).items()}
    architectures = config.get("architectures") or config.fields.get("_class_name")
    if architectures is None or architectures == []:
        name, what = next(iter(known.items()))
        return Head(name, what, is_assumed=True)
    names = architectures if isinstance(architectures, list) else [architectures]
    for name in names:
        if not isinstance(name, str) or name not in known:
            of = f" of {config.kind}" if isinstance(name, str) else ""
            shown = [one for one in known if one.startswith(BASES[config.kind][0])]
            raise config.wrong(
                "architectures",
                f"{as_json(name)} is not a known class{of}, so its head is unknown",
                remedy=f"the one with the same head: {listed(shown, 'or')}",
            )
    if len({known[name] for name in names}) > 1:
        raise config.wrong(
            "architectures", f"{as_json(names)} have different heads", remedy="only the one that is trained"
        )
    return Head(names[0], known[names[0]], is_assumed=False)


def architecture_of(kind: str, end: str) -> str:
    """Return the class of a family whose name ends so."""
    return f"{BASES[kind][0]}{'LMHeadModel' if kind == 'gpt2' and end == 'ForCausalLM' else end}"


def labeling(
    name: str, rows: int, hidden: int, labels: int, *, bias: bool = True, more: tuple[Tensor, ...] = ()
) -> Layer:
    """Return a layer that gives so many rows a score for each label; `more`: other tensors of it, each a matrix."""
    shapes = [tensor.shape for tensor in more if len(tensor.shape) == 2]
    return Layer(
        name,
        (*more, *linear(name, hidden, labels, bias=bias)),
        rows,
        hidden,
        (*(Matmul(rows, inner, outer) for outer, inner in shapes), Matmul(rows, hidden, labels)),
        logits=float(rows) * labels,
        kept=Activations(products=rows * hidden * (1 + len(shapes)), wide=float(rows) * labels),
    )


def _decoder_head(config: Config, tokens: int, hidden: int, vocabulary: int, tied: Tensor | None) -> Iterator[Layer]:
    """Yield the head of a decoder behind its last norm."""
    what = head_of(config).what
    if what in ("words", "two heads"):
        # Qwen's own code does not convert logits (`QWenLMHeadModel.forward`).
        yield from head_layers(tokens, hidden, vocabulary, 0, tied, upcast=config.kind != "qwen")
    if what == "two heads":
        yield labeling("model.choices", 1, hidden, 1)
    if what == "sequence":
        # Every token gets scores, and those of the last one count.
        yield labeling("model.head", tokens, hidden, config.labels(), bias=False)
    if what == "tokens":
        yield labeling("model.head", tokens, hidden, config.labels())
    if what == "answers":
        yield labeling("model.head", tokens, hidden, 2)


def decoder_layers(
    config: Config, blocks: Sequence[Block], *, positions: int = 0, tied: bool, norm: int, dropout: bool = False
) -> list[Layer]:
    """Return the layers of a decoder whose blocks have the same width. Raises InvalidArgumentError."""
    block = blocks[0]
    return model_layers(
        config,
        stack(blocks),
        block.tokens,
        block.hidden,
        tied=tied,
        norm=norm,
        rms=block.rms,
        positions=positions,
        dropout=dropout,
    )


def model_layers(
    config: Config,
    layers: Sequence[Layer],
    tokens: int,
    hidden: int,
    *,
    tied: bool,
    norm: int,
    rms: bool,
    positions: int = 0,
    dropout: bool = False,
) -> list[Layer]:
    """Return the layers of a decoder with its embeddings, last norm and head. Raises InvalidArgumentError."""
    vocabulary = config.whole("vocab_size")
    words = Tensor("model.embed.tokens.weight", (vocabulary, hidden))
    places = (Tensor("model.embed.positions.weight", (positions, hidden)),) if positions else ()
    return [
        embedding_layer("model.embed", tokens, hidden, (words, *places), dropout=dropout),
        *layers,
        final_norm("model.norm", tokens, hidden, norm, rms=rms),
        *_decoder_head(config, tokens, hidden, vocabulary, words if tied else None),
    ]
