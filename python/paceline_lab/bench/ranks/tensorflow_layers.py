"""The model that `graph` wrote, in TensorFlow: the same layers, weights and padding, with channels last.

Channels are last because TensorFlow supports only that for convolutions on CPUs. Before an image is flattened, channels
are moved to the front, so that weights have the same meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

Weights = Mapping[str, Any]
LAYERS, WEIGHTS = "layers.json", "initial.npz"


class Model:
    """Layers, initial weights, and the loss as a function of weights and images."""

    def __init__(self, folder: str) -> None:
        """`folder`: where `graph.export` wrote the model."""
        self.layers: list[dict[str, Any]] = json.loads((Path(folder) / LAYERS).read_text(encoding="utf-8"))
        with np.load(Path(folder) / WEIGHTS) as kept:
            torchs = {name: kept[name] for name in kept.files}
        self._depthwise = {f"{one['weights']}.weight" for one in self.layers if one.get("depthwise")}
        self.initial = {name: self._ours(name, value) for name, value in torchs.items()}
        self.statistics = {
            f"{one['weights']}.{which}": np.full(torchs[f"{one['weights']}.weight"].shape, start, np.float32)
            for one in self.layers
            if one["kind"] == "batch-normalization"
            for which, start in (("running_mean", 0.0), ("running_var", 1.0))
        }
        """Running means and variances; every rank has its own."""

    def _ours(self, name: str, value: Any) -> Any:  # noqa: ANN401 - arrays
        if value.ndim == 4:
            return value.transpose(2, 3, 0, 1) if name in self._depthwise else value.transpose(2, 3, 1, 0)
        return value.T if value.ndim == 2 else value

    def torchs(self, weights: Weights) -> dict[str, Any]:
        """Return the weights in torch's layout."""
        back = {}
        for name, value in weights.items():
            array = np.asarray(value)
            if array.ndim == 4:
                array = array.transpose(2, 3, 0, 1) if name in self._depthwise else array.transpose(3, 2, 0, 1)
            back[name] = np.ascontiguousarray(array.T if array.ndim == 2 else array)
        return back

    def loss(self, weights: Weights, images: Any, labels: Any, statistics: Weights | None = None) -> Any:  # noqa: ANN401
        """Return the cross-entropy. images: (N, height, width, 3), float32; labels: (N,). `statistics` are updated."""
        values: dict[str, Any] = {}
        for one in self.layers:
            inputs = [values[name] for name in one["inputs"]]
            if one["kind"] == "input":
                values[one["name"]] = images
            elif one["kind"] == "batch-normalization":
                values[one["name"]] = _normalized(one, inputs[0], weights, statistics)
            else:
                values[one["name"]] = _KINDS[one["kind"]](one, inputs, weights)
        logits = values[self.layers[-1]["name"]]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def _normalized(one: dict[str, Any], x: Any, weights: Weights, statistics: Weights | None) -> Any:  # noqa: ANN401
    name = one["weights"]
    y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        x, weights[f"{name}.weight"], weights[f"{name}.bias"], epsilon=one["epsilon"], is_training=True
    )
    if statistics is None:
        return y
    share = one["momentum"]
    updates = [
        statistics[f"{name}.{which}"].assign_add(share * (tf.stop_gradient(now) - statistics[f"{name}.{which}"]))
        for which, now in (("running_mean", mean), ("running_var", variance))
    ]
    with tf.control_dependencies([update for update in updates if update is not None]):
        return tf.identity(y)


def _convolved(one: dict[str, Any], inputs: list[Any], weights: Weights) -> Any:  # noqa: ANN401
    padding = [[0, 0], *one["padding"], [0, 0]]
    kernel = weights[f"{one['weights']}.weight"]
    if one["depthwise"]:
        y = tf.nn.depthwise_conv2d(inputs[0], kernel, [1, *one["stride"], 1], padding)
    else:
        y = tf.nn.conv2d(inputs[0], kernel, one["stride"], padding, dilations=one["dilation"])
    return tf.nn.bias_add(y, weights[f"{one['weights']}.bias"]) if one["bias"] else y


def _linear(one: dict[str, Any], inputs: list[Any], weights: Weights) -> Any:  # noqa: ANN401
    y = tf.matmul(inputs[0], weights[f"{one['weights']}.weight"])
    return tf.nn.bias_add(y, weights[f"{one['weights']}.bias"]) if one["bias"] else y


def _flattened(_: dict[str, Any], inputs: list[Any], __: Weights) -> Any:  # noqa: ANN401
    x = inputs[0]
    if len(x.shape) == 4:
        x = tf.transpose(x, [0, 3, 1, 2])
    return tf.reshape(x, [-1, int(np.prod(x.shape[1:]))])


def _mean_pool(one: dict[str, Any], inputs: list[Any], _: Weights) -> Any:  # noqa: ANN401
    return inputs[0] if one["size"] == [1, 1] else tf.nn.avg_pool2d(inputs[0], one["size"], one["stride"], "VALID")


def _max_pool(one: dict[str, Any], inputs: list[Any], _: Weights) -> Any:  # noqa: ANN401
    padding = [[0, 0], *one["padding"], [0, 0]]
    return tf.nn.max_pool2d(inputs[0], one["size"], one["stride"], padding)


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, inputs, __: function(*inputs)


_KINDS: dict[str, Callable[..., Any]] = {
    "convolution": _convolved,
    "linear": _linear,
    "flatten": _flattened,
    "mean-pool": _mean_pool,
    "max-pool": _max_pool,
    "relu": _of(tf.nn.relu),
    "relu6": _of(tf.nn.relu6),
    "silu": _of(tf.nn.silu),
    "sigmoid": _of(tf.sigmoid),
    "hardsigmoid": _of(lambda x: tf.nn.relu6(x + 3.0) / 6.0),
    "hardswish": _of(lambda x: x * tf.nn.relu6(x + 3.0) / 6.0),
    "identity": _of(lambda x: x),
    "output": _of(lambda x: x),
    "sum": _of(lambda a, b: a + b),
    "product": _of(lambda a, b: a * b),
    "concatenation": lambda _, inputs, __: tf.concat(inputs, -1),
}
