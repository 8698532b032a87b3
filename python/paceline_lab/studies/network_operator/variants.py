"""Traces made from other traces, and the paper's toy example."""

from __future__ import annotations

from paceline import Trace
from paceline._core import Distributed, Gradient, Layer, Worker

# Approximates "servers x workers equal pieces", to keep the study fast.
SLICES = 8


def in_forward_order(trace: Trace) -> Trace:
    """Let servers send the first convolution first.

    In the authors' traces it comes late (docs/results/network-operator.md). The times with cut tensors, which are those
    of computation alone, leave no room for that, so their cut tensors must have been sent in forward order.
    """
    first = next(name for layer in trace.workers[0].forward for name in layer.tensors)
    others = [entry for entry in trace.distribution if entry.tensor != first]
    return trace.replace(distribution=[Distributed(first), *others])


def sliced(trace: Trace, slices: int) -> Trace:
    """Split every tensor into equal ones, so that round-robin placement spreads each over the servers.

    `--placement even` cuts a tensor into servers x workers pieces: ten million messages for ResNet-200 at 32 workers
    and 8 servers. With multicast and aggregation 8 pieces give the published rows the same times within 0.05 % (a
    test compares them).
    """
    workers, order = trace.workers, trace.distribution
    sizes = {gradient.tensor: gradient.bytes for gradient in workers[0].gradients}
    sizes |= {entry.tensor: entry.bytes for entry in order if entry.bytes is not None}
    element = 4

    def parts(name: str) -> list[tuple[str, int]]:
        elements = sizes[name] // element
        count = min(slices, elements)
        ends = [elements * i // count for i in range(count + 1)]
        return [(f"{name}[{i}]", element * (ends[i + 1] - ends[i])) for i in range(count)]

    cut = [
        Worker(
            [
                Layer(layer.name, layer.duration_s, [part for name in layer.tensors for part, _ in parts(name)])
                for layer in worker.forward
            ],
            [
                Gradient(part, gradient.ready_s, size)
                for gradient in worker.gradients
                for part, size in parts(gradient.tensor)
            ],
            backward_s=worker.backward_s,
            optimizer_s=worker.optimizer_s,
        )
        for worker in workers
    ]
    sent = [
        Distributed(part, None if entry.bytes is None else size)
        for entry in order
        for part, size in parts(entry.tensor)
    ]
    return trace.replace(workers=cut, distribution=sent, variables=[])


# Of the toy example: three equal operations of 3 s of computation and 3 s of network each.
TOY_S = 3.0
TOY_OPERATIONS = 3
TOY_GBPS = 25


def toy(*, staggered: bool) -> Trace:
    """Return the toy example for two workers; if staggered, the second starts its backward pass 3 s later.

    The forward pass takes no time and needs everything, so that an iteration is the distribution followed by what the
    paper calls the aggregation phase.
    """
    size = round(TOY_S * TOY_GBPS * 1e9 / 8)
    names = [f"operation{i}" for i in range(TOY_OPERATIONS)]

    def worker(delay: float) -> Worker:
        ready = [(name, delay + TOY_S * (i + 1)) for i, name in enumerate(reversed(names))]
        return Worker([Layer("all", 0.0, names)], [Gradient(name, at, size) for name, at in ready])

    workers = [worker(0.0), worker(TOY_S if staggered else 0.0)]
    return Trace("toy", 1, "float32", workers, provenance="the toy example of the network-operator study")
