"""Jobs that many checks share: the ranks join once and stay for all checks."""

import contextlib
import multiprocessing.connection
import os
import secrets
import tempfile
import time
import traceback
from pathlib import Path

import paceline
import paceline.torch as hvd
import torch
import torch.distributed as dist
from paceline._internal.ports import free_ports
from torch_workers.launch import RankError, context, start_server

LIMIT_S = 120
# Seconds that the others get once a rank has failed: their errors say more than that they were killed.
GRACE_S = 10


@contextlib.contextmanager
def job(_folder, _rank, _size):
    """A check gets the job: `function(job, *args)`."""
    with paceline.job.join() as joined:
        yield (joined,)


@contextlib.contextmanager
def process_group(folder, rank, size):
    """A check runs in an initialized default group: `function(rank, size, *args)`."""
    dist.init_process_group("paceline", store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size)
    yield rank, size
    dist.destroy_process_group()


@contextlib.contextmanager
def horovod(_folder, rank, size):
    """A check runs between `hvd.init()` and `hvd.shutdown()`: `function(rank, size, *args)`."""
    hvd.init()
    yield rank, size
    hvd.shutdown()


class SharedJob:
    """Ranks, started by the first check. A failed check ends the job, and the next check starts another."""

    def __init__(self, member, size, **env):
        """`member(folder, rank, size)` joins and leaves, and yields the first arguments of every check."""
        self.member, self.size, self.env = member, size, env
        self.pipes, self.processes = [], []

    def run(self, function, *args):
        """The function's result on every rank."""
        if not self.processes:
            self._start()
        for pipe in self.pipes:
            pipe.send((function, args))
        return self._answers(function.__name__)

    def _start(self):
        start_server()
        self.folder = tempfile.TemporaryDirectory()
        [port] = free_ports("127.0.0.1", 1)
        env = {
            "PACELINE_RENDEZVOUS": f"127.0.0.1:{port}",
            "PACELINE_SECRET": secrets.token_hex(16),
            "PACELINE_STRATEGY": "ring",
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(self.size),
            **self.env,
        }
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            place = (Path(self.folder.name), rank, self.size)
            self.processes.append(
                context.Process(target=_rank, args=(theirs, self.member, place, dict(env)), daemon=True)
            )
            self.processes[-1].start()
            theirs.close()
            self.pipes.append(ours)
        self._answers("joining")

    def _answers(self, what):
        result, deadline = {}, time.monotonic() + LIMIT_S
        while len(result) < self.size:
            left = [pipe for pipe in self.pipes if pipe not in result]
            ready = multiprocessing.connection.wait(left, max(0.0, deadline - time.monotonic()))
            for pipe in ready or left:
                result[pipe] = _received(pipe) if ready else (False, f"{what} did not end in time")
                if not result[pipe][0]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        answers = [result[pipe] for pipe in self.pipes]
        failed = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answers) if not good]
        if failed:
            self._kill()
            raise RankError("\n\n".join(failed))
        return [value for _, value in answers]

    def _kill(self):
        for process in self.processes:
            process.kill()
        self._forget()

    def _forget(self):
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            process.join()
            pipe.close()
        if self.processes:
            self.folder.cleanup()
        self.pipes, self.processes = [], []

    def close(self):
        """Ends the ranks, all of which must leave the job cleanly."""
        for pipe in self.pipes:
            pipe.send(None)
        if self.processes:
            self._answers("leaving")
        self._forget()


def _received(pipe):
    try:
        return pipe.recv()
    except EOFError:
        return False, "ended and said nothing"


def _rank(pipe, member, place, env):
    os.environ.update(env)
    torch.set_num_threads(1)
    try:
        with member(*place) as first:
            pipe.send((True, None))
            while (result := pipe.recv()) is not None:
                function, args = result
                pipe.send((True, function(*first, *args)))
        pipe.send((True, None))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
