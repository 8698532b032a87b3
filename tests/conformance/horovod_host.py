"""One rank of Horovod's own tests with Paceline: `horovod.torch` is `paceline.torch`, and nothing else changes.

With the front `tensorflow`, `horovod.tensorflow` is `paceline.tensorflow`; tests that Horovod runs in eager execution
and in sessions of TensorFlow 1 run in eager execution.

Writes JSON lines to a file of its own: the names of all tests, then for each test that it begins, and what became of
it. The tests come from a source tree of Horovod's. A rank that fails alone would put the others out of step, so ranks
wait for each other after each test, and all end after one that has failed on any: `suites` begins again with the next.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
import traceback
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from outcome import Result

GRACE_S = 1.0
"""After a failure on one rank, for the others to fail by themselves."""


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
    # Some tests build each optimizer of torch's. This one is newer than Horovod, and takes matrices only.
    if hasattr(torch.optim, "Muon"):
        torch.optim.Muon.__module__ = "out of their sight"
    hvd = paceline.torch
    # The tests of process sets use Horovod's front for TensorFlow, but nothing of TensorFlow.
    vars(sys.modules["horovod"]).update(torch=hvd, tensorflow=hvd)
    sys.modules["horovod.torch"] = sys.modules["horovod.tensorflow"] = hvd
    for name in ("elastic", "mpi_ops", "sync_batch_norm"):
        result = getattr(hvd, name, hvd)
        sys.modules[f"horovod.torch.{name}"] = result if isinstance(result, types.ModuleType) else hvd
    # The numbers of process sets, which Horovod's tests ask of its inner workings.
    sets = types.SimpleNamespace(_get_process_set_ids_and_ranks=_process_sets)
    vars(hvd)["mpi_ops"] = types.SimpleNamespace(_basics=sets)
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


def _process_sets() -> dict[int, list[int]]:
    from paceline.hvd import world

    return {number: list(known.ranks) for number, known in world.current().sets.items()}


def load(path: Path) -> types.ModuleType:
    """Execute a file of tests."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = made
    spec.loader.exec_module(made)
    return made


def tests_in(made: types.ModuleType) -> dict[str, unittest.TestCase]:
    """Return the tests of a file by name: methods of its test cases, and functions."""
    values: dict[str, unittest.TestCase] = {}
    for name, value in vars(made).items():
        if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == made.__name__:
            value.setUpClass()
            values |= {method: value(method) for method in unittest.TestLoader().getTestCaseNames(value)}
        elif isinstance(value, types.FunctionType) and name.startswith("test") and value.__module__ == made.__name__:
            values[name] = unittest.FunctionTestCase(value)
    return values


class InStep:
    """Keeps ranks in step by means of files in a folder that they share."""

    def __init__(self, folder: Path, rank: int, size: int, limit_s: float) -> None:
        """`limit_s`: for a test."""
        self.folder, self.rank, self.size, self.limit_s = folder, rank, size, limit_s
        self.until = time.monotonic() + limit_s
        self.lock = threading.Lock()
        """Held by whoever writes the record of the test that runs."""
        self.out = (folder / str(rank)).open("w")
        self.running: str | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def write(self, record: dict[str, Any]) -> None:
        """Write a line."""
        print(json.dumps(record), file=self.out, flush=True)

    def begins(self, name: str) -> None:
        """Take note of a test."""
        self.until, self.running = time.monotonic() + self.limit_s, name
        self.write({"begins": name})

    def ended(self, record: dict[str, Any]) -> None:
        """Write the record of a test, and wait for the other ranks; end the process if it has failed on any."""
        with self.lock:
            self.write(record)
            self.running = None
        failed = record["outcome"] == "failed"
        (self.folder / f"{record['test']}.{self.rank}.{'failed' if failed else 'over'}").touch()
        while not failed:
            others = [self._of(record["test"], rank) for rank in range(self.size)]
            if all(other == "over" for other in others):
                return
            failed = "failed" in others
            time.sleep(0.002)
        time.sleep(GRACE_S)  # The other ranks may be about to say why they fail.
        os._exit(0)

    def _of(self, test: str, rank: int) -> str | None:
        kinds = ("over", "failed")
        return next((kind for kind in kinds if (self.folder / f"{test}.{rank}.{kind}").exists()), None)

    def _watch(self) -> None:
        """End a rank that stays in a test which has failed on another, and one whose test does not end."""
        while True:
            time.sleep(0.05)
            name = self.running
            others = [rank for rank in range(self.size) if name is not None and self._of(name, rank) == "failed"]
            if others:
                time.sleep(GRACE_S)
            late = time.monotonic() > self.until and name is not None
            if not others and not late:
                continue
            with self.lock:
                if self.running != name:
                    continue
                frames = sys._current_frames()[threading.main_thread().ident or 0]
                where = "".join(traceback.format_stack(frames)[-8:])
                why = f"no end after {self.limit_s:g} s" if late else f"still in the test after it failed on {others}"
                outcome = "failed" if late else "left"
                record = {"test": name, "outcome": outcome, "message": f"{where}{why}", "seconds": self.limit_s}
                self.write(record | {"failed_at": time.time()})
                if late:
                    (self.folder / f"{name}.{self.rank}.failed").touch()
                    time.sleep(GRACE_S)
                os._exit(0)


def main() -> None:
    """Read what to run from the command line."""
    request = json.loads(sys.argv[1])
    for variable, ours in (("RANK", "RANK"), ("SIZE", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        os.environ[f"HOROVOD_{variable}"] = os.environ[ours]
    os.environ |= {"HOROVOD_LOCAL_SIZE": os.environ["WORLD_SIZE"], "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}
    sys.path.insert(0, str(Path(request["file"]).parent))
    stand_in(request["front"])
    tests = tests_in(load(Path(request["file"])))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    step = InStep(Path(request["folder"]), rank, size, request["limit_s"])
    names = [name for name in tests if request["only"] is None or name in request["only"]]
    step.write({"tests": names})
    result = Result(step.ended, step.begins)
    for name in names:
        if name not in request["but"]:
            tests[name].run(result)


if __name__ == "__main__":
    main()
