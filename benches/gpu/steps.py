"""Training steps of public models on one GPU, as docs/results/compute.md has them: `steps.py MODEL [STEPS]`.

On a device it prints the median step and the peak of memory; `paceline record --gpu h200 -o FILE -- python
benches/gpu/steps.py MODEL` forecasts both without one. Needs transformers and torchvision (group `trainers`).
"""

import argparse
import json
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

_LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192}
LANGUAGE: dict[str, tuple[str, str, int, int, dict[str, Any]]] = {
    "gpt2-medium": ("GPT2Config", "GPT2LMHeadModel", 8, 1024, {"n_layer": 24, "n_embd": 1024, "n_head": 16}),
    "bert-large": (
        *("BertConfig", "BertForMaskedLM", 32, 512),
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "llama-3.2-1b": (
        *("LlamaConfig", "LlamaForCausalLM", 2, 4096),
        {
            **_LLAMA,
            **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "head_dim": 64},
            "tie_word_embeddings": True,
        },
    ),
    "llama-3-8b": (
        *("LlamaConfig", "LlamaForCausalLM", 1, 4096),
        {**_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    ),
}
"""Configuration, class, batch, length, and settings."""
VISION = {"resnet50": 256, "vgg16": 128, "convnext_base": 64, "swin_t": 128}


def language(name: str) -> Callable[[], None]:
    """Return a step of a language model, in bfloat16 as a whole."""
    import transformers

    config, kind, batch, length, settings = LANGUAGE[name]
    made = getattr(transformers, config)(**settings, attn_implementation="sdpa")
    made.use_cache = False
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = getattr(transformers, kind)(made)
        torch.set_default_dtype(torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, made.vocab_size, (batch, length), device="cuda")

    def step() -> None:
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def vision(name: str) -> Callable[[], None]:
    """Return a step of a vision model, in FP32 under autocast to bfloat16 and in channels_last."""
    import torchvision

    layout = torch.channels_last
    model = getattr(torchvision.models, name)().cuda().to(memory_format=layout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(VISION[name], 3, 224, 224, device="cuda").to(memory_format=layout)
    labels = torch.randint(0, 1000, (VISION[name],), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=[*LANGUAGE, *VISION])
    parser.add_argument("steps", type=int, nargs="?", default=12)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    step = (language if options.model in LANGUAGE else vision)(options.model)
    for _ in range(6):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(options.steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in pairwise(events)]
    peak = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps({"model": options.model, "median_ms": statistics.median(times), "peak_gb": peak}))


if __name__ == "__main__":
    main()
