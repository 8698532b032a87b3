"""Dispatch as for a GPU, where torch decides by the device: fused operators, and autocast's choice of dtypes.

Tensors of a simulated script are on the CPU for torch. Below, operators that torch composes there are what they are on
CUDA (aten/src/ATen/native: Dropout.cpp, layer_norm.cpp, transformers/cuda/sdp_utils.cpp; ATen/autocast_mode.h).
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from paceline.catalog.gpus import Hardware
from paceline.operators.backend import Enabled, backend_of, capability
from paceline.torch.simulated.calls import tensor_of

_AUTOGRAD, _AUTOCAST = "AutogradCPU", "AutocastCPU"
_FP32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt"),
    *("sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm"),
    *("native_layer_norm", "rms_norm", "group_norm", "cosine_similarity", "poisson_nll_loss"),
    *("cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss"),
    *("smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss"),
    *("soft_margin_loss", "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits"),
    *("dist", "pdist", "cdist", "renorm", "logsumexp"),
)
"""Autocast casts the inputs of these operators to FP32 on CUDA; on the CPU, it leaves most of them."""
_FP32_RESULT = ("softmax.int", "log_softmax.int", "cumsum", "cumprod", "prod", "prod.dim_int", "sum", "sum.dim_IntList")
"""Autocast has these operators return FP32 on CUDA, by their argument `dtype`."""

_kept: list[object] = []
"""Registrations last as long as their libraries."""


def dispatch_as(hardware: Hardware) -> None:
    """Have torch dispatch, for the rest of this process, what it would on this GPU."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _kept.append(library)
    library.impl("dropout", _dropout, _AUTOGRAD)
    _define_rms_norm()
    library.impl("rms_norm", _rms_norm, _AUTOGRAD)
    attention = functools.partial(_attention, capability(hardware.architecture))
    library.impl("scaled_dot_product_attention", attention, _AUTOGRAD)
    below = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    for name in _FP32:
        if _overload(name) is not None:
            library.impl(name, functools.partial(_in_fp32, _overload(name), below), _AUTOCAST)
    for name in _FP32_RESULT:
        library.impl(name, functools.partial(_to_fp32, _overload(name), below), _AUTOCAST)


def _overload(name: str) -> Any:  # noqa: ANN401
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _in_fp32(func: Any, below: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    with torch._C._ExcludeDispatchKeyGuard(below):
        return func(*map(_widened, args), **{name: _widened(value) for name, value in kwargs.items()})


def _widened(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16):
        return value.to(torch.float32)
    return value


def _to_fp32(func: Any, below: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    places = [argument.name for argument in func._schema.arguments]
    given = dict(zip(places, args, strict=False)) | kwargs
    low = given["self"].dtype in (torch.bfloat16, torch.float16)
    if low and given.get("dtype") is None:
        given["dtype"] = torch.float32
    with torch._C._ExcludeDispatchKeyGuard(below):
        return func(given.pop("self"), **given)


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if train and 0 < p < 1 and tensor.numel():
        return torch.native_dropout(tensor, p, train)[0]
    if not train or p == 0:
        return tensor
    return tensor * torch.zeros((), dtype=tensor.dtype)


class _RMSNorm(torch.autograd.Function):
    """The kernels of CUDA, which torch has under a name that it takes apart on the CPU."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None) -> torch.Tensor:  # noqa: ANN401
        """Return the normalized tensor; the roots of the means are kept."""
        out, root = torch.ops.paceline._fused_rms_norm(tensor, list(shape), weight)
        ctx.save_for_backward(tensor, root, *(() if weight is None else (weight,)))
        ctx.shape = list(shape)
        normalized: torch.Tensor = out
        return normalized

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401
        """Return the gradients of the tensor and of the weight."""
        tensor, root, *weight = ctx.saved_tensors
        given = weight[0] if weight else None
        of_tensor, of_weight = torch.ops.paceline._fused_rms_norm_backward(gradients[0], tensor, ctx.shape, root, given)
        return of_tensor, None, of_weight if weight else None


def _rms_norm(
    tensor: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    normalized: torch.Tensor = _RMSNorm.apply(tensor, shape, weight)
    return normalized


def _define_rms_norm() -> None:
    library: Any = torch.library.Library("paceline", "FRAGMENT")  # type: ignore[no-untyped-call]
    _kept.append(library)
    library.define("_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight) -> (Tensor, Tensor)")
    library.define(
        "_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight)"
        " -> (Tensor, Tensor)"
    )

    def forward(
        tensor: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = tensor.shape[: tensor.dim() - len(shape)]
        return torch.empty_like(tensor), tensor.new_empty(rows, dtype=torch.float32)

    def backward(
        gradient: torch.Tensor,
        tensor: torch.Tensor,
        shape: Sequence[int],
        root: torch.Tensor,
        weight: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty_like(tensor), tensor.new_empty(shape) if weight is None else torch.empty_like(weight)

    library.impl("_fused_rms_norm", forward, "Meta")
    library.impl("_fused_rms_norm_backward", backward, "Meta")


def _attention(  # noqa: PLR0917 - aten's signature
    sm: tuple[int, int],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    cuda: Any = torch.backends.cuda
    trains = any(t.requires_grad for t in (query, key, value)) and torch.is_grad_enabled()
    backend = backend_of(
        sm,
        (tensor_of(query), tensor_of(key), tensor_of(value)),
        dropout_p,
        trains=trains,
        has_mask=attn_mask is not None,
        mask_trains=attn_mask is not None and attn_mask.requires_grad,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        enabled=Enabled(cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()),
    )
    aten: Any = torch.ops.aten
    if backend == "math":
        out: torch.Tensor = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return out
    mask = attn_mask
    if mask is not None:
        if mask.dtype == torch.bool:
            # torch turns a mask of truth values into one that is added (convert_boolean_attn_mask).
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if backend == "cudnn":
        result = aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, trains, dropout_p, is_causal, False, scale=scale
        )
    elif backend == "flash":
        size = query.shape[-1]
        if pad := -size % 8:
            query, key, value = (nn.functional.pad(t, (0, pad)) for t in (query, key, value))
            scale = 1 / math.sqrt(size) if scale is None else scale
        result = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)
        if pad:
            sliced: torch.Tensor = result[0][..., :size]
            return sliced
    else:
        if enable_gqa and key.shape[1] != query.shape[1]:
            repeats = query.shape[1] // key.shape[1]
            key, value = (t.repeat_interleave(repeats, 1) for t in (key, value))
        result = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, trains, dropout_p, is_causal, scale=scale
        )
    fused: torch.Tensor = result[0]
    return fused


def stand_in_for_transformers(is_compiled: Callable[[], bool]) -> None:
    """Let transformers' modules leave out what they leave out on a GPU: fake tensors count as tracing for them.

    Args:
        is_compiled: Whether what runs now is compiled, so that it really is traced.
    """

    class Patch:
        """Patches the modules once they are imported."""

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            utilities: Any = sys.modules.get("transformers.utils.import_utils")
            if utilities is not None and hasattr(utilities, "is_tracing"):
                utilities.is_fake_tensor = lambda _: is_compiled()
            masks: Any = sys.modules.get("transformers.masking_utils")
            if masks is not None and getattr(masks, "fast_all", None) not in (None, _unmasked):
                # It compares a sum with a size, for speed; a sum has no value here.
                masks.fast_all = _unmasked

    sys.meta_path.insert(0, Patch())


def _unmasked(tensor: torch.Tensor) -> torch.Tensor:
    """Return the result of `.all()`, which is true when it is read."""
    return tensor.all()
