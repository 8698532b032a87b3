"""Runs a function on ranks between `hvd.init()` and `hvd.shutdown()`, each in a process of its own."""

import os
import secrets
import socket

import paceline.torch as hvd
from torch_workers import launch
from torch_workers.launch import RankError

__all__ = ["RankError", "run"]


def run(size, function, *args, env=None, env_of=None, init=True, **how):
    """What `function(rank, size, *args)` returns on every rank.

    `env_of` gives each rank its own variables. With `init=False` the function calls `hvd.init()` itself.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "PACELINE_RENDEZVOUS": f"127.0.0.1:{port}",
        "PACELINE_SECRET": secrets.token_hex(16),
        "PACELINE_STRATEGY": "ring",
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        **(env or {}),
    }
    return launch.run(size, _rank, (function, env_of or {}, init, args), default=None, env=common, **how)


def _rank(_store, rank, size, job):
    function, env_of, init, args = job
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), **env_of.get(rank, {})})
    if not init:
        return function(rank, size, *args)
    hvd.init()
    try:
        return function(rank, size, *args)
    finally:
        hvd.shutdown()
