"""Messages between a worker and the driver: length-prefixed JSON, and proofs of knowing the job's secret.

The first message of each side contains a nonce, the second an HMAC-SHA256 (RFC 2104) of both nonces under the secret.
Messages before the proof are short, and have no effect. As between ranks, later messages are not encrypted; the secret
of a world is never sent, but derived on both sides from the job's.
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
"""Bytes of a message from a peer that has not yet proved to know the secret."""
MOST_BLOB = 128 << 10
"""Bytes of a message from a worker: a rank sends the others at most 64 KiB about itself, in base 64."""


def encode(message: Message) -> bytes:
    """Return a message as bytes: its length in 4 bytes, and JSON."""
    data = json.dumps(message).encode()
    return _LENGTH.pack(len(data)) + data


class Decoder:
    """Decodes bytes into messages."""

    def __init__(self, most: int) -> None:
        """Refuse messages of more than `most` bytes."""
        self.most = most
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Return the messages that are now complete.

        Raises ValueError for one that is too long or not a JSON object.
        """
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
                raise ValueError("a message that is not a JSON object")
            yield message


def proof(secret: str, who: str, driver: str, worker: str) -> str:
    """Return the proof that `who` ("driver" or "worker") knows the secret, from the nonces of both."""
    text = f"paceline elastic {who}\0{driver}\0{worker}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()


def proves(given: object, expected: str) -> bool:
    """Compare the proofs in constant time."""
    return isinstance(given, str) and given.isascii() and hmac.compare_digest(given, expected)


def world_secret(secret: str, job: str, generation: int) -> str:
    """Return the secret of one world, with which it refuses connections and messages of other worlds."""
    text = f"paceline elastic world\0{job}\0{generation}"
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
