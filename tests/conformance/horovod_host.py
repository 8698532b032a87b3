"""One rank of Horovod's own tests with Paceline: `horovod.torch` is `paceline.torch`, and nothing else changes.

With the front `tensorflow`, `horovod.tensorflow` is `paceline.tensorflow`; tests that Horovod runs in eager execution
and in sessions of TensorFlow 1 run in eager execution.

Writes a JSON line for each test to a file of its own. The tests come from a source tree of Horovod's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import threading
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from outcome import Result


def module(name: str, **contents: object) -> types.ModuleType:
    """Make an empty module, and put it where `import` finds it."""
    made = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(contents)
    sys.modules[name] = made
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], own, made)
    return made


@contextlib.contextmanager
def env(**variables: str | None) -> Iterator[None]:
    """Horovod's `horovod.common.util.env`: variables for a while."""
    before = {name: os.environ.get(name) for name in variables}
    try:
        _set(variables)
        yield
    finally:
        _set(before)


def _set(variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def in_thread(target: Callable[..., Any], args: tuple[Any, ...] = (), **options: Any) -> threading.Thread:
    """Horovod's `horovod.runner.util.threads.in_thread`."""
    thread = threading.Thread(target=target, args=args, daemon=options.get("daemon", True))
    thread.start()
    return thread


def stand_in(front: str) -> None:
    """Let `import horovod.torch` find Paceline, and what the tests' own helpers import from Horovod."""
    module("horovod", __version__="0.28.1")
    hvd = tensorflow() if front == "tensorflow" else torch()
    module("horovod.common")
    module(
        "horovod.common.util",
        env=env,
        gloo_built=lambda: False,
        mpi_built=lambda: False,
        is_version_greater_equal_than=lambda version, other: numbers(version) >= numbers(other),
    )
    module("horovod.common.exceptions", HorovodInternalError=hvd.HorovodInternalError)
    module("horovod.runner")
    module("horovod.runner.util")
    module("horovod.runner.util.threads", in_thread=in_thread)
    module("horovod.runner.common")
    module("horovod.runner.common.util")
    ours = lambda: (int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"]))  # noqa: E731
    module("horovod.runner.common.util.env", get_env_rank_and_size=ours)


def numbers(version: str) -> list[int]:
    """Return the numbers of a version."""
    return [int(part) for part in version.split(".")[:3]]


def torch() -> types.ModuleType:
    """Let `import horovod.torch` find Paceline."""
    import paceline.torch
    import torch

    torch.set_num_threads(1)
    hvd = paceline.torch
    sys.modules["horovod.torch"] = sys.modules["horovod"].torch = hvd
    for name in ("elastic", "mpi_ops", "sync_batch_norm"):
        found = getattr(hvd, name, hvd)
        sys.modules[f"horovod.torch.{name}"] = found if isinstance(found, types.ModuleType) else hvd
    return hvd


def tensorflow() -> types.ModuleType:
    """Let `import horovod.tensorflow` find Paceline, and `horovod.keras`."""
    import paceline.keras
    import paceline.tensorflow
    import tensorflow as tf
    from tensorflow.python.framework import test_util

    test_util.run_all_in_graph_and_eager_modes = lambda tests: tests
    eagerly = {"_executing_eagerly": tf.executing_eagerly}
    ours = vars(paceline.tensorflow) | {"SyncBatchNormalization": paceline.tensorflow.SyncBatchNormalization}
    hvd = module("horovod.tensorflow", **ours, **eagerly)
    hvd.util = module("horovod.tensorflow.util", **eagerly)
    hvd.mpi_ops = module("horovod.tensorflow.mpi_ops", **ours)
    sys.modules["horovod.tensorflow.elastic"] = hvd.elastic
    hvd.keras = sys.modules["horovod.tensorflow.keras"] = sys.modules["horovod.keras"] = paceline.keras
    sys.modules["horovod"].keras = paceline.keras
    return hvd


def load(path: Path) -> types.ModuleType:
    """Execute a file of tests."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def main() -> None:
    """Read what to run from the command line."""
    request = json.loads(sys.argv[1])
    for variable, ours in (("RANK", "RANK"), ("SIZE", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        os.environ[f"HOROVOD_{variable}"] = os.environ[ours]
    os.environ |= {"HOROVOD_LOCAL_SIZE": os.environ["WORLD_SIZE"], "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}
    sys.path.insert(0, str(Path(request["file"]).parent))
    stand_in(request["front"])
    made = load(Path(request["file"]))
    wanted = request.get("only")
    with Path(request["folder"], os.environ["RANK"]).open("w") as out:

        def write(record: dict[str, Any]) -> None:
            print(json.dumps(record), file=out, flush=True)

        def start(name: str) -> None:
            print(json.dumps({"begins": name}), file=out, flush=True)

        result = Result(write, start)
        for case in vars(made).values():
            if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == made.__name__:
                case.setUpClass()
                for name in unittest.TestLoader().getTestCaseNames(case):
                    if wanted is None or name in wanted:
                        case(name).run(result)
                case.tearDownClass()


if __name__ == "__main__":
    main()
