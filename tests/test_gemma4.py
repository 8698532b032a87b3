"""Gemma 4: counts, windows, shared keys and values, and bad files."""

import json

import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.spec import find_workload

SMALL = {
    **{"hidden_size": 64, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 64, "head_dim": 24},
    **{"global_head_dim": 40, "vocab_size_per_layer_input": 90, "hidden_size_per_layer_input": 12},
    "sliding_window": 16,
}
EXPERTS = {
    **{"hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2},
    **{"moe_intermediate_size": 40, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
}
SHARED = {"num_hidden_layers": 12, "num_kv_shared_layers": 4, "use_double_wide_mlp": True}
CASES = [(SMALL, 315_428), (SMALL | EXPERTS, 494_572), (SMALL | SHARED, 563_452)]


def model(fields, tokens=64):
    return model_of(Config("mine", "here", {"model_type": "gemma4_text", **fields}), tokens)


@pytest.mark.parametrize(("fields", "count"), CASES)
def test_parameters_are_those_of_transformers(fields, count):
    assert model(fields).parameters == count
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if "gemma4_text" not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no gemma4_text")
    config = transformers.CONFIG_MAPPING["gemma4_text"](**fields, pad_token_id=0)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    saved = json.loads(config.to_json_string(use_diff=False)) | {"architectures": None}
    sizes = sorted(parameter.numel() for parameter in theirs.parameters())
    assert sorted(tensor.size for tensor in model(saved).tensors()) == sizes


def test_every_sixth_block_and_the_last_attend_to_everything():
    keys = [layer.attention.keys for layer in model(SMALL).layers if layer.attention is not None]
    assert keys == [16] * 5 + [64] * 2
    # Shared blocks have no products of keys and values.
    names = {tensor.name for tensor in model(SMALL | SHARED).tensors()}
    assert "model.layers.7.attention.k.weight" in names and "model.layers.8.attention.k.weight" not in names


def test_a_composite_is_its_language_model_and_longer_samples_take_longer(tmp_path):
    file = tmp_path / "config.json"
    wide = {**SMALL, "hidden_size": 2304, "intermediate_size": 9216, "head_dim": 256, "model_type": "gemma4_text"}
    file.write_text(json.dumps({"model_type": "gemma4", "text_config": wide}), encoding="utf-8")
    one, more = (find_workload(file, gpu="h100", seq=seq) for seq in (2048, 8192))
    assert "only its language model (gemma4_text) is forecast" in str(one.model.notes)
    assert one.forward_s < more.forward_s and one.memory().activations < more.memory().activations


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers: 7 leaves none of the 7 blocks keys of its own"),
        ({"layer_types": ["chunked_attention"] * 7}, 'layer_types: "chunked_attention" is not known'),
        ({"per_layer_config": {"0": {"heads": 1}}}, "per_layer_config: .* is not known"),
        (EXPERTS | {"top_k_experts": 5}, "top_k_experts: 5 is more than the 4 experts"),
    ],
)
def test_a_wrong_value_is_named(changes, message):
    with pytest.raises(InvalidArgumentError, match=f"here: {message}"):
        model(SMALL | changes)
