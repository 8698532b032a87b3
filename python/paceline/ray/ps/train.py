"""The driver of training through the object store: it passes references and never holds a tensor."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, get_args

from paceline.errors import InvalidArgumentError
from paceline.ray.calls import Calls
from paceline.ray.cluster import Cluster, connected
from paceline.ray.group import Actors
from paceline.ray.layout import Layout
from paceline.ray.ps.asynchronous import AsyncReplica, AsyncRun, AsyncShard
from paceline.ray.ps.replica import Inside, Replica, Shard, StepTimes, Task, Trained
from paceline.ray.settings import RaySettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_AHEAD = 2
"""Steps in flight, so that no actor waits for the driver."""


def train(
    model: Callable[[], nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    batch: Callable[[int, int], tuple[Tensor, Tensor]],
    *,
    steps: int,
    workers: int | None = None,
    hosts: int | None = None,
    workers_per_host: int | None = None,
    servers: int | None = None,
    asynchronous: bool = False,
    staleness: int | None = None,
    record_order: bool = False,
    inside: Inside = "root",
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    seed: int = 0,
    cpus_per_worker: float = 1,
    settings: RaySettings | None = None,
    timeout_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trained:
    """Train a model with synchronous or asynchronous SGD through Ray's object store.

    Args:
        model: Creates the model; called on every worker after `torch.manual_seed(seed)`. All start from rank 0's
            parameters and buffers.
        optimizer: Creates the optimizer of the trainable parameters.
        batch: Returns inputs and targets for (rank, step).
        steps: Number of steps.
        workers: Number of workers.
        hosts: Number of Ray nodes, instead of `workers`.
        workers_per_host: Workers on each of `hosts`.
        servers: Parameter servers, on the workers' nodes in turn; by default one for each node.
        asynchronous: Servers own parameters and the optimizer's states, and apply each gradient when it arrives: the
            strategy `async-ps`. The optimizer is one of torch's SGD, Adam, AdamW, Adagrad and RMSprop.
        staleness: N: a worker may start step c only when every other worker has finished step c - N - 1; by default
            there is no bound. For asynchronous training.
        record_order: Return which gradient was applied when. For asynchronous training.
        inside: How the workers of a node reduce before they push: `"root"` (the first adds up what the others send it,
            which the publication calls Simple) or `"ring"` (each adds a part in a ring, as NCCL does, and pushes it).
        loss: Maps (outputs, targets) to a mean over the batch; by default cross entropy.
        seed: Seed of the model's initialization.
        cpus_per_worker: CPUs that Ray reserves for each worker.
        settings: Time limits and network.
        timeout_s: Seconds in which a step must end; by default `settings.timeout_s`.
        progress: Called with the number of finished steps and the total.

    Returns:
        Durations of the steps, and the trained weights.

    Raises:
        InvalidArgumentError: An argument is invalid.
        JobError: An actor died or failed, or Ray has no room; the message says which.
        MissingRayError: Ray is not installed.

    Example:
        >>> trained = train(make_model, make_optimizer, batch, steps=10, workers=4)  # doctest: +SKIP
    """
    if steps < 1:
        raise InvalidArgumentError(f"steps: must be at least 1, not {steps}", remedy="steps=100")
    if servers is not None and servers < 1:
        raise InvalidArgumentError(
            f"servers: must be at least 1, not {servers}", remedy="servers=1, or drop servers (one on each node)"
        )
    if staleness is not None and not (isinstance(staleness, int) and staleness >= 0):
        raise InvalidArgumentError(f"staleness: must be a number from 0, not {staleness!r:.80}", remedy="staleness=2")
    if not asynchronous and (staleness is not None or record_order):
        raise InvalidArgumentError(
            "staleness, record_order: have no effect on synchronous training", remedy="asynchronous=True"
        )
    if asynchronous and inside != "root":
        raise InvalidArgumentError(
            f"inside: {inside!s:.80} has no effect on asynchronous training, in which each worker pushes by itself",
            remedy="drop inside",
        )
    if inside not in get_args(Inside):
        raise InvalidArgumentError(f"inside: unknown '{str(inside)[:80]}'", remedy='inside="root" or "ring"')
    layout = Layout(
        num_workers=workers, num_hosts=hosts, num_workers_per_host=workers_per_host, cpus_per_worker=cpus_per_worker
    )
    task = Task(model=model, optimizer=optimizer, batch=batch, loss=loss, seed=seed)
    settings = settings or RaySettings()
    with connected() as cluster:
        training = _Training(cluster, settings, layout, task, inside)
        try:
            if asynchronous:
                training.start(servers, AsyncReplica, AsyncShard)
                run = AsyncRun(cluster.ray, training.replicas, training.shards, settings.grace_s)
                run.start(staleness, records_order=record_order)
                limit_s = timeout_s or settings.timeout_s
                return run.run(steps, limit_s, progress or (lambda *_: None), training.node_count)
            training.start(servers)
            return training.run(steps, timeout_s or settings.timeout_s, progress or (lambda *_: None))
        finally:
            training.end()


@dataclass(frozen=True)
class _Step:
    """References to the results of the step, by actor name."""

    stages: Sequence[Mapping[str, Any]]
    """References to gradients, then what is passed on, then sums of nodes, then means."""
    ends: Mapping[str, Any]
    """References to the ranks' step times."""


@dataclass(frozen=True)
class _Reduced:
    """References to a node's sums."""

    parts: Sequence[Sequence[Any]]
    """By part, then by server."""
    stages: Sequence[Mapping[str, Any]]
    """References that tell who is late, by actor name, in order."""


class _Training:
    """The actors of one training run."""

    def __init__(self, cluster: Cluster, settings: RaySettings, layout: Layout, task: Task, inside: Inside) -> None:
        self._inside = inside
        self._ray, self._settings, self._layout, self._task = cluster.ray, settings, layout, task
        self.replicas, self.shards = Actors("rank", cluster, settings), Actors("server", cluster, settings)
        self._nodes: list[list[int]] = []
        """The ranks of each node; the first one is its root."""

    def start(self, servers: int | None, replica: type = Replica, shard: type = Shard) -> None:
        layout, replicas = self._layout, self.replicas
        replicas.start(
            replica,
            layout.room,
            per_bundle=layout.per_bundle,
            cpus=layout.cpus_per_worker,
            sort=True,
        )
        nodes = list(dict.fromkeys(place.node for place in replicas.places))
        self._nodes = [[rank for rank, place in enumerate(replicas.places) if place.node == node] for node in nodes]
        count = servers or len(nodes)
        self.shards.start_on([nodes[number % len(nodes)] for number in range(count)], shard, (layout.workers,))
        task = self._ray.put(self._task)
        replicas.all(lambda actor: actor.prepare.remote(task), "make the model")
        first = replicas.handles[0].state.remote()
        ranks = iter(range(layout.workers))
        replicas.all(lambda actor: actor.begin.remote(next(ranks), first), "take over rank 0's parameters")

    @property
    def node_count(self) -> int:
        """Return the number of nodes with workers."""
        return len(self._nodes)

    def run(self, steps: int, timeout_s: float, progress: Callable[[int, int], None]) -> Trained:
        replicas = self.replicas
        steps_by_rank: list[list[StepTimes]] = [[] for _ in replicas.handles]
        under_way: deque[_Step] = deque()
        for number in range(steps + _AHEAD - 1):
            if number < steps:
                under_way.append(self._ask(number))
            if len(under_way) == _AHEAD or number >= steps - 1:
                ended = self._await(under_way.popleft(), timeout_s, f"step {len(steps_by_rank[0]) + 1}")
                for rank, times in enumerate(ended.values()):
                    steps_by_rank[rank].append(times)
                progress(len(steps_by_rank[0]), steps)
        last = _Step((), {"rank 0": replicas.handles[0].weights.remote()})
        weights = self._await(last, self._settings.timeout_s, "send the weights")["rank 0"]
        return Trained(
            steps=steps_by_rank,
            weights=weights,
            workers=len(steps_by_rank),
            nodes=len(self._nodes),
            servers=len(self.shards.handles),
            inside=self._inside,
        )

    def end(self) -> None:
        self.replicas.end(leave=False)
        self.shards.end(leave=False)

    def _ask(self, step: int) -> _Step:
        """Start a step."""
        reduced = [(self._by_ring if self._inside == "ring" else self._at_root)(step, node) for node in self._nodes]
        shards = self.shards.handles
        # Part by part, each from all nodes in order, so that the means in their order are the whole gradient.
        means = [
            shard.mean.remote(*(node.parts[part][number] for node in reduced))
            for part in range(self._parts)
            for number, shard in enumerate(shards)
        ]
        by_node = zip_longest(*(node.stages for node in reduced), fillvalue={})
        stages = [{name: one for own in nodes for name, one in own.items()} for nodes in by_node]
        stages += [self.shards.named(means[at : at + len(shards)]) for at in range(0, len(means), len(shards))]
        ends = self.replicas.named([replica.apply.remote(*means) for replica in self.replicas.handles])
        return _Step(stages, ends)

    @property
    def _parts(self) -> int:
        """Parts of the gradient that ranks of a node push: with a ring one for each position that every node has."""
        return min(map(len, self._nodes)) if self._inside == "ring" else 1

    def _at_root(self, step: int, node: Sequence[int]) -> _Reduced:
        """Let the first rank add up the gradients of the node."""
        root, *others = node
        gradients = {f"rank {root}": self.replicas.handles[root].compute.remote(step)}
        sent = {f"rank {rank}": self.replicas.handles[rank].gradient.remote(step) for rank in others}
        pieces = self._sums(root, 0, gradients[f"rank {root}"], *sent.values())
        return _Reduced([pieces], [gradients | sent, {f"rank {root}": pieces[0]}])

    def _by_ring(self, step: int, node: Sequence[int]) -> _Reduced:
        """Let part p go around the ring from the rank behind position p to that position, which pushes it."""
        replicas, size, parts = self.replicas.handles, len(node), self._parts
        computed = {f"rank {rank}": replicas[rank].compute.remote(step) for rank in node}
        stages: list[dict[str, Any]] = [computed]
        passed: list[tuple[Any, ...]] = [()] * parts
        # Hop by hop: an actor runs its calls in this order, so that none waits behind one that needs it.
        for hop in range(size - 1):
            at = [node[(part + 1 + hop) % size] for part in range(parts)]
            passed = [
                (replicas[rank].pass_on.remote(part, parts, computed[f"rank {rank}"], *passed[part]),)
                for part, rank in enumerate(at)
            ]
            stages.append({f"rank {rank}": reference for rank, (reference,) in zip(at, passed, strict=True)})
        pieces = [self._sums(node[part], part, computed[f"rank {node[part]}"], *passed[part]) for part in range(parts)]
        stages.append({f"rank {rank}": own[0] for rank, own in zip(node, pieces, strict=False)})
        return _Reduced(pieces, stages)

    def _sums(self, rank: int, part: int, *others: Any) -> list[Any]:  # noqa: ANN401 - references
        """Return references to the shards of a part's sum, one for each server."""
        count = len(self.shards.handles)
        call = self.replicas.handles[rank].sums.options(num_returns=count)
        pieces = call.remote(count, part, self._parts, *others)
        return list(pieces) if count > 1 else [pieces]

    def _await(self, step: _Step, timeout_s: float, doing: str) -> dict[str, Any]:
        places = {**self.replicas.by_name, **self.shards.by_name}
        calls = Calls(self._ray, step.ends, places=places, earlier=step.stages)
        return calls.results(grace_s=self._settings.grace_s, timeout_s=timeout_s, doing=doing)
