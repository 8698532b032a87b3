"""Shell scripts as trainers' files: branches that variables decide, redirections, Megatron-DeepSpeed's arguments."""

import json

import cli
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog.models.names import resolve
from paceline.errors import InvalidArgumentError
from paceline.interop import trainers
from paceline.interop.trainers.branches import Branches
from paceline.interop.trainers.shell import OF_VISIBLE, OPEN, PROGRAM, arguments
from paceline.interop.trainers.variables import Variables


def of(text):
    return {name: value for name, value in arguments(text) if name != PROGRAM}


def options(folder, text, **given):
    path = folder / "train.sh"
    path.write_text(text, encoding="utf-8")
    reading = trainers.read(path, given)
    assert reading is not None
    return reading


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ('[ "$SIZE" = 8B ]', 1),
        ("[[ $SIZE == 7* ]]", 2),
        ("[ $SIZE != 8B ]", 2),
        ("[[ $GPUS -gt 4 ]] && [ $SIZE = 8B ]", 1),
        ("[ $GPUS -lt 4 ] || [ $GPUS -eq 8 ]", 1),
        ("! [ $GPUS -ge 8 ]", 2),
        ("[ ! $GPUS -ge 8 ]", 2),
        ("[ -z ${NOBODY_SETS_IT} ]", 1),
        ('[[ -n "$SIZE" ]]', 1),
        ("test $GPUS -le 8", 1),
        ("[[ $SIZE == 8B && $GPUS -gt 8 ]]", 2),
        ("[[ $SIZE == 7B || $GPUS -gt 4 ]]", 1),
    ],
)
def test_branches_that_variables_decide(condition, value):
    for keyword in ("; then", "\nthen", ";then"):
        script = f"SIZE=8B\nGPUS=8\nif {condition}{keyword}\n  N=1\nelse\n  N=2\nfi\nrun.py --num-layers $N"
        assert of(script) == {"--num-layers": value}
    assert of(f"SIZE=8B; GPUS=8; if {condition}; then N=1; else N=2; fi; run.py --num-layers $N") == {
        "--num-layers": value
    }


def test_the_branch_of_a_chain():
    script = "AC={}\nif [ $AC = full ]; then\n A=1\nelif [ $AC = sel ]; then\n A=2\nelse\n A=3\nfi\nrun.py --a $A"
    assert [of(script.format(one))["--a"] for one in ("full", "sel", "none")] == [1, 2, 3]


def test_the_branch_of_a_case():
    script = """S={}
case "${{S}}" in
  "800M")
    H=1024
    ;;
  8B|7B) H=4096 ;;
  *)
    H=1
esac
run.py --hidden-size $H
"""
    assert [of(script.format(one))["--hidden-size"] for one in ("800M", "7B", "x")] == [1024, 4096, 1]


def test_open_branches_are_all_read_and_named(tmp_path):
    script = """if [ $1 = a ]; then
  A=1
elif [ $1 = b ]; then
  A=2
fi
if [ ! -f $DATA ]; then
  wget $DATA
fi
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $A --hidden-size 64 --num-attention-heads 4
"""
    assert of(script)[OPEN] == ["1"]
    reading = options(tmp_path, script)
    assert "the last of the branches that depend on $1, which the script leaves open" in [
        one.words for one in reading.assumptions
    ]


def test_guarded_assignments():
    script = 'FP8={}\nARGS="--bf16"\n[ "$FP8" = 1 ] && ARGS+=" --fp8-format hybrid"\n[[ $FP8 == 1 ]] || TP=4\n'
    script += "run.py $ARGS --tp-size ${{TP:-2}}"
    assert of(script.format(0)) == {"--bf16": True, "--tp-size": 4}
    assert of(script.format(1)) == {"--bf16": True, "--fp8-format": "hybrid", "--tp-size": 2}


def test_a_scripts_own_options_are_not_given():
    script = (
        'TP=2\nwhile [[ $# -gt 0 ]]; do\n case $1 in\n  --tp) TP="$2"; shift 2 ;;\n esac\ndone\nrun.py --tp-size $TP'
    )
    assert of(script) == {"--tp-size": 2}


def test_a_program_may_be_a_condition():
    assert of("if ! torchrun --nproc_per_node 8 \\\n x.py --a 1; then\n exit 1\nfi") == {
        "--nproc-per-node": 8,
        "--a": 1,
    }


@pytest.mark.parametrize("end", ["2>&1 | tee log", "> log 2>&1", "&>> log", ">$LOG/$(date +%F).log"])
def test_redirections_are_no_values(end):
    assert of(f"torchrun x.py --deepspeed ds.json {end}") == {"--deepspeed": "ds.json"}


@given(st.text("if[]then elsfi;\n$A=1case)esac|&!-zx", max_size=80))
def test_any_script_is_read(text):
    variables = Variables(text, iter(()))
    assert isinstance(Branches(variables, lambda part: part).read(text), str)


MEGATRON_DEEPSPEED = """ZERO_STAGE=1
ckpt="false"
ds_args="--zero-stage=$ZERO_STAGE --deepspeed --deepspeed_config=ds.json"
if [ "${ckpt}" = "true" ]; then
  ds_args="--recompute-granularity full ${ds_args}"
fi
deepspeed pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --num-key-value-heads 4 \\
  --ffn-hidden-size 5504 --swiglu --normalization rmsnorm --seq-length 2048 --max-position-embeddings 2048 --bf16 \\
  --micro-batch-size 4 --global-batch-size 64 --pad-vocab-size-to 250880 $ds_args > log 2>&1
"""


def test_megatron_deepspeed(tmp_path):
    reading = options(tmp_path, MEGATRON_DEEPSPEED, workers=16)
    assert reading.options["sharding"] == "zero1"
    assert reading.options["attention"] == "unfused"
    assert "checkpointing" not in reading.options
    fields = reading.config.fields
    assert (fields["num_key_value_heads"], fields["vocab_size"]) == (4, 250_880)
    rows = {row.field: row for row in reading.rows(lambda setting, value: f"{setting} {value}")}
    assert rows["--deepspeed-config"].words == "there is no such file"
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}, "bf16": {"enabled": true}}', "utf-8")
    flash = MEGATRON_DEEPSPEED.replace("--bf16", "--bf16 --use-flash-attn-v2")
    reading = options(tmp_path, flash, workers=16)
    assert "attention" not in reading.options and "kernels" not in reading.options


def test_8_bit_products_with_gradients_reduced_in_16_bits(tmp_path):
    script = (
        "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --bf16 --fp8-format hybrid"
    )
    assert options(tmp_path, script).options["precision"] == "megatron"
    assert options(tmp_path, f"{script} --grad-reduce-in-bf16").options["precision"] == "o2"


def test_nodes_that_nothing_says_are_as_many_as_degrees_need(tmp_path):
    script = "torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 --global-batch-size 64 --bf16 "
    degrees = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 9"
    reading = options(tmp_path, script + degrees)
    assert reading.options["workers"] == 72
    assert "9 nodes, the fewest of these degrees" in [one.words for one in reading.assumptions]
    experts = "--pipeline-model-parallel-size 4 --expert-model-parallel-size 8"
    assert options(tmp_path, script + experts).options["workers"] == 32
    for words, gpus, said in ((degrees, 8, "gpus=72"), (experts, 16, "gpus=32")):
        with pytest.raises(InvalidArgumentError) as error:
            options(tmp_path, script + words, workers=gpus)
        assert said in str(error.value.remedy)


def test_one_expert_is_none(tmp_path):
    reading = options(tmp_path, MEGATRON_DEEPSPEED.replace("--bf16", "--bf16 --num-experts 1"), workers=16)
    assert "num_experts" not in reading.config.fields


COMMON = "--model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 --output_dir o"


@pytest.mark.parametrize(
    ("command", "loss", "batch"),
    [
        ("trl sft", None, 2),
        ("trl dpo", "dpo", 4),
        ("trl kto", "kto", 2),
        ("trl reward", None, 4),
        ("accelerate launch --num_processes 8 trl/scripts/dpo.py", "dpo", 4),
        ("accelerate launch -m trl.scripts.kto", "kto", 2),
        ("python kto.py --a 1 --b 2 --c 3 --d 4 --e 5\ndeepspeed --module lib.train_dpo", "dpo", 4),
        ("python examples/scripts/orpo.py", "orpo", 4),
        ("torchrun --nproc_per_node 8 train_dpo.py --beta 0.1", "dpo", 4),
        ("trl dpo --precompute_ref_log_probs", "cpo", 4),
        ("trl dpo --loss_type ipo", "dpo", 4),
        ("python train.py --desirable_weight 1.0", "kto", 2),
        ("python train.py", None, 2),
    ],
)
def test_the_loss_follows_the_command(tmp_path, command, loss, batch):
    reading = options(tmp_path, f"{command} {COMMON}", workers=8)
    assert (reading.options.get("loss"), reading.options["batch"]) == (loss, batch)
    if command.startswith("trl"):
        assert (reading.options["seq"], reading.options["checkpointing"]) == (1024, "full")
        assert ("loss_chunks" in reading.options) is (command == "trl sft")


def test_generation_of_a_command_is_not_modeled(tmp_path):
    reading = options(tmp_path, f"trl grpo {COMMON}", workers=8)
    assert reading.options["seq"] == 768 and "loss" not in reading.options
    fates = {row.field: row.fate for row in reading.rows(lambda name, value: f"{name} {value}")}
    assert fates[PROGRAM] == "not forecast" and "GRPO samples" in reading.warnings[0]


def test_a_file_of_trl_by_its_command(tmp_path):
    (tmp_path / "c.yaml").write_text("model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 2\n")
    reading = options(tmp_path, "trl dpo --config c.yaml --output_dir o", workers=8)
    assert (reading.options["loss"], reading.options["batch"]) == ("dpo", 4)


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("CUDA_VISIBLE_DEVICES=0 swift rlhf --rlhf_type dpo --model Qwen/Qwen3-8B", 1),
        ("CUDA_VISIBLE_DEVICES=0,1 swift sft --tuner_type lora --model Qwen/Qwen3-8B", None),
        (f"CUDA_VISIBLE_DEVICES=4,5,6,7 trl sft {COMMON}", 4),
        (f"export CUDA_VISIBLE_DEVICES=0,1\naccelerate launch sft.py {COMMON}", 2),
        (f"CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --num_processes 2 sft.py {COMMON}", 2),
        (f"CUDA_VISIBLE_DEVICES=0,1 python train.py {COMMON}", None),
    ],
)
def test_gpus_that_a_script_shows(tmp_path, command, gpus):
    reading = options(tmp_path, command)
    assert reading.options.get("workers") == gpus
    assert (OF_VISIBLE in reading.values) is (gpus is not None and "num_processes" not in command)


def test_swift_on_megatron_by_its_command(tmp_path):
    text = """NPROC_PER_NODE=8 megatron sft --load Qwen3-30B-A3B-Base-mcore --tuner_type lora --lora_rank 8 \\
      --target_modules all-linear --expert_model_parallel_size 8 --micro_batch_size 1 --global_batch_size 16 \\
      --max_length 8192"""
    reading = options(tmp_path, text)
    assert (reading.trainer.name, reading.config.name) == ("ms-swift", "qwen3-30b-a3b")
    expected = {"dtype": "bf16", "sharding": "zero1", "lora": "8:all-linear", "seq": 8192, "workers": 8}
    assert expected.items() <= reading.options.items()


def refusal(folder, name, text, *more):
    (folder / name).write_text(text, encoding="utf-8")
    result = cli.call("simulate", folder / name, "--gpu", "h100", *more)
    assert result.exit_code != 0
    return " ".join(result.stderr.split())


def test_refusals_name_the_field_and_what_works(tmp_path):
    lora = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: lora\nlora_target: q_prj\n"
    assert "lora_target: --lora: 'q_prj'" in refusal(tmp_path, "a.yaml", lora, "--gpus", "8")
    launched = f"accelerate launch --config_file cfg/zero2.yaml --num_processes 8 sft.py {COMMON}"
    assert "or --sharding zero2" in refusal(tmp_path, "b.sh", launched)
    unsloth = 'FastLanguageModel.from_pretrained("unsloth/Meta-Llama-3.1-8B-bnb-4bit", load_in_4bit=True)'
    assert "simulate llama-3.1-8b --lora 16 --quantize nf4" in refusal(tmp_path, "c.py", unsloth)
    megatron = "pretrain_gpt.py --micro-batch-size 1 --tensor-model-parallel-size 2 --load ckpts/Qwen2.5-7B"
    assert "--model qwen2.5-7b" in refusal(tmp_path, "d.sh", megatron)


def test_badam_is_said_to_be_none(tmp_path):
    path = tmp_path / "badam.yaml"
    path.write_text("model_name_or_path: Qwen/Qwen3-8B\nfinetuning_type: full\nuse_badam: true\nbadam_mode: layer\n")
    assert "BAdam trains one block at a time" in cli.said("simulate", path, "--gpu", "h100", "--gpus", "8")
    frozen = ("--freeze", "model.layers.?.*")
    assert "one block at a time, and" not in cli.said("simulate", path, "--gpu", "h100", "--gpus", "8", *frozen)
    shown = cli.call("simulate", path, "--gpu", "h100", "--gpus", "8", "--json")
    fields = {row["field"] for row in json.loads(shown.stdout)[0]["file"]["not_forecast"]}
    assert fields == {"use_badam", "badam_mode"}


def test_a_name_of_which_the_hub_has_the_instructed_model_alone():
    assert resolve("llama-3.3-70b").name == resolve("meta-llama/Llama-3.3-70B-Instruct").name
