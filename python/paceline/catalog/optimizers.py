"""Optimizers: the states that each keeps of a parameter, where, and what its step allocates besides.

| optimizer | states of a parameter | step |
| --- | --- | --- |
| `adam` (`adamw`) | two moments in the recipe's type | torch.optim: fused, foreach, or tensor by tensor |
| `momentum`, `sgd` | one moment; none | likewise |
| `adamw-8bit` | two moments in 8 bits, with an FP32 scale for 256 values | bitsandbytes: one kernel a tensor |
| `paged-adamw`, `paged-adamw-8bit` | FP32 or 8-bit moments in managed memory | likewise |
| `lion` | one moment in FP32 | likewise |
| `adafactor` | FP32 sums of rows and of columns; of vectors, one moment | transformers: tensor by tensor |
| `muon` | one moment of matrices in the recipe's type; AdamW's two of all else | torch.optim.Muon: matrix by matrix |

Where the recipe has FP32 masters, each keeps them, too. bitsandbytes keeps moments of tensors with fewer than 4096
elements in FP32, and those with fewer than 100,000 out of managed memory (`min_8bit_size`, `get_state_buffer` in
bitsandbytes/optim/optimizer.py; blocks of 256 in `AdamW8bit` since 0.43). Managed memory is not of PyTorch's allocator:
CUDA evicts it to the host when the GPU has no room.

Sources: T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2022; N. Shazeer and M. Stern, "Adafactor",
2018, and transformers/optimization.py; X. Chen et al., "Symbolic Discovery of Optimization Algorithms" (Lion), 2023; K.
Jordan et al., "Muon", 2024, and torch/optim/_muon.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from paceline.catalog import names
from paceline.catalog.recipes import Recipe, dtype_bytes
from paceline.errors import InvalidArgumentError

_LEAST_8BIT = 4096
"""Elements of the smallest tensor whose states have 8 bits."""
_LEAST_PAGED = 100_000
"""Elements of the smallest tensor whose states are in managed memory."""
_BLOCK = 256
"""Values of a state in 8 bits that share an FP32 scale."""
NEWTON_SCHULZ = 5
"""Iterations by which Muon makes a matrix orthogonal, each of three products (`ns_steps` of torch.optim.Muon)."""


@dataclass(frozen=True)
class Kind:
    """The mechanisms of an optimizer."""

    title: str
    """For prose."""
    moments: int
    """Values that it keeps for each parameter."""
    eight_bits: bool = False
    """Whether these have 8 bits."""
    full: bool = False
    """Whether these are in FP32 whatever the recipe."""
    paged: bool = False
    """Whether these are in managed memory."""
    factored: bool = False
    """Whether it keeps sums of rows and columns of what has two dimensions or more."""
    orthogonal: bool = False
    """Whether it makes the updates of matrices orthogonal, and updates all else as AdamW does."""
    by_tensor: bool = True
    """Whether it updates tensor by tensor, whatever `optimizer_impl` says."""


KINDS: Mapping[names.Optimizer, Kind] = {
    "adam": Kind("Adam", 2, by_tensor=False),
    "sgd": Kind("SGD", 0, by_tensor=False),
    "momentum": Kind("SGD with momentum", 1, by_tensor=False),
    "adamw-8bit": Kind("8-bit AdamW", 2, eight_bits=True),
    "paged-adamw-8bit": Kind("paged 8-bit AdamW", 2, eight_bits=True, paged=True),
    "paged-adamw": Kind("paged AdamW", 2, full=True, paged=True),
    "adafactor": Kind("Adafactor", 1, full=True, factored=True),
    "lion": Kind("Lion", 1, full=True),
    "muon": Kind("Muon", 1, orthogonal=True),
}
ALIASES: Mapping[str, names.Optimizer] = {
    **dict.fromkeys(("adamw", "adamw_torch", "adamw_torch_fused"), "adam"),
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit"), "adamw-8bit"),
    "paged_adamw_8bit": "paged-adamw-8bit",
    "paged_adamw_32bit": "paged-adamw",
    "lion_32bit": "lion",
}
"""Names of transformers' TrainingArguments (`OptimizerNames`)."""
IN_CORE: Sequence[names.Optimizer] = ("adam", "sgd", "momentum")
"""Optimizers whose states the native module knows by itself."""


@dataclass(frozen=True)
class States:
    """Bytes of an optimizer's states."""

    resident: float
    """In memory of PyTorch's allocator, FP32 copies of the parameters included."""
    paged: float = 0.0
    """In managed memory."""

    @property
    def total(self) -> float:
        """All of them."""
        return self.resident + self.paged


def is_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether Muon makes a tensor's update orthogonal: matrices and experts' of blocks, no embeddings or heads."""
    return len(shape) >= 2 and min(shape[-2:]) > 1 and not _is_of_an_end(name)


@lru_cache(maxsize=1 << 14)
def _is_of_an_end(name: str) -> bool:
    return any(word in _ENDS for word in name.split("."))


_ENDS = frozenset({"embed", "embeddings", "embed_tokens", "wte", "wpe", "lm_head", "head", "classifier", "shared"})


def moments_dtype(optimizer: names.Optimizer, size: int, recipe: Recipe) -> str:
    """Return torch's type of the moments of a tensor with so many elements."""
    kind = KINDS[optimizer]
    if kind.eight_bits:
        return "uint8" if size >= _LEAST_8BIT else "float32"
    return "float32" if kind.full else recipe.states


def states_of(optimizer: names.Optimizer, name: str, shape: Sequence[int], recipe: Recipe) -> States:
    """Return the bytes of the states of one tensor."""
    kind, size = KINDS[optimizer], math.prod(shape)
    masters = 4.0 * size if recipe.masters else 0.0
    if kind.factored and len(shape) >= 2:
        rows, columns = size // shape[-1], size // shape[-2]
        return States(masters + 4 * (rows + columns))
    dtype = moments_dtype(optimizer, size, recipe)
    moments = 2 if kind.orthogonal and not is_matrix(name, shape) else kind.moments
    each = moments * size * (1 if dtype == "uint8" else dtype_bytes(dtype))
    scales = moments * 4 * -(-size // _BLOCK) if dtype == "uint8" else 0
    if kind.paged and size >= _LEAST_PAGED:
        # The scales are no buffers of states.
        return States(masters + scales, each)
    return States(masters + each + scales)


def states_each(
    optimizer: names.Optimizer, tensors: Iterable[tuple[str, Sequence[int], int]], recipe: Recipe
) -> States:
    """Return the bytes of states for each parameter, on average.

    Args:
        optimizer: Which optimizer it is.
        tensors: Names and shapes of what is trained, and how many are alike.
        recipe: The types.
    """
    resident = paged = parameters = 0.0
    for name, shape, times in tensors:
        own = states_of(optimizer, name, shape, recipe)
        resident, paged = resident + times * own.resident, paged + times * own.paged
        parameters += times * math.prod(shape)
    return States(resident / max(parameters, 1), paged / max(parameters, 1))


def step_bytes(
    optimizer: names.Optimizer, impl: names.OptimizerImpl, recipe: Recipe, *, gathers: bool = False
) -> tuple[int, int]:
    """Return the bytes per parameter of temporaries in an optimizer's step: of all tensors, and of one at a time.

    AdamW's square root of the second moment is a tensor of its own (`_multi_tensor_adamw`), and in a loop over
    parameters also the quotient of it (`_single_tensor_adamw` in torch/optim/adam.py). SGD works in place, as do
    bitsandbytes' kernels. Adafactor has the squares of a gradient and their estimate in FP32, and 16-bit gradients and
    parameters converted (`Adafactor.step` in transformers/optimization.py). Muon has the update, a matrix of products,
    and two of 16 bits (`_zeropower_via_newtonschulz` in torch/optim/_muon.py). DeepSpeed flattens a rank's 16-bit
    gradients and converts them to FP32 (`step` in zero/stage_1_and_2.py); in stage 3 by parts.

    Args:
        optimizer: Which optimizer it is.
        impl: How its step is made.
        recipe: The types.
        gathers: Whether units are gathered before they compute.
    """
    if recipe.name == "o2" and not gathers:
        return dtype_bytes(recipe.gradients) + 4, 0
    size = dtype_bytes(recipe.states)
    if optimizer == "adafactor":
        narrow = dtype_bytes(recipe.gradients) < 4
        return 0, 8 + 4 * narrow + 4 * (dtype_bytes(recipe.parameters) < 4 and not recipe.masters)
    if optimizer == "muon":
        return 0, size + 3 * 2
    if optimizer != "adam" or impl == "fused":
        return 0, 0
    # In the backward pass, foreach's lists have one tensor each.
    return {"foreach": (size, 0), IN_BACKWARD: (0, size)}.get(impl, (0, 2 * size))


def default_impl(optimizer: names.Optimizer, recipe: Recipe) -> names.OptimizerImpl:
    """Return how an optimizer runs by default.

    That is fused where Megatron, Apex or DeepSpeed keep masters, and torch.optim's own default elsewhere; tensor by
    tensor where no other implementation is known.
    """
    if KINDS[optimizer].by_tensor:
        return "loop"
    return "fused" if recipe.masters else "foreach"


IN_BACKWARD = "in-backward"
"""Each tensor is updated when its gradient is complete, which is then let go (torchtune's `optimizer_in_bwd`)."""


def check_impl(optimizer: names.Optimizer, impl: str | None) -> None:
    """Raise InvalidArgumentError if an implementation is given of an optimizer that has but one."""
    if impl not in (None, IN_BACKWARD) and KINDS[optimizer].by_tensor:
        raise InvalidArgumentError(
            f"has no effect on {optimizer}, which updates tensor by tensor",
            setting="optimizer_impl",
            remedy=f"drop {{this}}, or {{this={IN_BACKWARD}}}, or {{optimizer=adam}}",
        )


def check_moments(optimizer: names.Optimizer) -> None:
    """Raise InvalidArgumentError if an optimizer has no moments in the recipe's type."""
    kind = KINDS[optimizer]
    if not kind.moments or kind.eight_bits or kind.full:
        reason = "has none" if not kind.moments else "has its moments in a type of its own"
        raise InvalidArgumentError(
            f"has no effect on {optimizer}, which {reason}",
            setting="moment_dtype",
            remedy="drop {this}, or {optimizer=adam}",
        )


def check_offload(optimizer: names.Optimizer) -> None:
    """Raise InvalidArgumentError if an optimizer does not run on a CPU."""
    kind = KINDS[optimizer]
    if kind.eight_bits or kind.paged or kind.orthogonal:
        raise InvalidArgumentError(
            f"states on the host are updated there, and {optimizer} has no kernels for CPUs",
            setting="offload",
            remedy="{optimizer=adam} (or lion, adafactor), or {this=cpu:parameters} with {sharding=zero3}, "
            "or {this=cpu:activations}",
        )
