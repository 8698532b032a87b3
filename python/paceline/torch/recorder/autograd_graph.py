"""The graph of a backward pass, and the predicted and observed order in which its gradients become ready.

PyTorch's engine runs a node once its dependencies have run, the highest sequence number first: what the
forward pass created last runs first. Nodes that accumulate a parameter's gradient have the highest numbers
(torch/csrc/autograd/engine.cpp, ReadyQueue; torch/csrc/autograd/function.h, sequence_nr). So on one device the order is
known before the backward pass. The order observed in the first step is authoritative; the graph gives the dependencies.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from paceline._core import Graph
from paceline.errors import InvalidArgumentError

_REENTRANT = "CheckpointFunctionBackward"


@dataclass(frozen=True)
class AutogradGraph:
    """The graph of a backward pass; its all-reduces are the gradients, named after the parameters."""

    graph: Graph
    """Nodes in execution order; it fetches all gradients."""
    order: tuple[str, ...]
    """Parameter names in the predicted order of their gradients."""
    unused: tuple[str, ...]
    """Names of parameters that require a gradient but get none from this loss."""


def autograd_graph(loss: Tensor | Sequence[Tensor], model: nn.Module) -> AutogradGraph:
    """Return the graph of a loss before its backward pass, without computing anything.

    Nodes are in execution order, so that among gradients of equal depth the one that is ready
    first has the lower id in a plan (`paceline_lab.plan.plan_graph`).

    Args:
        loss: The loss, or several.
        model: The model whose parameters' gradients are all-reduced.

    Returns:
        The graph, and the predicted order of the gradients.

    Raises:
        InvalidArgumentError: The loss has no graph, or the model uses reentrant checkpoints, which build their inner
            graph only during the backward pass.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
        >>> paceline.torch.autograd_graph(model(torch.ones(1, 2)).sum(), model).order[-1]
        '0.weight'
    """
    losses = [loss] if isinstance(loss, Tensor) else list(loss)
    roots = [tensor.grad_fn for tensor in losses if tensor.grad_fn is not None]
    if not roots:
        raise InvalidArgumentError(
            "the loss has no graph: it depends on no parameter that requires a gradient, or was detached",
            remedy="the loss without detach()",
        )
    parameters = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
    run = _order(roots)
    names = _names(run, parameters)
    gradients = [names[node] for node in run if _parameter(node) in parameters]
    nodes = []
    for node in run:
        entry: dict[str, Any] = {"name": names[node]}
        parameter = _parameter(node)
        if parameter is not None and parameter in parameters:
            dtype = str(parameter.dtype).removeprefix("torch.")
            entry["all_reduce"] = {"dtype": dtype, "bytes": parameter.numel() * parameter.element_size()}
        nodes.append(entry)
    document = {
        "format": "paceline-graph",
        "version": 1,
        "name": type(model).__name__,
        "provenance": f"a backward pass of PyTorch {torch.__version__}",
        "nodes": nodes,
        "edges": [[names[node], names[child]] for node in run for child in _children(node)],
        "fetches": gradients,
    }
    graph = Graph.from_json(json.dumps(document).encode(), type(model).__name__)
    reached = set(gradients)
    return AutogradGraph(graph, tuple(gradients), tuple(name for name in parameters.values() if name not in reached))


@contextmanager
def observed_order(model: nn.Module) -> Iterator[list[str]]:
    """Record the name of each parameter when its gradient has been accumulated, inside the `with` block.

    A gradient that is accumulated twice, as in reentrant checkpoints that share a parameter, is listed twice.

    Args:
        model: The model.

    Yields:
        The list of names, which grows.

    Example:
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with paceline.torch.observed_order(model) as order:
        ...     model(torch.ones(1, 2)).sum().backward()
        >>> order
        ['weight']
    """
    order: list[str] = []

    def note(name: str) -> Any:  # noqa: ANN401
        return lambda _parameter: order.append(name)

    handles = [
        parameter.register_post_accumulate_grad_hook(note(name))  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield order
    finally:
        for handle in handles:
            handle.remove()


def _children(node: Any) -> list[Any]:  # noqa: ANN401
    """Return the nodes that wait for this one in the backward pass."""
    return [child for child, _ in node.next_functions if child is not None]


def _parameter(node: Any) -> Any:  # noqa: ANN401
    """Return the leaf whose gradient a node accumulates; None for any other node."""
    return getattr(node, "variable", None) if type(node).__name__ == "AccumulateGrad" else None


def _order(roots: list[Any]) -> list[Any]:
    """Return the nodes in the engine's execution order: the highest sequence number first."""
    waits_for: dict[Any, int] = {}
    ahead = list(dict.fromkeys(roots))
    seen = set(ahead)
    while ahead:
        node = ahead.pop()
        if type(node).__name__ == _REENTRANT:
            raise InvalidArgumentError(
                "the model uses reentrant checkpoints, which hide the graph inside them",
                remedy="torch.utils.checkpoint.checkpoint(…, use_reentrant=False), or paceline.torch.observed_order",
            )
        for child in _children(node):
            waits_for[child] = waits_for.get(child, 0) + 1
            if child not in seen:
                seen.add(child)
                ahead.append(child)
    arrival = count()
    ready = [(-node._sequence_nr(), next(arrival), node) for node in dict.fromkeys(roots) if node not in waits_for]
    heapq.heapify(ready)
    order = []
    while ready:
        _, _, node = heapq.heappop(ready)
        order.append(node)
        for child in _children(node):
            waits_for[child] -= 1
            if waits_for[child] == 0:
                heapq.heappush(ready, (-child._sequence_nr(), next(arrival), child))
    return order


def _names(nodes: list[Any], parameters: dict[Any, str]) -> dict[Any, str]:
    """Return names of nodes: of parameters for their gradients, kind and number for all others."""
    names: dict[Any, str] = {}
    taken = set(parameters.values())
    for place, node in enumerate(nodes):
        name = parameters.get(_parameter(node)) or f"{type(node).__name__}:{place}"
        while node not in names and name in taken and _parameter(node) not in parameters:
            name += "'"  # A parameter may have any name.
        names[node] = name
    return names
