"""One rank that trains while its input pipeline is busy: images/s, and the CPU time of everything but training.

The pipeline is a DataLoader whose worker processes decode JPEG images and augment them, as for ImageNet: crop and
resize, flip, change colours. Loading and training contend for the machine's cores, as in the runs that S. Pumma et
al., "Alleviating Load Imbalance in Data Processing for Large-Scale Deep Learning", describe.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import models, transforms

sys.path.insert(0, str(Path(__file__).resolve().parent))

SIDE, CLASSES, IMAGES = 256, 100, 64
TICKS = os.sysconf("SC_CLK_TCK")


class Pictures(Dataset[tuple[Tensor, int]]):
    """JPEG files in memory, each decoded and augmented anew on every access."""

    def __init__(self, length: int, crop: int) -> None:
        draw = torch.Generator().manual_seed(7)
        self.length, self.files = length, []
        for _ in range(IMAGES):
            coarse = torch.randint(0, 256, (8, 8, 3), generator=draw, dtype=torch.uint8).numpy()
            file = io.BytesIO()
            Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())
        self.change = transforms.Compose(
            [
                transforms.RandomResizedCrop(crop),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.4, 0.4, 0.4),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(io.BytesIO(self.files[index % IMAGES])) as picture:
            return self.change(picture.convert("RGB")), index % CLASSES


def trained(way: str, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer to train with; all ranks begin with the same weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if way == "gloo":
        import torch.distributed as dist

        dist.init_process_group(way)
        return nn.parallel.DistributedDataParallel(model), optimizer
    if way != "horovod":
        os.environ["PACELINE_COORDINATOR"] = way
    hvd: Any = importlib.import_module("horovod.torch" if way == "horovod" else "paceline.torch.hvd")
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


def threads() -> dict[str, tuple[str, float]]:
    """By number: name and CPU seconds of this process's threads."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            text = (task / "stat").read_text()
        except OSError:  # it has ended
            continue
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        found[task.name] = name, (int(rest[11]) + int(rest[12])) / TICKS
    return found


def main() -> None:
    """Train, and write the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = models.resnet18(num_classes=CLASSES)
    before = set(threads())
    net, optimizer = trained(options.way, model)
    # Threads that started with the coordinator and its transport; training's own threads start before or later.
    its_own = {number for number in threads() if number not in before}
    batches = DataLoader(
        Pictures((options.warmup + options.steps) * options.batch, options.crop),
        batch_size=options.batch,
        num_workers=options.workers,
    )
    start, used = 0.0, {}
    for number, (images, labels) in enumerate(batches):
        if number == options.warmup:
            start, used = time.perf_counter(), threads()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    spent = {n: (name, cpu - used.get(n, (name, 0.0))[1]) for n, (name, cpu) in threads().items()}
    report = {
        "images_per_s": options.steps * options.batch / seconds,
        "coordinator_cpu": sum(cpu for number, (_, cpu) in spent.items() if number in its_own) / seconds,
    }
    (options.out / f"{os.environ.get('RANK', os.environ.get('HOROVOD_RANK', '0'))}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
