"""Output files: checked before the work begins, written whole or not at all."""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import InvalidArgumentError


def read_small(path: Path, most: int = 1 << 20, patience_s: float = 10.0) -> str:
    """Return the text of a file, or of a pipe whose writer makes progress (a shell's `<(command)`).

    Raises OSError, which includes TimeoutError, and UnicodeDecodeError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content, until = b"", time.monotonic() + patience_s
        while len(content) <= most:
            if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(errno.ETIMEDOUT, f"no data from this pipe for {patience_s:.0f} s")
            with suppress(BlockingIOError):
                more = os.read(descriptor, most)
                if not more:
                    return content.decode()
                content += more
        raise OSError(errno.EFBIG, f"is larger than {most >> 10} KiB")
    finally:
        os.close(descriptor)


def check_writable(option: str, path: Path) -> None:
    """Fail before the work rather than after it. Raises InvalidArgumentError."""
    target = Path(os.path.realpath(path))
    folder = target.parent
    try:
        special = target.exists() and not target.is_file()
        if target.is_dir():
            problem = "is a folder; name a file in it"
        elif not folder.is_dir():
            problem = f"the folder {folder} does not exist"
        elif not os.access(target if target.exists() else folder, os.W_OK) or not (
            special or os.access(folder, os.W_OK)
        ):
            problem = "cannot be written to"
        else:
            return
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    raise InvalidArgumentError(f"{option} {path}: {problem}")


def make_folder(option: str, path: Path) -> None:
    """Make a folder for output files. Raises InvalidArgumentError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(f"{option} {path}: {error.strerror or error}") from None


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path to write to; it replaces the file when the block succeeds, and is removed when it fails."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # a device or a pipe cannot be replaced
        try:
            yield target
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        return
    new = target.with_name(f".{target.name[:100]}.{os.getpid()}.new")
    try:
        yield new
        new.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        new.unlink(missing_ok=True)


NO_WORKING_DIRECTORY = "the current directory no longer exists; cd elsewhere"


def working_directory_is_gone() -> bool:
    """Return whether somebody has removed this process's working directory."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
