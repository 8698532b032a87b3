"""Converts traces to Chakra execution traces, one file a rank, and back.

A layer of the forward pass, the backward pass up to a bucket of gradients, and the optimizer are each a computation;
a bucket is an all-reduce behind the computation that makes it, and the optimizer waits for all of them. Chakra counts
whole microseconds and knows no tensors, so what is lost that way is written beside it, in attributes whose names begin
with `paceline.`, which other programs ignore.
"""

from __future__ import annotations

import graphlib
import heapq
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline._core import Trace
from paceline.errors import InvalidArgumentError
from paceline.interop.chakra_file import ALL_REDUCE, COLLECTIVES, Attribute, ExecutionTrace, Node, NodeType, read, write

_AGAIN = "paceline export chakra (writes the trace again)"
_VERSION = "1.0.0"
"""The version that mlcommons/chakra's own generator writes."""
_TRACE = "paceline.trace"
_PHASE = "paceline.phase"
_DURATION = "paceline.duration_ps"
_READY = "paceline.ready_ps"
_TENSORS = "paceline.tensors"
_BYTES = "paceline.bytes"
_OF_SAMPLE = ("activation_bytes", "backward_bytes")
"""Of a layer, attributes with the prefix `paceline.`."""
_SHAPES = "paceline.shapes"
_PLACES = "paceline.places"
"""Of gradients in the trace: the order of those that are ready at the same time."""
_PS = 10**12

_BACKWARD = re.compile(r"BWD|backward|autograd::engine", re.IGNORECASE)
_OPTIMIZER = re.compile(r"optimizer|adam|\bsgd\b", re.IGNORECASE)
_CONVERTED = re.compile(r"(?:COMP_NODE|COMM_COLL_NODE)_(?P<layer>.+?)_(?:FWD|BWD_WG|BWD_IG|ALLREDUCE|REDUCESCATTER)$")
"""Names that mlcommons/chakra's text converter gives."""


@dataclass(frozen=True)
class ChakraSummary:
    """Summary of an export or import. Times are in seconds, of the first file's rank."""

    name: str
    files: tuple[str, ...]
    computations: int
    collectives: dict[str, int]
    gradients: int
    gradient_bytes: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        return asdict(self)


def export_chakra(trace: Trace, prefix: Path, *, workers: int, bucket_size: int | None) -> ChakraSummary:
    """Write an execution trace a rank: `prefix.0.et`, `prefix.1.et`, and so on.

    Args:
        trace: The trace; worker i behaves like recorded worker i modulo their number.
        prefix: Where to write.
        workers: Number of ranks.
        bucket_size: Bytes of gradients that are all-reduced at once; None for each tensor alone.

    Raises:
        OSError: A file cannot be written.
    """
    text = trace.to_json()  # Which the files hold, so that the import gives the same trace.
    document = json.loads(text)
    about = {key: value for key, value in document.items() if key != "workers"}
    # A distributed tensor without a gradient, such as a moving average, is not reduced.
    known = {gradient["tensor"] for gradient in document["workers"][0]["gradients"]}
    buckets = [kept for bucket in trace.buckets(bucket_size) if (kept := [name for name in bucket if name in known])]
    files = []
    graphs: dict[int, list[Node]] = {}
    for rank in range(workers):
        index = rank % len(document["workers"])
        if index not in graphs:
            graphs[index] = _graph(document["workers"][index], buckets)
        path = prefix.parent / f"{prefix.name}.{rank}.et"
        attributes = {
            "schema": Attribute("string_val", f"{_VERSION}-chakra"),
            _TRACE: Attribute("string_val", json.dumps(about)),
            "paceline.worker": Attribute("int64_val", index),
        }
        write(path, ExecutionTrace(_VERSION, attributes, graphs[index]))
        files.append(str(path))
    return _summary(document, files, graphs[0], ())


def import_chakra(
    paths: Sequence[Path],
    *,
    name: str | None = None,
    batch: int | None = None,
    dtype: str | None = None,
    forward_s: float | None = None,
) -> tuple[Trace, ChakraSummary]:
    """Return the trace in execution traces, of one rank each.

    Args:
        paths: The files.
        name: The trace's name; by default that of the file, or the one that `export_chakra` wrote.
        batch: Samples of a step; Chakra does not know them, so it is needed for files that Paceline did not write.
        dtype: Dtype of the gradients, as for `batch`; float32 by default.
        forward_s: How long the forward pass lasts, for files that do not name the nodes of the backward pass.

    Raises:
        InvalidArgumentError: A file is missing or malformed, lacks what a trace needs, or an argument has no effect.
    """
    traces = [read(path) for path in paths]
    abouts = [_about(path, trace) for path, trace in zip(paths, traces, strict=True)]
    ours = abouts[0] is not None
    notes: list[str] = []
    if any((about is not None) != ours for about in abouts):
        raise InvalidArgumentError(
            f"{paths[0]}: Paceline wrote some of these files and not others", remedy="the files of one job"
        )
    if ours:
        for option, value in (("--batch", batch), ("--dtype", dtype), ("--forward", forward_s)):
            if value is not None:
                raise InvalidArgumentError(
                    f"{option} has no effect on {paths[0]}, which says so itself", remedy=f"drop {option}"
                )
        about: Mapping[str, Any] = abouts[0] or {}
        chosen = {t.attributes["paceline.worker"].value: t for t in traces if "paceline.worker" in t.attributes}
        workers = [_own_worker(path, chosen[index]) for index, path in zip(sorted(chosen), paths, strict=False)]
        document = {**about, **({"name": name} if name else {}), "workers": workers}
    else:
        if batch is None:
            raise InvalidArgumentError(f"{paths[0]} does not say how many samples a step has", remedy="--batch 32")
        workers = [
            _foreign_worker(path, trace, dtype or "float32", forward_s, notes if index == 0 else [])
            for index, (path, trace) in enumerate(zip(paths, traces, strict=True))
        ]
        document = {
            "format": "paceline-trace",
            "version": 1,
            "name": name or re.sub(r"\.\d+$", "", paths[0].name.removesuffix(".gz").removesuffix(".et")),
            "provenance": "; ".join(["imported from a Chakra execution trace", *notes]),
            "batch": batch,
            "dtype": dtype or "float32",
            "workers": workers,
        }
    imported = Trace.from_json(json.dumps(document).encode(), str(paths[0]))
    return imported, _summary(document, [str(path) for path in paths], traces[0].nodes, tuple(notes))


def _summary(
    document: Mapping[str, Any], files: Sequence[str], nodes: Sequence[Node], notes: tuple[str, ...]
) -> ChakraSummary:
    worker = document["workers"][0]
    return ChakraSummary(
        name=document["name"],
        files=tuple(files),
        computations=sum(node.type == NodeType.COMP for node in nodes),
        collectives=dict(Counter(_kind(node) for node in nodes if node.type == NodeType.COMM_COLL)),
        gradients=len(worker["gradients"]),
        gradient_bytes=sum(gradient["bytes"] for gradient in worker["gradients"]),
        forward_s=sum(layer["duration_s"] for layer in worker["forward"]),
        backward_s=worker.get("backward_s", max((g["ready_s"] for g in worker["gradients"]), default=0.0)),
        optimizer_s=worker.get("optimizer_s", 0.0),
        notes=notes,
    )


def _kind(node: Node) -> str:
    number = node.value("comm_type")
    return COLLECTIVES[number] if isinstance(number, int) and 0 <= number < len(COLLECTIVES) else "unknown"


def _graph(worker: Mapping[str, Any], buckets: Sequence[Sequence[str]]) -> list[Node]:
    nodes: list[Node] = []

    def add(name: str, kind: NodeType, deps: list[int]) -> Node:
        node = Node(len(nodes), name, kind, data_deps=deps)
        node.attributes = {"is_cpu_op": Attribute("bool_val", False)}
        nodes.append(node)
        return node

    def compute(name: str, phase: str, duration_ps: int, after: list[int], begin_ps: int) -> Node:
        node = add(name, NodeType.COMP, after)
        # Rounding the ends, not the durations, keeps sums exact to a microsecond. ASTRA-sim passes over a computation
        # of 0, which is right.
        node.start_us = round(begin_ps / 1e6)
        node.duration_us = round((begin_ps + duration_ps) / 1e6) - node.start_us
        node.attributes[_PHASE] = Attribute("string_val", phase)
        node.attributes[_DURATION] = Attribute("uint64_val", duration_ps)
        return node

    now = 0
    previous: list[int] = []
    for layer in worker["forward"]:
        duration = _ps(layer["duration_s"])
        node = compute(layer["layer"], "forward", duration, previous, now)
        if layer.get("tensors"):
            node.attributes[_TENSORS] = Attribute("string_list", layer["tensors"])
        for name in _OF_SAMPLE:
            if name in layer:
                node.attributes[f"paceline.{name}"] = Attribute("uint64_val", layer[name])
        previous, now = [node.id], now + duration
    by_name = {gradient["tensor"]: gradient for gradient in worker["gradients"]}
    places = {gradient["tensor"]: place for place, gradient in enumerate(worker["gradients"])}
    last_ready = max((_ps(g["ready_s"]) for g in worker["gradients"]), default=0)
    backward = _ps(worker["backward_s"]) if "backward_s" in worker else last_ready
    reached = 0
    collectives: list[int] = []
    timed = sorted(
        ((max(_ps(by_name[tensor]["ready_s"]) for tensor in bucket), bucket) for bucket in buckets),
        key=lambda pair: pair[0],
    )
    for index, (ready, bucket) in enumerate(timed):
        name = bucket[0] if len(bucket) == 1 else f"bucket {index}"
        node = compute(f"backward to {name}", "backward", ready - reached, previous, now)
        previous, now, reached = [node.id], now + ready - reached, ready
        sizes = [by_name[tensor]["bytes"] for tensor in bucket]
        node = add(f"all-reduce of {name}", NodeType.COMM_COLL, list(previous))
        node.start_us = round(now / 1e6)
        node.attributes |= {
            "comm_type": Attribute("int64_val", ALL_REDUCE),
            "comm_size": Attribute("int64_val", sum(sizes)),
            _TENSORS: Attribute("string_list", list(bucket)),
            _BYTES: Attribute("uint64_list", sizes),
            _PLACES: Attribute("uint64_list", [places[tensor] for tensor in bucket]),
            _READY: Attribute("uint64_list", [_ps(by_name[tensor]["ready_s"]) for tensor in bucket]),
        }
        shapes = [by_name[tensor].get("shape") for tensor in bucket]
        if any(shape is not None for shape in shapes):
            node.attributes[_SHAPES] = Attribute("string_list", [json.dumps(shape) for shape in shapes])
        collectives.append(node.id)
    node = compute("backward to its end", "backward", backward - reached, previous, now)
    now += backward - reached
    compute("optimizer", "optimizer", _ps(worker.get("optimizer_s", 0.0)), [node.id, *collectives], now)
    return nodes


def _ps(seconds: float) -> int:
    return round(seconds * _PS)


def _about(path: Path, trace: ExecutionTrace) -> Mapping[str, Any] | None:
    attribute = trace.attributes.get(_TRACE)
    if attribute is None:
        return None
    try:
        about = json.loads(attribute.value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{path}: attribute {_TRACE}: is not the JSON that Paceline writes", remedy=_AGAIN
        ) from error
    if not isinstance(about, dict) or "name" not in about:
        raise InvalidArgumentError(f"{path}: attribute {_TRACE}: is not the JSON that Paceline writes", remedy=_AGAIN)
    return about


def _own_worker(path: Path, trace: ExecutionTrace) -> dict[str, Any]:
    forward: list[dict[str, Any]] = []
    gradients: list[tuple[int, dict[str, Any]]] = []
    totals = Counter[str]()
    for node in trace.nodes:
        duration, tensors = node.value(_DURATION), node.value(_TENSORS)
        if node.type == NodeType.COMP and isinstance(duration, int):
            totals[node.value(_PHASE)] += duration
            if node.value(_PHASE) == "forward":
                entry: dict[str, Any] = {"layer": node.name, "duration_s": duration / _PS}
                if tensors:
                    entry["tensors"] = tensors
                values = {name: node.value(f"paceline.{name}") for name in _OF_SAMPLE}
                entry |= {name: value for name, value in values.items() if value is not None}
                forward.append(entry)
        elif node.type == NodeType.COMM_COLL:
            lists = [node.value(name) for name in (_PLACES, _TENSORS, _READY, _BYTES)]
            if not all(isinstance(some, list) and len(some) == len(lists[0]) for some in lists):
                raise InvalidArgumentError(
                    f"{path}: node {node.id} ({node.name}): has lost {_PLACES}, {_TENSORS}, {_READY} or {_BYTES}",
                    remedy=_AGAIN,
                )
            shapes = _shapes(path, node, len(lists[0]))
            gradients += [
                (place, {"tensor": tensor, "ready_s": at / _PS, "bytes": size} | shape)
                for place, tensor, at, size, shape in zip(*lists, shapes, strict=True)
            ]
        else:
            raise InvalidArgumentError(
                f"{path}: node {node.id} ({node.name}): is not one that Paceline wrote", remedy=_AGAIN
            )
    return {
        "forward": forward,
        "gradients": [gradient for _, gradient in sorted(gradients, key=lambda pair: pair[0])],
        "backward_s": totals["backward"] / _PS,
        "optimizer_s": totals["optimizer"] / _PS,
    }


def _shapes(path: Path, node: Node, count: int) -> list[dict[str, Any]]:
    """Return the shape of each tensor of a collective, where it is known, as a gradient has it."""
    kept = node.value(_SHAPES)
    if kept is None:
        return [{}] * count
    try:
        shapes = [json.loads(text) for text in kept]
    except (TypeError, ValueError):
        shapes = []
    if len(shapes) != count or not all(shape is None or isinstance(shape, list) for shape in shapes):
        raise InvalidArgumentError(
            f"{path}: node {node.id} ({node.name}): attribute {_SHAPES}: is not what Paceline writes", remedy=_AGAIN
        )
    return [{} if shape is None else {"shape": shape} for shape in shapes]


def _foreign_worker(
    path: Path, trace: ExecutionTrace, dtype: str, forward_s: float | None, notes: list[str]
) -> dict[str, Any]:
    """Return a worker from the nodes of another program: its computations one after the other on the device.

    Collectives take no time here. One that adds gradients (all-reduce, reduce-scatter) makes a tensor of its size,
    which is ready when the nodes before it are done.
    """
    order = _in_order(path, trace.nodes)
    # Operators of the CPU enclose each other and the launches of kernels; they count only if nothing else computes.
    devices = [n for n in order if n.type == NodeType.COMP and not n.value("is_cpu_op")]
    computing = {n.id for n in devices or [n for n in order if n.type == NodeType.COMP]}
    width = {"float64": 8, "float32": 4}.get(dtype, 2)
    done: dict[int, int] = {}
    now = 0
    computed: list[tuple[Node, int]] = []
    reduced: list[tuple[Node, int]] = []
    left_out: Counter[str] = Counter()
    for node in order:
        ready = max((done[parent] for parent in (*node.data_deps, *node.ctrl_deps) if parent in done), default=0)
        if node.id in computing:
            computed.append((node, now))
            now += node.duration_us
            done[node.id] = now
            continue
        done[node.id] = ready
        if node.type == NodeType.COMM_COLL:
            if _kind(node) in {"all-reduce", "reduce-scatter"} and _bytes(path, node):
                reduced.append((node, ready))
            else:
                left_out[_kind(node)] += 1
        elif node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
            left_out["send or receive"] += 1
    if not now:
        raise InvalidArgumentError(
            f"{path}: no computation (COMP_NODE) has a duration_micros", remedy="a trace recorded on a device"
        )
    if not reduced:
        raise InvalidArgumentError(
            f"{path}: has no all-reduce or reduce-scatter with a comm_size", remedy="a trace of a training step"
        )
    if left_out:
        notes.append("left out: " + ", ".join(f"{count} {kind}" for kind, count in left_out.items()))
    begins = _backward_begins(path, computed, reduced, forward_s)
    after = [at for node, at in computed if at >= begins and _OPTIMIZER.search(node.name)]
    ends = min((at for at in after if at >= max(at for _, at in reduced)), default=now)
    layers = [(node, at) for node, at in computed if at < begins]
    names: Counter[str] = Counter()
    forward: list[dict[str, Any]] = []
    for index, (node, at) in enumerate(layers):
        until = layers[index + 1][1] if index + 1 < len(layers) else begins
        match = _CONVERTED.match(node.name)
        plain = match["layer"] if match else node.name or f"node {node.id}"
        names[plain] += 1
        label = plain + (f"#{names[plain]}" if names[plain] > 1 else "")
        forward.append({"layer": label, "duration_s": (until - at) * 1e-6, "tensors": []})
    by_name = {entry["layer"]: entry for entry in forward}
    gradients: list[dict[str, Any]] = []
    named = True
    for index, (node, at) in enumerate(reduced):
        match = re.match(_CONVERTED.pattern.replace("$", ""), node.name)
        layer = by_name.get(match["layer"]) if match else None
        if layer is None:
            # Gradients are ready in the reverse of the forward order.
            named = False
            layer = forward[len(forward) - 1 - index * len(forward) // len(reduced)]
        tensor = f"{layer['layer']}.{len(layer['tensors'])}"
        layer["tensors"].append(tensor)
        size = -(-_bytes(path, node) // width) * width
        gradients.append({"tensor": tensor, "ready_s": max(0, at - begins) * 1e-6, "bytes": size})
    if not named:
        notes.append("the nodes do not say which layer a gradient belongs to: they were spread in reverse order")
    gradients.sort(key=lambda gradient: gradient["ready_s"])
    return {
        "forward": [{k: v for k, v in layer.items() if k != "tensors" or v} for layer in forward],
        "gradients": gradients,
        "backward_s": max([(ends - begins) * 1e-6, *(g["ready_s"] for g in gradients)]),
        "optimizer_s": (now - ends) * 1e-6,
    }


def _bytes(path: Path, node: Node) -> int:
    size = node.value("comm_size")
    if size is None:
        return 0
    if not isinstance(size, int) or size < 0:
        raise InvalidArgumentError(
            f"{path}: node {node.id} ({node.name}): comm_size: must be bytes, not {size!r:.40}",
            remedy="comm_size: 4096",
        )
    return size


def _backward_begins(
    path: Path, computed: Sequence[tuple[Node, int]], reduced: Sequence[tuple[Node, int]], forward_s: float | None
) -> int:
    total = computed[-1][1] + computed[-1][0].duration_us
    if forward_s is not None:
        begins = round(forward_s * 1e6)
        if not 0 < begins <= total:
            raise InvalidArgumentError(
                f"--forward: {path} computes for {total * 1e-6:.6g} s", remedy=f"--forward {total * 0.3:.6g}us"
            )
        return begins
    begins_or_none = next((at for node, at in computed if _BACKWARD.search(node.name) and at > 0), None)
    if begins_or_none is None:
        raise InvalidArgumentError(
            f"the names of the nodes in {path} do not say where the backward pass begins",
            remedy="--forward 12ms (how long the forward pass lasts)",
        )
    if begins_or_none > min(at for _, at in reduced):
        raise InvalidArgumentError(
            f"{path}: gradients are reduced before the backward pass", remedy="one step of the job, or --forward 12ms"
        )
    return begins_or_none


def _in_order(path: Path, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes so that each follows what it depends on, in the file's order otherwise."""
    known = {node.id: node for node in nodes}
    if len(known) < len(nodes):
        twice = next(number for number, count in Counter(n.id for n in nodes).items() if count > 1)
        raise InvalidArgumentError(f"{path}: two nodes have the id {twice}", remedy="one id for each node")
    position = {node.id: index for index, node in enumerate(nodes)}
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for node in nodes:
        parents = [*node.data_deps, *node.ctrl_deps]
        missing = next((parent for parent in parents if parent not in known), None)
        if missing is not None:
            raise InvalidArgumentError(
                f"{path}: node {node.id} ({node.name}): depends on {missing}, which is not there",
                remedy="the whole file",
            )
        sorter.add(node.id, *parents)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise InvalidArgumentError(
            f"{path}: nodes {error.args[1][:5]} wait for each other", remedy="the trace as it was recorded"
        ) from error
    heap: list[int] = []
    order: list[Node] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(heap, position[number])
        node = nodes[heapq.heappop(heap)]
        order.append(node)
        sorter.done(node.id)
    return order
