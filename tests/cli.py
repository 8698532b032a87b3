"""Ways to run what is tested: the command line in this process, and programs in processes of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result
from paceline.cli.main import main

PACELINE = (sys.executable, "-m", "paceline.cli")
TESTS = Path(__file__).parent


def call(*words: object, **environment: str | None) -> Result:
    """Run `paceline WORDS` in this process."""
    return CliRunner(env=environment).invoke(main, [str(word) for word in words], catch_exceptions=False)


def output(*words: object, code: int = 0) -> str:
    """Return all that the command prints; it must exit with `code`."""
    result = call(*words)
    assert result.exit_code == code, result.output
    return result.output


def said(*words: object, code: int = 0) -> str:
    """Return all that the command prints, as one line."""
    return " ".join(output(*words, code=code).split())


def facts(text: str) -> dict[str, str]:
    """Return what each label of an answer says, as one line; the first of a label, if several answers have it."""
    values: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        if label := re.fullmatch(r"  (\S.{10})  (\S.*)", line):
            lines = [label[2]]
            values.setdefault(label[1].strip(), lines)
        elif line.startswith(" " * 15) and lines is not None:
            lines.append(line)
        else:
            lines = None
    return {label: " ".join(" ".join(lines).split()) for label, lines in values.items()}


def table(text: str) -> tuple[str, list[str]]:
    """Return the header of an answer's first table, as one line, and its first rows, up to an empty line."""
    above, _, below = re.split(r"\n([-─]{9,})\n", text, maxsplit=1)
    return " ".join(above.rpartition("\n\n")[2].split()), below.partition("\n\n")[0].splitlines()


def notes(text: str) -> list[str]:
    """Return the notes that a command prints last, each as one line."""
    lines: list[str] = []
    for line in text.partition("\nNotes\n")[2].splitlines():
        if line.startswith(("  - ", "  [")):
            lines.append(line.removeprefix("  - ").strip())
        else:
            lines[-1] += f" {line.strip()}"
    return lines


def printed(*words: object) -> str:
    """Return what the command prints on standard output; it must succeed."""
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*words: object):
    """Return what the command prints with --json."""
    return json.loads(printed(*words, "--json"))


def refused(*words: object, **environment: str | None) -> str:
    """Return the lines with which the command refuses its input, the error and its remedy; it prints nothing else."""
    result = call(*words, **environment)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    error, *remedy = result.stderr.splitlines()
    assert error.startswith("paceline: error: "), result.stderr
    assert [line[:7] for line in remedy] in ([], ["  try: "]), result.stderr
    assert len(result.stderr) < 600, result.stderr
    return result.stderr


def shown(error: BaseException) -> str:
    """Return the message of an error with its notes, among them the remedy, as a traceback ends."""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def ended(*command: object, check: bool = False, **settings) -> subprocess.CompletedProcess:
    """Run a command to its end; what it prints is text."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=check, **{"capture_output": True, "text": True, **settings})


def program(*words: object, **settings) -> subprocess.CompletedProcess:
    """Run `paceline WORDS` as a program."""
    return ended(*PACELINE, *words, **settings)


def snippet(code: str, *words: object, **settings) -> str:
    """Return what Python prints for this code; it must succeed."""
    done = ended(sys.executable, "-c", code, *words, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clean() -> dict[str, str]:
    """Return the environment of a user who has not set any variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE_", "OMP_"))}


def launched(*words: object, env: dict[str, str] | None = None, **settings) -> subprocess.CompletedProcess:
    """Run `paceline run WORDS` to its end, for a user who has not set any variables but these."""
    return program("run", *words, env={**clean(), **(env or {})}, **{"cwd": TESTS, "timeout": 90, **settings})


def begun(*words: object, env: dict[str, str] | None = None) -> subprocess.Popen:
    """Begin `paceline run WORDS`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*PACELINE, "run", *map(str, words)], cwd=TESTS, env={**clean(), **(env or {})}, **pipes)
