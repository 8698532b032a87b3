"""The distributed optimizer of asynchronous training: servers own parameters and states, and apply each gradient.

`DistributedOptimizer` chooses it under `--strategy async-ps`. Backward pushes every gradient as soon as it is computed,
with the options of its parameter group; `step` pulls all parameters for the next iteration.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import optimizer as torch_optimizer

from paceline.async_ps.placing import parts_by_server
from paceline.async_ps.protocol import DTYPES, Kind, ModelSpec, Part, Request, State, TensorSpec
from paceline.async_ps.report import Applied, Staleness, parsed, staleness_of
from paceline.async_ps.rules import Rule
from paceline.async_ps.store import digest_of
from paceline.async_ps.worker import Chunk, Servers
from paceline.errors import InvalidArgumentError
from paceline.hvd import timeline
from paceline.hvd.world import current
from paceline.torch.hvd.grouping import check_passes

if TYPE_CHECKING:
    _Base = torch.optim.Optimizer
else:
    _Base = object

_PUSH_IN_STEP = "optimizer.push_in_step() before training"
_NAMES = {getattr(torch, name): name for name in DTYPES}


@dataclass
class _Parameter:
    """A parameter, and what its iteration has done so far."""

    tensor: Tensor
    name: str
    spec: TensorSpec
    passes: int
    """Backward passes left until its gradient is pushed."""
    pieces: list[tuple[int, int, Part]] = field(default_factory=list)
    """Server, index among the server's parts, and part."""
    version: int = 0
    """Torch's counter of changes of the parameter, after the last pull."""
    pushed: tuple[Tensor, int, tuple[float, ...]] | None = None
    """The gradient that was pushed, torch's counter of its changes, and the options that went with it."""

    @property
    def on_host(self) -> bool:
        """Whether servers may read and write its memory directly."""
        return self.tensor.is_cpu and self.tensor.is_contiguous()


class Exchange:
    """The parameters of one optimizer, between this worker and the servers."""

    def __init__(self, names: Mapping[Tensor, str], passes: int, *, sparse_as_dense: bool) -> None:
        """`names` of all parameters; a gradient takes `passes` backward passes."""
        self.names, self.passes, self.sparse_as_dense = names, passes, sparse_as_dense
        job = current().job
        assert job.servers is not None, "the strategy is asynchronous"
        self.settings = job.settings
        self.servers: Servers = job.servers
        self.placed = job.settings.placed()
        self.model = self.servers.new_model()
        self.iteration = 0
        self.started = False
        self.records_order = False
        self.pushes_in_step = False
        self.parameters: dict[Tensor, _Parameter] = {}
        self.tensors: list[_Parameter] = []
        """The parameters in order."""
        self.parts: list[list[Part]] = []
        self.staging: list[Tensor | None] = []
        """By server: memory on the host, if a parameter is not there or not contiguous."""
        self.flags: tuple[dict[str, bool], ...] = ()
        """By parameter group: the options that servers have from the beginning."""
        self.pushes: list[int] = []
        """By server: gradients of this iteration."""

    def itemsize(self, part: Part) -> int:
        """Return the bytes of an element."""
        return self.tensors[part.tensor].tensor.element_size()


class Asynchronous(_Base):
    """Mixed in before an optimizer's class: servers step, and `step` pulls what they have."""

    _exchange: Exchange
    _rule: Rule
    steps_on_servers = True
    """Recorders watch its steps by the hooks of all optimizers."""

    def _begin(self, exchange: Exchange, rule: Rule) -> None:
        """Watch the parameters; nothing is sent before the first gradient."""
        self._exchange, self._rule = exchange, rule
        for group, options in enumerate(self.param_groups):
            for tensor in options["params"]:
                self._watch(tensor, group)

    def _watch(self, tensor: Tensor, group: int) -> None:
        exchange = self._exchange
        name = exchange.names[tensor]
        if tensor.dtype not in _NAMES or tensor.layout is not torch.strided:
            raise InvalidArgumentError(
                f"async-ps: '{name}' is {str(tensor.dtype).removeprefix('torch.')}, in the layout {tensor.layout}",
                remedy=f"dense parameters of {', '.join(DTYPES)}",
            )
        spec = TensorSpec(name, tuple(tensor.shape), _NAMES[tensor.dtype], group)
        exchange.parameters[tensor] = _Parameter(tensor, name, spec, exchange.passes)
        exchange.tensors.append(exchange.parameters[tensor])
        mine = weakref.ref(self)

        def computed(tensor: Tensor) -> None:
            optimizer = mine()
            if optimizer is not None:
                optimizer._computed(optimizer._exchange.parameters[tensor])

        if tensor.requires_grad:
            tensor.register_post_accumulate_grad_hook(computed)  # type: ignore[no-untyped-call]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse new parameters: the servers' are fixed."""
        if "_exchange" in vars(self):
            raise InvalidArgumentError(
                "async-ps: parameters cannot be added to a distributed optimizer",
                remedy="add_param_group before hvd.DistributedOptimizer",
            )
        super().add_param_group(param_group)

    def _start(self) -> None:
        """Describe the model to the servers. Worker 0 sends its parameters and states; the others' are equal."""
        exchange, job = self._exchange, current().job
        if exchange.started:
            return
        tensors = exchange.tensors
        servers = exchange.servers
        exchange.parts = parts_by_server(
            [each.spec for each in tensors], servers.count, exchange.settings.placement, exchange.placed
        )
        exchange.pushes = [0] * servers.count
        exchange.flags = tuple(self._rule.flags_of(options) for options in self.param_groups)
        specs, digests, states, data = [], [], [], []
        for server, parts in enumerate(exchange.parts):
            for index, part in enumerate(parts):
                tensors[part.tensor].pieces.append((server, index, part))
            direct = all(tensors[part.tensor].on_host for part in parts)
            nbytes = sum(part.count * exchange.itemsize(part) for part in parts)
            exchange.staging.append(None if direct else torch.empty(nbytes, dtype=torch.uint8))
            values = [_flat(tensors[part.tensor].tensor)[part.start : part.start + part.count] for part in parts]
            own_states, state_values = self._states_of(parts) if job.rank == 0 else ([], [])
            specs.append(
                ModelSpec(
                    rule=self._rule.name,
                    flags=exchange.flags,
                    tensors=tuple(each.spec for each in tensors),
                    parts=tuple(parts),
                    staleness=servers.staleness,
                    records_order=exchange.records_order,
                )
            )
            digests.append(digest_of(values))
            states.append(own_states)
            sent = [*values, *state_values]
            regions = [(value.data_ptr(), value.nbytes) for value in sent if value.nbytes]
            data.append(Chunk(regions, sent) if job.rank == 0 else None)
        exchange.started = True
        servers.describe(exchange.model, specs, digests, states, data)
        for each in tensors:
            each.version = each.tensor._version

    def _states_of(self, parts: list[Part]) -> tuple[list[State], list[Tensor]]:
        """Return the states of this rank's optimizer for some parts, such as those of a checkpoint."""
        tensors = self._exchange.tensors
        states: list[State] = []
        values: list[Tensor] = []
        for index, part in enumerate(parts):
            parameter = tensors[part.tensor].tensor
            for key, value in self.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.shape == parameter.shape and key != "step":
                    states.append(State(index, key))
                    whole = _flat(value.to(parameter.dtype))
                    values.append(whole[part.start : part.start + part.count])
                elif value is not None:
                    states.append(State(index, key, float(value)))
        return states, values

    def _computed(self, parameter: _Parameter) -> None:
        """Push the gradient of a parameter, if backward has computed it often enough."""
        parameter.passes -= 1
        if parameter.passes < 0:
            raise AssertionError(
                f"the gradient of '{parameter.name}' was computed more than {self._exchange.passes} times before "
                "step(); increase backward_passes_per_step to accumulate gradients on each rank"
            )
        if parameter.passes == 0 and not self._exchange.pushes_in_step:
            self._push(parameter)

    def _push(self, parameter: _Parameter) -> None:
        exchange = self._exchange
        self._start()
        if parameter.tensor._version != parameter.version:
            raise InvalidArgumentError(
                f"async-ps: '{parameter.name}' was changed outside of the optimizer, and servers own it",
                remedy="load weights before the first backward pass",
            )
        if _NAMES.get(parameter.tensor.dtype) != parameter.spec.dtype or parameter.tensor.shape != parameter.spec.shape:
            raise InvalidArgumentError(
                f"async-ps: {parameter.spec} is {parameter.tensor.dtype}{list(parameter.tensor.shape)} now",
                remedy="model.to(dtype) before hvd.DistributedOptimizer",
            )
        grad = parameter.tensor.grad
        assert grad is not None, "backward has computed it"
        if grad.layout is not torch.strided:
            if not exchange.sparse_as_dense:
                raise InvalidArgumentError(
                    f"async-ps: the gradient of '{parameter.name}' is sparse", remedy="sparse_as_dense=True"
                )
            dense = grad.to_dense()
        else:
            dense = grad
        values = _flat(dense if dense.is_cpu else dense.cpu())
        numbers = self._rule.numbers_of(self.param_groups[parameter.spec.group])
        parameter.pushed = (grad, grad._version, numbers)
        for server, index, part in parameter.pieces:
            request = Request(
                kind=Kind.PUSH, model=exchange.model, part=index, iteration=exchange.iteration, numbers=numbers
            )
            size = values.element_size()
            region = (values.data_ptr() + part.start * size, part.count * size)
            if part.count:
                exchange.servers.push(server, request, Chunk([region], values), parameter.name)
                exchange.pushes[server] += 1

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - as torch's
        """Pull the parameters that the servers have, for the next iteration. They have stepped meanwhile.

        Args:
            closure: Computes the loss and runs backward, as in torch.

        Returns:
            The closure's loss, if there is one.

        Raises:
            InvalidArgumentError: A gradient or an option of the optimizer was changed after it had been pushed.
            JobError: A process is gone, or another worker is too far behind; the message names it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        exchange = self._exchange
        if getattr(self, "found_inf", None) is not None:
            raise InvalidArgumentError(
                "async-ps: GradScaler divides gradients that backward had pushed", remedy=_PUSH_IN_STEP
            )
        if self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks:
            raise InvalidArgumentError(
                "async-ps: hooks of step() do not run on servers", remedy="{strategy=ps}, or drop the hooks"
            )
        if exchange.pushes_in_step:
            for parameter in exchange.tensors:
                if parameter.tensor.grad is not None:
                    self._push(parameter)
        self._start()
        for parameter in exchange.tensors:
            self._check(parameter)
        since = timeline.moment()
        requests, targets = [], []
        for server, parts in enumerate(exchange.parts):
            requests.append(
                Request(
                    kind=Kind.PULL,
                    model=exchange.model,
                    iteration=exchange.iteration + 1,
                    pushes=exchange.pushes[server],
                )
            )
            targets.append(self._target(server, parts))
        exchange.servers.pull(requests, targets)
        timeline.waited(since)
        for hook in list(torch_optimizer._global_optimizer_pre_hooks.values()):
            hook(self, (self,), {})
        self._take()
        # Timelines and recordings learn by hooks of all optimizers where a step ends.
        for hook in list(torch_optimizer._global_optimizer_post_hooks.values()):
            hook(self, (self,), {})
        exchange.iteration += 1
        exchange.pushes = [0] * exchange.servers.count
        for parameter in exchange.tensors:
            parameter.passes, parameter.pushed = exchange.passes, None
            parameter.version = parameter.tensor._version
        return loss

    # So that torch does not wrap it: step hooks would run although nothing steps here.
    step.hooked = True  # type: ignore[attr-defined]

    def _check(self, parameter: _Parameter) -> None:
        """Raise InvalidArgumentError if what was pushed is not what the script has now."""
        options = self.param_groups[parameter.spec.group]
        if self._rule.flags_of(options) != self._exchange.flags[parameter.spec.group]:
            raise InvalidArgumentError(
                f"async-ps: {' or '.join(self._rule.flags)} of '{parameter.name}' was changed after the first step",
                remedy="the option when the optimizer is made",
            )
        if parameter.pushed is None:
            own = parameter.tensor.grad
            if self._exchange.pushes_in_step:
                return
            if parameter.passes == self._exchange.passes and own is not None and _has_values(own):
                raise InvalidArgumentError(
                    f"async-ps: '{parameter.name}' has a gradient that no backward pass has pushed",
                    remedy=_PUSH_IN_STEP,
                )
            if parameter.passes < self._exchange.passes:
                raise InvalidArgumentError(
                    f"async-ps: step() after {self._exchange.passes - parameter.passes} of {self._exchange.passes} "
                    f"backward passes for '{parameter.name}'",
                    remedy="step() after backward_passes_per_step passes",
                )
            return
        grad, version, numbers = parameter.pushed
        if grad._version != version or (parameter.tensor.grad is not None and parameter.tensor.grad is not grad):
            raise InvalidArgumentError(
                f"async-ps: the gradient of '{parameter.name}' was changed after backward had pushed it",
                remedy=_PUSH_IN_STEP,
            )
        if numbers != self._rule.numbers_of(options):
            raise InvalidArgumentError(
                f"async-ps: the options of '{parameter.name}' were changed after backward had pushed its gradient",
                remedy="a scheduler's step() after the optimizer's, or optimizer.push_in_step() before training",
            )

    def _target(self, server: int, parts: list[Part]) -> Chunk:
        """Return the memory that receives a server's parameters."""
        exchange, staging = self._exchange, self._exchange.staging[server]
        if staging is not None:
            return Chunk([(staging.data_ptr(), staging.nbytes)], staging)
        tensors = exchange.tensors
        regions = []
        for part in parts:
            tensor = tensors[part.tensor].tensor
            if part.count:
                size = tensor.element_size()
                regions.append((tensor.data_ptr() + part.start * size, part.count * size))
        return Chunk(regions, [tensors[part.tensor].tensor for part in parts])

    def _take(self) -> None:
        """Use what was received: copy it to where the parameters are, and tell autograd that they have changed."""
        tensors = self._exchange.tensors
        for parts, staging in zip(self._exchange.parts, self._exchange.staging, strict=True):
            start = 0
            for part in parts:
                tensor = tensors[part.tensor].tensor
                if staging is None:
                    torch.autograd.graph.increment_version(tensor)
                    continue
                end = start + part.count * tensor.element_size()
                values = staging[start:end].view(tensor.dtype)
                start = end
                with torch.no_grad():
                    if tensor.is_contiguous():
                        tensor.view(-1)[part.start : part.start + part.count].copy_(values)
                    else:
                        whole = tensor.reshape(-1).clone()
                        whole[part.start : part.start + part.count].copy_(values)
                        tensor.copy_(whole.view(tensor.shape))

    def synchronize(self) -> None:
        """Wait for nothing: gradients are not reduced.

        Raises:
            InvalidArgumentError: Gradients have been pushed already, so that what is done to them has no effect.
        """
        if not self._exchange.pushes_in_step and any(each.pushed is not None for each in self._exchange.tensors):
            raise InvalidArgumentError(
                "async-ps: gradients were pushed in the backward pass, so that clipping them has no effect",
                remedy=_PUSH_IN_STEP,
            )

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Do nothing: `step` does not wait for gradients."""
        yield

    def push_in_step(self) -> None:
        """Push gradients in `step` instead of backward, so that a script may change them in between, or the options.

        Pushing then no longer overlaps the backward pass.
        """
        self._exchange.pushes_in_step = True

    def record_order(self) -> None:
        """Have the servers record which gradient they apply when, for `applied_order`. Call it on all ranks.

        Raises:
            InvalidArgumentError: Training has begun.
        """
        if self._exchange.started:
            raise InvalidArgumentError(
                "async-ps: the order is recorded from the beginning or not at all",
                remedy="optimizer.record_order() before the first backward pass",
            )
        self._exchange.records_order = True

    def staleness(self) -> Staleness:
        """Return the distribution of the staleness of all gradients so far, of all workers. Not collective.

        The staleness of a gradient is the number of other updates that were applied to its tensor between this worker's
        pull and its application.

        Raises:
            JobError: A process is gone.
        """
        return staleness_of(parsed(report)[0] for report in self._reports(order=False))

    def applied_order(self) -> list[list[Applied]]:
        """Return by server, in the order of application, all gradients that were applied. Not collective.

        Raises:
            InvalidArgumentError: The order is not recorded.
            JobError: A process is gone.
        """
        exchange = self._exchange
        if not exchange.records_order:
            raise InvalidArgumentError(
                "async-ps: the order is not recorded", remedy="optimizer.record_order() before the first backward pass"
            )
        names = [each.name for each in exchange.tensors]
        reports = [parsed(report)[1] for report in self._reports(order=True)]
        return [
            [Applied(names[parts[at].tensor], parts[at].start, *others) for at, *others in order]
            for parts, order in zip(exchange.parts, reports, strict=True)
        ]

    def _reports(self, *, order: bool) -> list[dict[str, Any]]:
        exchange, servers = self._exchange, self._exchange.servers
        self._start()
        return [servers.report(server, exchange.model, order=order) for server in range(servers.count)]

    @property
    def _parameter_names(self) -> dict[Tensor, str]:
        """The parameters' names, where scripts for Horovod look for them."""
        return dict(self._exchange.names)

    @property
    def backward_passes_per_step(self) -> int:
        """Number of backward passes that are accumulated before gradients are pushed."""
        return self._exchange.passes

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler leaves gradients to `step`, which refuses to divide what has been pushed."""
        return not self._exchange.pushes_in_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes that are accumulated before gradients are pushed.

        Args:
            passes: The number.

        Raises:
            ValueError: It is no whole number above 0.
        """
        check_passes(passes)
        self._exchange.passes = passes
        for parameter in self._exchange.tensors:
            parameter.passes = passes

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as torch's
        """Reset the gradients as the wrapped optimizer does. Raises AssertionError while gradients are in flight."""
        if any(each.pushed is not None for each in self._exchange.tensors):
            raise AssertionError(
                "optimizer.zero_grad() was called after backward, but before optimizer.step(): the gradients are being "
                "pushed; call it after step()"
            )
        if self._exchange.pushes_in_step:  # GradScaler may have skipped the step.
            for each in self._exchange.tensors:
                each.passes = self._exchange.passes
        super().zero_grad(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as torch's
        """Return the wrapped optimizer's state with the servers' states. Not collective.

        Parameters are this rank's last pull: servers apply gradients of other workers meanwhile.
        """
        if self._exchange.started:
            self._fetch_states()
        return super().state_dict(*args, **kwargs)

    def _fetch_states(self) -> None:
        exchange = self._exchange
        tensors = exchange.tensors
        for server, parts in enumerate(exchange.parts):
            states = exchange.servers.states(server, exchange.model)
            sizes = [parts[state.part].count * exchange.itemsize(parts[state.part]) for state in states]
            nbytes = sum(size for state, size in zip(states, sizes, strict=True) if state.number is None)
            values = torch.empty(nbytes, dtype=torch.uint8)
            if nbytes:
                exchange.servers.values(server, Chunk([(values.data_ptr(), nbytes)], values))
            start = 0
            for state, size in zip(states, sizes, strict=True):
                part = parts[state.part]
                parameter = tensors[part.tensor].tensor
                own = self.state[parameter]
                if state.number is not None:
                    own[state.key] = torch.tensor(state.number)
                    continue
                piece = values[start : start + size].view(parameter.dtype)
                start += size
                whole = own.get(state.key)
                if not isinstance(whole, Tensor) or whole.shape != parameter.shape:
                    whole = own[state.key] = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
                with torch.no_grad():
                    flat = _flat(whole.detach())
                    flat[part.start : part.start + part.count].copy_(piece)
                    if flat.data_ptr() != whole.data_ptr():
                        whole.copy_(flat.view(whole.shape))

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as torch's
        """Load the wrapped optimizer's state, which rank 0 sends to the servers with its parameters.

        Raises InvalidArgumentError once training has begun.
        """
        if self._exchange.started:
            raise InvalidArgumentError(
                "async-ps: the servers have the optimizer's state",
                remedy="load_state_dict before the first backward pass",
            )
        super().load_state_dict(*args, **kwargs)


def _has_values(gradient: Tensor) -> bool:
    """Return whether a gradient is more than the zeros of zero_grad(set_to_none=False)."""
    return gradient.layout is not torch.strided or bool(gradient.detach().any())


def _flat(tensor: Tensor) -> Tensor:
    """Return the elements of a tensor on the host in row-major order, sharing its memory if it is so."""
    flat: Tensor = tensor.detach().cpu().reshape(-1)
    return flat
