"""Recording an unmodified script: runs inside the script's process, started by launch/inject/sitecustomize.py."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline._internal import units
from paceline._internal.recording import RecordingError
from paceline.errors import InvalidArgumentError
from paceline.job.rank_environment import rank_environment
from paceline.launch.injection import SETTINGS, Recording, rank_here, recorded_message
from paceline.tensorflow.recorder.hooks import Hooks
from paceline.tensorflow.recorder.recorder import Recorder

_STEPS = (
    "optimizer.apply_gradients of keras.optimizers or tf.compat.v1.train, or variable.assign_sub(rate * gradient) of "
    "every variable"
)


class Watcher:
    """Records the script's steps, and reports."""

    def __init__(self, settings: Recording) -> None:
        """Wrap the functions of TensorFlow."""
        self._settings = settings
        self._pid = os.getpid()
        self._reported = self._saved = False
        self._recorder = Recorder(
            warmup=settings.warmup, steps=settings.steps, name=settings.name, batch=settings.batch, alone=_alone()
        )
        if settings.gpu is not None:
            self._recorder.on_gradient = self._refuse_gpu
        self._recorder.on_choice = self._may_record
        self._recorder.on_step = self._stepped
        self._recorder.on_return = self._may_stop
        self.hooks = Hooks(self._recorder)
        if settings.stop:
            self.hooks.watch_functions(self._may_stop)
        atexit.register(self._ends)

    def _may_record(self) -> bool:
        """Return whether this process records: the first one of this command, and rank 0 of several ranks."""
        return os.getpid() == self._pid and self._settings.claim(rank_here())

    def _refuse_gpu(self) -> None:
        """End the script before it trains: TensorFlow runs operators in earnest."""
        self._recorder.give_up(
            f"the script trains with TensorFlow, whose steps cannot be estimated for {self._settings.gpu}",
            remedy=f"paceline simulate MODEL --gpu {self._settings.gpu} (list: paceline list models), or a profile "
            "from that GPU: paceline import tensorflow",
        )
        self._ends()
        raise SystemExit(1)

    def _stepped(self) -> None:
        """Report early, in case the script is killed, and again at the end."""
        recorder = self._recorder
        if recorder.done:
            self._ends()
        elif recorder.finished and not self._saved and not recorder.in_graph:
            self._saved = True
            self._report()

    def _may_stop(self) -> None:
        if self._settings.stop and self._recorder.done and os.getpid() == self._pid:
            raise SystemExit(0)

    def _ends(self) -> None:
        if os.getpid() != self._pid or self._reported:
            return
        self._reported = True
        self._recorder.stop()
        self._report()
        if self._recorder.recorded and not self._settings.rank:
            self._say()

    def _report(self) -> None:
        recorder = self._recorder
        if recorder.error == "":
            return  # Another process records.
        error, remedy = recorder.error, recorder.remedy
        if error is None and not recorder.steps_seen:
            if not recorder.gradients_seen:
                return  # TensorFlow was imported, but nothing was trained.
            error, remedy = "gradients were computed by a tape, but no optimizer step was seen", _STEPS
            if recorder.table.assigned:
                every = units.count(len(recorder.table.parameters), "variable")
                error += f"; {recorder.table.assigned} of {every} with gradients were assigned"
        result: dict[str, Any] = {
            "steps_seen": recorder.steps_seen,
            "error": error,
            "remedy": remedy,
            "optimizer": recorder.optimizer_name,
            "parameters": recorder.parameters,
            "recorded": recorder.recorded,
            "finished": recorder.finished,
        }
        if error is None and recorder.recorded:
            try:
                recorder.save(Path(self._settings.output))
                result["summary"] = recorder.summary.as_dict()
                result["model"] = result["summary"]["name"]
            except (RecordingError, OSError) as problem:
                result["error"] = str(problem)
                result["remedy"] = getattr(problem, "remedy", None)
        self._settings.report(result, final=bool(recorder.recorded))

    def _say(self) -> None:
        recorder = self._recorder
        try:
            summary = recorder.summary
        except RecordingError:
            return  # The command reports the error.
        message = recorded_message(
            steps=recorder.recorded,
            model=summary.name,
            parameters=recorder.parameters,
            optimizer=recorder.optimizer_name,
            batch=summary.batch,
            output=self._settings.output,
        )
        print(message, file=sys.stderr, flush=True)


def _alone() -> bool:
    try:
        return rank_environment().size == 1
    except InvalidArgumentError:  # A recording does not report malformed variables.
        return True


def start() -> None:
    """Start watching with the settings in the environment; called once TensorFlow is imported."""
    settings = Recording(**json.loads(os.environ[SETTINGS]))
    _keep(Watcher(settings))
    if hasattr(sys.modules.get("keras"), "Layer"):
        start_keras()


def start_keras() -> None:
    """Wrap the functions of Keras; called once it is imported, on whatever backend."""
    keras = sys.modules["keras"]
    if _kept and keras.backend.backend() == "tensorflow":
        _kept[0].hooks.wrap_keras(keras)


_kept: list[Watcher] = []
_keep: Callable[[Watcher], None] = _kept.append
