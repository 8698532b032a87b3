"""The sources of measurements of fine-tuning, and the rules by which each is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_lab.studies.finetune import readings
from paceline_lab.studies.finetune.measurement import Measurement
from paceline_lab.studies.finetune.readings import NotForecast, Reading


@dataclass(frozen=True)
class Source:
    """A publisher of measurements."""

    group: str
    title: str
    start: str
    """How `Measurement.source` begins."""
    read: Callable[[Measurement], Reading]
    """Returns the command of a measurement. Raises NotForecast."""
    memory: str = ""
    """The kind of memory that it measures where it does not say; empty: unknown."""
    sums_memory: bool = False
    """Whether memory on several GPUs is their sum."""
    steps_are_passes: bool = False
    """Whether its time of a step is that of a pass, several of which a step accumulates."""
    corrected: bool = False
    """Whether its first forecasts were of another job than it states, which its rules have corrected since."""


def trainer(
    it: Measurement,
    *,
    tokens: int,
    kernels: str,
    precision: str = "bf16",
    adapters: str = "mixed",
    implementation: str = "foreach",
    is_reentrant: bool = False,
) -> Reading:
    """Return the reading of a script on top of PyTorch: one process a GPU, data parallelism.

    Args:
        it: The measurement.
        tokens: Of a sample.
        kernels: The kernels.
        precision: The recipe where all parameters are trained.
        adapters: The recipe of adapters; by default as PEFT has them without autocast.
        implementation: That of AdamW.
        is_reentrant: Whether checkpoints are reentrant.
    """
    reading = Reading()
    readings.model(it, reading)
    readings.gpu(it, reading)
    readings.sizes(it, reading, tokens)
    readings.trained(it, reading)
    recipe = adapters if "--lora" in reading.words else precision
    reading.add("--precision", recipe)
    readings.optimizer(it, reading, "" if recipe == "o2" else implementation)
    readings.memory_savers(it, reading, is_reentrant=is_reentrant)
    reading.add("--kernels", kernels)
    readings.sharding(it, reading)
    readings.loss(it, reading, tokens * int(it.batch_per_gpu))
    reading.add("--strategy", "native")
    readings.check_states(it, reading, recipe)
    return reading


def autocast(it: Measurement) -> str:
    """Return the recipe of adapters in FP32 under autocast, as of transformers' trainer with `bf16=True`."""
    return "amp-fp16" if it.precision == "fp16" else "amp-bf16"


def _trainer_adapters(it: Measurement) -> str:
    """Return the recipe of adapters where nothing beside 4-bit weights stays in FP32.

    axolotl converts norms and embeddings back; FSDP needs one type, that in which 4-bit weights are stored.
    """
    return autocast(it) if it.quantization == "none" else "bf16"


def _peft(it: Measurement) -> Reading:
    """Batches of samples of like length; the mean length sets the time, the longest samples the peak of memory."""
    readings.model(it, Reading())
    length = re.match(r"max (\d+); mean (\d+) real tokens", it.seq)
    if length is None:
        raise NotForecast("the lengths of samples are not stated")
    longest, mean = int(length[1]), int(length[2])
    tokens = longest if it.is_memory else mean
    is_recorded = it.method in _PEFT_RECORDED
    reading = _peft_recorded(it, tokens) if is_recorded else trainer(it, tokens=tokens, kernels="eager")
    if it.is_memory:
        reading.add(assumed=f"the longest batch: {it.batch_per_gpu} samples of {longest} tokens")
    else:
        reading.add(assumed=f"samples of the mean length, {mean} tokens, since batches hold samples of like length")
    return reading


_PEFT_RECORDED = (
    *("lora-fa", "ia3", "prefix", "prompt", "p-tuning", "vera", "adalora", "loha", "lokr", "boft", "llama-adapter"),
)
"""Methods that no option has: benches/gpu/adapters.py, recorded by scripts/record_steps.py."""


def _peft_recorded(it: Measurement, tokens: int) -> Reading:
    name = "ia3-all" if it.method == "ia3" and "q_proj" in it.lora_modules else it.method
    reading = Reading([f"traces/peft-{name}-{tokens}.json"])
    readings.gpu(it, reading)
    reading.add("--sharding", "none", "--strategy", "native", assumed="recorded with peft 0.21.2")
    return reading


def _fms(it: Measurement) -> Reading:
    """fms-hf-tuning by transformers' trainer; fast kernels where the framework names them."""
    readings.model(it, Reading())
    if it.packed == "no":
        raise NotForecast("the tokens of a sample are not stated")
    sharded_fp32 = "fp32-upcast" in it.precision and it.strategy.startswith("FSDP") and it.method == "full"
    is_fast = "foak" in it.framework or "triton" in it.loss_kernel
    reading = trainer(
        it,
        tokens=it.tokens,
        kernels="fused" if is_fast else "eager",
        precision="fsdp-mixed" if sharded_fp32 else "bf16",
        adapters=_fms_adapters(it),
        is_reentrant=True,
    )
    if sharded_fp32:
        reading.add(assumed="FSDP holds FP32 parameters, as the source is read in its notes")
    elif "fp32-upcast" in it.precision and it.method == "full":
        reading.add(assumed="parameters in bfloat16, since FP32 ones do not fit")
    if "gpt_bigcode" in it.model and it.is_memory:
        reading.not_counted = "the loss of transformers 4.48's GPTBigCode had no logits in FP32, which today's has"
    return reading


def _fms_adapters(it: Measurement) -> str:
    """Return the recipe of adapters, under autocast unless the source says that there is none.

    Adapters are in FP32 (`get_peft_model` with its `autocast_adapter_dtype`): memory at the end of training has 13
    bytes for each of their parameters (`mem_torch_mem_alloc_in_bytes` in its tables). Its own preparation of 4-bit
    weights leaves the others in 16 bits (`_prepare_model_for_kbit_training` in framework_plugin_bnb.py). The
    baseline has PEFT's, which converts them to FP32, unless FSDP needs one type.
    """
    if "baseline-peft-bnb" in it.framework and not it.strategy.startswith("FSDP"):
        return "upcast-bf16"
    return "mixed" if "no autocast" in it.precision else autocast(it)


def _torchtune(it: Measurement) -> Reading:
    """Recipes of torchtune: packed samples, all in bfloat16, fused AdamW."""
    if it.gpu.startswith("RTX A6000"):
        raise NotForecast("the switches of rows of an A6000 are not stated, and differ from those of an RTX 4090")
    kernels = "compiled" if re.search("compile on|; compile$", it.framework) else "eager"
    return trainer(it, tokens=it.most_tokens, kernels=kernels, adapters="bf16", implementation="fused")


def _tutorials(_: Measurement) -> Reading:
    raise NotForecast("the lengths of samples are not stated")


def _fsdp_qlora(it: Measurement) -> Reading:
    """The script train.py on samples of full length, with adapters in the type in which 4-bit weights are stored."""
    if "prose gives" in it.not_stated and not it.is_memory:
        raise NotForecast("the source contradicts itself: its prose has half the time of its table")
    reading = trainer(it, tokens=it.tokens, kernels="eager", adapters="bf16")
    if it.gpu.startswith("RTX 3090") and "FULL_SHARD" in it.strategy and not it.is_memory:
        # Steps of unquantized weights take 4 s longer than by DDP: 3.3 GB/s, an eighth of the RTX 4090s' link.
        reading.not_counted = (
            "the link of these GPUs, over which units are gathered, is not stated, only that of others"
        )
    return reading


def _qwen(it: Measurement) -> Reading:
    """finetune.py with samples padded to a length.

    All parameters are trained under DeepSpeed, with FP32 masters. So are adapters on several GPUs, and beside 4-bit
    weights (finetune_qlora_single_gpu.sh). DeepSpeed has no autocast.
    """
    if it.strategy.startswith("without ZeRO-3"):
        raise NotForecast("the length of samples is not stated")
    is_deepspeed = it.strategy.startswith("DeepSpeed") or it.quantization != "none"
    adapters = "o2" if is_deepspeed else autocast(it)
    reading = trainer(it, tokens=it.tokens, kernels="eager", precision="o2", adapters=adapters)
    if is_deepspeed and it.precision == "fp16":
        reading.add("--dtype", "fp16")
    if it.method == "full":
        reading.add(assumed="DeepSpeed's FP32 masters, as in the only script of the repository that trains all")
    return reading


def _swift(it: Measurement) -> Reading:
    """ms-swift: samples of natural lengths, of which the longest set the peak of memory."""
    if it.strategy.startswith(("Megatron", "SP")):
        return _swift_megatron(it)
    if it.gpu.startswith("Ascend"):
        raise NotForecast("NPUs are not known")
    readings.optimizer(it, Reading(), "")
    if "LISA" in it.method:
        raise NotForecast("LISA trains two layers at a time")
    if not it.is_memory and not it.tokens:
        raise NotForecast("the mean length of a sample is not stated")
    if ("short" in it.seq and it.method != "full") or not it.most_tokens:
        raise NotForecast("the lengths of samples are not stated")
    is_deepspeed = it.strategy.startswith("DeepSpeed")
    if is_deepspeed and not it.accumulate.isdigit() and not it.is_memory:
        raise NotForecast("passes of a step are not stated")
    if it.packed.startswith("padding-free"):
        raise NotForecast("the lengths of samples are not stated")
    reading = trainer(
        it,
        tokens=it.most_tokens,
        kernels="fused" if it.loss_kernel.startswith("Liger") else "eager",
        precision="o2" if is_deepspeed else "bf16",
        adapters=autocast(it),
    )
    if it.packed == "no":
        reading.not_counted = "PyTorch's allocator keeps blocks of samples of all lengths, which are not stated"
    if it.attention == "flash-attn 3":
        reading.add(assumed="FlashAttention-2 for 3")
    if it.gpus == "16":
        reading.add("--cluster", "dgx-a100", assumed="the network of a DGX A100")
    return reading


def _swift_megatron(it: Measurement) -> Reading:
    """Megatron-Core under ms-swift."""
    if not it.tokens:
        raise NotForecast("the lengths of samples are not stated")
    if it.offload != "none":
        raise NotForecast("Megatron's offload of the optimizer, with its overlap, is not known")
    reading = on_grid(it)
    reading.add("--batch", it.batch_per_gpu, "--seq", str(it.tokens), "--sharding", "zero1")
    readings.memory_savers(it, reading)
    if it.method == "lora":
        has_experts = re.search(r"-A\d+B", it.model) is not None
        reading.add("--lora", f"{it.lora_rank}:all-linear{',experts' * has_experts}")
        reading.add(assumed="adapters of q, k and v by themselves for that of Megatron's joint layer")
    if "bf16 Adam moments" in it.precision:
        reading.add("--moment-dtype", "bf16")
    if it.precision.startswith("fp8"):
        reading.add("--dtype", "fp8", assumed="FP8 by tensor for blockwise FP8")
    if it.gpus == "16":
        reading.add("--cluster", "dgx-a100", assumed="the network of a DGX A100")
    reading.add("--precision", "megatron", "--kernels", "transformer-engine", "--strategy", "native")
    return reading


_PARALLEL = {
    "CP": "--context-parallel",
    "TP": "--tensor-parallel",
    "PP": "--pipeline-parallel",
    "EP": "--expert-parallel",
    "VP": "--virtual-stages",
}


def on_grid(it: Measurement) -> Reading:
    """Return the model, its GPUs, Megatron's parallelism, and microbatches: of a pipeline, or accumulated."""
    reading = Reading()
    readings.model(it, reading)
    readings.gpu(it, reading)
    pipeline = False
    for name, number in re.findall(r"\b(CP|TP|PP|EP|VP)(\d+)", it.strategy):
        if number != "1":
            reading.add(_PARALLEL[name], number)
            pipeline = pipeline or name == "PP"
    if pipeline:
        reading.add("--microbatches", it.accumulate)
    elif it.accumulate != "1":
        reading.add("--accumulate", it.accumulate)
    return reading


def _nemo(it: Measurement) -> Reading:
    """Megatron-Bridge's and NeMo's recipes for performance, in FP8, which recompute nothing."""
    reading = on_grid(it)
    if "PP" in it.strategy and "PP1" not in it.strategy and "VP" not in it.strategy:
        layers, stages = readings.layers(reading), int(re.findall(r"PP(\d+)", it.strategy)[0])
        reading.add(
            *("--virtual-stages", str(layers // stages)),
            assumed="virtual stages as of the same model in the table of pretraining on that page: a layer each",
        )
    if it.method == "lora":
        reading.add("--lora", "32:q_proj,k_proj,v_proj", assumed="rank 32 on q, k and v, as its recipes set")
    reading.add("--batch", it.batch_per_gpu, "--seq", str(it.tokens), "--dtype", "fp8")
    reading.add("--sharding", "zero1", "--precision", "fp8", "--kernels", "transformer-engine")
    reading.add("--strategy", "native", assumed="no recomputation")
    if it.method != "lora":
        reading.add(assumed="gradients in bf16 as its recipes set (grad_reduce_in_fp32 = False)")
    if it.precision == "MXFP8":
        reading.add(assumed="MXFP8 as FP8")
    return reading


def _axolotl(it: Measurement) -> Reading:
    """Axolotl's examples, with packed samples; norms and gates are Liger's where the source names these."""
    kernels = "fused" if "Liger" in it.loss_kernel else "eager"
    reading = trainer(it, tokens=it.tokens, kernels=kernels, adapters=_trainer_adapters(it), implementation="fused")
    if it.attention.startswith("flash-attn 3"):
        reading.add(assumed="FlashAttention-2 for 3")
    return reading


def _peft_docs(it: Measurement) -> Reading:
    """TRL's trainer by PEFT's pages on FSDP and DeepSpeed, with packed samples."""
    return trainer(it, tokens=it.tokens, kernels="eager", adapters=_trainer_adapters(it), is_reentrant=True)


def _unstated(_: Measurement) -> Reading:
    raise NotForecast("batch, sequence and rank are not stated")


def _apple(_: Measurement) -> Reading:
    raise NotForecast("Apple's GPUs are not known")


def _diffusion(it: Measurement) -> Reading:
    readings.model(it, Reading())
    raise NotForecast("a diffusion model")


SOURCES = (
    Source("peft", "PEFT's method_comparison", "huggingface/peft method_comparison", _peft),
    Source("fms-acceleration", "IBM's fms-acceleration", "foundation-model-stack", _fms),
    Source("torchtune", "PyTorch's torchtune", "pytorch/torchtune README", _torchtune, memory="active"),
    Source("torchtune", "PyTorch's torchtune", "pytorch/torchtune docs", _tutorials),
    Source("fsdp_qlora", "Answer.AI's fsdp_qlora", "AnswerDotAI", _fsdp_qlora),
    Source("qwen", "Qwen", "QwenLM", _qwen, memory="reserved", sums_memory=True),
    Source("ms-swift", "ModelScope's ms-swift", "modelscope", _swift),
    Source("nemo", "Megatron-Bridge and NeMo", "NVIDIA", _nemo),
    Source("axolotl", "axolotl's examples", "axolotl-ai-cloud", _axolotl, memory="reserved"),
    Source("peft-docs", "PEFT's pages on FSDP and DeepSpeed", "huggingface/peft docs", _peft_docs, memory="nvidia_smi"),
    Source("others", "others", "ml-explore", _apple),
    Source("others", "others", "a-r-r-o-w", _diffusion),
    Source("others", "others", "ShivamShrirao", _diffusion),
    Source("others", "others", "", _unstated),
)
"""By how a source's name begins, the first that matches."""
GROUPS = {source.group: source.title for source in SOURCES}
"""The titles of the groups of rows, in the order of the output."""


def source_of(it: Measurement, sources: Sequence[Source] = SOURCES) -> Source:
    """Return the source of a measurement, of those given."""
    return next(source for source in sources if it.source.startswith(source.start))
