"""Runs entries in this process: in a folder of their own, whatever the terminal, the environment and the time."""

import contextlib
import gzip
import hashlib
import html
import io
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline
from click.testing import CliRunner

from golden.compare import NUMBER, Output
from golden.entries import FOLDER, Entry

ROOT = FOLDER.parent.parent
_INPUTS = (FOLDER / "inputs", ROOT / "tests" / "data", ROOT / "examples")
_OURS = ("PACELINE_", "HOROVOD_", "OMP_", "NCCL_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "LINES", "FORCE_COLOR")
_FIXED = {"COLUMNS": "120", "NO_COLOR": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC", "TERM": "dumb"}
# Of a page only what is read counts: drawings depend on the version of matplotlib.
_NOT_READ = re.compile(r"<(svg|style|script|head)\b.*?</\1>|<[^>]*>", re.DOTALL)


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """Work in a new folder with the inputs, the examples and tests/data, in an environment without settings."""
    environment, here = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        for inputs in _INPUTS:
            shutil.copytree(inputs, name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        for variable in environment:
            if variable.startswith(_OURS):
                del os.environ[variable]
        os.environ.update(_FIXED)
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(environment)


def run(entry: Entry) -> Output:
    """Run an entry in the current folder (`folder`), and remove what it has written there."""
    before = set(Path.cwd().rglob("*"))
    output = _python(entry.words) if entry.form == "python" else _command(entry)
    written = sorted(set(Path.cwd().rglob("*")) - before)
    output.files = {str(path.relative_to(Path.cwd())): _digest(path) for path in written if path.is_file()}
    for path in reversed(written):
        path.rmdir() if path.is_dir() else path.unlink()
    if entry.form != "text" and output.stdout:
        with contextlib.suppress(ValueError):
            output.document, output.stdout = json.loads(output.stdout), ""
    return output


def _command(entry: Entry) -> Output:
    from paceline.cli.main import main

    result = CliRunner().invoke(main, shlex.split(entry.command)[1:])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise RuntimeError(f"{entry.label}: {entry.command}") from result.exception
    return Output(result.exit_code, result.stdout.rstrip("\n"), result.stderr.rstrip("\n"))


def _python(code: str) -> Output:
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        exec(compile(code, "entry", "exec"), {"__name__": "entry"})
    return Output(0, printed.getvalue().rstrip("\n"), errors.getvalue().rstrip("\n"))


def _digest(path: Path) -> dict[str, Any]:
    """Return how many numbers a file has, and digests of these and of the file."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return {"bytes": len(content), "sha256": _sha256(content)}
    if path.suffix == ".html":
        text = html.unescape(_NOT_READ.sub(" ", text)).replace(paceline.__version__, "VERSION")
    if path.suffix == ".json":
        values = json.loads(text)
        text = json.dumps(values, sort_keys=True, ensure_ascii=False)
    numbers = NUMBER.findall(text)
    return {
        "numbers": len(numbers),
        "of_numbers": _sha256(" ".join(numbers).encode()),
        "digest": _sha256(text.encode()),
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
