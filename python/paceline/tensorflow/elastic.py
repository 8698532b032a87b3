"""Horovod's elastic training with TensorFlow: ranks that die are replaced, and training continues from a commit.

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0)

    @hvd.elastic.run
    def train(state):
        while state.batch < 1000:
            ...
            state.batch += 1
            state.commit()

    train(state)

`paceline run --elastic -np 4 -- python train.py` starts it (docs/how-to/elastic.md). Functions that were traced before
a change of ranks stay valid: they look up the ranks when they run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import tensorflow as tf

from paceline._internal.lazy import public_names
from paceline.hvd.elastic import runner
from paceline.hvd.elastic.state import HostsUpdatedInterrupt, ObjectState, State
from paceline.hvd.world import HorovodInternalError
from paceline.job.elastic_commits import Snapshot
from paceline.tensorflow.execution import take_failure
from paceline.tensorflow.functions import broadcast_variables
from paceline.tensorflow.gradients import Variable

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)

__all__ = [
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "run",
]


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorate an elastic training function, so that it resumes when ranks die, join or leave.

    - When a rank dies, all ranks return to the last commit. TensorFlow reports a failed operation in a graph by an
      error of its own, which this turns back into `HorovodInternalError`.
    - When ranks are about to join or leave, `state.commit()` raises `HostsUpdatedInterrupt`; nothing is lost.

    Then the ranks form a new world, the reset callbacks run, the state is synchronized, and the function is called
    again. Without `paceline run --elastic`, or another launcher with a driver, the function is called once.

    Args:
        func: The training function; its first argument is a `State`.

    Returns:
        A function with the same arguments.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     while state.batch < 3:
        ...         state.batch += 1
        ...         state.commit()
        ...     return state.batch
        >>> train(hvd.elastic.ObjectState(batch=0))
        3
    """

    @functools.wraps(func)
    def unwrapped(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.OpError as error:
            failed = take_failure()
            if failed is None:
                raise
            raise failed from error

    return runner.run(cast(Callable[Concatenate[S, P], R], unwrapped))


class TensorFlowState(ObjectState):
    """Variables of TensorFlow, and other objects as attributes by their names.

    Variables are copied at each commit, and broadcast from rank 0 when ranks synchronize.

    Example:
        >>> weight = tf.Variable(1.0)
        >>> state = hvd.elastic.TensorFlowState(variables=[weight], batch=0)
        >>> state.save()
        >>> _ = weight.assign(2.0)
        >>> state.restore()
        >>> float(weight)
        1.0
    """

    def __init__(
        self,
        variables: Sequence[Variable] | None = None,
        session: Any = None,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Take the variables and objects; nothing is committed yet.

        Args:
            variables: The variables; required in eager execution, which has no list of all.
            session: Accepted for compatibility with Horovod; only None.
            **kwargs: Further objects by name.

        Raises:
            ValueError: `variables` is missing, or a session of TensorFlow 1 is given.
        """
        if session is not None:
            raise ValueError("session: elastic states are for eager execution; leave it out")
        if variables is None:
            raise ValueError("variables is missing; give the variables of model and optimizer")
        self._variables = list(variables)
        super().__init__(**kwargs)

    @property
    def variables(self) -> list[Variable]:
        """The variables."""
        return self._all()

    def _all(self) -> list[Variable]:
        return self._variables

    def sync(self) -> None:
        """Copy the state of rank 0 to all ranks, and keep it: `restore` brings it back.

        Raises:
            InvalidArgumentError: An object cannot be pickled.
            JobError: A rank is gone.
        """
        broadcast_variables(self._all(), 0)
        super().sync()

    def _snapshot(self) -> Snapshot:
        return super()._snapshot(), [tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(one)) for one in self._all()]

    def _bring_back(self, snapshot: Snapshot) -> None:
        objects, kept = snapshot
        super()._bring_back(objects)
        for variable, value in zip(self._all(), kept, strict=True):
            variable.assign(value)


class TensorFlowKerasState(TensorFlowState):
    """A model of Keras, its optimizer, and other objects as attributes by their names."""

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - of Keras
        optimizer: Any = None,  # noqa: ANN401
        backend: Any = None,  # noqa: ANN401
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Take model and optimizer; nothing is committed yet.

        Args:
            model: The model, which has been built.
            optimizer: The optimizer; by default the one with which the model was compiled. It is built if need be.
            backend: Accepted for compatibility with Horovod, and ignored.
            **kwargs: Further objects by name.

        Raises:
            ValueError: The model has not been built, or there is no optimizer.
        """
        if not getattr(model, "built", True):
            raise ValueError("Model must be built first. Run `model.build(input_shape)`.")
        chosen = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if chosen is None:
            raise ValueError("optimizer is missing, and the model has not been compiled with one; give it")
        if not getattr(chosen, "built", True):
            # Ranks that start anew and ranks that go on must have the same variables.
            chosen.build(model.trainable_variables)
        self.model, self.optimizer = model, chosen
        super().__init__([], **kwargs)

    def _all(self) -> list[Variable]:
        of_optimizer = self.optimizer.variables
        return [*self.model.variables, *(of_optimizer() if callable(of_optimizer) else of_optimizer)]


__dir__ = public_names(__name__)
