"""Runs a command on a host of an emulated cluster: `python -I -S enter.py --net PATH --uts PATH … -- COMMAND…`.

The file is run by its path, without paceline and site-packages, because every process on a host starts with it. In a
user namespace the command keeps its user, and has its owner's privileges over the host's network: with CAP_NET_ADMIN,
multicast receivers get large buffers (SO_RCVBUFFORCE).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

NEW_UTS = 0x04000000  # linux/sched.h
NEW_USER = 0x10000000
NEW_NET = 0x40000000

_PR_CAP_AMBIENT, _RAISE = 47, 2  # linux/prctl.h
_CAPABILITIES_3 = 0x20080522  # linux/capability.h
_NET_ADMIN, _NET_RAW = 12, 13
_CANNOT_RUN, _NOT_FOUND, _USAGE = 126, 127, 2  # as shells exit

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    """Raise OSError if a call of libc failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unshare(flags: int) -> None:
    """Move this thread into new namespaces. Raises OSError."""
    check(libc.unshare(ctypes.c_int(flags)))


def setns(descriptor: int) -> None:
    """Move this thread into the namespace of the descriptor. Raises OSError."""
    check(libc.setns(ctypes.c_int(descriptor), ctypes.c_int(0)))


def keep_capabilities() -> None:
    """Let the command keep the capabilities that concern the network. Raises OSError."""
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    words = ctypes.create_string_buffer(24)
    check(libc.capget(header, words))
    effective, permitted, inheritable, *rest = struct.unpack("=6I", words.raw)
    inheritable |= 1 << _NET_ADMIN | 1 << _NET_RAW
    check(libc.capset(header, struct.pack("=6I", effective, permitted, inheritable, *rest)))
    for capability in (_NET_ADMIN, _NET_RAW):
        check(libc.prctl(_PR_CAP_AMBIENT, _RAISE, capability, 0, 0))


def main(words: list[str]) -> int:
    """Enter the host and exec the command; return only if that fails."""
    options: list[tuple[str, str]] = []
    while words and words[0] != "--":
        options.append((words.pop(0), words.pop(0)))
    command = words[1:]
    if not command:
        print("enter.py can only be run by paceline emulate", file=sys.stderr)
        return _USAGE
    try:
        for option, value in options:
            _obey(option, value)
        if not _still_there(dict(options)["--net"]):
            raise OSError(errno.ESTALE, "it is being taken down")
    except OSError as error:
        print(f"paceline: error: the host cannot be entered: {error.strerror}; is its cluster up?", file=sys.stderr)
        return _CANNOT_RUN
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"paceline: error: {command[0]}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN


def _still_there(network: str) -> bool:
    """Return whether the holder still admits processes, that is, has not yet looked for processes to stop."""
    return os.stat(network).st_ino == os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 - pathlib is slow to import


def _obey(option: str, value: str) -> None:
    if option == "--set":
        name, _, text = value.partition("=")
        os.environ[name] = text
    elif option == "--realtime":
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(value)))
    else:  # --user, which comes first, --net, --uts
        descriptor = os.open(value, os.O_RDONLY | os.O_CLOEXEC)
        setns(descriptor)
        if option == "--user":
            keep_capabilities()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
