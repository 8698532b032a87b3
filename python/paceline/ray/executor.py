"""`RayExecutor`: a job whose ranks and parameter servers are Ray actors, with the methods of Horovod's class."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
    """Runs functions on ranks that are actors of a Ray cluster.

    Each worker is an actor and a rank. The functions it runs call `hvd.init()`, `init_process_group("paceline")` or
    `paceline.job.join()`.

    Example:
        >>> with RayExecutor(num_workers=4, strategy="ps", servers=2) as executor:  # doctest: +SKIP
        ...     losses = executor.run(train, args=[config])
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
        """Describe the job; nothing starts before `start`.

        Args:
            settings: Time limits and network, from `RayExecutor.create_settings`.
            num_workers: Ranks, on as few nodes as possible.
            cpus_per_worker: CPUs that Ray reserves for each rank.
            use_gpu: Whether each rank gets GPUs.
            gpus_per_worker: GPUs for each rank; 1 by default with `use_gpu`.
            num_hosts: Nodes, with `num_workers_per_host` ranks on each; instead of `num_workers`.
            num_workers_per_host: Ranks on each of `num_hosts` nodes.
            cpus_per_server: CPUs that Ray reserves for each parameter server, which is also an actor.
            **job: Settings of the runtime such as `strategy="ps"`, `servers=2` or `transport="tcp"`
                (docs/reference/settings.md). They take precedence over this process's PACELINE_ variables.

        Raises:
            InvalidArgumentError: An argument is invalid, or they contradict each other.
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
        """The actors, from `start` to `shutdown`."""
        self._cluster: Cluster | None = None
        self._workers: Actors | None = None
        self._servers: Actors | None = None
        self._serving: dict[str, Any] = {}
        self._broken: str | None = None
        self._ends = ExitStack()

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the actors and tell them their ranks.

        The cluster is that of an earlier `ray.init()`, or of RAY_ADDRESS; otherwise one is started on this machine.

        Args:
            executable_cls: Class that each actor instantiates; `execute` passes the instance to functions.
            executable_args: Arguments for `executable_cls`.
            executable_kwargs: Keyword arguments for `executable_cls`.
            extra_env_vars: Environment variables for the actors.

        Raises:
            InvalidArgumentError: It has been started before, or an argument is invalid.
            JobError: Ray has no room, or an actor did not answer; the message says what is missing.
            MissingRayError: Ray is not installed.
        """
        if self._workers is not None:
            raise InvalidArgumentError("start: the executor has been started", remedy="shutdown()")
        if executable_cls is None and (executable_args or executable_kwargs):
            raise InvalidArgumentError(
                "executable_args: need executable_cls", remedy="executable_cls=…, or drop executable_args"
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
            self._ends.enter_context(timeline_files.replacing(self._checked.timeline, secrets.token_hex(4)))
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
        """Call `fn(*args, **kwargs)` on every rank.

        Args:
            fn: Function to call; it must be picklable.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Returns:
            The result of each call, in rank order.

        Raises:
            InvalidArgumentError: `fn` cannot be pickled, or the executor has not been started.
            JobError: A rank died, raised or is silent; the message names the first, and its cause is the exception of
                that rank.
        """
        return self._gathered(self.run_remote(fn, args, kwargs))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on every rank without waiting.

        Args:
            fn: Function to call; it must be picklable.
            args: Its arguments.
            kwargs: Its keyword arguments.

        Returns:
            Ray's object references, in rank order, for `ray.get`.

        Raises:
            InvalidArgumentError: `fn` cannot be pickled, or the executor has not been started.
        """
        workers = self._started().handles
        with sendable(fn):
            return [actor.call.remote(fn, list(args or ()), dict(kwargs or {})) for actor in workers]

    def execute(self, fn: Callable[[Any], Any]) -> list[Any]:
        """Call `fn(executable)` on every rank, with the instance that `start` created there.

        Args:
            fn: Function to call; it must be picklable.

        Returns:
            The result of each call, in rank order.

        Raises:
            InvalidArgumentError: `fn` cannot be pickled, or the executor has not been started.
            JobError: As for `run`.
        """
        workers = self._started().handles
        with sendable(fn):
            refs = [actor.execute.remote(fn) for actor in workers]
        return self._gathered(refs)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Call `fn(executable)` on rank 0 only.

        Args:
            fn: Function to call; it must be picklable.

        Returns:
            The result of the call.

        Raises:
            InvalidArgumentError: `fn` cannot be pickled, or the executor has not been started.
            JobError: As for `run`.
        """
        first = self._started().handles[0]
        with sendable(fn):
            refs = [first.execute.remote(fn)]
        return self._gathered(refs)[0]

    def shutdown(self) -> None:
        """Stop the actors and release their resources; a cluster started by `start` is stopped as well. Idempotent."""
        for actors in (self._workers, self._servers):
            if actors is not None:
                # Servers run until they are killed; after a failure there is no waiting.
                actors.end(leave=actors is self._workers and self._broken is None)
        with self._ends:
            if self._workers is not None and self.world is not None and self._checked.timeline is not None:
                timeline_files.say(timeline_files.gather(self._checked.timeline, self.world.number))
        if self._cluster is not None:
            self._cluster.disconnect()
        self._workers = self._servers = self._cluster = self.world = self._broken = None
        self._serving = {}

    def __enter__(self) -> RayExecutor:
        """Start, unless already started."""
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
            raise InvalidArgumentError("the executor has not been started", remedy="start()")
        if self._broken is not None:
            raise JobError(self._broken, remedy="shutdown() and start()")
        return self._workers

    def _gathered(self, refs: Sequence[Any]) -> list[Any]:
        workers, servers = self._workers, self._servers
        assert workers is not None
        assert servers is not None
        assert self._cluster is not None
        places = {**workers.by_name, **servers.by_name}
        calls = Calls(self._cluster.ray, workers.named(refs), watched=self._serving, places=places)
        try:
            return list(calls.results(grace_s=self.settings.grace_s).values())
        except (JobError, InvalidArgumentError) as error:
            if calls.lost or calls.silent:
                self._broken = f"the executor cannot continue: {error}"
            raise


@contextmanager
def sendable(function: Callable[..., Any]) -> Iterator[None]:
    """Turn Ray's long message about pickling into one line. Raises InvalidArgumentError."""
    try:
        yield
    except TypeError as error:
        if "serialize" not in str(error):
            raise
        name = getattr(function, "__qualname__", repr(function))
        said = next((line for line in str(error).splitlines() if "cannot pickle" in line), "")
        why = f": {said[said.index('cannot pickle') :]}" if said else ""
        raise InvalidArgumentError(
            f"{name:.80} cannot be sent to the ranks{why}", remedy="such objects made inside the function"
        ) from error


def checked_extra(variables: Mapping[str, str], source: str = "extra_env_vars") -> dict[str, str]:
    """Check that the variables are text, and not set by the executor itself. Raises InvalidArgumentError."""
    from paceline.launch.variables import stale

    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidArgumentError(
                f"{source}: {name!r:.80}: {value!r:.80} is not text", remedy=f"str({name!r:.80})"
            )
        if stale(name):
            raise InvalidArgumentError(f"{source}: {name}: the executor sets it itself", remedy=f"drop {name}")
    return dict(variables)
