"""FSDP2 in recorded steps: what its units do around their computation, and the gradients of whole parameters.

A unit of `fully_shard` gathers its parameters before its forward and its backward pass, frees them afterwards, and
reduces its gradients to shards; at the end of the backward pass the last reductions are waited for. While a step is
recorded, the methods that do this are marked, and the time inside them is cut out: what is left is the computation of a
worker that holds whole parameters. A gradient is ready when it has been accumulated in the whole parameter, which is
before its unit reduces it. The optimizer updates shards, so its time is multiplied.

The methods are internal to torch (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_state.py, seen in
torch 2.7 to 2.15). They are replaced on the model's own objects, and not on torch's classes. Where one is missing,
its time counts as computation.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import nn

from paceline.torch.recorder.modules import has_fsdp2
from paceline.torch.recorder.step import Event, EventKind
from paceline.torch.recorder.step_hooks import Gradient

_OF_GROUP = (
    *("pre_forward", "post_forward", "pre_backward", "post_backward", "finalize_backward"),
    *("unshard", "reshard"),  # The script may call these two itself, and units do it for each other.
)
_WAITS = "wait_for_unshard"
"""The method of a group after which its whole parameters exist."""
ZERO3 = "--sharding zero3"
_OF_STATE = ("_root_post_backward_final_callback", "finalize_backward", "wait_for_gradient_reduction")


class ShardedUnits:
    """Marks the work of FSDP2 on a model's units, and the gradients of their whole parameters."""

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        mark: Callable[[EventKind], None],
        ready: Callable[[int, Gradient], None],
    ) -> None:
        """Find the units without changing them.

        Args:
            model: The model.
            parameters: Its parameters in the order of its table.
            mark: Called with SHARDING_START and SHARDING_END.
            ready: Called with a parameter's index and its gradient when that has been accumulated.
        """
        self._states = list(_states(model))
        self._groups = [group for state in self._states for group in _groups(state)]
        self._mark, self._ready = mark, ready
        self._inside = False
        self._undo: list[Callable[[], None]] = []
        index = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._members: list[list[tuple[int, Any]]] = [
            [(number, each) for each in group.fsdp_params if (number := _index(each, index)) is not None]
            for group in self._groups
        ]
        self._watched: dict[int, nn.Parameter] = {}
        self.sharded = frozenset(number for members in self._members for number, _ in members)
        """The parameters that belong to a unit, by their index."""
        self.shards = _shards([each for group in self._groups for each in group.fsdp_params], parameters, self.sharded)
        """How many times as many elements the model has as this rank's optimizer."""
        self.options = _options(self._groups)
        """Options of `paceline simulate` that forecast this sharding."""

    def __bool__(self) -> bool:
        """Return whether there is a unit."""
        return bool(self.sharded)

    def attach(self) -> None:
        """Replace the methods."""
        for group, members in zip(self._groups, self._members, strict=True):
            for name in _OF_GROUP:
                self._replace(group, name)
            self._replace(group, _WAITS, functools.partial(self._watch_gradients, group, members))
            self._watch_gradients(group, members)
        for state in self._states:
            for name in _OF_STATE:
                self._replace(state, name)

    def detach(self) -> None:
        """Put the methods back and remove the hooks; both can be attached again."""
        while self._undo:
            self._undo.pop()()
        self._watched.clear()
        self._inside = False

    def release(self) -> None:
        """Detach, and release the model."""
        self.detach()
        self._states, self._groups, self._members = [], [], []

    def _replace(self, owner: Any, name: str, then: Callable[[], None] | None = None) -> None:  # noqa: ANN401
        original = getattr(owner, name, None)
        if original is None:
            return
        before = vars(owner).get(name)  # another recorder's

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch's method
            if self._inside or torch.compiler.is_compiling():
                result = original(*args, **kwargs)
                if then is not None:
                    then()
                return result
            self._inside = True
            self._mark(EventKind.SHARDING_START)
            try:
                result = original(*args, **kwargs)
                if then is not None:
                    then()
                return result
            finally:
                self._mark(EventKind.SHARDING_END)
                self._inside = False

        def undo() -> None:
            if vars(owner).get(name) is called:
                if before is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

        setattr(owner, name, called)
        self._undo.append(undo)

    def _watch_gradients(self, group: Any, members: Sequence[tuple[int, Any]]) -> None:  # noqa: ANN401
        """Add a hook to each whole parameter, which exists from its first gathering on."""
        for number, member in members:
            parameter = getattr(member, "_unsharded_param", None)
            if parameter is None or not parameter.requires_grad or self._watched.get(number) is parameter:
                continue
            self._watched[number] = parameter
            handle = parameter.register_post_accumulate_grad_hook(self._hook(number, group, member))
            self._undo.append(handle.remove)

    def _hook(self, number: int, group: Any, member: Any) -> Callable[[torch.Tensor], None]:  # noqa: ANN401
        def accumulated(parameter: torch.Tensor) -> None:
            whole = member.sharded_param
            # What FSDPParamGroup reduces in; in older torch that of the gradient, unless a policy names one.
            dtype = getattr(group, "_reduce_dtype", None) or getattr(member, "unsharded_grad_dtype", None)
            if dtype is None:
                dtype = parameter.dtype if parameter.grad is None else parameter.grad.dtype
            gradient = Gradient(
                elements=whole.numel(),
                dtype=str(dtype).removeprefix("torch."),
                itemsize=dtype.itemsize,
                sparse=False,
                shape=tuple(whole.shape),
            )
            self._ready(number, gradient)

        return accumulated


def as_options(gathered: torch.dtype, reduced: torch.dtype, *, recorded: torch.dtype) -> str:
    """Return options of `paceline simulate` that forecast FSDP.

    Args:
        gathered: Type in which parameters are gathered.
        reduced: Type in which gradients are reduced.
        recorded: Type of the gradients in the trace.
    """
    types = (("--param-dtype", gathered), ("--reduce-dtype", reduced))
    given = [f"{option} {str(one).removeprefix('torch.')}" for option, one in types if one != recorded]
    return " ".join([ZERO3, *given])


def reduced_by_default(gathered: torch.dtype, whole: torch.dtype) -> torch.dtype:
    """Return the type in which FSDP2 reduces gradients if its policy names none (`reduce_dtype`)."""
    return whole if torch.__version__ >= "2.15" else gathered


def without_sharding(events: Sequence[Event]) -> tuple[list[Event], float]:
    """Cut the work of FSDP2 out of a step. Return the joined rest, and the seconds cut.

    Collectives inside that work are dropped; other events there happen when it begins.
    """
    kept: list[Event] = []
    cut_s = 0.0
    since_s: float | None = None
    for event in events:
        if event.kind is EventKind.SHARDING_START:
            since_s = event.at_s
        elif event.kind is EventKind.SHARDING_END:
            cut_s += 0.0 if since_s is None else event.at_s - since_s
            since_s = None
        elif since_s is None:
            kept.append(event._replace(at_s=event.at_s - cut_s))
        elif event.kind not in (EventKind.COLLECTIVE_START, EventKind.COLLECTIVE_END):
            kept.append(event._replace(at_s=since_s - cut_s))
    return kept, cut_s


def without_clipping(events: Sequence[Event]) -> tuple[list[Event], float]:
    """Drop the marks of clipping. Return the rest, and the seconds of work on shards: clipping, and the innermost step.

    What clipping waits for, such as the norm over all shards, is no such work.
    """
    kept: list[Event] = []
    clipped_s = stepped_s = last_s = 0.0
    clipping, collectives = False, 0
    for event in events:
        if clipping and not collectives:
            clipped_s += event.at_s - last_s
        last_s = event.at_s
        if event.kind in (EventKind.CLIPPING_START, EventKind.CLIPPING_END):
            clipping = event.kind is EventKind.CLIPPING_START
            continue
        if event.kind in (EventKind.GRADIENT, EventKind.BACKWARD_END):
            clipped_s = 0.0
        elif event.kind is EventKind.COLLECTIVE_START:
            collectives += 1
        elif event.kind is EventKind.COLLECTIVE_END:
            collectives -= 1
        elif event.kind is EventKind.OPTIMIZER_START:  # The innermost step counts.
            stepped_s = events[-1].at_s - event.at_s
        kept.append(event)
    return kept, clipped_s + stepped_s


def _states(model: nn.Module) -> Iterator[Any]:
    """Yield the state of each unit once; several modules may be one unit."""
    if not has_fsdp2(model):
        return  # Importing what follows takes a second.
    from torch.distributed._composable_state import _get_module_state

    states = {id(state): state for module in model.modules() if (state := _get_module_state(module)) is not None}
    yield from states.values()


def _groups(state: Any) -> list[Any]:  # noqa: ANN401
    """Return the groups of parameters of a unit: none, one, or with several meshes more in newer torch."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        group = getattr(state, "_fsdp_param_group", None)
        return [] if group is None else [group]
    return list(groups)


def _options(groups: Sequence[Any]) -> str:
    """Return those of most of what is trained."""
    counts: Counter[str] = Counter()
    for group, member in [(each, member) for each in groups for member in each.fsdp_params]:
        if not member.sharded_param.requires_grad:
            continue
        policy = getattr(member, "mp_policy", None) or getattr(group, "mp_policy", None)
        whole = member.sharded_param.dtype
        gathered = getattr(policy, "param_dtype", None) or whole
        reduced = getattr(policy, "reduce_dtype", None) or reduced_by_default(gathered, whole)
        counts[as_options(gathered, reduced, recorded=reduced)] += member.sharded_param.numel()
    [(most, _)] = counts.most_common(1) or [(ZERO3, 0)]
    return most


def _index(member: Any, index: Mapping[int, int]) -> int | None:  # noqa: ANN401
    """Return the index of a unit's parameter; the model has it as a shard or, between the passes, whole."""
    place = index.get(id(member.sharded_param))
    return index.get(id(getattr(member, "_unsharded_param", None))) if place is None else place


def _shards(members: Sequence[Any], parameters: Sequence[nn.Parameter], sharded: Set[int]) -> float:
    others = sum(parameter.numel() for number, parameter in enumerate(parameters) if number not in sharded)
    whole = sum(member.sharded_param.numel() for member in members)
    with torch.no_grad():
        local = sum(member.sharded_param.to_local().numel() for member in members)
    return float((whole + others) / (local + others)) if local + others else 1.0
