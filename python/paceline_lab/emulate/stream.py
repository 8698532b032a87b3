"""One host's part of `paceline emulate check`: `python -I -S stream.py ADDRESS`, run by its path.

Standard input brings lines of JSON, each answered by one on standard output:

| request | effect |
| --- | --- |
| {"connect": [[address, port], …]} | connections to send on |
| {"accept": n} | connections to receive on |
| {"at": s, "send": bytes, "receive": bytes} | transfer this many bytes on each, starting at this monotonic time |
"""

import json
import socket
import struct
import sys
import threading
import time

PATIENCE_S = 60  # without a byte
_PIECE = 1 << 20


class Host:
    """Connections of one host."""

    def __init__(self, address: str) -> None:
        """Listen."""
        self.listener = socket.create_server((address, 0), backlog=1024)
        self.outgoing: list[socket.socket] = []
        self.incoming: list[socket.socket] = []
        self.problem: str | None = None

    def connect(self, places: list[list[object]]) -> None:
        """Open connections, in place of the earlier ones."""
        for old in self.outgoing:
            old.close()
        self.outgoing = [socket.create_connection((str(place[0]), place[1]), PATIENCE_S) for place in places]  # type: ignore[arg-type]
        for connection in self.outgoing:
            _limit(connection, socket.SO_SNDTIMEO)

    def accept(self, number: int) -> None:
        """Accept connections, in place of the earlier ones."""
        for old in self.incoming:
            old.close()
        self.listener.settimeout(PATIENCE_S)
        self.incoming = [self.listener.accept()[0] for _ in range(number)]
        for connection in self.incoming:
            _limit(connection, socket.SO_RCVTIMEO)

    def move(self, at: float, send: int, receive: int) -> float:
        """Use all connections at once, each in a thread; return when the last byte has arrived, or has been sent."""
        work = [(_send, connection, send) for connection in self.outgoing]
        work += [(_receive, connection, receive) for connection in self.incoming]
        threads = [threading.Thread(target=self._one, args=(at, *each), daemon=True) for each in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic()

    def _one(self, at: float, move: object, connection: socket.socket, size: int) -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        try:
            move(connection, size)  # type: ignore[operator]
        except OSError as error:
            self.problem = f"{connection.getsockname()[0]}: {error}"


def _send(connection: socket.socket, size: int) -> None:
    piece = memoryview(bytes(_PIECE))
    while size > 0:
        size -= connection.send(piece[:size])


def _receive(connection: socket.socket, size: int) -> None:
    piece = memoryview(bytearray(_PIECE))
    while size > 0:
        came = connection.recv_into(piece[:size], 0, socket.MSG_WAITALL)
        if not came:
            raise ConnectionResetError("the sender has gone")
        size -= came


def _limit(connection: socket.socket, option: int) -> None:
    """Return a blocking socket with a time limit. One call moves a whole piece, unlike with a Python timeout."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", PATIENCE_S, 0))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def main(address: str) -> None:
    """Carry out requests until standard input ends."""
    host = Host(address)
    _say({"port": host.listener.getsockname()[1]})
    for line in sys.stdin:
        order = json.loads(line)
        end = 0.0
        try:
            if "connect" in order:
                host.connect(order["connect"])
            elif "accept" in order:
                host.accept(order["accept"])
            else:
                end = host.move(order["at"], order["send"], order["receive"])
        except OSError as error:
            host.problem = f"{address}: {error}"
        _say({"end": end, "cpu_s": time.process_time(), "problem": host.problem})


def _say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
