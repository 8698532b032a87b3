"""Gives Paceline's process groups to programs that insist on "gloo": `PACELINE_AS_GLOO=1`, `paceline run --as-gloo`.

Some trainers only accept backends whose names they know. torch loads this module at the end of each `import torch`
(entry point `torch.backends`), under any launcher. With the variable, a group of backend "gloo" is Paceline's, but
still reports that it is "gloo"; without it, only accelerate learns to accept the name "paceline". In ranks that
`paceline run` or Ray started, torch's store listens on their address alone (`store_address`).
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from paceline import accelerate_backend, store_address

if TYPE_CHECKING:
    from types import TracebackType

    from torch._C._distributed_c10d import _DistributedBackendOptions

VARIABLE = "PACELINE_AS_GLOO"


def requested() -> bool:
    """Return whether the variable is set to yes. Raises InvalidArgumentError if it is neither yes nor no."""
    value = os.environ.get(VARIABLE, "")
    if not value:
        return False
    from paceline.settings.table import SETTINGS

    return bool(SETTINGS["as_gloo"].check(value, SETTINGS["as_gloo"].source("variable")))


def load() -> None:
    """Called by torch when it has been imported."""
    accelerate_backend.allow()
    store_address.restrict()
    if os.environ.get("PACELINE_TIMELINE"):
        _warn_of_groups_without_timeline()
    if not os.environ.get(VARIABLE):
        return
    from paceline.errors import InvalidArgumentError

    try:
        _load()
    except InvalidArgumentError as error:
        _repeat_last(str(error))
        raise


def _warn_of_groups_without_timeline() -> None:
    """Make rank 0 say so, when it makes a default group that is not Paceline's, while a timeline is wanted.

    It is no error, because the script may make further groups, but otherwise one learns of it after training.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    torchs = dist.init_process_group

    @functools.wraps(torchs)
    def init_process_group(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as torch's
        torchs(*args, **kwargs)
        backends = {one.rpartition(":")[2] for one in str(dist.get_backend_config()).lower().split(",")}
        if dist.get_rank() == 0 and not backends & {"paceline", *(("gloo",) if requested() else ())}:
            print(
                f"paceline: warning: init_process_group has made a group of {', '.join(sorted(backends))}, of which no "
                "timeline is recorded; make it with the backend 'paceline'"
                f"{', or set PACELINE_AS_GLOO=1' if 'gloo' in backends else ''}",
                file=sys.stderr,
                flush=True,
            )

    for name in ("torch.distributed", "torch.distributed.distributed_c10d", "torch.distributed.device_mesh"):
        module = sys.modules.get(name)
        if getattr(module, "init_process_group", None) is torchs:
            module.init_process_group = init_process_group  # type: ignore[union-attr]


def _repeat_last(message: str) -> None:
    """Print the message after the traceback, which ends with torch's advice to disable all of its extensions."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if str(error.__cause__) == message:
            from paceline.errors import TRY

            remedy = getattr(error.__cause__, "remedy", None)
            tried = f"\n{TRY}{remedy}" if remedy is not None else ""
            print(f"paceline: error: {message}{tried}", file=sys.stderr)

    sys.excepthook = hook


def _load() -> None:
    if not requested():
        return
    import torch.distributed as dist

    if not dist.is_available():
        return
    try:
        # torch 2.15 looks up the function that makes gloo groups by name, as for other backends.
        dist.Backend.register_backend(
            dist.Backend.GLOO,
            _create,
            extended_api=True,
            devices=dist.Backend.backend_capability[dist.Backend.GLOO],
            _backend_type=dist.ProcessGroup.BackendType.GLOO,
        )
    except (TypeError, RuntimeError) as error:
        from paceline.errors import InvalidArgumentError

        raise InvalidArgumentError(
            f"{VARIABLE} needs torch 2.15 or newer ({error})", remedy="init_process_group('paceline') in the script"
        ) from error


def _create(options: _DistributedBackendOptions, backend_options: object) -> Any:  # noqa: ANN401 - torch is not imported
    from paceline.torch.backend.register import create_as_gloo

    return create_as_gloo(options, backend_options)
