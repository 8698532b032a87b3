"""Record the operators of small models of transformers, with which tests compare those of configurations.

    python scripts/record_operators.py tests/data/operators.json.xz        needs transformers (group `trainers`)

Each model runs one training step in bfloat16 without data, as `paceline record --gpu h200` has it. Kept are the names,
shapes, dtypes, strides and attributes of what it dispatches, and the configuration.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

GPU = "h200"
_SMALL = {"num_hidden_layers": 1, "vocab_size": 1024, "max_position_embeddings": 512}
_DECODER = {
    **{"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 2},
    **{"head_dim": 64, "attention_dropout": 0.0, "pad_token_id": 0, **_SMALL},
}
_BERT = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, **_SMALL}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _DECODER),
    "qwen2": ("Qwen2ForCausalLM", _DECODER),
    "qwen3": ("Qwen3ForCausalLM", _DECODER),
    "phi3": ("Phi3ForCausalLM", {**_DECODER, "resid_pdrop": 0.0, "sliding_window": None}),
    "gemma": ("GemmaForCausalLM", {**_DECODER, "tie_word_embeddings": True}),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 512, "n_layer": 1, "n_head": 8, "vocab_size": 1024, "n_positions": 512},
    ),
    "opt": (
        "OPTForCausalLM",
        {"hidden_size": 512, "ffn_dim": 2048, "num_attention_heads": 8, "word_embed_proj_dim": 512, **_SMALL},
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, **_SMALL},
    ),
    "bert": ("BertForMaskedLM", _BERT),
    "roberta": ("RobertaForMaskedLM", _BERT),
    "vit": (
        "ViTForImageClassification",
        {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048, "num_hidden_layers": 1},
    ),
    "mixtral": ("MixtralForCausalLM", {**_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "t5": (
        "T5ForConditionalGeneration",
        {
            **{"d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 8},
            **{"vocab_size": 1024, "decoder_start_token_id": 0},
        },
    ),
}
"""Class and configuration."""
BATCH, LENGTH = 4, 256


def record(kind: str) -> dict[str, Any]:
    """Return the configuration of a model and the operators of its second step."""
    from paceline.torch.simulated.mode import enter

    simulation = enter(GPU, None)
    import torch
    import transformers

    name, settings = MODELS[kind]
    config = transformers.AutoConfig.for_model(kind, **settings, attn_implementation="sdpa")
    config.use_cache = False
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = getattr(transformers, name)(config)
        torch.set_default_dtype(torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if kind == "vit":
        images = torch.randn(BATCH, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
        inputs = {"pixel_values": images, "labels": torch.randint(0, 2, (BATCH,), device="cuda")}
    else:
        ids = torch.randint(0, settings["vocab_size"], (BATCH, LENGTH), device="cuda")
        inputs = {"input_ids": ids, "labels": ids}
    begin = 0
    for _ in range(2):
        begin = simulation.clock.mark()
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    rows = []
    for one in simulation.clock.operators[begin:]:
        tensors = [[[list(t.shape), t.dtype, list(t.strides)] for t in group] for group in (one.inputs, one.outputs)]
        rows.append([one.name, one.phase, *tensors, dict(one.attributes)])
    fields = {"model_type": kind, "architectures": [name], **settings}
    return {"config": fields, "batch": BATCH, "sequence": None if kind == "vit" else LENGTH, "operators": rows}


def main() -> None:
    """Record every model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json.xz", nargs="?")
    parser.add_argument("--model", choices=MODELS, help="print that of one model")
    options = parser.parse_args()
    if options.model:
        print(json.dumps(record(options.model)))
        return
    if options.out is None:
        parser.error("needs OUT.json.xz")
    document = {}
    for kind in MODELS:
        command = [sys.executable, __file__, "--model", kind]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        document[kind] = json.loads(ran.stdout.splitlines()[-1])
    options.out.write_bytes(lzma.compress(json.dumps(document, separators=(",", ":")).encode()))


if __name__ == "__main__":
    main()
