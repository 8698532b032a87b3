"""The error of a recording that cannot give a trace."""

from __future__ import annotations


class RecordingError(RuntimeError):
    """Says why no trace could be made of the steps that were seen."""


def refuse_closure(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Raise RecordingError if `optimizer.step` was given a closure.

    A closure (LBFGS, Lightning's automatic optimisation) runs forward and backward inside the step, once or many times,
    so that there is no point at which the gradients of the iteration are ready and the optimizer has not begun.
    `args` is as step hooks get it: the optimizer first.
    """
    if any(callable(argument) for argument in (*args[1:], *kwargs.values())):
        raise RecordingError(
            "cannot record optimizer.step(closure): the closure runs forward and backward inside the step; "
            "call them before step() and call step() without a closure"
        )
