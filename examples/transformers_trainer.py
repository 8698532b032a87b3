"""Trains a tiny GPT-2 with the Trainer of Hugging Face's transformers over Paceline, on CPUs, without downloads.

paceline run -np 2 -- python examples/transformers_trainer.py
torchrun --nproc-per-node 2 examples/transformers_trainer.py
"""

import argparse
import hashlib
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

TOKENS = 64


class Counting(Dataset[dict[str, Tensor]]):
    """Sequences that count on from a random token: easy to learn."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = (torch.arange(16) + 7 * index) % TOKENS
        return {"input_ids": tokens, "labels": tokens}


def fingerprint(model: nn.Module) -> str:
    """Return a hash of all weights."""
    return hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())).hexdigest()[:16]


def main() -> None:
    """Train, and print a hash of the weights of every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    options = parser.parse_args()

    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": TOKENS}
    config = GPT2Config(**size, bos_token_id=None, eos_token_id=None, loss_type="ForCausalLM")
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend=options.backend,
            ddp_find_unused_parameters=False,
            max_steps=options.steps,
            per_device_train_batch_size=4,
            learning_rate=0.01,
            logging_steps=6,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=Counting()).train()
    hashes: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hashes, fingerprint(model))
    if dist.get_rank() == 0:
        print(f"weights {hashes[0]}, {'the same' if len(set(hashes)) == 1 else 'NOT the same'} on {len(hashes)} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
