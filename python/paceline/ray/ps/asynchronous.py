"""Asynchronous training through the object store: servers own parameters and states, and apply each gradient at once.

A worker's iteration is two calls: `compute`, in which backward passes every gradient to its server as soon as it is
computed, and `pull`, which waits for the parameters of the next iteration. The driver keeps some calls of each worker
queued and otherwise leaves the workers alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.async_ps.placing import parts_by_server
from paceline.async_ps.protocol import DTYPES, ModelSpec, Part, TensorSpec
from paceline.async_ps.report import Applied, staleness_of
from paceline.errors import JobError
from paceline.ray.calls import Calls
from paceline.ray.group import Actors
from paceline.ray.ps.replica import Replica, StepTimes, Trained
from paceline.ray.worker import Actor

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

_AHEAD = 2
"""Iterations of a worker that are queued, so that it does not wait for the driver."""
_LOOK_S = 1.0
"""Duration of a single wait for Ray."""


class AsyncShard(Actor):
    """A parameter server. Ray turns it into an asynchronous actor: a pull that waits keeps no other call waiting."""

    def __init__(self, workers: int) -> None:
        """Serve this many workers."""
        self._workers = workers
        self._failed: JobError | None = None

    async def fill(self, spec: ModelSpec, weights: np.ndarray) -> None:
        """Take over a model's parameters, uint8[bytes]."""
        import torch

        from paceline.async_ps.store import Store

        torch.set_num_threads(1)
        self._store = Store(spec, self._workers)
        self._store.fill(torch.from_numpy(weights.copy()), (), torch.empty(0, dtype=torch.uint8))
        self._changed = asyncio.Condition()

    async def push(self, worker: int, place: tuple[int, int], numbers: Sequence[float], gradient: np.ndarray) -> None:
        """Apply a gradient at its part and iteration. What fails here is raised by the worker's pull."""
        import torch

        part, iteration = place

        try:
            # Arrays from the object store are read-only, and some optimizers add weight decay in place.
            self._store.apply(worker, part, iteration, numbers, torch.from_numpy(gradient.copy()))
        except JobError as error:
            self._failed = self._failed or error
        async with self._changed:
            self._changed.notify_all()

    async def pull(self, worker: int, iteration: int, pushes: int) -> np.ndarray:
        """Return all parameters, uint8[bytes], once this worker may start the iteration.

        Raises JobError if a gradient cannot be applied.
        """
        store = self._store
        async with self._changed:
            await self._changed.wait_for(lambda: self._failed or store.pushed(worker) == pushes)
            if self._failed:
                raise self._failed
            store.finish(worker, iteration)
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._failed or not store.clock.missing(worker, iteration))
            copy = store.pull(worker)
            result: np.ndarray = copy.numpy().copy()
            store.snapshots.give_back(copy)
            return result

    async def leave(self, worker: int | None = None) -> None:  # type: ignore[override]
        """Wait for a worker no more; without one, for nobody."""
        if worker is not None:
            async with self._changed:
                self._store.clock.leave(worker)
                self._changed.notify_all()

    async def report(self) -> tuple[np.ndarray, dict[int, dict[int, int]], list[list[int]]]:
        """Return parameters, gradients by worker and staleness, and the order of application if it is recorded."""
        return self._store.flat.numpy().copy(), self._store.staleness(), self._store.order


class AsyncReplica(Replica):
    """A worker that pushes each gradient by itself."""

    _servers: Sequence[Any]
    _specs: Sequence[ModelSpec]

    def describe(self, servers: int, staleness: int | None, *, records_order: bool) -> list[ModelSpec]:
        """Return what each server is to hold. Raises InvalidArgumentError if servers cannot run the optimizer."""
        from paceline.async_ps.rules import rule_of

        self._rule = rule_of(self._optimizer)
        group_of = {id(it): at for at, group in enumerate(self._optimizer.param_groups) for it in group["params"]}
        names = {id(value): name for name, value in self._model.named_parameters()}
        tensors = tuple(
            TensorSpec(names[id(it)], tuple(it.shape), "float32", group_of.get(id(it), 0)) for it in self._parameters
        )
        flags = tuple(self._rule.flags_of(group) for group in self._optimizer.param_groups)
        self._specs = [
            ModelSpec(self._rule.name, flags, tensors, tuple(parts), staleness, records_order)
            for parts in parts_by_server(tensors, servers, "round-robin", {})
        ]
        return list(self._specs)

    def share(self, server: int) -> np.ndarray:
        """Return this worker's parameters of a server, uint8[bytes]."""
        import torch

        values = [self._flat(part) for part in self._specs[server].parts]
        flat: np.ndarray = torch.cat(values or [torch.empty(0)]).view(torch.uint8).numpy()
        return flat

    def connect(self, servers: Sequence[Any]) -> None:
        """Push to these servers from now on."""
        self._servers = servers
        place = {
            part.tensor: (server, at) for server, spec in enumerate(self._specs) for at, part in enumerate(spec.parts)
        }
        for index, parameter in enumerate(self._parameters):
            hook = partial(self._push, index, *place[index])
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def compute(self, step: int) -> None:
        """Run the forward and the backward pass, which pushes the gradients."""
        with self.signed():
            self._step, self._pushes = step, [0] * len(self._servers)
            self._pass_through(step)
            self._mark()

    def pull(self, step: int) -> StepTimes:
        """Wait for the parameters of the next iteration, and return this one's durations."""
        import numpy as np
        import ray

        with self.signed():
            refs = [
                server.pull.remote(self._rank, step + 1, pushes)
                for server, pushes in zip(self._servers, self._pushes, strict=True)
            ]
            for spec, flat in zip(self._specs, ray.get(refs), strict=True):
                start = 0
                for part in spec.parts:
                    own = self._flat(part).numpy()
                    np.copyto(own, flat[start : start + own.nbytes].view(own.dtype))
                    start += own.nbytes
        self._mark()
        return self._times()

    def _flat(self, part: Part) -> Tensor:
        flat: Tensor = self._parameters[part.tensor].detach().view(-1)
        return flat[part.start : part.start + part.count]

    def _push(self, index: int, server: int, part: int, parameter: torch.nn.Parameter) -> None:
        group = self._specs[server].tensors[index].group
        numbers = self._rule.numbers_of(self._optimizer.param_groups[group])
        assert parameter.grad is not None, "backward has computed it"
        # Copied into the object store, or into the call, before this returns.
        gradient = parameter.grad.detach().reshape(-1).numpy()
        self._servers[server].push.remote(self._rank, (part, self._step), numbers, gradient)
        self._pushes[server] += 1


class AsyncRun:
    """The driver of one training run."""

    def __init__(self, ray: Any, replicas: Actors, shards: Actors, grace_s: float) -> None:  # noqa: ANN401
        """Drive these workers and servers."""
        self._ray, self._replicas, self._shards, self._grace_s = ray, replicas, shards, grace_s

    def start(self, staleness: int | None, *, records_order: bool) -> None:
        """Give the servers rank 0's parameters, and the workers the servers. Raises JobError, InvalidArgumentError."""
        count = len(self._shards.handles)
        described = self._replicas.all(
            lambda actor: actor.describe.remote(count, staleness, records_order=records_order), "describe the model"
        )
        self._specs: list[ModelSpec] = described[0]
        numbers = iter(range(count))

        def fill(actor: Any) -> Any:  # noqa: ANN401
            number = next(numbers)
            return actor.fill.remote(self._specs[number], self._replicas.handles[0].share.remote(number))

        self._shards.all(fill, "take over rank 0's parameters")
        handles = list(self._shards.handles)
        self._replicas.all(lambda actor: actor.connect.remote(handles), "take their servers")

    def run(self, steps: int, timeout_s: float, progress: Callable[[int, int], None], nodes: int) -> Trained:
        """Train. Raises JobError naming who died, failed, or did not answer within the time limit."""
        names = list(self._replicas.by_name)
        ended: list[list[StepTimes]] = [[] for _ in names]
        queued: list[deque[tuple[Any, Any]]] = [deque() for _ in names]
        counts = [0] * len(names)
        since = [time.monotonic()] * len(names)
        done = 0
        while any(len(times) < steps for times in ended):
            for rank, actor in enumerate(self._replicas.handles):
                while len(queued[rank]) < _AHEAD and counts[rank] < steps:
                    queued[rank].append((actor.compute.remote(counts[rank]), actor.pull.remote(counts[rank])))
                    counts[rank] += 1
            heads = {calls[0][1]: rank for rank, calls in enumerate(queued) if calls}
            ready, _ = self._ray.wait(list(heads), num_returns=1, timeout=min(_LOOK_S, timeout_s))
            for ref in ready:
                rank = heads[ref]
                try:
                    ended[rank].append(self._ray.get(ref))
                except Exception:  # Which of several failures is the cause, `Calls` finds.
                    self._check(queued, done + 1, timeout_s, timeout_s)
                    raise
                queued[rank].popleft()
                since[rank] = time.monotonic()
                if len(ended[rank]) == steps:
                    for shard in self._shards.handles:
                        shard.leave.remote(rank)
            waited = max((time.monotonic() - since[rank] for rank in heads.values() if queued[rank]), default=0.0)
            if waited >= timeout_s:
                self._check(queued, done + 1, timeout_s, waited)
            while done < min(len(times) for times in ended):
                done += 1
                progress(done, steps)
        return self._conclude(ended, nodes)

    def _check(self, queued: Sequence[Sequence[tuple[Any, Any]]], step: int, timeout_s: float, waited_s: float) -> None:
        """Raise JobError that names the first cause, or those for which others wait."""
        names = list(self._replicas.by_name)
        heads = {name: calls[0] for name, calls in zip(names, queued, strict=True) if calls}
        places = {**self._replicas.by_name, **self._shards.by_name}
        computed = {name: compute for name, (compute, _) in heads.items()}
        calls = Calls(self._ray, {name: pull for name, (_, pull) in heads.items()}, places=places, earlier=(computed,))
        calls.results(grace_s=self._grace_s, timeout_s=timeout_s, waited_s=waited_s, doing=f"step {step}")

    def _conclude(self, ended: Sequence[Sequence[StepTimes]], nodes: int) -> Trained:
        import numpy as np

        reports = self._shards.all(lambda actor: actor.report.remote(), "report")
        weights: dict[str, np.ndarray] = {}
        applied = []
        for spec, (flat, _, order) in zip(self._specs, reports, strict=True):
            start = 0
            for part in spec.parts:
                tensor = spec.tensors[part.tensor]
                end = start + part.count * DTYPES[tensor.dtype]
                weights[tensor.name] = flat[start:end].view(np.float32).reshape(tensor.shape).copy()
                start = end
            name = [spec.tensors[part.tensor].name for part in spec.parts]
            applied.append([Applied(name[part], 0, *others) for part, *others in order])
        return Trained(
            steps=ended,
            weights={tensor.name: weights[tensor.name] for tensor in self._specs[0].tensors},
            workers=len(ended),
            nodes=nodes,
            servers=len(self._specs),
            staleness=staleness_of(counts for _, counts, _ in reports),
            applied=applied,
        )
