"""DeepSeek V4: counts, keys of each kind of attention, and bad files."""

import json

import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config, built_in_configs
from paceline.catalog.models.families import model_of
from paceline.catalog.models.spec import find_workload

SMALL = {
    **{"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "moe_intermediate_size": 40},
    **{"vocab_size": 100, "head_dim": 16, "q_lora_rank": 24, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"o_groups": 2, "o_lora_rank": 12, "index_n_heads": 3, "index_head_dim": 10, "index_topk": 8},
    **{"sliding_window": 16, "hc_mult": 3},
}
RATIOS = {"compress_ratios": [0, 4, 128, 4, 0]}


def model(fields, tokens=64):
    return model_of(Config("mine", "here", {"model_type": "deepseek_v4", **fields}), tokens)


@pytest.mark.parametrize(("fields", "count"), [(SMALL, 292_814), (SMALL | RATIOS, 288_280)])
def test_parameters_are_those_of_transformers(fields, count):
    assert model(fields).parameters == count
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if "deepseek_v4" not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no deepseek_v4")
    config = transformers.CONFIG_MAPPING["deepseek_v4"](**fields, num_nextn_predict_layers=0)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    saved = json.loads(config.to_json_string(use_diff=False)) | {"architectures": None}
    sizes = sorted(parameter.numel() for parameter in theirs.parameters())
    assert sorted(tensor.size for tensor in model(saved).tensors()) == sizes


def test_the_published_size():
    result = model_of(built_in_configs()["deepseek-v4-flash"], 4096)
    assert result.parameters == pytest.approx(284e9, rel=0.01)
    assert result.active_parameters == pytest.approx(13e9, rel=0.1)


def test_attention_reads_a_window_and_compressed_keys():
    keys = [layer.attention.keys for layer in model(SMALL | RATIOS, 256).layers if layer.attention is not None]
    # 256 / 4 keys, of which 8 are chosen; 256 / 128.
    assert keys == [16, 16 + 8, 16 + 2, 16 + 8, 16]
    assert sum(layer.name.endswith("indexer") for layer in model(SMALL | RATIOS).layers) == 2


def test_more_tokens_and_samples_take_longer_and_keep_more():
    def measures(seq, batch):
        workload = find_workload("deepseek-v4-flash", gpu="h100", seq=seq, batch=batch)
        return workload.forward_s, workload.backward_s, workload.memory().activations

    one = measures(2048, 1)
    for other in (measures(8192, 1), measures(2048, 4)):
        assert all(a < b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [4, 8, 0, 0, 0]}, "compress_ratios: must be 0, 4 or 128 for each of the 5 blocks"),
        ({"o_groups": 3}, "o_groups: 3 does not divide the width of all heads, 64"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok: 5 is more than the 4 experts"),
        ({"layer_types": ["full_attention"] * 5}, 'layer_types: "full_attention" is not known'),
    ],
)
def test_a_wrong_value_is_named(changes, message):
    with pytest.raises(InvalidArgumentError, match=f"here: {message}"):
        model(SMALL | changes)
