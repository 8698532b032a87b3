"""bitsandbytes without data: its parameters are classes of tensors, which fake tensors cannot become.

A parameter of theirs is a fake one with the methods and the fields of the class that it stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from paceline.torch.simulated.replacing import answering

_FIELDS: dict[str, dict[str, Any]] = {
    "Params4bit": {
        **{"quant_state": None, "blocksize": None, "compress_statistics": True, "quant_type": "fp4"},
        **{"quant_storage": torch.uint8, "module": None, "bnb_quantized": False},
    },
    "Int8Params": {"has_fp16_weights": False, "CB": None, "SCB": None},
}
"""The classes, and the fields that each is made with (bitsandbytes/nn/modules.py)."""
_BLOCK = 64
"""Weights of a block, if none is given."""
_PAGED = 100_000
"""Elements of the least parameter whose states are paged."""
_LEFT_OUT = ("__new__", "__torch_function__", "__dict__", "__weakref__", "__doc__", "__module__")


def stand_in_for_bitsandbytes() -> None:
    """Have the parameters of bitsandbytes made as fake ones, once it is imported."""

    class Patch:
        """Patches the module at the next import."""

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            modules: Any = sys.modules.get("bitsandbytes.nn.modules")
            for kind, fields in _FIELDS.items():
                own = getattr(modules, kind, None)
                if own is not None and not hasattr(own, "_paceline_fake"):
                    own._paceline_fake = _fake_class(own, fields)
            functions: Any = sys.modules.get("bitsandbytes.autograd._functions")
            own = getattr(functions, "MatMul8bitLt", None)
            if own is not None and getattr(functions, "MatMul8bitFp", own) is not own:
                # The first is that of CPUs. Which columns are outliers depends on data: none.
                functions.MatMul8bitFp = own
                quantize = functions.F.int8_vectorwise_quant
                functions.F.int8_vectorwise_quant = lambda rows, threshold=0.0: quantize(rows)
            optimizer: Any = getattr(sys.modules.get("bitsandbytes.optim.optimizer"), "Optimizer8bit", None)
            if optimizer is not None:
                optimizer.get_state_buffer, optimizer.prefetch_state = _state, answering(None)

    sys.meta_path.insert(0, Patch())


def _fake_class(own: Any, fields: dict[str, Any]) -> type[FakeTensor]:  # noqa: ANN401
    """Return the class of fake parameters that stand for those of bitsandbytes, which are made as such from now on."""

    def make(
        cls: type,
        data: torch.Tensor | None = None,
        requires_grad: bool = False,
        **given: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        made: Any = nn.Parameter(torch.empty(0) if data is None else data.detach(), requires_grad)
        made.__class__ = fake
        for name, value in fields.items():
            setattr(made, name, given.get(name, value))
        if "blocksize" in fields and made.blocksize is None:
            made.blocksize = _BLOCK
        return made

    methods = {name: value for name, value in vars(own).items() if name not in _LEFT_OUT}
    # isinstance, super and names of classes go by what this says.
    methods |= {"__new__": make, "__class__": property(lambda self: own)}
    fake: type[FakeTensor] = type(own.__name__, (FakeTensor,), methods)
    own.__new__ = make
    return fake


def _state(optimizer: Any, parameter: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:  # noqa: ANN401
    """Return a state of an optimizer, in managed memory if it is paged and not small (`get_state_buffer`)."""
    state: Any = torch.zeros_like(parameter, dtype=dtype)
    state.is_paged = optimizer.is_paged and parameter.numel() >= _PAGED
    made: torch.Tensor = state
    return made


def gemm_4bit(  # noqa: PLR0917 - the operator's signature
    rows: torch.Tensor,
    packed: torch.Tensor,
    shape: Sequence[int],
    largest: torch.Tensor,
    block: int,
    kind: str,
    bias: torch.Tensor | None = None,
    absmax_8bit: torch.Tensor | None = None,
    absmax_code: torch.Tensor | None = None,
    absmax_offset: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the product of rows and a weight in 4 bits, which is converted first, as for many rows on a GPU.

    This is `_dequant_linear_fallback` of bitsandbytes/backends/cuda/ops.py, with its arguments.
    """
    aten, own = torch.ops.aten, torch.ops.bitsandbytes
    if absmax_8bit is not None:
        largest = own.dequantize_blockwise(absmax_8bit, largest, absmax_code, 256, torch.float32) + absmax_offset
    weight = own.dequantize_4bit(packed, largest, block, kind, shape, rows.dtype).t()
    flat = aten.view(rows, [-1, rows.shape[-1]])
    product = aten.mm(flat, weight) if bias is None else aten.addmm(bias, flat, weight)
    result: torch.Tensor = aten.view(product, [*rows.shape[:-1], shape[0]])
    return result


def int8_mixed_scaled_mm(  # noqa: PLR0917 - the operator's signature
    rows: torch.Tensor,
    narrow_rows: torch.Tensor,
    weight: torch.Tensor,
    of_rows: torch.Tensor,
    of_weight: torch.Tensor,
    outliers: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the product of rows and a weight in 8 bits, at the rate of 16 bits, as the options have it."""
    aten = torch.ops.aten
    wide = torch.empty(weight.shape, dtype=rows.dtype).t()
    product = aten.mm(rows, wide) if bias is None else aten.addmm(bias, rows, wide)
    return product, None


INSTEAD: dict[str, Callable[..., Any]] = {
    "bitsandbytes::gemm_4bit": gemm_4bit,
    "bitsandbytes::int8_mixed_scaled_mm": int8_mixed_scaled_mm,
}
"""Functions that are called instead of an operator, by its name."""
