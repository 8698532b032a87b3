"""Training steps of Llama 3.2 3B by each method of PEFT's comparison: `adapters.py METHOD TOKENS`.

They are those of its `method_comparison/MetaMathQA/run.py`, without data: batches of four samples, weights in bfloat16,
adapters in FP32, no autocast, the norm of gradients clipped, three numbers read by the host a step. `paceline record
--gpu l40s -o FILE -- python benches/gpu/adapters.py METHOD TOKENS` needs no GPU. Needs peft and transformers.
"""

import argparse
from collections.abc import Callable

import peft
import torch
import transformers
from paceline.catalog.models.names import resolve
from peft.optimizers import create_lorafa_optimizer

MODEL = "llama-3.2-3b"
BATCH = 4
_QV = {"target_modules": ["q_proj", "v_proj"]}
_PROMPT = {"task_type": "CAUSAL_LM", "num_virtual_tokens": 200}
_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
METHODS: dict[str, Callable[[], peft.PeftConfig]] = {
    "lora": lambda: peft.LoraConfig(r=64, lora_alpha=64, **_QV),
    "lora-fa": lambda: peft.LoraConfig(r=32, lora_alpha=64, **_QV),
    "ia3": peft.IA3Config,
    "ia3-all": lambda: peft.IA3Config(target_modules=_LAYERS, feedforward_modules=_LAYERS[4:]),
    "prefix": lambda: peft.PrefixTuningConfig(**_PROMPT),
    "prompt": lambda: peft.PromptTuningConfig(**_PROMPT),
    "p-tuning": lambda: peft.PromptEncoderConfig(
        **{**_PROMPT, "num_virtual_tokens": 20}, encoder_hidden_size=3072, encoder_num_layers=2
    ),
    "vera": lambda: peft.VeraConfig(r=256),
    "adalora": lambda: peft.AdaLoraConfig(init_r=64, target_r=32, tinit=200, tfinal=500, total_step=5000),
    "loha": lambda: peft.LoHaConfig(r=32, alpha=64, **_QV),
    "lokr": lambda: peft.LoKrConfig(r=32, alpha=64, decompose_factor=4, **_QV),
    "boft": lambda: peft.BOFTConfig(boft_block_size=4, boft_n_butterfly_factor=1),
    "llama-adapter": lambda: peft.AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_layers=28, adapter_len=100),
}
"""The adapters of its `experiments/METHOD/llama-3.2-3B-*/adapter_config.json`."""


def main() -> None:
    """Train a few steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("tokens", type=int, help="of a sample")
    args = parser.parse_args()
    known = resolve(MODEL)
    assert known is not None
    config = transformers.LlamaConfig(**{name: value for name, value in known.fields.items() if name != "model_type"})
    with torch.device("cuda"):
        base = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model = peft.get_peft_model(base, METHODS[args.method]())
    if args.method == "lora-fa":
        optimizer = create_lorafa_optimizer(model, r=32, lora_alpha=64, lr=1e-4, weight_decay=0.1)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
    model.train()
    print(f"trained parameters: {sum(it.numel() for it in model.parameters() if it.requires_grad):,}")
    for step in range(1, 6):
        ids = torch.randint(0, config.vocab_size, (BATCH, args.tokens)).to("cuda")
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
        tokens = batch["attention_mask"].sum().item()
        optimizer.zero_grad()
        outputs = model(**batch, num_items_in_batch=tokens)
        loss = outputs.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if args.method == "adalora":
            model.base_model.update_and_allocate(step)
        for _ in range(2):
            loss.item()


if __name__ == "__main__":
    main()
