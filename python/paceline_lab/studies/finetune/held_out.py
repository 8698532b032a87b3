"""Sources of measurements on which nothing was fitted, and the rules by which each is read.

The rules were written before any of these measurements was forecast. They say what the sources and their scripts state.
"""

from __future__ import annotations

import re
from dataclasses import replace

from paceline_lab.studies.finetune import readings
from paceline_lab.studies.finetune.measurement import Measurement
from paceline_lab.studies.finetune.readings import NotForecast, Reading
from paceline_lab.studies.finetune.sources import Source, autocast, on_grid, trainer

_PAIRS = ("DPO", "SimPO", "ORPO")
"""Losses whose sample is a pair of sequences."""


def _litgpt(it: Measurement) -> Reading:
    """Its scripts finetune/lora.py and full.py: all in bfloat16, no autocast; the longest sample sets the peak."""
    is_joint = re.match("falcon|stablelm", it.model) and it.lora_modules == "q_proj+v_proj"
    read = replace(it, lora_modules="query_key_value") if is_joint else it
    reading = trainer(read, tokens=it.most_tokens, kernels="eager", adapters="bf16")
    if is_joint:
        reading.add(assumed="an adapter of the joint layer of q, k and v for those of q and v")
    if it.is_memory and it.strategy.startswith("FSDP"):
        # `max_memory_allocated` of the whole run; Lightning's `load_raw` summons all weights beside the shards.
        reading.not_counted = "the peak is that of loading, when each GPU has all weights"
    elif it.is_memory and it.quantization != "none":
        # Its extras pin 0.41 and 0.42 (pyproject.toml).
        reading.not_counted = "bitsandbytes before 0.43.2 kept the inputs of 4-bit products, which today's does not"
    return reading


def _xtuner(it: Measurement) -> Reading:
    """Its configurations of llama_speed_benchmark: DeepSpeed with fp16, Triton kernels of norms and rotation."""
    if it.strategy.startswith("SP"):
        raise NotForecast("sequences are split by all-to-alls between heads, which no option has")
    reading = trainer(it, tokens=it.tokens, kernels="fused", precision="o2")
    reading.add("--dtype", "fp16")
    if int(it.gpus) > 8:
        reading.add("--cluster", "dgx-a100", assumed="the network of a DGX A100")
    return reading


def _ray(it: Measurement) -> Reading:
    """DeepSpeed on nodes of one GPU, g5.xlarge, whose network is up to 10 Gbit/s."""
    reading = trainer(it, tokens=it.tokens, kernels="eager", precision="o2")
    reading.add("--attention", "unfused", "--gpus-per-node", "1", "--bandwidth", "10Gbps")
    return reading


def _flash_attention(it: Measurement) -> Reading:
    """The repository's GPT under PyTorch Lightning's autocast."""
    reading = trainer(it, tokens=it.tokens, kernels="fused", precision="amp-bf16", implementation="fused")
    reading.add("--attention", "flash-1")
    return reading


def _unsloth(it: Measurement) -> Reading:
    """Hugging Face's trainer under autocast on 4-bit weights that PEFT has prepared."""
    return trainer(it, tokens=it.tokens, kernels="eager", adapters=_prepared(it, autocast(it)))


def _prepared(it: Measurement, recipe: str) -> str:
    """Return the recipe of adapters after PEFT's `prepare_model_for_kbit_training`, if weights are quantized."""
    return recipe.replace("amp-", "upcast-") if it.quantization not in ("", "none") else recipe


def _transformers_docs(it: Measurement) -> Reading:
    """Transformers' trainer of January 2022 with a classifier of sequences."""
    precision = "fp32" if it.precision == "fp32" else "amp-fp16"
    reading = trainer(it, tokens=it.tokens, kernels="eager", precision=precision, implementation="loop")
    reading.add("--attention", "unfused")
    return reading


def _colossalai(it: Measurement) -> Reading:
    """ColossalChat's scripts: 16-bit parameters, adapters too, with FP32 masters."""
    loss = re.search(r"\((\w+)\)", it.method)
    pairs = 2 if loss and loss[1] in _PAIRS else 1
    batch = replace(it, batch_per_gpu=str(pairs * int(it.batch_per_gpu)))
    reading = trainer(batch, tokens=it.tokens, kernels="eager", precision="o2", adapters="o2")
    if loss:
        reading.add("--loss", loss[1].lower())
    return reading


def _t4(it: Measurement) -> Reading:
    """TRL's trainer of May 2023 under autocast in fp16, the only 16-bit type of a T4's matrix units.

    It prepares quantized weights by PEFT.
    """
    reading = trainer(it, tokens=it.tokens, kernels="eager", adapters=_prepared(it, "amp-fp16"))
    reading.add("--attention", "unfused")
    if it.quantization == "fp4":
        reading.add(assumed="4-bit floats as NF4")
    return reading


def _fsdp_blog(it: Measurement) -> Reading:
    """Accelerate's FSDP on two nodes with Elastic Fabric Adapters."""
    reading = trainer(it, tokens=it.tokens, kernels="eager", precision="fsdp-mixed")
    reading.add("--cluster", "p4de.24xlarge", assumed="p4de.24xlarge nodes")
    if not it.is_memory:
        reading.not_counted = "evaluations and saving are in the time, by a share that is not stated"
    return reading


def _mistral_finetune(it: Measurement) -> Reading:
    """Its script train.py, all in bfloat16."""
    reading = trainer(it, tokens=it.tokens, kernels="eager", adapters="bf16")
    if not it.is_memory:
        reading.not_counted = "attention is within samples, whose lengths are not stated"
    return reading


def _universal(it: Measurement) -> Reading:
    """Its scripts, without autocast: PEFT's adapters in FP32; beside 4-bit weights all is; one type under FSDP.

    Tokens are random, but masks are those of the padded samples (`gpu_test` in src/trainer/trainer.py). So
    transformers hands a mask to torch's attention, except for Gemma 2, whose attention transformers 4.49 has unfused by
    default. bitsandbytes before 0.47.0 multiplies in the type of its input. The loss is that of src/models, which takes
    logits as they are.
    """
    adapters = "bf16" if it.strategy.startswith("FSDP") else "fp32" if it.quantization != "none" else "mixed"
    reading = trainer(it, tokens=it.tokens, kernels="eager", adapters=adapters)
    reading.add("--attention", "unfused" if it.model.startswith("gemma-2") else "efficient")
    if it.quantization == "none":
        reading.add("--loss-dtype", "bf16")
    if not it.is_memory and it.strategy.startswith("FSDP"):
        # CUDA_LAUNCH_BLOCKING=1 in src/run/train.py.
        reading.not_counted = "each launch waits for its kernel, so that gathers and copies overlap with nothing"
    return reading


def _vectorlm(it: Measurement) -> Reading:
    """Its script profiling/benchmark.py, which converts all to bfloat16, adapters too."""
    reading = trainer(it, tokens=it.tokens, kernels="eager", adapters="bf16")
    reading.add("--attention", "flash-2")
    return reading


def _dgx_cloud(it: Measurement) -> Reading:
    """NeMo's recipes of pretraining for performance, on DGX H100 nodes."""
    reading = on_grid(it)
    reading.add("--batch", it.batch_per_gpu, "--seq", str(it.tokens), "--sharding", "zero1")
    recipe = ("--dtype", "fp8", "--precision", "fp8") if it.precision == "fp8" else ("--precision", "megatron")
    reading.add(*recipe, "--kernels", "transformer-engine", "--strategy", "native", "--cluster", "dgx-h100")
    reading.add(assumed="the network of a DGX H100; no recomputation")
    return reading


def _bigscience(it: Measurement) -> Reading:
    """Megatron-DeepSpeed on Jean Zay: four Omni-Path links of 100 Gbit/s a node of eight GPUs."""
    reading = on_grid(it)
    reading.add("--batch", it.batch_per_gpu, "--seq", str(it.tokens), "--sharding", "zero1", "--precision", "o2")
    readings.memory_savers(it, reading)
    reading.add("--kernels", "fused", "--attention", "unfused", "--strategy", "native")
    reading.add("--bandwidth", "400Gbps", "--gpus-per-node", "8")
    return reading


def _automodel(it: Measurement) -> Reading:
    """NeMo AutoModel's benchmarks: PyTorch with FSDP2, all in bfloat16."""
    reading = on_grid(it)
    reading.add("--batch", it.batch_per_gpu, "--seq", str(it.tokens))
    readings.trained(it, reading)
    reading.add("--precision", "bf16")
    is_fused = "FusedAdam" in it.framework
    reading.add("--optimizer-impl", "fused" if is_fused else "foreach")
    readings.memory_savers(it, reading)
    reading.add("--kernels", "compiled" if it.framework.startswith("compile") else "transformer-engine")
    if int(it.gpus) > 1:
        reading.add("--sharding", "zero3", "--cluster", "dgx-h100")
    if "DeepEP" in it.framework:
        reading.add("--expert-dispatch", "deepep")
    reading.add("--strategy", "native")
    return reading


def _deepspeed(it: Measurement) -> Reading:
    """DeepSpeed with FP32 masters."""
    return trainer(it, tokens=it.tokens, kernels="eager", precision="o2")


HELD_OUT = (
    Source("litgpt", "Lightning's litgpt", "github.com/Lightning-AI/litgpt", _litgpt),
    Source("xtuner", "InternLM's XTuner", "github.com/InternLM/xtuner", _xtuner),
    Source("ray", "Ray's template", "github.com/ray-project", _ray),
    Source("flash-attention", "FlashAttention's GPT", "github.com/Dao-AILab", _flash_attention, corrected=True),
    Source("unsloth", "unsloth's tables of Hugging Face's trainer", "docs.unsloth.ai", _unsloth),
    Source(
        "transformers-docs", "transformers' page on one GPU", "github.com/huggingface/transformers", _transformers_docs
    ),
    Source("colossalchat", "ColossalChat", "github.com/hpcaitech", _colossalai),
    Source("t4", "Hugging Face's blog on 4-bit weights", "huggingface.co/blog/4bit", _t4),
    Source("fsdp-blog", "Hugging Face's blog on FSDP", "huggingface.co/blog/ram-efficient", _fsdp_blog),
    Source("mistral-finetune", "mistral-finetune", "github.com/mistralai", _mistral_finetune),
    Source(
        *("universal", "universal-llm-trainer", "github.com/ljm565", _universal),
        memory="reserved",
        steps_are_passes=True,
        corrected=True,
    ),
    Source("vectorlm", "Vector Institute's VectorLM", "github.com/VectorInstitute", _vectorlm),
    Source("dgx-cloud", "NVIDIA's DGX Cloud Benchmarking", "catalog.ngc.nvidia.com", _dgx_cloud),
    Source("bigscience", "BigScience's chronicles of BLOOM", "github.com/bigscience-workshop", _bigscience),
    Source("automodel", "NeMo AutoModel", "github.com/NVIDIA-NeMo/Automodel", _automodel),
    Source("deepspeed", "DeepSpeed's blogs and examples", "github.com/deepspeedai", _deepspeed),
    Source("rocm", "AMD's blogs on ROCm", "rocm.blogs.amd.com", _deepspeed),
)
"""By how a source's name begins, the first that matches."""
HELD_OUT_GROUPS = {source.group: source.title for source in HELD_OUT}
"""The titles of the groups of rows, in the order of the output."""
