"""The variables, layers and optimizers of a script, by number: names and sizes for the trace."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Variable = Any
"""A `tf.Variable`, or a variable of Keras."""
Layer = Any
"""A `keras.Layer`."""


def identity(variable: Variable) -> int:
    """Return what tells a variable from others; one of Keras is the same as its `tf.Variable`."""
    return id(getattr(variable, "_value", variable))


def is_variable(source: object) -> bool:
    """Return whether a source of a tape is a variable that a step trains."""
    return hasattr(source, "assign") and bool(getattr(source, "trainable", False))


def parameters(layer: Layer) -> list[Variable]:
    """Return the variables of a layer and of those in it that are meant for training, frozen ones included."""
    inside = getattr(layer, "_flatten_layers", None)
    layers = [layer] if inside is None else list(inside())
    own = [variable for one in layers for variable in getattr(one, "_trainable_variables", ())]
    known = {identity(one) for one in own}
    return own + [one for one in layer.trainable_variables if identity(one) not in known]


@dataclass
class Parameter:
    """A variable. `dtype` is its gradient's once there is one."""

    variable: Variable
    name: str
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    trainable: bool
    sparse: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass
class Optimizer:
    """An optimizer and the numbers of the variables that it updates."""

    optimizer: Any
    parameters: frozenset[int]

    @property
    def state_bytes(self) -> int:
        """Bytes of its states, without single numbers."""
        states = getattr(self.optimizer, "variables", ())
        states = states() if callable(states) else states
        return sum(_elements(one) * _itemsize(one) for one in states if len(one.shape))


class OwnUpdates:
    """Stands for an optimizer where the script itself assigns to the variables."""

    variables = ()
    """States: unknown."""

    def __str__(self) -> str:
        """Return what updates the variables, for messages."""
        return "assignments of its own"


@dataclass
class Table:
    """Everything that the hooks have seen. Objects are kept, so that their `id` stays theirs."""

    parameters: list[Parameter] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    needs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """The parameters that a layer needs, by the layer's number."""
    optimizers: list[Optimizer] = field(default_factory=list)
    assigned: int = 0
    """The most variables with gradients that a script has assigned itself, after computing them."""
    _numbers: dict[int, int] = field(default_factory=dict)
    _names: Counter[str] = field(default_factory=Counter)

    def parameter(self, variable: Variable) -> int:
        """Return the number of a variable."""
        key = identity(variable)
        if key not in self._numbers:
            self._numbers[key] = len(self.parameters)
            name = str(getattr(variable, "path", None) or variable.name).split(":")[0]
            self._names[name] += 1
            number = self._names[name]
            name += f"#{number}" if number > 1 else ""
            self.parameters.append(
                Parameter(
                    # The inner one has the identity.
                    getattr(variable, "_value", variable),
                    name,
                    tuple(int(size) for size in variable.shape),
                    _dtype(variable),
                    _itemsize(variable),
                    bool(variable.trainable),
                )
            )
        return self._numbers[key]

    def known(self, variable: Variable) -> int | None:
        """Return the number of a variable; None if it has none yet."""
        return self._numbers.get(identity(variable))

    @property
    def has_optimizer(self) -> bool:
        """Whether any optimizer but the script itself has updated variables."""
        return any(not isinstance(one.optimizer, OwnUpdates) for one in self.optimizers)

    def own_updates(self, numbers: frozenset[int]) -> int:
        """Return the number of what stands for an optimizer where a script assigns these variables itself."""
        for place, known in enumerate(self.optimizers):
            if isinstance(known.optimizer, OwnUpdates) and known.parameters == numbers:
                return place
        self.optimizers.append(Optimizer(OwnUpdates(), numbers))
        return len(self.optimizers) - 1

    def layer(self, layer: Layer) -> int:
        """Return the number of a layer."""
        for number, known in enumerate(self.layers):
            if known is layer:
                return number
        self.layers.append(layer)
        return len(self.layers) - 1

    def layer_name(self, number: int) -> str:
        """Return the path of a layer, or its name while it has none."""
        layer = self.layers[number]
        return str(getattr(layer, "path", None) or layer.name)

    def need(self, layer: int, variables: Iterable[Variable]) -> None:
        """Note the variables that a layer needs before it can start."""
        self.needs[layer] = tuple(dict.fromkeys(self.parameter(variable) for variable in variables))

    def optimizer(self, optimizer: Any, variables: Sequence[Variable]) -> int:  # noqa: ANN401
        """Return the number of an optimizer."""
        held = frozenset(self.parameter(variable) for variable in variables)
        for number, known in enumerate(self.optimizers):
            if known.optimizer is optimizer:
                known.parameters |= held
                return number
        self.optimizers.append(Optimizer(optimizer, held))
        return len(self.optimizers) - 1

    def elements(self, numbers: Iterable[int]) -> int:
        """Return the number of elements of some parameters."""
        return sum(self.parameters[number].elements for number in numbers)


def _dtype(variable: Variable) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))


def _itemsize(variable: Variable) -> int:
    inner: Any = getattr(variable, "_value", variable)  # Keras has names of types, TensorFlow their sizes.
    return int(inner.dtype.size)


def _elements(variable: Variable) -> int:
    return math.prod(int(size) for size in variable.shape)
