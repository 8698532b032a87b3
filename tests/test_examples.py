"""The commands in examples/ print exactly their transcripts. `python tests/test_examples.py --write` updates them."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TRANSCRIPTS = sorted(EXAMPLES.glob("*.console"))


def commands(transcript: str) -> list[str]:
    return [line.removeprefix("$ ") for line in transcript.splitlines() if line.startswith("$ ")]


def run(command: str) -> str:
    """The command's output, both streams, and its exit code unless it is 0."""
    words = shlex.split(command)
    assert words[0] == "paceline"
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "PYTHONUTF8": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "paceline.cli", *words[1:]],
        cwd=EXAMPLES,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return process.stdout + (f"[exit code {process.returncode}]\n" if process.returncode else "")


def played(transcript: str) -> str:
    return "\n".join(f"$ {command}\n{run(command)}" for command in commands(transcript))


_LONG = ("coordinators",)


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in _LONG)) for path in TRANSCRIPTS],
)
def test_example_prints_what_stands_there(path):
    transcript = path.read_text(encoding="utf-8")
    assert commands(transcript)
    assert played(transcript) == transcript


def test_every_example_is_described():
    readme = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        if path.name == "__pycache__":
            continue
        assert f"`{path.name}`" in readme or path.name == "README.md"


if __name__ == "__main__":
    assert sys.argv[1:] == ["--write"], "usage: python tests/test_examples.py --write"
    for path in TRANSCRIPTS:
        path.write_text(played(path.read_text(encoding="utf-8")), encoding="utf-8")
