"""Runs a script on ranks under `paceline run`, and returns what they printed."""

import os
import subprocess
import sys
from pathlib import Path

import tiers
from job_workers.launch import clean

HERE = Path(__file__).parent
LIMIT_S = 280


def run(ranks, script, *words, options=(), env=None, code=0):
    """The output of `paceline run -np RANKS OPTIONS -- python SCRIPT WORDS`, which ends with exit code `code`."""
    tiers.starts(ranks)
    one_thread = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    environ = {**clean(), **one_thread, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
    environ |= {"PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]), "COLUMNS": "200", **(env or {})}
    path = script if Path(script).is_absolute() else HERE / f"{script}.py"
    command = [sys.executable, "-m", "paceline", "run", "-np", str(ranks), *options]
    command += ["--", sys.executable, str(path), *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ, cwd=HERE.parent
    )
    assert done.returncode == code, f"exit code {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr
