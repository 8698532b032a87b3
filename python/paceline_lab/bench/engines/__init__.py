"""The engines that `paceline bench` compares, one family per file.

An engine reports what this machine lacks for it, describes what its ranks do, and lists its processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline._internal.nearest import nearest
from paceline.errors import InvalidArgumentError

from paceline_lab.bench.engines.baidu import BaiduRing
from paceline_lab.bench.engines.base import Engine, Options
from paceline_lab.bench.engines.ddp import Ddp
from paceline_lab.bench.engines.horovod import Horovod, HorovodMpi, HorovodTensorFlow, HorovodTensorFlowMpi
from paceline_lab.bench.engines.paceline import Paceline, PacelineTensorFlow
from paceline_lab.bench.engines.ray import RayServers
from paceline_lab.bench.engines.tensorflow import Mirrored, Replicas, Servers

__all__ = ["ALL", "NAMES", "Engine", "Options", "chosen"]

NAMES = (
    *("paceline", "ddp-gloo", "ddp-nccl", "horovod", "tensorflow-ps", "tensorflow-mwm", "tensorflow-mirrored"),
    *("paceline-tensorflow", "horovod-tensorflow", "horovod-mpi", "horovod-tensorflow-mpi", "ray-ps", "baidu-ring"),
)
ALL = "all"


def chosen(
    names: Sequence[str], options: Options, strategies: Sequence[str | None], xla: Sequence[bool] = (False,)
) -> list[Engine]:
    """Return the engines of these names, in order; `paceline` once per strategy (None: chosen by message size).

    Engines of TensorFlow are listed once without and with XLA, as `xla` says.

    Raises InvalidArgumentError.
    """
    for name in names:
        if name not in NAMES and name != ALL:
            near = nearest(name[:80], [*NAMES, ALL])
            hint = f"--engine {near or NAMES[0]}"
            raise InvalidArgumentError(
                f"--engine: unknown engine '{name[:80]}'", remedy=f"{hint} (one of {', '.join(NAMES)}, all)"
            )
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None or (ALL in names and len(names) > 1):
        raise InvalidArgumentError(
            f"--engine: {f'{twice} is listed twice' if twice else 'all includes every engine'}",
            remedy=twice or "--engine all",
        )
    engines: list[Engine] = []
    for name in NAMES if ALL in names else names:
        for each in [replace(options, xla=on) for on in xla] if "tensorflow" in name else [options]:
            if name in _OURS:
                engines += [_OURS[name](each, strategy) for strategy in strategies]
            else:
                engines.append(_MAKERS[name](each))
    return engines


_OURS = {"paceline": Paceline, "paceline-tensorflow": PacelineTensorFlow}
_MAKERS = {
    "ddp-gloo": lambda options: Ddp(options, "gloo"),
    "ddp-nccl": lambda options: Ddp(options, "nccl"),
    "horovod": Horovod,
    "horovod-tensorflow": HorovodTensorFlow,
    "horovod-mpi": HorovodMpi,
    "horovod-tensorflow-mpi": HorovodTensorFlowMpi,
    "tensorflow-ps": Servers,
    "tensorflow-mwm": Mirrored,
    "tensorflow-mirrored": Replicas,
    "ray-ps": RayServers,
    "baidu-ring": BaiduRing,
}
