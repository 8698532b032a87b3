"""Compiles Horovod into an environment: from its source distribution, with one change.

Horovod has no wheels. The headers of torch 2.4 and TensorFlow 2.15 are C++17, which 0.28.1 does not select everywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from paceline._internal.units import duration
from paceline.cli.usage import CommandError

VERSION = "0.28.1"
FRAMEWORKS = {"horovod": "torch", "horovod-tensorflow": "tensorflow"}
"""Environments, and the framework that Horovod is compiled for in them."""
_OLD, _NEW = "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"
_LIMIT_S = 7200.0
_COMPILED = re.compile(r"\[\s*(\d+)%\]")
"""CMake's progress."""
_STEP = 10
"""Percent between two lines of progress."""
_TOOLS = {"c++": "g++", "make": "make"}
"""Programs that compile it, and Debian's packages of them."""


def check() -> None:
    """Raise CommandError if this machine cannot compile."""
    lacking = [package for program, package in _TOOLS.items() if shutil.which(program) is None]
    if lacking:
        raise CommandError(
            f"Horovod is compiled here, and there is no {' and no '.join(lacking)}",
            remedy=f"apt-get install {' '.join(lacking)}",
        )


def build(name: str, folder: Path, say: Callable[[str], None]) -> None:
    """Compile Horovod in the environment `name` at `folder`, which has its other packages. Raises CommandError."""
    log = folder / "build.log"
    with tempfile.TemporaryDirectory(prefix="paceline-horovod-") as scratch:
        sources = _sources(folder, Path(scratch))
        variables, nccl = _variables(name, folder)
        say(f"Horovod {VERSION} for {FRAMEWORKS[name]}, over Gloo and MPI{nccl}; 5 to 20 minutes, log: {log}")
        words = [str(folder / "bin" / "python"), "-m", "pip", "install", "-v", "--no-build-isolation", "--no-deps"]
        _compile([*words, str(sources)], variables, log, say)


def _sources(folder: Path, scratch: Path) -> Path:
    """Download and change the sources. Raises CommandError."""
    words = [str(folder / "bin" / "python"), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    words += ["--no-build-isolation", "--disable-pip-version-check", "--dest", str(scratch), f"horovod=={VERSION}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    archive = scratch / f"horovod-{VERSION}.tar.gz"
    if done.returncode or not archive.exists():
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise CommandError(f"Horovod's sources cannot be downloaded: {' '.join(lines[-2:])[:600]}")
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    sources = scratch / f"horovod-{VERSION}"
    changed = [path for path in _standards(sources) if _OLD in path.read_text(encoding="utf-8")]
    if len(changed) != len(_standards(sources)):
        raise CommandError(f"Horovod's sources are not those of {VERSION}: a CMakeLists.txt selects no C++14")
    for path in changed:
        path.write_text(path.read_text(encoding="utf-8").replace(_OLD, _NEW), encoding="utf-8")
    return sources


def _standards(sources: Path) -> list[Path]:
    """Return the files that select the standard of C++."""
    return [sources / "CMakeLists.txt", sources / "horovod" / "torch" / "CMakeLists.txt"]


def _variables(name: str, folder: Path) -> tuple[dict[str, str], str]:
    """Return the environment of the compilation, and whether it includes NCCL, in words."""
    framework = FRAMEWORKS[name]
    with_ = {
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        **{f"HOROVOD_WITH{'' if each == framework else 'OUT'}_{_LETTERS[each]}": "1" for each in _LETTERS},
    }
    kept = {variable: value for variable, value in os.environ.items() if not variable.startswith("HOROVOD_")}
    kept |= {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}", "PYTHONUNBUFFERED": "1"}
    kept.setdefault("MAKEFLAGS", f"-j{len(os.sched_getaffinity(0))}")
    compiler = shutil.which("nvcc")
    headers = next(folder.glob("lib/python*/site-packages/nvidia/nccl"), None)
    if framework != "torch" or compiler is None or headers is None:
        why = "TensorFlow of this environment has no CUDA" if framework != "torch" else "there is no nvcc on PATH"
        return {**kept, **with_}, f", without NCCL ({why})"
    library = headers / "lib" / "libnccl.so"
    if not library.exists():  # The wheel has the name for the loader only.
        library.symlink_to("libnccl.so.2")
    cuda = {"HOROVOD_GPU": "CUDA", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": str(headers)}
    cuda["HOROVOD_CUDA_HOME"] = str(Path(compiler).resolve().parent.parent)
    return {**kept, **with_, **cuda}, " and NCCL"


_LETTERS: Mapping[str, str] = {"torch": "PYTORCH", "tensorflow": "TENSORFLOW"}


def _compile(words: list[str], variables: dict[str, str], log: Path, say: Callable[[str], None]) -> None:
    """Run the compilation, with a line for every tenth. Raises CommandError."""
    began, shown = time.monotonic(), 0
    with log.open("w", encoding="utf-8") as kept:
        running = subprocess.Popen(
            words,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert running.stdout is not None
        try:
            for line in running.stdout:
                kept.write(line)
                lasted = time.monotonic() - began
                if lasted > _LIMIT_S:
                    raise CommandError(f"Horovod was not compiled within {_LIMIT_S:.0f} s; log: {log}")
                percent = int(match[1]) if (match := _COMPILED.search(line)) else 0
                if percent >= shown + _STEP:
                    shown = percent - percent % _STEP
                    say(f"{shown} % compiled after {duration(lasted)}")
        finally:
            if running.poll() is None and not running.stdout.closed:
                running.stdout.close()
            _end(running)
    if running.returncode:
        raise CommandError(f"Horovod cannot be compiled: {_reason(log)}; log: {log}")


def _end(running: subprocess.Popen[str]) -> None:
    """Wait for a process that has closed its output, and end one that has not."""
    try:
        running.wait(timeout=30)
    except subprocess.TimeoutExpired:
        running.kill()
        running.wait()


def _reason(log: Path) -> str:
    """Return the first error of a compiler or of CMake, else the last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror:|CMake Error|fatal", line)]
    return (telling or lines[-1:] or ["no output"])[0][:400]
