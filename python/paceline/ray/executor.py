"""`RayExecutor`: a job whose ranks, and parameter servers, are Ray actors; with the methods of Horovod's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from paceline.errors import InvalidArgumentError, JobError
from paceline.job import timeline_files
from paceline.ray.calls import Calls
from paceline.ray.cluster import Cluster, connect
from paceline.ray.environment import World, checked_settings
from paceline.ray.group import Actors, meet
from paceline.ray.layout import Layout
from paceline.ray.settings import RaySettings, checked, create_settings
from paceline.ray.worker import Server, Worker


class RayExecutor:
    """Ranks on a Ray cluster.

        executor = RayExecutor(RayExecutor.create_settings(), num_workers=4, strategy="ps", servers=2)
        executor.start()
        losses = executor.run(train, args=[config])
        executor.shutdown()

    Each worker is an actor, a rank; `fn` calls `hvd.init()`, `init_process_group("paceline")` or `paceline.job.join()`.
    """

    create_settings = staticmethod(create_settings)

    def __init__(
        self,
        settings: RaySettings | None = None,
        num_workers: int | None = None,
        *,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: float | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = None,
        cpus_per_server: float = 1,
        **job: object,
    ) -> None:
        """`num_workers` on as few nodes as can be, or `num_workers_per_host` on each of `num_hosts` nodes.

        `job`: settings of the runtime, by the names of `paceline.job.settings` (strategy, servers, transport,
        timeout_s, coordinator, …); they win over this process's PACELINE_ variables. With a strategy that has
        parameter servers, these are actors, too. Raises InvalidArgumentError for what cannot be.
        """
        self.settings = checked(settings)
        self.layout = Layout(
            num_workers=num_workers,
            num_hosts=num_hosts,
            num_workers_per_host=num_workers_per_host,
            cpus_per_worker=cpus_per_worker,
            use_gpu=use_gpu,
            gpus_per_worker=gpus_per_worker,
            cpus_per_server=cpus_per_server,
        )
        self._variables, self._checked = checked_settings(job)
        self.servers = self._checked.servers if self._checked.has_servers() else 0
        """Parameter servers."""
        self.world: World | None = None
        """Who takes part, from `start` to `shutdown`."""
        self._cluster: Cluster | None = None
        self._workers: Actors | None = None
        self._servers: Actors | None = None
        self._serving: dict[str, Any] = {}
        self._broken: str | None = None

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the actors and tell them their places. `executable_cls` is made in each, and what `execute` passes on.

        Without `ray.init()` before, RAY_ADDRESS is used, else a cluster on this machine is started. Raises JobError
        that says what is missing if Ray has no room, or who did not answer; InvalidArgumentError; MissingRayError.
        """
        if self._workers is not None:
            raise InvalidArgumentError("start: the executor has been started; call shutdown() first")
        if executable_cls is None and (executable_args or executable_kwargs):
            raise InvalidArgumentError(
                "executable_args: have no effect without executable_cls; give that, or leave them out"
            )
        variables = {**self._variables, **checked_extra(extra_env_vars or {})}
        self._cluster = connect()
        self._workers = Actors("rank", self._cluster, self.settings)
        self._servers = Actors("server", self._cluster, self.settings)
        try:
            layout = self.layout
            self._workers.start(
                Worker,
                layout.room,
                per_bundle=layout.per_bundle,
                cpus=layout.cpus_per_worker,
                gpus=layout.gpus,
                sort=True,
            )
            if self.servers:
                room = layout.servers_room(self.servers)
                self._servers.start(Server, room, cpus=layout.cpus_per_server)
            self.world = meet(self._workers, self._servers, variables, self._checked.secret)
            self._serving = self._servers.named([server.serve.remote() for server in self._servers.handles])
            if executable_cls is not None:
                args, kwargs = list(executable_args or ()), dict(executable_kwargs or {})
                self._workers.all(lambda actor: actor.make.remote(executable_cls, args, kwargs), "make the executable")
        except BaseException:
            self.shutdown()
            raise

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank: what each returns, in rank order.

        Raises JobError naming the rank that failed first (died, raised, is silent), with what it raised as the cause;
        InvalidArgumentError for a user's mistake.
        """
        return self._gathered(self.run_remote(fn, args, kwargs))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As `run`, without waiting: Ray's references, in rank order, for `ray.get`."""
        workers = self._started().handles
        with sendable(fn):
            return [actor.call.remote(fn, list(args or ()), dict(kwargs or {})) for actor in workers]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call `fn(executable)` on every rank; otherwise as `run`."""
        workers = self._started().handles
        with sendable(fn):
            asked = [actor.execute.remote(fn) for actor in workers]
        return self._gathered(asked)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Call `fn(executable)` on rank 0 alone: what it returns."""
        first = self._started().handles[0]
        with sendable(fn):
            asked = [first.execute.remote(fn)]
        return self._gathered(asked)[0]

    def shutdown(self) -> None:
        """End the actors, give back their room; a cluster that `start` has started ends, too. May be called twice."""
        for actors in (self._workers, self._servers):
            if actors is not None:
                # Servers serve until they are killed; after a failure nobody waits for anybody.
                actors.end(leave=actors is self._workers and self._broken is None)
        if self._workers is not None and self._checked.timeline is not None:
            timeline_files.say(timeline_files.gather(self._checked.timeline))
        if self._cluster is not None:
            self._cluster.disconnect()
        self._workers = self._servers = self._cluster = self.world = self._broken = None
        self._serving = {}

    def __enter__(self) -> RayExecutor:
        """Start, unless that has been done."""
        if self._workers is None:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()

    def _started(self) -> Actors:
        if self._workers is None:
            raise InvalidArgumentError("the executor has not been started; call start()")
        if self._broken is not None:
            raise JobError(f"{self._broken}; call shutdown() and start() again")
        return self._workers

    def _gathered(self, asked: Sequence[Any]) -> list[Any]:
        workers, servers = self._workers, self._servers
        assert workers is not None
        assert servers is not None
        assert self._cluster is not None
        places = {**workers.by_name, **servers.by_name}
        calls = Calls(self._cluster.ray, workers.named(asked), watched=self._serving, places=places)
        try:
            return list(calls.results(grace_s=self.settings.grace_s).values())
        except (JobError, InvalidArgumentError) as error:
            if calls.lost or calls.silent:
                self._broken = f"the executor cannot go on: {error}"
            raise


@contextmanager
def sendable(function: Callable[..., Any]) -> Iterator[None]:
    """Ray's screen about what cannot be pickled, in a line. Raises InvalidArgumentError."""
    try:
        yield
    except TypeError as error:
        if "serialize" not in str(error):
            raise
        name = getattr(function, "__qualname__", repr(function))
        said = next((line for line in str(error).splitlines() if "cannot pickle" in line), "")
        why = f": {said[said.index('cannot pickle') :]}" if said else ""
        raise InvalidArgumentError(
            f"{name:.80} cannot be sent to the ranks{why}; make what cannot be pickled inside the function"
        ) from error


def checked_extra(variables: Mapping[str, str], source: str = "extra_env_vars") -> dict[str, str]:
    """Raises InvalidArgumentError for what the executor sets itself, and for what is no text."""
    from paceline.launch.variables import stale

    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(f"{source}: {name!r:.80}: {value!r:.80} is not text")
        if stale(name):
            raise InvalidArgumentError(f"{source}: {name}: the executor sets it itself; leave it out")
    return dict(variables)
