"""Recording an unmodified script: runs inside the script's process, started by inject/sitecustomize.py.

It watches two steps of any optimizer to find the largest module that was called and the optimizer that holds most of
its parameters. From then on the ordinary recorder records them.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from paceline._internal.recording import RecordingError
from paceline.launch.injection import SETTINGS, Recording, rank_here, recorded_message
from paceline.torch.recorder.backward import inside_backward
from paceline.torch.recorder.closures import Arguments, Closure, around_closure
from paceline.torch.recorder.modules import unwrapped
from paceline.torch.recorder.recorder import Recorder
from paceline.torch.recorder.trace import CALLED_TWICE

if TYPE_CHECKING:
    from paceline.torch.simulated.mode import Simulation


class Watcher:
    """Finds the model and the optimizer, records them, and reports."""

    def __init__(self, settings: Recording) -> None:
        """Register torch's global hooks; they are removed once the model is found."""
        self._settings = settings
        self._simulation: Simulation | None = None
        if settings.gpu is not None:
            from paceline.torch.simulated.mode import enter

            self._simulation = enter(settings.gpu, settings.dtype, settings.power_limit)
            sys.excepthook = self._failed
        self._pid = os.getpid()
        self._called_modules: dict[int, nn.Module] = {}  # in order of their first call
        self._optimizers: list[torch.optim.Optimizer] = []
        self._steps = 0
        self._recorder: Recorder | None = None
        self._chosen: dict[str, Any] = {}
        self._module: nn.Module | None = None
        self._counted: dict[str, Any] | None = None
        self._error: str | None = None
        self._saved = False
        self._reported = False
        # torch warns that global hooks fire twice for compiled modules; that is harmless here.
        warnings.filterwarnings("ignore", message=".*there are global hooks on", category=UserWarning)
        self._module_hook = register_module_forward_pre_hook(self._called)
        register_optimizer_step_pre_hook(self._stepping)
        register_optimizer_step_post_hook(self._stepped)
        atexit.register(self._ends)

    def _called(self, module: nn.Module, _args: object) -> None:
        if torch.compiler.is_compiling() or id(module) in self._called_modules:
            return
        if torch.is_grad_enabled() and not inside_backward():
            self._called_modules[id(module)] = module

    def _stepping(self, _optimizer: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        if self._recorder is not None or self._error is not None:
            return None
        return around_closure(args, kwargs, self._watch_closure)

    def _watch_closure(self, closure: Closure) -> Closure:
        calls = 0

        def called(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls > 1 and self._recorder is None and self._error is None:
                self._give_up(CALLED_TWICE)
            return closure(*args, **kwargs)

        return called

    def _stepped(self, optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        if os.getpid() != self._pid or self._error is not None or self._reported:
            return
        if self._recorder is None:
            self._steps += 1
            again = any(known is optimizer for known in self._optimizers)
            if not again:
                self._optimizers.append(optimizer)
            # At the second step of any optimizer, all optimizers of the loop have been seen.
            if again:
                self._choose()
        elif self._recorder.done or (self._simulation is not None and self._recorder.finished):
            self._ends()
            if self._settings.stop:
                raise SystemExit(0)
        elif self._recorder.finished and not self._saved:
            self._saved = True  # save early, in case the script is killed
            self._report()

    def _choose(self) -> None:
        if not self._may_record():
            self._give_up(None)
            if self._simulation is not None:
                raise SystemExit(0)  # Another process of the script records; this one would train nothing.
            return
        module, optimizer = largest(list(self._called_modules.values()), self._optimizers)
        if module is None or optimizer is None:
            self._give_up("no module with parameters of an optimizer was called")
            return
        self._forget()
        settings = self._settings
        try:
            recorder = Recorder(
                module,
                optimizer,
                warmup=settings.warmup,
                steps=settings.steps,
                name=settings.name,
                batch=settings.batch,
                earlier_steps=self._steps,
                simulation=self._simulation,
                with_input=self._simulation is None,
                raises=False,
            )
            recorder.start()
        except (ValueError, RecordingError) as error:
            self._give_up(str(error))
            return
        self._recorder = recorder
        self._module = module if self._simulation is not None else None
        held = {id(p): p.numel() for group in optimizer.param_groups for p in group["params"]}
        inside = sum(held.get(id(p), 0) for p in module.parameters())
        self._chosen = {
            "model": recorder.name,
            "parameters": sum(p.numel() for p in module.parameters()),
            "elsewhere": sum(held.values()) - inside,
            "optimizer": type(optimizer).__name__,
        }

    def _may_record(self) -> bool:
        """Return whether this process records: the first one of this command, and rank 0 of several ranks."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        return self._settings.claim(torch.distributed.get_rank() if distributed else rank_here())

    def _forget(self) -> None:
        self._module_hook.remove()
        self._called_modules.clear()
        self._optimizers.clear()

    def _give_up(self, error: str | None) -> None:
        """Stop watching the script; without an `error`, another process records."""
        self._forget()
        self._error = f"{error} (optimizer steps seen: {self._steps})" if error else ""

    def _failed(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report what cannot be recorded by where the script did it; print the traceback of any other error."""
        if not issubclass(kind, RecordingError):
            sys.__excepthook__(kind, error, trace)
            return
        ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
        frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(ours)]
        where = f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""
        self._error = f"{where}{error}"

    def _ends(self) -> None:
        if os.getpid() != self._pid or self._reported:
            return
        self._reported = True
        recorder = self._recorder
        if self._simulation is not None and self._module is not None:
            self._counted = self._simulation.summary(unwrapped(self._module))
            if recorder is not None:
                account = self._simulation.account
                recorder.keep_activations(account.kept, account.passing)
            self._module = None
        if recorder is not None and not recorder.done:
            recorder.stop()
        self._report()
        if recorder is not None and recorder.recorded and not self._settings.rank:
            self._say(recorder)

    def _report(self) -> None:
        recorder = self._recorder
        if recorder is None and self._error == "":
            return
        if recorder is None and self._steps == 0 and self._error is None:
            return  # torch was imported, but nothing was trained: a launcher, or a data-loading worker
        result: dict[str, Any] = {"steps_seen": self._steps, "error": self._error, **self._chosen}
        if recorder is not None:
            result["steps_seen"] = recorder.steps_seen
            result["recorded"] = recorder.recorded
            result["finished"] = recorder.finished
            try:
                recorder.save(self._settings.output)
                result["summary"] = recorder.summary.as_dict()
                if self._simulation is not None:
                    result["summary"]["simulated"] = self._counted
            except (RecordingError, OSError) as error:
                result["error"] = str(error)
        self._settings.report(result, final=recorder is not None)

    def _say(self, recorder: Recorder) -> None:
        try:
            batch = recorder.summary.batch
        except RecordingError:
            return  # The command reports the error.
        chosen = self._chosen
        message = recorded_message(
            steps=recorder.recorded,
            model=chosen["model"],
            parameters=chosen["parameters"],
            optimizer=chosen["optimizer"],
            batch=batch,
            output=self._settings.output,
        )
        if chosen["elsewhere"]:
            message += f"; left out {chosen['elsewhere']:,} parameters of the optimizer that are not in the model"
        print(message, file=sys.stderr, flush=True)


def largest(
    modules: list[nn.Module], optimizers: list[torch.optim.Optimizer]
) -> tuple[nn.Module | None, torch.optim.Optimizer | None]:
    """Return the module with the most parameter elements in one optimizer, and that optimizer.

    `modules` are in order of first call: of modules with the same parameters, the outermost was called first.
    """
    best: tuple[int, nn.Module | None, torch.optim.Optimizer | None] = (0, None, None)
    for optimizer in optimizers:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for module in modules:
            size = sum(p.numel() for p in module.parameters() if id(p) in held)
            if size > best[0]:
                best = (size, module, optimizer)
    return best[1], best[2]


def start() -> None:
    """Start watching with the settings in the environment; called once torch is imported."""
    settings = Recording(**json.loads(os.environ[SETTINGS]))
    if settings.gpu is not None and os.environ.get("RANK", "0") not in ("", "0"):
        raise SystemExit(0)  # Ranks exchange nothing, and rank 0 records.
    try:
        _keep(Watcher(settings))
    except Exception as error:
        if settings.gpu is None:
            raise
        # The script would train in earnest.
        raise SystemExit(f"paceline: cannot run without the device: {error!r}") from error


_kept: list[Watcher] = []
_keep: Callable[[Watcher], None] = _kept.append
