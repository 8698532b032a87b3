"""Which tests of which peer run, and how."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Record = dict[str, Any]
"""Test, outcome (passed, skipped, failed), message, seconds."""
_GROUPS = "torch.testing._internal.distributed.distributed_test"


@dataclass(frozen=True)
class Suite:
    """The tests of one file, on so many ranks."""

    name: str
    peer: str
    """torch or horovod."""
    ranks: int
    file: str
    """Within the source tree; or the module in torch's wheel."""
    source: str | None = None
    """The variable that names the source tree; None: the tests are in torch's wheel."""
    after: str | None = None
    """Only the tests that this suite skips, for lack of ranks."""
    alone_s: int = 60
    """Limit for a test, in seconds."""
    front: str = "torch"
    """The framework that Horovod's tests use: torch or tensorflow."""

    def missing(self) -> str | None:
        """Return why the suite cannot run here."""
        if importlib.util.find_spec(self.front) is None:
            return f"{self.front} is not installed"
        if self.source is None:
            return None
        root = os.environ.get(self.source)
        if not root:
            return f"{self.source} is not set: it names a source tree that has {self.file}"
        return None if Path(root, self.file).is_file() else f"{self.source}={root} has no {self.file}"

    def path(self) -> str:
        """Return the file of the tests, or the module."""
        return self.file if self.source is None else str(Path(os.environ[self.source], self.file))


SUITES = [
    Suite("torch-2", "torch", 2, _GROUPS),
    Suite("torch-4", "torch", 4, _GROUPS, after="torch-2"),
    Suite("horovod-torch-2", "horovod", 2, "test/parallel/test_torch.py", "HOROVOD_SOURCE"),
    Suite("horovod-torch-3", "horovod", 3, "test/parallel/test_torch.py", "HOROVOD_SOURCE"),
    Suite("horovod-elastic", "horovod", 1, "test/single/test_torch_elastic.py", "HOROVOD_SOURCE"),
    Suite("horovod-timeline", "horovod", 2, "test/parallel/test_timeline.py", "HOROVOD_SOURCE"),
    *(
        Suite(
            f"horovod-{name}",
            "horovod",
            ranks,
            f"test/parallel/test_{file}.py",
            "HOROVOD_SOURCE",
            alone_s=180,
            front="tensorflow",
        )
        for name, ranks, file in (
            ("tensorflow-2", 2, "tensorflow"),
            ("tensorflow-sets", 3, "tensorflow_process_sets"),
            ("keras-2", 2, "tensorflow2_keras"),
        )
    ),
]


def run(suite: Suite, backend: str, only: Sequence[str] | None, told: Callable[[Record], None]) -> list[Record]:
    """Run the tests of a suite; `told` gets each record as soon as there is one.

    Tests of Horovod's that fail run again by themselves: a rank that fails alone puts the others out of step.
    """
    if suite.peer == "torch":
        return list(_told(_torch(suite, backend, only), told))
    with tempfile.TemporaryDirectory() as folder:
        together = _horovod(suite, only, Path(folder))
    return list(_told((_again(suite, record) for record in together), told))


def _again(suite: Suite, record: Record) -> Record:
    """Run a test that has failed by itself."""
    if record["outcome"] != "failed":
        return record
    with tempfile.TemporaryDirectory() as folder:
        return _horovod(suite, [record["test"]], Path(folder))[0]


def _told(records: Iterator[Record], told: Callable[[Record], None]) -> Iterator[Record]:
    for record in records:
        told(record)
        yield record


def _torch(suite: Suite, backend: str, only: Sequence[str] | None) -> Iterator[Record]:
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w+") as log:
        request = {"file": suite.path(), "ranks": suite.ranks, "backend": backend, "only": only}
        request |= {"timeout_s": suite.alone_s, "folder": folder}
        command = [sys.executable, str(HERE / "torch_host.py"), json.dumps(request)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"{suite.name}: the tests could not be run:\n{log.read()[-2000:]}")


def _horovod(suite: Suite, only: Sequence[str] | None, folder: Path) -> list[Record]:
    request = {"file": suite.path(), "folder": str(folder), "only": only, "front": suite.front}
    command = [sys.executable, "-m", "paceline.cli", "run", "-np", str(suite.ranks), "--timeout", "20", "--"]
    command += [sys.executable, str(HERE / "horovod_host.py"), json.dumps(request)]
    limit_s = suite.alone_s if only is not None and len(only) == 1 else 30 * suite.alone_s
    said = ""
    try:
        limits = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "10",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "15",
        }
        environment = os.environ | limits
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment)
        said = done.stderr
    except subprocess.TimeoutExpired as error:
        said = f"no end after {limit_s:g} s: {(error.stderr or b'').decode()}"
    by_test: dict[str, list[Record]] = {}
    begun: list[str] = []
    for rank in range(suite.ranks):
        if (folder / str(rank)).exists():
            for line in (folder / str(rank)).read_text().splitlines():
                record = json.loads(line)
                if "begins" in record:
                    begun.append(record["begins"])
                else:
                    by_test.setdefault(record["test"], []).append(record | {"rank": rank})
    found = []
    for test in dict.fromkeys(begun):
        each = by_test.get(test, [])
        worst = next((one for one in each if one["outcome"] == "failed"), None)
        if worst is None and len(each) < suite.ranks:
            missing = f"a rank did not finish: {said[-1500:]}"
            worst = {"test": test, "outcome": "failed", "message": missing, "seconds": 0.0}
        found.append(worst or each[0])
    if not found:
        raise RuntimeError(f"{suite.name}: the tests could not be run:\n{said[-2000:]}")
    return found
