"""A worker's side of an elastic job: asking the driver for a place in the next world."""

from __future__ import annotations

import base64
import contextlib
import os
import selectors
import socket
from collections.abc import Sequence
from typing import Any

from paceline._internal.operating_system import LIVE, OperatingSystem
from paceline.errors import InvalidArgumentError, JobError, Source
from paceline.job.elastic_protocol import MOST_BLOB, Decoder, Message, encode, proof, proves, world_secret
from paceline.job.rank_environment import RankEnvironment
from paceline.launch.elastic.roster import Place
from paceline.settings.table import SETTINGS

ADDRESS, WORKER = "PACELINE_RUN_ELASTIC", "PACELINE_RUN_WORKER"
_SILENT_S = 60.0
"""A driver that has been silent for this long is gone: it sends a message to a waiting worker every 5 seconds."""
_CONNECT_S = 30.0
_ATTEMPTS = 3
_AGAIN_S = 1.0
"""Between two attempts to reconnect."""


class WorldEndedError(JobError):
    """A rank left the world before all had met; there will be another world."""


class LauncherGoneError(JobError):
    """The launcher cannot be reached any more, so this process has no job."""


class _CutError(LauncherGoneError):
    """The connection was cut."""


class _StrangerError(LauncherGoneError):
    """The one that answers is not the launcher."""


class TrainingOverError(Exception):
    """The other ranks of this process's world have finished, so that no world follows."""


class Membership:
    """This process as the driver knows it. One thread uses it at a time.

    A connection that is cut, or on which the driver is silent, is made again; what it was waiting for is asked again.
    """

    def __init__(self, address: str, worker: int, secret: str, job: str, *, system: OperatingSystem = LIVE) -> None:
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
        self._system = system
        self._updated = False
        self._offered: Place | None = None
        """A place that `again` was given."""
        self._decoder = Decoder(MOST_BLOB)
        self._messages: list[Message] = []
        self._connection: socket.socket | None = None
        self._answered = False
        """Whether the driver has greeted this process over the latest connection, and was given the proof."""
        self._forked = False
        self._reconnect()
        os.register_at_fork(after_in_child=self._in_child)

    def _connect(self, limit_s: float) -> None:
        """Connect and authenticate both ways. Raises LauncherGoneError."""
        host, _, port = self.address.rpartition(":")
        self._answered = False
        try:
            self._connection = self._system.connect(host.strip("[]"), int(port), limit_s)
        except OSError as error:
            raise LauncherGoneError(f"the launcher does not answer at {self.address}: {error}") from None
        try:
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector = self._system.selector()
            self._selector.register(self._connection, selectors.EVENT_READ)
            self._decoder, self._messages = Decoder(MOST_BLOB), []
            self._prove()
        except BaseException:
            self._close()
            raise

    def _reconnect(self) -> None:
        """Connect, for the first time or again. Raises LauncherGoneError if that does not succeed in time."""
        if self._forked:
            raise LauncherGoneError("this process was forked from a worker, but is not a worker itself")
        until, refused = self._system.now() + _CONNECT_S, 0
        while True:
            try:
                self._connect(max(_AGAIN_S, until - self._system.now()))
            except _StrangerError:
                raise
            except LauncherGoneError as error:
                # Cut after it has shown what it knows: most likely it knows another secret.
                refused += self._answered
                if refused == _ATTEMPTS:
                    raise
                if self._system.now() + _AGAIN_S < until:
                    self._system.sleep(_AGAIN_S)
                elif isinstance(error, _CutError):  # it was accepted by the backlog of a launcher that has just ended
                    raise LauncherGoneError(f"the launcher does not answer at {self.address}: {error}") from None
                else:
                    raise
            else:
                return

    def _close(self) -> None:
        if self._connection is not None:
            self._selector.close()
            self._connection.close()
            self._connection = None

    def _in_child(self) -> None:
        self._close()
        self._forked = True

    def _prove(self) -> None:
        theirs, mine = str(self._next("driver")["driver"]), self._system.token()
        self._answered = True
        own = proof(self._secret, f"worker {self.worker}", theirs, mine)
        self._send({"worker": self.worker, "nonce": mine, "proof": own})
        answer = self._next("proof")["proof"]
        if not proves(answer, proof(self._secret, "driver", theirs, mine)):
            raise _StrangerError(f"whatever answers at {self.address} does not know the job's secret")

    def ask(self) -> Place:
        """Wait for a place in the next world.

        Raises LauncherGoneError, TrainingOverError, and SystemExit if this process is to leave.
        """
        place, self._offered = self._offered, None
        return place if place is not None else self._ask(done=False)

    def again(self) -> bool:
        """Return whether another world follows, for which `ask` then returns the place; `why` and `commits` are set.

        For a rank whose training function has returned, but not all others have heard of it. Raises what `ask` raises,
        but TrainingOverError.
        """
        try:
            self._offered = self._ask(done=True)
        except TrainingOverError:
            return False
        return True

    def _ask(self, *, done: bool) -> Place:
        self._updated = False
        request = {"ask": list(self.commits), "why": self.why, "done": done}
        self.why = ""
        message = self._answer(request, "place", "retire", "release")
        if "retire" in message:
            raise SystemExit(0)
        if "release" in message:
            raise TrainingOverError("training has ended")
        self.place = Place(**message["place"])
        self._decoder.most = (1 + self.place.size) * MOST_BLOB
        return self.place

    def exchange(self, blob: bytes) -> list[bytes]:
        """Return the values of all ranks of this world, in rank order. Raises WorldEndedError if one is gone."""
        assert self.place is not None
        text = base64.b64encode(blob).decode()
        self._send({"generation": self.place.generation, "blob": text})
        message: Message = {}
        while self.place.generation not in (message.get("of"), message.get("void")):  # older messages are late
            message = self._next("blobs", "void")
        if "void" in message:
            raise WorldEndedError("a rank left the new world before all had met")
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
        """Return, without waiting, whether processes wait to join, or some are to leave.

        True also if the connection was cut, so that this is unknown: requesting a place reconnects.
        """
        with contextlib.suppress(LauncherGoneError):
            while self._connection is not None and self._selector.select(0):
                self._receive()
        return self._updated or self._connection is None

    def synced(self) -> None:
        """Report that this process has the state that all ranks have, before any of them changes it."""
        self._answer({"synced": True}, "heard")

    def finished(self) -> None:
        """Report that all ranks have reached the end of their training. Exit code 0 implies it, too."""
        with contextlib.suppress(LauncherGoneError):
            self._answer({"finished": True}, "heard")

    def _answer(self, message: Message, *kinds: str) -> Message:
        """Send a message and return its answer; if the connection fails meanwhile, once more over a new one."""
        for _ in range(_ATTEMPTS):
            if self._connection is None:
                self._reconnect()
            try:
                self._send(message)
                return self._next(*kinds)
            except LauncherGoneError as error:
                gone = error
        raise gone

    def _send(self, message: Message) -> None:
        try:
            if self._connection is None:
                raise ConnectionResetError("the connection was cut")
            self._connection.settimeout(_SILENT_S)
            self._connection.sendall(encode(message))
        except OSError as error:
            raise self._gone(error) from None

    def _next(self, *kinds: str) -> Message:
        """Return the next message of one of these kinds."""
        heard = self._system.now()
        while True:
            for at, message in enumerate(self._messages):
                if any(kind in message for kind in kinds):
                    return self._messages.pop(at)
            if self._connection is None:
                raise self._gone(ConnectionResetError("the connection was cut"))
            if self._selector.select(max(0.0, heard + _SILENT_S - self._system.now())):
                self._receive()
                heard = self._system.now()
            else:
                self._close()
                raise LauncherGoneError(f"the launcher at {self.address} has been silent for {_SILENT_S:.0f} s")

    def _receive(self) -> None:
        assert self._connection is not None
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

    def _gone(self, error: Exception) -> LauncherGoneError:
        self._close()
        return _CutError(f"the launcher at {self.address} is gone: {error}")


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
                f"{ADDRESS} is set, and {WORKER} and PACELINE_SECRET are not",
                remedy=f"paceline run --elastic (sets all three), or unset {ADDRESS}",
            )
        _membership = Membership(address, int(worker), secret, environ.get("PACELINE_RUN_ID", ""))
    return _membership
