"""LLaMA-Factory's YAML: src/llamafactory/hparams.

What is trained is held in FP32 (`_setup_full_tuning` and `_setup_lora_tuning` in model/adapter.py), unless `pure_bf16`
is set; checkpointing is on unless it is disabled (model/model_utils/checkpointing.py).
"""

from __future__ import annotations

from paceline.interop.trainers import hf_trainer
from paceline.interop.trainers.reading import Reading, Trainer
from paceline.interop.trainers.words import AUTOCAST, lora_modules, take_lora, take_optimizer

_ATTENTION = {
    "auto": "flash",
    "disabled": "unfused",
    "sdpa": "flash",
    "fa2": "flash",
    "fa3": "flash",
    "off": "unfused",
    False: "unfused",
    True: "flash",
}
_STAGES = {"pt": "lm", "sft": "lm", "dpo": "dpo", "kto": "kto", "rm": "rm", "ppo": "ppo"}
_QUANTIZED = {4: "nf4-double", 8: "int8"}


def _derive(reading: Reading) -> None:
    reading.name_model(reading.text("model_name_or_path"), "model_name_or_path")
    hf_trainer.batch(reading)
    hf_trainer.sharding(reading)
    pure = reading.flag("pure_bf16")
    if pure:
        reading.take("dtype", "bf16", "pure_bf16")
        reading.take("precision", "bf16", "pure_bf16")
    else:
        hf_trainer.precision(reading, None)
    if reading.flag("disable_gradient_checkpointing"):
        reading.known("disable_gradient_checkpointing", "--checkpointing none")
    else:
        reading.take("checkpointing", "full", "disable_gradient_checkpointing")
        reading.assume("full checkpointing, LLaMA-Factory's default", "--checkpointing none")
    _tuning(reading)
    hf_trainer.kernels(reading)
    take_optimizer(reading, "optim")
    reading.take("attention", reading.choice(_ATTENTION, "flash_attn"), "flash_attn", unless="flash")
    reading.take("seq", reading.whole("cutoff_len"), "cutoff_len")
    if reading.text("stage") == "pt" and reading.values.get("packing") is None:
        reading.take("real_tokens", 1, "stage")
    else:
        hf_trainer.packing(reading, "packing", "neat_packing")
    _objective(reading)
    hf_trainer.buckets(reading)


def _tuning(reading: Reading) -> None:
    kind = reading.choice({one: one for one in ("full", "lora", "freeze", "oft")}, "finetuning_type") or "lora"
    if kind in ("freeze", "oft"):
        reading.leave("finetuning_type", f"{kind}; --freeze says which layers are not trained")
    bits = reading.choice(_QUANTIZED, "quantization_bit")
    method = reading.text("quantization_method") or "bnb"
    if bits is not None and method in ("bnb", "bitsandbytes"):
        if bits == "nf4-double" and not reading.flag("double_quantization", default=True):
            bits = "nf4"
        reading.take(
            "quantize", bits, "quantization_bit", "double_quantization", "quantization_method", "quantization_type"
        )
    elif bits is not None:
        reading.leave("quantization_method", f"base weights of {method:.20}; --quantize says it")
    if kind != "lora":
        return
    modules = lora_modules(reading.words("lora_target")) or "all-linear"
    rank = reading.whole("lora_rank") or 8
    take_lora(reading, rank, modules, "finetuning_type", "lora_rank", "lora_target")
    if reading.options.get("precision") in ("bf16", "mixed", *AUTOCAST.values()):
        # Adapters beside 16-bit weights are in FP32, whatever the recipe (`_setup_lora_tuning`).
        reading.forget("precision")
    if reading.flag("use_dora"):
        reading.take("dora", True, "use_dora")


def _objective(reading: Reading) -> None:
    objective = reading.choice(_STAGES, "stage")
    loss = reading.text("pref_loss").lower()
    if objective == "dpo" and loss in ("orpo", "simpo"):
        objective = loss
    if objective == "ppo":
        reading.leave("stage", "generation in PPO")
    else:
        reading.take("objective", objective, "stage", "pref_loss", unless="lm")


LLAMA_FACTORY = Trainer(
    "LLaMA-Factory",
    lambda values: (
        "model_name_or_path" in values
        and any(name in values for name in ("finetuning_type", "stage", "cutoff_len", "template"))
        and "micro_batch_size" not in values
    ),
    _derive,
    idle={
        **hf_trainer.IDLE,
        "LLaMA-Factory's own, without effect on a step": (
            *(
                "image_*",
                "video_*",
                "audio_*",
                "media_dir",
                "additional_target*",
                "adapter_name_or_path",
                "adapter_folder",
                "create_new_adapter",
            ),
            *(
                "pref_beta",
                "pref_ftx",
                "dpo_label_smoothing",
                "kto_*",
                "ref_model_adapters",
                "reward_model*",
                "llamaboard*",
                "ray_*",
            ),
            *(
                "upcast_*",
                "resize_vocab",
                "use_unsloth_gc",
                "rope_scaling",
                "shift_attn",
                "enable_thinking",
                "flash_attn",
                "stage",
            ),
            *(
                "finetuning_type",
                "lora_rank",
                "lora_target",
                "interleave_probs",
                "mix_strategy",
                "tool_format",
                "tokenized_path",
                "infer_*",
            ),
            *(
                "freeze_multi_modal_projector",
                "freeze_language_model",
                "freeze_vision_tower",
                "placement_strategy",
                "resources_per_worker",
                "num_workers_*",
            ),
            *(
                "split_special_tokens",
                "new_special_tokens",
                "moe_aux_loss_coef",
                "print_param_status",
                "quantization_*",
                "double_quantization",
            ),
        ),
    },
    unforecast={
        **{key: why for key, why in hf_trainer.UNFORECAST.items() if key != "use_dora"},
        "use_unsloth": "Unsloth's kernels",
        "use_galore": "GaLore",
        "use_badam": "BAdam",
        "use_apollo": "APOLLO",
        "use_muon": "Muon; --optimizer muon says it",
        "use_adam_mini": "Adam-mini",
        "use_llama_pro": "expanded blocks",
        "additional_target": "modules that are trained whole beside the adapters",
        "mixture_of_depths": "mixture of depths",
        "freeze_trainable_*": "layers that are trained alone; --freeze says which are not",
        "ref_model": "a reference model of another size",
        "use_unsloth_gc": "Unsloth's checkpointing; --checkpointing offload says it",
        "shift_attn": "shifted attention",
    },
)
