"""The commands that forecast measurements of fine-tuning: rules by source, which read its columns.

A rule says what the software does that the source names, where the source is silent. It is a function of the columns,
never of a single measurement. A measurement without a forecast has the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from paceline.catalog import names
from paceline.catalog.models.config import Config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.names import resolve
from paceline.catalog.recipes import dtype_bytes, recipe_of

from paceline_lab.studies.finetune.measurement import Measurement
from paceline_lab.studies.steps.data import FOLDER, UNITS


class NotForecast(Exception):
    """There is no command for a measurement; the text says why."""


@dataclass
class Reading:
    """A command, and what it assumes."""

    words: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    not_counted: str = ""
    """Why the measurement cannot be compared, if the source leaves something open that no command can say."""

    def add(self, *words: str, assumed: str = "") -> None:
        """Append words to the command, and an assumption to the others."""
        self.words += words
        if assumed and assumed not in self.assumed:
            self.assumed.append(assumed)

    @property
    def command(self) -> str:
        """The words after `paceline simulate`."""
        return " ".join(self.words)


_MODELS = {
    **{name: name for name in ("llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3.1-8b", "llama-3.1-70b")},
    **{name: name for name in ("llama-3-70b", "llama-3.1-405b", "llama-3.2-3b", "mixtral-8x7b", "yi-34b")},
    **{name: name for name in ("qwen2.5-7b", "qwen2.5-14b", "qwen2.5-72b", "qwen3-30b-a3b", "gpt-oss-20b")},
    **{name: name for name in ("gpt-oss-120b", "qwen1.5-moe-a2.7b", "qwen3-14b", "qwen3-235b-a22b")},
    "llama-2-70b-hf": "llama-2-70b",
    "llama-2-70b-gptq": "llama-2-70b",
    "meta-llama-3-8b": "llama-3-8b",
    "mistral-7b-v0.1": "mistral-7b",
    "mistral-7b-v0.2": "configs/mistral-7b-v0.2.json",
    "mixtral-8x7b-instruct-v0.1": "mixtral-8x7b",
    **{f"qwen-{size}": f"configs/qwen-{size}.json" for size in ("1.8b", "7b", "14b", "72b")},
    "qwen-1_8b-chat": "configs/qwen-1.8b.json",
    **{f"qwen-{size}-chat": f"configs/qwen-{size}.json" for size in ("7b", "14b", "72b")},
    "yi-34b-chat": "yi-34b",
    "qwen2.5-7b-instruct": "qwen2.5-7b",
    "qwen2.5-72b-instruct": "qwen2.5-72b",
    "qwen3-30b-a3b-base": "qwen3-30b-a3b",
    "qwen3-14b-fp8": "qwen3-14b",
    **{name: name for name in ("llama-7b", "llama-13b", "llama-3.2-1b", "mistral-7b-v0.3", "falcon-7b", "falcon-40b")},
    **{name: name for name in ("gemma-7b", "gemma-2-9b")},
    # FlashAttention's GPT pads its vocabulary to a multiple of 8.
    **{f"gpt3-{size}": f"configs/gpt3-{size}-50264.json" for size in ("125m", "350m", "760m", "1.3b")},
    **{name: name for name in ("qwen2.5-3b", "qwen2.5-32b", "phi-4", "seed-oss-36b", "nemotron-3-nano-30b-a3b")},
    **{name: name for name in ("deepseek-v3", "kimi-k2")},
    **{name: f"configs/{name}.json" for name in ("gemma-2b", "stablelm-base-alpha-3b", "gpt-181b")},
    "gpt3-2.7b-hdim128": "configs/gpt3-2.7b-128.json",
    "gpt_bigcode-santacoder": "configs/santacoder-4096.json",
    "glm-4.7-flash": "glm-4.7-flash",
    "lfm2-350m": "configs/lfm2-350m.json",
    "chatglm3-6b": "configs/chatglm3-6b.json",
    "bert-large-uncased": "configs/bert-large-sequence.json",
    "llama-2-13b-hf": "llama-2-13b",
    "llama-2-7b-hf": "llama-2-7b",
    "llama-3.3-70b": "llama-3.1-70b",
    "phi-3-mini-4k-instruct": "phi-3-mini",
    "tiny-llama": "tinyllama-1.1b",
    "yi-34b-200k": "yi-34b",
}
"""Models by the end of their name in a source, in lower case: a built-in one, or a configuration."""
_UNKNOWN_MODELS = (
    (
        "FLUX|CogVideoX|Stable Diffusion",
        "a diffusion model, whose frozen parts the source does not state",
    ),
    ("Qwen-VL|Qwen2.5-VL", "a vision-language model, whose images or videos the source does not state in tokens"),
    ("Llama-4-Scout|gemma-4", "a multimodal model, whose images the source does not state in tokens"),
    ("granite-3.0-3b", "the tokens of a sample are not stated"),
)
"""Patterns of models that no command forecasts, and why."""


@dataclass(frozen=True)
class _Gpu:
    words: tuple[str, ...]
    assumed: str = ""
    has_time: bool = True
    """Whether the source states the GPU, not only its memory."""


_GPUS = (
    ("L40S", _Gpu(("--gpu", "l40s"))),
    ("A100-SXM4 80GB", _Gpu(("--gpu", "a100"))),
    ("A100 SXM 40GB", _Gpu(("--gpu", "a100-40gb"))),
    ("A100", _Gpu(("--gpu", "a100"), "an A100 on SXM")),
    ("A800", _Gpu(("--gpu", "a800-80gb"))),
    ("RTX 3090 24GB (280 W cap", _Gpu(("--gpu", "rtx-3090", "--power-limit", "280W"))),
    ("RTX 4090", _Gpu(("--gpu", "rtx-4090"))),
    ("RTX A6000", _Gpu(("--gpu", "rtx-a6000"))),
    ("RTX A5000", _Gpu(("--gpu", "rtx-a5000"))),
    ("RTX 6000 Ada", _Gpu(("--gpu", "rtx-6000-ada"))),
    ("RTX PRO 6000", _Gpu(("--gpu", "rtx-pro-6000"))),
    ("DGX-GB300", _Gpu(("--gpu", "gb300"))),
    ("DGX-GB200", _Gpu(("--gpu", "gb200"))),
    ("DGX-H100|H100 SXM|H100 80GB", _Gpu(("--gpu", "h100"))),
    ("A10G", _Gpu(("--gpu", "a10g"))),
    ("T4", _Gpu(("--gpu", "t4"))),
    ("V100-SXM2 16GB", _Gpu(("--gpu", "v100-16gb"))),
    ("GH200 96GB", _Gpu(("--gpu", "gh200"))),
    ("H20", _Gpu(("--gpu", "h20"))),
    ("H800", _Gpu(("--gpu", "h800"))),
    ("GPU of 8 GB", _Gpu(("--gpu", "rtx-4060"), "a GPU of 8 GB as an RTX 4060", has_time=False)),
    ("24 ?GB class|GPU of 24", _Gpu(("--gpu", "rtx-3090"), "a GPU of 24 GB as an RTX 3090", has_time=False)),
    (">?=?40 GB class|GPU of 40", _Gpu(("--gpu", "a100-40gb"), "a GPU of 40 GB as an A100", has_time=False)),
    ("48GB class|GPU of 48", _Gpu(("--gpu", "l40s"), "a GPU of 48 GB as an L40S", has_time=False)),
    ("80 ?GB class|80GB GPU|not stated", _Gpu(("--gpu", "a100"), "a GPU of 80 GB as an A100", has_time=False)),
)
"""GPUs by a pattern of what a source calls them, the first that matches."""
_MODULES = {
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "output_proj": "o_proj",
    "up": "up_proj",
    "down": "down_proj",
    "gate": "gate_proj",
}
"""The linear layers of a source by the names of PEFT."""
_SEVERAL_MODULES = {
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}
_QUANTIZED = (
    ("nf4 double-quant|nf4 .torchao", "nf4-double"),
    ("nf4", "nf4"),
    ("fp4", "nf4"),
    ("int8", "int8"),
    ("gptq", "gptq-int4"),
)
"""Ways to hold base weights by a pattern; torchao's NF4 has scales in 8 bits."""
_OPTIMIZERS = (
    ("8bit", "adamw-8bit"),
    ("4bit", ""),
    ("GaLore", ""),
    ("Muon", "muon"),
    ("Adafactor", "adafactor"),
    ("PagedAdamW", "paged-adamw"),
    ("CPUOffload", ""),
)
"""Optimizers by a pattern, where they are not AdamW; empty: no option has them."""
_OFFLOADED = {
    "CPU params+optimizer": ("parameters", "states"),
    "CPU params": ("parameters", "states"),
    "CPU params+optimizer; activations": ("parameters", "states", "activations"),
    "optimizer CPU (fraction 1)": ("states",),
    "activations to CPU": ("activations",),
    "checkpoints to CPU": ("activations",),
    "CPU params+optimizer (DeepSpeed)": ("parameters", "states"),
}
"""The parts on the host. FSDP's offload of parameters is that of their gradients and states, too."""


def model(it: Measurement, reading: Reading) -> None:
    """Name the model. Raises NotForecast if no command has it."""
    for pattern, why in _UNKNOWN_MODELS:
        if re.search(pattern, it.model):
            raise NotForecast(why)
    name = _MODELS.get(it.model.rpartition("/")[2].partition(" (")[0].lower())
    if name is None:
        raise NotForecast(f"no configuration of {it.model}")
    reading.add(*(("--config", name) if name.startswith("configs/") else (name,)))


def gpu(it: Measurement, reading: Reading) -> None:
    """Name the GPU and how many there are. Raises NotForecast if it is not known."""
    gpu = next((gpu for pattern, gpu in _GPUS if re.match(pattern.replace("(", r"\("), it.gpu)), None)
    if gpu is None:
        raise NotForecast(f"{it.gpu} is not known")
    if not gpu.has_time and not it.is_memory:
        raise NotForecast("the GPU is not stated, only its memory")
    reading.add(*gpu.words, "--gpus", it.gpus, assumed=gpu.assumed)


def sizes(it: Measurement, reading: Reading, tokens: int) -> None:
    """Set the batch, its sequences of so many tokens, and accumulation. Raises NotForecast if one is not stated."""
    if not it.batch_per_gpu.isdigit():
        raise NotForecast("the batch is not stated")
    if not tokens:
        raise NotForecast("the lengths of samples are not stated")
    reading.add("--batch", it.batch_per_gpu, "--seq", str(tokens))
    if it.accumulate.isdigit() and int(it.accumulate) > 1:
        reading.add("--accumulate", it.accumulate)


_WITH_ENDS = "lora+embeddings+lm_head trained"


_DROPOUTS = (
    ("AnswerDotAI/fsdp_qlora", "0.1"),  # train.py
    ("QwenLM/Qwen ", "0.05"),  # finetune.py
    ("huggingface/peft docs", "0.1"),  # examples/sft/run_peft_fsdp.sh
    ("foundation-model-stack/fms-acceleration", "0.1"),  # lora_dropout in scripts/benchmarks/refs
    ("modelscope/ms-swift", "0.05"),  # its default: swift/arguments/tuner_args.py
    ("github.com/Lightning-AI/litgpt", "0.05"),  # config_hub/finetune, and finetune/lora.py of 2023
    ("github.com/ljm565/universal-llm-trainer", "0.05"),  # config_lora
    ("github.com/VectorInstitute/vectorlm", "0.1"),  # profiling/configs/lora-benchmark.yaml
    ("github.com/hpcaitech/ColossalAI", "0.1"),  # applications/ColossalChat/coati/models/lora.py
)
"""The dropout of adapters that the scripts and configurations of a source have, by how its name begins; else none."""


def trained(it: Measurement, reading: Reading) -> None:
    """Set the adapters, and how the base weights are held. Raises NotForecast for other methods."""
    if re.fullmatch(r"full( \((SFT|DPO|SimPO|ORPO|KTO)\))?", it.method):
        return
    if it.method not in ("lora", "lora 8-bit", _WITH_ENDS, "dora", "qlora", "gptq-lora"):
        raise NotForecast(f"no option has {it.method}: by recording")
    if not it.lora_rank or not it.lora_modules:
        raise NotForecast("the rank and the modules of the adapters are not stated")
    rank = it.lora_rank.split(" ")[0]
    reading.add("--lora", f"{rank}:{_modules(it, reading)}")
    if it.method == "dora":
        reading.add("--dora")
    dropout = next((share for pattern, share in _DROPOUTS if re.match(pattern, it.source)), "")
    if dropout:
        reading.add("--lora-dropout", dropout)
    if it.method == _WITH_ENDS:
        # `modules_to_save` of Qwen's finetune.py.
        reading.add("--modules-to-save", "wte,lm_head")
    held = next((held for pattern, held in _QUANTIZED if re.search(pattern, it.quantization)), "")
    if held == "nf4" and re.match("AnswerDotAI|foundation-model-stack", it.source):
        # Linear4bit's `compress_statistics`, and `bnb_4bit_use_double_quant` in framework_plugin_bnb.py.
        held = "nf4-double"
    if held:
        reading.add("--quantize", held)


def _modules(it: Measurement, reading: Reading) -> str:
    stated = re.sub(r" ?\(.*?\)", "", it.lora_modules)
    if stated in ("all-linear", "all incl. mlp+lm_head"):
        return "all-linear"
    names: list[str] = []
    if "GLM-4.7-Flash" in it.model:
        reading.add(assumed="adapters of o alone for those of q, k, v and o, which its latent attention has not")
        stated = stated.replace("q+k+v+o", "o")
    for word in stated.split("+"):
        # The benchmark's configuration lists a layer of another model, too.
        if word == "c_attn" and "q_proj" in stated:
            continue
        names += _SEVERAL_MODULES.get(word, (_MODULES.get(word, word),))
    return ",".join(dict.fromkeys(names))


def optimizer(it: Measurement, reading: Reading, implementation: str) -> None:
    """Name the optimizer; AdamW with its kernels. Raises NotForecast if no option has it."""
    name = next((name for pattern, name in _OPTIMIZERS if pattern in it.optimizer), "adamw")
    if not name:
        raise NotForecast(f"no option has {it.optimizer}")
    if name != "adamw":
        reading.add("--optimizer", name)
    if "into backward" in it.optimizer:
        reading.add("--optimizer-impl", "in-backward")
    elif implementation and name == "adamw":
        assumed = {
            "foreach": "AdamW by foreach, torch's default",
            "fused": "fused AdamW, as in its configurations",
            "loop": "AdamW by a loop over parameters, as transformers' own",
        }
        reading.add("--optimizer-impl", implementation, assumed=assumed[implementation])


def memory_savers(it: Measurement, reading: Reading, *, is_reentrant: bool = False) -> None:
    """Set checkpointing and offload. Raises NotForecast if one is not known.

    `is_reentrant`: whether checkpoints are, as those of transformers before version 5. It matters to FSDP1.
    """
    if re.match("full|selective", it.checkpointing):
        kind = re.split("[ (]", it.checkpointing)[0]
        reading.add("--checkpointing", "reentrant" if is_reentrant and it.strategy.startswith("FSDP1") else kind)
    elif it.checkpointing != "none":
        raise NotForecast("whether activations are recomputed is not stated")
    if it.offload and it.offload != "none":
        parts = _OFFLOADED.get(it.offload)
        if parts is None:
            raise NotForecast(f"no option has an offload of {it.offload}")
        reading.add("--offload", f"cpu:{','.join(parts)}")


def sharding(it: Measurement, reading: Reading) -> None:
    """Set the sharding of data parallelism. Raises NotForecast for other strategies."""
    stage = re.search("ZeRO-([123])", it.strategy)
    if stage:
        reading.add("--sharding", f"zero{stage[1]}")
    elif it.strategy.startswith(("FSDP1 FULL_SHARD", "FSDP2")):
        reading.add("--sharding", "zero3")
    elif it.strategy == "model split over GPUs (device_map, inferred)":
        # Parts of the layers compute in turn.
        reading.add("--pipeline-parallel", it.gpus, "--microbatches", "1")
    elif not it.strategy.startswith(("single", "DDP")):
        raise NotForecast(f"no option has {it.strategy}")


def loss(it: Measurement, reading: Reading, tokens: int) -> None:
    """Set the chunks of a fused loss over so many tokens."""
    if it.loss_kernel.startswith("chunked CE (CE") or it.loss_kernel == "chunked CE":
        reading.add("--loss-chunks", "8", assumed="8 chunks, as CEWithChunkedOutputLoss has")
    elif it.loss_kernel.startswith("Liger fused"):
        chunks, words = _liger_chunks(reading, tokens)
        reading.add(
            *("--loss-chunks", str(chunks)),
            assumed=f"{chunks} chunks, by Liger's rule for {tokens:,} tokens and {words:,} words",
        )
    elif it.loss_kernel.startswith("fused triton CE"):
        reading.add("--loss-chunks", "1", assumed="logits in FP32, as transformers converts them before a fused loss")
    elif it.loss_kernel.startswith("cut-cross-entropy"):
        chunks = math.ceil(tokens / _CUT)
        reading.add("--loss-chunks", str(chunks), assumed="logits by tile, as chunks of 128 tokens")


_CUT = 128
"""Tokens of a tile of cut cross-entropy (apple/ml-cross-entropy, `_cce_forward_kernel`: BLOCK_B)."""


def _liger_chunks(reading: Reading, tokens: int) -> tuple[int, int]:
    """Return chunks by the rule of Liger-Kernel (ops/fused_linear_cross_entropy.py), and the size of the vocabulary."""
    fields = _fields(reading)
    words, hidden = int(fields["vocab_size"]), int(fields["hidden_size"])
    share = -(-words // hidden)
    size = 1 << (-(-tokens // share) - 1).bit_length()
    return -(-tokens // size), words


def check_states(it: Measurement, reading: Reading, recipe: str) -> None:
    """Leave out what contradicts itself: less memory of one GPU than parameters, gradients and AdamW's states take."""
    own = {"--lora", "--freeze", "--optimizer", "--offload", "in-backward"}
    if "memory" not in it.metric or it.gpus != "1" or own & {*reading.words}:
        return
    types = recipe_of(cast("names.Recipe", recipe), "bf16")
    each = sum(map(dtype_bytes, (types.parameters, types.gradients, types.states, types.states)))
    if float(it.measured) * UNITS[it.unit] < each * model_of(_config(reading)).parameters:
        reading.not_counted = "it contradicts itself: parameters, gradients and AdamW's moments alone take more memory"


def layers(reading: Reading) -> int:
    """Return the blocks of a reading's model."""
    return int(_fields(reading)["num_hidden_layers"])


def _fields(reading: Reading) -> Mapping[str, Any]:
    return _config(reading).fields


def _config(reading: Reading) -> Config:
    word = reading.words[reading.words.index("--config") + 1] if "--config" in reading.words else reading.words[0]
    config = resolve(FOLDER / word if word.startswith("configs/") else word)
    assert config is not None
    return config
