"""Calls in processes of their own, forked from one that has imported all that they need."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # noqa: F401 - the first step of an optimizer imports it, in seconds


def apart(call: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
    """Return what a call returns in a process of its own, forked from one that has imported torch.

    Raises:
        RuntimeError: The call raised it.
        EOFError: The process was killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "paceline.calibrate.measure"])
    mine, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, torch.get_num_threads(), call, args), daemon=True)
    process.start()
    theirs.close()
    try:
        answer = mine.recv()
    finally:
        process.join()
    if isinstance(answer, RuntimeError):
        raise answer
    return answer


def _answer(connection: Any, threads: int, call: Callable[..., Any], args: tuple[object, ...]) -> None:  # noqa: ANN401
    torch.set_num_threads(threads)
    try:
        connection.send(call(*args))
    except RuntimeError as error:
        connection.send(RuntimeError(str(error)))
