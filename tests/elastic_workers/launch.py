"""Runs an elastic job and collects what its workers tell."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
TRAIN = str(TESTS / "elastic_workers" / "train.py")


def start(*options, script=TRAIN, env=None, **result):
    """The launcher's process, with what it and the workers print in one pipe."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    environ |= {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **(env or {})}
    # Else what happens to be ready is fused, and in a ring of three the order of additions depends on it.
    environ["HOROVOD_FUSION_THRESHOLD"] = "0"
    command = [sys.executable, "-m", "paceline", "run", "--elastic", "--no-prefix", "--strategy", "ring", *options]
    command += ["--", sys.executable, script, json.dumps(result)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ, start_new_session=True
    )


class Ran:
    """A job that has ended."""

    def __init__(self, code, text):
        self.code, self.text = code, text
        self.lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        self.ends = [result for result in self.lines if "ends" in result]
        self.worlds = [result for result in self.lines if "world" in result]
        self.deaths = [result for result in self.lines if "dies" in result]


def finish(process, timeout=240):
    try:
        text, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        raise AssertionError(f"the job did not end within {timeout} s:\n{text}") from None
    return Ran(process.returncode, text)


def run(*options, timeout=240, **result):
    return finish(start(*options, **result), timeout)
