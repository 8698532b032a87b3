"""Watches the closure of `optimizer.step(closure)`, which runs forward and backward inside the step.

Lightning's automatic optimization calls every optimizer like this. The optimizer's own work begins when the closure
returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Closure = Callable[..., Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def around_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], call: Callable[[Closure], Closure]
) -> Arguments | None:
    """Return the arguments of a step with `call(closure)` in place of its closure; None if it has none.

    Args:
        args: What torch gives to the step's hooks: the optimizer first.
        kwargs: As above.
        call: Gets the closure, and returns what is called instead.

    Returns:
        Positional arguments and keywords, as a step's hook returns them to torch.
    """
    for index, argument in enumerate(args[1:], start=1):
        if callable(argument):
            return (*args[:index], call(argument), *args[index + 1 :]), kwargs
    for name, argument in kwargs.items():
        if callable(argument):
            return args, {**kwargs, name: call(argument)}
    return None
