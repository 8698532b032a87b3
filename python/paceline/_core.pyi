"""The native module: the contract between Rust and Python. Structured values pass as JSON text."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike

__version__: str

class Trace:
    """What one worker computes in one iteration (docs/reference/trace-format.md). Immutable."""

    @staticmethod
    def read(path: str | PathLike[str]) -> Trace: ...
    @staticmethod
    def from_json(text: bytes, source: str) -> Trace: ...
    @staticmethod
    def all_reduce(spec: str) -> Trace: ...
    @staticmethod
    def import_sends(
        aggregation: str | PathLike[str],
        distribution: str | PathLike[str],
        *,
        name: str,
        batch: int,
        forward_s: float,
        first_gradient_s: float = 0.0,
        backward_s: float | None = None,
        dtype: str = "float32",
        device: str = "",
        provenance: str = "",
    ) -> Trace: ...
    def scaled_to_rate(self, samples_per_s: float) -> Trace: ...
    def with_batch(self, batch: int) -> Trace: ...
    def with_dtype(self, dtype: str) -> Trace: ...
    def with_modules(self, spec: str) -> Trace: ...
    def to_json(self) -> str: ...
    def buckets(self, bucket_size: int | None = None) -> list[list[str]]: ...
    def summary(self) -> str: ...

class Cluster:
    """Nodes, links, racks and what the switch can do (docs/reference/cluster-format.md). Immutable."""

    @staticmethod
    def read(path: str | PathLike[str]) -> Cluster: ...
    @staticmethod
    def from_json(text: bytes, source: str) -> Cluster: ...
    def to_json(self) -> str: ...

class Graph:
    """The operations of one training step and what each needs (docs/reference/coordinator-plan.md). Immutable."""

    name: str
    nodes: int
    edges: int
    all_reduces: int
    fetches: list[str]
    """Names of the nodes from which the file wants it traversed; may be empty."""

    @staticmethod
    def read(path: str | PathLike[str]) -> Graph: ...
    @staticmethod
    def from_json(text: bytes, source: str) -> Graph: ...
    def to_json(self) -> str: ...
    def plan(self, fetches: Sequence[str], bucket_size: int, *, as_listed: bool = False) -> str:
        """Ids and buckets, as JSON (`paceline.plan.Plan`).

        Ids are by depth, or follow the graph's list. Raises InvalidArgumentError for an unknown fetch, none, a cycle,
        and a list with a child before its parent.
        """

def simulate(trace: Trace, cluster: Cluster, options: str, timeline: str | PathLike[str] | None = None) -> str: ...
def replay(trace: Trace, cluster: Cluster, options: str, worker: int, iterations: int) -> str:
    """What this worker does in a simulation with these options, as JSON: buckets, layers, when gradients are ready."""

def strategies() -> str: ...
def coordinate(trace: Trace, cluster: Cluster, options: str) -> str:
    """Simulates training under a coordinator: JSON to JSON (paceline.forecast.coordination makes and reads it)."""

def coordinator_constants() -> str: ...
def coordinators() -> str: ...
def simulate_agreement(scenario: str) -> str:
    """Drive the coordinators' state machines with simulated events; JSON in and out (crates/simulator, agreement)."""

def parse_rate(text: str) -> float: ...
def parse_size(text: str) -> int: ...
def parse_time(text: str) -> float: ...
def nearest(word: str, candidates: list[str]) -> str | None: ...
def mpi_exchange(rank: int, size: int, settings: str, blob: bytes) -> list[bytes]:
    """What every rank called it with, in rank order, through the MPI library of `settings` (as for Engine.start).

    Initialises MPI. Raises InvalidArgumentError where there is no library or it sees this process in another place than
    `rank` of `size`, JobError for ranks that do not come.
    """

def mpi_library(named: str | None = None) -> tuple[PathLike[str], str]:
    """Path, and name and version, of the MPI library that a job would take; it is loaded, not initialised.

    `named`: PACELINE_MPI_LIBRARY. Raises InvalidArgumentError, which names what was tried.
    """

class Engine:
    """This process's part of a job: connections to all ranks, shared memory, two background threads.

    `settings` is JSON (paceline.job.settings makes it): transport (auto, shm, tcp, mpi, grpc, grpc+tcp, grpc+mpi),
    interface, secret, rendezvous ("host:port" of rank 0 where there is no `exchange`), timeout_s, start_timeout_s,
    strategy, chunk, inside, servers, streams, tls. `exchange` gives what every rank called it with, in rank order (an
    all-gather of small blobs, by torch's store for example).
    """

    rank: int
    size: int
    """Ranks of the job, parameter servers with processes of their own included."""
    @staticmethod
    def start(
        rank: int, size: int, settings: str, exchange: Callable[[bytes], list[bytes]] | None = None
    ) -> Engine: ...
    def world(self) -> Communicator:
        """All ranks. They call it together: unless a strategy was named, they measure what is fastest for each size."""
    def group(self, ranks: Sequence[int], name: str) -> Communicator:
        """A communicator of these ranks of the job, in this order; each of them calls it with the same name.

        It waits for the others, and a group of a shape not seen before measures as world() does.
        """
    def coordinator(
        self,
        ranks: Sequence[int],
        name: str,
        *,
        cycle_time_s: float = 0.001,
        threshold: int = 128 << 20,
        capacity: int = 1024,
        warn_after_s: float | None = 60.0,
        give_up_after_s: float | None = 600.0,
        core: int | None = None,
        placement: Mapping[str, int] = ...,
        policy: str = "negotiate",
        bucket: tuple[int, int] = ...,
    ) -> Coordinator:
        """A coordinator of these ranks of the job, in this order; each of them calls it with the same name.

        Tensors that become ready within `cycle_time_s` seconds go together, in all-reduces of up to `threshold` bytes;
        `capacity` names are remembered. A tensor that not all ranks have asked for is told of after `warn_after_s`
        seconds, and fails after `give_up_after_s` (None: never). `core`: where its thread and
        the engine's progress thread run. `placement`: parameter servers of tensors by name; others are placed in turn.
        `policy`: as `coordinators` lists them. `bucket`: bytes of the first planned bucket, and of others, at most.
        """
    def next_notice(self, timeout_s: float) -> tuple[int, str | None] | None:
        """The `notify` of an operation that has finished since, and its error; None after the time. Lets others run."""
    def status(self) -> str:
        """JSON: transports by peer, the first rank on each peer's host, operations in flight, bytes moved."""
    def serve(self, timeout_s: float) -> bool:
        """On a parameter server: take part in what the workers begin, for a while; whether they have all left."""
    def start_timeline(self, path: str) -> None:
        """Record what this rank does, into this file, which is written when it stops."""
    def stop_timeline(self) -> None:
        """Write the timeline, if one was started; close() does so, too."""
    def mark(self, category: str, name: str, begin: int, end: int) -> None:
        """Add what the script did to the timeline; times by time.monotonic_ns()."""
    def close(self) -> None:
        """Says goodbye to the other ranks and ends the threads. Operations in flight fail. May be called twice."""
    def forget_after_fork(self) -> None:
        """In a forked child: lets go of the parent's connections, so that others see its end. All else refuses."""

class Communicator:
    """A group of ranks. Each of them calls the same operations in the same order."""

    rank: int
    size: int
    ranks: list[int]
    def submit(
        self,
        call: str,
        *,
        inputs: Sequence[tuple[int, int]] = (),
        outputs: Sequence[tuple[int, int]] = (),
        dtype: str = "uint8",
        op: str = "sum",
        root: int = 0,
        tag: int = 0,
        counts: Sequence[int] | None = None,
        out_counts: Sequence[int] | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        strategy: str | None = None,
        label: str = "",
        timeout_s: float | None = None,
        keep: object = None,
        notify: int | None = None,
        background: bool = True,
        step: tuple[bool, int] | None = None,
        pull_only: bool = False,
        bucket: int | None = None,
    ) -> Operation:
        """Begin an operation. Buffers are (address, elements), taken one after the other as if they were one.

        `keep` is held until the operation has finished: the owner of the memory. `notify` asks for a notice. With
        `background=False` nothing moves until somebody waits: for callers that do so at once. `bucket` is the number
        by which an all-reduce is placed on servers; without it they are counted.

        | call | inputs | outputs | else |
        | --- | --- | --- | --- |
        | all_reduce, broadcast, reduce | in place | none | op; root |
        | all_gather | own elements | all ranks', in rank order | counts: of each rank (default: all alike) |
        | gather | own elements | at root as all_gather | root, counts |
        | scatter | at root: all ranks' in order | own elements | root, counts |
        | reduce_scatter | all ranks' parts, in rank order | own part | op, counts |
        | all_to_all | parts for each rank | parts from each | counts: sent; out_counts: received |
        | barrier | | | |
        | send | elements | none | root: to whom; tag |
        | recv | none | elements | root: from whom, -1: anybody; tag |
        """
    def all_reduce(self, address: int, elements: int, dtype: str, op: str) -> None:
        """All-reduce one buffer and wait for it. If that is interrupted, the communicator fails at all ranks."""
    def choices(self) -> list[tuple[int, str]]:
        """Sizes in bytes, in rising order, and what all-reduces up to each take."""

class Operation:
    """An operation in flight."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait without the GIL; False after the time. Raises JobError if it failed. Ctrl-C interrupts."""
    def done(self) -> bool: ...
    def source(self) -> int:
        """The rank that a finished recv from anybody came from."""

class Coordinator:
    """Operations on named tensors, which ranks ask for in any order: they begin when all have asked.

    It has a thread of its own, which sleeps while there is nothing to agree on. Any thread may call it.
    """

    rank: int
    size: int
    ranks: list[int]
    def request(
        self,
        call: str,
        name: str,
        *,
        inputs: Sequence[tuple[int, int]] = (),
        dtype: str = "uint8",
        shape: Sequence[int] = (),
        device: str = "cpu",
        op: str = "",
        own: Sequence[int] = (),
        root: int | None = None,
        prescale: float = 1.0,
        postscale: float = 1.0,
        keep: object = None,
    ) -> NamedOperation:
        """Describe an operation on a tensor; it is asked for by `submit`.

        Raises InvalidArgumentError for what cannot be.

        `inputs` are (address, elements), taken one after the other; `keep` owns them, and is held until it is over.
        `dtype` is compared and told to people; one that the runtime does not reduce is moved as bytes, and then
        `inputs` and `shape` count bytes. `shape` is what all ranks must have alike.

        | call | inputs | shape | else | result |
        | --- | --- | --- | --- | --- |
        | all_reduce | in place | of the tensor | op: sum, min, max, product; prescale, postscale | |
        | broadcast | in place | of the tensor | root: a rank of the group | |
        | all_gather | own rows | of a row | own: [rows] | all rows, in rank order |
        | reduce_scatter | the tensor | of the tensor | op, prescale, postscale | own rows (first ranks: one more) |
        | all_to_all | rows for each rank | of a row | own: rows for each rank | rows from each rank |
        | barrier | | | | |
        """
    def submit(self, operations: Sequence[NamedOperation], *, waits: bool = False) -> None:
        """Ask for operations that begin together or not at all. `waits`: the caller will wait for them at once.

        Raises JobError if the coordinator has failed, and InvalidArgumentError for a request that was submitted before.
        """
    def submit_step(self, of: str, operations: Sequence[NamedOperation], *, late: bool = False) -> None:
        """Ask for operations on gradients of optimizer `of`, in an order to plan (docs/explanation/coordinator.md).

        `late`: they were not computed, but stand for what was missing at the end of the backward pass. `flush(of)`
        follows when no more come in the step, and `ended(of)` after they have been waited for. Raises as `submit`.
        """
    def flush(self, of: str) -> None:
        """No more operations come in this step of optimizer `of`. Raises JobError if the coordinator has failed."""
    def ended(self, of: str) -> None:
        """The operations of a step have been waited for. It waits for no rank that has not come as far; Ctrl-C is seen.

        Raises JobError if the coordinator has failed.
        """
    def counts(self) -> dict[str, int]:
        """What ranks have told each other (votes, reports, decisions), and buckets that began (negotiated, planned)."""
    def join(self) -> NamedOperation:
        """From now on this rank takes part with zeros, until all ranks have joined: then it is over.

        Its source() is the rank that joined last.
        """
    def close(self) -> None:
        """End the thread; what is in flight fails. May be called twice. The end of the engine does it, too."""

class NamedOperation:
    """An operation on a named tensor."""

    name: str
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait without the GIL; False after the time. Raises JobError if it failed. Ctrl-C interrupts."""
    def done(self) -> bool: ...
    def data(self) -> bytearray:
        """The result of all_gather, reduce_scatter and all_to_all, once it is over: memory that may be written.

        It has the buffer protocol, and is in truth a class of the native module.
        """
    def own(self) -> list[list[int]]:
        """What each rank gave as `own`; empty for a rank that has joined."""
    def source(self) -> int:
        """Of a join: the rank that joined last."""
