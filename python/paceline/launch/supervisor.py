"""The launcher: all agents of a job, from the start to its exit code."""

from __future__ import annotations

import contextlib
import errno
import selectors
import shlex
import signal
from collections.abc import Callable
from types import FrameType

import click

from paceline._core import __version__
from paceline._internal.console import say
from paceline._internal.netif import endpoint, loopback
from paceline._internal.operating_system import LIVE, OperatingSystem
from paceline.errors import TRY, InvalidArgumentError, JobError, PacelineError
from paceline.launch.frames import Frame, FrameKind
from paceline.launch.host import AgentHost, first_address, local_agent, remote_agent
from paceline.launch.hosts import is_this_machine
from paceline.launch.job import Job
from paceline.launch.outcomes import Outcome, Report, runs, table
from paceline.launch.output import Output
from paceline.launch.recordings import Records

KILL_AFTER_S = 3.0
_START_S = 60.0  # Time for all hosts to answer.
_SLACK_S = 5.0  # Added to the time for stopping, for agents that do not answer.


class Supervisor:
    """Runs one job."""

    def __init__(
        self, job: Job, output: Output, *, system: OperatingSystem = LIVE, agent: Callable[..., AgentHost] = AgentHost
    ) -> None:
        """Start without processes. `agent` makes the agent of a host."""
        self.job = job
        self.system, self._agent = system, agent
        self.output = output
        self.hosts: list[AgentHost] = []
        self.selector = system.selector()
        self.signal: int | None = None
        self.problem: click.ClickException | PacelineError | None = None
        self.broken: OSError | None = None
        self.failed = False
        self.follower: Outcome | None = None
        self.cause: str | None = None
        """Why the job failed, which `conclude` says last."""
        self.remedy: str | None = None
        """Words to type, or a place to look at."""
        self.blamed: Outcome | None = None
        """The rank that failed first."""
        self.outcomes: list[Outcome] = []
        self.records = Records()
        self.joins: dict[int, int] = {}
        """By rank: how often it has joined the job."""
        self.joining: set[int] = set()
        """Ranks that wait for the others to join."""
        self.stopping = False
        self.give_up_at = self.system.now() + _START_S
        self.limit_at = self.system.now() + job.limit_s

    def run(self) -> int:
        """Run until all ranks have ended; return 0, 1 if one failed, or 128 + n after signal n.

        Raises InvalidArgumentError, ClickException.
        """
        try:
            with self.system.signals(self._signaled) as caught:
                if caught is not None:
                    self.selector.register(caught, selectors.EVENT_READ, lambda: caught.recv(4096))
                self._start()
                while not all(host.over for host in self.hosts):
                    self._watch_input()
                    for key, _ in self.selector.select(self._patience()):
                        key.data()
                    self._turn()
                    if self.system.now() >= self.give_up_at:
                        self._give_up()
                    if self.system.now() >= self.limit_at:
                        self._too_long()
        finally:
            for host in self.hosts:
                if not host.over:
                    host.kill()
                host.close()
            self.output.close()
        return self._result()

    def _turn(self) -> None:
        """Act after each round of events."""

    def _result(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        if self.problem is not None:
            raise self.problem
        if self.broken is not None:
            if self.broken.errno == errno.EPIPE:  # The reader closed the pipe.
                raise self.broken
            raise click.ClickException(f"the output of the ranks cannot be written: {self.broken.strerror}")
        return 1 if self.failed else 0

    def conclude(self) -> None:
        """Print how the ranks ended, if several failed, and in the last line why the job failed."""
        if self.signal is None and self.problem is None and self.broken is None:
            self._blame(self.follower)  # No other rank is at fault.
            if sum(outcome.failed for outcome in self.outcomes) > 1:
                say(table((outcome for outcome in self.outcomes if outcome.code), self.blamed), err=True)
        if self.signal is not None:
            name = signal.Signals(self.signal).name
            with contextlib.suppress(OSError):  # After SIGHUP, there may be no terminal.
                click.echo(
                    f"paceline: interrupted by {name}; the ranks are stopped, and what they wrote is kept", err=True
                )
        elif self.cause is not None:
            remedy = [] if self.remedy is None else [f"{TRY}{self.remedy}"]
            click.echo("\n".join([f"paceline: error: {self.cause}", *remedy]), err=True)

    # Signals

    def _signaled(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal in the handler itself, because the loop may be waiting for a slow terminal.

        The second one kills.
        """
        self.output.hurry = True
        self._stop(0, KILL_AFTER_S if self.signal is None else 0)
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    def _stop(self, grace_s: float, kill_s: float = KILL_AFTER_S) -> None:
        self.stopping = True
        for host in self.hosts:
            host.tell({"stop": {"grace_s": grace_s, "kill_s": kill_s}})
        self.give_up_at = min(self.give_up_at, self.system.now() + grace_s + kill_s + _SLACK_S)

    # Starting

    def _start(self) -> None:
        for node, place in enumerate(self.job.places):
            own = self.job.agents.get(place.host.name)
            remote = own is None and not is_this_machine(place.host.name)
            command = remote_agent(self.job.rsh, place.host.name) if remote else own or local_agent()
            host = self._agent(place, command, remote=remote)
            self.hosts.append(host)
            self.selector.register(host.stdout, selectors.EVENT_READ, lambda host=host: self._listen(host))
            self.selector.register(host.stderr, selectors.EVENT_READ, lambda host=host: self._complain(host))
            host.tell({"job": self.job.for_agent(node, remote=remote, mode=self.output.mode)})
        if self.signal is not None:  # It arrived while agents were starting, so they missed it.
            self._stop(0)

    def _go(self) -> None:
        """Tell all hosts, now that they are ready, where rank 0 is."""
        self.give_up_at = float("inf")
        first = self.hosts[0].ready
        assert first is not None
        machines = {host.ready["machine"] for host in self.hosts if host.ready}
        if self.job.interface is not None:
            address, interface = first["interface"], None
        elif len(machines) == 1:
            address = interface = loopback()
        else:
            address, interface = first_address(self.hosts), None
        if address is None:
            self.problem = InvalidArgumentError(
                f"no address of {self.hosts[0].name} is known that other hosts can reach",
                remedy="--interface 10.0.0.0/24 (a network) or --interface eth0",
            )
            self._stop(0)
            return
        go = {"address": address, "master_port": first["master_port"], "rendezvous": endpoint(address, first["port"])}
        for host in self.hosts:
            assert host.ready is not None
            host.tell({"go": {**go, "interface": host.ready["interface"] or interface}})
            ranks, servers = host.place.ranks, host.place.servers
            what = [f"rank {runs(ranks)}"][: len(ranks)] + [
                self.job.names[self.job.size + number] for number in servers
            ]
            self._note(f"host {host.name} runs {' and '.join(what)}")
        self._note(f"rendezvous {go['rendezvous']}, MASTER_PORT {go['master_port']}")

    def _note(self, text: str) -> None:
        if self.job.verbose:
            click.echo(f"paceline: note: {text}", err=True)

    # Messages of agents

    def _watch_input(self) -> None:
        """Wait for an agent to accept more while messages are queued for it."""
        watched = self.selector.get_map()
        for host in self.hosts:
            descriptor = host.inbox.descriptor
            if len(host.inbox) and descriptor not in watched:
                self.selector.register(descriptor, selectors.EVENT_WRITE, host.inbox.flush)
            elif not len(host.inbox) and descriptor in watched:
                self.selector.unregister(descriptor)

    def _listen(self, host: AgentHost) -> None:
        try:
            frames = host.frames()
            if frames is not None:
                for frame in frames:
                    self._hear(host, frame)
                return
        except ValueError as error:
            host.kill()
            self._lost(host, f"host {host.name}: {error}")
        self.selector.unregister(host.stdout)
        host.over = True
        if not host.done and self.problem is None and self.signal is None and self.broken is None:
            self._lost(host, host.why_lost())
        elif not host.done:
            host.kill()

    def _complain(self, host: AgentHost) -> None:
        words = host.complaints()
        if words is None:
            self.selector.unregister(host.stderr)
        elif words and host.ready is not None:
            for line in words.decode(errors="replace").splitlines():
                click.echo(f"[host {host.name}] {line}", err=True)

    def _hear(self, host: AgentHost, frame: Frame) -> None:
        if frame.kind in (FrameKind.STDOUT, FrameKind.STDERR):
            if self.broken is None:
                try:
                    self.output.put(frame.rank, frame.kind, frame.payload)
                except OSError as error:
                    self.broken = error
                    self._stop(0)
        elif frame.kind is FrameKind.STARTED:
            host.pids[frame.rank] = frame.json()["pid"]
        elif frame.kind is FrameKind.EXITED:
            host.ended.add(frame.rank)
            self._ended(host, frame)
        elif frame.kind is FrameKind.JOINING:
            self._join(frame.rank, frame.json()["join"])
        elif frame.kind is FrameKind.RECORD:
            self.records.add(frame.rank, frame.payload)
        elif frame.kind is FrameKind.DONE:
            host.done = True
        elif frame.kind is FrameKind.READY:
            self._ready(host, frame)
        elif self.problem is None:
            fields = frame.json()
            message = fields["message"] if len(self.hosts) == 1 else f"host {host.name}: {fields['message']}"
            kind = InvalidArgumentError if fields["usage"] else JobError
            self.problem = kind(message, remedy=fields.get("remedy"))
            self._stop(0)

    def _ready(self, host: AgentHost, frame: Frame) -> None:
        host.ready = frame.json()
        version = host.ready["version"]
        if version != __version__:
            remedy = f"Paceline {__version__} on host {host.name}, from the same checkout or wheel (pip install PATH)"
            self._lost(host, f"host {host.name} has paceline {version}, this machine {__version__}", remedy)
        elif all(each.ready for each in self.hosts):
            self._go()

    def _ended(self, host: AgentHost, frame: Frame) -> None:
        outcome = self._outcome(host, frame)
        self.outcomes.append(outcome)
        if outcome.failed and self.signal is None and self.broken is None and self.problem is None:
            if not self.failed:
                self.failed = True
                self._stop(self.job.grace_s)
                self.follower = outcome
            if not outcome.report.follows:
                self._blame(outcome)
        self._check_joins()
        workers = sum(outcome.rank < self.job.size for outcome in self.outcomes)
        if len(self.job.names) > self.job.size == workers and not self.stopping:
            self._stop(0)  # no rank is left to serve

    def _join(self, rank: int, how: str) -> None:
        if how == "begun":
            self.joining.add(rank)
        else:
            self.joining.discard(rank)
            self.joins[rank] = self.joins.get(rank, 0) + (how == "done")
        self._check_joins()

    def _check_joins(self) -> None:
        """End the job if a rank waits to join it with one that has ended: no other rank can know that."""
        ended = {outcome.rank: outcome for outcome in self.outcomes if outcome.rank < self.job.size}
        waiting = {rank: self.joins.get(rank, 0) + 1 for rank in self.joining if rank not in ended}
        if not waiting or self.job.elastic is not None or self.stopping or self.failed:
            return
        gone = [rank for rank in sorted(ended) if self.joins.get(rank, 0) < max(waiting.values())]
        if gone:
            waits = self.job.names[min(waiting)]
            self.problem = JobError(
                f"{ended[gone[0]].sentence()} before it had joined the job, for which {waits} waits",
                remedy="as many calls of join() or init_process_group() on every rank",
            )
            self._stop(0)

    def _outcome(self, host: AgentHost, frame: Frame) -> Outcome:
        fields = frame.json()
        name = host.name if host.remote or len(self.hosts) > 1 else None
        stopped = fields["stopped"] and self.stopping  # If anybody else stopped the agent, that is a failure.
        called = self.job.names[frame.rank]
        report = Report(**fields["report"])
        return Outcome(frame.rank, name, host.pids[frame.rank], fields["code"], stopped, called, report)

    def _blame(self, outcome: Outcome | None) -> None:
        """Blame the rank that failed first; one that failed because of another only if there is no other."""
        if outcome is not None and self.follower is not None:
            self.follower = None
            self.blamed, self.cause, self.remedy = outcome, outcome.cause(), outcome.remedy()

    def _by_hand(self, host: AgentHost) -> str:
        """Return the command that shows whether a host can be used."""
        if host.remote:
            return shlex.join([*self.job.rsh, host.name, "true"]) + " (must end without a question)"
        return "the output above, or dmesg (out of memory?)"

    # Unexpected ends

    def _lost(self, host: AgentHost, message: str, remedy: str | None = None) -> None:
        """Handle a lost host.

        If its ranks had started, the others get their grace period; otherwise the job has not begun.
        """
        host.kill()
        if host.ready is None or len(host.pids) < host.place.processes:
            self.problem = self.problem or JobError(message, remedy=remedy or self._by_hand(host))
            self._stop(0)
        else:
            if not self.failed:
                self.cause, self.remedy = f"lost {message}", remedy or self._by_hand(host)
            self.failed = True
            self.follower = None
            self._stop(self.job.grace_s)

    def _patience(self) -> float | None:
        until = min(self.give_up_at, self.limit_at)
        return None if until == float("inf") else max(0.0, until - self.system.now())

    def _too_long(self) -> None:
        """End the job at its time limit, with an error."""
        self.limit_at = float("inf")
        if not self.stopping:
            self.problem = JobError(
                f"the job did not finish within {self.job.limit_s:g} s and was stopped",
                remedy=f"a longer --limit, such as {2 * self.job.limit_s:g}",
            )
            self._stop(0)

    def _give_up(self) -> None:
        """Give up on agents that do not answer, at the start or after stop."""
        silent = [host for host in self.hosts if host.ready is None]
        if silent and self.problem is None and self.signal is None:
            names = ", ".join(host.name for host in silent)
            self.problem = JobError(
                f"no answer from {names} within {_START_S:.0f} s",
                remedy=self._by_hand(silent[0]),
            )
        for host in self.hosts:
            if not host.over:
                host.kill()
                host.over = True
                with contextlib.suppress(KeyError):
                    self.selector.unregister(host.stdout)
        self.give_up_at = float("inf")
