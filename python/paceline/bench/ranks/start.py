"""Starts a module of this folder: `python start.py MODULE asked.json`.

An engine may live in an environment that has neither paceline nor what paceline imports (TensorFlow's, Horovod's). So
this file is run by its path, and `paceline` becomes a package that holds nothing but its modules, unless it is there.
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

_PACKAGE = Path(__file__).resolve().parents[2]
_SET_PARENT_DEATH_SIGNAL = 1  # linux/prctl.h: PR_SET_PDEATHSIG


def main(module: str) -> None:
    """Become the module."""
    if sys.platform.startswith("linux"):
        parent = int(os.environ.get("PACELINE_RUN_BENCH_PARENT", "0"))
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)  # the bench may be killed by SIGKILL
        if parent and os.getppid() != parent:
            sys.exit(1)
    sys.path.pop(0)  # this folder
    if importlib.util.find_spec("paceline") is None:
        package = types.ModuleType("paceline")
        package.__path__ = [str(_PACKAGE)]
        sys.modules["paceline"] = package
    del sys.argv[0]
    runpy.run_module(f"paceline.bench.ranks.{module}", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
