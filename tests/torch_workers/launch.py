"""Runs a function in real processes, one per rank, forked from a process that has already imported torch."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import tiers
import torch
import torch.distributed as dist

LIMIT_S = 120
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch_workers.preload", "torch_workers.launch"])


def start_server():
    # Python 3.11 does not tell the server where the modules to preload are.
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), *([path] if path else [])])
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        if path is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = path


class RankError(AssertionError):
    """The ranks' errors if any of them failed."""


def run(size, function, *args, default="paceline", env=None, timeout_s=None, limit_s=LIMIT_S):
    """What `function(rank, size, *args)` returns on every rank, each in a process with `default` as its default group.

    With `default=None` the function gets a store in place of an initialized group, as its first argument.
    """
    tiers.starts(size)
    start_server()
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            job = (str(Path(folder) / "store"), rank, size, default, timeout_s, env or {})
            processes.append(context.Process(target=_rank, args=(theirs, job, function, args), daemon=True))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        deadline = time.monotonic() + limit_s
        results = [_receive(pipe, process, deadline) for pipe, process in zip(pipes, processes, strict=True)]
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
    failed = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(results) if not good]
    if failed:
        raise RankError("\n\n".join(failed))
    return [value for _, value in results]


def _receive(pipe, process, deadline):
    try:
        if pipe.poll(max(0.0, deadline - time.monotonic())):
            return pipe.recv()
    except EOFError:
        process.join(5)
        return False, f"ended with exit code {process.exitcode} and said nothing"
    process.kill()
    return False, "did not end in time"


def _rank(pipe, job, function, args):
    path, rank, size, default, timeout_s, env = job
    os.environ.update(env)
    torch.set_num_threads(1)
    try:
        store = dist.FileStore(path, size)
        if default is None:
            value = function(store, rank, size, *args)
        else:
            limit = {} if timeout_s is None else {"timeout": timedelta(seconds=timeout_s)}
            dist.init_process_group(default, store=store, rank=rank, world_size=size, **limit)
            value = function(rank, size, *args)
        pipe.send((True, value))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        with contextlib.suppress(Exception):
            if dist.is_initialized():
                dist.destroy_process_group()
