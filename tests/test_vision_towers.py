"""Towers in front of language models: counts, tokens of images, and frozen ones."""

import json

import cli
import paceline
import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.spec import find_workload
from paceline.catalog.models.vision import TOWERS

TEXT = {
    **{"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 128},
}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 12, "head_dim": 24},
}
EXPERTS = {
    **{"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40},
    **{"shared_expert_intermediate_size": 44},
}
VISION = {
    **{"depth": 3, "hidden_size": 48, "num_heads": 4, "intermediate_size": 80, "out_hidden_size": 64},
    **{"deepstack_visual_indexes": [0, 2], "num_position_embeddings": 36},
}
OWN = {
    "qwen3_vl": (TEXT, VISION),
    "qwen3_vl_moe": (TEXT | EXPERTS, VISION),
    "qwen3_5": (TEXT | LINEAR, VISION),
    "qwen3_5_moe": (TEXT | LINEAR | EXPERTS, VISION),
    "qwen2_5_vl": (TEXT, {**VISION, "fullatt_block_indexes": [1]}),
}
QWEN3_VL_2B = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "tie_word_embeddings": True,
    "text_config": {
        **{"model_type": "qwen3_vl_text", "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16},
        **{"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936},
        **{"max_position_embeddings": 262144, "tie_word_embeddings": True},
    },
    "vision_config": {
        **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048},
        **{"deepstack_visual_indexes": [5, 11, 17], "num_position_embeddings": 2304, "patch_size": 16},
    },
}


def model(fields, tokens=64):
    return model_of(Config("mine", "here", fields), tokens)


@pytest.mark.parametrize("kind", TOWERS)
def test_parameters_are_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    text, vision = OWN[kind]
    config = transformers.CONFIG_MAPPING[kind](text_config=text, vision_config=vision)
    with torch.device("meta"):
        theirs = transformers.AutoModelForImageTextToText.from_config(config)
    sizes = sorted(parameter.numel() for parameter in theirs.parameters())
    saved = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(theirs).__name__]}
    assert sorted(tensor.size for tensor in model(saved).tensors()) == sizes


def test_a_published_count():
    # Qwen/Qwen3-VL-2B-Instruct: 2,127,532,032 parameters.
    result = model(QWEN3_VL_2B, 4096)
    assert result.parameters == 2_127_532_032
    assert "1,024 of a sample's 4,096 tokens are of images" in str(result.notes)


@pytest.mark.parametrize(("tokens", "of_image"), [(64, 32), (1024, 512), (2048, 1024), (16384, 1024)])
def test_an_image_has_four_patches_for_each_token(tokens, of_image):
    layers = {layer.name: layer for layer in model(QWEN3_VL_2B, tokens).layers}
    assert layers["vision.layers.0.attention"].tokens == 4 * of_image
    assert layers["vision.merger"].tokens == of_image
    assert layers["model.layers.0.attention"].tokens == tokens


def test_a_frozen_tower_takes_less_time_and_memory(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_VL_2B), encoding="utf-8")
    whole, frozen = (find_workload(file, gpu="a100", seq=4096, **more) for more in ({}, {"freeze": ["vision.*"]}))
    assert frozen.backward_s < whole.backward_s and frozen.memory().total < whole.memory().total
    assert frozen.model.trained_parameters == 1_720_574_976 < whole.model.trained_parameters


def test_patterns_of_frozen_layers_hold_together(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_VL_2B), encoding="utf-8")
    words = ("simulate", file, "--gpu", "a100", "--gpus", 2, "--seq", 2048, "--json")
    whole, tower, more = (
        json.loads(cli.call(*words, *freeze).stdout)
        for freeze in ((), ("--freeze", "vision.*"), ("--freeze", "vision.*,model.embed"))
    )
    assert len(whole) == len(tower) == len(more)
    assert whole[0]["iteration_s"] > tower[0]["iteration_s"] > more[0]["iteration_s"]


def test_no_evidence_covers_models_of_images_and_text(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN3_VL_2B), encoding="utf-8")
    result = paceline.simulate(str(file), gpu="a100", workers=8, seq=2048)
    assert result.interval is None and "models of images and text" in result.evidence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 7}, "vision_config.num_heads: 7 does not divide hidden_size, 1024"),
        ({"depth": 0}, "vision_config.depth: must be a whole number"),
        ({"deepstack_visual_indexes": [24]}, "must be whole numbers, 0-23"),
    ],
)
def test_a_wrong_value_is_named(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        model({**QWEN3_VL_2B, "vision_config": QWEN3_VL_2B["vision_config"] | changes})
