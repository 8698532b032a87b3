"""The launcher of an elastic job: starts processes that the driver requests, and reports how they ended."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Iterable

import click

from paceline._internal.netif import default_address, loopback, towards
from paceline._internal.operating_system import LIVE, OperatingSystem
from paceline.errors import InvalidArgumentError
from paceline.launch.checks import OTHER_PORT
from paceline.launch.elastic.roster import Action, End, Exit, Kill, Say, Slot, Start
from paceline.launch.elastic.service import Service
from paceline.launch.frames import Frame
from paceline.launch.host import AgentHost
from paceline.launch.hosts import address_part
from paceline.launch.job import Elastic, Job
from paceline.launch.output import Output
from paceline.launch.supervisor import KILL_AFTER_S, Supervisor

_MOST_NOTES = 5
"""Most notes about unusable hosts per run of a discovery script."""


class ElasticSupervisor(Supervisor):
    """Runs an elastic job. Agents know slots, numbered over all hosts, but no ranks."""

    def __init__(
        self,
        job: Job,
        elastic: Elastic,
        output: Output,
        *,
        system: OperatingSystem = LIVE,
        agent: Callable[..., AgentHost] = AgentHost,
    ) -> None:
        """Start without processes."""
        super().__init__(job, output, system=system, agent=agent)
        self.elastic = elastic
        self.service: Service | None = None
        self._slots: dict[int, Slot] = {}
        """By number."""
        self._hosts: dict[Slot, AgentHost] = {}
        self._in_slot: dict[int, int] = {}
        """The worker in each slot, by number."""
        self._numbers: dict[int, int] = {}
        """The slot number of each worker."""
        self._offered: list[Slot] = []
        self._lost_hosts: set[str] = set()

    def run(self) -> int:
        """Run until the job is over, like `Supervisor.run`."""
        try:
            return super().run()
        finally:
            if self.service is not None:
                self.service.close()
            if self.elastic.discovery is not None:
                self.elastic.discovery.close()

    def _go(self) -> None:
        super()._go()
        if self.stopping:
            return
        for host in self.hosts:
            for local, number in enumerate(host.place.ranks):
                slot = Slot(host.name, local)
                self._slots[number], self._hosts[slot] = slot, host
        try:
            self.service = Service(
                self.elastic.limits,
                secret=self.job.secret,
                job=self.job.number,
                address=self._address(),
                port=self.elastic.port,
                system=self.system,
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            if self.elastic.port:
                self.problem = InvalidArgumentError(f"--port {self.elastic.port}: {why}", remedy=OTHER_PORT)
            else:
                self.problem = click.ClickException(f"cannot listen for workers: {why}")
            self._stop(0)
            return
        self._note(f"workers request their places at {self.service.endpoint}")
        self.selector.register(self.service, selectors.EVENT_READ, lambda: None)  # each turn pumps
        if self.elastic.discovery is None:
            self._offer(list(self._slots.values()))

    def _address(self) -> str:
        """Return an address at which all hosts reach this process."""
        first = self.hosts[0].ready
        assert first is not None
        if self.job.interface is not None:
            return str(first["interface"])
        if not any(host.remote for host in self.hosts):
            return loopback()
        remote = next(host for host in self.hosts if host.remote)
        return towards(address_part(remote.name)) or default_address()

    def _offer(self, slots: list[Slot]) -> None:
        if self.service is not None and slots != self._offered:
            self._offered = slots
            self._carry_out(self.service.offer(slots))

    def _turn(self) -> None:
        if self.service is None:
            return
        if self.stopping:
            self.service.pump()  # what is not read would wake this loop again and again; nothing follows from it
            return
        discovery = self.elastic.discovery
        if discovery is not None:
            hosts = discovery.look(self.system.now())
            if hosts is not None:
                self._offer(self._open_slots(hosts))
        self._carry_out(self.service.pump())

    def _open_slots(self, hosts: dict[str, int]) -> list[Slot]:
        """Return the slots that a discovery script lists. A host that is not part of the job is reported once."""
        known = {host.name: host.place.count for host in self.hosts}
        new = [
            (name, count)
            for name, count in hosts.items()
            if count > known.get(name, 0)
            and self.elastic.discovery is not None
            and self.elastic.discovery.first_time(name)
        ]
        for name, count in new[:_MOST_NOTES]:
            most = known.get(name, 0)
            what = f"takes {most} ranks at most; name more by --hosts" if most else "is not one of --hosts"
            click.echo(f"paceline: note: the discovery script offers {count} slots of {name}, which {what}", err=True)
        if len(new) > _MOST_NOTES:
            click.echo(f"paceline: note: and of {len(new) - _MOST_NOTES} more such hosts", err=True)
        return [slot for slot in self._slots.values() if slot.number < hosts.get(slot.host, 0)]

    def _patience(self) -> float | None:
        patience = super()._patience()
        if self.service is None or self.stopping:
            return patience
        discovery = self.elastic.discovery
        waits = [patience, self.service.patience(), discovery.patience(self.system.now()) if discovery else None]
        return min((wait for wait in waits if wait is not None), default=None)

    def _carry_out(self, actions: Iterable[Action]) -> None:
        assert self.service is not None
        for action in actions:
            match action:
                case Start(worker, slot):
                    number = next(number for number, each in self._slots.items() if each == slot)
                    self._in_slot[number], self._numbers[worker] = worker, number
                    environment = self.service.environment(worker)
                    self._hosts[slot].tell({"start": {"slot": number, "environment": environment}})
                case Kill(worker) if worker in self._numbers:
                    number = self._numbers[worker]
                    self._hosts[self._slots[number]].tell({"kill": number})
                case Say(text):
                    click.echo(f"paceline: note: {text}", err=True)
                case End(reason, remedy):
                    if reason is not None:
                        self.cause, self.remedy = reason, remedy
                        self.failed = True
                    self._stop(self.job.grace_s if reason is not None else 0, KILL_AFTER_S)
                case _:
                    pass

    def _ended(self, host: AgentHost, frame: Frame) -> None:
        outcome = self._outcome(host, frame)
        worker = self._in_slot.pop(frame.rank, None)
        if worker is None or self.service is None:
            return
        del self._numbers[worker]
        host.ended.discard(frame.rank)
        if self.stopping:
            return
        how = Exit(code=outcome.code, words=outcome.sentence(), follows=outcome.report.follows)
        self._carry_out(self.service.exited(worker, how))

    def _lost(self, host: AgentHost, message: str, remedy: str | None = None) -> None:
        if self.service is None:
            super()._lost(host, message, remedy)
            return
        host.kill()
        if self.stopping:  # how the job has ended is decided
            return
        words = f"lost {message}"
        for number in host.place.ranks:
            worker = self._in_slot.pop(number, None)
            if worker is not None:
                del self._numbers[worker]
                self._carry_out(self.service.exited(worker, Exit(code=-signal.SIGKILL, words=words, host_lost=True)))
        if not self.stopping:
            self._carry_out(self.service.lost(host.name, words))
        self._lost_hosts.add(host.name)
        if not self.stopping and all(each.name in self._lost_hosts for each in self.hosts):
            self._carry_out(self.service.abandon(f"{words}, and no other host is left"))
