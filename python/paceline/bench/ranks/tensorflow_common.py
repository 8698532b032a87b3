"""Code shared by TensorFlow ranks, however they synchronise gradients."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from paceline.bench.ranks import data
from paceline.bench.ranks.rank_spec import RankSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.bench.ranks.stopwatch import Stopwatch
    from paceline.bench.ranks.tensorflow_layers import Model


def threads() -> int:
    """Return the number of threads of a process: OMP_NUM_THREADS, as for torch."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def loader(spec: RankSpec, rank: int, size: int) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that returns the batch of step k: images (N, height, width, 3), float32; labels (N,), int64."""
    if spec.data_dir is not None:
        from paceline.bench.ranks.tensorflow_input import image_files

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


def alone(spec: RankSpec, model: Model, load: Callable[[int], Any], stopwatch: Stopwatch) -> None:
    """Run steps without communication, on eager variables of this process: forward alone, and whole steps."""
    weights = {name: tf.Variable(value, dtype=tf.float32) for name, value in model.initial.items()}
    moving = {name: tf.Variable(tf.zeros_like(value)) for name, value in weights.items()}
    statistics = {name: tf.Variable(value) for name, value in model.statistics.items()}

    @tf.function  # type: ignore[untyped-decorator]
    def forward(images: Any, labels: Any) -> Any:  # noqa: ANN401
        return model.loss(weights, images, labels, statistics)

    @tf.function  # type: ignore[untyped-decorator]
    def step(images: Any, labels: Any) -> Any:  # noqa: ANN401
        with tf.GradientTape() as tape:
            loss = model.loss(weights, images, labels, statistics)
        names = list(weights)
        for name, gradient in zip(names, tape.gradient(loss, [weights[name] for name in names]), strict=True):
            moving[name].assign(spec.momentum * moving[name] + gradient)
            weights[name].assign_sub(spec.learning_rate * moving[name])
        return loss

    first = [tf.convert_to_tensor(value) for value in load(0)]
    forward(*first)
    step(*first)
    for number in range(spec.alone):
        batch = [tf.convert_to_tensor(value) for value in load(number)]
        stopwatch.part("forward", partial(_value, forward, batch))
        stopwatch.part("step", partial(_value, step, batch))


def _value(function: Callable[..., Any], batch: list[Any]) -> float:
    return float(function(*batch))
