"""A server of asynchronous training: it receives requests as they come, and applies each gradient at once.

One thread does everything. The engine's progress thread moves the bytes meanwhile, so no worker waits for another's
message: each has a request posted, and a gradient's memory is posted as soon as its announcement is here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from paceline._core import Communicator, Engine
from paceline._internal.units import duration
from paceline.async_ps import rules
from paceline.async_ps.protocol import (
    CONTROL,
    DATA,
    GROUP,
    MOST_TEXT,
    REPLY,
    REQUEST,
    TEXT,
    WEIGHTS,
    Kind,
    ModelSpec,
    Registration,
    Reply,
    Request,
    difference,
)
from paceline.async_ps.report import ANSWER, applied_label
from paceline.async_ps.store import Store, digest_of
from paceline.errors import JobError
from paceline.job.arrays import memory
from paceline.job.settings import LONGEST_TIMEOUT_S
from paceline.settings.table import LEAST_START_S

_LOOK_S = 0.1
"""How often a server looks whether workers have left, or have waited too long."""


@dataclass
class _Waiting:
    """A pull whose iteration may not start yet."""

    worker: int
    store: Store
    request: Request
    since: float


class _Model:
    """One model, and the workers that take part."""

    def __init__(self, spec: ModelSpec, first: int) -> None:
        self.spec, self.first = spec, first
        self.digests: dict[int, str] = {}
        self.since: dict[int, float] = {}
        """When each worker described it."""
        self.admitted: set[int] = set()
        self.store: Store | None = None
        self.buffers: dict[int, list[Tensor]] = {}


class Service:
    """Serves the workers of one job until it fails or they leave."""

    def __init__(self, engine: Engine, workers: int, patience_s: float, *, marks: bool) -> None:
        """`patience_s`: how long a pull may wait for a worker that is behind. `marks`: write to the timeline."""
        self._engine, self._workers, self._patience_s, self._marks = engine, workers, patience_s, marks
        self._group: Communicator = engine.with_servers(GROUP)
        self._next = 0
        self._then: dict[int, Callable[[], None]] = {}
        self._models: dict[int, _Model] = {}
        self._waiting: list[_Waiting] = []
        self._heard = [time.monotonic()] * workers
        self._refused: dict[int, JobError] = {}
        self._owing: set[int] = set()
        """Workers that wait for an answer."""
        self._finished: set[int] = set()
        """Workers that nobody waits for any more."""
        self._looked = 0.0
        self._failed = False
        for worker in range(workers):
            self._listen(worker)
        rules.prepare()

    def run(self) -> None:
        """Serve until all workers have left."""
        while not self._failed:
            notice = self._engine.next_notice(_LOOK_S)
            if notice is not None:
                number, error = notice
                then = self._then.pop(number)
                if error is not None:
                    # The workers report it: what failed here has failed for them, too.
                    self._failed = True
                    break
                then()
            if self._is_time() and self._engine.serve(0.0):
                return
        while not self._engine.serve(2 * _LOOK_S):
            pass

    def _is_time(self) -> bool:
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        self._give_up(now)
        return True

    def _receive(self, worker: int, tag: int, into: bytearray | Tensor, label: str, then: Callable[[], None]) -> None:
        self._submit("recv", (worker, tag), into, label, then)

    def _send(
        self, worker: int, tag: int, data: bytearray | Tensor, label: str, then: Callable[[], None] | None = None
    ) -> None:
        self._submit("send", (worker, tag), data, label, then or _nothing)

    def _submit(
        self, call: str, to: tuple[int, int], data: bytearray | Tensor, label: str, then: Callable[[], None]
    ) -> None:
        worker, tag = to
        self._next += 1
        regions = [(data.data_ptr(), data.nbytes)] if isinstance(data, Tensor) else memory(data, label).regions
        self._then[self._next] = then
        try:
            self._group.submit(
                call,
                inputs=regions if call == "send" else (),
                outputs=regions if call == "recv" else (),
                root=worker,
                tag=tag,
                label=label,
                # A worker may compute for long; one that is stopped or gone is noticed all the same.
                timeout_s=LONGEST_TIMEOUT_S,
                keep=data,
                notify=self._next,
            )
        except JobError:
            self._failed = True

    def _listen(self, worker: int) -> None:
        message = bytearray(REQUEST)
        self._receive(worker, CONTROL, message, "the next request", partial(self._handle, worker, message))

    def _handle(self, worker: int, message: bytearray) -> None:
        self._heard[worker] = time.monotonic()
        try:
            request = Request.parsed(message)
            if request.kind in {Kind.FINISH, Kind.LEAVE}:
                self._finish(worker)
                if request.kind is Kind.FINISH:
                    self._listen(worker)
                return
            if request.kind is not Kind.PUSH:
                self._owing.add(worker)
            if worker in self._refused:
                raise self._refused[worker]
            if worker in self._finished and request.kind in {Kind.MODEL, Kind.PUSH, Kind.PULL}:
                raise JobError(f"rank {worker} trains after hvd.join()", remedy="hvd.join() after the last step")
            self._begin(worker, request)
        except JobError as error:
            self._refuse(worker, error)
        self._listen(worker)

    def _begin(self, worker: int, request: Request) -> None:
        match request.kind:
            case Kind.MODEL:
                if not 0 < request.size <= MOST_TEXT:
                    raise JobError(f"rank {worker} describes its model in {request.size} bytes")
                text = bytearray(request.size)
                then = partial(self._guarded, worker, self._register, request, text)
                self._receive(worker, DATA, text, "the description of a model", then)
            case Kind.PUSH:
                store = self._store(worker, request)
                store.check(worker, request.part, request.iteration)
                free = self._models[request.model].buffers.setdefault(request.part, [])
                gradient = free.pop() if free else store.new_gradient(request.part)
                then = partial(self._guarded, worker, self._apply, request, gradient)
                self._receive(worker, DATA, gradient, f"the gradient of '{store.name(request.part)}'", then)
            case Kind.PULL:
                self._waiting.append(_Waiting(worker, self._store(worker, request), request, time.monotonic()))
                self._release()
            case Kind.STATES:
                self._send_states(worker, self._store(worker, request))
            case Kind.REPORT:
                store = self._store(worker, request)
                order = store.order if request.size else []
                self._answer(worker, json.dumps({"staleness": store.staleness(), "order": order}).encode())

    def _guarded(self, worker: int, function: Callable[..., None], *arguments: object) -> None:
        """Call the function, and refuse the worker if it fails."""
        try:
            function(worker, *arguments)
        except JobError as error:
            self._refuse(worker, error)
        except (RuntimeError, LookupError, TypeError, ValueError, MemoryError) as error:
            # What torch cannot do here, such as with the states of another optimizer.
            self._refuse(worker, JobError(f"a server cannot train rank {worker}'s model: {error!r:.300}"))

    def _store(self, worker: int, request: Request) -> Store:
        model = self._models.get(request.model)
        if model is None or model.store is None or worker not in model.admitted:
            raise JobError(f"rank {worker} uses a model that it has not described")
        return model.store

    def _register(self, worker: int, request: Request, text: bytearray) -> None:
        """Compare a worker's model with the others'. Worker 0 sends weights and states, for which all wait."""
        registration = Registration.parsed(bytes(text))
        model = self._models.setdefault(request.model, _Model(registration.spec, worker))
        differs = difference(registration.spec, model.spec)
        if differs is not None:
            raise JobError(
                f"rank {worker} trains another model than rank {model.first}: {differs}",
                remedy="the same model and optimizer on all ranks",
            )
        if worker in model.digests:
            raise JobError(f"rank {worker} describes its model twice")
        if worker != 0:
            model.digests[worker] = registration.digest
            model.since[worker] = time.monotonic()
            self._admit(request.model)
            return
        store = Store(registration.spec, self._workers)
        for gone in self._finished:
            store.clock.leave(gone)
        values = torch.empty(store.flat.nbytes + store.nbytes_of(registration.states), dtype=torch.uint8)

        def fill(worker: int) -> None:
            weights = values[: store.flat.nbytes]
            if digest_of([weights]) != registration.digest:
                raise JobError(f"rank {worker} changed its parameters while they were sent")
            store.fill(weights, registration.states, values[store.flat.nbytes :])
            model.store = store
            model.digests[worker] = registration.digest
            self._admit(request.model)

        self._receive(worker, DATA, values, "the first parameters", partial(self._guarded, worker, fill))

    def _admit(self, number: int) -> None:
        """Answer those that wait for the first parameters, once these are here."""
        model = self._models[number]
        if model.store is None:
            return
        for worker, digest in model.digests.items():
            if worker in model.admitted:
                continue
            if digest == model.digests[0]:
                model.admitted.add(worker)
                self._answer(worker, b"{}")
                continue
            error = JobError(
                f"rank {worker} starts with other parameters than rank 0",
                remedy="hvd.broadcast_parameters(model.state_dict(), root_rank=0)",
            )
            self._refuse(worker, error)

    def _apply(self, worker: int, request: Request, gradient: Tensor) -> None:
        since = time.monotonic_ns()
        model = self._models[request.model]
        store = self._store(worker, request)
        staleness = store.apply(worker, request.part, request.iteration, request.numbers, gradient)
        model.buffers[request.part].append(gradient)
        if self._marks:
            name = applied_label(store.name(request.part), worker, staleness)
            self._engine.mark("apply", name, since, time.monotonic_ns())
        self._release()

    def _release(self) -> None:
        """Answer the pulls whose gradients have been applied and whose iterations may start."""
        progress = True
        while progress:
            progress = False
            for waiting in list(self._waiting):
                store, worker, request = waiting.store, waiting.worker, waiting.request
                if store.clock.finished(worker) < request.iteration and store.pushed(worker) == request.pushes:
                    try:
                        store.finish(worker, request.iteration)
                    except JobError as error:
                        self._refuse(worker, error)
                        continue
                    progress = True
                ready = store.clock.finished(worker) >= request.iteration
                if ready and not store.clock.missing(worker, request.iteration):
                    self._waiting.remove(waiting)
                    self._send_weights(worker, store)

    def _send_weights(self, worker: int, store: Store) -> None:
        copy = store.pull(worker)
        self._owing.discard(worker)
        self._send(worker, REPLY, Reply(False).packed(), ANSWER)
        if copy.nbytes:
            self._send(worker, WEIGHTS, copy, "the parameters", partial(store.snapshots.give_back, copy))

    def _send_states(self, worker: int, store: Store) -> None:
        states, tensors = store.states()
        document = [[state.part, state.key, state.number] for state in states]
        self._answer(worker, json.dumps(document).encode())
        if tensors:
            values = torch.cat([tensor.contiguous().view(torch.uint8) for tensor in tensors])
            self._send(worker, WEIGHTS, values, "the optimizer's states")

    def _answer(self, worker: int, text: bytes) -> None:
        self._owing.discard(worker)
        self._send(worker, REPLY, Reply(False, len(text)).packed(), "an answer")
        self._send(worker, TEXT, bytearray(text), "the text of an answer")

    def _refuse(self, worker: int, error: JobError) -> None:
        """Report an error to a worker: now if it waits for an answer, else when it does."""
        self._refused.setdefault(worker, error)
        self._waiting = [waiting for waiting in self._waiting if waiting.worker != worker]
        if worker not in self._owing:
            return
        self._owing.discard(worker)
        error = self._refused[worker]
        remedy = (error.remedy or "").encode()
        text = str(error).encode() + remedy
        self._send(worker, REPLY, Reply(True, len(text), len(remedy)).packed(), "an error")
        self._send(worker, TEXT, bytearray(text), "the text of an error")

    def _finish(self, worker: int) -> None:
        self._finished.add(worker)
        for model in self._models.values():
            if model.store is not None:
                model.store.clock.leave(worker)
        self._release()

    def _give_up(self, now: float) -> None:
        """Refuse what has waited too long, naming those that are behind."""
        for number, model in self._models.items():
            if model.store is None:
                self._give_up_start(number, model, now)
        for waiting in list(self._waiting):
            store = waiting.store
            missing = store.clock.missing(waiting.worker, waiting.request.iteration)
            since = max([waiting.since, *(self._heard[worker] for worker in missing)])
            if not missing or now - since < self._patience_s:
                continue
            behind = ", ".join(f"rank {worker} (has finished {store.clock.finished(worker)})" for worker in missing)
            error = JobError(
                f"rank {waiting.worker} waited {duration(now - waiting.since)} to start iteration "
                f"{waiting.request.iteration} with staleness {store.clock.bound}: missing {behind}",
                remedy="a longer --timeout (PACELINE_TIMEOUT), or a larger --staleness",
            )
            self._refuse(waiting.worker, error)

    def _give_up_start(self, number: int, model: _Model, now: float) -> None:
        """Refuse those that wait for the first parameters, if worker 0 does not send them."""
        limit_s = max(self._patience_s, LEAST_START_S / 2)
        for worker, since in model.since.items():
            if worker in self._refused or (0 not in self._finished and now - max(since, self._heard[0]) < limit_s):
                continue
            why = "has left" if 0 in self._finished else "has not begun to train it"
            error = JobError(
                f"rank {worker} waited {duration(now - since)} for the first parameters of its optimizer {number + 1}: "
                f"missing rank 0, which {why}",
                remedy="the same optimizers on all ranks, or a longer --timeout (PACELINE_TIMEOUT)",
            )
            self._refuse(worker, error)


def _nothing() -> None:
    """Nothing follows a message that was sent."""
