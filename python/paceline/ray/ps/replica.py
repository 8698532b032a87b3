"""A worker, which holds a replica of the model, and a parameter server, which holds one shard of the gradient."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

from paceline.async_ps.report import Applied, Staleness
from paceline.errors import InvalidArgumentError
from paceline.ray.worker import Actor

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn


Inside = Literal["root", "ring"]
"""How the workers of a node reduce among themselves."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The training task."""

    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor] | None
    seed: int


class Replica(Actor):
    """A worker. Ray turns it into an actor; its calls run in the order in which they are made."""

    def prepare(self, task: Task) -> None:
        """Create the model. Raises InvalidArgumentError if it cannot be trained in this way."""
        import torch

        torch.manual_seed(task.seed)
        self._task, self._rank = task, 0
        self._model = task.model()
        self._loss = task.loss or torch.nn.functional.cross_entropy
        trained = [(name, one) for name, one in self._model.named_parameters() if one.requires_grad]
        if not trained:
            raise InvalidArgumentError(
                "model: has no trainable parameters", remedy="a model whose parameters require gradients"
            )
        for name, parameter in trained:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise InvalidArgumentError(
                    f"model: {name} is {parameter.dtype} on {parameter.device}", remedy="model.float().cpu()"
                )
        self._parameters = [parameter for _, parameter in trained]
        self._optimizer = task.optimizer(self._parameters)
        count = sum(parameter.numel() for parameter in self._parameters)
        self._own, self._mean = torch.zeros(count), torch.zeros(count)
        self._views = list(zip(self._parameters, self._split(self._own), self._split(self._mean), strict=True))
        self._marks: list[float] = []
        self._cpu_s = 0.0
        self._lost = 0.0

    def state(self) -> dict[str, np.ndarray]:
        """Return parameters and buffers."""
        return {name: value.detach().numpy().copy() for name, value in self._model.state_dict().items()}

    def begin(self, rank: int, state: Mapping[str, np.ndarray]) -> None:
        """Start as this rank with another replica's parameters and buffers, so that all replicas start equal."""
        import torch

        self._rank = rank
        self._model.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()})

    def compute(self, step: int) -> None:
        """Run the forward and the backward pass; the gradient stays here."""
        with self.signed():
            self._compute(step)

    def gradient(self, step: int) -> np.ndarray:
        """Do as `compute`, and return the gradient, float32[elements], for the root."""
        self.compute(step)
        return self._own.numpy()

    def pass_on(self, part: int, parts: int, _computed: None, *before: np.ndarray) -> np.ndarray:
        """Return a part of this rank's gradient, plus what the rank before it in the ring passed on, float32[part].

        `_computed` is the result of `compute`, so that this fails if that did.
        """
        own = self._part(part, parts)
        return own + before[0] if before else own

    def sums(
        self, shards: int, part: int, parts: int, _computed: None, *others: np.ndarray
    ) -> list[np.ndarray] | np.ndarray:
        """Return the sum of a part of this rank's gradient and the others', float32[part] each, in order, as shards.

        `_computed` is as for `pass_on`.
        """
        total = self._part(part, parts)
        for other in others:
            total += other
        pieces = [total[cut] for cut in cuts(len(total), shards)]
        return pieces if shards > 1 else pieces[0]  # Ray does not wrap a single result in a list.

    def _part(self, part: int, parts: int) -> np.ndarray:
        own: np.ndarray = self._own.numpy()
        return own[cuts(len(own), parts)[part]]

    def apply(self, *means: np.ndarray) -> StepTimes:
        """Step the optimizer with the means of all shards, float32[shard] each."""
        mean, start = self._mean.numpy(), 0
        for piece in means:
            mean[start : start + len(piece)] = piece
            start += len(piece)
        self._mark()
        with self.signed():
            for parameter, _, view in self._views:
                parameter.grad = view
            self._optimizer.step()
        self._mark()
        return self._times()

    def weights(self) -> dict[str, np.ndarray]:
        """Return the parameters."""
        return {name: value.detach().numpy().copy() for name, value in self._model.named_parameters()}

    def _compute(self, step: int) -> None:
        self._pass_through(step)
        for parameter, own, _ in self._views:
            if parameter.grad is None:
                own.zero_()  # The other ranks may have one.
            else:
                own.copy_(parameter.grad)
        self._mark()

    def _pass_through(self, step: int) -> None:
        """Run the forward and the backward pass; marks stand before and after the input, and after the forward pass."""
        self._cpu_s, self._marks = time.process_time(), [time.perf_counter()]
        inputs, targets = self._task.batch(self._rank, step)
        self._mark()
        self._optimizer.zero_grad()
        loss = self._loss(self._model(inputs), targets)
        self._mark()
        loss.backward()  # type: ignore[no-untyped-call]
        self._lost = float(loss.detach())

    def _times(self) -> StepTimes:
        """Return the durations between the marks: input, passes, exchange, and the optimizer if it ran here."""
        input_s, forward_s, backward_s, exchange_s, *optimizer_s = (
            after - before for before, after in pairwise(self._marks)
        )
        return StepTimes(
            step_s=self._marks[-1] - self._marks[0],
            input_s=input_s,
            forward_s=forward_s,
            backward_s=backward_s,
            exchange_s=exchange_s,
            optimizer_s=sum(optimizer_s),
            cpu_s=time.process_time() - self._cpu_s,
            loss=self._lost,
        )

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Return views of a flat tensor, one for each parameter."""
        import torch

        parts = torch.split(flat, [parameter.numel() for parameter in self._parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)]

    def _mark(self) -> None:
        self._marks.append(time.perf_counter())


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Durations of one step on one rank, in seconds."""

    step_s: float
    """From the input to the end of the optimizer."""
    input_s: float
    forward_s: float
    backward_s: float
    exchange_s: float
    """From the end of the backward pass, before which nothing is sent, to the arrival of the means."""
    optimizer_s: float
    cpu_s: float
    """CPU time of all threads of the process."""
    loss: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Durations of the steps, and the trained weights."""

    steps: Sequence[Sequence[StepTimes]]
    """Step times by rank, then by step."""
    weights: Mapping[str, np.ndarray]
    """Final weights of rank 0, float32, by the names of `named_parameters`; asynchronous: those of the servers."""
    workers: int
    nodes: int
    """Number of nodes with workers."""
    servers: int
    inside: Inside | None = None
    """How each node reduced its workers' gradients; None: asynchronous, not at all."""
    staleness: Staleness | None = None
    """Asynchronous: the distribution of the gradients' staleness."""
    applied: Sequence[Sequence[Applied]] = ()
    """Asynchronous, with `record_order`: by server, the gradients in the order in which they were applied."""


def cuts(elements: int, shards: int) -> list[slice]:
    """Cut a vector into shards, in order; if they cannot be equal, the first ones are one element longer."""
    least, more = divmod(elements, shards)
    lengths = (least + (shard < more) for shard in range(shards))
    return [slice(start, end) for start, end in pairwise(accumulate(lengths, initial=0))]


class Shard(Actor):
    """A parameter server. Ray turns it into an actor."""

    def __init__(self, workers: int) -> None:
        """Average over this many workers."""
        self._workers = workers

    def mean(self, *pieces: np.ndarray) -> np.ndarray:
        """Return the mean over all workers of the nodes' sums, float32[shard] each, in the order of the nodes."""
        total = pieces[0].copy()  # Arrays from the object store are read-only.
        for piece in pieces[1:]:
            total += piece
        # The runtime computes averages in the same way.
        total *= total.dtype.type(1 / self._workers)
        return total
