"""Training that survives the death of ranks, with Horovod's elastic API.

    paceline run --elastic -np 2 -- python examples/elastic.py

While it runs, kill a rank with `kill -9 PID` (it prints the pids), or let it do so itself: `--kill-every 100`. The last
line, a checksum of the weights, is the same in either case.
"""

import argparse
import hashlib
import os
import signal

import paceline.torch as hvd
import torch
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
IMAGES = 4096


def number(text: str) -> int:
    """Return a number of at least 1."""
    if (found := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return found


parser.add_argument("--steps", type=number, default=300)
parser.add_argument("--batch-size", type=number, default=32, help="images of each rank")
parser.add_argument("--commit-every", type=number, default=1, help="steps; a death loses those since the last commit")
parser.add_argument("--kill-every", type=number, help="rank 1 kills itself before every N-th step, once for each")
parser.add_argument(
    "--device", default="cpu", choices=["cpu", "cuda"], help="cuda: rank r on GPU r modulo their number"
)
arguments = parser.parse_args()
if arguments.device == "cuda" and not torch.cuda.is_available():
    raise SystemExit("--device cuda: torch sees no CUDA device here; leave it out")

hvd.init()
if arguments.batch_size * hvd.size() > IMAGES:
    raise SystemExit(
        f"--batch-size: {hvd.size()} ranks have {IMAGES // hvd.size()} of {IMAGES} images each; give fewer"
    )
device = torch.device(arguments.device)
if arguments.device == "cuda":
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
torch.manual_seed(1)
images, noise = torch.randn(IMAGES, 1, 28, 28), torch.randn(IMAGES, 10)
labels = (images.flatten(1)[:, :10] * 3 + noise).argmax(1)  # something to learn
dataset = torch.utils.data.TensorDataset(images, labels)

model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
model.to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(dataset)  # divides the rest of an epoch among the current ranks
loader = torch.utils.data.DataLoader(dataset, batch_size=arguments.batch_size, sampler=sampler, drop_last=True)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0, epoch=0, killed=0)


def killed_before(step: int) -> bool:
    """Return whether this rank should die now. The step must be remembered, or it would never get past it."""
    if not arguments.kill_every or step == 0 or step % arguments.kill_every or state.killed >= step:
        return False
    state.killed = step
    state.commit()
    return hvd.rank() == 1


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    """Train from the last commit on."""
    print(f"rank {hvd.rank()} of {hvd.size()}, pid {os.getpid()}: from step {state.step}", flush=True)
    while state.step < arguments.steps:
        for batch, (inputs, targets) in enumerate(loader):
            if killed_before(state.step):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            sampler.record_batch(batch, arguments.batch_size)
            state.step += 1
            if state.step % 50 == 0 and hvd.rank() == 0:
                print(f"step {state.step}: loss {loss.item():.3f}", flush=True)
            if state.step % arguments.commit_every == 0:
                state.commit()
            if state.step == arguments.steps:
                return
        state.epoch += 1
        sampler.set_epoch(state.epoch)


train(state)
if hvd.rank() == 0:
    weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
    print(f"weights after {state.step} steps: {hashlib.sha256(weights).hexdigest()[:16]}")
