"""Operators that torch dispatches for a module in the forward pass, and those of autograd in the backward pass.

Nothing is computed: a value is the shape, dtype and strides of a tensor. Operators, and the order of their backward
operators, are those of torch/csrc/autograd (tools/autograd/derivatives.yaml) as `paceline record --gpu` sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.operators.operator import ITEM_BYTES, Operator, Tensor, contiguous

HALF = ("bfloat16", "float16")


@dataclass(eq=False)
class Storage:
    """Memory of a tensor and its views."""

    bytes: int
    is_held: bool = False
    """Whether it exists anyway, as parameters do."""


@dataclass(eq=False)
class Value:
    """A tensor in a list of operators."""

    tensor: Tensor
    source: int = -1
    """The place of the operator that wrote it; -1 if none did."""
    trains: bool = True
    """Whether it has a gradient."""
    storage: Storage = None  # type: ignore[assignment]
    """By default its own."""

    def __post_init__(self) -> None:
        """Give it memory."""
        if self.storage is None:
            self.storage = Storage(self.tensor.bytes)

    def seen_as(self, tensor: Tensor) -> Value:
        """Return a view of it."""
        return Value(tensor, self.source, self.trains, self.storage)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """Of the tensor, as torch calls it."""
        return self.tensor.dtype


_Back = Callable[[Value], None]


def widest(*dtypes: str) -> str:
    """Return the dtype of a result of several floating-point operands."""
    if len(set(dtypes)) > 1:
        return "float32"
    return dtypes[0]


def dense_like(tensor: Tensor, shape: Sequence[int], dtype: str) -> Tensor:
    """Return a tensor without gaps, whose dimensions lie in memory in the order of another one's."""
    order = sorted(range(len(shape)), key=lambda d: (tensor.strides[d] if tensor.shape[d] > 1 else 0, -d))
    strides, step = [0] * len(shape), 1
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.strides, tensor.shape, strict=True)):
        return contiguous(shape, dtype)
    for dimension in order:
        strides[dimension] = step
        step *= shape[dimension]
    return Tensor(tuple(shape), dtype, tuple(strides))


def viewed(tensor: Tensor, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of a view of another shape; None if it needs a copy."""
    strides: list[int] = []
    left = [(size, step) for size, step in zip(tensor.shape, tensor.strides, strict=True) if size != 1]
    for size in reversed(shape):
        if size == 1:
            strides.append(strides[-1] if strides else 1)
            continue
        if not left:
            return None
        have, step = left.pop()
        while have < size:
            if not left or left[-1][1] != step * have:
                return None
            more, _ = left.pop()
            have *= more
        if have % size:
            return None
        strides.append(step)
        if have > size:
            left.append((have // size, step * size))
    return None if left else tuple(reversed(strides))


@dataclass
class Tape:
    """The operators of one module, with torch's names."""

    compiled: bool = False
    """Whether torch.compile may fuse them."""
    tf32: bool = False
    autocast: str = ""
    """The dtype to which autocast converts operands of products; empty without autocast."""
    operators: list[Operator] = field(default_factory=list)
    phase: str = "forward"
    is_frozen: bool = False
    """Whether parameters have no gradient."""
    host: float = 1.0
    """The host's time to dispatch an operator, relative to one of torch."""
    launches: int = 1
    """Kernels that an operator launches one by one."""
    in_graph: bool = False
    """Whether operators are part of a CUDA graph; their backward operators are, too."""
    _kept: dict[int, Storage] = field(default_factory=dict)
    _nodes: list[tuple[tuple[Value, ...], Callable[..., None], bool]] = field(default_factory=list)
    _gradients: dict[int, Value] = field(default_factory=dict)
    _converted: dict[int, Value] = field(default_factory=dict)

    # What runs, and what is differentiated.

    def run(self, name: str, inputs: Sequence[Value], *outputs: Tensor, **attributes: object) -> Value:
        """Dispatch an operator, without a gradient; return its first result, which trains if an input does."""
        place = len(self.operators)
        self.operators.append(
            Operator(
                name,
                tuple(value.tensor for value in inputs),
                outputs,
                attributes,
                compiled=self.compiled,
                phase=self.phase,
                sources=tuple(value.source for value in inputs),
                tf32=self.tf32,
                launches=self.launches,
                host=self.host,
                in_graph=self.in_graph,
            )
        )
        trains = not inputs or any(value.trains for value in inputs)
        return Value(outputs[0] if outputs else contiguous((), "float32"), place, trains)

    def node(self, output: Value, back: _Back, *kept: Value) -> Value:
        """Have the gradient of a result given to `back`, for which some values are kept."""
        if output.trains:
            self._nodes.append(((output,), back, self.in_graph))
            self._kept |= {id(value.storage): value.storage for value in kept if not value.storage.is_held}
        return output

    @property
    def kept_bytes(self) -> int:
        """Bytes that the backward pass needs, each once; parameters are not among them."""
        return sum(storage.bytes for storage in self._kept.values())

    def give(self, value: Value, gradient: Value) -> None:
        """Add a gradient to that of a value."""
        if not value.trains:
            return
        known = self._gradients.get(id(value))
        if known is not None:
            gradient = self.run("add", (known, gradient), self._result(known, gradient), alpha=1)
        self._gradients[id(value)] = gradient

    def backward(self, output: Value, gradient: Value | None = None) -> None:
        """Dispatch the backward pass from a result."""
        self.phase = "backward"
        self._gradients[id(output)] = gradient or Value(contiguous(output.shape, output.dtype))
        for outputs, back, in_graph in reversed(self._nodes):
            given = [self._gradients.pop(id(one), None) for one in outputs]
            if any(one is not None for one in given):
                self.in_graph = in_graph
                back(*given)

    # Values.

    def parameter(self, shape: Sequence[int], dtype: str) -> Value:
        """Return a parameter."""
        tensor = contiguous(shape, dtype)
        return Value(tensor, trains=not self.is_frozen, storage=Storage(tensor.bytes, is_held=True))

    @staticmethod
    def _result(*values: Value, dtype: str = "") -> Tensor:
        """Return the result of an element-wise operator."""
        rank = max(len(value.shape) for value in values)
        padded = [(1,) * (rank - len(value.shape)) + value.shape for value in values]
        shape = tuple(max(sizes) for sizes in zip(*padded, strict=True))
        kinds = [value.dtype for value in values if value.shape and value.dtype in ITEM_BYTES]
        dtype = dtype or widest(*[kind for kind in kinds if kind.startswith(("float", "bfloat"))] or kinds)
        whole = next((value.tensor for value in values if value.shape == shape), None)
        return contiguous(shape, dtype) if whole is None else dense_like(whole, shape, dtype)

    # Views.

    def view(self, value: Value, tensor: Tensor, back: Callable[[Value], Value]) -> Value:
        """Return a view; `back` makes of its gradient that of the value."""
        return self.node(value.seen_as(tensor), lambda gradient: self.give(value, back(gradient)))

    def reshape(self, value: Value, *shape: int) -> Value:
        """Return a view of another shape, or a copy where it needs one."""
        strides = viewed(value.tensor, shape)
        if strides is None:
            return self.reshape(self.copied(value), *shape)
        old = value.shape
        return self.view(value, Tensor(shape, value.dtype, strides), lambda gradient: self._reshaped(gradient, old))

    def _reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        strides = viewed(value.tensor, shape)
        if strides is None:
            value = self.run("clone", (value,), contiguous(value.shape, value.dtype))
            strides = contiguous(shape, value.dtype).strides
        return value.seen_as(Tensor(tuple(shape), value.dtype, strides))

    def copied(self, value: Value) -> Value:
        """Return a contiguous copy."""
        out = self.run("clone", (value,), contiguous(value.shape, value.dtype))
        return self.node(out, lambda gradient: self.give(value, gradient))

    def transpose(self, value: Value, one: int, other: int) -> Value:
        """Return a view with two dimensions exchanged."""
        return self.view(value, _transposed(value.tensor, one, other), lambda g: _turned(g, one, other))

    def split(self, value: Value, *sizes: int) -> list[Value]:
        """Return views of the last dimension's parts; their gradients are put together again."""
        parts = [value.seen_as(Tensor((*value.shape[:-1], size), value.dtype, value.tensor.strides)) for size in sizes]

        def back(*gradients: Value | None) -> None:
            given = [one for one in gradients if one is not None]
            dtype = given[0].dtype
            whole = contiguous((*value.shape[:-1], sum(sizes)), dtype)
            self.give(value, self.run("cat", given, whole, dim=len(value.shape) - 1))

        if value.trains:
            self._nodes.append((tuple(parts), back, self.in_graph))
        return parts

    def chunked(self, value: Value, count: int) -> list[Value]:
        """Return so many parts of the rows; their gradients are put together again."""
        if count == 1:
            return [value]
        rows, width = value.shape
        parts = [
            value.seen_as(contiguous((min(-(-rows // count), rows - first), width), value.dtype))
            for first in range(0, rows, -(-rows // count))
        ]

        def back(*gradients: Value | None) -> None:
            given = [one for one in gradients if one is not None]
            self.give(value, self.run("cat", given, contiguous(value.shape, value.dtype), dim=0))

        if value.trains:
            self._nodes.append((tuple(parts), back, self.in_graph))
        return parts

    def narrow(self, value: Value, size: int) -> Value:
        """Return a view of a part of the last dimension; its gradient is written into zeros."""
        tensor = Tensor((*value.shape[:-1], size), value.dtype, value.tensor.strides)

        def back(gradient: Value) -> Value:
            return self.run("slice_backward", (gradient,), contiguous(value.shape, gradient.dtype))

        return self.view(value, tensor, back)

    # Element by element.

    def cast(self, value: Value, dtype: str) -> Value:
        """Convert to a dtype, if it is another one."""
        if value.dtype == dtype:
            return value
        out = self.run("_to_copy", (value,), dense_like(value.tensor, value.shape, dtype))
        old = value.dtype
        return self.node(out, lambda g: self.give(value, self._cast(g, old)))

    def _cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        return self.run("_to_copy", (value,), dense_like(value.tensor, value.shape, dtype))

    def lowered(self, value: Value, *, once: bool = False) -> Value:
        """Convert as autocast does before a product; `once`: a parameter, whose copy is kept."""
        if not self.autocast:
            return value
        if once and id(value) in self._converted:
            return self._converted[id(value)]
        out = self.cast(value, self.autocast)
        if once:
            self._converted[id(value)] = out
        return out

    def raised(self, value: Value) -> Value:
        """Convert to FP32 as autocast does before norms and losses."""
        return self.cast(value, "float32") if self.autocast else value

    def add(self, one: Value, other: Value) -> Value:
        """Add two values of the same shape, or a smaller one to all of a larger one's."""
        out = self.run("add", (one, other), self._result(one, other), alpha=1)

        def back(gradient: Value) -> None:
            for value in (one, other):
                if value.trains:
                    self.give(value, self._cast(self._summed(gradient, value.shape), value.dtype))

        return self.node(out, back)

    def _summed(self, gradient: Value, shape: tuple[int, ...]) -> Value:
        """Sum a gradient over what was broadcast."""
        if gradient.shape == shape:
            return gradient
        kept = (1,) * (len(gradient.shape) - len(shape)) + shape
        over = [d for d, (a, b) in enumerate(zip(gradient.shape, kept, strict=True)) if a != b]
        out = self.run("sum", (gradient,), contiguous(kept, gradient.dtype), dim=over, keepdim=True)
        return Value(contiguous(shape, gradient.dtype), out.source)

    def multiply(self, one: Value, other: Value) -> Value:
        """Multiply element by element; one of both may be broadcast."""
        out = self.run("mul", (one, other), self._result(one, other))

        def back(gradient: Value) -> None:
            made = []
            for value, factor in ((other, one), (one, other)):
                if value.trains:
                    made.append((value, self.run("mul", (gradient, factor), self._result(gradient, factor))))
            for value, product in made:
                self.give(value, self._cast(self._summed(product, value.shape), value.dtype))

        return self.node(out, back, *(factor for value, factor in ((other, one), (one, other)) if value.trains))

    def scale(self, value: Value) -> Value:
        """Multiply by a number."""
        out = self.run("mul", (value,), self._result(value))
        return self.node(out, lambda g: self.give(value, self.run("mul", (g,), self._result(g))))

    def shift(self, value: Value) -> Value:
        """Add a number."""
        out = self.run("add", (value,), self._result(value), alpha=1)
        return self.node(out, lambda g: self.give(value, g))

    def negate(self, value: Value) -> Value:
        """Change the sign."""
        out = self.run("neg", (value,), self._result(value))
        return self.node(out, lambda g: self.give(value, self.run("neg", (g,), self._result(g))))

    def power(self, value: Value) -> Value:
        """Square, or cube."""
        out = self.run("pow", (value,), self._result(value))

        def back(gradient: Value) -> None:
            lower = self.run("pow", (value,), self._result(value))
            scaled = self.run("mul", (lower,), self._result(lower))
            self.give(value, self.run("mul", (gradient, scaled), self._result(gradient)))

        return self.node(out, back, value)

    def activation(self, name: str, value: Value) -> Value:
        """Apply an activation function: `gelu`, `silu`, `relu`, `tanh`."""
        out = self.run(name, (value,), self._result(value))
        reverse = {"relu": "threshold_backward"}.get(name, f"{name}_backward")
        kept = out if name in ("relu", "tanh") else value

        def back(gradient: Value) -> None:
            self.give(value, self.run(reverse, (gradient, kept), self._result(gradient)))

        return self.node(out, back, kept)

    def dropout(self, value: Value) -> Value:
        """Drop elements; a mask of a byte each is kept."""
        mask = dense_like(value.tensor, value.shape, "bool")
        out = self.run("native_dropout", (value,), self._result(value), mask, train=True)
        kept = Value(mask, out.source)

        def back(gradient: Value) -> None:
            self.give(value, self.run("native_dropout_backward", (gradient, kept), self._result(gradient)))

        return self.node(out, back, kept)

    def fused(self, name: str, inputs: Sequence[Value], *outputs: Tensor, kept: Sequence[Value] | None = None) -> Value:
        """Run a kernel of a library that stands for several operators; so is its backward kernel.

        Args:
            name: Of the kernel.
            inputs: What it reads.
            outputs: What it writes; the first is the result, others are kept for the backward pass.
            kept: What the backward kernel reads besides the gradient; by default the inputs.
        """
        out = self.run(name, inputs, *outputs)
        more = [Value(tensor, out.source) for tensor in outputs[1:]]
        read = [*(inputs if kept is None else kept), *more]

        def back(gradient: Value) -> None:
            whole = [value for value in inputs if value.trains]
            made = [dense_like(value.tensor, value.shape, value.dtype) for value in whole]
            first = self.run(f"{name}_backward", (gradient, *read), *made)
            for value, tensor in zip(whole, made, strict=True):
                self.give(value, Value(tensor, first.source))

        return self.node(out, back, *read)

    # Rows.

    def layer_norm(self, value: Value) -> Value:
        """Normalize rows; with a weight and a bias."""
        value = self.raised(value)
        shape = (value.shape[-1],)
        weight, bias = (self.parameter(shape, value.dtype) for _ in range(2))
        rows = contiguous((*value.shape[:-1], 1), "float32")
        attributes = {"normalized_shape": list(shape)}
        inputs = (value, weight, bias)
        out = self.run("native_layer_norm", inputs, contiguous(value.shape, value.dtype), rows, rows, **attributes)
        kept = [Value(rows, out.source)] * 2

        def back(gradient: Value) -> None:
            made = (contiguous(value.shape, value.dtype), *(one.tensor for one in (weight, bias) if one.trains))
            read = (gradient, value, *kept, weight, bias)
            self.give(value, self.run("native_layer_norm_backward", read, *made, **attributes))

        return self.node(out, back, value, *kept)

    def rms_norm(self, value: Value) -> Value:
        """Normalize rows by one kernel."""
        shape = (value.shape[-1],)
        weight = self.parameter(shape, value.dtype)
        rows = contiguous((*value.shape[:-1], 1), "float32")
        attributes = {"normalized_shape": list(shape)}
        result = dense_like(value.tensor, value.shape, value.dtype)
        out = self.run("_fused_rms_norm", (value, weight), result, rows, **attributes)
        root = Value(rows, out.source)

        def back(gradient: Value) -> None:
            read = (gradient, value, root, weight)
            made = (dense_like(value.tensor, value.shape, value.dtype), *((weight.tensor,) if weight.trains else ()))
            self.give(value, self.run("_fused_rms_norm_backward", read, *made, **attributes))

        return self.node(out, back, value, root)

    def mean_of_rows(self, value: Value) -> Value:
        """Return the mean of each row."""
        made = contiguous((*value.shape[:-1], 1), value.dtype)
        out = self.run("mean", (value,), made, dim=[-1], keepdim=True)

        def back(gradient: Value) -> None:
            wide = Tensor(value.shape, gradient.dtype, (*gradient.tensor.strides[:-1], 0))
            expanded = Value(wide, gradient.source)
            self.give(value, self.run("div", (expanded,), contiguous(value.shape, gradient.dtype)))

        return self.node(out, back)

    def inverse_root(self, value: Value) -> Value:
        """Return one over the root."""
        out = self.run("rsqrt", (value,), self._result(value))

        def back(gradient: Value) -> None:
            cubed = self.run("pow", (out,), self._result(out))
            scaled = self.run("mul", (cubed,), self._result(cubed))
            self.give(value, self.run("mul", (gradient, scaled), self._result(gradient)))

        return self.node(out, back, out)

    def softmax(self, value: Value, name: str = "_softmax", *, wide: bool = False) -> Value:
        """Return the softmax of rows; `wide`: in FP32 whatever it reads, as under autocast."""
        result = contiguous(value.shape, "float32" if wide or self.autocast else value.dtype)
        out = self.run(name, (value,), result, dim=len(value.shape) - 1)
        reverse = f"{name}_backward_data"

        def back(gradient: Value) -> None:
            self.give(value, self.run(reverse, (gradient, out), contiguous(value.shape, value.dtype)))

        return self.node(out, back, out)

    # Products.

    def linear(
        self,
        value: Value,
        outer: int,
        *,
        bias: bool,
        transposed: bool = False,
        read: Callable[[Tensor], Value] | None = None,
        is_kept: bool = True,
    ) -> Value:
        """Multiply rows by a weight; with a bias it is added by the product.

        Args:
            value: The rows.
            outer: Their width afterwards.
            bias: Whether there is one.
            transposed: Whether the weight is held inner by outer.
            read: Makes the weight of what is held; by default it is held as it is.
            is_kept: Whether the weight is kept for the backward pass; otherwise it is made again.
        """
        inner = value.shape[-1]
        lead = value.shape[:-1]
        value = self.lowered(value)
        rows = self.reshape(value, math.prod(lead), inner)
        kind = "float32" if self.autocast else value.dtype
        shape = (inner, outer) if transposed else (outer, inner)
        weight = self.lowered(self.parameter(shape, kind)) if read is None else read(contiguous(shape, value.dtype))
        made = contiguous((rows.shape[0], outer), value.dtype)
        right = weight if transposed else _turned(weight, 0, 1)
        offset = self.lowered(self.parameter((outer,), kind)) if bias else None
        if offset is not None:
            out = self.run("addmm", (offset, rows, right), made)
        else:
            out = self.run("mm", (rows, right), made)

        def of_input(gradient: Value) -> None:
            if rows.trains:
                again = weight if is_kept or read is None else read(weight.tensor)
                other = _turned(again, 0, 1) if transposed else again
                self.give(rows, self.run("mm", (gradient, other), contiguous(rows.shape, value.dtype)))

        def of_weight(gradient: Value) -> None:
            if weight.trains:
                left, columns = (rows, gradient) if transposed else (gradient, rows)
                self.give(weight, self.run("mm", (_turned(left, 0, 1), columns), contiguous(shape, value.dtype)))

        def back(gradient: Value) -> None:
            if offset is None:
                of_weight(gradient)
                of_input(gradient)
                return
            of_input(gradient)
            of_weight(gradient)
            if offset.trains:
                row = contiguous((1, outer), value.dtype)
                total = self.run("sum", (gradient,), row, dim=[0], keepdim=True)
                self.give(offset, Value(contiguous((outer,), value.dtype), total.source))

        needed = [*([rows] if weight.trains else []), *([weight] if rows.trains and is_kept else [])]
        return self.reshape(self.node(out, back, *needed), *lead, outer)

    def matmul(self, left: Value, right: Value) -> Value:
        """Multiply batches of matrices: batch x heads x rows x inner, and batch x heads x inner x columns."""
        left, right = self.lowered(left), self.lowered(right)
        batch, heads, m, k = left.shape
        n = right.shape[-1]
        one, other = self.reshape(left, batch * heads, m, k), self.reshape(right, batch * heads, k, n)
        out = self.run("bmm", (one, other), contiguous((batch * heads, m, n), left.dtype))

        def back(gradient: Value) -> None:
            if other.trains:
                self.give(other, self.run("bmm", (_turned(one, 1, 2), gradient), contiguous(other.shape, left.dtype)))
            if one.trains:
                self.give(one, self.run("bmm", (gradient, _turned(other, 1, 2)), contiguous(one.shape, left.dtype)))

        return self.reshape(self.node(out, back, one, other), batch, heads, m, n)


def _transposed(tensor: Tensor, one: int, other: int) -> Tensor:
    shape, strides = list(tensor.shape), list(tensor.strides)
    shape[one], shape[other] = shape[other], shape[one]
    strides[one], strides[other] = strides[other], strides[one]
    return Tensor(tuple(shape), tensor.dtype, tuple(strides))


def _turned(value: Value, one: int, other: int) -> Value:
    return value.seen_as(_transposed(value.tensor, one, other))
