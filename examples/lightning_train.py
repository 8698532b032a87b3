"""Trains a small net with Lightning over Paceline, with DDP or with FSDP, on CPUs and synthetic data.

paceline run -np 2 -- python examples/lightning_train.py
paceline run -np 2 -- python examples/lightning_train.py --strategy fsdp
torchrun --nproc-per-node 2 examples/lightning_train.py
"""

import argparse
import hashlib
import os

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    """Learns the height of points on a plane."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def configure_model(self) -> None:
        """Shard each layer, and what is left: called by `ModelParallelStrategy`, which makes the mesh."""
        if self.device_mesh is None or isinstance(self.net[0].weight, dist.tensor.DTensor):
            return
        mesh = self.device_mesh["data_parallel"]
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
        """Return the loss of a batch."""
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        # Lightning averages its batch counter, an int64, along with the loss.
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer of all parameters."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)

    def on_train_end(self) -> None:
        """Print a hash of the weights, which FSDP gathers."""
        whole = [w.full_tensor() if isinstance(w, dist.tensor.DTensor) else w for w in self.parameters()]
        digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in whole)).hexdigest()[:16]
        hashes: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(hashes, digest)
        if self.trainer.is_global_zero:
            same = "the same" if len(set(hashes)) == 1 else "NOT the same"
            print(f"loss {self.trainer.callback_metrics['loss'].item():.4f}", flush=True)
            print(f"weights {digest}, {same} on {len(hashes)} ranks", flush=True)


def data(samples: int) -> TensorDataset:
    """Points on a plane, and their height with a little noise."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, 16, generator=generator)
    heights = inputs @ torch.linspace(-1, 1, 16) + 0.1 * torch.randn(samples, generator=generator)
    return TensorDataset(inputs, heights[:, None])


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"])
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    options = parser.parse_args()

    strategy: Strategy = (
        DDPStrategy(process_group_backend=options.backend)
        if options.strategy == "ddp"
        else ModelParallelStrategy(process_group_backend=options.backend)
    )
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=strategy,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(data(256), batch_size=16))


if __name__ == "__main__":
    main()
