"""A torch model as a list of layers and an .npz of weights, from which another framework builds the same model.

Traced by torch.fx; layers that the list cannot express raise UntranslatableError, which names them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from paceline_lab.bench.ranks.models import build
from paceline_lab.bench.ranks.rank_spec import RankSpec
from paceline_lab.bench.ranks.stopwatch import save

LAYERS, WEIGHTS = "layers.json", "initial.npz"
Fields = dict[str, Any]


class UntranslatableError(Exception):
    """A layer is not supported; the message names it."""


def export(spec: RankSpec, folder: Path) -> None:
    """Write the requested model into the folder. Raises UntranslatableError."""
    model = build(spec)
    layers = layers_of(model, spec.image_size)
    (folder / LAYERS).write_text(json.dumps(layers), encoding="utf-8")
    save(folder / WEIGHTS, {name: value.detach().numpy() for name, value in model.named_parameters()})


def layers_of(model: nn.Module, image_size: int) -> list[Fields]:
    """Return every operation: `name`, `kind`, the names of its `inputs`, and the kind's parameters."""
    try:
        # On the device `meta` only shapes are computed. ShapeProp prints errors that it also raises.
        with contextlib.redirect_stderr(io.StringIO()):
            traced = fx.symbolic_trace(copy.deepcopy(model)).to("meta")
            # Two images: in training mode, batch normalization refuses a single value per channel.
            images = torch.zeros(2, 3, image_size, image_size, device="meta")
            ShapeProp(traced).propagate(images)
    except Exception as error:
        raise UntranslatableError(f"torch.fx cannot trace it: {str(error).strip().splitlines()[0][:160]}") from None
    layers: list[Fields] = []
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            layers.append({"name": node.name, "kind": "input", "inputs": []})
            continue
        inputs = [argument.name for argument in _flat(node.args) if isinstance(argument, fx.Node)]
        if node.op == "output":
            if len(inputs) != 1:
                raise UntranslatableError("it has several outputs")
            layers.append({"name": node.name, "kind": "output", "inputs": inputs})
            continue
        layers.append({"name": node.name, "inputs": inputs, **_layer(traced, node)})
    return layers


def _flat(arguments: Any) -> list[Any]:  # noqa: ANN401 - nested tuples of anything
    if isinstance(arguments, tuple | list):
        return [one for argument in arguments for one in _flat(argument)]
    return [arguments]


def _layer(traced: fx.GraphModule, node: fx.Node) -> Fields:
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        for kind, translate in _MODULES.items():
            if type(module) is kind:
                fields = translate(module, node)
                return {**fields, "weights": str(node.target)} if fields.pop("weighted", False) else fields
        raise UntranslatableError(f"layer {node.target} is a {type(module).__name__}")
    if node.op == "call_function" and node.target in _FUNCTIONS:
        return _FUNCTIONS[node.target](node)
    raise UntranslatableError(f"{node.name} calls {getattr(node.target, '__name__', node.target)}")


def _shape(node: fx.Node) -> list[int]:
    return list(node.meta["tensor_meta"].shape)


def _shapes(node: fx.Node) -> tuple[list[int], list[int]]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return _shape(source), _shape(node)


def _two(value: Any) -> list[int]:  # noqa: ANN401
    return list(value) if isinstance(value, tuple | list) else [value, value]


def _convolution(module: nn.Conv2d, _: fx.Node) -> Fields:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        raise UntranslatableError("a convolution is not padded with zeros")
    if module.groups not in (1, module.in_channels) or (module.groups > 1 and module.dilation != (1, 1)):
        raise UntranslatableError(f"a convolution in {module.groups} groups, which TensorFlow lacks on CPUs")
    return {
        "kind": "convolution",
        "weighted": True,
        "bias": module.bias is not None,
        "stride": list(module.stride),
        "padding": [[each, each] for each in module.padding],
        "dilation": list(module.dilation),
        "depthwise": module.groups > 1,
    }


def _pooling(kind: str) -> Callable[[Any, fx.Node], Fields]:
    def translate(module: Any, node: fx.Node) -> Fields:  # noqa: ANN401
        (before, after), size = _shapes(node), _two(module.kernel_size)
        stride, padding = _two(module.stride or module.kernel_size), _two(module.padding)
        if kind == "mean" and padding != [0, 0]:
            raise UntranslatableError("a padded average pool")
        if _two(getattr(module, "dilation", 1)) != [1, 1]:
            raise UntranslatableError("a dilated pool")
        pads = []
        for axis in range(2):
            whole = (after[2 + axis] - 1) * stride[axis] + size[axis]
            # With ceil_mode the last window extends beyond the edge.
            pads.append([padding[axis], max(0, whole - before[2 + axis] - padding[axis])])
        if kind == "mean" and pads != [[0, 0], [0, 0]]:
            raise UntranslatableError("an average pool that extends beyond the edge")
        return {"kind": f"{kind}-pool", "size": size, "stride": stride, "padding": pads}

    return translate


def _adaptive(_: Any, node: fx.Node) -> Fields:  # noqa: ANN401
    before, after = _shapes(node)
    if any(was % now for was, now in zip(before[2:], after[2:], strict=True)):
        raise UntranslatableError(f"an adaptive pool of {before[2:]} to {after[2:]}")
    size = [was // now for was, now in zip(before[2:], after[2:], strict=True)]
    return {"kind": "mean-pool", "size": size, "stride": size, "padding": [[0, 0], [0, 0]]}


def _normalization(module: nn.BatchNorm2d, _: fx.Node) -> Fields:
    if not module.affine:
        raise UntranslatableError("batch normalization without weights")
    return {"kind": "batch-normalization", "weighted": True, "epsilon": module.eps, "momentum": module.momentum}


def _simple(kind: str) -> Callable[..., Fields]:
    return lambda *_: {"kind": kind}


def _flatten(*_: Any) -> Fields:  # noqa: ANN401
    return {"kind": "flatten"}


def _flatten_function(node: fx.Node) -> Fields:
    if list(node.args[1:]) not in ([], [1]) or set(node.kwargs) - {"start_dim"}:
        raise UntranslatableError("a flatten that does not keep exactly the first axis")
    return _flatten()


def _cat(node: fx.Node) -> Fields:
    axis = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    if axis != 1:
        raise UntranslatableError(f"a concatenation along axis {axis}")
    return {"kind": "concatenation"}


def _both(kind: str) -> Callable[[fx.Node], Fields]:
    def translate(node: fx.Node) -> Fields:
        if not all(isinstance(argument, fx.Node) for argument in node.args):
            raise UntranslatableError(f"{node.name} takes a constant")
        return {"kind": kind}

    return translate


_MODULES: dict[type[nn.Module], Callable[[Any, fx.Node], Fields]] = {
    nn.Conv2d: _convolution,
    nn.BatchNorm2d: _normalization,
    nn.Linear: lambda module, _: {"kind": "linear", "weighted": True, "bias": module.bias is not None},
    nn.MaxPool2d: _pooling("max"),
    nn.AvgPool2d: _pooling("mean"),
    nn.AdaptiveAvgPool2d: _adaptive,
    nn.ReLU: _simple("relu"),
    nn.ReLU6: _simple("relu6"),
    nn.SiLU: _simple("silu"),
    nn.Hardswish: _simple("hardswish"),
    nn.Hardsigmoid: _simple("hardsigmoid"),
    nn.Sigmoid: _simple("sigmoid"),
    nn.Identity: _simple("identity"),
    nn.Dropout: _simple("identity"),
    nn.Flatten: _flatten,
}
_FUNCTIONS: dict[Any, Callable[[fx.Node], Fields]] = {
    torch.flatten: _flatten_function,
    torch.cat: _cat,
    operator.add: _both("sum"),
    operator.iadd: _both("sum"),
    operator.mul: _both("product"),
    F.relu: _simple("relu"),
    F.adaptive_avg_pool2d: lambda node: _adaptive(None, node),
}
