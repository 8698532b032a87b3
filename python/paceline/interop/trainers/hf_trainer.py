"""Arguments of transformers' Trainer and TRL's trainers, as JSON or YAML: transformers/training_args.py, trl/trainer.

axolotl and LLaMA-Factory share much of it. The recipe of precision follows the type in which parameters are held:
`from_pretrained` keeps FP32 unless a type is named, over which `bf16` is torch.autocast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from paceline._internal.nearest import nearest
from paceline.catalog.losses import GENERATING
from paceline.catalog.models.checkpoints import checkpoint_of
from paceline.catalog.recipes import COMPUTED
from paceline.interop.trainers import deepspeed, fsdp, launch
from paceline.interop.trainers.document import Values
from paceline.interop.trainers.reading import AUTO, Reading, Trainer
from paceline.interop.trainers.shell import PROGRAM
from paceline.interop.trainers.words import (
    AUTOCAST,
    DTYPES,
    adapters_in_fp32,
    as_fields,
    eager_kernels,
    recipe_of,
    take_gpus,
    take_lora,
    take_loss,
    take_optimizer,
    take_whole_modules,
)

ATTENTION: Mapping[object, str] = {
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash_attention": "flash",
    "xformers": "flash",
    "kernels-community/flash-attn": "flash",
    "kernels-community/flash-attn2": "flash",
    "kernels-community/flash-attn3": "flash",
    "kernels-community/vllm-flash-attn3": "flash",
    "sdpa": "flash",
    "flex_attention": "flash",
    "eager": "unfused",
}
QUANTIZED = {"nf4": ("nf4", "nf4-double"), "fp4": ("nf4", "nf4-double")}
LOSSES: Mapping[object, str] = {
    "sigmoid": "dpo",
    "hinge": "dpo",
    "ipo": "dpo",
    "robust": "dpo",
    "sigmoid_norm": "dpo",
    "simpo": "simpo",
    "orpo": "orpo",
}


def batch(reading: Reading) -> None:
    """Take the batch of a pass and the passes of an iteration."""
    name = "per_device_train_batch_size"
    reading.take("batch", reading.whole(name, "per_gpu_train_batch_size"), name, "per_gpu_train_batch_size")
    reading.passes(reading.whole("gradient_accumulation_steps"), "gradient_accumulation_steps")


def precision(reading: Reading, held: str | None, *fields: str) -> bool:
    """Take the type of products, and the recipe that the type of the held parameters makes. Call it after sharding.

    Args:
        reading: The file.
        held: The type of parameters; None: FP32.
        fields: Those that say it.

    Returns:
        Whether autocast is on.

    Raises:
        InvalidArgumentError: Both types are on, which transformers refuses.
    """
    on = [one for one in ("bf16", "fp16") if _is_on(reading, one)]
    if len(on) > 1 and reading.value("bf16") is not None:
        raise reading.wrong("fp16", "contradicts bf16", "false")
    dtype = on[0] if on else None
    own = (dtype,) if dtype is not None else ()
    if dtype is None and reading.options.get("dtype") in AUTOCAST:
        # The launcher's.
        dtype = str(reading.options["dtype"])
    if dtype is None:
        if held is not None:
            reading.take("dtype", held, *fields)
            reading.take("precision", "bf16" if held == "bf16" else None, *fields)
        elif "dtype" not in reading.options:
            reading.default("dtype", "fp32", "FP32, as neither bf16 nor fp16 is set", "--dtype bf16")
            reading.take("dtype", "tf32" if reading.flag("tf32") else "fp32", "bf16", "fp16", "tf32", *fields)
        return False
    if own:
        reading.take("dtype", dtype, *own)
    if reading.options.get("precision") not in (None, *AUTOCAST.values()):
        return True
    recipe, named = recipe_of(reading, dtype), own
    if recipe == AUTOCAST[dtype]:
        recipe, named = "bf16" if held == "bf16" else recipe, (*own, *fields)
    if recipe != reading.options.get("precision"):
        reading.take("precision", recipe, *named)
        reading.assume(f"the recipe of precision {recipe}", "--precision NAME", "precision")
    return True


def eight_bits(reading: Reading, *names: str) -> None:
    """Take products in 8 bits, beside which masters and gradients are as the sharding has them."""
    if not reading.flag(*names):
        return
    reading.take("dtype", "fp8", *names)
    if "fp8" not in COMPUTED.get(str(reading.options.get("precision")), ("fp8",)):
        reading.forget("precision")
        if str(reading.effective("sharding")).startswith(("zero3", "hsdp")):
            reading.take("precision", "fsdp-mixed", *names)


def _is_on(reading: Reading, name: str) -> bool:
    # `auto` of axolotl takes bfloat16 where the GPU has it.
    return (
        reading.values.get(name) in ("auto", "full")
        if isinstance(reading.values.get(name), str) and reading.values[name] in ("auto", "full")
        else reading.flag(name)
    )


def sharding(reading: Reading) -> None:
    """Take FSDP or DeepSpeed; DDP otherwise."""
    fsdp.include(reading)
    words = [word.lower() for one in reading.words("fsdp") for word in one.split()]
    if (wrong := next((one for one in words if one not in fsdp.WORDS), None)) is not None:
        near = nearest(wrong, fsdp.WORDS) or "full_shard"
        raise reading.wrong("fsdp", f"{wrong:.40} is not known", f"{near} (of {', '.join(fsdp.WORDS)})")
    # A dump of all arguments has `fsdp_config` even where `fsdp` is empty.
    is_named = bool(words) and words[0] != "false"
    if is_named or (reading.values.get("fsdp") is None and reading.has("fsdp_config.*")):
        fsdp.take(reading, words)
        launch.take(reading)
        return
    deepspeed.include(reading, "deepspeed", "deepspeed_config", "deepspeed_config_file")
    launch.take(reading)
    stage = reading.choice(deepspeed.STAGES, "zero_stage", "deepspeed_stage")
    if "sharding" not in reading.options and stage is not None:
        # Of DeepSpeed's own examples, which write their configuration themselves.
        reading.take("sharding", stage, "zero_stage", "deepspeed_stage")
        reading.lack(deepspeed.LACKS)
        if reading.flag("offload"):
            # applications/DeepSpeed-Chat/dschat/utils/ds_utils.py (`get_train_ds_config`)
            reading.take("offload", "cpu:parameters,states" if stage == "zero3" else "cpu:states", "offload")
    if "sharding" not in reading.options:
        why = "DDP, as neither FSDP nor DeepSpeed is named"
        if any(reading.values.get(one) is True for one in ("deepspeed", "deepspeed_config")):
            why = "stage 0, as no file of DeepSpeed's says another"
        reading.default("sharding", "none", why, "--sharding zero3")


def offload_activations(reading: Reading, name: str) -> None:
    """Take activations on the CPU, beside what FSDP or DeepSpeed offloads. `name`: the field that says it."""
    place, _, parts = str(reading.options.get("offload", "")).partition(":")
    if place == "nvme":
        reading.assume(deepspeed.ON_CPU, "--offload nvme:PART")
    own = reading.fields_of.get("offload", ())
    reading.take("offload", f"cpu:{','.join(filter(None, (parts, 'activations')))}", name, *own)


def recomputation(reading: Reading, *names: str) -> None:
    """Take full checkpointing."""
    if reading.flag(*names):
        reading.take("checkpointing", "full", *names)


def kernels(reading: Reading) -> None:
    """Take Liger's or torch.compile's kernels; those of transformers' models are eager."""
    names = ("torch_compile", "torch_compile_backend", "torch_compile_mode")
    of_liger = ("use_liger_kernel", "use_liger", "enable_liger_kernel", "liger")
    if reading.flag(*of_liger):
        liger(reading, *of_liger)
    if reading.flag(names[0]) or any(reading.text(name) for name in names[1:]):
        reading.take("kernels", "compiled", *names)
        compile_mode(reading)
    elif "kernels" not in reading.options:
        eager_kernels(reading)


def compile_mode(reading: Reading) -> None:
    """Take CUDA graphs of torch.compile's modes that have them (torch/_inductor/__init__.py, `list_mode_options`)."""
    name = "torch_compile_mode"
    if reading.text(name) in ("reduce-overhead", "max-autotune"):
        reading.take("cuda_graphs", True, name)
    else:
        reading.known(name, "without CUDA graphs")


def liger(reading: Reading, *names: str) -> None:
    """Take Liger's fused kernels and its loss, computed over chunks of tokens.

    Chunks are as many as the vocabulary is wider than the hidden layers, to a power of 2 of tokens:
    liger_kernel/ops/fused_linear_cross_entropy.py.
    """
    reading.take("kernels", "fused", *names)
    chunks = reading.liger_chunks()
    reading.take("loss_chunks", chunks, *names)


def quantized(reading: Reading) -> None:
    """Take the type in which bitsandbytes holds the base weights."""
    # Names of transformers and TRL, and of PEFT's own script (peft/examples/sft/train.py).
    four, eight = ("load_in_4bit", "use_4bit_quantization"), ("load_in_8bit", "use_8bit_quantization")
    nested = ("use_bnb_nested_quant", "bnb_4bit_use_double_quant", "use_nested_quant", "double_quant")
    if reading.flag(*four):
        kind = reading.text("bnb_4bit_quant_type") or "nf4"
        one, two = QUANTIZED.get(kind, QUANTIZED["nf4"])
        reading.take("quantize", two if reading.flag(*nested) else one, *four, *nested, "bnb_4bit_quant_type")
    elif reading.flag(*eight):
        reading.take("quantize", "int8", *eight)
    elif reading.has("lora_*"):
        # Of artidoro/qlora.
        names = ("bits", "double_quant", "quant_type")
        kind = reading.choice({4: "nf4", 8: "int8", 16: None}, "bits")
        is_double = kind == "nf4" and reading.flag("double_quant", default=True)
        reading.take("quantize", "nf4-double" if is_double else kind, *names)


BATCH = 8
"""Sequences per GPU by default: transformers/training_args.py (`per_device_train_batch_size`)."""
_OF_TRL = frozenset(
    (
        *("dataset_text_field", "packing", "packing_strategy", "assistant_only_loss", "completion_only_loss"),
        *("padding_free", "chat_template_path", "max_length", "use_peft", "dataset_kwargs", "dataset_num_proc"),
        *("max_prompt_length", "max_completion_length", "num_generations", "rpo_alpha", "loss_type"),
    )
)
"""Arguments of TRL's trainers that transformers' has not."""
_CHUNK = 256
"""Tokens of a chunk of TRL's loss: trl/trainer/sft_trainer.py (`_CHUNKED_LM_HEAD_CHUNK_SIZE`)."""


def _derive(reading: Reading) -> None:
    is_own = reading.trainer in LAUNCHED
    method = trained(reading.program)
    if not method and reading.has("desirable_weight", "undesirable_weight"):
        method = "kto"
    is_trl = any(name in _OF_TRL for name in reading.values) or (not is_own and is_of_trl(reading.program, method))
    of_model = ("model_name_or_path", "model_id", "model_name")
    reading.name_model(reading.text(*of_model), *of_model)
    take_gpus(reading)
    batch(reading)
    if "batch" not in reading.options and not is_own:
        reading.default("batch", BATCH, f"batch {BATCH} per GPU, transformers' default", "--batch N")
    sharding(reading)
    held = reading.choice(DTYPES, "torch_dtype", "dtype") if reading.value("torch_dtype", "dtype") else None
    if held is None and AUTO in (reading.values.get("torch_dtype"), reading.values.get("dtype")):
        held = _of_checkpoint(reading) or "bf16"
        reading.assume(f"parameters in {held}, the type of most checkpoints (auto)", "--precision NAME")
    if is_trl and not reading.has("bf16") and not reading.flag("fp16"):
        # trl/trainer/base_config.py (`_BaseConfig.__post_init__`)
        reading.default("dtype", "bf16", "bf16 unless fp16 is set, TRL's default", "--dtype NAME")
    if held is None and not is_trl and (held := _of_checkpoint(reading)) is not None:
        reading.assume(f"parameters in {held}, the checkpoint's type, as transformers 5 loads them", "--precision NAME")
    whose = "TRL's default" if is_trl else "as transformers 4 loads them; 5 keeps the checkpoint's type"
    if held is None and "precision" not in reading.options and not _has_adapters(reading):
        reading.assume(f"parameters in FP32, {whose}", "--precision bf16")
    autocast = precision(reading, held if held != "fp32" else None, "torch_dtype", "dtype")
    names = ("gradient_checkpointing", "activation_checkpointing")
    recomputation(reading, *names)
    if is_trl and "checkpointing" not in reading.options and not reading.has(*names):
        reading.default("checkpointing", "full", "full checkpointing, TRL's default", "--checkpointing none")
    kernels(reading)
    take_optimizer(reading, "optim", default="" if is_own else "transformers' default")
    attention(reading)
    eager_by_default(reading)
    lengths = ("max_length", "max_seq_length", "block_size", "model_max_length", "cutoff_len", "max_seq_len")
    reading.take("seq", reading.whole(*lengths), *lengths)
    for parts in (("max_prompt_length", "max_completion_length"), ("source_max_len", "target_max_len")):
        if "seq" not in reading.options and None not in (tokens := [reading.whole(one) for one in parts]):
            reading.take("seq", sum(filter(None, tokens)), *parts)
    if method in GENERATING:
        _completions(reading)
    if is_trl and "seq" not in reading.options and reading.values.get("max_length", "") is not None:
        reading.default("seq", 1024, "sequences of 1,024 tokens, TRL's default", "--seq N")
    if reading.flag("activation_offloading"):
        offload_activations(reading, "activation_offloading")
    _lora(reading, is_trl=is_trl, autocast=autocast)
    if held in (None, "fp32"):
        _in_fp32(reading, f"parameters in FP32, {whose}")
    quantized(reading)
    buckets(reading)
    loss(reading, method)
    if is_trl and method in ("", "sft"):
        _chunks(reading)
    packing(reading, "packing")


_QUANTIZING = ("q_lora", "use_qlora", "qlora")
"""Switches of FastChat and its like, over a base in 4 bits: fastchat/train/train_lora.py."""


def _of_checkpoint(reading: Reading) -> str | None:
    """Return the type that a model's config.json says; None if it says none, as built-in models."""
    fields = {} if reading.config is None else reading.config.fields
    return DTYPES.get(fields.get("dtype") or fields.get("torch_dtype"))


_RANKS = ("lora_r", "lora_rank", "lora_dim")


def _switches(reading: Reading) -> dict[str, bool]:
    """Return the switches of adapters that the file has."""
    return {
        name: reading.flag(name)
        for name in ("use_peft", "use_lora", "use_peft_lora", *_QUANTIZING)
        if reading.has(name)
    }


def _has_adapters(reading: Reading) -> bool:
    switches = _switches(reading)
    # FastChat's train_lora.py has no switch.
    is_implied = not switches.keys() - {"q_lora"} and reading.has(*_RANKS, "lora_target_modules")
    return reading.given.get("lora") != "none" and (is_implied or any(switches.values()))


def _in_fp32(reading: Reading, words: str, *names: str) -> None:
    """Take that frozen parameters beside adapters are in FP32 under autocast; `words`: the assumption of that."""
    dtype = reading.effective("dtype")
    if _has_adapters(reading) and dtype in AUTOCAST and "precision" not in reading.options:
        names = names or ("torch_dtype", "dtype")
        reading.default("precision", f"upcast-{dtype}", words, f"--precision {AUTOCAST[dtype]}")
        reading.take("precision", f"upcast-{dtype}", *names)


def _lora(reading: Reading, *, is_trl: bool, autocast: bool) -> None:
    if not _has_adapters(reading):
        return
    switches = _switches(reading)
    default = (16, "TRL's default") if is_trl else (8, "PEFT's default")
    on = [name for name, is_on in switches.items() if is_on]
    dropout = (0.05, "TRL's default") if is_trl else (0.0, "")
    modules = ("lora_target_modules", "lora_modules")
    take_lora(reading, _RANKS, modules, *on, default_rank=default, default_dropout=dropout)
    adapters_in_fp32(reading, autocast=autocast)
    if any(switches.get(name) for name in _QUANTIZING):
        # FastChat calls PEFT's prepare_model_for_kbit_training (train_lora.py); TRL's SFTTrainer does not.
        _in_fp32(reading, "", *_QUANTIZING)
    take_whole_modules(reading, "lora_modules_to_save", "modules_to_save")
    if reading.flag("use_dora"):
        reading.take("dora", True, "use_dora")
    if any(switches.get(name) for name in _QUANTIZING):
        if reading.config is not None and checkpoint_of(reading.config) is not None:
            for name in _QUANTIZING:
                reading.known(name, "as the checkpoint has its weights")
        else:
            reading.take("quantize", "nf4-double", *_QUANTIZING)


def _chunks(reading: Reading) -> None:
    """Take TRL's loss over chunks of tokens, which supervised fine-tuning has unless Liger's kernels are used."""
    tokens = int(reading.effective("batch", 1)) * int(reading.effective("seq", 1024))
    chunks = min(4096, max(1, -(-tokens // _CHUNK)))
    kind = reading.value("loss_type")
    if kind == "chunked_nll":
        reading.take("loss_chunks", chunks, "loss_type")
    elif kind is None and not reading.options.keys() & {"loss", "loss_chunks"} and not reading.has(*_GENERATING):
        reading.default(
            "loss_chunks", chunks, f"the loss over chunks of {_CHUNK} tokens, TRL's default", "--loss-chunks N"
        )


def attention(reading: Reading) -> None:
    """Take the kernel of attention; one that is not known is named."""
    name = "attn_implementation"
    word = reading.text(name)
    if word and word not in ATTENTION:
        reading.leave(name, "an implementation of attention that is not known; --attention says it")
    elif word:
        reading.take("attention", ATTENTION[word], name, unless=None if has_sinks(reading) else "flash")
        reading.known(name, "as a forecast's attention")


def has_sinks(reading: Reading) -> bool:
    """Whether a model has attention sinks, for which transformers has no SDPA."""
    return reading.config is not None and reading.config.fields.get("model_type") == "gpt_oss"


def eager_by_default(reading: Reading) -> None:
    """Take eager attention of a model with attention sinks, where the file names no other."""
    if has_sinks(reading) and "attention" not in reading.options:
        words = "eager attention, transformers' default for attention sinks"
        reading.default("attention", "unfused", words, "--attention flash")


def buckets(reading: Reading) -> None:
    """Take the size of DDP's buckets, in MB of 2**20 bytes."""
    size = reading.whole("ddp_bucket_cap_mb")
    if size is not None and reading.effective("sharding") == "none":
        reading.take("bucket_size", f"{size}MiB", "ddp_bucket_cap_mb")


_METHODS = {
    **dict.fromkeys(("sft", "dpo", "kto", "orpo", "cpo", "simpo", "bco", "prm"), ""),
    **{"reward": "rm", "rm": "rm", "rewards": "rm"},
    **{"online": "online-dpo", "nash": "nash-md", "dppo": "ppo"},
}
"""Words in the name of a script, and the method where it is called otherwise."""
_OF_SCRIPT = re.compile(r"(?:^|[/.])(?:trl|examples)[/.]scripts[/.]|(?:^|/)run_sft\.py$")
"""In the path or module of TRL's own scripts, and of the alignment handbook's."""
_PROMPT, _COMPLETION = 512, 256
"""Tokens by default where completions are sampled: trl/trainer/grpo_config.py."""


def trained(program: str) -> str:
    """Return the method that a command of TRL's or a script's name tells: `dpo`, `rm`, `sft`; empty if none.

    `trl kto`, `trl/scripts/reward.py`, `train_dpo.py`, `-m trl.scripts.dpo`.
    """
    name = program.removeprefix("trl ").rpartition("/")[2].removesuffix(".py").rpartition(".")[2].lower()
    words = re.split(r"[^a-z]+", name)
    methods = [_METHODS.get(one) or one for one in words if one in _METHODS or one in GENERATING]
    sampled = [one for one in methods if one in GENERATING]
    methods = sampled[:1] or list(dict.fromkeys(methods))
    return methods[0] if len(methods) == 1 else ""


def is_of_trl(program: str, method: str) -> bool:
    """Return whether a script is TRL's, or trains by a method for which transformers' arguments are TRL's."""
    return program.startswith("trl ") or (bool(method) and (method != "sft" or bool(_OF_SCRIPT.search(program))))


def _completions(reading: Reading) -> None:
    """Take the tokens of a prompt and its completion where the file says one of them, or neither."""
    names = ("max_prompt_length", "max_completion_length")
    if "seq" in reading.options:
        return
    prompt, completion = (reading.whole(one) for one in names)
    words = f"prompts of {prompt or _PROMPT} tokens and completions of {completion or _COMPLETION}, TRL's defaults"
    reading.assume(words, "--seq N", "seq")
    reading.take("seq", (prompt or _PROMPT) + (completion or _COMPLETION), *names)


_OF_TOKENS = ("nll", "chunked_nll", "dft")
"""TRL's losses of supervised fine-tuning."""
_BEFORE = "precompute_ref_log_probs"
_OF_REFERENCE = ("ref_model*", _BEFORE)
_GENERATING = ("num_generations", "max_completion_length", "use_vllm", "vllm_mode", "lmbda")
"""Arguments of TRL's trainers that sample completions (GRPO, RLOO, GKD)."""


def loss(reading: Reading, method: str = "") -> None:
    """Take the loss of a method, or DPO, where its own arguments say that it is.

    What generates samples is not modeled.
    """
    generating = [name for name in _GENERATING if reading.has(name)]
    for name in generating:
        reading.leave(name, "generation of samples, as in GRPO")
    if method == "sft":
        reading.known("loss_type", "of tokens")
    elif method in GENERATING:
        reading.leave(reading.show_program(), f"generation of samples, as in {method.upper()}; forecast is the update")
        reading.warnings.append(f"{method.upper()} samples completions, which is not modeled: forecast is the update")
    elif method and method != "dpo":
        kind = method if method != "cpo" or reading.value("loss_type") != "simpo" else "simpo"
        named = reading.show_program() if reading.program else "desirable_weight"
        take_loss(reading, kind, named, "undesirable_weight", "loss_type")
    elif reading.value("loss_type") in _OF_TOKENS:
        reading.known("loss_type", "of tokens")
    elif not generating and (method or reading.has("beta", "max_prompt_length", "rpo_alpha", *_OF_REFERENCE)):
        if not method and not reading.has("loss_type", "max_prompt_length", "rpo_alpha", *_OF_REFERENCE):
            reading.assume("DPO, of whose arguments beta is one", "--loss NAME")
        kind = reading.value("loss_type")
        known = LOSSES.get(str(kind[0] if isinstance(kind, list) and kind else kind or "sigmoid").lower()) or "dpo"
        own = (reading.show_program(),) if method else ()
        fields = (*own, "beta", "loss_type", "max_prompt_length", "rpo_alpha")
        if known == "dpo" and reading.flag(_BEFORE):
            # As many passes as CPO, which has no reference.
            take_loss(reading, "cpo", *fields, _BEFORE)
            reading.assume("passes as of CPO: those of the reference are before training", "--loss dpo")
        else:
            take_loss(reading, known, *fields)


def packing(reading: Reading, *names: str) -> None:
    """Take that all tokens are real ones. Without packing some are padding, and the file does not say how many."""
    if reading.flag(*names):
        reading.take("real_tokens", 1, *names)
    elif "seq" in reading.options:
        reading.assume("all samples as long as the sequence, without padding", "--real-tokens SHARE")


def _recognizes(values: Values) -> bool:
    names = set(as_fields(values)[0])
    trained = {"num_train_epochs", "max_steps", "lr_scheduler_type", "optim", "logging_steps", "save_strategy"}
    is_of_command = str(values.get(PROGRAM, "")).startswith("trl ") and "--config" not in values
    return bool(
        names & {"per_device_train_batch_size", "per_gpu_train_batch_size"}
        or (is_of_command and "model_name_or_path" in names)
        or ({"gradient_accumulation_steps", "output_dir"} <= names and names & trained)
    )


HF_TRAINER = Trainer(
    "transformers' Trainer",
    _recognizes,
    _derive,
    tables=("transformers",),
    translate=as_fields,
)


def _is_launched(*switches: str) -> Callable[[Values], bool]:
    """Return whether values are a script's that uses one of these arguments."""
    return lambda values: any(one in values for one in switches)


_OF_SCRIPTS = ("transformers", "deepspeed-examples", "open-instruct")
LAUNCHED = (
    replace(
        HF_TRAINER,
        name="accelerate",
        tables=_OF_SCRIPTS,
        recognizes=_is_launched("--config-file", "--use-fsdp", "--use-deepspeed", "--multi-gpu", "--mixed-precision"),
    ),
    replace(
        HF_TRAINER,
        name="DeepSpeed",
        tables=_OF_SCRIPTS,
        recognizes=_is_launched("--deepspeed", "--deepspeed-config", "--zero-stage"),
    ),
)
"""Scripts of a program of its own, of which the launcher's arguments and files are read."""
