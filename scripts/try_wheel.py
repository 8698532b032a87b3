"""Installs the wheel in a folder into an empty environment and tries it: a forecast, and an all-reduce of two ranks.

python scripts/try_wheel.py dist            # the wheel that fits this interpreter and machine
python scripts/try_wheel.py dist --sdist    # builds the source distribution; needs cargo

Uses the interpreter that runs it, and only the standard library.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ALL_REDUCE = """
import array
from paceline import job

with job.join() as me:
    mine = array.array("f", [me.rank + 1.0] * 100_000)
    me.all_reduce(mine)
    assert set(mine) == {3.0}, set(mine)
    print(f"rank {me.rank} of {me.size}: the sum is right")
"""


def main() -> None:
    """Exit with 1 if something fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sdist", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        venv.create(home / "env", with_pip=True)
        here = home / "env" / "bin"
        result = chosen(given.folder.resolve(), sdist=given.sdist)
        run(here / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", result)
        print(f"{result.name} in Python {platform.python_version()}, {' '.join(platform.libc_ver())}", flush=True)
        run(here / "paceline", "--version")
        run(here / "paceline", "doctor", "--env")
        options = ("resnet-50", "--workers", "16", "--strategy", "ring,ps", "--json")
        forecast = run(here / "paceline", "simulate", *options, keep=True)
        rows = json.loads(forecast)
        assert [row["strategy"] for row in rows] == ["ring", "ps"], forecast
        assert all(row["iteration_s"] > 0 for row in rows), forecast
        for row in rows:
            print(f"resnet-50, 16 workers, {row['strategy']}: {row['samples_per_s']:.0f} samples/s", flush=True)
        script = home / "all_reduce.py"
        script.write_text(ALL_REDUCE, encoding="utf-8")
        for transport in ("shm", "tcp"):
            run(here / "paceline", "run", "-np", "2", "--transport", transport, "--", here / "python", script)


def chosen(folder: Path, *, sdist: bool) -> Path:
    """The only matching file."""
    pattern = "paceline-*.tar.gz" if sdist else f"paceline-*-abi3-*_{platform.machine()}.whl"
    result = sorted(folder.glob(pattern))
    if len(result) != 1:
        sys.exit(f"{folder}: {len(result)} files match {pattern}, expected one")
    return result[0]


def run(*command: object, keep: bool = False) -> str:
    """Run it in a folder without sources; returns its output if captured."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    output = subprocess.PIPE if keep else None
    done = subprocess.run(words, cwd=tempfile.gettempdir(), env=environment, text=True, check=False, stdout=output)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}")
    return done.stdout if keep else ""


if __name__ == "__main__":
    main()
