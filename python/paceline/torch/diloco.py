"""DiLoCo and local SGD: ranks train alone for some steps, and then average how their parameters have changed.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023 (arXiv:2311.08105). With
an outer learning rate of 1 and no momentum it is local SGD: S. Stich, "Local SGD converges fast and communicates
little", ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline._core import parse_size
from paceline.errors import InvalidArgumentError
from paceline.torch.compression.registry import hook_of


@dataclass
class _Differences:
    """How some parameters have changed, as hooks see a bucket of gradients."""

    number: int
    count: int
    locals: list[Tensor]
    synchronized: Tensor
    """The parameters after the last exchange, as one vector; its gradient is the average of the differences."""

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.number == self.count - 1

    def buffer(self) -> Tensor:
        assert self.synchronized.grad is not None
        return self.synchronized.grad

    def parameters(self) -> Sequence[Tensor]:
        return self.locals

    def gradients(self) -> Sequence[Tensor]:
        parts = _parts(self.buffer(), self.locals)
        return [part.view(one.shape) for part, one in zip(parts, self.locals, strict=True)]

    def set_buffer(self, buffer: Tensor) -> None:
        self.synchronized.grad = buffer

    @torch.no_grad()
    def find(self) -> None:
        """Compute the differences."""
        if self.synchronized.grad is None:
            self.synchronized.grad = torch.empty_like(self.synchronized)
        torch.cat([one.detach().reshape(-1) for one in self.locals], out=self.synchronized.grad)
        torch.sub(self.synchronized, self.synchronized.grad, out=self.synchronized.grad)

    @torch.no_grad()
    def take(self) -> None:
        """Give the parameters the values of all ranks."""
        for part, one in zip(_parts(self.synchronized, self.locals), self.locals, strict=True):
            one.copy_(part.view(one.shape))


class DiLoCo(torch.optim.Optimizer):
    """An optimizer that trains alone for `sync_every` steps, and then synchronizes the parameters of all ranks.

    The ranks' average change since the last synchronization is the gradient of an outer SGD with Nesterov momentum. The
    model must not be in DistributedDataParallel, which would exchange gradients in every step. All ranks begin with the
    parameters of the first one. Buffers, such as the statistics of batch normalization, stay those of each rank.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        sync_every: int,
        lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        compression: str = "none",
        group: dist.ProcessGroup | None = None,
        bucket_size: int | str = "25MB",
    ) -> None:
        """Wrap the optimizer of the steps in between.

        Args:
            optimizer: The inner optimizer, such as AdamW.
            sync_every: Steps between two synchronizations.
            lr: Learning rate of the outer optimizer; 1 with `momentum=0` averages the parameters (local SGD).
            momentum: Of the outer optimizer.
            nesterov: Whether that is Nesterov's.
            compression: How the differences are sent, by the names of `paceline.torch.compression.hook_of`.
            group: The ranks; None: the default group.
            bucket_size: What is exchanged as one: bytes, or text with a unit.

        Raises:
            InvalidArgumentError: A number is out of range, or a name unknown.
            TypeError: `optimizer` is not an optimizer.

        Example:
            >>> optimizer = DiLoCo(torch.optim.AdamW(model.parameters()), sync_every=100)  # doctest: +SKIP
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer is a {type(optimizer).__name__}; give an optimizer, such as torch.optim.AdamW")
        if isinstance(sync_every, bool) or not (isinstance(sync_every, int) and sync_every > 0):
            raise InvalidArgumentError(
                f"sync_every: must be a whole number above 0, not {sync_every!r:.80}", remedy="sync_every=100"
            )
        if not (lr > 0 and 0 <= momentum < 1):
            raise InvalidArgumentError(
                f"lr {lr} must be above 0, and momentum {momentum} at least 0 and below 1",
                remedy="lr=0.7, momentum=0.9",
            )
        self.inner = optimizer
        self.sync_every = sync_every
        self.steps = 0
        """Steps since the last synchronization."""
        self._hook_state, self._hook = hook_of(compression, group)
        self._buckets = _buckets(optimizer, bucket_size if isinstance(bucket_size, int) else parse_size(bucket_size))
        for bucket in self._buckets:
            dist.broadcast(bucket.synchronized, group=group, group_src=0)
            bucket.take()
        self.outer = torch.optim.SGD(
            [bucket.synchronized for bucket in self._buckets],
            lr=lr,
            momentum=momentum,
            nesterov=nesterov and momentum > 0,
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the inner optimizer."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # noqa: ANN401
        """That of the inner optimizer."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Those of the inner optimizer."""
        return self.inner.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients.

        Args:
            set_to_none: Whether they become None instead of zeros.
        """
        self.inner.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step alone, and synchronize if it is time.

        Args:
            closure: As the inner optimizer takes it.

        Returns:
            What the inner optimizer returns.
        """
        loss = self.inner.step(closure) if closure is not None else self.inner.step()
        self.steps += 1
        if self.steps >= self.sync_every:
            self.synchronize()
        return loss

    def synchronize(self) -> None:
        """Exchange now how the parameters have changed, and step; all ranks call it together, such as at the end."""
        futures = []
        for bucket in self._buckets:
            bucket.find()
            futures.append(self._hook(self._hook_state, bucket))
        for bucket, future in zip(self._buckets, futures, strict=True):
            averaged = future.wait()
            if averaged is not bucket.buffer():
                bucket.set_buffer(averaged)
        self.outer.step()
        for bucket in self._buckets:
            bucket.take()
        self.steps = 0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: what is exchanged was decided at the beginning.

        Args:
            param_group: Further parameters.

        Raises:
            InvalidArgumentError: Always.
        """
        raise InvalidArgumentError(
            "DiLoCo: parameters must be added to the optimizer before it is wrapped",
            remedy="add_param_group(…) before DiLoCo(…)",
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both optimizers, and the parameters at the last synchronization.

        What compression has left over is not part of it.
        """
        return {
            "inner": self.inner.state_dict(),
            "outer": self.outer.state_dict(),
            "synchronized": [bucket.synchronized.detach().clone() for bucket in self._buckets],
            "steps": self.steps,
        }

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state; the model's parameters are loaded separately.

        Args:
            state_dict: What `state_dict` has returned, with the same parameters and bucket size.

        Raises:
            InvalidArgumentError: It is that of other parameters.
        """
        theirs = state_dict["synchronized"]
        if [len(one) for one in theirs] != [len(bucket.synchronized) for bucket in self._buckets]:
            raise InvalidArgumentError(
                "DiLoCo: the state is that of other parameters, or of another bucket_size",
                remedy="the same parameters and bucket_size",
            )
        self.inner.load_state_dict(state_dict["inner"])
        self.outer.load_state_dict(state_dict["outer"])
        for bucket, one in zip(self._buckets, theirs, strict=True):
            bucket.synchronized.copy_(one)
        self.steps = state_dict["steps"]


def _parts(vector: Tensor, like: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the part of a vector that belongs to each of some tensors."""
    parts: Sequence[Tensor] = torch.split(vector, [one.numel() for one in like])
    return parts


def _buckets(optimizer: torch.optim.Optimizer, size: int) -> list[_Differences]:
    """Cut the parameters into buckets of one type and device, in DDP's order: the last parameter is the first."""
    parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    if not parameters:
        raise InvalidArgumentError(
            "DiLoCo: the optimizer has no parameters that require a gradient",
            remedy="requires_grad_() on some of its parameters",
        )
    cut: list[list[Tensor]] = []
    for one in reversed(parameters):
        last = cut[-1] if cut else []
        fits = last and last[0].dtype == one.dtype and last[0].device == one.device
        if not fits or sum(other.nbytes for other in last) >= size:
            cut.append([])
        cut[-1].append(one)
    return [
        _Differences(number, len(cut), some, torch.cat([one.detach().reshape(-1) for one in some]))
        for number, some in enumerate(cut)
    ]
