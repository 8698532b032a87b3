"""FSDP without sharding: modules keep their parameters whole, and compute in the dtype of their mixed precision."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from paceline.torch.recorder.backward import inside_backward, on_backward
from paceline.torch.recorder.fsdp2 import ZERO3, as_options, reduced_by_default
from paceline.torch.simulated.replacing import answering, replace


class Sharding:
    """Replaces FSDP's functions and classes, and knows the modules that the script shards."""

    def __init__(self, sharded: Callable[[str], None], kept: Callable[[torch.Tensor], None]) -> None:
        """Take what is told of the options that forecasts need, and of copies."""
        self._sharded = sharded
        self._types: Counter[str] = Counter()
        self._kept = kept
        self._units: dict[int, _Unit] = {}

    def change_fully_shard(self, module: ModuleType) -> None:
        """Make `fully_shard` leave parameters alone. Methods of the module that it returns do nothing."""
        sharded: Any = module.FSDPModule
        for name, value in list(vars(sharded).items()):
            if callable(value) and not name.startswith("__") and name != "_apply":
                setattr(sharded, name, answering(None))
        for name in ("unshard", "finalize_backward"):
            setattr(sharded, name, answering(SimpleNamespace(wait=answering(None))))
        if "_apply" in vars(sharded):
            del sharded._apply
        classes: dict[type, type] = {}

        def fully_shard(
            module: Any,  # noqa: ANN401
            *,
            mp_policy: Any = None,  # noqa: ANN401
            ignored_params: Iterable[nn.Parameter] | None = None,
            **_: object,
        ) -> Any:  # noqa: ANN401
            for one in module if isinstance(module, list | tuple) else [module]:
                kind = type(one)
                if kind not in classes:
                    classes[kind] = type(f"FSDP{kind.__name__}", (sharded, kind), {})
                one.__class__ = classes[kind]
                self._add(
                    one,
                    dtype=getattr(mp_policy, "param_dtype", None),
                    reduced=getattr(mp_policy, "reduce_dtype", None),
                    by_default=reduced_by_default,
                    output=getattr(mp_policy, "output_dtype", None),
                    inputs=getattr(mp_policy, "cast_forward_inputs", True),
                    ignored=ignored_params,
                )
            return module

        replace(module, "fully_shard", fully_shard)
        for name in ("register_fsdp_forward_method", "share_comm_ctx"):
            replace(module, name, answering(None))

    def change_wrapper(self, module: ModuleType) -> None:
        """Make `FullyShardedDataParallel` call its module."""
        wrapper: Any = module.FullyShardedDataParallel
        add = self._add

        def init(
            self: Any,  # noqa: ANN401
            module: nn.Module,
            *_: object,
            mixed_precision: Any = None,  # noqa: ANN401
            ignored_modules: Iterable[nn.Module] | None = None,
            **__: object,
        ) -> None:
            nn.Module.__init__(self)
            self._fsdp_wrapped_module = module
            ignored = [p for one in ignored_modules or () for p in one.parameters()]
            add(
                self,
                dtype=getattr(mixed_precision, "param_dtype", None),
                reduced=getattr(mixed_precision, "reduce_dtype", None),
                by_default=lambda gathered, _: gathered,
                output=None,
                inputs=True,
                ignored=ignored,
            )

        def forward(self: Any, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
            return self._fsdp_wrapped_module(*args, **kwargs)

        def clip_grad_norm_(self: Any, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:  # noqa: ANN401
            return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

        @contextlib.contextmanager
        def nothing(*_: object, **__: object) -> Iterator[None]:
            yield

        wrapper.__init__, wrapper.forward, wrapper.clip_grad_norm_ = init, forward, clip_grad_norm_
        wrapper.module = property(lambda self: self._fsdp_wrapped_module)
        wrapper.no_sync = nothing
        for name in ("summon_full_params", "state_dict_type"):
            setattr(wrapper, name, staticmethod(nothing))
        for name in ("set_state_dict_type", "optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict"):
            setattr(wrapper, name, staticmethod(answering({})))
        wrapper.register_comm_hook = answering(None)
        wrapper.check_is_root = answering(True)
        for name in ("apply", "_apply", "named_parameters", "named_buffers"):
            if name in vars(wrapper):
                delattr(wrapper, name)

    def _add(
        self,
        module: nn.Module,
        *,
        dtype: torch.dtype | None,
        reduced: torch.dtype | None,
        by_default: Callable[[torch.dtype, torch.dtype], torch.dtype],
        output: torch.dtype | None,
        inputs: bool,
        ignored: Iterable[nn.Parameter] | None,
    ) -> None:
        if not self._units:
            on_backward(self._backward_begins, self._backward_ends)
        unit = _Unit(module, self._units, dtype, self._kept, list(ignored or ()))
        self._units[id(module)] = unit
        for one in unit.trained():
            gathered = dtype or one.dtype
            options = as_options(gathered, reduced or by_default(gathered, one.dtype), recorded=one.dtype)
            self._types[options] += one.numel()
        [(most, _)] = self._types.most_common(1) or [(ZERO3, 0)]
        self._sharded(most)

        def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
            unit.cast()
            return (_cast(args, dtype), _cast(kwargs, dtype)) if inputs and dtype is not None else None

        def after(_module: nn.Module, _args: object, result: Any) -> Any:  # noqa: ANN401
            unit.restore()
            return None if output is None else _cast(result, output)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, always_call=True)

    def _backward_begins(self) -> None:
        # Checkpoints inside a unit compute its forward pass again.
        for unit in self._units.values():
            unit.put()

    def _backward_ends(self) -> None:
        for unit in self._units.values():
            unit.restore()
            unit.forget()


class _Unit:
    """The parameters that one call of FSDP shards: those of a module without the units inside it."""

    def __init__(
        self,
        module: nn.Module,
        units: dict[int, _Unit],
        dtype: torch.dtype | None,
        kept: Callable[[torch.Tensor], None],
        ignored: list[nn.Parameter],
    ) -> None:
        self._module = module
        self._units = units
        self._dtype = dtype
        self._kept = kept
        self._ignored = ignored
        self._casts: list[tuple[nn.Module, str, nn.Parameter, torch.Tensor]] = []

    def trained(self) -> Iterator[nn.Parameter]:
        """Yield its parameters that have gradients."""
        others = {id(one) for one in self._ignored}
        for module in self._modules(self._module):
            for one in module._parameters.values():
                if one is not None and one.requires_grad and one.is_floating_point() and id(one) not in others:
                    yield one

    def cast(self) -> None:
        """Put copies of another dtype in the place of parameters, which then get their gradients through them."""
        self.restore()
        if not inside_backward():
            self.forget()
        if self._dtype is None:
            return
        done = {id(parameter): parameter for parameter in self._ignored}
        copies: dict[int, torch.Tensor] = {}
        casts = []
        for module in self._modules(self._module):
            for name, parameter in module._parameters.items():
                if parameter is None or not parameter.is_floating_point() or id(parameter) in done:
                    continue
                if parameter.dtype == self._dtype:
                    continue
                if id(parameter) not in copies:
                    copies[id(parameter)] = parameter.to(self._dtype)
                    self._kept(copies[id(parameter)])
                casts.append((module, name, parameter, copies[id(parameter)]))
        self._casts = casts
        self.put()

    def put(self) -> None:
        for module, name, _, copy in self._casts:
            module._parameters[name] = copy  # type: ignore[assignment]

    def restore(self) -> None:
        for module, name, parameter, _ in self._casts:
            module._parameters[name] = parameter

    def forget(self) -> None:
        self._casts = []

    def _modules(self, module: nn.Module) -> Iterator[nn.Module]:
        yield module
        for child in module.children():
            if id(child) not in self._units:
                yield from self._modules(child)


def _cast(values: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401
    return tree_map(lambda v: v.to(dtype) if isinstance(v, torch.Tensor) and v.is_floating_point() else v, values)
