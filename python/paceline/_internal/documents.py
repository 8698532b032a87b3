"""Reads what users name: one reader with limits for every document, whatever is at the path.

A path may name a file of any size, a pipe, a device without an end, or a gzip file that grows a thousandfold. What is
read is limited in bytes, before and after it is unpacked, and a pipe in patience.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import stat
import time
import tomllib
import zlib
from pathlib import Path
from typing import Any

from paceline._internal.files import list_of, unread, why_unread
from paceline.errors import InvalidArgumentError

MB = 1_000_000
_CHUNK = 1 << 20
_LONGEST_WAITS = 30
"""Of a pipe whose writer makes progress, however slowly."""
_GZIP = b"\x1f\x8b"
_DAMAGED = "the gzip file is incomplete or damaged ({}); copy it again"
_PLAIN = 64 * MB
_TIMES = 100
"""The largest result of gzip: so many bytes in any case, and so many times the file's size. Timelines and traces of
profilers, which repeat names, shrink to a twentieth or so; a file that grows a thousandfold is one of nothing."""


def read_limited(
    path: Path, most: int, *, patience_s: float = 10.0, packed: bool = False, begins: bytes = b""
) -> bytes:
    """Return the content of a file, or of a pipe whose writer makes progress (a shell's `<(command)`).

    Args:
        path: The file.
        most: The bytes that it may have; of a device without an end, 1 MiB.
        patience_s: For how long nothing may come from a pipe.
        packed: Whether a gzip file is unpacked.
        begins: The bytes with one of which the content begins after blanks, if it is of this kind at all: a file of
            gigabytes that does not is refused by its first MiB.

    Raises:
        OSError: It cannot be read, or is too large; `strerror` follows the file's name. Includes TimeoutError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if stat.S_ISREG(status.st_mode) and status.st_size > most:
            raise _too_large(status.st_size, most)
        endless = not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode))
        return _read(descriptor, min(most, _CHUNK) if endless else most, patience_s, packed, begins)
    except MemoryError:
        raise OSError(errno.ENOMEM, "does not fit into the memory; give a smaller one") from None
    finally:
        os.close(descriptor)


def _read(descriptor: int, most: int, patience_s: float, packed: bool, begins: bytes) -> bytes:
    content, taken, until = bytearray(), 0, time.monotonic() + patience_s
    last = until + _LONGEST_WAITS * patience_s
    unpacking: _Gzip | None = None
    while True:
        if not select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError(errno.ETIMEDOUT, f"no data from this pipe for {patience_s:.0f} s")
        try:
            more = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            continue
        until = min(time.monotonic() + patience_s, last)
        if packed and not taken and more.startswith(_GZIP):
            unpacking = _Gzip(most)
        taken += len(more)
        if not more:
            return bytes(content) if unpacking is None else unpacking.end(content)
        content += more if unpacking is None else b""
        if unpacking is not None:
            unpacking.take(more, content)
        if len(content) > most:
            raise _too_large(None, most)
        if begins and len(content) >= _CHUNK:
            first, expected = bytes(content[:_CHUNK]).lstrip()[:1], begins
            if not first or first not in expected:
                raise OSError(errno.EINVAL, f"does not begin with {' or '.join(map(chr, expected))}")
            begins = b""


class _Gzip:
    """Unpacks a gzip file, of one member or several, within limits. Raises OSError."""

    def __init__(self, most: int) -> None:
        self._most, self._taken = most, 0
        self._member: Any = zlib.decompressobj(wbits=31)

    def take(self, packed: bytes, content: bytearray) -> None:
        self._taken += len(packed)
        while packed:
            if self._member.eof:
                # Zeros may follow the last member.
                packed = packed.lstrip(b"\0")
                if not packed:
                    return
                self._member = zlib.decompressobj(wbits=31)
            try:
                content += self._member.decompress(packed, _CHUNK)
            except zlib.error as error:
                raise OSError(errno.EINVAL, _DAMAGED.format(error)) from None
            packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if len(content) > self._most:
                raise _too_large(None, self._most, " unpacked")
            if len(content) > max(_PLAIN, _TIMES * (self._taken - len(packed))):
                raise OSError(
                    errno.EFBIG,
                    f"unpacks to over {_TIMES} times its size, which no document does; copy it again",
                )

    def end(self, content: bytearray) -> bytes:
        content += self._member.flush()
        if not self._member.eof:
            raise OSError(errno.EINVAL, _DAMAGED.format("it has no end"))
        return bytes(content)


def _too_large(size: int | None, most: int, when: str = "") -> OSError:
    has = f"more than {_shown(most)}" if size is None else _shown(size)
    return OSError(errno.EFBIG, f"has {has}{when}, and at most {_shown(most)} are read")


def _shown(size: int) -> str:
    if size < MB:
        return f"{size / 1000:.0f} kB"
    return f"{size / MB:.0f} MB" if size < 1000 * MB else f"{size / (1000 * MB):.1f} GB"


def read_packed(path: Path, most: int, files: str) -> bytes:
    """Return the bytes of a file, unpacked if gzip packed it. Raises InvalidArgumentError.

    Args:
        path: The file.
        most: The bytes that it may have.
        files: What somebody who names a folder is to take of it, such as `the .et files`.
    """
    if path.is_dir():
        raise InvalidArgumentError(f"{path}: is a folder", remedy=f"{files} in it (list: ls {path})")
    try:
        return read_limited(path, most, packed=True)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {why_unread(error)}", remedy=list_of(path)) from None


def read_small(path: Path, most: int = 1 << 20, patience_s: float = 10.0) -> str:
    """Return the text of a file or a pipe. Raises OSError, as `read_limited`, and UnicodeDecodeError."""
    return read_limited(path, most, patience_s=patience_s).decode()


def read_text(path: Path, most: int, where: str = "") -> str:
    """Return the text of a document. Raises InvalidArgumentError, which names it (by default, by its path)."""
    where = where or str(path)
    try:
        return read_limited(path, most).decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{where}: byte {error.start} is not UTF-8", remedy=f"iconv -f LATIN1 -t UTF-8 {path}"
        ) from None
    except OSError as error:
        raise unread(where, error, path) from None
    except ValueError as error:  # the path contains a NUL
        raise InvalidArgumentError(f"{where}: {error}", remedy="another path") from None


def read_json(path: Path, most: int, where: str = "") -> Any:  # noqa: ANN401
    """Return a JSON document. Raises InvalidArgumentError, which names it, also if it does not fit into the memory."""
    where = where or str(path)
    text = read_text(path, most, where)
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidArgumentError(f"{where}: is nested too deeply", remedy="a file with fewer levels") from None
    except MemoryError:
        raise InvalidArgumentError(f"{where}: does not fit into the memory", remedy="a smaller file") from None
    except ValueError as error:
        raise InvalidArgumentError(
            f"{where}: is not JSON: {str(error)[:200]}", remedy=f"JSON (see: python -m json.tool {path})"
        ) from None


_TOML_TEXT = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"""|'
    r"'''(?:[^']|'(?!''))*+'''|"
    r'"(?:[^"\\\n]|\\.)*+"|'
    r"'[^'\n]*+'|#[^\n]*+",
    re.DOTALL,
)
_DEEPEST_KEY = 32
_DOTTED = re.compile(rf"(?:\.[\w-]++){{{_DEEPEST_KEY}}}")


class ComplexityError(ValueError):
    """A small document would become a large one."""


def toml_of(text: str) -> dict[str, Any]:
    """Return a TOML document. Raises ComplexityError, other ValueErrors (TOMLDecodeError is one) and RecursionError.

    Keys of many parts are refused: tomllib stores all beginnings of a key.
    """
    bare = _TOML_TEXT.sub(lambda match: "s" + "\n" * match[0].count("\n"), text).replace(" ", "").replace("\t", "")
    if (match := _DOTTED.search(bare)) is not None:
        line = bare.count("\n", 0, match.start()) + 1
        raise ComplexityError(f"line {line}: a key has more than {_DEEPEST_KEY} parts")
    return tomllib.loads(text)
