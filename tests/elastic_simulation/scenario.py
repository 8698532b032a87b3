"""A job in a virtual world: what its script does, what goes wrong, and whether it ended as it must."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click
from paceline.launch.elastic.discovery import Discovery
from paceline.launch.elastic.roster import Limits
from paceline.launch.elastic.supervisor import ElasticSupervisor
from paceline.launch.hosts import Host as HostName
from paceline.launch.hosts import Place
from paceline.launch.job import Elastic, Job

from elastic_simulation.hosts import Host
from elastic_simulation.ranks import Here, Plan, Process
from elastic_simulation.system import Network, Virtual
from elastic_simulation.world import Task, World

KINDS = ("kill", "stop", "pause", "raise", "leave", "hang", "cut", "partition", "lose host", "starve", "offer", "flap")
MOMENTS = (
    "training has ended",
    "is rank",
    '"ask"',
    "ends with",
    "told stop",
    "hears that",
    "told kill",
    "continuing with",
    "again",
)
"""After lines that hold one of these, much may go wrong in little time."""
HORIZON_S = 4000.0
"""All limits of a job with a handful of faults, one after the other, are shorter."""
_QUIET_S = 130.0
"""After this much time without a fault, a job has all the ranks that it may have."""
_STOP_S = 1500.0
_WAIT_S = 60.0 + 40.0 + 30.0
"""For a start, a return, and an operation."""
_SECRET = "a secret of the job"
_COST = {"lose host": 2, "flap": 9}
"""What a fault may cost in deaths and worlds without a commit, if it is not one."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong before event `at`, counted from the first line of the log that holds `since`."""

    at: int
    kind: str
    victim: int = 0
    """Which process, host or answer; numbers that are too large begin again."""
    seconds: float = 1.0
    since: str = ""


@dataclass(frozen=True)
class Scenario:
    """A job and what happens to it. Equal scenarios have equal logs."""

    seed: int
    hosts: tuple[int, ...] = (2,)
    """Slots of each host."""
    least: int = 2
    most: int = 2
    calm: bool = False
    steps: int = 6
    every: int = 1
    step_s: float = 0.2
    start_s: float = 1.0
    after_s: float = 2.0
    late: tuple[tuple[int, float], ...] = ()
    discovery: bool = False
    faults: tuple[Fault, ...] = ()

    def size(self) -> tuple[int, ...]:
        """Return how large it is, for a reducer: smaller is simpler."""
        return (len(self.faults), sum(self.hosts), len(self.late), not self.calm, self.discovery, self.steps)


@dataclass
class Result:
    """What became of a job."""

    scenario: Scenario
    code: int | None = None
    log: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    states: set[Any] = field(default_factory=set)
    """States of the driver, without numbers and times."""
    texts: set[str] = field(default_factory=set)
    """What the user was told, without numbers."""


def draw(seed: int) -> Scenario:
    """Return a random scenario."""
    source = random.Random(seed)
    hosts = source.choice([(2,), (2,), (3,), (1, 1), (2, 1), (2, 2), (1, 1, 1), (4,)])
    slots = sum(hosts)
    most = slots if source.random() < 0.8 else max(1, slots - 1)
    least = source.randint(1, most)
    faults = []
    for _ in range(source.choice([0, 1, 1, 1, 2, 2, 3, 4, 6])):
        kind = source.choice(KINDS if source.random() < 0.7 else ("kill", "kill", "stop", "cut", "partition"))
        seconds = source.choice([0.01, 0.3, 2.0, 8.0, 20.0, 50.0])
        if kind == "flap":
            seconds = source.choice([8.0, 50.0, 5000.0])
        since = source.choice(MOMENTS[:2] if source.random() < 0.5 else MOMENTS) if source.random() < 0.5 else ""
        at = int(source.triangular(0, 30, 3)) if since else int(source.triangular(2, 140, 40))
        faults.append(Fault(at, kind, source.randrange(8), seconds, since))
    late = [(number, source.choice([0.0, 3.0, 10.0, 30.0])) for number in range(8) if source.random() < 0.25]
    slow = source.random() < 0.15
    if source.random() < 0.2:  # hosts come and go
        moves = [Fault(source.choice([2, 30]), "offer", source.randrange(4), source.choice([6.0, 12.0, 25.0]))]
        for _ in range(source.choice([1, 2, 3])):
            at = source.randrange(60, 600)
            moves.append(Fault(at, "offer", source.randrange(4), source.choice([6.0, 12.0, 25.0, 90.0])))
        faults = [*moves, *faults[: source.choice([0, 0, 1])]]
        slow = False
        hosts = source.choice([(1, 1), (1, 1), (2, 1), (1, 1, 1)])
        most = source.randint(1, sum(hosts))
        least = source.choice([1, 1, most])
    return Scenario(
        seed=seed,
        hosts=hosts,
        least=least,
        most=most,
        steps=source.choice([1, 2, 4, 8, 12, 25]),
        every=source.choice([1, 1, 2, 5]),
        step_s=18.0 if slow else source.choice([0.02, 0.2, 1.0]),
        start_s=source.choice([0.1, 1.0, 4.0]),
        after_s=source.choice([0.0, 2.0, 100.0]),
        late=tuple(late),
        discovery=any(fault.kind in ("offer", "flap") for fault in faults),
        faults=tuple(faults),
    )


def run(scenario: Scenario, coverage: bool = True) -> Result:
    """Run a job to its end."""
    return _Run(scenario, coverage).result


class _Output:
    mode, hurry = "lines", False

    def put(self, *_: Any) -> None:
        """Virtual ranks print nothing."""

    def close(self) -> None:
        """Nothing is open."""


class _Said(io.TextIOBase):
    """The launcher's standard error."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line

    def write(self, text: str) -> int:
        if not isinstance(text, str):  # click tries whether bytes are taken
            raise TypeError("text only")
        for line in text.splitlines():
            self._line(line)
        return len(text)


class _Run:
    def __init__(self, scenario: Scenario, coverage: bool) -> None:
        self.scenario = scenario
        self.result = Result(scenario)
        self.world = World(scenario.seed, calm=scenario.calm)
        plan = Plan(
            steps=scenario.steps,
            every=scenario.every,
            step_s=scenario.step_s,
            start_s=scenario.start_s,
            late=dict(scenario.late),
            after_s=scenario.after_s,
        )
        self.here = Here(self.world, Network(self.world), plan, _SECRET)
        self.ledger = self.here.ledger
        self.here.has_committed = self._committed
        self.here.has_joined = self._joined
        self.hosts: list[Host] = []
        self.errors: list[str] = []
        self.over = False
        self.missing: set[str] = set()
        """Hosts that the discovery script does not name at present."""
        self.flapping = 0.0
        self.period = 1
        self.answers = 0
        self.shortages: list[float] = []
        self.changed_at = 0.0
        """When something went wrong last."""
        self.launcher_faulty = False
        self.hang_next = 0
        self._left = list(scenario.faults)
        self._since: dict[str, int | None] = {fault.since: None if fault.since else 0 for fault in scenario.faults}
        self._read = 0
        self._coverage, self._covered = coverage, -1
        self._without_world: float | None = None
        """Since when."""
        self.task = Task(self.world, "launcher", self._launch)
        self.system = Virtual(self.world, self.here.network, lambda: self.task)
        self.system.script = self._script
        self.world.before_turn = self._watch
        before = sys.stderr
        sys.stderr = _Said(self._said)
        try:
            ended = self.world.run(HORIZON_S, lambda: self.over)
            self.world.run(self.world.now + 60.0, lambda: False)
        finally:
            sys.stderr = before
        self._judge(ended)
        for process in self.here.processes.values():
            process.task.kill()
        self.task.kill()
        self.result.log, self.result.violations = self.world.log, self.ledger.violations

    # The launcher

    def _launch(self) -> None:
        scenario = self.scenario
        places, first = [], 0
        for number, count in enumerate(scenario.hosts):
            places.append(Place(HostName(f"node{number}", count), first, count))
            first += count
        limits = Limits(least=scenario.least, most=scenario.most)
        discovery = Discovery("hosts", system=self.system) if scenario.discovery else None
        elastic = Elastic(limits=limits, discovery=discovery)
        job = Job(
            command=["train"],
            places=places,
            rsh=(),
            settings={},
            named={},
            secret=_SECRET,
            interface="10.0.0.0/24",
            port=None,
            grace_s=5.0,
            verbose=False,
            agents={place.host.name: ["agent"] for place in places},
            elastic=elastic,
            number="job",
        )
        try:
            self.supervisor = ElasticSupervisor(job, elastic, _Output(), system=self.system, agent=self._agent)
            try:
                self.result.code = self.supervisor.run()
            finally:
                self.supervisor.conclude()
        except click.ClickException as error:
            self.result.code = 1
            self._said(f"paceline: error: {error.message}")
        except Exception as error:
            self.result.code = 1
            self.ledger.violated(f"the launcher raised {type(error).__name__}: {error}")
        self.over = True

    def _agent(self, place: Any, _command: Any, *, remote: bool) -> Host:
        host = Host(self.here, place, remote=remote)
        host.killing = self._killing
        self.hosts.append(host)
        return host

    def _script(self) -> str:
        self.answers += 1
        flaps = self.world.now < self.flapping and self.answers // self.period % 2
        named = [] if flaps else [host for host in self.hosts if host.name not in self.missing]
        return "\n".join(f"{host.name}:{host.place.count}" for host in named)

    def _said(self, line: str) -> None:
        self.world.note(line)
        self.result.texts.add(re.sub(r"\d+(\.\d+)?", "N", line))
        if line.startswith("paceline: error: "):
            self.errors.append(line.removeprefix("paceline: error: "))
            self._judge_reason(self.errors[-1])

    # Faults

    def _watch(self) -> None:
        if self.task.turns != self._covered:
            self._covered = self.task.turns
            service = getattr(getattr(self, "supervisor", None), "service", None)
            if service is not None:
                if not service.driver.intact and self._without_world is None:
                    self._without_world = self.world.now
                if self._coverage:
                    self._cover(service)
        for line in self.world.log[self._read :]:
            for since in self._since:
                if self._since[since] is None and since in line:
                    self._since[since] = self.world.turns
        self._read = len(self.world.log)
        for fault in list(self._left):
            begin = self._since[fault.since]
            if begin is not None and self.world.turns >= begin + fault.at:
                self._left.remove(fault)
                self._strike(fault)

    def _strike(self, fault: Fault) -> None:
        if self.over:
            return
        self.changed_at = self.world.now
        living = [process for process in self.here.processes.values() if process.code is None]
        kind, seconds = fault.kind, fault.seconds
        if kind in ("offer", "flap"):
            self._offer(fault)
            return
        if kind == "lose host":
            host = self.hosts[fault.victim % len(self.hosts)]
            self.world.note(f"fault: {host.name} is lost")
            host.faults.add(kind)
            for process in host.running.values():
                process.faults.add(kind)
            host.die()
            return
        if not living:
            return
        process = living[fault.victim % len(living)]
        self.world.note(f"fault: {kind} {process.name} ({seconds:g} s)")
        process.faults.add(kind)
        if kind == "kill":
            process.end(-9)
        elif kind in ("stop", "pause"):
            process.task.stop()
            # Nobody notices that a rank stands still for which nobody waits.
            self.world.after(seconds if kind == "pause" else _STOP_S, process.task.go_on)
        elif kind == "raise":
            process.raises = True
        elif kind == "leave":
            process.leaves = True
        elif kind == "hang":
            process.hangs = True
        elif kind == "cut":
            process.system.cut()
        elif kind == "partition":
            process.system.partition(seconds)
        elif kind == "starve":
            process.task.lag = min(seconds, 8.0)
            self.world.after(20.0, lambda: setattr(process.task, "lag", 0.0))

    def _offer(self, fault: Fault) -> None:
        if fault.kind == "flap":
            self.flapping = max(self.flapping, self.world.now + fault.seconds)
            self.period = 1 + fault.victim % 3
            self.world.note(f"fault: the discovery script flaps for {fault.seconds:g} s")
            return
        name = self.hosts[fault.victim % len(self.hosts)].name
        self.world.note(f"fault: the discovery script misses {name} for {fault.seconds:g} s")
        self.missing.add(name)

        def back() -> None:
            self.missing.discard(name)
            self.changed_at = self.world.now
            self.world.note(f"the discovery script names {name} again")

        self.world.after(fault.seconds, back)

    # Invariants

    def _violated(self, what: str) -> None:
        self.ledger.violated(what)

    def _killing(self, process: Process) -> None:
        """Only those are killed that had a fault, or that are to leave."""
        worker = self.supervisor.service.driver.workers.get(process.number)
        leaves = worker is not None and worker.dismissed
        if not process.faults and not leaves and not self._late(process):
            self._violated(f"{process.name} is killed, and did nothing wrong")

    def _late(self, process: Process) -> bool:
        return dict(self.scenario.late).get(process.number, 0.0) > 50.0

    def _committed(self, process: Process) -> None:
        """A host that comes back is used."""
        if self.world.now < self.changed_at + _QUIET_S or self.missing or self.world.now < self.flapping + _QUIET_S:
            return
        if {"raise", "lose host", "hang", "leave", "stop"} & {fault.kind for fault in self.scenario.faults}:
            return  # slots may be closed, or wait for a limit
        room = min(self.scenario.most, sum(self.scenario.hosts))
        driver = self.supervisor.service.driver
        if process.place.size < room and not driver._closed and not driver._finished:
            self._violated(f"{process.place.size} ranks train, and there has been room for {room} for {_QUIET_S:g} s")

    def _joined(self, process: Process) -> None:
        """Ranks are without a world for no longer than the limits allow, one after the other for each fault."""
        begin, self._without_world = self._without_world, None
        waited = 0.0 if begin is None else self.world.now - begin
        limit = _WAIT_S * (1 + len(self.scenario.faults))
        # Nobody waits for a rank that is alone, so that nobody notices that it stands still.
        if waited > limit and self.flapping == 0.0 and process.place.size > 1:
            self._violated(f"there was no world for {waited:.0f} s, and {limit:g} s are allowed")

    def _judge_reason(self, reason: str) -> None:
        """Judge, when the job is given up, whether it had to be, and whether the right one is named."""
        kinds = {kind for process in self.here.processes.values() for kind in process.faults}
        cost = sum(_COST.get(fault.kind, 1) for fault in self.scenario.faults)
        named = re.search(r"pid (\d+)\)", reason)
        ended = "other ranks" in reason and "finished" in reason
        if named:
            process = self.here.processes[int(named[1]) - 100]
            if not process.faults and not process.follows:
                self._violated(f"{process.name} is named, and did nothing wrong: {reason}")
            last = max(self.ledger.finished, default=None)
            if ended and (process.place is None or (last is not None and process.place.generation != last)):
                self._violated(f"{process.name} is not a rank of world {last}, which has finished: {reason}")
        if ended:
            return
        if self.ledger.finished and "a rank ended" in reason:
            self._violated(f"training has ended in world {max(self.ledger.finished)}, and the job fails: {reason}")
        elif "all ranks that held the last commit" in reason:
            for process in self.here.processes.values():
                if process.code is None and not (process.faults - {"cut"}) and self._holds(process):
                    self._violated(f"{process.name} holds the last commit: {reason}")
            held = [each for each in self.here.processes.values() if each.held.numbers and self._holds(each)]
            if held and not any(process.faults for process in held):
                self._violated(f"{held[-1].name} held the last commit and was let go: {reason}")
        elif "a rank ended" in reason:
            if "leave" not in kinds:
                self._violated(f"nobody has ended: {reason}")
        elif "without a commit" in reason:
            if cost < 4:
                self._violated(f"{cost} faults: {reason}")
        elif "been offered for" in reason or "too few" in reason:
            if not {"offer", "flap"} & {fault.kind for fault in self.scenario.faults}:
                self._violated(f"all hosts are there: {reason}")
        elif not named and not any(host.faults and f"host {host.name}" in reason for host in self.hosts):
            self._violated(f"an unknown reason: {reason}")

    def _holds(self, process: Process) -> bool:
        committed = self.ledger.committed
        states = list(process.held._held.values())
        return bool(states) and (committed is None or len(states[-1]) >= len(committed))

    def _judge(self, ended: bool) -> None:
        if not ended:
            service = getattr(getattr(self, "supervisor", None), "service", None)
            workers = [] if service is None else list(service.driver.workers.values())
            self._violated(f"the job does not end: {workers}")
            return
        for process in self.here.processes.values():
            if process.code is None:
                self._violated(f"{process.name} is left over")
            elif process.follows and process.faults <= {"cut"}:
                self._violated(f"{process.name} ended, and its connection was only cut: {process.reason}")
        if self.result.code:
            if not self.errors and not self.ledger.violations:
                self._violated("the job failed without a word")
            last = max(self.ledger.finished, default=None)
            ranks = [each for each in self.here.processes.values() if each.place and each.place.generation == last]
            if ranks and all(each.code == 0 and each.finished for each in ranks):
                self._violated(f"all ranks of world {last} have ended well, and the job fails: {self.errors}")
            return
        if not self.ledger.finished:
            if not any(process.leaves for process in self.here.processes.values()):
                self._violated("the job succeeded, and nobody has finished")
            return
        last = max(self.ledger.finished)
        ranks = [
            process
            for process in self.here.processes.values()
            if process.place is not None and process.place.generation == last
        ]
        for process in ranks:
            if process.code != 0 or len(process.state) != self.scenario.steps or process.state != ranks[0].state:
                self._violated(f"the job succeeded, and {process.name} ended with {process.code}: {process.state}")

    def _cover(self, service: Any) -> None:
        driver = service.driver
        workers = sorted(
            (
                worker.state.value,
                bool(worker.commits),
                worker.killed,
                worker.retired,
                worker.dismissed,
                worker.done,
                worker.generation == driver.generation,
                worker.number in service._by_worker,
            )
            for worker in driver.workers.values()
        )
        self.result.states.add(
            (driver.intact, driver._finished, driver._held, driver._notified, bool(driver._awaited), *workers)
        )


def shrink(scenario: Scenario, limit: int = 400) -> Result:
    """Return a smaller scenario that violates an invariant of the same kind."""
    best = run(scenario)
    kind = _kind(best)
    tried = 0
    progress = True
    while progress and tried < limit:
        progress = False
        for smaller in _smaller(best.scenario):
            tried += 1
            result = run(smaller)
            if result.violations and _kind(result) == kind:
                best, progress = result, True
                break
            if tried >= limit:
                break
    return best


def _kind(result: Result) -> str:
    return re.sub(r"[\d.]+|\(.*|\[.*", "", result.violations[0])[:40] if result.violations else ""


def _smaller(scenario: Scenario) -> list[Scenario]:
    """Return simpler neighbors, the simplest first."""
    change: Callable[..., Scenario] = lambda **fields: dataclasses.replace(scenario, **fields)  # noqa: E731
    values: list[Scenario] = []
    faults = scenario.faults
    for at in range(len(faults)):
        values.append(change(faults=faults[:at] + faults[at + 1 :]))
    if not scenario.calm:
        values += [change(calm=True), *(change(calm=True, seed=seed) for seed in range(2))]
    for at in range(len(scenario.late)):
        values.append(change(late=scenario.late[:at] + scenario.late[at + 1 :]))
    if sum(scenario.hosts) > 1:
        fewer = (*scenario.hosts[:-1], scenario.hosts[-1] - 1) if scenario.hosts[-1] > 1 else scenario.hosts[:-1]
        slots = sum(fewer)
        values.append(change(hosts=fewer, most=min(scenario.most, slots), least=min(scenario.least, slots)))
    if len(scenario.hosts) > 1:
        values.append(change(hosts=(sum(scenario.hosts),)))
    if scenario.discovery and not any(fault.kind in ("offer", "flap") for fault in faults):
        values.append(change(discovery=False))
    if scenario.steps > 1:
        values.append(change(steps=scenario.steps // 2))
    for at, fault in enumerate(faults):
        for other in (dataclasses.replace(fault, at=fault.at // 2), dataclasses.replace(fault, at=fault.at - 1)):
            if other.at >= 0 and other != fault:
                values.append(change(faults=(*faults[:at], other, *faults[at + 1 :])))
    with contextlib.suppress(ValueError):
        values.remove(scenario)
    return values
