"""Families with state-space models, gated delta rules and indexed attention: counts, operators, and bad files."""

import json

import paceline
import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config, built_in_configs
from paceline.catalog.models.families import model_of
from paceline.catalog.models.hybrids import FAMILIES
from paceline.catalog.models.modules import Setting, operators_of
from paceline.catalog.models.spec import find_workload

BASE = {
    **{"hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 64},
}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 12, "head_dim": 24},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 44}
MAMBA = {
    **{"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12},
}
NEMOTRON = {
    **{"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96},
    **{"vocab_size": 100, "head_dim": 24, "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2},
    **{"ssm_state_size": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40},
    **{"moe_shared_expert_intermediate_size": 44, "mlp_hidden_act": "relu2"},
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
}
SMALL = {
    "mamba2": [
        {"hidden_size": 64, "num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 12}
        | {"num_hidden_layers": 3, "vocab_size": 100},
    ],
    "qwen3_5_text": [BASE | LINEAR],
    "qwen3_5_moe_text": [BASE | LINEAR | SHARED],
    "qwen3_next": [BASE | LINEAR | SHARED | {"mlp_only_layers": [1]}],
    "falcon_h1": [BASE | MAMBA, BASE | MAMBA | {"mamba_rms_norm": True}],
    "nemotron_h": [NEMOTRON, NEMOTRON | {"moe_latent_size": 20}],
    "lfm2": [
        BASE | {"layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"], "block_multiple_of": 16},
        BASE | {"full_attn_idxs": [1, 4], "block_ffn_dim_multiplier": 1.4, "block_multiple_of": 8, "conv_bias": True},
        BASE | {"block_auto_adjust_ff_dim": False, "tie_word_embeddings": False},
    ],
}
CASES = [(kind, fields) for kind, every in SMALL.items() for fields in every]


def model(kind, fields, tokens=64):
    return model_of(Config(kind, "here", {"model_type": kind, **fields}), tokens)


@pytest.mark.parametrize(("kind", "fields"), CASES)
def test_parameters_are_those_of_transformers(kind, fields):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    config = transformers.CONFIG_MAPPING[kind](**fields)
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    sizes = sorted(parameter.numel() for parameter in theirs.parameters())
    assert sorted(tensor.size for tensor in model(kind, fields).tensors()) == sizes
    saved = json.loads(config.to_json_string(use_diff=False)) | {"architectures": None}
    assert sorted(tensor.size for tensor in model(kind, saved).tensors()) == sizes


def test_every_family_has_a_case():
    assert set(SMALL) == set(FAMILIES)


def _mamba(hidden, heads, size, groups, state, *, norm=True):
    inner = heads * size
    mixed = inner + 2 * groups * state
    return hidden * (inner + mixed + heads) + mixed * (4 + 1) + 3 * heads + norm * inner + inner * hidden


def test_counts_in_closed_form():
    assert model("mamba2", SMALL["mamba2"][0]).parameters == 2 * 100 * 64 + 64 + 3 * (_mamba(64, 8, 16, 2, 12) + 64)
    attention = 64 * (4 + 2 + 2) * 16 + 64 * 64
    block = _mamba(64, 8, 16, 2, 12, norm=False) + attention + 3 * 64 * 96 + 2 * 64
    assert model("falcon_h1", BASE | MAMBA).parameters == 2 * 100 * 64 + 64 + 5 * block
    keys, values = 16, 72
    delta = 64 * (2 * keys + 2 * values + 12) + 4 * (2 * keys + values) + 12 + 12 + values * 64
    gated = 64 * (2 * 4 + 2 + 2) * 24 + 2 * 24 + 4 * 24 * 64
    assert model("qwen3_5_text", BASE | LINEAR).parameters == 2 * 100 * 64 + 64 + 4 * delta + gated + 5 * (
        3 * 64 * 96 + 2 * 64
    )


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        # Model cards: 80 B with 3 B active; 31.6 B with 3.2 B active, without embeddings; 2.7 B.
        ("qwen3-next-80b-a3b", 79.7e9, 3.9e9),
        ("nemotron-3-nano-30b-a3b", 31.6e9, 3.6e9),
        ("mamba2-2.7b", 2.7e9, 2.7e9),
        ("kimi-k2", 1026e9, 33e9),
        ("glm-5", 744e9, 41e9),
        ("minimax-m2", 229e9, 11e9),
        ("llama-4-scout-text", 107.8e9, 17e9),
    ],
)
def test_published_sizes(name, total, active):
    config = built_in_configs()[name]
    result = model_of(config, 4096)
    assert result.parameters == config.parameters == pytest.approx(total, rel=0.01)
    assert result.active_parameters == pytest.approx(active, rel=0.1)


@pytest.mark.parametrize("name", ["mamba2-2.7b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "deepseek-v3.2"])
@pytest.mark.parametrize("kernels", ["eager", "fused", "compiled"])
def test_more_tokens_and_samples_take_longer_and_keep_more(name, kernels):
    def measures(seq, batch):
        workload = find_workload(name, gpu="h100", seq=seq, batch=batch, kernels=kernels)
        return workload.forward_s, workload.backward_s, workload.memory().activations

    one = measures(2048, 1)
    for other in (measures(8192, 1), measures(2048, 4)):
        # Many experts wait for the host, which launches as many kernels for any number of tokens.
        assert all(b > 0.99 * a for a, b in zip(one, other, strict=True))
        assert sum(other[:2]) > sum(one[:2])
        assert other[2] > one[2]


@pytest.mark.parametrize("name", ["mamba2-2.7b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b"])
def test_products_after_a_scan_are_in_16_bits(name):
    layers = model_of(built_in_configs()[name], 2048).layers
    setting = Setting("hopper", 1, "bfloat16", kernels="fused")
    scans = 0
    for layer in layers:
        listed = operators_of(layer, setting)
        scans += any("chunk_scan" in it.name for it in listed.forward)
        products = [it for it in (*listed.forward, *listed.backward) if it.name in ("mm", "bmm") and layer.kind]
        assert all(tensor.dtype != "float32" for it in products for tensor in it.inputs), layer.name
    assert scans


def test_scans_are_linear_in_tokens_and_attention_is_not():
    def mixing(name, tokens):
        return sum(layer.mixing_flops for layer in model_of(built_in_configs()[name], tokens).layers)

    assert mixing("mamba2-2.7b", 16384) == 4 * mixing("mamba2-2.7b", 4096)
    assert mixing("llama-3-8b", 16384) == 16 * mixing("llama-3-8b", 4096)
    assert 4 < mixing("qwen3-next-80b-a3b", 16384) / mixing("qwen3-next-80b-a3b", 4096) < 16


def test_a_chunked_scan_has_the_products_of_its_paper():
    # T. Dao, A. Gu, 2024, section 6: C B^T, the masked product with x, states, and their outputs.
    tokens, heads, size, groups, state, chunk = 4096, 80, 64, 1, 128, 256
    mixer = next(layer for layer in model_of(built_in_configs()["mamba2-2.7b"], tokens).layers if layer.mixed_flops)
    expected = 2 * tokens * (groups * chunk * state + heads * chunk * size + 2 * heads * size * state)
    assert mixer.mixed_flops == expected


def test_indexed_attention_reads_the_chosen_keys():
    model_ = model_of(built_in_configs()["deepseek-v3.2"], 8192)
    assert {layer.attention.keys for layer in model_.layers if layer.attention} == {2048}
    indexer = next(layer for layer in model_.layers if layer.name.endswith("indexer"))
    assert sum(tensor.size for tensor in indexer.tensors) == 1536 * 64 * 128 + 7168 * (128 + 64) + 2 * 128
    # Scores of 64 heads, in the forward pass alone.
    assert 3 * indexer.mixed_flops == 2 * 64 * 8192 * 8192 * 128
    shared = [layer.name for layer in model("glm_moe_dsa", GLM).layers if layer.name.endswith("indexer")]
    assert shared == ["model.layers.0.attention.indexer", "model.layers.1.attention.indexer"]


GLM = {
    **BASE,
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "q_lora_rank": 24},
    **{"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12},
    **{"index_n_heads": 3, "index_head_dim": 10, "index_topk": 16, "num_key_value_heads": 4},
    **{"index_topk_freq": 4, "index_skip_topk_offset": 2},
}


def test_no_evidence_covers_them_and_no_gpus_share_their_layers():
    options = {"gpu": "h100", "workers": 8, "seq": 2048}
    result = paceline.simulate("mamba2-2.7b", **options)
    assert result.interval is None
    assert "models whose blocks have other layers than attention and MLPs" in result.evidence
    for setting in ("tensor_parallel", "context_parallel"):
        with pytest.raises(InvalidArgumentError, match=r"is not modeled for model\.layers\.0\.mixer of mamba2"):
            paceline.simulate("mamba2-2.7b", **options, **{setting: 2})


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("mamba2", {"num_heads": 7}, "num_heads: 7 heads of 16 are not expand times the hidden_size, 64"),
        ("falcon_h1", {"mamba_d_head": 8}, "mamba_d_head: 8 heads of 8 are not the mamba_d_ssm, 128"),
        ("nemotron_h", {"layers_block_type": None}, "hybrid_override_pattern: is missing"),
        (
            "nemotron_h",
            {"layers_block_type": None, "hybrid_override_pattern": "M-X"},
            "hybrid_override_pattern: 'X' is no kind of layer",
        ),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act: is not modeled: 'silu'"),
        ("nemotron_h", {"num_experts_per_tok": 5}, "num_experts_per_tok: 5 is more than the 4 experts"),
        ("qwen3_5_text", {"linear_num_key_heads": 4}, "linear_num_key_heads: 4 does not divide the 6 heads"),
        ("qwen3_5_text", {"layer_types": ["mamba"] * 5}, 'layer_types: "mamba" is not known'),
        ("qwen3_5_moe_text", {"num_experts": None}, "num_experts: is missing"),
    ],
)
def test_a_wrong_value_is_named(kind, changes, message):
    with pytest.raises(InvalidArgumentError, match=f"here: {message}"):
        model(kind, SMALL[kind][0] | changes)


def test_a_pattern_of_letters_is_a_list_of_layers():
    letters = NEMOTRON | {"layers_block_type": None, "hybrid_override_pattern": "ME*-M"}
    assert model("nemotron_h", letters).layers == model("nemotron_h", NEMOTRON).layers


@pytest.mark.parametrize(
    ("name", "modules", "count"),
    [
        ("mamba2-2.7b", "in_proj,out_proj", 64 * 16 * (2560 + 10576 + 5120 + 2560)),
        ("qwen3-next-80b-a3b", "in_proj_ba", 36 * 16 * (2048 + 64)),
        ("kimi-k2", "kv_a_proj_with_mqa", 61 * 16 * (7168 + 576)),
        ("qwen-7b", "c_attn", 32 * 16 * (4096 + 3 * 4096)),
    ],
)
def test_adapters_have_the_names_of_the_family(name, modules, count):
    result = find_workload(name, gpu="h100", seq=512, lora=f"16:{modules}")
    assert result.model.trained_parameters == count and result.backward_s > 0
