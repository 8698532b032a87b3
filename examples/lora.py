"""Trains LoRA adapters of a small Llama with Hugging Face's peft, on a GPU or recorded without one; no downloads.

paceline record --gpu a6000 -o lora.json -- python examples/lora.py
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def quantize(module: torch.nn.Module, kind: str) -> None:
    """Replace the linear layers of a module, as transformers does for a BitsAndBytesConfig."""
    import bitsandbytes as bnb

    for name, layer in module.named_children():
        if not isinstance(layer, torch.nn.Linear):
            quantize(layer, kind)
            continue
        sizes, is_double = (layer.in_features, layer.out_features), kind == "nf4-double"
        if kind == "int8":
            new = bnb.nn.Linear8bitLt(*sizes, bias=False, has_fp16_weights=False, threshold=6.0)
        else:
            new = bnb.nn.Linear4bit(*sizes, False, layer.weight.dtype, is_double, "nf4")
        setattr(module, name, new.to(layer.weight.dtype).to(layer.weight.device))


def main() -> None:
    """Train a few steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a config.json; by default, four layers of Llama 3.2 1B")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--modules", default="all-linear", help="PEFT's target_modules, with commas")
    parser.add_argument("--dora", action="store_true")
    parser.add_argument("--quantize", choices=("nf4", "nf4-double", "int8"), help="with bitsandbytes")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=1024)
    args = parser.parse_args()
    sizes = {
        **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "vocab_size": 32_000, "max_position_embeddings": 8192},
    }
    config = LlamaConfig.from_json_file(args.config) if args.config else LlamaConfig(**sizes)
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    if args.quantize:
        quantize(model.model.layers, args.quantize)
        # PEFT chooses its layers by this.
        setattr(model, f"is_loaded_in_{8 if args.quantize == 'int8' else 4}bit", True)
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    modules = args.modules if args.modules == "all-linear" else args.modules.split(",")
    adapters = LoraConfig(r=args.rank, target_modules=modules, use_dora=args.dora, task_type="CAUSAL_LM")
    trained = get_peft_model(model, adapters).train()
    optimizer = torch.optim.AdamW([one for one in trained.parameters() if one.requires_grad])
    ids = torch.randint(0, config.vocab_size, (args.batch, args.sequence), device="cuda")
    for _ in range(5):
        with torch.autocast("cuda", torch.bfloat16, enabled=args.autocast):
            loss = trained(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
