"""Trains a small net on handwritten digits like Horovod's public PyTorch example; only the import differs.

paceline run -np 2 -- python examples/horovod_mnist.py --synthetic
torchrun --nproc-per-node 2 examples/horovod_mnist.py --synthetic
paceline run -np 2 -- python examples/horovod_mnist.py --data-dir ~/data
"""

import argparse
import contextlib
from pathlib import Path

import paceline.torch as hvd  # import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


def model() -> nn.Module:
    """A net for images of 28 x 28."""
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 20, 5), nn.Dropout2d(), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Dropout(), nn.Linear(50, 10)),
    )


def made_up(count: int, seed: int) -> Dataset[tuple[Tensor, Tensor]]:
    """Noise with a bright bar at one of ten heights."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    pictures = 0.3 * torch.randn(count, 1, 28, 28, generator=generator)
    for index, label in enumerate(labels.tolist()):
        pictures[index, 0, 4 + 2 * label : 6 + 2 * label] += 1.0
    return TensorDataset(pictures, labels)


def digits(options: argparse.Namespace, *, train: bool) -> Dataset[tuple[Tensor, Tensor]]:
    """Return the data for training or testing."""
    if options.synthetic:
        return made_up(2000 if train else 400, int(train))
    normal = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    # The first rank of each machine downloads missing files; the others wait for it.
    if hvd.local_rank() == 0:
        datasets.MNIST(options.data_dir, train=train, download=True)
    hvd.barrier()
    return datasets.MNIST(options.data_dir, train=train, transform=normal)


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--synthetic", action="store_true", help="use synthetic images")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01, help="for one rank")
    parser.add_argument("--momentum", type=float, default=0.5)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in half precision")
    parser.add_argument("--mixed-precision", action="store_true", help="forward and backward in bfloat16, scaled")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    train, test = digits(options, train=True), digits(options, train=False)
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
    test_sampler = DistributedSampler(test, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler)
    test_loader = DataLoader(test, batch_size=options.test_batch_size, sampler=test_sampler)

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=options.lr * hvd.size(), momentum=options.momentum)
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=net.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
        gradient_predivide_factor=options.gradient_predivide_factor,
    )
    scaler = torch.amp.GradScaler("cpu", enabled=options.mixed_precision)

    for epoch in range(options.epochs):
        net.train()
        sampler.set_epoch(epoch)
        for data, target in loader:
            optimizer.zero_grad()
            context = torch.autocast("cpu") if options.mixed_precision else contextlib.nullcontext()
            with context:
                loss = F.cross_entropy(net(data), target)
            scaler.scale(loss).backward()
            # So that gradients can be changed before the step: here, to unscale them.
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
            scaler.update()
        net.eval()
        right = torch.tensor(0.0)
        with torch.no_grad():
            for data, target in test_loader:
                right += net(data).argmax(1).eq(target).sum()
        share = hvd.allreduce(right / len(test_sampler), name="accuracy").item()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: {100 * share:.1f} % right", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
