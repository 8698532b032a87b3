"""`ElasticRayExecutor`: a job that resumes from the last commit when an actor, or a node with its actors, has died."""

from __future__ import annotations

import contextlib
import secrets
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from paceline.errors import InvalidArgumentError, JobError
from paceline.job.failure import follows
from paceline.job.timeline_files import say
from paceline.launch.elastic.roster import Action, End, Exit, Kill, Limits, Say, Slot, Start
from paceline.launch.elastic.service import Service
from paceline.ray.calls import cause_of, death_reason, in_words, is_death
from paceline.ray.cluster import Cluster, connect
from paceline.ray.environment import checked_settings
from paceline.ray.executor import checked_extra, sendable
from paceline.ray.layout import Layout, check_count
from paceline.ray.settings import RaySettings, checked, create_settings
from paceline.ray.worker import Left, Member

_LOOK_S = 0.1
"""How long to wait for workers' messages before asking Ray again."""
_DISCOVER_S = 1.0
"""How often to ask Ray for its nodes."""
_DOUBT_S = 20.0
"""Time for Ray to detect a node's death: it checks five times, every three seconds."""


@dataclass
class _Process:
    """An actor."""

    actor: Any
    slot: Slot
    place: Any
    """Reference to its place."""
    call: Any
    """Reference to the result of the function."""
    doubt_until: float | None = None
    """If its node cannot be reached: the time until which Ray may report its death."""


class ElasticRayExecutor:
    """Runs an elastic training function on a Ray cluster whose nodes come and go.

    The function has been decorated with `hvd.elastic.run` (docs/how-to/elastic.md). An actor that dies is replaced, on
    the same node if that is alive and elsewhere if not; all ranks return to the last commit. New nodes are used, up to
    `max_workers`.

    Example:
        >>> with ElasticRayExecutor(min_workers=2, max_workers=4) as executor:  # doctest: +SKIP
        ...     results = executor.run(train)
    """

    create_settings = staticmethod(create_settings)

    def __init__(
        self,
        settings: RaySettings | None = None,
        *,
        min_workers: int = 1,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        env_vars: Mapping[str, str] | None = None,
        **job: object,
    ) -> None:
        """Describe the job; nothing starts before `run`.

        Args:
            settings: Time limits and network, from `ElasticRayExecutor.create_settings`.
            min_workers: Ranks below which the job fails.
            max_workers: Maximum number of ranks; by default as many as there is room for.
            reset_limit: How many times a new world may form; by default without limit.
            cpus_per_worker: CPUs that Ray reserves for each rank.
            use_gpu: Whether each rank gets GPUs.
            gpus_per_worker: GPUs for each rank; 1 by default with `use_gpu`.
            env_vars: Environment variables for the actors.
            **job: Settings of the runtime, as for `RayExecutor`; parameter servers run inside the workers here.

        Raises:
            InvalidArgumentError: An argument is invalid, or they contradict each other.
        """
        self.settings = checked(settings)
        check_count("min_workers", min_workers)
        check_count("max_workers", max_workers)
        self.layout = Layout(
            num_workers=min_workers, cpus_per_worker=cpus_per_worker, use_gpu=use_gpu, gpus_per_worker=gpus_per_worker
        )
        if max_workers is not None and max_workers < min_workers:
            raise InvalidArgumentError(
                f"max_workers: must be at least min_workers, {min_workers}, not {max_workers}",
                remedy=f"max_workers={min_workers}",
            )
        if reset_limit is not None and (isinstance(reset_limit, bool) or reset_limit < 0):
            raise InvalidArgumentError(f"reset_limit: must be at least 0, not {reset_limit}", remedy="reset_limit=3")
        variables, self._checked = checked_settings(job)
        if self._checked.timeline is not None:
            raise InvalidArgumentError(
                "timeline: needs a job whose ranks do not change", remedy="drop timeline (PACELINE_TIMELINE)"
            )
        self._variables = {**variables, **checked_extra(env_vars or {}, "env_vars")}
        self._limits = Limits(
            least=min_workers,
            most=max_workers or 1 << 16,
            resets=reset_limit,
            start_s=self.settings.timeout_s,
            # A rank that waits for a silent one returns when its own time limit is over.
            return_s=self._checked.timeout_s + 10.0,
        )
        self._cluster: Cluster | None = None

    def start(self) -> None:
        """Connect to the cluster: that of `ray.init()` or RAY_ADDRESS, or one on this machine. Actors start with `run`.

        Raises:
            InvalidArgumentError: It has been started before.
            JobError: No cluster answers, or none can be started.
            MissingRayError: Ray is not installed.
        """
        if self._cluster is not None:
            raise InvalidArgumentError("start: the executor has been started", remedy="shutdown()")
        self._cluster = connect()

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` in every worker.

        Args:
            fn: Function to call; it must be picklable.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Returns:
            The results of the workers present at the end, in rank order.

        Raises:
            InvalidArgumentError: `fn` cannot be pickled, or the executor has not been started.
            JobError: The job cannot continue; the message says why.
        """
        if self._cluster is None:
            raise InvalidArgumentError("the executor has not been started", remedy="start()")
        with _Run(self, self._cluster, fn, list(args or ()), dict(kwargs or {})) as job:
            return job.results()

    def shutdown(self) -> None:
        """Stop everything that `start` started. Idempotent."""
        if self._cluster is not None:
            self._cluster.disconnect()
            self._cluster = None

    def __enter__(self) -> ElasticRayExecutor:
        """Start, unless already started."""
        if self._cluster is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()


class _Run:
    """Carries out the driver's decisions, and reports to it how the actors end."""

    def __init__(
        self,
        executor: ElasticRayExecutor,
        cluster: Cluster,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._ray, self._executor = cluster.ray, executor
        # A cluster on this machine alone cannot be reached from others.
        self._interface = executor.settings.interface or ("127.0.0.1" if cluster.own else None)
        self._nodes = Nodes(cluster.ray, executor.layout)
        with sendable(fn):
            self._call = cluster.ray.put((fn, args, kwargs))
        secret, job = executor._checked.secret or secrets.token_hex(32), secrets.token_hex(8)
        address = "127.0.0.1" if cluster.own else cluster.ray.util.get_node_ip_address()
        self._service = Service(executor._limits, secret=secret, job=job, address=address)
        self._kind = cluster.ray.remote(Member)
        self._processes: dict[int, _Process] = {}
        self._results: dict[int, Any] = {}
        """By rank."""
        self._end: End | None = None

    def __enter__(self) -> _Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            self._kill(process)
        self._service.close()

    def results(self) -> list[Any]:
        """Return the results when all have ended. Raises JobError."""
        discover_at = 0.0
        while self._end is None:
            now = time.monotonic()
            if now >= discover_at:
                discover_at = now + _DISCOVER_S
                self._carry_out(self._service.offer(self._nodes.slots()))
            patience = self._service.patience()
            wait_s = _LOOK_S if patience is None else min(_LOOK_S, patience)
            select.select([self._service], [], [], wait_s)
            self._carry_out(self._service.pump())
            self._look()
        if self._end.reason is not None:
            raise JobError(self._end.reason)
        return [self._results[rank] for rank in sorted(self._results)]

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Start(worker, slot):
                    self._processes[worker] = self._started(worker, slot)
                case Kill(worker) if worker in self._processes:
                    self._kill(self._processes[worker])
                case Say(text):
                    say(text)
                case End():
                    self._end = self._end or action
                case _:
                    pass

    def _started(self, worker: int, slot: Slot) -> _Process:
        layout = self._executor.layout
        there = self._nodes.affinity(slot)
        options = {"num_cpus": layout.cpus_per_worker, "num_gpus": layout.gpus, "max_restarts": 0}
        actor = self._kind.options(scheduling_strategy=there, **options).remote()
        place = actor.place.remote()
        variables = {
            **self._executor._variables,
            **self._service.environment(worker),
            "PACELINE_SECRET": self._service.secret,
        }
        actor.join.remote(variables, self._interface)
        return _Process(actor, slot, place, actor.run.remote(self._call))

    def _kill(self, process: _Process) -> None:
        with contextlib.suppress(Exception):  # It is already dead, or Ray is.
            self._ray.kill(process.actor, no_restart=True)

    def _look(self) -> None:
        """Handle the calls that have ended."""
        if not self._processes:
            return
        by_call = {process.call: worker for worker, process in self._processes.items()}
        ended, _ = self._ray.wait(list(by_call), num_returns=len(by_call), timeout=0)
        for ref in ended:
            worker = by_call[ref]
            process = self._processes[worker]
            exited = self._exit_of(process)
            if exited is None:
                continue
            del self._processes[worker]
            self._kill(process)
            if exited.host_lost:
                # Other nodes may have room: they are offered before the driver asks whether enough slots are left.
                say(f"{exited.words}; nothing more is started there")
                self._carry_out(self._service.offer(self._nodes.slots()))
            self._carry_out(self._service.exited(worker, exited))

    def _exit_of(self, process: _Process) -> Exit | None:
        """Return how its call has ended; None if that is not known yet."""
        name = self._name(process)
        try:
            value = self._ray.get(process.call)
        except Exception as error:  # A user's function may raise anything.
            if is_death(self._ray, error):
                lost = not self._nodes.lives(process.slot)
                if not lost and isinstance(error, self._ray.exceptions.ActorUnavailableError):
                    # Its node cannot be reached. Ray will find out whether it has died.
                    process.doubt_until = process.doubt_until or time.monotonic() + _DOUBT_S
                    if time.monotonic() < process.doubt_until:
                        return None
                reason = "its node (raylet) died" if lost else death_reason(error)
                return Exit(code=-9, words=f"{name} died: {reason}", host_lost=lost)
            cause = cause_of(error)
            words = f"{name} failed: {in_words(cause)}"
            return Exit(code=1, words=words, follows=follows(cause))
        if isinstance(value, Left):
            return Exit(code=value.code, words=f"{name} has left")
        rank, self_result = value
        self._results[rank] = self_result
        return Exit(code=0, words=f"{name} has finished")

    def _name(self, process: _Process) -> str:
        with contextlib.suppress(Exception):  # It died before it could report its place.
            place = self._ray.get(process.place, timeout=0)
            return f"the worker in {process.slot} ({place})"
        return f"the worker in {process.slot}"


class Nodes:
    """The nodes of a Ray cluster as slots of an elastic job, in the order in which they were first seen."""

    def __init__(self, ray: Any, layout: Layout) -> None:  # noqa: ANN401
        """`layout`: the resources of a worker."""
        self._ray, self._layout = ray, layout
        self._numbers: dict[str, str] = {}
        """Ray's node ids by the names used here."""

    def slots(self) -> list[Slot]:
        """Return the slots on the nodes that are alive, by their total resources, regardless of other uses."""
        slots: list[Slot] = []
        living = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"]}
        for number, node in living.items():
            # Several nodes on one machine share its address.
            self._numbers.setdefault(f"{node['NodeManagerAddress']}/{number[:8]}", number)
        for host, number in self._numbers.items():
            if number in living:
                slots += [Slot(host, place) for place in range(self._room(living[number]["Resources"]))]
        return slots

    def lives(self, slot: Slot) -> bool:
        """Return whether the node of a slot is alive."""
        number = self._numbers[slot.host]
        return any(node["Alive"] for node in self._ray.nodes() if node["NodeID"] == number)

    def affinity(self, slot: Slot) -> Any:  # noqa: ANN401
        """Return Ray's scheduling strategy that starts an actor on that node and nowhere else."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(self._numbers[slot.host], soft=False)

    def _room(self, resources: dict[str, float]) -> int:
        room = resources.get("CPU", 0.0) / self._layout.cpus_per_worker
        if self._layout.gpus:
            room = min(room, resources.get("GPU", 0.0) / self._layout.gpus)
        return int(room + 1e-9)
