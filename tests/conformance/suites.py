"""Which tests of which peer run, and how."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance import trainers

HERE = Path(__file__).parent
START_S = 300.0
"""Limit for the start of ranks, on a machine that is busy."""
Record = dict[str, Any]
"""Test, outcome (passed, skipped, failed), message, seconds."""
_GROUPS = "torch.testing._internal.distributed.distributed_test"


class SuiteError(Exception):
    """The tests of a suite could not be run."""


@dataclass(frozen=True)
class Suite:
    """The tests of one file, on so many ranks."""

    name: str
    peer: str
    """torch or horovod; or trainers: this repository's tests of them."""
    ranks: int
    file: str
    """Within the source tree, where it may be a pattern for several; or the module in torch's wheel."""
    source: str | None = None
    """The variable that names the source tree; None: the tests are in torch's wheel."""
    after: str | None = None
    """Only the tests that this suite skips, for lack of ranks."""
    alone_s: int = 60
    """Limit for a test, in seconds, on a machine that is busy."""
    front: str = "torch"
    """The framework that Horovod's tests use: torch or tensorflow."""
    by_name: bool = False
    """Whether it runs only if it is named."""

    @property
    def tests(self) -> str:
        """What known.toml calls its tests: the name without the number of ranks."""
        return self.name.removesuffix(f"-{self.ranks}")

    def missing(self) -> str | None:
        """Return why the suite cannot run here."""
        if self.source is None:
            return None
        root = os.environ.get(self.source)
        if not root:
            return f"{self.source} is not set: it names a source tree that has {self.file}"
        if importlib.util.find_spec(self.front) is None:
            return f"{self.front} is not installed"
        return None if self.files() else f"{self.source}={root} has no {self.file}"

    def files(self) -> list[Path]:
        """Return the files of the tests in the source tree."""
        return sorted(Path(os.environ[str(self.source)]).glob(self.file))

    def path(self) -> str:
        """Return the file of the tests, or the module."""
        return self.file if self.source is None else str(self.files()[0])


SUITES = [
    Suite("torch-2", "torch", 2, _GROUPS),
    Suite("torch-4", "torch", 4, _GROUPS, after="torch-2"),
    *(
        Suite(f"torch-{name}", "torch", 4, f"test/distributed/{file}.py", "PYTORCH_SOURCE", alone_s=180)
        for name, file in (
            ("dtensor", "*tensor/test_*"),
            ("tensor-parallel", "tensor/parallel/test_*"),
            ("fsdp2", "_composable/fsdp/test_*"),
            ("checkpoint", "checkpoint/**/test_*"),
            ("functional", "test_*functional*"),
            ("device-mesh", "test_device_mesh"),
            ("objects", "test_c10d_object_collectives"),
            ("common", "test_c10d_common"),
        )
    ),
    Suite("horovod-torch-2", "horovod", 2, "test/parallel/test_torch.py", "HOROVOD_SOURCE", alone_s=240),
    Suite("horovod-torch-3", "horovod", 3, "test/parallel/test_torch.py", "HOROVOD_SOURCE", alone_s=240),
    Suite("horovod-elastic", "horovod", 1, "test/single/test_torch_elastic.py", "HOROVOD_SOURCE"),
    Suite("horovod-timeline", "horovod", 2, "test/parallel/test_timeline.py", "HOROVOD_SOURCE"),
    Suite("horovod-process-sets-2", "horovod", 2, "test/parallel/test_process_sets_static.py", "HOROVOD_SOURCE"),
    Suite("horovod-process-sets-3", "horovod", 3, "test/parallel/test_process_sets_static.py", "HOROVOD_SOURCE"),
    Suite("horovod-stall", "horovod", 2, "test/integration/test_stall.py", "HOROVOD_SOURCE"),
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
    # Installs gigabytes.
    Suite("trainers", "trainers", 2, "tests/test_trainers.py", by_name=True),
]


def run(
    suite: Suite, backend: str, only: Sequence[str] | None, alone: Collection[str], result: Callable[[Record], None]
) -> list[Record]:
    """Run the tests of a suite; `told` gets each record as soon as there is one.

    Tests in `alone` run in processes of their own: those that are known to fail would end the others' ranks.
    """
    if suite.peer == "trainers":
        records = _trainers(suite, only)
    elif suite.peer == "horovod":
        records = _horovod(suite, only, alone)
    elif suite.source is None:
        records = _torch(suite, backend, only)
    else:
        records = _source(suite, backend, only)
    return list(_reported(records, result))


def _reported(records: Iterator[Record], result: Callable[[Record], None]) -> Iterator[Record]:
    for record in records:
        result(record)
        yield record


def _trainers(suite: Suite, only: Sequence[str] | None) -> Iterator[Record]:
    try:
        yield from trainers.run(only)
    except trainers.InstallError as error:
        raise SuiteError(f"{suite.name}: {error}") from error


def _source(suite: Suite, backend: str, only: Sequence[str] | None) -> Iterator[Record]:
    """Run tests of a source tree, file by file. Those that are skipped, for lack of GPUs, run again on the CPU.

    Those that fail run again with gloo; if that fails, too, they count as skipped. So the tree need not be that of the
    installed torch: what does not fit it fails with any backend.
    """
    for file in suite.files():
        values: dict[str, Record] = {}
        for on_cpu in (False, True):
            done = [name for name, record in values.items() if record["outcome"] != "skipped"]
            records = list(_file(suite, file, backend, only, done, on_cpu=on_cpu))
            failed = [record["test"] for record in records if record["outcome"] == "failed"]
            again = _file(suite, file, "gloo", failed, (), on_cpu=on_cpu) if failed and backend != "gloo" else iter(())
            by_gloo = {record["test"]: record for record in again}
            for record in records:
                gloo = by_gloo.get(record["test"])
                same = {"outcome": "skipped", "message": f"fails with gloo, too: {gloo['message']}"} if gloo else {}
                values[record["test"]] = record if gloo is None or gloo["outcome"] == "passed" else record | same
            if records and all(record["outcome"] != "skipped" for record in records):
                break
        yield from values.values()


def _file(
    suite: Suite, file: Path, backend: str, only: Sequence[str] | None, but: Collection[str], *, on_cpu: bool
) -> Iterator[Record]:
    """Run the tests of a file; go on behind one that has ended the process."""
    done = set(but)
    while True:
        request = {"file": str(file), "only": only, "but": [*done], "on_cpu": on_cpu, "timeout_s": suite.alone_s}
        command = [sys.executable, str(HERE / "source_host.py"), json.dumps(request)]
        environ = {**os.environ, "PACELINE_AS_GLOO": "1" if backend == "paceline" else ""}
        begun = ""
        with tempfile.TemporaryFile("w+") as log:
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    record = json.loads(line)
                    if "unusable" in record:
                        yield {"test": file.stem, "outcome": "skipped", "message": record["unusable"], "seconds": 0.0}
                    elif "begins" in record:
                        begun = record["begins"]
                    else:
                        done.add(record["test"])
                        begun = ""
                        yield record
            if not process.returncode:
                return
            log.seek(0)
            why = f"the process ended with {process.returncode}: {log.read()[-1500:]}"
        if not begun:
            raise SuiteError(f"{suite.name}: {file.name} could not be run: {why}")
        done.add(begun)
        yield {"test": begun, "outcome": "failed", "message": why, "seconds": 0.0}


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
            raise SuiteError(f"{suite.name}: the tests could not be run:\n{log.read()[-2000:]}")


def _horovod(suite: Suite, only: Sequence[str] | None, alone: Collection[str]) -> Iterator[Record]:
    """Run tests of Horovod's, on ranks that are begun again after each test that fails."""
    names, result = _ranks(suite, only, alone)
    yield from result
    together = [name for name in names if name not in alone][len(result) :]
    while together:
        _, result = _ranks(suite, together, ())
        yield from result
        together = together[len(result) :]
    for name in names:
        if name in alone:
            yield from _ranks(suite, [name], ())[1]


def _ranks(suite: Suite, only: Sequence[str] | None, but: Collection[str]) -> tuple[list[str], list[Record]]:
    """Run tests of Horovod's up to the first that fails; return the names of all, and the records of those that ran."""
    limit_s = START_S + (len(only) if only else 150) * suite.alone_s
    with tempfile.TemporaryDirectory() as folder:
        request = {"file": suite.path(), "folder": folder, "only": only, "but": list(but), "limit_s": suite.alone_s}
        request["front"] = suite.front
        command = [sys.executable, "-m", "paceline.cli", "run", "-np", str(suite.ranks), "--timeout", "20", "--"]
        command += [sys.executable, str(HERE / "horovod_host.py"), json.dumps(request)]
        limits = {
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "10",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "15",
        }
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit_s, check=False, env=os.environ | limits
            )
            said = done.stderr
        except subprocess.TimeoutExpired as error:
            said = f"no end after {limit_s:g} s: {(error.stderr or b'').decode()}"
        written = [Path(folder, str(rank)) for rank in range(suite.ranks)]
        lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in written if file.exists()]
    names = next((line["tests"] for rank in lines for line in rank if "tests" in line), None)
    if names is None:
        raise SuiteError(f"{suite.name}: the tests could not be run:\n{said[-2000:]}")
    records = []
    for test in dict.fromkeys(line["begins"] for rank in lines for line in rank if "begins" in line):
        each = [line for rank in lines for line in rank if line.get("test") == test]
        # The first to fail; for the others, that is the cause.
        failed = [one for one in each if one["outcome"] == "failed"]
        worst = min(failed, key=lambda one: float(one["failed_at"]), default=None)
        if worst is None and (len(each) < suite.ranks or any(one["outcome"] == "left" for one in each)):
            why = f"a rank did not finish: {said[-1500:]}"
            worst = {"test": test, "outcome": "failed", "message": why, "seconds": 0.0}
        records.append(worst or max(each, key=lambda one: one["seconds"]))
    if not records and any(name not in but for name in names):
        raise SuiteError(f"{suite.name}: no test began:\n{said[-2000:]}")
    return names, records
