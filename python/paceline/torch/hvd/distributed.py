"""The additions of a distributed optimizer to the class of the wrapped optimizer."""

from __future__ import annotations

import contextlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.hvd import timeline
from paceline.hvd.objects import broadcast_object
from paceline.hvd.world import current
from paceline.torch.hvd.gradients import Gradients, needed
from paceline.torch.hvd.grouping import Groups, check_passes, grouped, unnamed
from paceline.torch.hvd.pull import LayerPull

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object

Closure = Callable[[], Any]


class Distributed(_Base):
    """Mixed in before an optimizer's class: `step` waits for the gradients of all ranks."""

    _gradients: Gradients
    _active: bool
    """Whether there are other ranks to reduce with."""
    _should_synchronize: bool
    _synchronized: bool
    _pull: LayerPull | None
    _layer_pull: LayerPull | None
    """Like `_pull`, but also while there are no other ranks."""
    _wanted_groups: Groups

    def _begin(self, gradients: Gradients, groups: Groups) -> None:
        """Watch the parameters. If there are groups, all ranks of the process set do this together."""
        self._gradients, self._wanted_groups = gradients, groups
        self._layer_pull = None
        _register(self)
        self._enter()

    def _enter(self) -> None:
        """Enter a world: the first one or, in an elastic job, a later one."""
        gradients = self._gradients
        self._should_synchronize, self._synchronized = True, False
        process_set = gradients.process_set
        self._active = process_set.included() and len(process_set.ranks) > 1
        self._pull = None
        if not self._active:
            return
        if current().job.settings.pull == "layer":
            self._pull = self._layer_pull = self._layer_pull or LayerPull(gradients, self._step_one)
        gradients.enter(planned=self._pull is None)
        parameters = [parameter for parameter in self._parameters() if parameter.requires_grad]
        if self._wanted_groups is not None:
            gradients.group(grouped(self._wanted_groups, self._in_common_order(parameters)))
        for parameter in parameters:
            if parameter.grad is None:  # As in Horovod, whose scripts read gradients before the first backward.
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            gradients.watch(parameter)

    def _leave(self) -> None:
        """Release a world that has ended; gradients in flight are lost."""
        if self._layer_pull is not None:
            self._layer_pull.forget()
        self._gradients.leave()

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _in_common_order(self, parameters: list[Tensor]) -> list[Tensor]:
        """Return the names in the order of the set's first rank. Raises ValueError if ranks have different names."""
        names = {self._gradients.names[parameter]: parameter for parameter in parameters}
        process_set = self._gradients.process_set
        order: list[str] = broadcast_object(list(names), process_set.ranks[0], process_set=process_set)
        if set(order) != set(names):
            other = sorted(set(order) ^ set(names))
            raise ValueError(f"groups: parameter '{other[0]}' is not on both this rank and {process_set.ranks[0]}")
        return [names[name] for name in order]

    def synchronize(self) -> None:
        """Wait until all gradients have been reduced, for example to clip them before `step`.

        Parameters without a gradient on this rank contribute zeros. Follow this with `with skip_synchronize(): step()`.

        Raises:
            JobError: A rank is gone, or the ranks disagree about a tensor; the message names both.
        """
        self._synchronized = True
        if not self._active:
            return
        if self._pull is not None and not self._gradients.begun():
            # Wait only for gradients that the last step left for the next forward pass.
            self._pull.finish()
            self._synchronized = False
            return
        self._watch_all()
        since = timeline.moment()
        watched = [parameter for parameter in self._parameters() if self._gradients.watches(parameter)]
        self._gradients.finish([parameter for parameter in watched if needed(parameter)])
        timeline.waited(since)

    def _watch_all(self) -> None:
        for index, group in enumerate(self.param_groups):
            for at, parameter in enumerate(group["params"]):
                # Added or unfrozen since the beginning.
                if parameter.requires_grad:
                    self._gradients.names.setdefault(parameter, unnamed(index, at))
                    self._gradients.watch(parameter)

    def _step_one(self, parameter: Tensor, options: dict[str, Any]) -> None:
        """Apply the wrapped optimizer's step to one parameter, without the hooks of a whole step."""
        groups, self.param_groups = self.param_groups, [{**options, "params": [parameter]}]
        step = super().step
        bare = getattr(step, "__wrapped__", None)
        try:
            bare(self) if bare is not None else step()
        finally:
            self.param_groups = groups

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the block, `step` does not wait for gradients, because `synchronize` has been called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @property
    def _parameter_names(self) -> dict[Tensor, str]:
        """The parameters' names, where scripts for Horovod look for them."""
        return dict(self._gradients.names)

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes that are accumulated before gradients are reduced."""
        return self._gradients.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes that are accumulated before gradients are reduced.

        Args:
            passes: The number.

        Raises:
            ValueError: It is no whole number above 0.
        """
        check_passes(passes)
        self._gradients.restart(passes)

    def step(self, closure: Closure | None = None) -> Any:  # noqa: ANN401 - as torch's
        """Wait for the gradients, and step.

        Args:
            closure: Computes the loss and runs backward, as in torch; gradients are reduced after each call.

        Returns:
            The closure's loss, if there is one.

        Raises:
            JobError: A rank is gone, or the ranks disagree about a tensor.
            ValueError: A closure was given under `--pull layer`.
            RuntimeError: Under `--pull layer`, gradients were changed after they were sent, or a GradScaler calls.
        """
        inner = closure
        if self._pull is not None:
            self._pull.finish()  # the previous step of layers that have not been called since
            if closure is not None:
                raise ValueError(
                    "step(closure) runs backward itself, and cannot be pulled by layer; use --pull step, with a barrier"
                )
            if self._should_synchronize and not self._synchronized:
                _refuse_scaler()
                self._watch_all()
                self._pull.begin(self.param_groups)
                return None
        if self._should_synchronize:
            if self._synchronized:
                # Horovod's words, for scripts that filter warnings.
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(). It reduces the gradients again; write: "
                    "with optimizer.skip_synchronize(): optimizer.step()",
                    stacklevel=2,
                )
            if closure is None:
                self.synchronize()
            else:
                inner = self._waiting(closure)
        try:
            return super().step(inner)
        finally:
            self._synchronized = False

    def _waiting(self, closure: Closure) -> Closure:
        def called() -> Any:  # noqa: ANN401 - what the closure gives
            loss = closure()
            self.synchronize()
            return loss

        return called

    # So that torch does not wrap it: step hooks would run here and in the wrapped optimizer's own step.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as torch's
        """Reset the gradients as the wrapped optimizer does. Raises AssertionError while gradients are in flight."""
        if self._gradients.begun():
            raise AssertionError(
                "optimizer.zero_grad() was called after backward, but before optimizer.step() or "
                "optimizer.synchronize(): the gradients are being reduced; call it after one of them"
            )
        if self._pull is not None and not (args[0] if args else kwargs.get("set_to_none", True)):
            self._pull.finish()  # Their gradients would be filled with zeros while in flight.
        super().zero_grad(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch's
        """Return the wrapped optimizer's state, after layers that are behind have caught up."""
        if self._pull is not None:
            self._pull.finish()
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as torch's
        """Load the wrapped optimizer's state; gradients in flight are dropped."""
        self._should_synchronize, self._synchronized = True, False
        if self._pull is not None:
            self._pull.finish()
        self._gradients.restart(self._gradients.passes)
        super().load_state_dict(*args, **kwargs)


def _refuse_scaler() -> None:
    """Raise RuntimeError if a GradScaler calls `step`: it has unscaled gradients, of which torch counts no change."""
    frame = sys._getframe(2)
    for _ in range(_WRAPPERS):
        if frame.f_globals.get("__name__") == "torch.amp.grad_scaler":
            raise RuntimeError(
                "GradScaler changes gradients that have been sent; call optimizer.synchronize() before "
                "scaler.unscale_(optimizer), and scaler.step(optimizer) within skip_synchronize()"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back


_WRAPPERS = 4
"""Calls between GradScaler and `step`, at most: those of schedulers, which wrap it."""
_known: list[weakref.ref[Distributed]] = []
"""The distributed optimizers of this process, in the order in which all ranks created them; they outlive a world."""


def _register(optimizer: Distributed) -> None:
    _known[:] = [known for known in _known if known() is not None]
    _known.append(weakref.ref(optimizer))


def leave_world() -> None:
    """Make all distributed optimizers release a world that has ended, and gradients in flight."""
    for known in _known:
        optimizer = known()
        if optimizer is not None:
            optimizer._leave()


def enter_world() -> None:
    """Make all distributed optimizers use the new world. All ranks do so in the same order."""
    for known in _known:
        optimizer = known()
        if optimizer is not None:
            optimizer._enter()
