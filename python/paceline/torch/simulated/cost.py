"""FLOPs, bytes and time of an operator on a GPU.

FLOPs are those of `torch.utils.flop_counter`. An operator reads its inputs and writes its outputs, except for views
(nothing), look-ups (only what they return) and fills (no input).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from paceline.catalog.efficiency import efficiency
from paceline.catalog.gpus import Hardware
from paceline.catalog.models.roofline import Roofline

_PRECISIONS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}
_NOTHING = ("empty", "new_empty", "lift_fresh", "_local_scalar_dense", "_unsafe_view", "detach", "alias", "sym_", "is_")
_WRITES_ONLY = (
    *(
        "zero",
        "ones",
        "full",
        "fill",
        "new_zeros",
        "new_ones",
        "new_full",
        "arange",
        "rand",
        "uniform",
        "normal",
        "eye",
    ),
    *("bernoulli", "exponential", "nll_loss", "embedding_dense_backward"),
)
_READS_ITS_RESULT = ("embedding", "index", "index_select", "gather", "take", "copy_", "_foreach_copy_")
_ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")

_TRAFFIC = 2.2
"""Time of a model's memory-bound operators, relative to their inputs and outputs at the rate of the memory.

Kernels have ramps and tails, reductions pass over their input more than once, and rows with strides waste sectors.
Calibrated so that a GPT-2 XL, operator by operator on an A100, takes what the roofline of configurations says
(catalog/efficiency.json: traffic.hidden, traffic.weight and traffic.eager, which were fitted to measured training): the
operators of a layer count 210 bytes per hidden element and token and 12 per parameter, and training takes 480 and 27.
Optimizers' kernels, which stream, have no such factor."""


@dataclass(frozen=True)
class Cost:
    """The work of one operator."""

    kind: str
    """`matmul`, `attention` or `memory`."""
    flops: int
    bytes: int
    seconds: float


class Timer:
    """Times operators on one GPU."""

    def __init__(self, hardware: Hardware, *, tf32: Callable[[], bool]) -> None:
        """Take the GPU, and what says whether matrix products in FP32 may use TF32."""
        self._hardware = hardware
        self._tf32 = tf32
        self._lines: dict[str, Roofline] = {}

    def cost(
        self,
        func: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Any,  # noqa: ANN401
        *,
        fuse: bool = False,
        streams: bool = False,
    ) -> Cost | None:
        """Return the cost of a call; None if it runs no kernel.

        Args:
            func: The operator.
            args: Its arguments.
            kwargs: Its arguments by name.
            out: Its result.
            fuse: Whether memory-bound operators are fused with their neighbors, as torch.compile does.
            streams: Whether it is an optimizer's operator.
        """
        name = func._schema.name.partition("::")[2]
        if func.namespace != "aten" and func.namespace.startswith(("prim", "profiler")):
            return None
        outputs = list(_tensors(out))
        if not outputs and not func._schema.is_mutable:
            return None
        if name.startswith(_NOTHING) or _is_view(func):
            return None
        inputs = {id(t): t for t in _tensors((args, kwargs))}
        written = sum(map(_bytes, outputs)) or sum(map(_bytes, _written(func, args, kwargs)))
        if name.startswith(_WRITES_ONLY):
            moved = written
        elif name in _READS_ITS_RESULT:
            moved = 2 * written
        else:
            moved = written + sum(map(_bytes, inputs.values()))
        count = flop_registry.get(func.overloadpacket) if func.overloadpacket in flop_registry else None
        if count is None:
            factor = 1.0 if streams else _TRAFFIC
            if fuse:
                factor *= efficiency("traffic.compiled") / efficiency("traffic.eager")
            return Cost("memory", 0, moved, self._line("bf16").memory(moved * factor))
        flops = int(count(*args, **kwargs, out_val=out))
        operand = next((t for t in inputs.values() if t.is_floating_point()), outputs[0])
        line = self._line(self._precision(operand.dtype))
        if name.startswith(_ATTENTION):
            causal = _argument(func, args, kwargs, "is_causal")
            rate = line.matmul_rate(_narrowest_of_attention(inputs)) * efficiency("attention.flash")
            # Half of the scores are above the diagonal; a fused kernel passes over them.
            return Cost("attention", flops, moved, max(flops * (0.5 if causal else 1.0) / rate, line.memory(moved)))
        return Cost("matmul", flops, moved, line.matmul(flops, moved, _narrowest(name, args, outputs)))

    def _precision(self, dtype: torch.dtype) -> str:
        wanted = _PRECISIONS.get(dtype, "fp32")
        if wanted == "fp32" and self._tf32() and "tf32" in self._hardware.peak_flops:
            return "tf32"
        # bf16 on a GPU without it, and FP64, run on units that no file gives a peak for: FP32's is the nearest.
        return wanted if wanted in self._hardware.peak_flops else "fp32"

    def _line(self, precision: str) -> Roofline:
        if precision not in self._lines:
            self._lines[precision] = Roofline(self._hardware, precision)
        return self._lines[precision]


def _tensors(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_view(func: Any) -> bool:  # noqa: ANN401
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:  # noqa: ANN401
    """Yield the tensors that an operator without a result writes (`_foreach_add_`, `_fused_adamw_`)."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[index] if index < len(args) else kwargs.get(argument.name))


def _argument(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[index] if index < len(args) else kwargs.get(name, argument.default_value)
    return None


def _narrowest(name: str, args: tuple[Any, ...], outputs: list[torch.Tensor]) -> int:
    """Return the smallest dimension of a matrix product, which decides how well it fills a GPU."""
    shapes = [t.shape for t in _tensors(args)]
    if "convolution" in name:
        # An implicit product: pixels of the result, its channels, and the weights of each.
        weight = next((s for s in reversed(shapes) if len(s) > 2), shapes[-1])
        image = shapes[0]
        return max(1, int(min(weight[0], math.prod(weight[1:]), image[0] * math.prod(image[2:]))))
    if not outputs or outputs[0].dim() < 2:
        return 1
    left = next((s for s in reversed(shapes[:-1]) if len(s) >= 2), outputs[0].shape)
    return max(1, int(min(*outputs[0].shape[-2:], left[-1])))


def _narrowest_of_attention(inputs: Mapping[int, torch.Tensor]) -> int:
    """Return the width of all heads: fused attention runs them in one kernel."""
    query = next(t for t in inputs.values() if t.dim() == 4)
    return max(1, int(query.shape[1] * query.shape[3]))
