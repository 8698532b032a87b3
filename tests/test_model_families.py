"""Decoders of Llama's kind against Hugging Face's transformers: parameters and tensors of small models of each."""

import json

import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config, built_in_configs, find_config
from paceline.catalog.models.decoders import FAMILIES
from paceline.catalog.models.families import default_context, model_of
from paceline.catalog.models.memory import Computation, activation_bytes
from paceline.catalog.models.spec import find_workload

SMALL = {
    **{"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 32},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "first_k_dense_replace": 2},
    **{"q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12},
    **{"num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
}
INDEXER = {"index_n_heads": 3, "index_head_dim": 10, "index_topk": 16}
OWN = {
    "mixtral": {"num_local_experts": 4},
    "qwen2_moe": {
        **{**EXPERTS, "shared_expert_intermediate_size": 48, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    },
    "qwen3_moe": EXPERTS,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 24},
    "deepseek_v2": LATENT | {"q_lora_rank": None},
    "deepseek_v3": LATENT,
    "kimi_k2": LATENT,
    "deepseek_v32": LATENT | INDEXER,
    "glm_moe_dsa": {**LATENT, **INDEXER, "index_topk_freq": 4, "index_skip_topk_offset": 2},
    "glm4_moe_lite": LATENT | {"first_k_dense_replace": 1},
    "minimax_m2": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 24},
    "llama4_text": {
        **{"intermediate_size_mlp": 80, "num_local_experts": 4, "head_dim": 24, "interleave_moe_layer_step": 2},
    },
    "glm4_moe": {**EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1, "use_qk_norm": True, "head_dim": 24},
    "gemma2": {"head_dim": 24},
    "ministral": {"head_dim": 24},
    "ministral3": {"head_dim": 24},
    "hunyuan_v1_dense": {"head_dim": 24},
    "glm": {"head_dim": 24},
    "helium": {"head_dim": 16},
    "smollm3": {"tie_word_embeddings": False},
    "llama": {"attention_bias": True, "mlp_bias": True},
}


def model(kind, sequence=None, **fields):
    return model_of(Config(kind, "here", {"model_type": kind, **SMALL, **OWN.get(kind, {}), **fields}), sequence)


@pytest.mark.parametrize("kind", sorted(set(FAMILIES) - {"internlm", "qwen"}))
def test_parameters_are_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    no_ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **OWN.get(kind, {}), **no_ids})
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(config)
    sizes = sorted(parameter.numel() for parameter in theirs.parameters())
    mine = model(kind)
    saved = model_of(Config(kind, "here", json.loads(config.to_json_string(use_diff=False))))
    assert mine.parameters == saved.parameters == sum(sizes)
    # Before its fifth release, each expert had tensors of its own.
    if int(transformers.__version__.partition(".")[0]) >= 5 or not mine.has_experts:
        assert sorted(tensor.size for tensor in mine.tensors()) == sizes


@pytest.mark.parametrize("kind", sorted(set(FAMILIES) - {"internlm", "qwen"}))
def test_contexts_that_are_left_out_are_those_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    if kind not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    assert default_context(kind) == transformers.AutoConfig.for_model(kind).max_position_embeddings


def windows(kind, **fields):
    result = model(kind, 1024, **{"sliding_window": 256, **fields})
    return [layer.attention.keys for layer in result.layers if layer.attention is not None]


def test_some_layers_attend_to_a_window():
    assert windows("mistral") == [256] * 6
    assert windows("gemma2") == windows("gpt_oss") == [256, 1024] * 3
    assert windows("gemma3_text") == [256] * 5 + [1024]
    assert windows("olmo3") == [256, 256, 256, 1024, 256, 256]
    assert windows("qwen3") == [1024] * 6 and windows("qwen3", use_sliding_window=True) == [256] * 6
    kinds = ["full_attention", "sliding_attention"] * 3
    assert windows("gemma2", layer_types=kinds) == [1024, 256] * 3
    assert windows("gemma3_text", sliding_window_pattern=2) == [256, 1024] * 3
    for wrong, message in (
        (kinds[1:], "layer_types: .* is not a list of 6, one for each layer"),
        (["linear_attention"] * 6, 'layer_types: "linear_attention" is not known'),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            windows("gemma2", layer_types=wrong)


def test_experts_compute_what_is_routed_and_read_all_weights():
    dense, sparse = model("qwen3", 32), model("qwen3_moe", 32)
    [mlp, *_] = [layer for layer in sparse.layers if layer.name.endswith(".mlp")]
    up, down = mlp.matmuls
    assert (up.rows, up.inner, up.outer, up.matrices) == (64, 64, 2 * 32, 4)
    assert (down.rows, down.inner, down.outer, down.matrices) == (64, 32, 64, 4)
    experts = 6 * 4 * 3 * 32 * 64
    assert sparse.parameters - sparse.active_parameters == experts // 2
    assert not dense.has_experts and sparse.has_experts
    few = find_workload("qwen3-30b-a3b@h100:seq=16")
    more = find_workload("qwen3-30b-a3b@h100:seq=512")
    # 8 of 128 experts: 16 tokens read all of their weights, as 512 tokens do.
    assert few.forward_s > 0.5 * more.forward_s


def test_mixtures_say_which_layers_are_dense():
    def routers(**fields):
        names = [tensor.name for tensor in model("qwen2_moe", **fields).tensors() if "router" in tensor.name]
        return [int(name.split(".")[2]) for name in names]

    assert routers(decoder_sparse_step=1, mlp_only_layers=[]) == list(range(6))
    assert routers(decoder_sparse_step=2, mlp_only_layers=[]) == [1, 3, 5]
    assert routers(decoder_sparse_step=1, mlp_only_layers=[5, 0]) == [1, 2, 3, 4]
    for wrong in ([6], [True], "all", {}, 0):
        with pytest.raises(InvalidArgumentError, match=r"mlp_only_layers: must be whole numbers, 0-5"):
            routers(mlp_only_layers=wrong)
    with pytest.raises(InvalidArgumentError, match="num_experts_per_tok: 9 is more than the 4 experts"):
        model("qwen3_moe", num_experts_per_tok=9)


def test_latent_attention_has_heads_of_two_widths():
    config = find_config("deepseek-v3")
    attention = next(layer for layer in model_of(config, 4096).layers if layer.attention is not None)
    # Scores of 192 dimensions, values of 128, 128 heads.
    assert attention.attention.flops == 2 * 128 * 4096 * 4096 * (192 + 128)
    assert sum(one.flops for one in attention.matmuls) == 2 * 4096 * (
        7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    )
    assert model_of(config).active_parameters == pytest.approx(37e9, rel=0.02)  # DeepSeek-V3, 2024, section 4.2


def test_norms_behind_attention_keep_what_they_normalize():
    plain, after = model("qwen3", 32, head_dim=16), model("gemma3_text", 32, head_dim=16)
    kept = [
        sum(activation_bytes(layer, Computation()) for layer in it.layers if layer.block == "model.layers.0")
        for it in (plain, after)
    ]
    assert kept[1] - kept[0] == 2 * 2 * 32 * 64


def test_a_mixture_of_experts_is_less_sure_than_a_dense_model():
    import paceline

    options = {"gpu": "h100", "workers": 16, "sharding": "zero3", "seq": 1024}
    wide, narrow = (paceline.simulate(name, **options).interval for name in ("olmoe-1b-7b", "olmo-2-7b"))
    assert wide.high_s / wide.low_s > narrow.high_s / narrow.low_s


def _one_of_each_kind():
    kinds = {}
    for config in built_in_configs().values():
        kinds.setdefault(config.kind, config)
    return list(kinds.values())


SLOW_KINDS = {"glm_moe_dsa", "deepseek_v3", "deepseek_v32", "deepseek_v4", "kimi_k2", "minimax_m2", "qwen3_5_moe"}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=config.kind, marks=pytest.mark.slow if place % 3 or config.kind in SLOW_KINDS else ())
        for place, config in enumerate(_one_of_each_kind())
    ],
)
def test_an_error_about_a_changed_configuration_names_its_file_and_a_field_of_it(config, tmp_path):
    path = tmp_path / "changed.json"
    refused = 0
    for field, own in config.fields.items():
        for value in (2**31 - 1, "x"):
            if type(own) is not int:
                continue
            path.write_text(json.dumps({**config.fields, field: value}))
            try:
                find_workload(path, gpu="h100").trace()
            except InvalidArgumentError as error:
                refused += 1
                where, named, _ = str(error).split(": ", 2)
                assert where == str(path)
                assert named in config.fields, str(error)
                assert "workers[" not in str(error) and "_bytes" not in str(error)
    assert refused > 3


_CHATGLM3 = {
    **{"model_type": "chatglm", "architectures": ["ChatGLMModel"], "num_layers": 28, "hidden_size": 4096},
    **{"num_attention_heads": 32, "kv_channels": 128, "ffn_hidden_size": 13_696, "multi_query_attention": True},
    **{"multi_query_group_num": 2, "padded_vocab_size": 65_024, "seq_length": 8192, "rmsnorm": True},
    **{"add_bias_linear": False, "add_qkv_bias": True, "original_rope": True, "post_layer_norm": True},
    **{"apply_query_key_layer_scaling": True, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True},
}
_SANTACODER = {
    **{"model_type": "gpt_bigcode", "n_embd": 2048, "n_head": 16, "n_layer": 24, "n_inner": 8192},
    **{"n_positions": 2048, "vocab_size": 49_280, "multi_query": True, "attention_softmax_in_fp32": True},
}

_LFM2 = {
    **{"model_type": "lfm2", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16},
    **{"num_key_value_heads": 8, "block_ff_dim": 6656, "vocab_size": 65_536, "conv_L_cache": 3, "theta": 1e6},
    **{"full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_dim": 1024, "block_dim": 1024, "block_use_swiglu": True},
}


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        # As published: LFM2-350M and LFM2-1.2B, chatglm3-6b and glm-4-9b, santacoder and starcoder.
        (_LFM2, 354_483_968),
        (_LFM2 | {"hidden_size": 2048, "num_attention_heads": 32, "block_ff_dim": 12_288}, 1_170_340_608),
        (_CHATGLM3, 6_243_584_000),
        (_CHATGLM3 | {"num_layers": 40, "padded_vocab_size": 151_552, "seq_length": 131_072}, 9_399_951_360),
        (_SANTACODER, 1_124_886_528),
        (
            _SANTACODER
            | {"n_embd": 6144, "n_head": 48, "n_layer": 40, "n_inner": 24_576, "vocab_size": 49_152}
            | {"n_positions": 8192},
            15_517_456_384,
        ),
    ],
)
def test_families_of_other_names_have_the_published_parameters(fields, parameters):
    made = model_of(Config("mine", "here", fields), 256)
    assert made.parameters == parameters
    assert not [note for note in made.notes if note.startswith("Not modeled")]


@pytest.mark.parametrize(
    ("fields", "lora", "trained"),
    [
        # query_key_value and dense_4h_to_h of 28 blocks; c_attn of 24 blocks, whose heads share keys and values.
        (_CHATGLM3, "8:query_key_value,dense_4h_to_h", 28 * 8 * (4096 + 4608 + 13_696 + 4096)),
        (_LFM2, "8:in_proj", 10 * 8 * (1024 + 3 * 1024)),
        (_LFM2, "8:q_proj,out_proj", 8 * (16 + 6) * (1024 + 1024)),
        (_SANTACODER, "8:c_attn", 24 * 8 * (2048 + 2048 + 2 * 128)),
    ],
)
def test_adapters_of_other_families_bear_their_names(fields, lora, trained):
    assert find_workload(Config("mine", "here", fields), gpu="a100", lora=lora).model.trained_parameters == trained
