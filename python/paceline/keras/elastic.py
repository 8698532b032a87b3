"""Horovod's elastic training with Keras: a state, and callbacks that keep it up to date and commit it.

state = hvd.elastic.KerasState(model, batch=0, epoch=0)

@hvd.elastic.run
def train(state):
    model.fit(data, callbacks=[hvd.elastic.CommitStateCallback(state), ...], epochs=epochs - state.epoch)

train(state)
"""

from __future__ import annotations

from typing import Any

import keras

from paceline._internal.lazy import public_names
from paceline.hvd.elastic.state import HostsUpdatedInterrupt, ObjectState, State
from paceline.hvd.world import HorovodInternalError
from paceline.tensorflow.elastic import TensorFlowKerasState, run

Logs = dict[str, Any] | None
__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """A model of Keras, its optimizer, and other objects: `paceline.tensorflow.elastic.TensorFlowKerasState`."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:  # noqa: ANN401
        """Take model and optimizer; nothing is committed yet.

        Args:
            model: The model, which has been built.
            optimizer: The optimizer; by default the one with which the model was compiled.
            **kwargs: Further objects by name, such as `batch=0, epoch=0`.

        Raises:
            ValueError: The model has not been built, or there is no optimizer.
        """
        super().__init__(model, optimizer, **kwargs)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Commits a state every few batches, and at the end of an epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        """Make the callback.

        Args:
            state: The state.
            batches_per_commit: Number of batches from one commit to the next.
        """
        super().__init__()
        self._state, self._every, self._left = state, batches_per_commit, batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        """Count anew: a rank that joins starts like the others.

        Args:
            logs: Unused.
        """
        self._left = self._every

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commit, if it is due.

        Args:
            batch: Number of the batch.
            logs: Unused.

        Raises:
            HostsUpdatedInterrupt: Ranks are about to join or leave; `run` catches it.
            JobError: A rank is gone.
        """
        self._left -= 1
        if self._left == 0:
            self._state.commit()
            self._left = self._every

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Commit.

        Args:
            epoch: Number of the epoch.
            logs: Unused.

        Raises:
            HostsUpdatedInterrupt: Ranks are about to join or leave; `run` catches it.
            JobError: A rank is gone.
        """
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.batch`, the number of the batch within the epoch.

    It goes before `CommitStateCallback`. Keras 3 cannot begin in the middle of an epoch: after a reset, the epoch that
    was cut short is done anew, unless the data that `fit` gets leaves out `state.batch` batches.
    """

    def __init__(self, state: Any) -> None:  # noqa: ANN401 - a State with batch
        """Make the callback.

        Args:
            state: A state with an attribute `batch`.
        """
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Count the batch.

        Args:
            batch: Number of the batch.
            logs: Unused.
        """
        self._state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Begin an epoch with no batch.

        Args:
            epoch: Number of the epoch.
            logs: Unused.
        """
        self._state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps `state.epoch`, the number of the epoch over all resets; it goes before `CommitStateCallback`."""

    def __init__(self, state: Any) -> None:  # noqa: ANN401 - a State with epoch
        """Make the callback.

        Args:
            state: A state with an attribute `epoch`.
        """
        super().__init__()
        self._state, self._first = state, state.epoch

    def on_train_begin(self, logs: Logs = None) -> None:
        """Take note of the epoch at which this training begins.

        Args:
            logs: Unused.
        """
        self._first = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Count the epoch.

        Args:
            epoch: Number of the epoch within this call of `fit`.
            logs: Unused.
        """
        self._state.epoch = self._first + epoch + 1


__dir__ = public_names(__name__)
