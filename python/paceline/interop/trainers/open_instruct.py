"""Arguments of open-instruct's scripts, as YAML or in a shell script: open_instruct/finetune.py, dpo_tune_cache.py.

It loads models in bfloat16, over which accelerate or DeepSpeed runs, with a loop of its own. GRPO and PPO generate
samples, which is not modeled.
"""

from __future__ import annotations

from paceline.interop.trainers import hf_trainer
from paceline.interop.trainers.document import Values
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import (
    adapters_in_fp32,
    as_fields,
    default_optimizer,
    eager_kernels,
    take_gpus,
    take_lora,
    take_loss,
)

_DPO = (
    *("dpo_beta", "dpo_loss_type", "dpo_use_paged_optimizer", "beta", "loss_type"),
    *("reference_logprobs_cache_path", "concatenated_forward"),
)
"""Arguments that only its DPO has."""
_OPTIMIZERS = ("use_8bit_optimizer", "dpo_use_paged_optimizer")


def _derive(reading: Reading) -> None:
    name = "model_name_or_path"
    reading.name_model(reading.text(name), name)
    take_gpus(reading)
    hf_trainer.batch(reading)
    if "batch" not in reading.options:
        size = hf_trainer.BATCH
        reading.default("batch", size, f"batch {size} per GPU, open-instruct's default", "--batch N")
    hf_trainer.sharding(reading)
    reading.default("dtype", "bf16", "parameters in bfloat16, as open-instruct loads them", "--dtype NAME")
    hf_trainer.precision(reading, "bf16")
    hf_trainer.recomputation(reading, "gradient_checkpointing")
    if reading.flag("use_liger_kernel"):
        hf_trainer.liger(reading, "use_liger_kernel")
    else:
        eager_kernels(reading)
    is_paged = [reading.flag(one) for one in _OPTIMIZERS]
    if any(is_paged):
        reading.take("optimizer", "adamw-8bit" if is_paged[0] else "paged-adamw", *_OPTIMIZERS)
    elif reading.flag("fused_optimizer", default=True):
        default_optimizer(reading, "open-instruct's default")
    lengths = ("max_seq_length", "max_token_length", "pack_length")
    reading.take("seq", reading.whole(*lengths), *lengths)
    is_quantized = reading.flag("use_qlora")
    if reading.flag("use_lora") or is_quantized:
        take_lora(
            reading,
            ("lora_rank",),
            (),
            *("use_lora", "use_qlora"),
            default_rank=(64, "open-instruct's default"),
            default_modules=("all-linear", "which open-instruct adapts"),
        )
        adapters_in_fp32(reading)
        reading.take("quantize", "nf4-double" if is_quantized else None, "use_qlora")
    if not reading.has("*rollout*", "total_episodes") and reading.has(*_DPO):
        take_loss(reading, "dpo", *_DPO)
    hf_trainer.packing(reading, "packing")


def _recognizes(values: Values) -> bool:
    names = set(as_fields(values)[0])
    own = {"with_tracking", "dataset_mixer_list", "dataset_mixer", "dataset_mix_dir", "try_launch_beaker_eval_jobs"}
    return "model_name_or_path" in names and bool(names & own)


OPEN_INSTRUCT = Trainer(
    "open-instruct",
    _recognizes,
    _derive,
    tables=("open-instruct", "transformers"),
    translate=as_fields,
)
