"""Messages between a worker and the driver: JSON after its length in 4 bytes; and how both prove the job's secret.

The first message of each side holds random bytes, the second a code (HMAC-SHA256, RFC 2104) of both sides' bytes by
the secret. What comes before the proof is short, and nothing is done for it. As between ranks, what comes after is not
encrypted; the secret of a world is never sent, but made by both sides from the job's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")
MOST_UNPROVED = 1 << 10
"""Bytes of a message from somebody who has not proved the secret."""
MOST_BLOB = 128 << 10
"""Bytes of a message of a worker: what a rank tells the others of itself is at most 64 KiB, in base 64."""


def encode(message: Message) -> bytes:
    """As bytes."""
    data = json.dumps(message).encode()
    return _LENGTH.pack(len(data)) + data


class Decoder:
    """Bytes in, messages out."""

    def __init__(self, most: int) -> None:
        """`most` bytes may a message have."""
        self.most = most
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """What is complete now. Raises ValueError for what is too long, or is no JSON object."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > self.most:
                raise ValueError(f"a message of {length} bytes; at most {self.most}")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            message = json.loads(self._data[_LENGTH.size : end])
            del self._data[:end]
            if not isinstance(message, dict):
                raise ValueError("a message that is no JSON object")
            yield message


def proof(secret: str, who: str, driver: str, worker: str) -> str:
    """That `who` ("driver" or "worker") knows the secret; `driver` and `worker` are the random texts of both."""
    text = f"paceline elastic {who}\0{driver}\0{worker}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def proves(found: object, expected: str) -> bool:
    """Whether it is that proof; takes as long for any."""
    return isinstance(found, str) and found.isascii() and hmac.compare_digest(found, expected)


def world_secret(secret: str, job: str, generation: int) -> str:
    """The secret of one world: connections and messages of another are strangers' to it."""
    text = f"paceline elastic world\0{job}\0{generation}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
