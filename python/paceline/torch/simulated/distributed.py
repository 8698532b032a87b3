"""Lets distributed scripts run as one rank without communication: a trace describes what one worker computes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

from paceline._internal.lazy import when_imported
from paceline._internal.recording import RecordingError
from paceline.torch.simulated.replacing import answering, replace
from paceline.torch.simulated.sharded import Sharding

_TENSOR = "tensor parallelism (DTensor)"
_REFUSED = {
    "torch.distributed.tensor._api": dict.fromkeys(("distribute_tensor", "distribute_module"), _TENSOR),
    "torch.distributed.tensor.parallel.api": {"parallelize_module": _TENSOR},
    "torch.distributed.tensor.experimental._context_parallel._attention": {"context_parallel": "context parallelism"},
    "torch.distributed.pipelining.stage": {"PipelineStage": "pipeline parallelism", "build_stage": "a pipeline"},
}
"""Functions by module that need other ranks, and what each stands for."""


def stand_in_for_distributed(sharded: Callable[[str], None], kept: Callable[[torch.Tensor], None]) -> None:
    """Replace process groups, meshes and wrappers, for the rest of this process.

    Args:
        sharded: Takes the options that forecasts need, whenever another module is sharded.
        kept: Takes copies of parameters, which are no activations.
    """
    if not torch.distributed.is_available():
        return
    _stand_in_for_groups()
    _stand_in_for_meshes()
    _stand_in_for_ddp()
    sharding = Sharding(sharded, kept)
    changes: dict[str, Callable[[ModuleType], None]] = {
        name: functools.partial(_refuse, what) for name, what in _REFUSED.items()
    }
    changes["torch.distributed.fsdp._fully_shard._fully_shard"] = sharding.change_fully_shard
    changes["torch.distributed.fsdp.fully_sharded_data_parallel"] = sharding.change_wrapper
    when_imported(changes)


def _refuse(what: dict[str, str], module: ModuleType) -> None:
    for name, kind in what.items():

        def refused(*_: object, _name: str = name, _kind: str = kind, **__: object) -> None:
            raise RecordingError(
                f"the script calls {_name}, and {_kind} needs other ranks, which this recording does not have",
                remedy="the script without it, and paceline simulate --tensor-parallel 2 or --pipeline-parallel 2",
            )

        replace(module, name, refused)


def _stand_in_for_groups() -> None:
    distributed: Any = torch.distributed
    original = distributed.init_process_group

    @functools.wraps(original)
    def alone(*_: object, **__: object) -> None:
        original("gloo", store=distributed.HashStore(), rank=0, world_size=1)

    distributed.init_process_group = alone


class _OneRankMesh:
    """A `DeviceMesh` of one rank, whatever its shape; torch's own reads ranks from tensors with data."""

    def __init__(self, device_type: str, mesh: Any = None, *, mesh_dim_names: Any = None, **_: object) -> None:  # noqa: ANN401
        dimensions = len(mesh_dim_names) if mesh_dim_names else 1 if mesh is None else torch.as_tensor(mesh).dim()
        self._describe(device_type, dimensions, mesh_dim_names)

    def _describe(self, device_type: str, dimensions: int, names: Iterable[str] | None) -> None:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group()
        self._device_type = device_type
        self._one_rank_shape = (1,) * dimensions
        self._one_rank_names = tuple(names) if names else None

    device_type = property(lambda self: self._device_type)
    mesh_dim_names = property(lambda self: self._one_rank_names)
    shape = property(lambda self: self._one_rank_shape)
    ndim = property(lambda self: len(self._one_rank_shape))
    mesh = property(lambda self: torch.zeros(self._one_rank_shape, dtype=torch.int))

    def size(self, mesh_dim: int | None = None) -> int:
        return 1

    def get_rank(self) -> int:
        return 0

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        return 0

    def get_coordinate(self) -> tuple[int, ...]:
        return (0,) * len(self._one_rank_shape)

    def get_group(self, mesh_dim: int | str | None = None) -> Any:  # noqa: ANN401
        return torch.distributed.group.WORLD

    def get_all_groups(self) -> list[Any]:
        return [torch.distributed.group.WORLD] * self.ndim

    def __getitem__(self, names: str | tuple[str, ...]) -> Any:  # noqa: ANN401
        wanted = (names,) if isinstance(names, str) else tuple(names)
        return _mesh(self.device_type, len(wanted), wanted)

    def _flatten(self, mesh_dim_name: str | None = None, **_: object) -> Any:  # noqa: ANN401
        return _mesh(self.device_type, 1, (mesh_dim_name,) if mesh_dim_name else None)

    def _get_root_mesh(self) -> Any:  # noqa: ANN401
        return self

    def __enter__(self) -> Any:  # noqa: ANN401
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"DeviceMesh(one rank, {self.mesh_dim_names or self.shape})"

    def __hash__(self) -> int:
        return hash((self.device_type, self.shape, self.mesh_dim_names))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and hash(self) == hash(other)

    @staticmethod
    def from_group(group: Any, device_type: str, *_: object, mesh_dim_names: Any = None, **__: object) -> Any:  # noqa: ANN401
        return _mesh(device_type, len(group) if isinstance(group, list) else 1, mesh_dim_names)


def _mesh(device_type: str, dimensions: int, names: Iterable[str] | None) -> Any:  # noqa: ANN401
    kind: Any = torch.distributed.device_mesh.DeviceMesh
    mesh = kind.__new__(kind)
    mesh._describe(device_type, dimensions, names)
    return mesh


def _stand_in_for_meshes() -> None:
    from torch.distributed import device_mesh

    # In place, because torch registers the class by its name as a type of operators' arguments.
    for name, value in vars(_OneRankMesh).items():
        if name not in ("__module__", "__doc__", "__dict__", "__weakref__"):
            setattr(device_mesh.DeviceMesh, name, value)

    def init_device_mesh(
        device_type: str, mesh_shape: tuple[int, ...], *, mesh_dim_names: tuple[str, ...] | None = None, **_: object
    ) -> Any:  # noqa: ANN401
        return _mesh(device_type, len(mesh_shape), mesh_dim_names)

    replace(device_mesh, "init_device_mesh", init_device_mesh)


def _stand_in_for_ddp() -> None:
    from torch.nn.parallel import DistributedDataParallel

    def init(self: Any, module: nn.Module, *_: object, **__: object) -> None:  # noqa: ANN401
        nn.Module.__init__(self)
        self.module = module

    def forward(self: Any, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(_self: object) -> Iterator[None]:
        yield

    wrapper: Any = DistributedDataParallel
    wrapper.__init__, wrapper.forward, wrapper.no_sync = init, forward, no_sync
    wrapper.__getstate__, wrapper.__setstate__ = nn.Module.__getstate__, nn.Module.__setstate__
    wrapper.train = nn.Module.train
    wrapper.register_comm_hook = answering(None)
