"""Megatron-LM's arguments: megatron/training/arguments.py. NeMo and Megatron Bridge share their names (nemo.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.interop.trainers import deepspeed
from paceline.interop.trainers.document import Values, beside
from paceline.interop.trainers.reading import NO_FILE, Direct, Reading, Trainer
from paceline.interop.trainers.words import (
    NO_BITSANDBYTES,
    compare_with_slurm,
    nodes_of,
    take_gpus_per_node,
    take_optimizer,
)

_DEGREES = {
    "tensor_parallel": "--tensor-model-parallel-size",
    "pipeline_parallel": "--pipeline-model-parallel-size",
    "context_parallel": "--context-parallel-size",
    "expert_parallel": "--expert-model-parallel-size",
}
_TOKENIZERS = {
    "llama3": 128_256,
    "llama-3": 128_256,
    "llama_3": 128_256,
    "llama2": 32_000,
    "llama-2": 32_000,
    "mixtral": 32_000,
    "mistral": 32_000,
    "deepseek-v3": 129_280,
    "qwen3": 151_936,
    "qwen2": 151_936,
    "gpt2": 50_257,
}
"""Entries of published vocabularies, by words in the name of a tokenizer."""
_GATED = ("--swiglu", "--gated-linear-unit", "--quick-geglu", "--geglu")


def recognizes(values: Values) -> bool:
    """Whether these are arguments of Megatron-LM."""
    return (
        ("--num-layers" in values and "--hidden-size" in values)
        or "--tensor-model-parallel-size" in values
        or ("--micro-batch-size" in values and "--global-batch-size" in values)
    )


def derive(reading: Reading) -> None:
    """Derive the options."""
    _model(reading)
    parallel(reading)
    _batch(reading)
    _precision(reading)
    _sharding(reading)
    recomputation(reading)
    _kernels(reading)
    _graphs(reading)
    name = reading.text("--optimizer")
    if name:
        take_optimizer(reading, "--optimizer")
    if reading.flag("--optimizer-cpu-offload"):
        share = reading.value("--optimizer-offload-fraction")
        reading.take("offload", "cpu:states", "--optimizer-cpu-offload", "--optimizer-offload-fraction")
        if share not in (None, 1):
            reading.assume(f"all states on the CPU, where the file offloads {share} of them")
    if reading.flag("--cpu-offloading"):
        reading.take("offload", "cpu:activations", "--cpu-offloading", "--cpu-offloading-num-layers")


def parallel(reading: Reading) -> None:
    """Take GPUs and parallel degrees. Raises InvalidArgumentError if they do not fit together."""
    for setting, name in _DEGREES.items():
        reading.take(setting, reading.whole(name), name, unless=1)
    shared = (
        reading.degree("tensor_parallel") * reading.degree("pipeline_parallel") * reading.degree("context_parallel")
    )
    least = _least_gpus(reading, shared)
    nodes = nodes_of(reading, ("--nnodes", "--num-nodes"), ("--nproc-per-node", "--gpus-per-node", "--num-gpus"))
    if nodes.gpus is None:
        reading.take("workers", reading.whole("--world-size"), "--world-size")
    elif nodes.count is None and nodes.gpus % least:
        count = math.lcm(nodes.gpus, least)
        reading.take("workers", count, *nodes.of_gpus)
        reading.assume(f"{count // nodes.gpus} nodes, the fewest of these degrees", "--gpus N")
    else:
        reading.take("workers", nodes.gpus * (nodes.count or 1), *nodes.fields)
        if nodes.count is None:
            reading.assume("one node, as nothing says how many", "--gpus N")
    compare_with_slurm(reading, "--world-size", *nodes.fields)
    take_gpus_per_node(reading, nodes)
    if reading.gpus is None and (shared > 1 or reading.degree("expert_parallel") > 1):
        reading.default("workers", least, f"{least} GPUs, the fewest of these degrees", "--gpus N")
    if reading.gpus is not None and reading.gpus % shared:
        total = reading.whole("--global-batch-size")
        raise reading.refused(
            _DEGREES["tensor_parallel"],
            f"tensor x pipeline x context, {shared}, does not divide {reading.gpus} GPUs",
            reading.dividing_gpus(total) or reading.dividing_gpus(None) or f"{{gpus={shared}}}",
        )
    if reading.gpus is not None and "expert_parallel" not in reading.given and reading.gpus % least:
        name = _DEGREES["expert_parallel"]
        problem = f"experts and pipeline need groups of {least} GPUs, which do not divide {reading.gpus}"
        raise reading.refused(name, problem, f"{{gpus={max(1, round(reading.gpus / least)) * least}}}")
    if reading.replicas is not None:
        reading.assume(
            f"data parallel {reading.replicas}: {reading.gpus} GPUs over tensor x pipeline x context, {shared}"
        )
    # Of one replica of the experts: Megatron counts them over data-parallel ranks, tensor parallelism apart.
    expert, tensor = reading.degree("expert_parallel"), reading.degree("tensor_parallel")
    own = reading.whole("--expert-tensor-parallel-size")
    if expert > 1 and tensor > 1 and "expert_parallel" not in reading.given:
        reading.take(
            "expert_parallel", expert * (own or tensor), _DEGREES["expert_parallel"], "--expert-tensor-parallel-size"
        )
    _dispatch(reading)
    if tensor > 1 and not reading.flag("--sequence-parallel"):
        reading.assume("sequence parallelism beside tensor parallelism")
    _virtual(reading)


def _dispatch(reading: Reading) -> None:
    """Take what sends tokens to experts on other GPUs: `flex` is DeepEP or HybridEP."""
    if reading.degree("expert_parallel") == 1:
        return
    name = "--moe-token-dispatcher-type"
    kind = reading.choice({"allgather": "allgather", "alltoall": "alltoall", "flex": "deepep"}, name)
    if kind == "allgather":
        reading.leave(name, "all-gathers of tokens; forecast as all-to-alls")
    else:
        reading.take("expert_dispatch", kind, name, "--moe-flex-dispatcher-backend", "--moe-enable-deepep")


def _least_gpus(reading: Reading, shared: int) -> int:
    """Return the GPUs of one replica of the model, or of its experts where these need more."""
    stages, tensor = reading.degree("pipeline_parallel"), reading.degree("tensor_parallel")
    experts = reading.degree("expert_parallel") * (reading.whole("--expert-tensor-parallel-size") or tensor)
    return math.lcm(shared, stages * experts)


def _virtual(reading: Reading) -> None:
    stages = reading.degree("pipeline_parallel")
    if stages == 1:
        return
    layers, part = reading.whole("--num-layers"), reading.whole("--num-layers-per-virtual-pipeline-stage")
    count = reading.whole("--num-virtual-stages-per-pipeline-rank", "--virtual-pipeline-model-parallel-size")
    if count is not None:
        reading.take(
            "virtual_stages",
            count,
            "--num-virtual-stages-per-pipeline-rank",
            "--virtual-pipeline-model-parallel-size",
            unless=1,
        )
    elif layers and part:
        if layers % (stages * part):
            raise reading.wrong(
                "--num-layers-per-virtual-pipeline-stage",
                f"{part} layers on each of {stages} stages do not divide {layers}",
                "1",
            )
        reading.take("virtual_stages", layers // stages // part, "--num-layers-per-virtual-pipeline-stage", unless=1)


def _batch(reading: Reading) -> None:
    reading.take("batch", reading.whole("--micro-batch-size"), "--micro-batch-size")
    total = reading.whole("--global-batch-size")
    if total is not None:
        reading.passes_of_global("--global-batch-size", total)
    elif reading.degree("pipeline_parallel") > 1:
        reading.passes(None)
    ramp = reading.value("--rampup-batch-size")
    if ramp is not None:
        reading.leave("--rampup-batch-size", "the batch of the start; the full one is forecast")


def _precision(reading: Reading) -> None:
    eight = [name for name in ("--fp8-format", "--fp8-hybrid", "--fp8-e4m3") if reading.value(name)]
    if eight:
        reading.known("--bf16", "beside products in 8 bits")
        reading.take("dtype", "fp8", *eight)
        reduced = "--grad-reduce-in-bf16"
        reading.take("precision", "o2" if reading.flag(reduced) else "megatron", *eight, reduced)
        return
    for name in ("bf16", "fp16"):
        if not reading.flag(f"--{name}"):
            continue
        reading.take("dtype", name, f"--{name}")
        lean = reading.flag("--grad-reduce-in-bf16") or (
            name == "fp16" and not reading.flag("--accumulate-allreduce-grads-in-fp32")
        )
        reading.take(
            "precision",
            "o2" if lean else "megatron",
            f"--{name}",
            "--grad-reduce-in-bf16",
            "--accumulate-allreduce-grads-in-fp32",
        )
        return
    reading.default("dtype", "fp32", "FP32, as neither bf16 nor fp16 is set", "--dtype bf16")


_FSDP = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}


def _of_deepspeed(reading: Reading) -> None:
    """Take ZeRO's stage, and attention without flash kernels, of Megatron-DeepSpeed's arguments.

    Its `--deepspeed` is of 2021, before Megatron Core: megatron/arguments.py of deepspeedai/Megatron-DeepSpeed.
    """
    names = ("--deepspeed-config", "--zero-stage")
    word = reading.values.get(names[0])
    file = beside(reading.path, word) if isinstance(word, str) and "$" not in word else None
    if file is not None:
        deepspeed.include(reading, names[0])
        for setting in ("kernels", "optimizer", "optimizer_impl"):
            # Defaults of transformers' integration.
            if reading.is_default(setting):
                reading.forget(setting)
    else:
        reading.leave(names[0], NO_FILE)
    reading.known("--deepspeed", "ZeRO by DeepSpeed")
    reading.take("sharding", reading.choice(deepspeed.STAGES, names[1]), names[1])
    if "sharding" not in reading.options:
        reading.default("sharding", "none", "stage 0, as nothing that is read says another", "--sharding zero1")
    flash = [name for name in reading.values if name.startswith("--use-flash-attn")]
    if flash:
        reading.known(flash[0], "as a forecast's attention")
    else:
        reading.default("attention", "unfused", "attention without flash kernels, its default", "--attention flash")


def _sharding(reading: Reading) -> None:
    if reading.flag("--deepspeed"):
        _of_deepspeed(reading)
    elif reading.flag("--use-torch-fsdp2"):
        reading.take("sharding", "zero3", "--use-torch-fsdp2")
    elif reading.flag("--use-megatron-fsdp", "--use-custom-fsdp"):
        name = "--data-parallel-sharding-strategy"
        kind = reading.choice(_FSDP, name) or "none"
        reading.take("sharding", kind, name, "--use-megatron-fsdp", "--use-custom-fsdp")
        reading.take(
            "kernels", "transformer-engine" if kind == "zero3" else None, "--use-megatron-fsdp", "--use-custom-fsdp"
        )
    elif reading.flag("--use-distributed-optimizer"):
        instances = reading.whole("--num-distributed-optimizer-instances") or 1
        size = (reading.replicas or 0) // instances if instances > 1 else 0
        reading.take(
            "sharding",
            f"zero1:{size}" if size > 1 else "zero1",
            "--use-distributed-optimizer",
            "--num-distributed-optimizer-instances",
        )
    else:
        reading.default("sharding", "none", "no distributed optimizer", "--sharding zero1")
    for name in ("--overlap-grad-reduce", "--overlap-param-gather"):
        if reading.flag(name):
            reading.known(name, "as a forecast has it")
        elif reading.effective("sharding") != "none" or name == "--overlap-grad-reduce":
            reading.assume(f"communication that overlaps with computation, as with {name}")
    elements = reading.number("--ddp-bucket-size")
    if elements is not None and reading.effective("sharding") in ("none", "zero1", "zero2"):
        reading.take("bucket_size", f"{4 * elements}B", "--ddp-bucket-size")


def recomputation(reading: Reading) -> None:
    """Take what is recomputed in the backward pass."""
    name = "--recompute-granularity"
    if reading.flag("--recompute-activations"):
        reading.take("checkpointing", "selective", "--recompute-activations")
    kind = reading.choice({"full": "full", "selective": "selective"}, name)
    reading.take("checkpointing", kind, name, "--recompute-method", "--recompute-num-layers", "--recompute-modules")
    if reading.flag("--checkpoint-activations"):
        reading.take("checkpointing", "full", "--checkpoint-activations")
    modules = reading.words("--recompute-modules")
    if kind == "selective" and modules and modules != ["core_attn"]:
        reading.assume(
            f"recomputation of attention, where the file recomputes {', '.join(modules)[:80]}",
            "--checkpointing full, or none",
        )
    if kind == "full" and reading.text("--recompute-method") == "block":
        reading.assume(
            "recomputation of all layers, where the file recomputes some", "--checkpointing selective, or none"
        )
    for one in ("--recompute-method", "--recompute-num-layers", "--recompute-modules"):
        reading.known(one, "with the granularity")


def _graphs(reading: Reading) -> None:
    """Take CUDA graphs of blocks, but for routed experts; those of other parts are assumed to be these."""
    names, scopes = ("--enable-cuda-graph", "--external-cuda-graph"), ("--cuda-graph-scope", "--cuda-graph-modules")
    kinds = {"none": "none", "local": "local", "transformer_engine": "te", "full_iteration": "full_iteration"}
    kind = reading.choice(kinds, "--cuda-graph-impl") or "none"
    flags = [reading.flag(name) for name in names]
    modules = [one.strip("[]'\"") for name in scopes for word in reading.words(name) for one in word.split()]
    for name in scopes:
        reading.known(name, "with the graphs")
    if kind == "none" and not any(flags):
        return
    reading.take("cuda_graphs", True, "--cuda-graph-impl", *names, *scopes)
    whole = {"attn", "moe_router" if reading.has("--num-experts") else "mlp"}
    if "full_iteration" in (kind, *modules):
        reading.assume("CUDA graphs of blocks, where the file has one of the whole iteration")
    elif modules and "full" not in modules and not whole <= {*modules}:
        reading.assume(f"CUDA graphs of whole blocks, where the file has them of {', '.join(modules)[:80]}")


def _kernels(reading: Reading) -> None:
    kind = reading.choice(
        {"transformer_engine": "te", "local": "local", "inference_optimized": "te"}, "--transformer-impl"
    )
    if kind == "te" and reading.options.get("dtype") == "fp8":
        reading.take("kernels", "transformer-engine", "--transformer-impl")
    elif kind is not None:
        reading.known("--transformer-impl", "as a forecast's fused kernels")
    backend = reading.choice(
        {"flash": "flash", "fused": "flash", "unfused": "unfused", "local": "unfused", "auto": "flash"},
        "--attention-backend",
    )
    reading.take("attention", backend, "--attention-backend", unless="flash")
    for name in ("--use-flash-attn", "--cross-entropy-loss-fusion"):
        if reading.flag(name):
            reading.known(name, "as a forecast's fused kernels")


# The model.


def _model(reading: Reading) -> None:
    layers, hidden = reading.whole("--num-layers"), reading.whole("--hidden-size")
    if layers is None or hidden is None:
        return
    heads = reading.whole("--num-attention-heads")
    if heads is None:
        raise reading.wrong("--num-attention-heads", "is missing", "32")
    gated, experts = reading.flag(*_GATED), reading.whole("--num-experts")
    if experts == 1:
        # Megatron-DeepSpeed's default: no mixture of experts.
        experts = None
        reading.known("--num-experts", "none")
    used = ["--num-layers", "--hidden-size", "--num-attention-heads", "--ffn-hidden-size", "--vocab-size", *_GATED]
    own: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(reading, heads),
        # megatron/training/arguments.py (validate_args): 4 h, of gated ones two thirds of that, to a multiple of 64.
        "intermediate_size": reading.whole("--ffn-hidden-size")
        or (int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden),
        "vocab_size": _vocabulary(reading),
        "tie_word_embeddings": not reading.flag("--untie-embeddings-and-output-weights"),
        "max_position_embeddings": reading.whole("--max-position-embeddings") or reading.whole("--seq-length") or 2048,
    }
    width = reading.whole("--kv-channels")
    if width is not None and width * heads != hidden:
        own["head_dim"] = width
    used += [
        "--kv-channels",
        "--max-position-embeddings",
        "--untie-embeddings-and-output-weights",
        "--group-query-attention",
        "--num-query-groups",
        "--num-key-value-heads",
    ]
    kind = _kind(reading, gated=gated, experts=experts, own=own)
    if experts:
        used += _experts(reading, kind, experts, own)
    elif kind == "deepseek_v2":
        # Latent attention without experts: all layers are dense.
        own |= {"n_routed_experts": 1, "num_experts_per_tok": 1, "first_k_dense_replace": layers}
        own["moe_intermediate_size"] = own["intermediate_size"]
        used += _latent(reading, own)
    if kind == "gpt2":
        del own["num_key_value_heads"]
        own = {_GPT2.get(name, name): value for name, value in own.items()}
    for name in _ARCHITECTURE:
        used += [name] if name in reading.values else []
    reading.build_model(kind, own, *used)


_GPT2 = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
"""Fields of GPT-2's configuration that have names of their own."""
_ARCHITECTURE = (
    *(
        "--swiglu",
        "--normalization",
        "--disable-bias-linear",
        "--position-embedding-type",
        "--use-rotary-position-embeddings",
    ),
    *(
        "--qk-layernorm",
        "--add-qkv-bias",
        "--squared-relu",
        "--use-rope-scaling",
        "--rotary-percent",
        "--multi-latent-attention",
    ),
    *("--q-lora-rank", "--kv-lora-rank", "--qk-head-dim", "--qk-pos-emb-head-dim", "--v-head-dim"),
)


def _kv_heads(reading: Reading, heads: int) -> int:
    groups = reading.whole("--num-query-groups", "--num-key-value-heads")
    if not reading.flag("--group-query-attention", default=groups is not None):
        return heads
    return groups or 1


def _vocabulary(reading: Reading) -> int:
    size = reading.whole("--vocab-size", "--padded-vocab-size", "--pad-vocab-size-to")
    if size is not None:
        return size
    words = " ".join(
        str(reading.values.get(name, ""))
        for name in (
            *("--tokenizer-model", "--tokenizer-type", "--vocab-file", "--tokenizer-name-or-path", "--load"),
            *("model.tokenizer.type", "model.tokenizer.model", "tokenizer.tokenizer_model", "model.tokenizer.library"),
        )
    ).lower()
    for word, count in _TOKENIZERS.items():
        if word in words:
            reading.assume(
                f"a vocabulary of {count:,} tokens, by the name of the tokenizer", "--vocab-size in the file"
            )
            return count
    count = _TOKENIZERS["gpt2"]
    reading.assume(f"a vocabulary of {count:,} tokens, that of GPT-2, as the file has none", "--vocab-size in the file")
    return count


def _kind(reading: Reading, *, gated: bool, experts: int | None, own: Mapping[str, Any]) -> str:
    if reading.flag("--multi-latent-attention"):
        return "deepseek_v3" if experts else "deepseek_v2"
    if experts:
        return "qwen3_moe" if reading.whole("--moe-ffn-hidden-size") or reading.flag("--qk-layernorm") else "mixtral"
    rotary = reading.text("--position-embedding-type") in ("rope", "yarn") or reading.flag(
        "--use-rotary-position-embeddings"
    )
    if gated:
        if reading.flag("--qk-layernorm"):
            return "qwen3"
        return "qwen2" if reading.flag("--add-qkv-bias") else "llama"
    if own["num_key_value_heads"] == own["num_attention_heads"]:
        return "gpt_neox" if rotary else "gpt2"
    if reading.text("--normalization").lower() == "rmsnorm":
        reading.assume("a gated MLP, as no family with RMSNorm has another", "--model config.json")
        return "llama"
    return "starcoder2"


def _experts(reading: Reading, kind: str, experts: int, own: dict[str, Any]) -> list[str]:
    width = reading.whole("--moe-ffn-hidden-size")
    routed = reading.whole("--moe-router-topk") or 2
    shared = reading.whole("--moe-shared-expert-intermediate-size")
    own["num_experts_per_tok"] = routed
    own[
        "num_local_experts"
        if kind == "mixtral"
        else "n_routed_experts"
        if kind.startswith("deepseek")
        else "num_experts"
    ] = experts
    if kind == "mixtral":
        own["intermediate_size"] = width or own["intermediate_size"]
    else:
        own["moe_intermediate_size"] = width or own["intermediate_size"]
    if kind.startswith("deepseek"):
        own["n_shared_experts"] = max(0, round((shared or 0) / own["moe_intermediate_size"]))
        for name, field in _GROUPS.items():
            if (count := reading.whole(name)) is not None:
                own[field] = count
        own["first_k_dense_replace"] = max(1, _dense(reading, own["num_hidden_layers"]))
        _latent(reading, own)
    elif shared is not None:
        reading.leave(
            "--moe-shared-expert-intermediate-size", "shared experts of this family; --model config.json says them"
        )
    return [
        "--num-experts",
        "--moe-ffn-hidden-size",
        "--moe-router-topk",
        "--moe-shared-expert-intermediate-size",
        "--moe-layer-freq",
        *(_GROUPS if kind.startswith("deepseek") else ()),
    ]


def _latent(reading: Reading, own: dict[str, Any]) -> list[str]:
    """Take the sizes of latent attention; return their arguments."""
    for name, field in _LATENT.items():
        if (size := reading.whole(name)) is not None:
            own[field] = size
    return list(_LATENT)


_GROUPS = {"--moe-router-num-groups": "n_group", "--moe-router-group-topk": "topk_group"}
"""Fields of DeepSeek's node-limited routing."""
_LATENT = {
    "--q-lora-rank": "q_lora_rank",
    "--kv-lora-rank": "kv_lora_rank",
    "--qk-head-dim": "qk_nope_head_dim",
    "--qk-pos-emb-head-dim": "qk_rope_head_dim",
    "--v-head-dim": "v_head_dim",
}


def _dense(reading: Reading, layers: int) -> int:
    """Return how many of the first layers have no experts: `--moe-layer-freq "([0]*3+[1]*58)"`."""
    word = "".join(map(str, reading.words("--moe-layer-freq"))).replace(" ", "")
    if word.lstrip("(").startswith("[0]+"):
        return 1
    first = word.partition("]*")[2].partition("+")[0] if word.lstrip("(").startswith("[0]*") else ""
    return min(int(first), layers - 1) if first.isascii() and first.isdigit() and len(first) < 6 else 0


MEGATRON = Trainer(
    "Megatron-LM",
    recognizes,
    derive,
    direct={"--seq-length": Direct("seq")},
    tables=("megatron",),
    prefix="--",
    # Its distributed optimizer is ZeRO-1 (megatron/core/optimizer), and Megatron-FSDP is ZeRO-3.
    lacks={**NO_BITSANDBYTES, "checkpointing": ("offload",)},
)
