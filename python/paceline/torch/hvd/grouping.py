"""Names of parameters, and groups of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Groups = int | Sequence[Sequence[Tensor]] | None


def checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """Return the name of each parameter of the optimizer.

    Raises ValueError if there are no pairs, for duplicate names, and for parameters without a name.
    """
    if named_parameters is None:
        return {
            parameter: unnamed(group, index)
            for group, options in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(options["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError(
            "named_parameters is not a sequence of tuples (name, parameter); give model.named_parameters()"
        )
    twice = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if twice:
        raise ValueError(
            f"names in named_parameters must be unique, but these are duplicates: {', '.join(twice)}; with several "
            "models, give the names of each a prefix"
        )
    names = {parameter: name for name, parameter in pairs}
    for group, options in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(options["params"]):
            if parameter not in names:
                raise ValueError(
                    f"parameter {index} of the optimizer's param_groups[{group}] (shape {list(parameter.shape)}) has "
                    "no name in named_parameters; name all parameters of the optimizer, or leave named_parameters out"
                )
    return names


def unnamed(group: int, index: int) -> str:
    """Return a name for a parameter without one: its position in the optimizer."""
    return f"allreduce.noname.{group}.{index}"


def checked_groups(groups: Groups) -> None:
    """Raise ValueError unless it is None, a number of groups, or lists of parameters without repetition."""
    if groups is None or (isinstance(groups, int) and groups > 0):
        return
    if isinstance(groups, int) or not isinstance(groups, Sequence):
        raise ValueError(f"groups is {groups!r:.80}; give a number of groups above 0, or a list of lists of parameters")
    seen: set[int] = set()
    for parameter in (parameter for group in groups for parameter in group):
        if not isinstance(parameter, Tensor):
            raise ValueError(f"groups contains a {type(parameter).__name__}; its lists must contain parameters")
        if id(parameter) in seen:
            raise ValueError(f"groups contains a parameter of shape {list(parameter.shape)} twice; name each once")
        seen.add(id(parameter))


def grouped(groups: Groups, parameters: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Return the groups of these parameters. A parameter that is in no list forms its own group."""
    if groups is None:
        return []
    if isinstance(groups, int):
        each, more = divmod(len(parameters), groups)
        ends = [each * index + min(index, more) for index in range(groups + 1)]
        made = [tuple(parameters[start:end]) for start, end in itertools.pairwise(ends)]
    else:
        known = set(parameters)
        made = [tuple(parameter for parameter in group if parameter in known) for group in groups]
        named = {parameter for group in made for parameter in group}
        made += [(parameter,) for parameter in parameters if parameter not in named]
    return [group for group in made if group]


def check_passes(passes: object) -> None:
    """Raise ValueError unless a gradient can take so many backward passes."""
    if isinstance(passes, bool) or not (isinstance(passes, int) and passes > 0):
        raise ValueError(f"backward_passes_per_step is {passes}; give a whole number above 0")
