"""Trains one replica with torchft's Manager over Paceline.

Arguments: the lighthouse's address, the replica's number, a folder, and "die" for a replica that kills itself after
three steps with the other. Replica 0 sees the other come back, and then writes at which step both end.
"""

import hashlib
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
from paceline.torch.torchft import ProcessGroupPaceline
from torch import nn
from torch.distributed import TCPStore
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper

lighthouse, replica, end, dies = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]) / "end", sys.argv[4:] == ["die"]
LIMIT = timedelta(seconds=60)
torch.set_num_threads(1)
torch.manual_seed(replica)  # Weights differ until the first step, when torchft makes them equal.
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
inner = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def load(state: dict) -> None:
    net.load_state_dict(state["net"])
    inner.load_state_dict(state["optimizer"])


store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupPaceline(LIMIT),
    load_state_dict=load,
    state_dict=lambda: {"net": net.state_dict(), "optimizer": inner.state_dict()},
    min_replica_size=1,
    timeout=LIMIT,
    quorum_timeout=LIMIT,
    connect_timeout=LIMIT,
    rank=0,
    world_size=1,
    store_addr="localhost",
    store_port=store.port,
    lighthouse_addr=lighthouse,
    replica_id=f"replica{replica}",
    hostname="localhost",
)
model = DistributedDataParallel(manager, net)
optimizer = OptimizerWrapper(manager, inner)
together, was_alone, failed = 0, False, 0
while not (end.exists() and manager.current_step() >= int(end.read_text())):
    before = manager.current_step()
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * replica + before))
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    if dies and together == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
    failed += manager.current_step() == before
    together += manager.num_participants() == 2
    was_alone = was_alone or (together > 0 and manager.num_participants() == 1)
    if replica == 0 and was_alone and manager.num_participants() == 2 and not end.exists():
        draft = end.with_suffix(".draft")
        draft.write_text(str(manager.current_step() + 5))
        draft.rename(end)
digest = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in net.parameters())).hexdigest()[:16]
print(f"step {manager.current_step()}, {failed} repeated, weights {digest}", flush=True)
manager.shutdown(wait=False)
