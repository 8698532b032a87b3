"""A rank of a group that is configured three times: the last rank is killed, the others go on, another takes its place.

Arguments: address of the store, rank, first configuration (0; 2 for the rank that joins later), and `configure` of
torchft's releases or `reconfigure` of its nightly builds.
"""

import os
import signal
import sys
from datetime import timedelta
from types import SimpleNamespace

import torch
from paceline.errors import JobError
from paceline.torch.torchft import ProcessGroupPaceline
from torch.distributed import ReduceOp
from torchft.process_group import create_store_client

SIZES = (3, 2, 3)
address, rank, first, by = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
group = ProcessGroupPaceline(timedelta(seconds=60))


def summed() -> float:
    """The sum of all ranks' rank + 1, over many elements."""
    own = torch.full((100_000,), rank + 1.0)
    group.allreduce([own], ReduceOp.SUM).wait()
    assert own.min() == own.max()
    return own[0].item()


def reconfigure(configuration: int, size: int) -> None:
    """What torchft's lighthouse does: it gives all ranks the handles of all."""
    store = create_store_client(f"{address}/handles/{configuration}", timedelta(seconds=60))
    store.set(str(rank), group.get_reconfigure_handle())
    handles = [store.get(str(other)).decode() for other in range(size)]
    group.reconfigure(SimpleNamespace(uuid=configuration, handles=handles, timeout=None, hints={})).wait()


for configuration, size in list(enumerate(SIZES))[first:]:
    if by == "reconfigure":
        reconfigure(configuration, size)
    else:
        group.configure(f"{address}/quorum/{configuration}", f"replica{rank}", rank, size, quorum_id=configuration)
    assert (group.size(), group.rank(), group.errored()) == (size, rank, None)
    print(f"configuration {configuration}: sum {summed():g}", flush=True)
    if configuration == 0:
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            summed()
            raise SystemExit("rank 2 is gone, and nobody noticed")
        except JobError as error:
            print(f"noticed: {error}", flush=True)
        answer = group.errored()
        assert isinstance(answer, JobError), answer
group.shutdown()
group.shutdown()
print("done", flush=True)
