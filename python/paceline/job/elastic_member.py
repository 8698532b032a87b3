"""A worker's side of an elastic job: asking the driver for a place in the next world."""

from __future__ import annotations

import base64
import os
import secrets
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

from paceline.errors import InvalidArgumentError, JobError, Source
from paceline.job.elastic_protocol import MOST_BLOB, Decoder, Message, encode, proof, proves, world_secret
from paceline.job.rank_environment import RankEnvironment
from paceline.launch.elastic.roster import Place
from paceline.settings.table import SETTINGS

ADDRESS, WORKER = "PACELINE_RUN_ELASTIC", "PACELINE_RUN_WORKER"
_SILENT_S = 60.0
"""A driver that has been silent for this long is gone: it sends a message to a waiting worker every 5 seconds."""
_CONNECT_S = 30.0


class WorldEndedError(JobError):
    """A rank of the world died before all had connected; there will be another world."""


class Membership:
    """This process from the driver's point of view. Only one thread may use it at a time."""

    def __init__(self, address: str, worker: int, secret: str, job: str) -> None:
        """Connect to the driver and authenticate both ways.

        Raises JobError if there is no answer, or not the driver's.
        """
        self.address, self.worker = address, worker
        self._secret, self._job = secret, job
        self.commits: Sequence[int] = ()
        """Numbers of the commits that this process can return to, ascending."""
        self.why = ""
        """Why its last world has ended."""
        self.place: Place | None = None
        """Its place in the last world."""
        self._updated = False
        self._decoder = Decoder(MOST_BLOB)
        self._messages: list[Message] = []
        host, _, port = address.rpartition(":")
        try:
            self._connection = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)
        except OSError as error:
            raise JobError(f"the launcher does not answer at {address}: {error}") from None
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._connection, selectors.EVENT_READ)
        os.register_at_fork(after_in_child=self._connection.close)
        try:
            self._prove()
        except BaseException:
            self._selector.close()
            self._connection.close()
            raise

    def _prove(self) -> None:
        theirs, mine = str(self._next("driver")["driver"]), secrets.token_hex(16)
        own = proof(self._secret, f"worker {self.worker}", theirs, mine)
        self._send({"worker": self.worker, "nonce": mine, "proof": own})
        answer = self._next("proof")["proof"]
        if not proves(answer, proof(self._secret, "driver", theirs, mine)):
            raise JobError(f"the process at {self.address} does not know the job's secret")

    def ask(self) -> Place:
        """Wait for a place in the next world.

        Raises JobError if the launcher is gone, SystemExit if this process should leave.
        """
        self._updated = False
        self._send({"ask": list(self.commits), "why": self.why})
        self.why = ""
        message = self._next("place", "retire")
        if "retire" in message:
            raise SystemExit(0)
        self.place = Place(**message["place"])
        self._decoder.most = (1 + self.place.size) * MOST_BLOB
        return self.place

    def exchange(self, blob: bytes) -> list[bytes]:
        """Return the values of all ranks of this world, in rank order. Raises WorldEndedError if one is gone."""
        assert self.place is not None
        text = base64.b64encode(blob).decode()
        self._send({"generation": self.place.generation, "blob": text})
        message = self._next("blobs", "void")
        if "void" in message:
            raise WorldEndedError("a rank of the new world has died")
        return [base64.b64decode(text) for text in message["blobs"]]

    def secret(self) -> str:
        """Return the secret of this world."""
        assert self.place is not None
        return world_secret(self._secret, self._job, self.place.generation)

    def rank_environment(self) -> RankEnvironment:
        """Return this process's place as other launchers describe it, and set their variables for scripts."""
        place = self.place
        assert place is not None
        os.environ.update(
            RANK=str(place.rank),
            WORLD_SIZE=str(place.size),
            LOCAL_RANK=str(place.local_rank),
            LOCAL_WORLD_SIZE=str(place.local_size),
            GROUP_RANK=str(place.node),
            GROUP_WORLD_SIZE=str(place.nodes),
        )
        return RankEnvironment(
            rank=place.rank,
            size=place.size,
            local_rank=place.local_rank,
            local_size=place.local_size,
            launcher="paceline",
            rendezvous=None,
            master_address=None,
            master_port=None,
        )

    def updated(self) -> bool:
        """Return, without waiting, whether processes are waiting to join, or some should leave."""
        while self._selector.select(0):
            self._receive()
        return self._updated

    def synced(self) -> None:
        """Report that this process has the state that all ranks have."""
        self._send({"synced": True})

    def finished(self) -> None:
        """Report that all ranks have reached the end of their training."""
        self._send({"finished": True})

    def _send(self, message: Message) -> None:
        try:
            self._connection.settimeout(_SILENT_S)
            self._connection.sendall(encode(message))
        except OSError as error:
            raise self._gone(error) from None

    def _next(self, *kinds: str) -> Message:
        """Return the next message of one of these kinds."""
        heard = time.monotonic()
        while True:
            for at, message in enumerate(self._messages):
                if any(kind in message for kind in kinds):
                    return self._messages.pop(at)
            if self._selector.select(max(0.0, heard + _SILENT_S - time.monotonic())):
                self._receive()
                heard = time.monotonic()
            else:
                raise JobError(f"the launcher at {self.address} has been silent for {_SILENT_S:.0f} s")

    def _receive(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError("it closed the connection")
            for message in self._decoder.feed(data):
                if "updated" in message:
                    self._updated = True
                elif "wait" not in message:
                    self._messages.append(message)
        except (OSError, ValueError) as error:
            raise self._gone(error) from None

    def _gone(self, error: Exception) -> JobError:
        return JobError(f"the launcher at {self.address} is gone: {error}")


_membership: Membership | None = None


def membership(environ: Any = os.environ) -> Membership | None:  # noqa: ANN401 - a mapping of strings
    """Return this process's membership, connected at the first call; None unless the job is elastic.

    Raises JobError if the launcher does not answer, InvalidArgumentError for contradictory variables.
    """
    global _membership  # noqa: PLW0603 - a process is one worker
    if _membership is None and environ.get(ADDRESS):
        address, worker, secret = environ[ADDRESS], environ.get(WORKER, ""), environ.get("PACELINE_SECRET", "")
        SETTINGS["rendezvous"].check(address, Source("variable", ADDRESS))
        if not worker.isdecimal() or not secret:
            raise InvalidArgumentError(
                f"{ADDRESS} is set, but not {WORKER} and PACELINE_SECRET; the launcher sets all three"
            )
        _membership = Membership(address, int(worker), secret, environ.get("PACELINE_RUN_ID", ""))
    return _membership
