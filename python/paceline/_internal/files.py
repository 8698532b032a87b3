"""Output files: checked before the work begins, written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import InvalidArgumentError

NO_DASH = "would be a file of this name"
NO_SUCH_FILE = "no such file"


def why_unread(error: OSError) -> str:
    """Return what is wrong with a file that cannot be read, to follow its name."""
    if error.errno == errno.ENOENT:
        return NO_SUCH_FILE
    if error.errno == errno.EISDIR:
        return "is a folder"
    if error.errno == errno.EACCES:
        return "may not be read by this user"
    return error.strerror or str(error)


def list_of(path: str | Path) -> str:
    """Return the remedy for a path that names no file: the command that lists the files near it."""
    folder = next((one for one in Path(path).parents if one.is_dir()), Path())
    return f"another path (list: ls{'' if folder == Path() else f' {folder!s:.200}'})"


def unread(where: str, error: OSError, path: str | Path | None = None) -> InvalidArgumentError:
    """Return the error about a file that cannot be read; `where` is its name in messages."""
    path = str(error.filename or where) if path is None else path
    if error.errno == errno.EISDIR:
        remedy = f"a file in it (list: ls {path!s:.200})"
    elif error.errno == errno.EACCES:
        remedy = f"chmod a+r {path!s:.200}"
    else:
        remedy = list_of(path)
    return InvalidArgumentError(f"{where}: {why_unread(error)}", remedy=remedy)


def check_readable(path: Path) -> None:
    """Fail before the work, without opening the file, which may be a pipe. Raises InvalidArgumentError."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        path.stat()
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, "may not be read")
    except OSError as error:
        raise unread(f"{path!s:.200}", error, path) from None
    except ValueError as error:  # contains a NUL
        raise InvalidArgumentError(f"{path!s:.200}: {error}", remedy="another path") from None


def check_writable(option: str, path: Path) -> None:
    """Fail before the work rather than after it. Raises InvalidArgumentError."""
    target = Path(os.path.realpath(path))
    folder = target.parent
    try:
        special = target.exists() and not target.is_file()
        remedy = "another file"
        if str(path) == "-":
            problem, remedy = NO_DASH, f"{option} /dev/stdout"
        elif target.is_dir():
            problem, remedy = "is a folder", f"a file in it: {option} {path / 'result'}"
        elif not folder.is_dir():
            problem, remedy = f"the folder {folder} does not exist", f"mkdir -p {folder}"
        elif not os.access(target if target.exists() else folder, os.W_OK) or not (
            special or os.access(folder, os.W_OK)
        ):
            problem = "cannot be written to"
        else:
            return
    except (OSError, ValueError) as error:
        problem, remedy = getattr(error, "strerror", None) or str(error), "another file"
    raise InvalidArgumentError(f"{option} {path}: {problem}", remedy=remedy)


def check_distinct(outputs: Iterable[tuple[str, str | Path | None]], inputs: Iterable[object]) -> None:
    """Refuse to write a file twice, or one that is read.

    Args:
        outputs: Options and the files that they name; no other kind of file is looked at.
        inputs: What may be a path to a file, such as the words of a command.

    Raises:
        InvalidArgumentError: Two of them are the same file.
    """
    written: dict[str, str] = {}
    for name, path in outputs:
        if path is None or Path(path).is_char_device() or Path(path).is_fifo():
            continue
        other = written.setdefault(os.path.realpath(path), name)
        if other != name:
            raise InvalidArgumentError(f"{other} and {name} name the same file", remedy=f"another file for {name}")
    for one in inputs:
        option: str | None = None
        if isinstance(one, (str, Path)):
            with suppress(OSError, ValueError):  # No path.
                option = written.get(os.path.realpath(one)) if Path(one).is_file() else None
        if option is not None:
            raise InvalidArgumentError(
                f"{option} {one}: this file is read, and would be replaced", remedy=f"another file for {option}"
            )


def make_folder(option: str, path: Path) -> None:
    """Make a folder for output files. Raises InvalidArgumentError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"{option} {path}: {error.strerror or error}", remedy=f"another folder (list: ls {path.parent})"
        ) from None


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


NO_WORKING_DIRECTORY = "the current directory no longer exists"


def working_directory_is_gone() -> bool:
    """Return whether somebody has removed this process's working directory."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
