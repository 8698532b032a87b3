"""Trains a small transformer with FSDP2 and tensor parallelism over Paceline, and continues from a sharded checkpoint.

paceline run -np 2 -- python examples/fsdp2.py
torchrun --nproc-per-node 2 examples/fsdp2.py --tensor-parallel 2
"""

import argparse
import hashlib
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

TOKENS, WIDTH = 64, 32


class Block(nn.Module):
    """A gated feed-forward layer with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Predicts the next token from the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def sharded(mesh: DeviceMesh) -> Model:
    """Return the model, split over the mesh: the blocks' layers by tensor parallelism, then everything by FSDP."""
    torch.manual_seed(0)
    model = Model()
    if mesh["tp"].size() > 1:
        plan = {"gate": ColwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in model.blocks:
            parallelize_module(block, mesh["tp"], plan)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return model


def clip(model: nn.Module, most: float) -> None:
    """Clip the gradients by their norm. With tensor parallelism, not all parameters are on the same mesh."""
    by_mesh: dict[DeviceMesh, list[nn.Parameter]] = {}
    for weight in model.parameters():
        by_mesh.setdefault(weight.device_mesh, []).append(weight)
    norms = [nn.utils.get_total_norm([w.grad for w in weights]).full_tensor() for weights in by_mesh.values()]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for weights in by_mesh.values():
        nn.utils.clip_grads_with_norm_(weights, most, total)


def train(model: Model, optimizer: torch.optim.Optimizer, mesh: DeviceMesh, steps: range) -> float:
    """Train with clipped gradients; return the last loss."""
    loss = torch.tensor(0.0)
    for step in steps:
        generator = torch.Generator().manual_seed(1_000_003 * mesh.get_local_rank("dp") + step)
        tokens = (torch.randint(TOKENS, (8, 1), generator=generator) + torch.arange(17)) % TOKENS
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        clip(model, 1.0)
        optimizer.step()
    return loss.item()


def fingerprint(model: nn.Module) -> str:
    """Return a hash of all weights, gathered."""
    whole = [w.full_tensor() if isinstance(w, DTensor) else w for w in model.parameters()]
    return hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in whole)).hexdigest()[:16]


def main() -> None:
    """Train, save, train on; load, train on as before: the weights must be the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="before the checkpoint, and again after it")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="ranks that share each block's matrices")
    parser.add_argument("--backend", default="paceline", choices=["paceline", "gloo"])
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    size = dist.get_world_size()
    if size % options.tensor_parallel:
        parser.error(f"--tensor-parallel {options.tensor_parallel} does not divide {size} ranks")
    parts = (size // options.tensor_parallel, options.tensor_parallel)
    mesh = init_device_mesh("cpu", parts, mesh_dim_names=("dp", "tp"))
    folders = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folders)  # On several hosts, this must be a folder that they share.
    folder = Path(folders[0])

    model = sharded(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, optimizer, mesh, range(options.steps))
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": states}, checkpoint_id=folder)
    loss = train(model, optimizer, mesh, range(options.steps, 2 * options.steps))

    again = sharded(mesh)
    fresh = torch.optim.AdamW(again.parameters(), lr=0.01)
    weights, states = get_state_dict(again, fresh)
    dcp.load({"model": weights, "optimizer": states}, checkpoint_id=folder)
    set_state_dict(again, fresh, model_state_dict=weights, optim_state_dict=states)
    train(again, fresh, mesh, range(options.steps, 2 * options.steps))

    hashes = [""] * size
    dist.all_gather_object(hashes, fingerprint(model))
    if fingerprint(again) != hashes[dist.get_rank()]:
        raise SystemExit("training from the checkpoint gave other weights")
    if dist.get_rank() == 0:
        print(f"loss {loss:.4f}")
        print(f"weights {hashes[0]}, {'the same' if len(set(hashes)) == 1 else 'NOT the same'} on {size} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
