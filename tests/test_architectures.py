"""The head that `architectures` of a config.json names, and the language models of configurations of several parts.

Against fixed values, and against Hugging Face's transformers where it is installed.
"""

import functools
import importlib
import json
import os
import random

import cli
import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models import composites, heads
from paceline.catalog.models.config import Config, built_in_configs
from paceline.catalog.models.families import MODEL_TYPES, model_of
from paceline.catalog.models.spec import workload_of

LLAMA_3_8B = built_in_configs()["llama-3-8b"].fields
MISTRAL_7B = built_in_configs()["mistral-7b"].fields
BERT = built_in_configs()["bert-base"].fields
BART = built_in_configs()["bart-large"].fields
ROBERTA = built_in_configs()["roberta-base"].fields
T5_XXL = {
    **{"model_type": "t5", "d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_layers": 24, "num_decoder_layers": 24},
    **{"num_heads": 64, "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
VIT = {
    **{"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    **{"intermediate_size": 3072, "image_size": 224, "patch_size": 16},
}
SEEDS = int(os.environ.get("PACELINE_TEST_SEEDS", "1"))
LABELS = {"id2label": {"0": "A", "1": "B", "2": "C"}}


def model(fields, *architectures, **others):
    return model_of(Config("mine", "here", {**fields, "architectures": list(architectures), **others}))


@pytest.mark.parametrize(
    ("fields", "architecture", "count"),
    [
        (T5_XXL, "T5EncoderModel", 4_762_310_656),
        (T5_XXL, "T5ForConditionalGeneration", 11_135_332_352),
        (LLAMA_3_8B | {"num_labels": 1}, "LlamaForSequenceClassification", 7_504_928_768),
        (LLAMA_3_8B, "LlamaModel", 7_504_924_672),
        (LLAMA_3_8B, "LlamaForCausalLM", 8_030_261_248),
        (MISTRAL_7B, "MistralForTokenClassification", 7_110_668_290),
        (BART, "BartForSequenceClassification", 407_344_131),
        (BART, "BartModel", 406_291_456),
        (VIT, "ViTModel", 86_389_248),
        (VIT, "ViTForImageClassification", 85_798_656 + 2 * 769),
        (BERT, "BertModel", 109_482_240),
        (BERT | LABELS, "BertForSequenceClassification", 109_482_240 + 3 * 769),
        (BERT, "BertForQuestionAnswering", 108_893_186),
        (ROBERTA | LABELS, "RobertaForSequenceClassification", 124_647_939),
    ],
)
def test_published_counts(fields, architecture, count):
    result = model(fields, architecture)
    assert (result.parameters, result.architecture) == (count, architecture)
    assert not any("architectures" in note for note in result.notes)


def test_labels_are_those_of_id2label_or_num_labels():
    body = model(LLAMA_3_8B, "LlamaModel").parameters
    for labels, count in (
        ({}, 2),
        (LABELS, 3),
        ({"num_labels": 7}, 7),
        (LABELS | {"num_labels": 7}, 3),
        (LABELS | {"problem_type": "multi_label_classification"}, 3),
        ({"id2label": {"0": "LABEL_0"}, "problem_type": "regression"}, 1),
    ):
        assert model(LLAMA_3_8B | labels, "LlamaForSequenceClassification").parameters == body + count * 4096
    for wrong, message in (
        ({"id2label": {}}, "id2label: has no labels"),
        ({"id2label": ["a"]}, "id2label: .* is not an object"),
        ({"num_labels": 0}, "num_labels: must be a whole number, 1-2147483648, not 0"),
        ({"num_labels": 2**40}, "num_labels: must be a whole number, 1-2147483648, not 1099511627776"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            model(LLAMA_3_8B | wrong, "LlamaForSequenceClassification")


def test_a_small_head_costs_little():
    words, labels, none = (
        workload_of(Config("mine", "here", LLAMA_3_8B | {"architectures": [name]}), "h100", 2048)
        for name in ("LlamaForCausalLM", "LlamaForSequenceClassification", "LlamaModel")
    )
    assert none.forward_s < labels.forward_s < words.forward_s < 1.2 * none.forward_s
    assert none.trace() and labels.trace()


@pytest.mark.parametrize(
    ("fields", "architectures", "message"),
    [
        (LLAMA_3_8B, "LlamaForCausalLMEagle3", '"LlamaForCausalLMEagle3" is not a known class of llama, so its head'),
        (LLAMA_3_8B, "MistralForCausalLM", "is not a known class of llama"),
        (BERT, "BertGenerationDecoder", "try: the one with the same head: BertForPreTraining, BertForMaskedLM"),
        (VIT, ["ViTForObjectDetection"], "try: the one with the same head: ViTForImageClassification"),
        (LLAMA_3_8B, [7], "7 is not a known class"),
        (LLAMA_3_8B, {"a": 1}, "is not a known class"),
        (LLAMA_3_8B, ["LlamaModel", "LlamaForCausalLM"], "have different heads"),
    ],
)
def test_what_is_unknown_is_refused(fields, architectures, message):
    with pytest.raises(InvalidArgumentError, match=rf"here: architectures: [\s\S]*{message}"):
        model_of(Config("mine", "here", {**fields, "architectures": architectures}))


@pytest.mark.parametrize("architectures", [None, []])
def test_a_file_without_architectures_says_what_is_assumed(tmp_path, architectures):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA_3_8B | {"architectures": architectures}), encoding="utf-8")
    for words in (["models", str(file)], ["simulate", str(file), "--gpu", "h100", "--gpus", "8", "--seq", "512"]):
        assert "Assumed LlamaForCausalLM:" in " ".join(cli.output(*words).split())
    assert model_of(Config("mine", "here", LLAMA_3_8B)).parameters == 8_030_261_248
    assert not model_of(built_in_configs()["llama-3-8b"]).notes


# --- against transformers ------------------------------------------------------------------------------------------


@functools.cache
def classes_of(kind):
    """Return transformers' configuration of a family and the classes that take it, by name."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    config = transformers.CONFIG_MAPPING[kind]
    module = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
    result = {
        name: one
        for name in module.__all__
        if isinstance(one := getattr(module, name), type)
        and issubclass(one, transformers.PreTrainedModel)
        and one.config_class in (None, config)
        and not name.lower().endswith("pretrainedmodel")
        and not name.startswith("Pretrained")
    }
    return config, result


def sizes_of(kind, architecture, fields):
    """Return transformers' parameters, largest first, and the configuration as it is saved."""
    import torch

    config_class, classes = classes_of(kind)
    config = config_class(**fields)
    with torch.device("meta"):
        theirs = classes[architecture](config)
    saved = json.loads(config.to_json_string(use_diff=False))
    return sorted(parameter.numel() for parameter in theirs.parameters()), saved


def random_fields(kind, seed):
    """Return a small configuration of a family."""
    draw = random.Random(f"{kind} {seed}")
    heads_, layers = draw.choice([2, 4]), draw.choice([2, 3])
    hidden, ffn, vocabulary = heads_ * draw.choice([8, 16]), draw.choice([48, 80]), draw.choice([100, 131])
    tied = draw.choice([True, False])
    others = {"num_labels": draw.choice([1, 2, 3, 5]), "tie_word_embeddings": tied}
    others |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    if kind == "gpt2":
        others |= {
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": heads_,
            "n_positions": 32,
            "n_inner": draw.choice([None, ffn]),
        }
    elif kind == "mpt":
        others |= {"d_model": hidden, "n_layers": layers, "n_heads": heads_, "max_seq_len": 32}
    elif kind == "t5":
        # transformers ties the output of this family whatever the file says.
        others |= {
            "d_model": hidden,
            "num_layers": layers,
            "num_decoder_layers": draw.choice([1, 2]),
            "num_heads": heads_,
        }
        others |= {"d_kv": draw.choice([8, 12]), "d_ff": ffn, "n_positions": 32, "tie_word_embeddings": True}
        others |= {"feed_forward_proj": draw.choice(["relu", "gated-gelu"])}
    elif kind == "bart":
        others |= {"d_model": hidden, "encoder_layers": layers, "decoder_layers": draw.choice([1, 2])}
        others |= {"encoder_attention_heads": heads_, "decoder_attention_heads": heads_, "max_position_embeddings": 32}
        others |= {"encoder_ffn_dim": ffn, "decoder_ffn_dim": 64}
    else:
        others |= {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads_}
        others |= {"intermediate_size": ffn, "max_position_embeddings": 34}
    if kind == "vit":
        others |= {"image_size": 32, "patch_size": 8, "num_channels": draw.choice([1, 3]), "encoder_stride": 8}
        others |= {"pooler_output_size": draw.choice([None, 24])}
        others = {name: value for name, value in others.items() if name != "max_position_embeddings"}
    else:
        others["vocab_size"] = vocabulary
    if kind == "opt":
        others |= {"ffn_dim": ffn, "word_embed_proj_dim": hidden}
    if kind == "falcon":
        others |= {"multi_query": draw.choice([True, False]), "bias": draw.choice([True, False])}
        others |= {"parallel_attn": draw.choice([True, False]), "ffn_hidden_size": draw.choice([ffn, 4 * hidden])}
    if kind in heads_of_decoders():
        others |= {"num_key_value_heads": draw.choice([1, heads_]), "attention_bias": draw.choice([True, False])}
        others |= {"head_dim": draw.choice([8, 16])}
        others |= {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        others |= {"n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
        others |= {
            "shared_expert_intermediate_size": 24,
            "mlp_only_layers": [],
            "use_qk_norm": draw.choice([True, False]),
        }
        if kind in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite"):
            others |= {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
            others |= {"v_head_dim": 12, "num_key_value_heads": heads_}
        if kind in ("phi3", "qwen2", "qwen2_moe", "olmo2", "olmo3", "olmoe", "granite", "mixtral"):
            del others["head_dim"]
        if kind in (
            "phi3",
            "qwen2",
            "qwen2_moe",
            "mistral",
            "ministral",
            "mixtral",
            "smollm3",
            "olmoe",
            "seed_oss",
            "gpt_oss",
            "exaone4",
        ):
            del others["attention_bias"]
    return others


def heads_of_decoders():
    alone = {"exaone4", "helium", "hunyuan_v1_dense", "lfm2", "ministral3"}
    return [kind for kind in MODEL_TYPES if kind in composites.known_defaults() or kind in alone]


@pytest.mark.parametrize(
    "kind", sorted(set(MODEL_TYPES) - {"mamba2", "nemotron_h", "falcon_h1", "whisper", "gemma4_text", "deepseek_v4"})
)
def test_every_head_has_the_parameters_of_transformers(kind):
    _, classes = classes_of(kind)
    own = {f"{base}{end}" for base in heads.BASES[kind] for end in heads.ends_of(kind)}
    assert set(classes) <= own, "a class whose head is unknown"
    for seed, architecture in ((seed, name) for name in classes for seed in range(SEEDS)):
        sizes, saved = sizes_of(kind, architecture, random_fields(kind, seed))
        mine = model_of(Config(kind, "here", saved | {"architectures": [architecture]}))
        assert mine.parameters == sum(sizes), (architecture, saved)
        assert mine.architecture == architecture


# --- configurations of several parts -------------------------------------------------------------------------------

TEXT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 100}


@pytest.mark.parametrize("field", ["text_config", "llm_config", "language_config"])
def test_the_language_model_of_several_parts_is_read(field):
    part = TEXT | {"model_type": "llama", "num_key_value_heads": 2}
    whole = {"model_type": "mine", "vision_config": {"hidden_size": 32}, field: part}
    alone = model(part, "LlamaForCausalLM").parameters
    for architecture, less in (("MineForConditionalGeneration", 0), ("MineModel", 6400), ("MineChatModel", 0)):
        result = model(whole, architecture)
        assert result.parameters == alone - less
        assert "only its language model (llama) is forecast" in str(result.notes)
        assert f"its {field}" in str(result.notes)
    labels = model(whole | LABELS, "MineForSequenceClassification").parameters
    assert labels == alone - 6400 + 3 * 64
    tied = whole | {"tie_word_embeddings": True}
    assert model(tied, "MineForConditionalGeneration").parameters == alone - 6400
    nested = {"model_type": "outer", "thinker_config": whole | {"architectures": ["MineForConditionalGeneration"]}}
    assert model(nested, "OuterModel").parameters == alone
    with pytest.raises(InvalidArgumentError, match=rf"here: {field}.hidden_size: must be a whole number, "):
        model({**whole, field: part | {"hidden_size": -1}}, "MineModel")
    with pytest.raises(InvalidArgumentError, match="'MineForAction' is not a class of a known head\n  try: those"):
        model(whole, "MineForAction")


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "bamba", "text_config": {"model_type": "bamba", **TEXT}},
        {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model", **TEXT}},
        {"model_type": "clip", "text_config": {"model_type": "clip_text_model"}},
        {"model_type": "bamba", **TEXT},
        {"model_type": "mine", "text_config": {}},
        {"model_type": "mine", "vision_config": {}},
        {"model_type": "gemma3"},
        {"model_type": "mine", "text_config": {"model_type": 3}},
        functools.reduce(
            lambda part, _: {"model_type": "mine", "text_config": part}, range(300), {"model_type": "llama"}
        ),
    ],
)
def test_no_advice_is_given_that_does_not_work(fields):
    with pytest.raises(InvalidArgumentError, match="model_type: ") as raised:
        model(fields, "MineForConditionalGeneration")
    assert raised.value.remedy.startswith("paceline record --gpu h100 ")


def test_what_files_leave_out_is_said():
    # As of llava-1.5-7b: transformers saves what differs from its defaults.
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}
    result = model({"model_type": "llava", "text_config": text}, "LlavaForConditionalGeneration")
    assert result.parameters == 6_738_939_904
    assert "Assumed text_config.hidden_size 4096, the default of transformers: here leaves it out" in result.notes
    # As of gemma-3-4b: its text part has no numbers of heads and no vocabulary.
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    result = model({"model_type": "gemma3", "text_config": text}, "Gemma3ForConditionalGeneration")
    assert result.parameters == 3_880_263_168


def test_a_text_part_in_a_file_of_its_own():
    fields = {**TEXT, "model_type": "qwen3_vl_text", "num_key_value_heads": 2, "tie_word_embeddings": True}
    whole = {"model_type": "qwen3_vl", "text_config": fields}
    assert model(fields).parameters == model(whole, "Qwen3VLForConditionalGeneration").parameters


def text_model_of(config):
    """Return transformers' language model of a text part, on no device."""
    import torch
    import transformers

    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    result = [
        one
        for name, one in vars(module).items()
        if isinstance(one, type)
        and issubclass(one, transformers.PreTrainedModel)
        and one.__module__ == module.__name__
        and name.endswith("Model")
        and not name.endswith("PreTrainedModel")
        and one.config_class is type(config)
    ]
    with torch.device("meta"):
        return result[0](config)


@pytest.mark.parametrize("kind", sorted(set(composites.known_composites()) - {"gemma4"}))
def test_text_parts_have_the_parameters_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    whole = transformers.CONFIG_MAPPING[kind]()
    if not hasattr(whole, "text_config"):
        pytest.skip(f"{kind} is of several whole models")
    text_kind = whole.text_config.model_type
    assert text_kind == composites.known_composites()[kind]
    family = composites.text_kinds().get(text_kind, text_kind)
    for seed in range(SEEDS):
        fields = random_fields(family, seed)
        if kind == "glm_image":
            fields = {name: value for name, value in fields.items() if value is not None} | {"pad_token_id": 0}
        text = type(whole.text_config)(**fields)
        saved = json.loads(whole.to_json_string(use_diff=False))
        saved["text_config"] = json.loads(text.to_json_string(use_diff=False))
        saved["architectures"] = ["MineModel"]
        mine = model_of(Config(kind, "here", saved))
        own = sum(layer.parameters for layer in mine.layers if not layer.name.startswith("vision."))
        assert own == sum(one.numel() for one in text_model_of(text).parameters()), (text_kind, fields)


@pytest.mark.parametrize("kind", sorted(composites.known_defaults()))
def test_what_files_leave_out_is_what_transformers_has(kind):
    transformers = pytest.importorskip("transformers")
    of = {text: whole for whole, text in composites.known_composites().items()}
    try:
        config = transformers.CONFIG_MAPPING[kind]() if kind in transformers.CONFIG_MAPPING else None
        config = config or transformers.CONFIG_MAPPING[of[kind]]().text_config
    except KeyError:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    for name, value in composites.known_defaults()[kind].items():
        assert getattr(config, name, None) == value, name


QWEN_7B = {
    **{"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28},
    **{"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
}
MISTRAL_24B = {
    **{"hidden_size": 5120, "intermediate_size": 32768, "num_attention_heads": 32, "num_hidden_layers": 40},
    **{"num_key_value_heads": 8, "vocab_size": 131072, "head_dim": 128, "model_type": "mistral"},
}


@pytest.mark.parametrize(
    ("fields", "architecture", "count"),
    [
        # The first files of Qwen2-VL have no text_config.
        ({"model_type": "qwen2_vl", "vision_config": {}, **QWEN_7B}, "Qwen2VLForConditionalGeneration", 7_615_616_512),
        (
            {
                "model_type": "qwen2_5_omni",
                "thinker_config": {
                    "model_type": "qwen2_5_omni_thinker",
                    "architectures": ["Qwen2OmniNaViTThinkerForConditionalGeneration"],
                    "text_config": {"model_type": "qwen2_5_omni_text", **QWEN_7B},
                },
            },
            "Qwen2_5OmniModel",
            7_615_616_512,
        ),
        ({"model_type": "mistral3", "text_config": MISTRAL_24B}, "Mistral3ForConditionalGeneration", 23_572_403_200),
    ],
)
def test_published_language_models(fields, architecture, count):
    assert model(fields, architecture).parameters == count


def test_a_window_of_null_is_none():
    for window, keys in ((None, 6000), (4096, 4096)):
        text = MISTRAL_24B | {"num_hidden_layers": 1, "sliding_window": window}
        whole = {"model_type": "mistral3", "text_config": text, "architectures": ["Mistral3Model"]}
        result = model_of(Config("mine", "here", whole), 6000)
        assert [layer.attention.keys for layer in result.layers if layer.attention is not None] == [keys]
