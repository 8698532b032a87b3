"""The recorder's table of a model: modules, parameters, and which module owns which parameter.

The table is plain data without references to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

# Path components that wrappers add; users know their parameters without them.
_WRAPPER_COMPONENTS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})


@dataclass(frozen=True)
class ModuleTable:
    """Modules and parameters of one model by index; module 0 is the root."""

    names: tuple[str, ...]
    """Dotted path of every visible module; the class name for the root."""
    owned: tuple[tuple[int, ...], ...]
    """Parameters that each module owns directly."""
    descendants: tuple[frozenset[int], ...]
    """Visible modules inside each module, without itself."""
    parameter_names: tuple[str, ...]
    """Every parameter once; tied parameters under their first name."""
    parameter_elements: tuple[int, ...]
    parameter_bytes: tuple[int, ...]
    frozen: frozenset[int]
    """Parameters with `requires_grad=False`."""
    owner_chains: tuple[tuple[tuple[int, ...], ...], ...]
    """For each parameter and each of its paths, the visible modules around it: innermost first, the root last."""
    opaque: frozenset[int]
    """Modules whose children's calls are invisible (compiled or scripted)."""

    def is_layer(self, call: int, following: int | None) -> bool:
        """Return whether a call is a layer: its module owns parameters, or called no other module."""
        return bool(self.owned[call]) or following not in self.descendants[call]


def is_compiled_in_place(module: nn.Module) -> bool:
    """Return whether `module.compile()` was called, which also compiles the module's own hooks away."""
    return getattr(module, "_compiled_call_impl", None) is not None


def is_opaque(module: nn.Module) -> bool:
    """Return whether calls of the children are invisible from Python: compiled or scripted modules."""
    # By name, because importing torch._dynamo takes a second.
    compiled = type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod")
    # `module.forward = torch.compile(module.forward)`, or a class whose forward is compiled.
    forward = hasattr(getattr(module, "forward", None), "_torchdynamo_orig_callable")
    return compiled or forward or is_compiled_in_place(module) or isinstance(module, torch.jit.ScriptModule)


def survey(root: nn.Module) -> tuple[ModuleTable, list[nn.Module], list[nn.Parameter]]:
    """Return the table of `root`, and the modules and parameters themselves in the table's order."""
    paths: dict[str, nn.Module] = {}
    hidden: list[str] = []
    for path, module in root.named_modules(remove_duplicate=False):
        if any(path.startswith(prefix) for prefix in hidden):
            continue
        paths[path] = module
        if is_opaque(module):
            if not path:
                break
            hidden.append(path + ".")

    modules: list[nn.Module] = []
    index: dict[int, int] = {}
    names: list[str] = []
    for path, module in paths.items():
        if id(module) not in index:
            index[id(module)] = len(modules)
            modules.append(module)
            names.append(path)

    parameters: list[nn.Parameter] = []
    parameter_names: list[str] = []
    parameter_index: dict[int, int] = {}
    chains: list[list[tuple[int, ...]]] = []
    for name, parameter in root.named_parameters(remove_duplicate=False):
        if id(parameter) not in parameter_index:
            parameter_index[id(parameter)] = len(parameters)
            parameters.append(parameter)
            parameter_names.append(name)
            chains.append([])
        chain = tuple(index[id(paths[p])] for p in _owner_paths(name) if p in paths)
        chains[parameter_index[id(parameter)]].append(chain)

    leading = data_parallel_wrapper(root) is not None
    cleaned = [clean_path(name, drop_leading_module=leading) for name in parameter_names]
    if len(set(cleaned)) < len(cleaned):  # The model itself has a child with a wrapper's name.
        cleaned = parameter_names
    table = ModuleTable(
        names=tuple(clean_path(name, drop_leading_module=leading) or class_name(unwrapped(root)) for name in names),
        owned=tuple(
            tuple(dict.fromkeys(parameter_index[id(p)] for p in module.parameters(recurse=False))) for module in modules
        ),
        descendants=tuple(
            frozenset(index[id(m)] for m in module.modules() if id(m) in index and m is not module)
            for module in modules
        ),
        parameter_names=tuple(cleaned),
        parameter_elements=tuple(p.numel() for p in parameters),
        parameter_bytes=tuple(map(_bytes_of, parameters)),
        frozen=frozenset(i for i, p in enumerate(parameters) if not p.requires_grad),
        owner_chains=tuple(tuple(dict.fromkeys(c)) for c in chains),
        opaque=frozenset(i for i, module in enumerate(modules) if is_opaque(module)),
    )
    return table, modules, parameters


def _bytes_of(parameter: nn.Parameter) -> int:
    """Return the bytes of a parameter, with the scales of one that bitsandbytes has quantized."""
    state, size = getattr(parameter, "quant_state", None), parameter.numel() * parameter.element_size()
    of_scales = getattr(state, "state2", None)
    tensors = (getattr(state, "absmax", None), getattr(of_scales, "absmax", None), getattr(parameter, "SCB", None))
    return size + sum(it.numel() * it.element_size() for it in tensors if isinstance(it, torch.Tensor))


def clean_path(path: str, *, drop_leading_module: bool) -> str:
    """Return a dotted path without the components that compile, checkpoints and data parallelism add."""
    parts = [part for part in path.split(".") if part not in _WRAPPER_COMPONENTS]
    if drop_leading_module and parts[:1] == ["module"]:
        parts = parts[1:]
    return ".".join(parts)


def needed_tensors(table: ModuleTable, layers: Sequence[int]) -> list[list[int]]:
    """Return the parameters that each executed layer needs before it can start.

    A layer needs the parameters that its module owns. A parameter whose owner was not called
    (`MultiheadAttention.out_proj.weight`, anything inside a compiled block) is needed by the calls of the innermost
    module around it that ran as one layer, or else by the first layer that ran inside that module. So every parameter
    has a layer if any layer ran.
    """
    needs: list[list[int]] = [list(table.owned[module]) for module in layers]
    covered = {parameter for needed in needs for parameter in needed}
    for parameter, chains in enumerate(table.owner_chains):
        if parameter in covered:
            continue
        for chain in chains:
            for position in _positions(table, layers, chain):
                if parameter not in needs[position]:
                    needs[position].append(parameter)
    return needs


def _positions(table: ModuleTable, layers: Sequence[int], chain: tuple[int, ...]) -> list[int]:
    for ancestor in chain:
        inside = [i for i, layer in enumerate(layers) if layer in table.descendants[ancestor]]
        own = [i for i, layer in enumerate(layers) if layer == ancestor]
        if inside or own:
            return own if not inside else [min(inside + own)]
    return []


def _owner_paths(parameter_name: str) -> list[str]:
    """Return the paths of the modules around a parameter, innermost first, the root ("") last."""
    parts = parameter_name.split(".")[:-1]
    return [".".join(parts[:n]) for n in range(len(parts), -1, -1)]


def data_parallel_wrapper(root: nn.Module) -> nn.Module | None:
    """Return `root` itself, or what it compiles, if that is a DistributedDataParallel or DataParallel."""
    inner = getattr(root, "_orig_mod", root)
    return inner if isinstance(inner, (nn.parallel.DistributedDataParallel, nn.DataParallel)) else None


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's module inside `torch.compile` and data parallelism."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None:
            inner = model._modules.get("_fsdp_wrapped_module")
        if inner is None and data_parallel_wrapper(model) is not None:
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_fsdp2(module: nn.Module) -> bool:
    """Return whether `fully_shard` was called for this module."""
    # By name, because importing torch.distributed.fsdp takes a second.
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def has_fsdp2(model: nn.Module) -> bool:
    """Return whether `fully_shard` was called for the model or a module in it."""
    return any(map(is_fsdp2, model.modules()))


def class_name(module: nn.Module) -> str:
    """Return the name of the user's class: `fully_shard` makes a class `FSDPNet` of `Net`."""
    kind = type(module)
    # In newer torch FSDPModule says where the class is.
    index = getattr(kind, "_orig_cls_mro_index", 2 if is_fsdp2(module) else 0)
    return kind.__mro__[index].__name__
