"""Trains a ResNet on ImageNet like Horovod's public PyTorch example; only the import differs.

paceline run -np 4 -- python examples/horovod_imagenet.py --synthetic
paceline run -np 4 --strategy ps --servers 2 --timeline run.json -- python examples/horovod_imagenet.py --synthetic
paceline run --hosts a:8,b:8 -- python examples/horovod_imagenet.py --train-dir ~/imagenet/train

With `--synthetic` it uses a few small synthetic images, so that it runs on any machine in a minute.
"""

import argparse
import math
import time
from collections.abc import Iterator
from pathlib import Path

import paceline.torch as hvd  # import horovod.torch as hvd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms

CLASSES = 1000
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def arguments() -> argparse.Namespace:
    """Parse the options, which have the same names as in Horovod's example."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train-dir", type=Path, help="folder of images, with a subfolder for each class")
    parser.add_argument("--val-dir", type=Path, help="likewise, for validation; default: no validation")
    parser.add_argument("--synthetic", action="store_true", help="use synthetic images")
    parser.add_argument(
        "--synthetic-images", type=int, default=64, metavar="N", help="number of synthetic images, for all ranks"
    )
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="default: 224; 64 for synthetic images")
    parser.add_argument("--model", default="resnet50", help="a model of torchvision.models")
    parser.add_argument("--checkpoint-format", help="such as checkpoint-{epoch}.pt; default: no checkpoints")
    parser.add_argument("--epochs", type=int, help="default: 90; 2 for synthetic images")
    parser.add_argument("--batch-size", type=int, help="default: 32; 4 for synthetic images")
    parser.add_argument(
        "--batches-per-allreduce", type=int, default=1, help="batches to accumulate before gradients are reduced"
    )
    parser.add_argument("--base-lr", type=float, help="for one rank; default: 0.0125; 0.001 for synthetic images")
    parser.add_argument("--warmup-epochs", type=float, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=0.00005, help="weight decay")
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in half precision")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=0, help="processes per rank that load images")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    if options.synthetic == (options.train_dir is not None):
        parser.error("give either --train-dir or --synthetic")
    small = options.synthetic
    options.epochs = options.epochs or (2 if small else 90)
    options.batch_size = options.batch_size or (4 if small else 32)
    options.base_lr = options.base_lr or (0.001 if small else 0.0125)
    options.image_size = options.image_size or (64 if small else 224)
    return options


class MadeUp(Dataset[tuple[Tensor, int]]):
    """Images of noise, each with a stripe whose position depends on its class; the same on all ranks."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randn(3, self.size, self.size, generator=torch.Generator().manual_seed(index))
        label = index * 37 % 8
        image[:, label * self.size // 8] += 2.0
        return image, label


def images(options: argparse.Namespace) -> tuple[Dataset[tuple[Tensor, int]], Dataset[tuple[Tensor, int]] | None]:
    """Return the data for training and for validation."""
    if options.synthetic:
        made = MadeUp(options.synthetic_images, options.image_size)
        return made, MadeUp(options.synthetic_images // 2, options.image_size)
    size = options.image_size
    normal = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
    varied = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), *normal]
    plain = [transforms.Resize(size * 8 // 7), transforms.CenterCrop(size), *normal]
    train = datasets.ImageFolder(options.train_dir, transforms.Compose(varied))
    if options.val_dir is None:
        return train, None
    return train, datasets.ImageFolder(options.val_dir, transforms.Compose(plain))


class Metric:
    """A mean over batches and ranks."""

    def __init__(self, name: str) -> None:
        self.name, self.sum, self.count = name, 0.0, 0

    def add(self, value: Tensor) -> None:
        self.sum += hvd.allreduce(value.detach().cpu(), name=self.name).item()
        self.count += 1

    def __str__(self) -> str:
        return f"{self.name} {self.sum / max(1, self.count):.4f}"


class Training:
    """A model, its optimizer, and their data."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        train, validation = images(options)
        self.sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
        together = options.batch_size * options.batches_per_allreduce
        loading = {"num_workers": options.workers}
        self.train_loader = DataLoader(train, batch_size=together, sampler=self.sampler, **loading)
        self.val_loader: DataLoader[tuple[Tensor, int]] | None = None
        if validation is not None:
            shares = DistributedSampler(validation, num_replicas=hvd.size(), rank=hvd.rank())
            self.val_loader = DataLoader(validation, batch_size=options.batch_size, sampler=shares, **loading)
        devices = torch.cuda.device_count()
        self.device = torch.device("cuda", hvd.local_rank() % devices) if devices else torch.device("cpu")
        self.model: nn.Module = models.get_model(options.model, num_classes=CLASSES).to(self.device)
        self.rate = options.base_lr * hvd.size() * options.batches_per_allreduce
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=self.rate, momentum=options.momentum, weight_decay=options.wd
        )
        self.optimizer = hvd.DistributedOptimizer(
            optimizer,
            named_parameters=self.model.named_parameters(),
            compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
            backward_passes_per_step=options.batches_per_allreduce,
            gradient_predivide_factor=options.gradient_predivide_factor,
        )

    def resume(self) -> int:
        """Load the last checkpoint that rank 0 finds, and give all ranks its weights; return the first epoch."""
        begin = 0
        form = self.options.checkpoint_format
        if hvd.rank() == 0 and form:
            written = (epoch for epoch in range(self.options.epochs, 0, -1) if Path(form.format(epoch=epoch)).exists())
            begin = next(written, 0)
            if begin:
                state = torch.load(form.format(epoch=begin))
                self.model.load_state_dict(state["model"])
                self.optimizer.load_state_dict(state["optimizer"])
        begin = int(hvd.broadcast(torch.tensor(begin), root_rank=0, name="begin").item())
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        return begin

    def save(self, epoch: int) -> None:
        """Write a checkpoint, on rank 0."""
        if hvd.rank() == 0 and self.options.checkpoint_format:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, self.options.checkpoint_format.format(epoch=epoch + 1))

    def adjust_rate(self, epoch: float) -> None:
        """P. Goyal et al., "Accurate, large minibatch SGD", 2017: warm-up, then steps at epochs 30, 60, 80."""
        factor = 10.0 ** -sum(epoch >= step for step in (30, 60, 80))
        if epoch < self.options.warmup_epochs:
            factor = (epoch * (hvd.size() - 1) / self.options.warmup_epochs + 1) / hvd.size()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * factor

    def epoch(self, epoch: int) -> str:
        """Train once on all images."""
        self.model.train()
        self.sampler.set_epoch(epoch)
        loss_of, accuracy_of = Metric("loss"), Metric("accuracy")
        for number, (data, target) in enumerate(self.train_loader):
            self.adjust_rate(epoch + (number + 1) / len(self.train_loader))
            self.optimizer.zero_grad()
            parts = list(self.parts(data.to(self.device), target.to(self.device)))
            for part, label in parts:
                output = self.model(part)
                loss = F.cross_entropy(output, label)
                accuracy_of.add(accuracy(output, label))
                loss_of.add(loss)
                (loss / len(parts)).backward()
            self.optimizer.step()
        return f"{loss_of}, {accuracy_of}"

    def parts(self, data: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches that are accumulated."""
        count = math.ceil(len(data) / self.options.batch_size)
        return zip(data.chunk(count), target.chunk(count), strict=True)

    def validate(self) -> str:
        """Return the loss and the accuracy on the validation images."""
        if self.val_loader is None:
            return "not validated"
        self.model.eval()
        loss_of, accuracy_of = Metric("validation loss"), Metric("validation accuracy")
        with torch.no_grad():
            for data, target in self.val_loader:
                output = self.model(data.to(self.device))
                loss_of.add(F.cross_entropy(output, target.to(self.device)))
                accuracy_of.add(accuracy(output, target.to(self.device)))
        return f"{loss_of}, {accuracy_of}"


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the share of images whose class is predicted correctly."""
    return output.argmax(1).eq(target).float().mean()


def main() -> None:
    """Train, and check that all ranks have the same weights."""
    options = arguments()
    hvd.init()
    torch.manual_seed(options.seed)
    training = Training(options)
    begin = training.resume()
    for epoch in range(begin, options.epochs):
        started = time.perf_counter()
        trained = training.epoch(epoch)
        rate = len(training.train_loader) * training.train_loader.batch_size * hvd.size()
        rate /= time.perf_counter() - started
        validated = training.validate()
        training.save(epoch)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: {trained}; {validated}; {rate:.1f} images/s on {hvd.size()} ranks", flush=True)
    weights = torch.cat([weight.detach().flatten().cpu() for weight in training.model.parameters()])
    low, high = hvd.allreduce(weights, op=hvd.Min, name="low"), hvd.allreduce(weights, op=hvd.Max, name="high")
    if not torch.equal(low, high):
        raise SystemExit(f"rank {hvd.rank()}: the ranks have different weights")
    if hvd.rank() == 0:
        print("all ranks have the same weights")
    hvd.shutdown()


if __name__ == "__main__":
    main()
