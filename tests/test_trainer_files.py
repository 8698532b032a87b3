"""Trainers' files are workloads: their fields become options, and what becomes of each field is said."""

import json
import re
import string
from pathlib import Path

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.errors import InvalidArgumentError
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.interop import trainers
from paceline.interop.trainers.shell import arguments
from paceline_lab.report import spec as report_spec

DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
}
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP   # not DEEPSPEED
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_version: 2
  fsdp_reshard_after_forward: false
  fsdp_activation_checkpointing: true
"""
TORCHTITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
mixed_precision_param = "bfloat16"
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
[activation_checkpoint]
mode = "selective"
[compile]
enable = true
"""
AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3-8B-Instruct
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_target_linear: true
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
bf16: auto
gradient_checkpointing: true
"""
LLAMAFACTORY = """\
model_name_or_path: mistralai/Mistral-7B-v0.1
stage: sft
finetuning_type: full
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
deepspeed: ds_config.json
"""
MEGATRON = r"""#!/bin/bash
GPUS_PER_NODE=8
MODEL=(
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
  --group-query-attention --num-query-groups 8  # of keys and values
  --swiglu --normalization RMSNorm --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256
)
torchrun --nproc_per_node ${GPUS_PER_NODE} --nnodes 4 pretrain_gpt.py ${MODEL[@]} \
  --seq-length 8192 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer \
  --num-layers-per-virtual-pipeline-stage 8 --micro-batch-size 1 --global-batch-size 128 --bf16 --recompute-activations
"""
NANOTRON = """\
parallelism: {dp: 16, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER}
tokens: {sequence_length: 4096, micro_batch_size: 3, batch_accumulation_per_replica: 4}
optimizer: {zero_stage: 1}
model:
  dtype: bfloat16
  model_config: {hidden_size: 2048, intermediate_size: 5632, num_attention_heads: 16, num_key_value_heads: 4,
    num_hidden_layers: 7, vocab_size: 49152}
"""
NEMO = """\
name: megatron_gpt
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 64
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 1
  encoder_seq_length: 4096
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  activation: fast-swiglu
  activations_checkpoint_granularity: full
  optim: {name: distributed_fused_adam, lr: 1e-4}
"""
TRAINING_ARGUMENTS = {
    "model_name_or_path": "mistralai/Mistral-7B-v0.1",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "torch_dtype": "bfloat16",
    "gradient_checkpointing": True,
    "fsdp": "full_shard auto_wrap",
    "optim": "adamw_torch_fused",
    "output_dir": "out",
}
LLAMAFACTORY_V1 = """\
model: Qwen/Qwen3-8B
peft_config: {name: lora, r: 16, lora_dropout: 0.05, target_modules: all}
dist_config: {name: fsdp2, dcp_path: null}
quant_config: {name: bnb, quantization_bit: 4}
kernel_config: {name: auto}
train_dataset: data/v1_sft_demo.yaml
micro_batch_size: 2
cutoff_len: 1024
"""
FUSED = {"optimizer": "adamw", "optimizer_impl": "fused"}
FILES = {
    "ds_config.json": (
        json.dumps(DEEPSPEED),
        "DeepSpeed",
        {"sharding": "zero3", "batch": 2, "accumulate": 4, "dtype": "bf16", "precision": "o2", "offload": "cpu:states"}
        | FUSED
        | {"kernels": "eager"},
    ),
    "accelerate.yaml": (
        ACCELERATE,
        "accelerate",
        {
            **{"workers": 16, "gpus_per_node": 8, "sharding": "zero3", "reshard_after_forward": "no"},
            **{"checkpointing": "full", "dtype": "bf16", "precision": "mixed", "kernels": "eager"},
            **FUSED,
        },
    ),
    "titan.toml": (
        TORCHTITAN,
        "torchtitan",
        {
            **{"workers": 16, "sharding": "hsdp:8", "batch": 1, "seq": 8192, "dtype": "bf16"},
            **{"precision": "fsdp-mixed", "checkpointing": "selective", "kernels": "compiled", "loss_chunks": 1},
            "optimizer_impl": "fused",
        },
    ),
    "lora.yml": (
        AXOLOTL,
        "axolotl",
        {
            **{"lora": "32:all-linear", "quantize": "nf4-double", "batch": 2, "accumulate": 4, "seq": 4096},
            **{"sharding": "none", "dtype": "bf16", "checkpointing": "full", "kernels": "eager"},
            **{"optimizer": "paged-adamw-8bit", "real_tokens": 1},
        },
    ),
    "sft.yaml": (
        LLAMAFACTORY,
        "LLaMA-Factory",
        {
            **{"batch": 1, "accumulate": 8, "seq": 2048, "dtype": "bf16", "precision": "o2", "checkpointing": "full"},
            **{"sharding": "zero3", "offload": "cpu:states", "kernels": "eager"},
            **FUSED,
        },
    ),
    "sft_v1.yaml": (
        LLAMAFACTORY_V1,
        "LLaMA-Factory",
        {
            **{"lora": "16:all-linear", "quantize": "nf4-double", "batch": 2, "seq": 1024, "sharding": "zero3"},
            **{"dtype": "bf16", "checkpointing": "full", "kernels": "eager", "lora_dropout": 0.05},
        },
    ),
    "train.sh": (
        MEGATRON,
        "Megatron-LM",
        {
            **{"workers": 32, "tensor_parallel": 2, "pipeline_parallel": 2, "virtual_stages": 2, "sharding": "zero1"},
            **{"batch": 1, "microbatches": 16, "seq": 8192, "dtype": "bf16", "precision": "megatron"},
            **{"checkpointing": "selective", "gpus_per_node": 8},
        },
    ),
    "smol.yaml": (
        NANOTRON,
        "nanotron",
        {
            **{"workers": 32, "tensor_parallel": 2, "sharding": "zero1", "batch": 3, "accumulate": 4, "seq": 4096},
            **{"dtype": "bf16", "precision": "megatron"},
        },
    ),
    "nemo.yaml": (
        NEMO,
        "NeMo",
        {
            **{"workers": 16, "tensor_parallel": 4, "sharding": "zero1", "batch": 1, "accumulate": 16, "seq": 4096},
            **{"dtype": "bf16", "precision": "megatron", "checkpointing": "full"},
            "gpus_per_node": 8,
        },
    ),
    "args.json": (
        json.dumps(TRAINING_ARGUMENTS),
        "transformers' Trainer",
        {
            **{"batch": 4, "accumulate": 2, "sharding": "zero3", "dtype": "bf16", "precision": "mixed"},
            **{"checkpointing": "full", "kernels": "eager", "optimizer": "adamw", "optimizer_impl": "fused"},
        },
    ),
}
each_file = pytest.mark.parametrize("name", FILES)
MODEL = ("--model", "mistral-7b")


def written(folder, name, text=None):
    (folder / "ds_config.json").write_text(json.dumps(DEEPSPEED))
    (folder / name).write_text(FILES[name][0] if text is None else text)
    return folder / name


def options(folder, name, text=None, **values):
    return trainers.read(written(folder, name, text), values).options


def fates(reading):
    return {row.field: (row.fate, row.words) for row in reading.rows(lambda name, value: f"{name} {value}")}


@each_file
def test_options_of_each_trainer(tmp_path, name):
    _, trainer, expected = FILES[name]
    reading = trainers.read(written(tmp_path, name), {})
    assert reading.trainer.name == trainer
    assert reading.options == expected


@each_file
def test_each_file_is_forecast(tmp_path, name):
    words = ["--seq", "2048"] if "seq" not in FILES[name][2] else []
    own = MODEL if name in ("ds_config.json", "accelerate.yaml") else ()
    [made] = json.loads(
        cli.printed(
            *("simulate", written(tmp_path, name), "--gpu", "h100", "--gpus", "16", "--strategy", "native"),
            *(*words, *own, "--json"),
        )
    )
    assert made["workers"] * (made.get("gpus_per_worker") or 1) == 16
    assert made["file"]["trainer"] == FILES[name][1]
    assert made["file"]["read"] and not made["file"]["not_understood"]


LAUNCH = {
    "acc.yaml": ACCELERATE,
    "qlora.yml": AXOLOTL,
    "ds_config.json": json.dumps(DEEPSPEED),
    "titan.toml": TORCHTITAN,
    "fsdp.json": '{"offload_params": true}',
    "sft.yaml": "model_name_or_path: mistralai/Mistral-7B-v0.1\nper_device_train_batch_size: 2\npacking: true\n"
    "use_peft: true\nlora_r: 4\nlora_target_modules: all-linear\nlora_modules_to_save: [embed_tokens]\noutput_dir: o\n",
}
SCRIPTS = {
    "accelerate launch --config_file conf/acc.yaml train.py --lr 1e-4": {"workers": 16, "sharding": "zero3"},
    "accelerate launch --config_file acc.yaml -m axolotl.cli.train qlora.yml --micro-batch-size 1": {
        **{"workers": 16, "sharding": "zero3", "batch": 1, "quantize": "nf4-double", "checkpointing": "full"}
    },
    "torchrun --nproc_per_node 4 --nnodes 2 sft.py --config sft.yaml": {
        **{"workers": 8, "gpus_per_node": 4, "batch": 2, "seq": 1024, "lora": "4:all-linear", "dtype": "bf16"},
        **{"checkpointing": "full", "loss_chunks": 8, "precision": "upcast-bf16", "modules_to_save": "embed_tokens"},
    },
    "deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config ds_config.json": {
        **{"workers": 8, "sharding": "zero3", "batch": 2, "offload": "cpu:states", "kernels": "eager"}
    },
    "NGPU=8 torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file titan.toml --training.seq_len 4096": {
        **{"workers": 8, "seq": 4096, "sharding": "hsdp:8", "kernels": "compiled"}
    },
    "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b --training.max_context_length "
    "4096 --training.num_tokens_per_microbatch_per_dp_rank 8192 --parallelism.tensor_parallel_degree=2": {
        **{"workers": 8, "seq": 4096, "batch": 2, "tensor_parallel": 2, "sharding": "zero3", "precision": "fsdp-mixed"}
    },
    "accelerate launch --mixed_precision bf16 --num_machines 2 --num_processes 16 --use_deepspeed "
    "--zero_stage 2 train.py": {
        **{"workers": 16, "sharding": "zero2", "dtype": "bf16", "precision": "o2", "gpus_per_node": 8}
    },
    "torchrun --nproc_per_node 8 train_lora.py --per_device_train_batch_size 2 --use_lora True --q_lora True": {
        **{"lora": "8:q_proj,v_proj", "quantize": "nf4-double", "batch": 2}
    },
    "python mason.py --gpus 8 --num_nodes 2 -- accelerate launch --mixed_precision bf16 --num_processes 8 "
    "--use_deepspeed --deepspeed_config_file configs/stage3_no_offloading.conf finetune.py --with_tracking "
    "--use_qlora --lora_rank 8 --model_name_or_path mistralai/Mistral-7B-v0.1 --max_seq_length 4096 "
    "--per_device_train_batch_size 1": {
        **{"workers": 16, "lora": "8:all-linear", "quantize": "nf4-double", "seq": 4096, "sharding": "zero3"}
    },
    "torchrun --nproc_per_node 8 train.py --per_device_train_batch_size 2 --fsdp full_shard --fsdp_config fsdp.json "
    "--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer": {"sharding": "zero3", "offload": "cpu:parameters,states"},
    "accelerate launch --use_deepspeed --num_processes 8 train.py": {"workers": 8, "sharding": "zero2"},
    "deepspeed train.py --deepspeed_config $HOME/ds_config.json": {"sharding": "zero3", "batch": 2},
}


def launched(folder, command):
    for name, text in LAUNCH.items():
        (folder / name).write_text(text)
    (folder / "run.sh").write_text(f"#!/bin/bash\n{command}\n")
    return trainers.read(folder / "run.sh", {})


@pytest.mark.parametrize("command", SCRIPTS)
def test_files_that_a_script_names(tmp_path, command):
    reading = launched(tmp_path, command)
    assert {name: reading.options.get(name) for name in SCRIPTS[command]} == SCRIPTS[command]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("accelerate launch --config_file gone.yaml train.py", "--config-file: gone.yaml: no such file"),
        ("torchrun train.py --config gone.yaml --fp16", "--config: gone.yaml: no such file"),
        ("llamafactory-cli train gone.yaml", "run.sh: gone.yaml: no such file"),
        ("deepspeed train.py --deepspeed gone.json", "--deepspeed: gone.json: no such file"),
        ("deepspeed train.py --deepspeed $CONFIG", "--deepspeed: the variable CONFIG is not set"),
        ("torchrun a.py --per_device_train_batch_size 2 --fsdp_config gone.json", "--fsdp-config: gone.json: no such"),
    ],
)
def test_a_file_that_is_not_there_is_named(tmp_path, command, said):
    with pytest.raises(InvalidArgumentError, match=said):
        launched(tmp_path, command)


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        (
            "acc.yaml",
            "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: gone.json}\n",
            "deep",
        ),
        ("sft.yaml", LLAMAFACTORY.replace("ds_config", "gone"), "deepspeed"),
        ("lora.yml", f"{AXOLOTL}deepspeed: gone.json\n", "deepspeed"),
        ("args.json", json.dumps({**TRAINING_ARGUMENTS, "fsdp": "", "deepspeed": "gone.json"}), "deepspeed"),
    ],
)
def test_a_file_that_another_names_is_missed(tmp_path, name, text, field):
    with pytest.raises(InvalidArgumentError, match=rf"{name}: {field}.*: gone.json: no such file"):
        options(tmp_path, name, text)
    reading = trainers.read(tmp_path / name, {"sharding": ["zero3"]})
    assert ("not forecast", "there is no such file") in fates(reading).values()


def test_a_variable_that_names_the_model_is_named(tmp_path):
    (tmp_path / "run.sh").write_text("deepspeed a.py --per_device_train_batch_size 2 --model_name_or_path=$MODEL\n")
    shown = cli.refused("simulate", tmp_path / "run.sh", "--gpu", "h100", "--gpus", "8")
    assert "the variable MODEL is not set" in " ".join(shown.split()) and "MODEL=VALUE" in shown


@pytest.mark.parametrize(
    ("name", "old", "new", "meant"),
    [
        ("ds_config.json", "offload_optimizer", "offload_optimzer", "zero_optimization.offload_optimizer.device"),
        ("lora.yml", "lora_target_linear", "lora_taget_linear", "lora_target_linear"),
        ("titan.toml", 'mode = "sel', 'moed = "sel', "activation_checkpoint.mode"),
        ("train.sh", "--recompute-activations", "--recompute-granularty full", "--recompute-granularity"),
        ("nemo.yaml", "activations_checkpoint_granularity", "recompute_granularty", "--recompute-granularity"),
        ("accelerate.yaml", "fsdp_activation", "fsdp_actvation", "fsdp_config.fsdp_activation_checkpointing"),
    ],
)
def test_a_misspelled_field_is_no_field_without_effect(tmp_path, name, old, new, meant):
    assert old in FILES[name][0]
    made = fates(trainers.read(written(tmp_path, name, FILES[name][0].replace(old, new)), {}))
    assert ("not understood", f"is it {meant}?") in made.values()


def test_an_empty_field_gives_way(tmp_path):
    nemo = NEMO.replace("trainer: {", "train: {micro_batch_size: 2}\ntrainer: {").replace(
        "_batch_size: 1", "_batch_size:"
    )
    reading = trainers.read(written(tmp_path, "nemo.yaml", f"{nemo}  bf16: null\n"), {})
    assert (reading.options["batch"], reading.options["dtype"]) == (2, "bf16")
    assert fates(reading)["model.bf16"] == fates(reading)["model.micro_batch_size"] == ("no effect", "has no value")
    trl = {"model_name_or_path": "gpt2", "per_device_train_batch_size": 2, "packing": True, "bf16": None, "fp16": False}
    assert options(tmp_path, "args.json", json.dumps(trl))["dtype"] == "bf16"
    axolotl = AXOLOTL.replace("bf16: auto", "fp16:\ntf32: true")
    assert options(tmp_path, "lora.yml", axolotl)["dtype"] == "bf16"


def test_what_is_off_gives_no_option(tmp_path):
    values = {**DEEPSPEED["zero_optimization"], "offload_param": {"device": "none"}}
    path = written(tmp_path, "ds_config.json", json.dumps({**DEEPSPEED, "zero_optimization": values}))
    made = fates(trainers.read(path, {}))
    assert made["zero_optimization.offload_param.device"] == ("read", "the default")
    assert made["zero_optimization.offload_optimizer.device"] == ("read", "offload cpu:states")
    axolotl = f"{AXOLOTL}fsdp: [full_shard, auto_wrap]\nfsdp_config: {{fsdp_offload_params: true}}\n"
    assert fates(trainers.read(written(tmp_path, "lora.yml", axolotl), {}))["fsdp"] == ("read", "sharding zero3")


def readings(folder):
    for name in FILES:
        yield trainers.read(written(folder, name), {})
    for command in SCRIPTS:
        yield launched(folder, command)


def test_each_option_is_of_a_row_or_an_assumption(tmp_path):
    for reading in readings(tmp_path):
        values = {}
        for row in reading.rows(lambda setting, value: f"<{setting}={value}>"):
            assert row.fate == "read" or not row.options
            for setting, value in re.findall(r"<(\w+)=(.*?)>(?! \()", row.words):
                values.setdefault(setting, set()).add(value)
        values.pop("model", None)
        assumed = {setting for one in reading.assumptions for setting in one.settings}
        assert not assumed & values.keys()
        assert assumed | values.keys() == reading.options.keys(), reading.path
        assert all(values[name] == {str(reading.options[name])} for name in values)


@pytest.mark.parametrize("name", ["lora.yml", "titan.toml", "train.sh"])
def test_the_options_forecast_the_same(tmp_path, name):
    path = written(tmp_path, name)
    reading = trainers.read(path, {"workers": [16]})
    options = {**reading.options, "workers": 16}
    options["gpus"] = options.pop("workers")
    as_file = paceline.simulate(path, gpu="h100", gpus=16)
    assert as_file.iteration_s == paceline.simulate(reading.config.name, gpu="h100", **options).iteration_s


def test_command_line_wins(tmp_path):
    path = written(tmp_path, "titan.toml")
    plain = paceline.simulate(path, gpu="h100")
    other = paceline.simulate(path, gpu="h100", gpus=32, batch=2, sharding="zero3")
    assert (plain.workers, other.workers) == (16, 32)
    assert other.batch == 2 * plain.batch
    shown = cli.printed("simulate", path, "--gpu", "h100", "--gpus", "32", "--batch", "2")
    assert "--batch 1 (overridden)" in shown


def test_global_batch_is_kept_on_other_gpus(tmp_path):
    assert options(tmp_path, "nemo.yaml")["accumulate"] == 16
    assert options(tmp_path, "nemo.yaml", workers=[32])["accumulate"] == 8
    assert options(tmp_path, "train.sh", workers=[64])["microbatches"] == 8
    shown = cli.refused("simulate", written(tmp_path, "nemo.yaml"), "--gpu", "h100", "--gpus", "24")
    assert "global_batch_size" in shown and "not a multiple" in shown


def test_each_number_of_gpus_has_its_own_passes(tmp_path):
    words = ("simulate", written(tmp_path, "nemo.yaml"), "--gpu", "h100", "--strategy", "native", "--json")
    alone = [row for gpus in ("16", "32") for row in cli.answer(*words, "--gpus", gpus)]
    together = cli.answer(*words, "--gpus", "16,32")
    assert [row["iteration_s"] for row in together] == [row["iteration_s"] for row in alone]
    assert together[1]["iteration_s"] < 0.6 * together[0]["iteration_s"]
    assert together[0]["file"]["assumed"][-1]["assumption"] == "on 32 GPUs: --accumulate 8"


@pytest.mark.parametrize(("tuning", "dtype"), [("full", "fp32"), ("freeze", "fp32"), ("lora", "bf16")])
def test_llama_factory_without_a_type_casts_what_is_trained(tmp_path, tuning, dtype):
    text = f"model_name_or_path: meta-llama/Llama-3.1-8B\nstage: sft\nfinetuning_type: {tuning}\n"
    assert options(tmp_path, "job.yaml", text, workers=[8])["dtype"] == dtype


def test_open_degrees_make_no_contradiction(tmp_path):
    text = MEGATRON.replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size $TP")
    text = text.replace("--global-batch-size 128", "--global-batch-size 24")
    reading = trainers.read(written(tmp_path, "train.sh", text), {})
    assert reading.options["workers"] == 32 and any("variables are open" in one.words for one in reading.assumptions)
    assert fates(reading)["--tensor-model-parallel-size"] == ("not forecast", "a variable that the file does not set")


@pytest.mark.parametrize(
    ("name", "options", "setting", "value"),
    [
        ("ds_config.json", {"offload": "none"}, "offload", None),
        ("lora.yml", {"quantize": "none"}, "quantization", None),
        ("lora.yml", {"lora": "None"}, "adapter", None),
        ("titan.toml", {"loss_chunks": "none"}, "loss_chunks", None),
        ("titan.toml", {"checkpointing": "NONE"}, "checkpointing", "none"),
    ],
)
def test_an_option_switches_off_what_a_file_switches_on(tmp_path, name, options, setting, value):
    path = written(tmp_path, name)
    given = {"gpu": "h100", "workers": 8, "model": "qwen3-0.6b"}
    for own, is_on in ((options, False), ({}, True)):
        sweep = Sweep.of(path, {**given, **own}, "paceline.simulate")
        assert (getattr(sweep.workload(sweep.trace), setting) != value) is is_on


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd"},
        {"kernels": "transformer-engine"},
        {"expert_parallel": 1},
        {"sharding": "none"},
        {"lora": "16"},
        {"lora": "none"},
    ],
    ids=lambda options: "".join(f"{name}-{value}" for name, value in options.items()),
)
def test_what_an_option_makes_meaningless_is_dropped(tmp_path, name, options):
    values = {"gpu": "h100", "workers": 32, "model": "qwen3-0.6b"} | options
    sweep = Sweep.of(written(tmp_path, name), values, "paceline.simulate")
    assert prepare(sweep).scenarios


def test_parameters_that_no_sharding_gathers_stay_on_the_gpu(tmp_path):
    text = TORCHTITAN.replace("[training]\n", "[training]\nenable_cpu_offload = true\n")
    for sharding, parts in (("zero3", ("parameters", "states")), ("none", ("states",))):
        values = {"gpu": "h100", "workers": 16, "sharding": sharding}
        sweep = Sweep.of(written(tmp_path, "titan.toml", text), values, "paceline.simulate")
        workload = sweep.workload(sweep.trace)
        assert workload is not None and workload.offload is not None and workload.offload.named == parts


def test_without_adapters_a_file_trains_in_its_own_precision(tmp_path):
    path = written(tmp_path, "lora.yml")
    text = cli.call("simulate", path, "--gpu", "h100", "--gpus", 8, "--lora", "none").stdout
    setup = " ".join(text.partition("Read from")[0].split())
    assert "recipe bf16" in setup and "LoRA" not in text and "nf4" not in setup
    assert re.search(r"load_in_4bit +true +--quantize nf4-double\s+\(overridden\)", text)


@pytest.mark.parametrize("dtype", ["fp8", "fp16", "fp32"])
def test_a_file_keeps_its_recipe_with_types_that_it_has(tmp_path, dtype):
    path = written(tmp_path, "ds_config.json")
    text = cli.call("simulate", path, "--gpu", "h100", "--gpus", 8, *MODEL, "--dtype", dtype).stdout
    setup, rows = (" ".join(part.split()) for part in text.split("Read from"))
    assert f", {dtype}, " in setup
    assert ("recipe o2" in setup) == (dtype != "fp32")
    assert ("--precision o2 (overridden)" in rows) == (dtype == "fp32")


def test_what_is_missing_names_its_option(tmp_path):
    deepspeed = written(tmp_path, "ds_config.json")
    assert "--model llama" in cli.refused("simulate", deepspeed, "--gpu", "h100", "--gpus", "8")
    assert "--gpus 8" in cli.refused("simulate", deepspeed, "--gpu", "h100", *MODEL)
    assert "--gpu h100" in cli.refused("simulate", deepspeed, "--gpus", "8", *MODEL)
    assert "trainer's file" in cli.refused("simulate", "resnet-50", *MODEL)


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("ds_config.json", '"stage": 3', '"stage": 7', "zero_optimization.stage: 7 is not known"),
        ("ds_config.json", '_accumulation_steps": 4', '_accumulation_steps": -1', "at least 1, not -1"),
        ("titan.toml", "seq_len = 8192", 'seq_len = "long"', "training.seq_len: must be a whole number"),
        ("titan.toml", '"selective"', '"some"', "activation_checkpoint.mode: some is not known"),
        ("lora.yml", "lora_r: 32", "lora_r: many", "lora_r: must be a whole number"),
        ("lora.yml", "adapter: qlora", "adapter: qlorra", "adapter: qlorra is not known"),
        ("train.sh", "--micro-batch-size 1", "--micro-batch-size x", "--micro-batch-size: must be"),
        ("smol.yaml", "zero_stage: 1", "zero_stage: 3", "optimizer.zero_stage: nanotron has the stages"),
        ("accelerate.yaml", "FSDP  ", "FSDB  ", "distributed_type: FSDB is not known"),
        ("lora.yml", "load_in_4bit: true", "load_in_8bit: false", "load_in_4bit: qlora needs weights in 4 bits"),
        (
            "lora.yml",
            "lora_r: 32",
            'lora_target_modules: ["q_proj", ""]',
            "lora_target_modules: has an item that is no",
        ),
        ("lora.yml", "lora_r: 32", "fsdp: 3", "fsdp: 3 is not known"),
        ("lora.yml", "optimizer: paged_adamw_8bit", "optimizer: [a, b]", "optimizer: must be one word, not [a, b]"),
        ("lora.yml", "Meta-Llama-3-8B-Instruct", "unheard-of-8B", "base_model: 'NousResearch/unheard-of-8B'"),
    ],
)
def test_wrong_values_name_file_and_field(tmp_path, name, old, new, said):
    assert old in FILES[name][0]
    path = written(tmp_path, name, FILES[name][0].replace(old, new))
    own = MODEL if name in ("ds_config.json", "accelerate.yaml") else ()
    shown = " ".join(cli.refused("simulate", path, "--gpu", "h100", "--gpus", "16", *own).split())
    assert said in shown and name in shown and "try:" in shown


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", b"", "is empty"),
        ("a.sh", b"\n", "is empty"),
        ("a.toml", b"\x00\x01", "is not TOML"),
        ("a.yml", bytes(range(256)), "is not UTF-8"),
        ("a.json", b'{"bf16": 1, "bf16": 2}', "bf16 is there twice"),
        ("a.json", b"[1, 2]", "is no file of a trainer that Paceline reads"),
        ("a.json", b"[" * 50_000, "nested too deep"),
        ("a.yaml", b"[" * 50_000, "nesting depth"),
        ("a.toml", b"a = 1\na = 2", "Cannot overwrite a value"),
        ("a.yaml", b"x: 1\n" * 300_000, "at most 1 MB are read"),
        ("gone.json", None, "no such file"),
        ("gone.yaml", None, "no such file"),
    ],
)
def test_malformed_files(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    shown = " ".join(cli.refused("simulate", tmp_path / name, "--gpu", "h100", "--gpus", "8", *MODEL).split())
    assert said in shown and name in shown and "try:" in shown


@pytest.mark.parametrize("command", [["advise"], ["compare", "--measured", "2s"], ["simulate"]])
def test_a_missing_file_is_one_in_each_command(tmp_path, command):
    words = [command[0], tmp_path / "gone.yaml", *command[1:], "--gpu", "h100", "--gpus", "8"]
    assert "gone.yaml: no such file" in " ".join(cli.refused(*words).split())


@pytest.mark.slow
def test_compare_shows_the_fields_of_the_file(tmp_path):
    path = written(tmp_path, "titan.toml")
    words = ("compare", path, "--gpu", "h100", "--measured", "2s")
    assert "titan.toml is a file of torchtitan" in cli.printed(*words)
    assert json.loads(cli.printed(*words, "--json"))["file"]["trainer"] == "torchtitan"


def test_of_a_field_that_is_there_twice_the_last_counts(tmp_path):
    reading = trainers.read(written(tmp_path, "lora.yml", AXOLOTL + "micro_batch_size: 4\nlora_r: 32\n"), {})
    assert reading.options["batch"] == 4
    [one] = [one.words for one in reading.assumptions if "twice" in one.words]
    assert "micro_batch_size" in one


def test_merge_keys_of_yaml_do_not_multiply(tmp_path):
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], y{n}: 1}}" for n in range(1, 60))]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines) + "\n" + AXOLOTL)
    try:
        assert trainers.read(tmp_path / "bomb.yaml", {}).options["batch"] == 2
    except InvalidArgumentError as error:
        assert "values" in str(error)


def test_modules_of_adapters(tmp_path):
    def lora(more, name="lora.yml"):
        text = AXOLOTL.replace("lora_target_linear: true\n", "") + more
        return trainers.read(written(tmp_path, name, text), {})

    assert lora("lora_target_modules: [q_proj, v_proj]\n").options["lora"] == "32:q_proj,v_proj"
    assert (
        lora("lora_target_modules: '.*self_attn.(q|k|v|o)_proj'\n").options["lora"] == "32:q_proj,k_proj,v_proj,o_proj"
    )
    for beside in ("", " []", " [q_proj, v_proj]", " [q_proj, lm_head]"):
        joined = lora(f"lora_target_modules:{beside}\nlora_target_linear: true\n")
        assert joined.options["lora"] == "32:all-linear"
        assert any("no adapters of lm_head" in one.words for one in joined.assumptions) is ("lm_head" in beside)
    unknown = lora("lora_target_modules: '.*attn.+'\n")
    assert unknown.options["lora"] == "32:q_proj,v_proj" and fates(unknown)["lora_target_modules"][0] == "not forecast"
    saved = lora("lora_modules_to_save: [embed_tokens, lm_head]\n")
    assert saved.options["modules_to_save"] == "embed_tokens,lm_head"
    assert lora("unfrozen_parameters: ['^lm_head.weight$']\n").options["modules_to_save"] == "lm_head"
    assert lora("lora_dropout: 0.05\n").options["lora_dropout"] == 0.05
    assert "lora_dropout" not in lora("lora_dropout: 0.0\n").options


def test_modules_that_a_model_has_not_are_left_out(tmp_path):
    text = AXOLOTL.replace("lora_target_linear: true\n", "lora_target_modules: [q_proj, c_fc]\n")
    reading = trainers.read(written(tmp_path, "lora.yml", text), {})
    assert reading.options["lora"] == "32:q_proj" and any(
        "no adapters of c_fc" in one.words for one in reading.assumptions
    )
    path = written(tmp_path, "lora.yml", text.replace("[q_proj, c_fc]", "[c_fc]"))
    assert "'c_fc' is no linear layer" in cli.refused("simulate", path, "--gpu", "h100", "--gpus", "8")


def test_adapters_of_experts(tmp_path):
    text = AXOLOTL.replace("NousResearch/Meta-Llama-3-8B-Instruct", "Qwen/Qwen3-30B-A3B").replace(
        "target_linear: true",
        ("target_modules: [q_proj, v_proj]\nlora_target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj]"),
    )
    names = options(tmp_path, "lora.yml", text)["lora"].removeprefix("32:").split(",")
    assert names[:2] == ["q_proj", "v_proj"] and "experts.down_proj" in names and len(names) >= 4


def test_only_stage_3_offloads_parameters(tmp_path):
    values = {**DEEPSPEED, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
    reading = trainers.read(written(tmp_path, "ds.json", json.dumps(values)), {})
    assert "offload" not in reading.options
    assert fates(reading)["zero_optimization.offload_param.device"] == ("no effect", "only stage 3 offloads parameters")


def test_a_field_called_as_that_of_a_model_is_no_model(tmp_path):
    values = {**DEEPSPEED, "data_efficiency": {"layer": {"model_type": "decoder"}}}
    for name in ("ds.json", "ds.conf"):
        path = written(tmp_path, name, json.dumps(values))
        assert paceline.simulate(path, gpu="h100", gpus=8, model="llama-3-8b", seq=512).workers == 8


def test_float8_needs_its_converter(tmp_path):
    section = '[float8]\nrecipe_name = "rowwise"\nenable_fsdp_float8_all_gather = true\n'
    alone = trainers.read(written(tmp_path, "titan.toml", TORCHTITAN + section), {})
    assert alone.options["dtype"] == "bf16" and fates(alone)["float8.recipe_name"][0] == "no effect"
    text = TORCHTITAN.replace("[training]", 'converters = ["quantize.linear.float8"]\n[training]') + section
    assert options(tmp_path, "titan.toml", text)["dtype"] == "fp8"


def test_gpus_of_degrees(tmp_path):
    text = MEGATRON.replace("--nproc_per_node ${GPUS_PER_NODE} --nnodes 4", "").replace("GPUS_PER_NODE=8", "")
    assert options(tmp_path, "train.sh", text)["workers"] == 4
    sharded = AXOLOTL + "dp_shard_size: 4\ndp_replicate_size: 2\ntensor_parallel_size: 2\nfsdp_version: 2\n"
    result = options(tmp_path, "lora.yml", sharded + "fsdp_config: {reshard_after_forward: true}\n")
    assert (result["workers"], result["sharding"], result["tensor_parallel"]) == (16, "hsdp:4", 2)


def test_slurm_scripts(tmp_path):
    (tmp_path / "job.slurm").write_text(r"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gres=gpu:a100:4
if [ -z "$1" ]; then echo "usage: --model NAME"; fi
cat > other.json <<EOF
--bf16 is no argument
EOF
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 train.py --per_device_train_batch_size 1 --fp16
""")
    result = trainers.read(tmp_path / "job.slurm", {}).options
    assert (result["workers"], result["gpus_per_node"], result["dtype"]) == (16, 4, "fp16")


SLURM = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
accelerate launch {} sft.py --model_name_or_path gpt2 --per_device_train_batch_size 1
"""


@pytest.mark.parametrize(
    ("launcher", "gpus", "why"),
    [
        ("", 16, "workers 16"),
        ("--num_processes 16", 16, "workers 16"),
        ("--num_processes 4 --num_machines 1", 4, "the launcher starts 4 of the 16 GPUs"),
        ("--config_file acc.yaml", 16, "as the launcher has it"),
        ("--num_processes 32 --num_machines 4", None, "32 GPUs are more than the 16 of #SBATCH --nodes 2, #SBATCH"),
    ],
)
def test_what_the_launcher_starts_wins_over_slurm(tmp_path, launcher, gpus, why):
    (tmp_path / "acc.yaml").write_text(ACCELERATE)
    (tmp_path / "job.slurm").write_text(SLURM.format(launcher))
    if gpus is None:
        with pytest.raises(InvalidArgumentError, match=why):
            trainers.read(tmp_path / "job.slurm", {})
        return
    reading = trainers.read(tmp_path / "job.slurm", {})
    assert reading.options["workers"] == gpus and fates(reading)["#SBATCH --nodes"][1].startswith(why)
    given = fates(trainers.read(tmp_path / "job.slurm", {"workers": [8]}))
    assert given["#SBATCH --nodes"][0] != "not understood"


def test_gpus_of_all_nodes_in_slurm(tmp_path):
    text = SLURM.format("").replace("--gpus-per-node=8", "--gpus=a100:16")
    (tmp_path / "job.slurm").write_text(text)
    assert trainers.read(tmp_path / "job.slurm", {}).options["workers"] == 16


def test_remedies_are_options_that_work(tmp_path):
    path = written(tmp_path, "train.sh")
    for gpus, tried in (("12", "--gpus 8 or --gpus 16"), ("6", "--gpus 4 or --gpus 8")):
        shown = cli.refused("simulate", path, "--gpu", "h100", "--gpus", gpus)
        assert f"try: {tried}" in " ".join(shown.split())
        for count in (tried.split()[1], tried.split()[-1]):
            assert trainers.read(path, {"workers": [int(count)]}) is not None
    offloading = MEGATRON.replace("--bf16", "--bf16 --optimizer-cpu-offload")
    for command in ("simulate", "advise"):
        shown = cli.refused(command, written(tmp_path, "train.sh", offloading), "--gpu", "h100")
        assert "try: --pipeline-parallel 1, or --offload none" in " ".join(shown.split())


def test_a_script_has_no_classes(tmp_path):
    text = MEGATRON.replace("--num-layers 32", "--num-layers 16")
    shown = cli.printed("simulate", written(tmp_path, "train.sh", text), "--gpu", "h100", "--strategy", "native")
    assert "architectures" not in shown


def test_defaults_of_trl(tmp_path):
    text = {"model_name_or_path": "mistralai/Mistral-7B-v0.1", "dataset_text_field": "text", "output_dir": "o"}
    result = options(
        tmp_path,
        "args.json",
        json.dumps({**text, "learning_rate": 1e-5, "gradient_accumulation_steps": 2, "optim": "sgd"}),
    )
    assert (result["seq"], result["batch"], result["dtype"]) == (1024, 8, "bf16")
    assert (result["checkpointing"], result["loss_chunks"]) == ("full", 32)
    plain = {**text, "per_device_train_batch_size": 1, "loss_type": "nll", "max_length": 2048, "use_peft": True}
    result = options(tmp_path, "args.json", json.dumps(plain))
    assert "loss_chunks" not in result and result["lora"] == "16:q_proj,v_proj" and "loss" not in result


@pytest.mark.parametrize(
    ("fields", "recipe"),
    [
        ({}, "upcast-bf16"),
        ({"load_in_4bit": True}, "upcast-bf16"),
        ({"load_in_4bit": True, "fp16": True}, "upcast-fp16"),
        ({"load_in_4bit": True, "dtype": "bfloat16"}, "amp-bf16"),
        ({"use_peft": False, "q_lora": True, "torch_dtype": "bfloat16"}, "upcast-bf16"),
    ],
)
def test_assumption_and_recipe_of_adapters_agree(tmp_path, fields, recipe):
    text = {"model_name_or_path": "Qwen/Qwen3-0.6B", "max_length": 512, "output_dir": "o", "use_peft": True}
    path = written(tmp_path, "args.json", json.dumps(text | {"per_device_train_batch_size": 1} | fields))
    shown = " ".join(cli.call("simulate", path, "--gpu", "h100", "--gpus", 1).stdout.split())
    assert f"recipe {recipe}" in shown and "the recipe of precision" not in shown
    assert ("parameters in FP32, TRL's default" in shown) == (recipe.startswith("upcast") and "q_lora" not in fields)


@pytest.mark.parametrize(
    ("name", "old", "new", "near"),
    [
        ("lora.yml", "sequence_len: 4096", "sequence_len: 4k", "sequence_len: 4096"),
        ("lora.yml", "sequence_len: 4096", "sequence_len: '4,096'", "sequence_len: 4096"),
        ("lora.yml", "micro_batch_size: 2", "micro_batch_size: 2.5", "micro_batch_size: 2"),
        ("lora.yml", "lora_r: 32", "lora_r: -32", "lora_r: 1"),
        ("ds_config.json", '"train_batch_size": "auto"', '"train_batch_size": 62', "train_batch_size: 64"),
    ],
)
def test_values_that_are_proposed_are_near(tmp_path, name, old, new, near):
    assert old in FILES[name][0]
    path = written(tmp_path, name, FILES[name][0].replace(old, new))
    assert near in cli.refused("simulate", path, "--gpu", "h100", "--gpus", "8", "--model", "llama-3-8b")


def test_a_slip_in_a_field_is_said_first(tmp_path):
    fields = {**DEEPSPEED, "zero_optimization": {"stage": 3, "reduce_bucket_sise": 5}}
    path = written(tmp_path, "ds_config.json", json.dumps(fields))
    for command in ("simulate", "advise"):
        said = cli.call(command, path, "--gpu", "h100", "--gpus", 8, "--model", "qwen3-0.6b").stderr
        assert "reduce_bucket_sise is not understood" in " ".join(said.split())
        assert "is it zero_optimization.reduce_bucket_size?" in " ".join(said.split())


def test_remedies_are_of_the_trainer(tmp_path):
    path = written(tmp_path, "train.sh", MEGATRON.replace("--micro-batch-size 1", "--micro-batch-size 16"))
    for command in ("simulate", "advise"):
        shown = cli.call(command, path, "--gpu", "a100-40gb", "--gpus", 32).stdout
        assert "8bit" not in shown and "--loss-chunks" not in shown
    [file] = [Sweep.of(path, {"gpu": "h100", "workers": 32}, "paceline.simulate").file]
    assert file is not None and file.lacks["optimizer"] == ("adamw-8bit", "paged-adamw-8bit")


def test_advise_searches_what_the_trainer_has(tmp_path):
    path = written(tmp_path, "smol.yaml")
    made = json.loads(cli.call("advise", path, "--gpu", "a100", "--gpus", 16, "--json").stdout)
    assert "zero1" in json.dumps(made) and "zero2" not in json.dumps(made) and "zero3" not in json.dumps(made)


def test_assumptions_spell_flags_as_they_are_typed(tmp_path):
    for name in FILES:
        reading = trainers.read(written(tmp_path, name), {})
        assert not [one.remedy for one in reading.assumptions if re.search(r"--[a-z]+_", one.remedy)], name


def test_a_switch_that_is_off_changes_no_assumption(tmp_path):
    words = "no kernels of axolotl's own for LoRA"
    for fields, is_assumed in (("load_in_8bit: false\nrl: null\n", True), ("lora_mlp_kernel: false\n", False)):
        reading = trainers.read(written(tmp_path, "lora.yml", AXOLOTL + fields), {})
        assert any(words in one.words for one in reading.assumptions) is is_assumed


def test_reasons_are_those_of_the_field(tmp_path):
    float8 = '[model]\nconverters = ["float8"]\n[float8]\nenable_fsdp_float8_all_gather = true\nfilter_fqns = ["wq"]\n'
    text = TORCHTITAN.replace("[model]\n", "").replace('name = "llama3"\nflavor = "8B"\n', "")
    float8 = float8.replace("[model]\n", '[model]\nname = "llama3"\nflavor = "8B"\n')
    seen = fates(trainers.read(written(tmp_path, "titan.toml", float8 + text), {}))
    assert seen["float8.enable_fsdp_float8_all_gather"] == ("not forecast", "parameters gathered in 8 bits")
    assert seen["float8.filter_fqns"] == ("not forecast", "layers that stay in 16 bits")
    text = float8.replace('"wq"', '"output"') + text
    seen = fates(trainers.read(written(tmp_path, "titan.toml", text), {}))
    assert seen["float8.filter_fqns"] == ("no effect", "logits are computed in 16 bits in a forecast, too")
    fields = {**TRAINING_ARGUMENTS, "dataset_name": "trl-lib/Capybara", "overwrite_cache": True, "data_seed": 1}
    seen = fates(trainers.read(written(tmp_path, "args.json", json.dumps(fields)), {}))
    assert {seen[name] for name in ("dataset_name", "overwrite_cache", "data_seed")} == {("no effect", "data")}


def test_unknown_fields_are_named(tmp_path):
    path = written(tmp_path, "lora.yml", f"{AXOLOTL}micro_batch_sizes: 3\nfrobnicate: 1\nlearning_rate: 1e-4\n")
    result = fates(trainers.read(path, {}))
    assert result["micro_batch_sizes"][0] == result["frobnicate"][0] == "not understood"
    assert result["learning_rate"][0] == "no effect"
    shown = cli.printed("simulate", path, "--gpu", "h100", "--gpus", "8")
    assert "frobnicate: 1" in shown


def test_the_trainer_wins_over_the_file_beside_it(tmp_path):
    reading = trainers.read(written(tmp_path, "sft.yaml"), {})
    result = fates(reading)
    assert result["ds_config.json: train_micro_batch_size_per_gpu"] == ("read", "batch 2 (the trainer's wins)")
    assert result["ds_config.json: zero_optimization.stage"] == ("read", "sharding zero3")
    (tmp_path / "ds_config.json").unlink()
    missing = LLAMAFACTORY.replace("ds_config.json", "examples/deepspeed/ds_z2_offload_config.json")
    (tmp_path / "sft.yaml").write_text(missing)
    reading = trainers.read(tmp_path / "sft.yaml", {})
    assert reading.options["sharding"] == "zero2" and reading.options["offload"] == "cpu:states"
    assert any("ZeRO-2" in one.words for one in reading.assumptions)


def test_models_by_their_sizes(tmp_path):
    reading = trainers.read(written(tmp_path, "train.sh"), {})
    assert reading.config.name == "llama-3-8b"
    own = trainers.read(written(tmp_path, "smol.yaml"), {}).config
    assert own.name == "smol" and own.whole("num_hidden_layers") == 7
    mixture = MEGATRON.replace("--swiglu", "--swiglu --num-experts 8 --moe-router-topk 2")
    assert trainers.read(written(tmp_path, "train.sh", mixture), {}).config.kind == "mixtral"


def test_dispatch_to_experts(tmp_path):
    mixture = MEGATRON.replace(
        "--swiglu", "--swiglu --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8"
    )

    def dispatch(*words):
        text = mixture.replace("--num-experts", f"{' '.join(words)} --num-experts")
        return trainers.read(written(tmp_path, "train.sh", text), {}).options.get("expert_dispatch")

    assert dispatch() is None
    assert dispatch("--moe-token-dispatcher-type alltoall") == "alltoall"
    assert dispatch("--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend hybridep") == "deepep"
    (tmp_path / "titan.toml").write_text(
        '[model]\nname = "qwen3"\nflavor = "30B-A3B"\n[training]\nseq_len = 4096\n'
        '[parallelism]\nexpert_parallel_degree = 8\nexpert_parallel_comm_backend = "deepep"\n'
    )
    assert trainers.read(tmp_path / "titan.toml", {}).options["expert_dispatch"] == "deepep"


def test_references_in_yaml(tmp_path):
    assert trainers.read(written(tmp_path, "nemo.yaml"), {}).config.whole("intermediate_size") == 4 * 4096


def test_folder_and_config_beside_the_file(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 1000, **sizes}))
    text = AXOLOTL.replace("NousResearch/Meta-Llama-3-8B-Instruct", "model")
    assert trainers.read(written(tmp_path, "lora.yml", text), {}).config.whole("num_hidden_layers") == 2


def test_files_of_others_are_refused(tmp_path):
    for name, text in (("a.yaml", "name: x\n"), ("c.toml", "[a]\nb = 1\n"), ("d.sh", "ls --all\n")):
        (tmp_path / name).write_text(text)
        shown = " ".join(cli.refused("simulate", tmp_path / name).split())
        assert all(one in shown for one in ("axolotl", "DeepSpeed", "Megatron-LM", "torchtitan", name))
    (tmp_path / "b.json").write_text("{}")
    assert "paceline-trace" in cli.call("simulate", tmp_path / "b.json").stderr
    (tmp_path / "e.yaml").write_text("a: [1, 2\nb: 3\n")
    assert "line " in cli.refused("simulate", tmp_path / "e.yaml")


def test_files_of_trainers_that_are_not_read(tmp_path):
    litgpt = "precision: bf16-true\ntrain: {global_batch_size: 8, micro_batch_size: 1, max_seq_length: 512}\n"
    torchtune = "model: {_component_: x}\nbatch_size: 2\ngradient_accumulation_steps: 1\noutput_dir: /tmp\n"
    for text in (litgpt, torchtune):
        (tmp_path / "a.yaml").write_text(text)
        assert "no file of a trainer that Paceline reads" in cli.refused("simulate", tmp_path / "a.yaml")


def test_pairs_are_two_sequences(tmp_path):
    text = LLAMAFACTORY.replace("stage: sft", "stage: dpo").replace("finetuning_type: full", "finetuning_type: lora")
    result = options(tmp_path, "sft.yaml", text)
    assert (result["loss"], result["batch"]) == ("dpo", 2)
    grpo = trainers.read(written(tmp_path, "lora.yml", AXOLOTL + "rl: grpo\n"), {})
    assert fates(grpo)["rl"][0] == "not forecast" and "loss" not in grpo.options


def test_arguments_of_transformers_in_a_script(tmp_path):
    (tmp_path / "run.sh").write_text(r"""
export NNODES=2
torchrun --nproc_per_node=8 --nnodes=$NNODES run_clm.py --model_name_or_path mistralai/Mistral-7B-v0.1 \
  --per_device_train_batch_size 4 --bf16 True --fsdp "full_shard auto_wrap" --block_size 2048 --frob 3
""")
    reading = trainers.read(tmp_path / "run.sh", {})
    assert (reading.gpus, reading.options["sharding"], reading.options["seq"]) == (16, "zero3", 2048)
    assert fates(reading)["--frob"][0] == "not understood"


def test_aliases_of_yaml_do_not_multiply(tmp_path):
    lines = ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{l: *a{n - 1}, r: *a{n - 1}}}" for n in range(1, 40))]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    assert "values" in cli.refused("simulate", tmp_path / "bomb.yaml")


def test_documents_without_an_end_take_no_time():
    assert dict(arguments("<<A\n" * 50_000 + "python x.py --lr 1")) == {"(command)": "x.py", "--lr": 1}


def test_shell_scripts():
    text = r"""
export NODES=${NNODES:-2}
WORLD=$(( 8 * NODES ))
ARGS=" --lr 1e-4 \
  --bf16"
ARGS="$ARGS --world-size=${WORLD}"
MORE=(
  --recompute-modules core_attn mlp   # two of them
  # --fp16
)
MORE+=(--name "two words")
python train.py $ARGS "${MORE[@]}" --last
echo --done
"""
    assert dict(arguments(text)) == {
        **{"--lr": 1e-4, "--bf16": True, "--world-size": 16, "--recompute-modules": ["core_attn", "mlp"]},
        **{"--name": "two words", "--last": True, "(command)": "train.py"},
    }


def test_advise_searches_what_the_file_fixes(tmp_path):
    path = written(tmp_path, "titan.toml")
    made = json.loads(cli.printed("advise", path, "--gpu", "h100", "--json"))
    assert made["best"]["global_batch"] == 16 and made["as_in_file"]["fits"]
    assert made["file"]["trainer"] == "torchtitan"
    shown = cli.printed("advise", path, "--gpu", "h100")
    assert "As in file" in shown and f"simulate {path}" in " ".join(shown.replace("\\\n", "").split())


EXAMPLES = {name: text for name, (text, *_) in FILES.items()} | {
    f"run{number}.sh": command for number, command in enumerate(SCRIPTS)
}
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(string.ascii_letters, max_size=8)
)


@st.composite
def changed_files(draw):
    """A file of a trainer with one value, or a few words, replaced."""
    name = draw(st.sampled_from(sorted(EXAMPLES)))
    text = EXAMPLES[name]
    words = re.split(r"(\s+|[:,=\[\]{}])", text)
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(words) - 1))
        words[place] = draw(st.one_of(st.text(string.printable, max_size=12), SCALARS.map(str), st.sampled_from(words)))
    return name, "".join(words)


@given(changed_files(), st.sampled_from([None, 1, 6, 16]))
def test_whatever_is_written_is_read_or_refused(tmp_path_factory, changed, gpus):
    name, text = changed
    path = tmp_path_factory.getbasetemp() / name
    for beside, content in LAUNCH.items():
        path.with_name(beside).write_text(content)
    path.write_text(text)
    try:
        reading = trainers.read(path, {} if gpus is None else {"workers": [gpus]})
    except InvalidArgumentError as error:
        assert str(path.parent) in str(error)
        return
    if reading is not None:
        assert all(row.fate for row in reading.rows(lambda setting, value: f"--{setting} {value}"))
        assert reading.config is None or reading.config.kind


@given(st.text(string.printable))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    for suffix in (".yaml", ".toml", ".json", ".sh"):
        path = Path(tmp_path_factory.getbasetemp() / f"any{suffix}")
        path.write_text(text)
        try:
            trainers.read(path, {})
        except InvalidArgumentError:
            continue


def test_the_page_shows_what_is_printed(tmp_path):
    page = (Path(__file__).parent.parent / "docs/how-to/trainers-files.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0]
    assert shown in cli.printed("simulate", written(tmp_path, "qlora.yml", text), "--gpu", "a100", "--gpus", "4")


def test_a_gpu_after_the_file(tmp_path):
    path = written(tmp_path, "titan.toml")
    assert paceline.simulate(f"{path}@h100").workers == 16
    assert "says the GPU" in cli.refused("simulate", f"{path}@h100", "--gpu", "a100")


def test_python_warns_of_what_is_left_out(tmp_path):
    path = written(tmp_path, "titan.toml", TORCHTITAN.replace("[compile]", "[metal]\nx = 1\n[compile]"))
    with pytest.warns(UserWarning, match=r"titan.toml: not understood: metal\.x"):
        paceline.simulate(path, gpu="h100")


def test_overrides_of_fields_in_a_script(tmp_path):
    (tmp_path / "bridge.sh").write_text(r"""
torchrun --nproc_per_node 8 pretrain_llama3_8b.py train.micro_batch_size=2 train.global_batch_size=128 \
  model.tensor_model_parallel_size=2 model.num_layers=32 model.hidden_size=4096 model.num_attention_heads=32 \
  dataset.sequence_length=4096
""")
    reading = trainers.read(tmp_path / "bridge.sh", {})
    assert reading.trainer.name == "NeMo"
    result = reading.options
    assert (result["workers"], result["batch"], result["accumulate"], result["seq"]) == (8, 2, 16, 4096)


def test_what_a_file_leaves_out_is_the_trainers_default(tmp_path):
    text = "".join(line + "\n" for line in AXOLOTL.splitlines() if not re.match("sequence_len|bf16|fp16", line))
    reading = trainers.read(written(tmp_path, "lora.yml", text), {})
    assert (reading.options["seq"], reading.options["dtype"]) == (512, "bf16")
    assert {"axolotl's default" in one.words for one in reading.assumptions} == {True, False}
    text = "".join(line + "\n" for line in LLAMAFACTORY.splitlines() if not line.startswith(("cutoff_len", "bf16")))
    result = options(tmp_path, "sft.yaml", text)
    assert (result["seq"], result["dtype"]) == (2048, "bf16")


def test_what_samples_completions_is_no_dpo(tmp_path):
    text = json.dumps(
        {"per_device_train_batch_size": 2, "output_dir": "o", "learning_rate": 1e-6, "optim": "adamw_torch"}
    )
    more = {**json.loads(text), "beta": 0.04, "num_generations": 8, "max_prompt_length": 512}
    reading = trainers.read(written(tmp_path, "args.json", json.dumps(more)), {})
    assert "loss" not in reading.options and fates(reading)["num_generations"][0] == "not forecast"
    reading = trainers.read(written(tmp_path, "args.json", json.dumps({**json.loads(text), "beta": 0.1})), {})
    assert reading.options["loss"] == "dpo" and any("beta" in one.words for one in reading.assumptions)


OFFLOADING = """\
base_model: NousResearch/Meta-Llama-3-8B
micro_batch_size: 4
activation_offloading: true
torch_dtype: float32
fsdp_version: 2
fsdp_config:
  offload_params: true
"""


def test_axolotl_offloads_parameters_and_activations(tmp_path):
    reading = trainers.read(written(tmp_path, "off.yml", OFFLOADING), {})
    assert reading.options["offload"] == "cpu:parameters,states,activations"
    for field in ("activation_offloading", "fsdp_config.offload_params"):
        assert fates(reading)[field] == ("read", "offload cpu:parameters,states,activations")
    assert fates(reading)["torch_dtype"] == ("read", "dtype fp32")
    alone = trainers.read(tmp_path / "off.yml", {"sharding": ["none"]})
    assert alone.options["offload"] == "cpu:activations"


@each_file
def test_each_option_is_of_a_field_or_an_assumption(tmp_path, name):
    """What is printed gives the same forecast as the file."""
    reading = trainers.read(written(tmp_path, name), {"workers": [16]})
    rows = reading.rows(lambda name, value: f"{name} {value}")
    shown = {name for row in rows for name in row.options} | {one for it in reading.assumptions for one in it.settings}
    assert reading.options.keys() <= shown


PURE = "model_name_or_path: Qwen/Qwen2.5-7B\nstage: sft\ntemplate: qwen\nper_device_train_batch_size: 1\n"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("pure_bf16: true\nfinetuning_type: full\n", {"precision": "bf16", "dtype": "bf16"}),
        ("pure_bf16: true\nfinetuning_type: lora\n", {"precision": "mixed", "dtype": "bf16"}),
        ("bf16: true\nfinetuning_type: lora\n", {"precision": None, "dtype": "bf16"}),
        ("bf16: true\nquantization_bit: 4\nquantization_method: hqq\n", {"quantize": "nf4"}),
        ("bf16: true\nquantization_bit: 8\nquantization_method: eetq\n", {"quantize": "int8"}),
        ("bf16: true\nquantization_bit: 4\n", {"quantize": "nf4-double"}),
    ],
)
def test_types_of_llama_factory(tmp_path, more, expected):
    made = options(tmp_path, "own.yaml", PURE + more)
    assert {name: made.get(name) for name in expected} == expected


def test_adapters_without_autocast_are_in_fp32(tmp_path):
    text = "base_model: NousResearch/Meta-Llama-3-8B\nmicro_batch_size: 1\nadapter: lora\nlora_r: 8\n"
    assert options(tmp_path, "own.yml", f"{text}bfloat16: true\n")["precision"] == "mixed"
    assert "precision" not in options(tmp_path, "own.yml", f"{text}bf16: true\n")


@pytest.mark.parametrize(("arguments", "types"), [("", "fp32"), ("--bf16", "bf16, recipe o2")])
def test_of_a_missing_file_of_deepspeeds_the_types_are_the_trainers(tmp_path, arguments, types):
    line = "deepspeed --num_gpus=4 tune.py --deepspeed ds_zero2.json --model_name_or_path meta-llama/Llama-3.1-8B"
    path = written(tmp_path, "own.sh", f"{line} --per_device_train_batch_size 4 {arguments}\n")
    shown = " ".join(cli.output("simulate", path, "--gpu", "h100", "--seq", 512).split())
    assert f"512 tokens, {types}, " in shown and ", zero2, 4x H100: " in shown


def test_two_types_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="fp16: contradicts bf16"):
        options(tmp_path, "own.yaml", f"{PURE}bf16: true\nfp16: true\n")


@pytest.mark.parametrize("value", ["²", "--1", "two", "1_", "٣", "-"])
def test_text_that_is_no_whole_number_is_refused(tmp_path, value):
    with pytest.raises(InvalidArgumentError, match="micro_batch_size: must be a whole number") as raised:
        options(tmp_path, "own.yml", f'base_model: NousResearch/Meta-Llama-3-8B\nmicro_batch_size: "{value}"\n')
    near = {"two": 2, "1_": 1, "٣": 3}.get(value)
    number = f"micro_batch_size: {near}" if near else "a whole number for micro_batch_size"
    assert raised.value.remedy == number
    made = options(tmp_path, "own.toml", f'{TORCHTITAN}selective_ac_option = "op"\n')
    titan = TORCHTITAN.replace('mode = "selective"', f'mode = "selective"\nselective_ac_option = "{value}"')
    assert options(tmp_path, "own.toml", titan)["checkpointing"] == made["checkpointing"]


@pytest.mark.parametrize("number", ["0x" + "f" * 4000, "59:" * 3000 + "59"], ids=["hex", "sexagesimal"])
@pytest.mark.parametrize("field", ["warmup_steps", "micro_batch_size", "lora_target_modules"])
def test_integers_of_thousands_of_digits(tmp_path, number, field):
    text = f"base_model: NousResearch/Meta-Llama-3-8B\nsequence_len: 512\n{field}: {number}\n"
    if field == "micro_batch_size":
        with pytest.raises(InvalidArgumentError, match="not a number of thousands of digits"):
            options(tmp_path, "own.yml", text)
    else:
        reading = trainers.read(written(tmp_path, "own.yml", f"{text}? {number}\n: 1\nmore: [{number}]\n"), {})
        assert fates(reading)[field]


@pytest.mark.parametrize("name", ["power_limit", "real_tokens", "lora"])
def test_settings_of_thousands_of_digits(name):
    with pytest.raises(InvalidArgumentError):
        paceline.simulate("llama-3-8b", gpu="h100", workers=8, **{name: 10**5000})


def test_the_optimizer_of_deepspeeds_file_is_used(tmp_path):
    text = LLAMAFACTORY + "optim: adamw_8bit\n"
    assert options(tmp_path, "factory.yaml", text)["optimizer"] == "adamw"  # states on the CPU
    (tmp_path / "z2.json").write_text('{"zero_optimization": {"stage": 2}, "optimizer": {"type": "Lion"}}')
    path = written(tmp_path, "factory.yaml", text.replace("ds_config.json", "z2.json"))
    reading = trainers.read(path, {})
    assert reading.options["optimizer"] == "lion"
    assert fates(reading)["optim"] == ("no effect", "z2.json: optimizer.type says the optimizer")
    (tmp_path / "z2.json").write_text('{"zero_optimization": {"stage": 2}}')
    reading = trainers.read(path, {})
    assert reading.options["optimizer"] == "adamw-8bit" and "optimizer_impl" not in reading.options


def test_nemos_optimizer_shards_and_products_are_as_fp8_says(tmp_path):
    text = NEMO.replace("distributed_fused_adam", "mcore_distributed_optim") + "  fp8: false\n  fp8_hybrid: true\n"
    reading = trainers.read(written(tmp_path, "nemo.yaml", text), {})
    assert (reading.options["sharding"], reading.options["dtype"]) == ("zero1", "bf16")
    assert fates(reading)["model.fp8_hybrid"] == ("no effect", "fp8 is off")
    assert options(tmp_path, "nemo.yaml", text.replace("fp8: false", "fp8: true"))["dtype"] == "fp8"


@pytest.mark.parametrize(
    ("name", "text", "own"),
    [
        ("lora.yml", AXOLOTL.replace("adapter: qlora\n", "").replace("load_in_4bit: true\n", ""), {"dtype": "fp8"}),
        ("factory.yaml", LLAMAFACTORY, {"dtype": "fp8", "precision": "o2"}),
    ],
)
def test_fp8_of_axolotl_and_llama_factory(tmp_path, name, text, own):
    read = options(tmp_path, name, f"{text}fp8: true\n")
    assert own.items() <= read.items()


def test_compiled_kernels_beside_ligers_loss(tmp_path):
    text = f"{AXOLOTL}torch_compile: true\nliger_rms_norm: true\nliger_fused_linear_cross_entropy: true\n"
    read = options(tmp_path, "lora.yml", text)
    assert read["kernels"] == "compiled" and read["loss_chunks"] > 1
    values = {**TRAINING_ARGUMENTS, "torch_compile": True, "use_liger_kernel": True}
    read = options(tmp_path, "args.json", json.dumps(values))
    assert read["kernels"] == "compiled" and read["loss_chunks"] >= 1


def test_llama_factory_on_megatron(tmp_path):
    text = LLAMAFACTORY.replace("deepspeed: ds_config.json", "pipeline_model_parallel_size: 4\nuse_muon: true")
    read = options(tmp_path, "factory.yaml", text)
    assert read["kernels"] == "fused" and "checkpointing" not in read
    assert read["optimizer"] == "muon"


def test_tokens_of_prompt_and_completion(tmp_path):
    values = {**TRAINING_ARGUMENTS, "max_prompt_length": 512, "max_completion_length": 1024, "num_generations": 8}
    assert options(tmp_path, "args.json", json.dumps(values))["seq"] == 1536


def test_a_file_is_loaded_once_for_all_numbers_of_gpus_and_shardings(tmp_path, monkeypatch):
    path, loaded = written(tmp_path, "lora.yml"), []
    of = trainers.Document.of
    monkeypatch.setattr(trainers.Document, "of", lambda file: loaded.append(file) or of(file))
    given = {"gpu": "h100", "workers": [8, 16, 32], "sharding": ["none", "zero2", "zero3"]}
    sweep = Sweep.of(path, given, "paceline.sweep")
    scenarios = prepare(sweep).scenarios
    assert loaded == [path] and {one.workers for one in scenarios} == {8, 16, 32}
    assert sweep.described_file().rows == sweep.file.rows and loaded == [path]
    # A report asks what a file fits, and then forecasts that.
    loaded.clear()
    chapter = report_spec.of_trace(f"{path}@h100").chapters[0]
    assert len(chapter.prepared.scenarios) > 8 and len(loaded) == 2


def test_values_that_a_script_leaves_open_are_said_first(tmp_path):
    path = written(tmp_path, "train.sh", MEGATRON.replace("--seq-length 8192", "--seq-length $7"))
    said = cli.call("simulate", path, "--gpu", "h100", "--seq", 2048).stderr
    assert "train.sh: has no values of --seq-length $7: give options" in " ".join(said.split())


@pytest.mark.parametrize(
    ("fields", "attention", "is_assumed"),
    [
        ("", "unfused", True),
        ("attn_implementation: eager", "unfused", False),
        ("flash_attention: true", "flash", False),
    ],
)
def test_attention_with_sinks_is_eager_unless_another_is_named(tmp_path, fields, attention, is_assumed):
    text = f"base_model: openai/gpt-oss-20b\nmicro_batch_size: 1\nadapter: lora\nlora_r: 8\n{fields}\n"
    reading = trainers.read(written(tmp_path, "sinks.yml", text), {})
    assert reading.options["attention"] == attention
    assert any("attention sinks" in one.words for one in reading.assumptions) is is_assumed


@pytest.mark.parametrize(("model", "fate"), [("Qwen/Qwen3-30B-A3B", "read"), ("openai/gpt-oss-20b", "not forecast")])
def test_quantized_experts_are_those_of_a_forecast(tmp_path, model, fate):
    text = f"base_model: {model}\nmicro_batch_size: 1\nadapter: qlora\nlora_r: 8\nload_in_4bit: true\n"
    reading = trainers.read(written(tmp_path, "experts.yml", f"{text}quantize_moe_experts: true\n"), {})
    assert fates(reading)["quantize_moe_experts"][0] == fate
