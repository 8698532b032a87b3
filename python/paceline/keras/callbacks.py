"""Horovod's callbacks for Keras."""

# ruff: noqa: PLR0917 - the signatures are Horovod's

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from paceline._internal.lazy import public_names
from paceline.errors import InvalidArgumentError
from paceline.hvd import world
from paceline.tensorflow.functions import broadcast_variables
from paceline.tensorflow.gradients import Variable, identity
from paceline.tensorflow.operations import allreduce

Logs = dict[str, Any] | None
__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Copies the variables of model and optimizer from one rank to all, after the first batch.

    By then the optimizer has all of its variables.
    """

    def __init__(
        self, root_rank: int, device: str = "", local_variables: Variable | Iterable[Variable] | None = None
    ) -> None:
        """Make the callback.

        Args:
            root_rank: Rank whose variables are copied.
            device: Accepted for compatibility with Horovod, and ignored.
            local_variables: Variables that are not copied: one, or several.
        """
        super().__init__()
        self._root, self._done = root_rank, False
        several = local_variables if isinstance(local_variables, list | tuple | set) else [local_variables]
        self._local = {identity(one): one for one in several if one is not None}

    def register_local_var(self, var: Variable) -> None:
        """Do not copy a variable.

        Args:
            var: The variable.
        """
        self._local[identity(var)] = var

    def on_train_begin(self, logs: Logs = None) -> None:
        """Copy anew in every `fit`.

        Args:
            logs: Unused.
        """
        self._done = False

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Copy the variables after the first batch.

        Args:
            batch: Number of the batch.
            logs: Unused.
        """
        if self._done:
            return
        self._done = True
        variables = [one for one in self.model.variables if identity(one) not in self._local]
        broadcast_variables([*variables, *self.model.optimizer.variables], self._root)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages the metrics of an epoch over all ranks; it goes before callbacks that use them."""

    def __init__(self, device: str = "") -> None:
        """Make the callback.

        Args:
            device: Accepted for compatibility with Horovod, and ignored.
        """
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Replace the metrics in `logs` by their averages. All ranks have the same metrics.

        Args:
            epoch: Number of the epoch.
            logs: The metrics.

        Raises:
            InvalidArgumentError: A metric is neither a number nor an array of numbers.
            JobError: A rank is gone, or has other metrics.
        """
        if not logs:
            return
        names = sorted(logs)
        values = [_numbers(name, logs[name]) for name in names]
        flat = np.concatenate([value.reshape(-1) for value in values])
        means = allreduce(flat, name=f"MetricAverageCallback.{','.join(names)}").numpy()
        ends = np.cumsum([value.size for value in values])
        for name, value, mean in zip(names, values, np.split(means, ends[:-1]), strict=True):
            logs[name] = mean.reshape(value.shape) if value.ndim else float(mean[0])


def _numbers(name: str, value: object) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"MetricAverageCallback: the metric '{name}' is {type(value).__name__}, which cannot be averaged",
            remedy=f"`logs` without '{name}'",
        ) from None


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies a learning rate in some epochs, at their beginning or at each batch.

    With momentum, the velocities are multiplied by the change of the learning rate, which is the momentum correction of
    Goyal et al. (2017, "Accurate, large minibatch SGD", section 3): Keras compiles the momentum itself as a constant.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        """Make the callback.

        Args:
            initial_lr: The learning rate that is multiplied.
            multiplier: A factor for each epoch after `start_epoch`, to its power; or a function of the epoch, which is
                fractional without `staircase`.
            start_epoch: The first epoch in which the learning rate is changed.
            end_epoch: The epoch before which the last change is made; None: there is none.
            staircase: Whether it is changed at the beginning of epochs, not at each batch.
            momentum_correction: Whether velocities of `keras.optimizers.SGD` change with the learning rate.
            steps_per_epoch: Number of batches of an epoch; without `staircase`, if Keras does not know it.

        Raises:
            ValueError: `initial_lr` is missing.
        """
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction = staircase, momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            factor = multiplier
            self.multiplier = lambda epoch: float(factor ** (epoch - start_epoch))

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        try:
            before = float(optimizer.learning_rate)
            after = self.initial_lr * self.multiplier(epoch)
            optimizer.learning_rate = after
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{type(self).__name__}: the optimizer's learning rate follows a schedule: {error}",
                remedy="a number as learning rate",
            ) from error
        if self.momentum_correction and isinstance(optimizer, keras.optimizers.SGD) and before != after and before:
            for velocity in getattr(optimizer, "momentums", ()):
                velocity.assign(velocity * (after / before))

    def on_train_begin(self, logs: Logs = None) -> None:
        """Look up the number of batches of an epoch.

        Args:
            logs: Unused.

        Raises:
            ValueError: Keras does not know the number of batches of an epoch.
        """
        if self.staircase or self.steps_per_epoch:
            return
        self.steps_per_epoch = self.params.get("steps")
        if not self.steps_per_epoch:
            raise ValueError(
                f"Could not autodetect the number of steps per epoch. Please specify the steps_per_epoch parameter to "
                f"{type(self).__name__}()"
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Take note of the epoch.

        Args:
            epoch: Its number.
            logs: Unused.
        """
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Change the learning rate, if it is due.

        Args:
            batch: Number of the batch.
            logs: Unused.

        Raises:
            InvalidArgumentError: The optimizer's learning rate follows a schedule.
        """
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if self.staircase:
            if batch == 0:
                self._adjust(self.current_epoch)
        else:
            self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the learning rate, as `lr`.

        Args:
            epoch: Number of the epoch.
            logs: The metrics.
        """
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from that of one rank to `initial_lr`, that of all ranks, in the first epochs.

    Goyal et al. (2017), section 2.2: lr = initial_lr / size * (epoch * (size - 1) / warmup_epochs + 1).
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        """Make the callback.

        Args:
            initial_lr: The learning rate at the end, scaled by the number of ranks.
            warmup_epochs: Number of epochs.
            momentum_correction: Whether velocities of `keras.optimizers.SGD` change with the learning rate.
            steps_per_epoch: Number of batches of an epoch, if Keras does not know it.
            verbose: Whether rank 0 says when it ends.
        """

        def multiplier(epoch: float) -> float:
            # To arrive at round numbers at the end of each epoch.
            epoch += 1.0 / (self.steps_per_epoch or 1)
            return 1.0 / world.size() * (epoch * (world.size() - 1) / warmup_epochs + 1)

        end = None if warmup_epochs is None else int(np.ceil(warmup_epochs))
        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=end,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the learning rate, and say when the warm-up ends.

        Args:
            epoch: Number of the epoch.
            logs: The metrics.
        """
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and world.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


__dir__ = public_names(__name__)
