"""Code shared by TensorFlow ranks, however they synchronize gradients."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from paceline_lab.bench.ranks import data
from paceline_lab.bench.ranks.rank_spec import RankSpec
from paceline_lab.bench.ranks.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paceline_lab.bench.ranks.tensorflow_layers import Model


def threads() -> int:
    """Return the number of threads of a process: OMP_NUM_THREADS, as for torch."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def loader(spec: RankSpec, rank: int, size: int) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that returns the batch of step k: images (N, height, width, 3), float32; labels (N,), int64."""
    if spec.data_dir is not None:
        from paceline_lab.bench.ranks.tensorflow_input import image_files

        files = iter(image_files(spec, rank, size).as_numpy_iterator())
        return lambda _: next(files)
    made = [(images.transpose(0, 2, 3, 1).copy(), labels) for images, labels in data.batches(spec, rank)]
    return lambda step: made[step % len(made)]


def checker(done: list[int], stopwatch: Stopwatch, values: Callable[[], Any]) -> Callable[[], None]:
    """Return a function to call after each step, which saves the weights at the step of the comparison."""

    def check() -> None:
        done[0] += 1
        if done[0] == stopwatch.spec.checked:
            stopwatch.keep(values())

    return check


class Variables:
    """A process's own weights, their momenta and moving averages, as SGD with momentum trains them."""

    def __init__(self, spec: RankSpec, model: Model, variable: Callable[[Any], Any] = tf.Variable) -> None:
        """Take the model's initial values. `variable` makes a variable of one."""
        self._spec, self.model = spec, model
        self._weights = {name: variable(np.float32(value)) for name, value in model.initial.items()}
        self._moving = {name: variable(np.zeros_like(value, np.float32)) for name, value in model.initial.items()}
        self._statistics = {name: variable(value) for name, value in model.statistics.items()}

    def loss(self, images: Any, labels: Any) -> Any:  # noqa: ANN401
        """Return the loss of a batch."""
        return self.model.loss(self._weights, images, labels, self._statistics)

    def step(self, images: Any, labels: Any, gradients: Callable[[tf.GradientTape, Any, list[Any]], Any]) -> Any:  # noqa: ANN401
        """Train on a batch, and return its loss. `gradients`: of a tape, the loss and the weights."""
        with tf.GradientTape() as tape:
            loss = self.loss(images, labels)
        own = gradients(tape, loss, list(self._weights.values()))
        for (name, weight), gradient in zip(self._weights.items(), own, strict=True):
            self._moving[name].assign(self._spec.momentum * self._moving[name] + gradient)
            weight.assign_sub(self._spec.learning_rate * self._moving[name])
        return loss

    def values(self) -> dict[str, Any]:
        """Return the weights under torch's names."""
        return self.model.torchs({name: weight.numpy() for name, weight in self._weights.items()})


def train(spec: RankSpec, rank: int, size: int, variables: Variables, step: Callable[[Any, Any], Any]) -> None:
    """Train by a traced function, measure it, and write the results."""
    traced = Clusters(spec, step)

    def once(batch: tuple[Any, Any]) -> float:
        return float(traced(tf.convert_to_tensor(batch[0]), tf.convert_to_tensor(batch[1])))

    stopwatch, load = Stopwatch(spec, rank), loader(spec, rank, size)
    stopwatch.run(load, once, checker([0], stopwatch, variables.values))
    final = variables.values()
    alone(spec, variables.model, load, stopwatch)
    stopwatch.write(final, **traced.software)


def clusters_in(graphs: Iterable[Any]) -> int:
    """Return the number of clusters that XLA compiles in partitioned graphs."""
    return sum(node.op == "_XlaRun" for graph in graphs for node in graph.node)


def software(spec: RankSpec, clusters: int | None) -> dict[str, Any]:
    """Return the fields of a result that say which software computed."""
    return {"engine": f"TensorFlow {tf.__version__}", "xla_clusters": clusters if spec.xla else None}


class Clusters:
    """A traced step, which counts the clusters that XLA compiles as it runs for the first time."""

    def __init__(self, spec: RankSpec, step: Callable[..., Any]) -> None:
        """Take the step."""
        self._spec, self._step = spec, step
        self._clusters: int | None = None

    def __call__(self, *batch: Any) -> Any:  # noqa: ANN401
        """Run the step."""
        if not self._spec.xla or self._clusters is not None:
            return self._step(*batch)
        from tensorflow.python.eager import context

        own = context.context()
        own.enable_run_metadata()
        loss = self._step(*batch)
        ran = own.export_run_metadata()
        own.disable_run_metadata()
        self._clusters = clusters_in(graph for each in ran.function_graphs for graph in each.partition_graphs)
        return loss

    @property
    def software(self) -> dict[str, Any]:
        """The fields of a result that say which software computed."""
        return software(self._spec, self._clusters)


def alone(spec: RankSpec, model: Model, load: Callable[[int], Any], stopwatch: Stopwatch) -> None:
    """Run steps without communication, on eager variables of this process: forward alone, and whole steps."""
    variables = Variables(spec, model)
    forward = tf.function(variables.loss)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
        return variables.step(images, labels, tf.GradientTape.gradient)

    first = [tf.convert_to_tensor(value) for value in load(0)]
    forward(*first)
    step(*first)
    for number in range(spec.alone):
        batch = [tf.convert_to_tensor(value) for value in load(number)]
        stopwatch.part("forward", partial(_value, forward, batch))
        stopwatch.part("step", partial(_value, step, batch))


def _value(function: Callable[..., Any], batch: list[Any]) -> float:
    return float(function(*batch))
