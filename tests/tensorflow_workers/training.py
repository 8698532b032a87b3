"""Two ranks with half of each batch train like one process with all of it."""

import sys

import keras
import numpy as np
import paceline.keras as hvd
import pytest
import tensorflow as tf
from paceline import InvalidArgumentError
from paceline.tensorflow import DistributedGradientTape

hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
GENERATOR = np.random.default_rng(5)
X, Y = GENERATOR.standard_normal((64, 6)).astype("float32"), GENERATOR.standard_normal((64, 1)).astype("float32")
OWN = slice(RANK, None, SIZE)


def net(seed=3, *middle):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Dense(5, activation="tanh"), *middle, keras.layers.Dense(1)])
    model.build((None, 6))
    return model


def alike(one, other):
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def fitted(optimizer, x, y, batch, callbacks=(), **how):
    model = net(3 if callbacks == () else 3 + RANK)
    model.compile(optimizer=optimizer, loss="mse", jit_compile=False, **how)
    history = model.fit(x, y, batch_size=batch, epochs=3, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model, history.history


def optimizers():
    for kind in (lambda: keras.optimizers.SGD(0.05, momentum=0.9), lambda: keras.optimizers.Adam(0.01)):
        for eagerly in (False, True):
            whole, _ = fitted(kind(), X, Y, 16)
            split, _ = fitted(hvd.DistributedOptimizer(kind()), X[OWN], Y[OWN], 16 // SIZE, run_eagerly=eagerly)
            alike(whole, split)
    # Gradients of two passes are averaged, like those of a batch of twice the size, or added up.
    whole, _ = fitted(keras.optimizers.SGD(0.05), X, Y, 32)
    for average in (True, False):
        twice = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.05 if average else 0.025),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        split, _ = fitted(twice, X[OWN], Y[OWN], 16 // SIZE)
        alike(whole, split)
    assert int(twice.iterations) == 12
    assert type(twice).__name__ == "SGD"


def loss_scaling():
    """A batch that overflows on one rank is skipped by all, however the optimizers are put together."""
    scale, distributed = keras.mixed_precision.LossScaleOptimizer, hvd.DistributedOptimizer
    kind = lambda: keras.optimizers.SGD(0.05, momentum=0.9)  # noqa: E731
    orders = (
        (lambda: distributed(kind())),  # Keras adds the scaling
        (lambda: distributed(scale(kind(), initial_scale=1024.0))),
        (lambda: scale(distributed(kind()), initial_scale=1024.0)),
    )
    x = X[OWN].copy()
    if RANK == 1:
        x[4] = 1e6
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        for order in orders:
            for eagerly in (False, True):
                several = [hvd.callbacks.MetricAverageCallback()]
                keras.utils.set_random_seed(3)
                model = keras.Sequential([keras.layers.Dense(5), keras.layers.Dense(1, dtype="float32")])
                model.build((None, 6))
                model.compile(optimizer=order(), loss="mse", jit_compile=False, run_eagerly=eagerly)
                model.fit(x, Y[OWN], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=several)
                assert all(np.isfinite(weight).all() for weight in model.get_weights())
                values = [float(model.optimizer.dynamic_scale), int(model.optimizer.iterations)]
                values += [float(np.abs(weight).sum()) for weight in model.get_weights()]
                assert all(one == values for one in hvd.allgather_object(values)), hvd.allgather_object(values)
                # Two of the batches, one in each epoch.
                assert int(model.optimizer.iterations) == 2 * len(x) // 8 - 2, values
    finally:
        keras.mixed_precision.set_global_policy("float32")


def local_layers():
    model = net()
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=model.layers[1])
    before = [np.array(weight) for weight in model.get_weights()]
    grads = [tf.fill(weight.shape, float(RANK + 1)) for weight in model.trainable_variables]
    optimizer.apply(grads, model.trainable_variables)
    moved = [(a - b).flat[0] for a, b in zip(before, model.get_weights(), strict=True)]
    np.testing.assert_allclose(moved, [(SIZE + 1) / 2] * 2 + [(RANK + 1) / SIZE] * 2, rtol=1e-5)


def tape():
    whole, split = net(), net()

    def step(model, x, y, distributed):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        if distributed:
            tape = DistributedGradientTape(tape)
        for variable, grad in zip(
            model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
        ):
            variable.assign_sub(0.1 * grad)

    for function in (step, tf.function(step)):
        for _ in range(4):
            function(whole, X, Y, False)
            function(split, X[OWN], Y[OWN], True)
        alike(whole, split)


def normalization():
    plain, joint = net(3, keras.layers.BatchNormalization()), net(3, hvd.SyncBatchNormalization())

    def outcome(model, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        return [hvd.allreduce(grad, op=hvd.Sum) for grad in grads] if model is joint else grads

    # Batches of different sizes.
    mine = X[:40] if RANK == 0 else X[40:]
    for function in (outcome, tf.function(outcome)):
        for one, other in zip(function(plain, X), function(joint, mine if SIZE == 2 else X), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3)
    alike(plain, joint)
    with pytest.raises(ValueError, match="fused=True"):
        hvd.SyncBatchNormalization(fused=True)


def callbacks():
    rates = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

        def on_epoch_end(self, epoch, logs=None):
            self.seen = dict(logs)

    watch = Watch()
    several = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.04, warmup_epochs=2),
        watch,
    ]
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.04, momentum=0.5))
    model, _ = fitted(optimizer, X[OWN], Y[OWN], 16 // SIZE, several)
    # Ranks began with different weights, and all have those of rank 0 now.
    for weight in model.get_weights():
        everybody = hvd.allgather(weight[np.newaxis]).numpy()
        np.testing.assert_array_equal(everybody, np.broadcast_to(everybody[:1], everybody.shape))
    assert len(set(hvd.allgather_object(watch.seen["loss"]))) == 1
    logs = {"each": np.arange(3.0) + RANK, "loss": float(RANK)}
    several[1].on_epoch_end(0, logs)
    np.testing.assert_allclose(logs["each"], np.arange(3.0) + (SIZE - 1) / 2)
    assert logs["loss"] == (SIZE - 1) / 2
    with pytest.raises(InvalidArgumentError, match="the metric 'name' is str, which cannot be averaged"):
        several[1].on_epoch_end(0, {"name": "resnet"})
    np.testing.assert_allclose(rates[7], 0.04, rtol=1e-5)
    assert rates[0] < rates[3] < rates[7] == rates[-1]
    if SIZE == 2:
        np.testing.assert_allclose(rates[0], 0.02 * (1 + 0.25 / 2), rtol=1e-5)
    with pytest.raises(InvalidArgumentError, match="follows a schedule"):
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        fitted(hvd.DistributedOptimizer(keras.optimizers.SGD(schedule)), X, Y, 16, [several[2]])


def saved(path):
    model, _ = fitted(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9)), X[OWN], Y[OWN], 8)
    if RANK == 0:
        model.save(path)
    hvd.barrier()
    assert type(keras.models.load_model(path).optimizer) is keras.optimizers.SGD
    again = hvd.load_model(path)
    alike(model, again)
    for one, other in zip(model.optimizer.variables, again.optimizer.variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    again.fit(X[OWN], Y[OWN], batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="already distributed"):
        hvd.DistributedOptimizer(again.optimizer)


def refused():
    model = net()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), loss="mse", jit_compile=True)
    with pytest.raises(InvalidArgumentError, match="jit_compile=False"):
        model.fit(X, Y, verbose=0)
    compiled = tf.function(hvd.allreduce, autograph=False, jit_compile=True)
    with pytest.raises(InvalidArgumentError, match=r"tf\.function without jit_compile=True"):
        compiled(tf.ones(2))
    with pytest.raises(TypeError, match="give an optimizer of Keras 3"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(NotImplementedError, match="do not add up"):
        import paceline.tensorflow

        paceline.tensorflow.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.1), backward_passes_per_step=2
        )


for test in (
    optimizers,
    loss_scaling,
    local_layers,
    tape,
    normalization,
    callbacks,
    lambda: saved(sys.argv[1]),
    refused,
):
    test()
    print(f"{getattr(test, '__name__', '')} on rank {RANK}", flush=True)
hvd.shutdown()
