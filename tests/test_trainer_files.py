"""Files of trainers are no input, but an error says which options say the same, and these work."""

import json
import re
import shlex
import string

import cli
import paceline
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.interop.trainers import recognized
from paceline.interop.trainers.options import meaning
from paceline.interop.trainers.text import values

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
adapter: lora
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
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
torchrun --nproc_per_node ${GPUS_PER_NODE} --nnodes 4 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --vocab-size 128256 \
  --seq-length 8192 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer \
  --num-layers-per-virtual-pipeline-stage 8 --micro-batch-size 1 --global-batch-size 128 --bf16 --recompute-activations
"""
NANOTRON = """\
parallelism: {dp: 16, tp: 2, pp: 1, tp_mode: REDUCE_SCATTER}
tokens: {sequence_length: 4096, micro_batch_size: 3, batch_accumulation_per_replica: 4}
optimizer: {zero_stage: 1}
model:
  dtype: bfloat16
  model_config: {hidden_size: 2048, num_hidden_layers: 7, vocab_size: 49152}
"""
FILES = [
    (
        "ds_config.json",
        json.dumps(DEEPSPEED),
        "DeepSpeed",
        "--sharding zero3 --batch 2 --accumulate 4 --dtype bf16 --precision o2",
    ),
    (
        "accelerate.yaml",
        ACCELERATE,
        "accelerate",
        "--gpus 16 --sharding zero3 --reshard-after-forward no --checkpointing full --dtype bf16",
    ),
    (
        "titan.toml",
        TORCHTITAN,
        "torchtitan",
        "llama-3-8b --gpu GPU --gpus 16 --sharding hsdp:8 --batch 1 --seq 8192 --dtype bf16"
        " --precision fsdp-mixed --optimizer-impl fused --checkpointing selective --kernels compiled --loss-chunks 1",
    ),
    (
        "lora.yml",
        AXOLOTL,
        "axolotl",
        "llama-3-8b --gpu GPU --gpus N --batch 2 --accumulate 4 --seq 4096 --dtype bf16 --checkpointing full",
    ),
    (
        "sft.yaml",
        LLAMAFACTORY,
        "LLaMA-Factory",
        "mistral-7b --gpu GPU --gpus N --batch 1 --accumulate 8 --seq 2048 --dtype bf16 --checkpointing full"
        " --sharding zero3 --precision o2",
    ),
    (
        "train.sh",
        MEGATRON,
        "Megatron-LM",
        "llama-3-8b --gpu GPU --gpus 32 --tensor-parallel 2 --pipeline-parallel 2 --virtual-stages 2 --sharding zero1"
        " --batch 1 --microbatches 16 --seq 8192 --dtype bf16 --precision megatron --checkpointing selective",
    ),
    (
        "smol.yaml",
        NANOTRON,
        "nanotron",
        "MODEL --gpu GPU --gpus 32 --tensor-parallel 2 --sharding zero1 --batch 3 --accumulate 4 --seq 4096",
    ),
]
each_file = pytest.mark.parametrize(("name", "text", "trainer", "options"), FILES, ids=[file[2] for file in FILES])


def written(folder, name, text):
    (folder / "ds_config.json").write_text(json.dumps(DEEPSPEED))
    (folder / name).write_text(text)
    return str(folder / name)


@each_file
@pytest.mark.parametrize(
    "words",
    [
        ("simulate",),
        ("advise", "--gpu", "h100", "--gpus", "8"),
        ("models",),
        ("simulate", "--gpu", "h100", "--config"),
        ("simulate", "resnet-50", "--cluster"),
        ("simulate", "--jobs"),
    ],
    ids=" ".join,
)
def test_the_error_says_which_options_say_the_same(tmp_path, words, name, text, trainer, options):  # noqa: PLR0917
    path = written(tmp_path, name, text)
    shown = cli.refused(*words, path)
    assert f"{name} is a configuration of {trainer}" in shown
    assert options in shown


@each_file
def test_these_options_work(tmp_path, name, text, trainer, options):
    with pytest.raises(paceline.InvalidArgumentError) as caught:
        paceline.simulate(written(tmp_path, name, text), workers=8)
    command = re.search(r"paceline (simulate [^(]*)", caught.value.remedy)[1]
    for word, value in (("MODEL", "llama-3-8b"), ("GPU", "h100"), ("N", "8")):
        command = re.sub(rf"\b{word}\b", value, command)
    cli.printed(*shlex.split(command))


def test_what_no_option_says_is_named(tmp_path):
    assert recognized(tmp_path / "none.json") is None
    (tmp_path / "ds.json").write_text(json.dumps(DEEPSPEED))
    assert recognized(tmp_path / "ds.json").left_out == ["the optimizer's states in the memory of the CPU"]
    (tmp_path / "lora.yml").write_text(AXOLOTL + "load_in_4bit: true\noptimizer: paged_adamw_8bit\n")
    left = recognized(tmp_path / "lora.yml").left_out
    assert left == ["lora, since a forecast trains all weights", "quantized weights", "the optimizer paged_adamw_8bit"]


def test_other_files_keep_their_errors(tmp_path):
    for name, text in (("a.yaml", "name: x\n"), ("b.json", "{}"), ("c.toml", "[a]\nb = 1\n"), ("d.sh", "ls --all\n")):
        (tmp_path / name).write_text(text)
        assert recognized(tmp_path / name) is None
        shown = cli.call("simulate", tmp_path / name)
        assert "paceline-trace" in shown.stderr


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(string.ascii_letters, max_size=8)
)
KEYS = st.sampled_from([*DEEPSPEED, "stage", "base_model", "distributed_type", "num_processes", "parallelism", "dp"])


@given(
    st.one_of(
        st.text(string.printable),
        st.recursive(SCALARS, lambda inner: st.dictionaries(KEYS, inner), max_leaves=20).map(json.dumps),
        st.lists(st.sampled_from(re.split(r"(\s)", ACCELERATE + MEGATRON + NANOTRON))).map("".join),
    )
)
def test_whatever_is_written_is_recognized_or_not(tmp_path_factory, text):
    try:
        found = values(text)
    except (ValueError, RecursionError):
        return
    result = meaning(found, tmp_path_factory.getbasetemp() / "none")
    assert result is None or result.command.startswith("paceline simulate ")
