"""Lets scripts that ask for CUDA run without it: their tensors are fake ones that torch believes to be on the CPU.

Autograd cannot run backward passes of fake CUDA tensors without a driver, so devices are replaced where tensors are
made or moved, and `torch.cuda` answers for the GPU that is simulated.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from paceline.catalog.gpus import Hardware
from paceline.operators.backend import capability
from paceline.torch.simulated.replacing import answering

_CPU = torch.device("cpu")


class HereInsteadOfCuda(TorchFunctionMode):
    """Replaces CUDA devices in calls of torch's functions."""

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Call the function with the CPU for every CUDA device."""
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.cuda or func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.numpy:
            return _numpy(args[0])
        given = dict(kwargs or {})
        for key in ("device", "map_location"):
            if key in given:
                given[key] = _here(given[key])
        given.pop("pin_memory", None)
        if func is torch.asarray and isinstance(args[0], torch.UntypedStorage):
            # Of a file of safetensors, whose content counts nowhere.
            with _disable_current_modes():
                return func(*args, **given)
        if name == "to":
            args = tuple(_here(argument) for argument in args)
        return func(*args, **given)


def _here(device: object) -> object:
    if isinstance(device, torch.device):
        return _CPU if device.type == "cuda" else device
    if isinstance(device, str) and device.split(":")[0] == "cuda":
        return _CPU
    return _CPU if type(device) is int else device


def _numpy(tensor: torch.Tensor) -> Any:  # noqa: ANN401
    """Return zeros: there is no data."""
    import numpy as np

    name = str(tensor.dtype).removeprefix("torch.")
    return np.zeros(tuple(tensor.shape), dtype="float32" if name == "bfloat16" else name)


class _Nothing:
    """An event, a stream or a context that does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 0.0 if name == "elapsed_time" else None


def stand_in(hardware: Hardware, synchronize: Callable[[], None], noted: Callable[[str], None]) -> None:
    """Replace what would need the device, for the rest of this process."""
    if not hardware.is_cpu:
        _stand_in_for_cuda(hardware, synchronize)
        _stand_in_for_amp()
    _stand_in_for_modules()
    _stand_in_for_input()
    # The state of a model without data would overwrite a real one.
    torch.save = lambda *_, **__: noted("torch.save wrote nothing: there is no data")
    if not hardware.is_cpu:
        # Optimizers choose kernels for many tensors at once, as they do for parameters on a GPU.
        optimizers: Any = sys.modules["torch.optim.optimizer"]
        optimizers._get_foreach_kernels_supported_devices = lambda: ["cpu", "cuda"]
        optimizers._foreach_supported_types.append(FakeTensor)
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
        setattr(torch.optim.Optimizer, name, answering(None))


def _stand_in_for_cuda(hardware: Hardware, synchronize: Callable[[], None]) -> None:
    cuda: Any = torch.cuda
    major, minor = capability(hardware.architecture)
    properties = SimpleNamespace(
        name=hardware.title, total_memory=hardware.memory_bytes, major=major, minor=minor, multi_processor_count=1
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": "bf16" in hardware.peak_flops,
        "is_current_stream_capturing": False,
        "device_count": 1,
        "current_device": 0,
        "get_device_name": hardware.title,
        "get_device_capability": (major, minor),
        "get_device_properties": properties,
        "mem_get_info": (hardware.memory_bytes, hardware.memory_bytes),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"), 0),
        **dict.fromkeys(
            (
                "init",
                "set_device",
                "empty_cache",
                "manual_seed",
                "manual_seed_all",
                "seed",
                "seed_all",
                "ipc_collect",
                "reset_peak_memory_stats",
                "reset_max_memory_allocated",
                "set_per_process_memory_fraction",
            )
        ),
    }
    for name, answer in answers.items():
        setattr(cuda, name, answering(answer))
    cuda.synchronize = lambda *_, **__: synchronize()
    cuda.memory_stats = lambda *_, **__: {}
    for name in ("Event", "Stream", "device", "stream", "StreamContext"):
        setattr(cuda, name, _Nothing)
    cuda.current_stream = cuda.default_stream = lambda *_, **__: _Nothing()
    accelerator: Any = getattr(torch, "accelerator", SimpleNamespace())
    for name, answer in {
        "is_available": True,
        "device_count": 1,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": 0,
        "current_device_idx": 0,
        "current_stream": _Nothing(),
        "set_device_index": None,
        "set_device_idx": None,
        "empty_cache": None,
    }.items():
        setattr(accelerator, name, answering(answer))
    accelerator.synchronize = cuda.synchronize
    torch.Tensor.record_stream = answering(None)  # type: ignore[method-assign]


def _stand_in_for_amp() -> None:
    from torch.amp.autocast_mode import autocast
    from torch.amp.grad_scaler import GradScaler

    original = autocast.__init__

    @functools.wraps(original)
    def here(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:  # noqa: ANN401
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, enabled, cache_enabled)

    autocast.__init__ = here  # type: ignore[method-assign]
    module: Any = torch
    for name in ("is_autocast_enabled", "get_autocast_dtype"):
        setattr(module, name, _of_cpu(getattr(torch, name)))
    module.get_autocast_gpu_dtype = lambda: module.get_autocast_dtype("cuda")
    scaler: Any = GradScaler
    disabled = scaler.__init__

    @functools.wraps(disabled)
    def without_data(self: Any, device: str = "cuda", *args: object, **kwargs: object) -> None:  # noqa: ANN401
        disabled(self, "cpu", enabled=False)

    scaler.__init__ = without_data


def _of_cpu(function: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a function of a kind of device, CUDA by default, whose answer for CUDA is that for the CPU."""

    @functools.wraps(function)
    def answer(device_type: str = "cuda") -> Any:  # noqa: ANN401
        return function("cpu" if device_type == "cuda" else device_type)

    return answer


def _stand_in_for_modules() -> None:
    def apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        _apply(self, fn, {}, recurse)
        return self

    # torch swaps fake parameters in place, which is refused while anything refers to them weakly.
    nn.Module._apply = apply  # type: ignore[method-assign]


def _apply(
    module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], done: dict[int, nn.Parameter], recurse: bool
) -> None:
    if recurse:
        for child in module.children():
            _apply(child, fn, done, recurse)
    for name, parameter in module._parameters.items():
        if parameter is None:
            continue
        if id(parameter) not in done:
            with torch.no_grad():
                changed = fn(parameter)
            same = (
                changed.dtype == parameter.dtype
                and changed.device == parameter.device
                and changed.stride() == parameter.stride()
            )
            if isinstance(changed, nn.Parameter):  # Also one of a class of its own, with its fields.
                done[id(parameter)] = changed
            else:
                done[id(parameter)] = parameter if same else nn.Parameter(changed, parameter.requires_grad)
        module._parameters[name] = done[id(parameter)]
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = fn(buffer)


def _stand_in_for_input() -> None:
    from torch.utils.data import DataLoader

    original = DataLoader.__init__

    @functools.wraps(original)
    def in_this_process(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        for key in ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "multiprocessing_context"):
            kwargs.pop(key, None)
        original(self, *args[:5], **kwargs)

    DataLoader.__init__ = in_this_process  # type: ignore[method-assign]


def enable_autocast(dtype: torch.dtype) -> None:
    """Let the whole script run as if inside `torch.autocast`; it may say otherwise itself."""
    torch.set_autocast_dtype("cpu", dtype)
    torch.set_autocast_enabled("cpu", True)
    # A cached cast would belong to the graph of an earlier step.
    torch.set_autocast_cache_enabled(False)
