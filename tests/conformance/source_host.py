"""Runs files of tests from a PyTorch source tree, and prints a JSON line for each test.

What they create with "gloo" is Paceline's group if `PACELINE_AS_GLOO` says so. Ranks are forked instead of spawned, to
save minutes. Tests that want GPUs run on the CPU as far as they can: what they do with CUDA alone fails, with gloo too.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from loading import execute
from outcome import Result

ON_CPU = (
    (r'"cuda"|f"cuda:{[^}]*}"', '"cpu"'),
    (r"\.cuda\(\)", ".cpu()"),
    (r'"nccl"', '"gloo"'),
    (r"torch\.cuda\.set_device\(", "id("),
    (r"@(requires_nccl|skip_if_lt_x_gpu)\(", "@_needs_no_gpu("),
)
"""What is put in place of words about GPUs."""


def needs_no_gpu(*_args: object, **_options: object) -> Any:
    """Take the place of torch's decorator that skips a test."""
    return lambda test: test


def load(path: Path, *, on_cpu: bool) -> types.ModuleType:
    """Execute a file of tests as a module of its own name."""
    source = path.read_text()
    for word, instead in ON_CPU if on_cpu else ():
        source = re.sub(word, instead, source)
    return execute(path, path.stem, source, _needs_no_gpu=needs_no_gpu)


def cases(module: types.ModuleType) -> Iterator[unittest.TestCase]:
    """Yield the tests whose ranks are processes with a group each, not those of threads and those without ranks."""
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    for result in vars(module).values():
        if (
            isinstance(result, type)
            and issubclass(result, MultiProcessTestCase)
            and result.__module__ == module.__name__
        ):
            for name in unittest.TestLoader().getTestCaseNames(result):
                yield result(name)


def main() -> None:
    """Read what to run from the command line."""
    request = json.loads(sys.argv[1])
    faulthandler.enable()
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(request["timeout_s"])
    import torch
    from torch.testing._internal import common_distributed as common

    if os.environ.get("PACELINE_AS_GLOO"):
        import paceline.torch  # noqa: F401  # for the forked ranks
    torch.set_num_threads(1)
    common.TIMEOUT_OVERRIDE.clear()
    common.MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(
        torch.multiprocessing.get_context("fork").Process
    )
    path = Path(request["file"])
    sys.path.insert(0, str(path.parent))
    out = os.fdopen(os.dup(1), "w")
    # What tests print goes to the log.
    os.dup2(2, 1)

    def write(record: dict[str, Any]) -> None:
        print(json.dumps(record), file=out, flush=True)

    try:
        module = load(path, on_cpu=request["on_cpu"])
    except Exception as error:  # whatever it expects of another version
        write({"unusable": f"{path.name} does not fit the installed torch: {error}"})
        os._exit(0)
    result = Result(write, lambda name: write({"begins": name}), whole=True)
    wanted, done = request["only"], request["but"]
    for case in cases(module):
        name = case.id()
        if name not in done and (wanted is None or name in wanted or name.split(".")[-1] in wanted):
            case.run(result)
    os._exit(0)


if __name__ == "__main__":
    main()
