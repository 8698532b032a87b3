"""Files of ms-swift and Primus, flavors of torchtitan, nanotron's mixtures of experts, and values left to defaults."""

import json

import pytest
from paceline.errors import InvalidArgumentError
from paceline.interop import trainers

SWIFT = """NPROC=4
NPROC_PER_NODE=$NPROC \\
swift sft \\
  --model Qwen/Qwen2.5-7B-Instruct --tuner_type lora --lora_rank 16 --target_modules all-linear \\
  --torch_dtype bfloat16 --per_device_train_batch_size 1 --gradient_accumulation_steps $(expr 16 / $NPROC) \\
  --max_length 2048 --deepspeed zero3_offload --model_name swift-robot --dataset 'swift/self-cognition#1000'
"""
MEGATRON_SWIFT = """NPROC_PER_NODE=8 \\
megatron sft \\
  --model Qwen/Qwen2.5-14B --save_safetensors true --tensor_model_parallel_size 4 --sequence_parallel true \\
  --micro_batch_size 1 --global_batch_size 16 --packing true --max_length 8192
"""
PRIMUS = """\
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    model: ${PRIMUS_MODEL:mixtral_8x7B_v0.1}.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: 128
      seq_length: ${PRIMUS_SEQ_LENGTH:4096}
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: 1
      expert_model_parallel_size: ${PRIMUS_EP:8}
      use_turbo_deepep: true
      train_data_path: ${PRIMUS_DATA:null}
"""


def read(folder, name, text, **given):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    reading = trainers.read(path, given)
    assert reading is not None
    return reading


def unexplained(reading):
    """Options that neither a row nor an assumption gives."""
    rows = reading.rows(lambda name, value: f"{name} {value}")
    shown = {one for row in rows for one in row.options} | {one for a in reading.assumptions for one in a.settings}
    return set(reading.options) - shown


def test_swift(tmp_path):
    reading = read(tmp_path, "sft.sh", SWIFT)
    assert (reading.trainer.name, reading.config.name) == ("ms-swift", "qwen2.5-7b")
    expected = {
        **{"workers": 4, "lora": "16:all-linear", "dtype": "bf16", "batch": 1, "accumulate": 4, "seq": 2048},
        **{"sharding": "zero3", "offload": "cpu:parameters,states", "precision": "o2", "checkpointing": "full"},
        **{"kernels": "eager", "optimizer": "adamw", "optimizer_impl": "fused", "lora_dropout": 0.05},
    }
    assert reading.options == expected
    assert not unexplained(reading)
    loose = read(tmp_path, "sft.sh", SWIFT.replace("--tuner_type lora", "--tuner_type full"), workers=8)
    assert "lora" not in loose.options
    preference = read(tmp_path, "dpo.sh", SWIFT.replace("--tuner_type lora", "--rlhf_type dpo --train_type full"))
    assert (preference.options["loss"], preference.options["batch"]) == ("dpo", 2)


def test_swift_fills_an_iteration(tmp_path):
    text = SWIFT.replace("--gradient_accumulation_steps $(expr 16 / $NPROC)", "")
    assert read(tmp_path, "sft.sh", text).options["accumulate"] == 4
    assert "accumulate" not in read(tmp_path, "sft.sh", text, workers=16).options


def test_swift_on_megatron(tmp_path):
    reading = read(tmp_path, "sft.sh", MEGATRON_SWIFT)
    expected = {
        **{"workers": 8, "tensor_parallel": 4, "batch": 1, "accumulate": 8, "seq": 8192, "real_tokens": 1},
        **{"dtype": "bf16", "precision": "megatron", "sharding": "zero1", "checkpointing": "selective"},
    }
    assert reading.options == expected
    assert not unexplained(reading)
    adapters = read(tmp_path, "sft.sh", MEGATRON_SWIFT.replace("--packing true", "--tuner_type lora --lora_rank 8"))
    assert adapters.options["lora"] == "8:all-linear" and "precision" not in adapters.options


def test_primus(tmp_path):
    reading = read(tmp_path, "mixtral.yaml", PRIMUS, workers=8)
    assert (reading.trainer.name, reading.config.name) == ("Primus", "mixtral-8x7b")
    expected = {
        **{"batch": 2, "accumulate": 8, "seq": 4096, "expert_parallel": 8, "expert_dispatch": "deepep"},
        **{"dtype": "bf16", "precision": "megatron", "sharding": "zero1"},
    }
    assert reading.options == expected
    assert not unexplained(reading)


@pytest.mark.parametrize(
    ("name", "flavor", "model"),
    [
        ("llama4", "17bx16e", "llama-4-scout-text"),
        ("llama3", "70B_flex_attn", "llama-3-70b"),
        ("flux", "flux-schnell", "flux-1-dev"),
        ("deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"),
    ],
)
def test_flavors_of_torchtitan(tmp_path, name, flavor, model):
    text = f'[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nlocal_batch_size = 1\n'
    reading = read(tmp_path, "titan.toml", text)
    assert reading.config.name == model
    reading = read(tmp_path, "titan.toml", f"{text}img_size = 512\n")
    assert reading.options["seq"] == 1024


def test_a_debug_model_of_torchtitan_is_of_its_sizes(tmp_path):
    reading = read(tmp_path, "titan.toml", '[model]\nname = "llama3"\nflavor = "debugmodel"\n')
    assert reading.config.fields["hidden_size"] == 256


def test_experts_of_nanotron(tmp_path):
    text = """\
parallelism: {dp: 2, tp: 1, pp: 1, expert_parallel_size: 2}
tokens: {sequence_length: 4096, micro_batch_size: 3}
model:
  model_config: {hidden_size: 256, intermediate_size: 768, num_attention_heads: 4, num_hidden_layers: 12,
    vocab_size: 128256, moe_config: {num_experts: 8, top_k: 1, enable_shared_expert: true}}
"""
    reading = read(tmp_path, "moe.yaml", text)
    fields = reading.config.fields
    assert fields["model_type"] == "qwen2_moe"
    assert (fields["num_experts"], fields["num_experts_per_tok"], fields["moe_intermediate_size"]) == (8, 1, 1408)
    assert reading.options["expert_parallel"] == 2
    assert read(tmp_path, "moe.yaml", text.replace("true", "false")).config.kind == "qwen3_moe"


def test_deepspeed_divides_a_whole_batch(tmp_path):
    text = json.dumps({"train_batch_size": 64, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 2}})
    assert read(tmp_path, "ds.json", text, workers=16).options["batch"] == 2
    with pytest.raises(InvalidArgumentError, match="train_batch_size: 64 samples are not a multiple of 48"):
        read(tmp_path, "ds.json", text, workers=24)


def test_the_type_of_the_checkpoint_and_activations_of_trl(tmp_path):
    values = {
        **{"model_name_or_path": "Qwen/Qwen3-8B", "torch_dtype": "auto", "per_device_train_batch_size": 2},
        **{"bf16": True, "packing": True, "activation_offloading": True, "output_dir": "out"},
    }
    options = read(tmp_path, "args.json", json.dumps(values)).options
    assert (options["precision"], options["offload"]) == ("bf16", "cpu:activations")


def test_pairs_of_a_reward_model_are_two_sequences(tmp_path):
    text = "base_model: Qwen/Qwen3-8B\nreward_model: true\nmicro_batch_size: 2\nsequence_len: 4096\nbf16: true\n"
    reading = read(tmp_path, "rm.yaml", text)
    assert reading.options["batch"] == 4 and "loss" not in reading.options


def test_former_switches_of_deepspeed(tmp_path):
    text = json.dumps({"train_batch_size": 16, "zero_optimization": {"stage": 2, "cpu_offload": True}})
    reading = read(tmp_path, "ds.json", text, workers=16)
    assert reading.options["offload"] == "cpu:states"
    rows = {row.field: row.words for row in reading.rows(lambda name, value: f"{name} {value}")}
    assert rows["zero_optimization.cpu_offload"] == "offload cpu:states"
    text = json.dumps(
        {"train_batch_size": 8, "zero_optimization": True, "sequence_parallel_size": 4, "fp16.enabled": 1}
    )
    reading = read(tmp_path, "ds.json", text, workers=16)
    assert reading.options["sharding"] == "zero1"
    assert (reading.options["context_parallel"], reading.options["batch"]) == (4, 2)


def test_deepspeed_within_a_file_is_shown_once(tmp_path):
    values = {
        **{"per_device_train_batch_size": 2, "output_dir": "out", "model_name_or_path": "gpt2", "fp16": True},
        "deepspeed": {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
    }
    reading = read(tmp_path, "args.json", json.dumps(values))
    assert reading.config.name == "gpt2-small"
    rows = [row.field for row in reading.rows(lambda name, value: f"{name} {value}")]
    assert rows.count("deepspeed.zero_optimization.stage") == 1


def test_accelerates_modes_and_megatron(tmp_path):
    text = "distributed_type: MULTI_GPU\nmixed_precision: bf16\nnum_processes: 8\n"
    dynamo = "dynamo_config: {dynamo_backend: INDUCTOR, dynamo_mode: max-autotune}\n"
    options = read(tmp_path, "acc.yaml", text + dynamo).options
    assert options["cuda_graphs"] is True and options["kernels"] == "compiled"
    megatron = text.replace("MULTI_GPU", "MEGATRON_LM") + "megatron_lm_config: {megatron_lm_tp_degree: 4}\n"
    assert "kernels" not in read(tmp_path, "acc.yaml", megatron).options


def test_a_global_batch_of_torchtitans_pipeline(tmp_path):
    text = """\
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
global_batch_size = 256
[parallelism]
data_parallel_shard_degree = 8
pipeline_parallel_degree = 4
"""
    reading = read(tmp_path, "titan.toml", text)
    assert (reading.options["batch"], reading.options["microbatches"]) == (1, 32)
    with pytest.raises(InvalidArgumentError, match="250 samples are not a multiple of 64"):
        read(tmp_path, "titan.toml", text.replace("256", "250"))


def test_qlora_py(tmp_path):
    text = """python qlora.py --model_name_or_path huggyllama/llama-65b --lora_r 64 --lora_modules all --double_quant \\
  --quant_type nf4 --bits 4 --bf16 --source_max_len 16 --target_max_len 512 --per_device_train_batch_size 1
"""
    options = read(tmp_path, "guanaco.sh", text).options
    assert (options["lora"], options["quantize"], options["seq"]) == ("64:all-linear", "nf4-double", 528)


@pytest.mark.parametrize(
    ("sizes", "targets", "modules"),
    [
        ("activation: fast-swiglu", "attention_qkv, mlp_fc1", "q_proj,k_proj,v_proj,gate_proj,up_proj"),
        ("activation: gelu", "attention_qkv, mlp_fc2", "c_attn,c_proj"),
    ],
)
def test_nemos_targets_are_modules_of_the_family(tmp_path, sizes, targets, modules):
    text = f"""\
trainer: {{devices: 8, num_nodes: 1, precision: bf16}}
model:
  {{micro_batch_size: 1, global_batch_size: 16, tensor_model_parallel_size: 2, encoder_seq_length: 2048, num_layers: 4,
    hidden_size: 512, num_attention_heads: 8, ffn_hidden_size: 2048, {sizes},
    peft: {{peft_scheme: lora, lora_tuning: {{adapter_dim: 32, adapter_dropout: 0.1, target_modules: [{targets}]}}}}}}
"""
    options = read(tmp_path, "nemo.yaml", text).options
    assert options["lora"] == f"32:{modules}"
    assert (options["lora_dropout"], options["kernels"]) == (0.1, "fused")


TORCHTUNE = """\
tokenizer: {_component_: torchtune.models.qwen2_5.qwen2_5_tokenizer, max_seq_len: 2048}
model:
  _component_: torchtune.models.qwen2_5.qlora_qwen2_5_1_5b_instruct
  lora_attn_modules: [q_proj, v_proj, output_proj]
  apply_lora_to_mlp: true
  lora_rank: 16
  lora_dropout: 0.0
dataset: {_component_: torchtune.datasets.alpaca_dataset, packed: true}
optimizer: {_component_: torch.optim.AdamW, fused: true, lr: 3e-4}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
batch_size: 2
gradient_accumulation_steps: 8
compile: true
dtype: bf16
enable_activation_checkpointing: true
enable_activation_offloading: true
"""


def test_torchtune(tmp_path):
    reading = read(tmp_path, "1.5B_qlora.yaml", TORCHTUNE, workers=8)
    assert (reading.trainer.name, reading.config.name) == ("torchtune", "qwen2.5-1.5b")
    expected = {
        **{"lora": "16:q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "quantize": "nf4-double", "loss_chunks": 8},
        **{"batch": 2, "accumulate": 8, "seq": 2048, "real_tokens": 1, "sharding": "zero3", "dtype": "bf16"},
        **{"precision": "bf16", "checkpointing": "full", "offload": "cpu:activations", "kernels": "compiled"},
        **{"optimizer": "adamw", "optimizer_impl": "fused"},
    }
    assert reading.options == expected
    assert not unexplained(reading)


@pytest.mark.parametrize(
    ("component", "model"),
    [
        ("qwen2.qwen2_0_5b", "qwen2.5-0.5b"),
        ("qwen3.qwen3_1_7b_instruct", "qwen3-1.7b"),
        ("llama3_1.llama3_1_8b", "llama-3.1-8b"),
        ("llama3_3.lora_llama3_3_70b", "llama-3.1-70b"),
        ("phi4.qlora_phi4_14b", "phi-4"),
        ("gemma.gemma_2b", "gemma-2b"),
    ],
)
def test_models_of_torchtune(tmp_path, component, model):
    text = TORCHTUNE.replace("qwen2_5.qlora_qwen2_5_1_5b_instruct", component)
    assert read(tmp_path, "x.yaml", text).config.name == model


def test_optimizers_and_single_devices_of_torchtune(tmp_path):
    paged = TORCHTUNE.replace("torch.optim.AdamW, fused: true", "bitsandbytes.optim.PagedAdamW8bit")
    text = f"{paged}optimizer_in_bwd: true\noutput_dir: /tmp/full_single_device\n".replace("steps: 8", "steps: 1")
    reading = read(tmp_path, "x.yaml", text)
    expected = {
        **{"optimizer": "paged-adamw-8bit", "optimizer_impl": "in-backward", "workers": 1, "sharding": "none"},
    }
    assert expected.items() <= reading.options.items()
    assert not unexplained(reading)


def test_modules_of_megatron_core_in_swift(tmp_path):
    words = "--tuner_type lora --target_modules linear_qkv linear_proj --modules_to_save word_embeddings output_layer"
    options = read(tmp_path, "sft.sh", MEGATRON_SWIFT.replace("--packing true", words)).options
    assert options["lora"] == "8:q_proj,k_proj,v_proj,o_proj"
    assert options["modules_to_save"] == "embed_tokens,lm_head"


def test_a_switch_of_quantized_checkpoints_quantizes_nothing_again(tmp_path):
    text = """torchrun finetune.py --model_name_or_path {} --q_lora --use_lora --lora_r 64 --bf16 True \\
  --per_device_train_batch_size 1 --lora_target_modules q_proj v_proj
"""
    assert "quantize" not in read(tmp_path, "q.sh", text.format("TheBloke/Llama-2-7B-GPTQ")).options
    assert read(tmp_path, "q.sh", text.format("meta-llama/Llama-2-7b-hf")).options["quantize"] == "nf4-double"
