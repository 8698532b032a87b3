"""Starts a module of this folder: `python start.py MODULE spec.json`; or a launcher: `python start.py exec mpirun …`.

An engine may be in an environment that has neither paceline nor its dependencies (TensorFlow's, Horovod's). So this
file is run by its path, and `paceline_lab` becomes a package with only these modules, unless it is installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import runpy
import signal
import sys
import types
from pathlib import Path

PARENT = "PACELINE_RUN_BENCH_PARENT"
"""Environment variable with the process id of the benchmark."""
_PACKAGE = Path(__file__).resolve().parents[2]
_SET_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h: PR_SET_PDEATHSIG


def end_with_the_bench(number: signal.Signals) -> None:
    """Have the kernel signal this process when the benchmark dies; not under a launcher, which does so itself."""
    if sys.platform.startswith("linux") and os.environ.get(PARENT) == str(os.getppid()):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, number)


def main(module: str) -> None:
    """Run the module."""
    end_with_the_bench(signal.SIGKILL)
    sys.path.pop(0)  # this folder
    if importlib.util.find_spec("paceline_lab") is None:
        package = types.ModuleType("paceline_lab")
        package.__path__ = [str(_PACKAGE)]
        sys.modules["paceline_lab"] = package
    del sys.argv[0]
    runpy.run_module(f"paceline_lab.bench.ranks.{module}", run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        end_with_the_bench(signal.SIGTERM)  # the signal at which launchers end their ranks
        os.execvp(sys.argv[2], sys.argv[2:])
    main(sys.argv[1])
