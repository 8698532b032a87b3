"""The newest of each trainer, in an environment of its own, and this repository's tests of them there.

So what a trainer renames or removes is seen here first. torchft's nightly build replaces its release, and so has an
environment on top of the other's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
WHERE = ROOT / ".venv-trainers"
INSTALL_S, TESTS_S = 1800.0, 3600.0
"""Limits, on a machine that is busy and has a slow network."""
# Without the limits of pyproject.toml; torchft's own tests need parameterized, DeepSpeed's installation the last two.
TRAINERS = ("accelerate", "transformers", "lightning", "ray[train]", "torchft", "parameterized", "setuptools", "ninja")
SHOWN = ("torch", "accelerate", "transformers", "lightning", "ray", "deepspeed", "torchft", "torchft-nightly")
FILES = ("tests/test_trainers.py", "tests/test_torchft.py")
# torch's own options are tested every day.
OF_TORCH = "not options_of_ddp and not fsdp2 and not compiled"


class InstallError(Exception):
    """A package could not be installed; the message is the installer's."""


def run(only: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Install the trainers and run their tests; `only`: tests of these names.

    Yields:
        Test, outcome (passed, skipped, failed), message, seconds; the message of `versions` says what was installed.

    Raises:
        InstallError: The trainers cannot be installed.
    """
    say("installing the newest accelerate, transformers, Lightning, Ray and torchft; minutes the first time")
    python = environment(WHERE)
    given = ["--requirements", str(ROOT / "pyproject.toml"), "--extra", "torch", "--group", "test"]
    install(python, "--upgrade", *given, *TRAINERS)
    missing = _optional(python, "deepspeed", "--upgrade", "--no-build-isolation", "deepspeed")
    if missing is not None:
        yield missing
    else:
        compile_deepspeed(python)
    yield from tests(python, FILES, only)
    nightly = environment(WHERE / "nightly", beneath=python)
    missing = _optional(nightly, "torchft-nightly", "--upgrade", "--no-deps", "torchft-nightly")
    if missing is not None:
        yield missing
    else:
        for record in tests(nightly, ["tests/test_torchft.py"], only):
            yield record | {"test": f"nightly: {record['test']}"}
    yield {"test": "versions", "outcome": "passed", "message": versions(python, nightly), "seconds": 0.0}


EXTENSIONS = WHERE / "extensions"
"""What DeepSpeed compiles."""


def compile_deepspeed(python: Path) -> None:
    """Compile what DeepSpeed compiles at its first start: ranks of a test would have to wait for it too long.

    A rank that is killed meanwhile leaves a lock, for which all later ones wait: it is removed.
    """
    say("compiling DeepSpeed's operation for CPUs; a minute the first time")
    for lock in EXTENSIONS.rglob("lock"):
        lock.unlink()
    code = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False, timeout=INSTALL_S, env=_environ(python)
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"DeepSpeed's operation is not compiled within {INSTALL_S:g} s") from None
    if done.returncode:
        raise InstallError(f"DeepSpeed's operation cannot be compiled: {done.stderr[-2000:]}")


def _environ(python: Path) -> dict[str, str]:
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "TORCH_EXTENSIONS_DIR": str(EXTENSIONS)}


def environment(where: Path, *, beneath: Path | None = None) -> Path:
    """Make a virtual environment that has this checkout's Paceline, and another's packages; return its Python."""
    python = where / "bin" / "python"
    if not python.exists():
        uv("venv", "--quiet", "--allow-existing", "--python", sys.executable, str(where))
    packages = site_packages(python)
    paths = [str(ROOT / "python"), *([str(site_packages(beneath))] if beneath is not None else [])]
    (packages / "paceline-checkout.pth").write_text("\n".join(paths) + "\n")
    # Its entry points, by which torch finds the backend.
    for result in Path(sysconfig.get_path("purelib")).glob("paceline-*.dist-info"):
        shutil.copytree(result, packages / result.name, dirs_exist_ok=True)
    return python


def site_packages(python: Path) -> Path:
    """Return where an environment's packages are."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def uv(*words: str) -> None:
    """Run uv, which `make setup` has installed. Raises InstallError."""
    command = [sys.executable, "-m", "uv", *words]
    environ = {**os.environ, "DS_BUILD_OPS": "0"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=INSTALL_S, env=environ, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{' '.join(words)}: not done within {INSTALL_S:g} s") from None
    if done.returncode:
        raise InstallError(f"{' '.join(words)}: {done.stderr[-2000:]}")


def install(python: Path, *words: str) -> None:
    """Install packages. Raises InstallError."""
    uv("pip", "install", "--quiet", "--python", str(python), *words)


def _optional(python: Path, name: str, *words: str) -> dict[str, Any] | None:
    """Install what may not be had everywhere; return the record of a test that is skipped if it cannot."""
    try:
        install(python, *words)
    except InstallError as error:
        return {"test": name, "outcome": "skipped", "message": f"cannot be installed: {error}", "seconds": 0.0}
    return None


def tests(python: Path, files: Sequence[str], only: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """Run tests of this repository in an environment."""
    say(f"testing {versions(python)}")
    chosen = f"({' or '.join(only)})" if only else OF_TORCH
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            chosen,
            f"--junitxml={report}",
            *files,
        ]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=TESTS_S,
                env=_environ(python),
            )
            said = done.stdout[-2000:] + done.stderr[-2000:]
        except subprocess.TimeoutExpired as error:
            said = f"no end after {TESTS_S:g} s: {(error.stdout or b'')[-2000:].decode(errors='replace')}"
        if not report.exists():
            raise InstallError(f"the tests could not be run: {said}")
        for case in ElementTree.parse(report).iter("testcase"):
            worst = next((part for part in case if part.tag in ("failure", "error")), None)
            skipped = case.find("skipped")
            outcome = "failed" if worst is not None else "skipped" if skipped is not None else "passed"
            part = worst if worst is not None else skipped
            message = "" if part is None else part.get("message") or part.text or ""
            yield {
                "test": case.get("name") or "",
                "outcome": outcome,
                "message": message,
                "seconds": float(case.get("time") or 0),
            }


def versions(*pythons: Path) -> str:
    """Return what is installed, such as "torch 2.15.0, accelerate 1.12.0"."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({d.name: d.version for d in m.distributions() if d.name in sys.argv[1:]}))"
    )
    values: dict[str, str] = {}
    for python in pythons:
        done = subprocess.run([python, "-c", code, *SHOWN], check=True, capture_output=True, text=True)
        values |= json.loads(done.stdout)
    return ", ".join(f"{name} {values[name]}" for name in SHOWN if name in values)


def say(text: str) -> None:
    """Say what takes long."""
    print(f"trainers: {text}", file=sys.stderr, flush=True)
