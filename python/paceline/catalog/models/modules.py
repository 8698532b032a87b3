"""Operators that torch dispatches for a model's layers, as transformers' modules do, or with other libraries' kernels.

| kernels | |
| --- | --- |
| `eager` | transformers' modules, operator by operator |
| `compiled` | the same under torch.compile |
| `fused` | Megatron-LM's, Apex's and flash-attn's kernels: norms, rotary positions, gates, dropout with sums, losses |
| `transformer-engine` | as `fused`; products in 8 bits take operands that norms and activation functions have cast |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from paceline.catalog import names
from paceline.catalog.adapters import Adapter, adapted_name, is_quantized, module_of, quantized_bytes
from paceline.catalog.models.layers import SAVED, Attention, Layer
from paceline.catalog.models.layers import Tensor as Parameter
from paceline.catalog.models.steps import Add, Attend, Batched, Convolve, Norm, Pointwise, Product, Scan, Step, Weight
from paceline.catalog.models.traits import MEGATRON, TRANSFORMER_ENGINE, Block, Experts, Latent
from paceline.operators.backend import Backend, Enabled, backend_of, capability
from paceline.operators.constants import constant
from paceline.operators.operator import ITEM_BYTES, SYNCHRONIZE, Operator, Tensor, contiguous
from paceline.operators.tape import Storage, Tape, Value, dense_like

_DROPOUT = 0.1
"""The probability, where there is one: by it alone, no kernel is chosen before torch 2.12."""


@dataclass(frozen=True)
class Setting:
    """How layers run."""

    architecture: str
    """Of the GPU, by which torch chooses kernels of attention."""
    batch: int
    dtype: str
    """Of products: torch's name."""
    kernels: names.Kernels = "eager"
    attention: names.Attention = "flash"
    autocast: bool = False
    """Whether parameters and the residual stream are FP32."""
    tf32: bool = False
    eight_bits: bool = False
    """Whether products of blocks are in 8 bits."""
    tensor: int = 1
    """GPUs that share every layer, with sequence parallelism."""
    expert: int = 1
    """GPUs that share experts."""
    dispatch: names.ExpertDispatch = "alltoall"
    """The dispatcher that sends tokens to experts on other GPUs."""
    context: int = 1
    """GPUs that share a sequence."""
    flash: Literal[0, 1, 2] = 0
    """The version of FlashAttention that a library brings; 0: the kernel that torch chooses today."""
    gathered: Literal[0, 1, 2] = 0
    """The version of FSDP that gathers parameters for each pass, and scatters gradients; 0: none does."""
    reduction: str = "float32"
    """The dtype in which gradients are scattered."""
    main_gradients: bool = False
    """Whether products add to FP32 gradients, as Megatron-LM's do."""
    chunks: int | None = None
    """Parts of the tokens of which a fused loss computes logits at a time; None: it is not fused."""
    wide_loss: bool | None = None
    """Whether cross-entropy is in FP32; None: that of decoders."""
    adapter: Adapter | None = None
    adapter_dtype: str = "float32"
    """In which adapters are held."""
    adapter_autocast: bool = False
    """Whether autocast converts their operands to the dtype of products."""
    quantization: names.Quantization | None = None
    """How weights beside adapters are held."""
    quantized_dtype: str = ""
    """Of products by these weights; empty: that of all products."""
    cuda_graphs: bool = False
    """Whether the host launches CUDA graphs: of a block all but its routed experts."""

    @property
    def is_fused(self) -> bool:
        """Whether kernels of other libraries replace operators."""
        return self.kernels in MEGATRON


@dataclass(frozen=True)
class Listed:
    """The operators of a layer."""

    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    scores: tuple[int, int] = (0, 0)
    """Places of those of unfused attention in the forward pass."""
    kept_bytes: int = 0
    """Bytes of values that the backward pass needs, without checkpointing."""


def operators_of(layer: Layer, setting: Setting) -> Listed:
    """Return the operators of a layer in both passes."""
    return _Module(layer, setting).listed()


def before_of(layer: Layer, setting: Setting) -> tuple[Operator, ...]:
    """Return the operators of a step of a decoder before its first block: positions, and whether a token is masked."""
    if setting.is_fused:
        return ()
    tape, rows = Tape(compiled=setting.kernels == "compiled"), layer.tokens
    batch = setting.batch
    ids = Value(contiguous((batch, rows), "int64"), trains=False)
    shifted = tape.run("sub", (ids, ids), contiguous((batch, rows), "int64"))
    marks = tape.run("ne", (shifted,), contiguous((batch, rows), "bool"))
    summed = tape.run("cumsum", (marks,), contiguous((batch, rows), "int64"))
    last = tape.run("eq", (summed,), contiguous((batch,), "bool"))
    tape.run("all", (last,), contiguous((), "bool"))
    tape.run(SYNCHRONIZE, ())
    return tuple(tape.operators)


def _is_among(names: Sequence[str], modules: Collection[str]) -> bool:
    """Whether one of some linear layers of a block, by the ends of their names, is among modules."""
    return any(f".{module}".endswith(f".{name}") for module in modules for name in names)


class _Module:
    """One layer on a tape."""

    def __init__(self, layer: Layer, setting: Setting) -> None:
        self.layer, self.setting = layer, setting
        low = setting.dtype if setting.autocast else ""
        self.tape = Tape(compiled=setting.kernels == "compiled", tf32=setting.tf32, autocast=low)
        self.tape.host = constant("host.engine") if setting.kernels == TRANSFORMER_ENGINE else 1.0
        self.tape.in_graph = setting.cuda_graphs and bool(layer.block)
        self.saved = {module_of(layer, one).removesuffix(f".{SAVED}") for one in layer.trained if one.is_saved}
        """Modules of a block that are trained wholly beside adapters."""
        tensors = (*layer.tensors, *layer.shared)
        trains = any(one.trains and not (one.is_of_adapter or (layer.block and one.is_saved)) for one in tensors)
        self.tape.is_frozen = bool(tensors) and not trains
        self.adapted = {stem for one in layer.trained if (stem := adapted_name(one)) is not None}
        """Names of linear layers that have adapters."""
        self.stream = "float32" if setting.autocast else setting.dtype
        self.rows = -(-layer.tokens // (setting.tensor * setting.context))
        """Tokens of the residual stream on a GPU: sequence parallelism divides them."""
        self.tokens = -(-layer.tokens // setting.context)
        """Tokens that products of a GPU see."""
        self._scores = (0, 0)

    def listed(self) -> Listed:
        tape, role = self.tape, self.layer.form.role
        makers: dict[str, Callable[[Value], Value]] = {
            "attention": self._attention,
            "cross-attention": self._attention,
            "mlp": self._mlp,
            "norm": self._norm,
            "head": self._head,
            "plain": self._plain,
            "steps": self._steps,
        }
        shape = (self.setting.batch, self.rows, self.layer.hidden)
        entry = Value(contiguous(shape, self.stream), trains=self.layer.passes)
        with self._outside_graphs():
            self._gather()
        out = self._embedding() if role == "embedding" else makers[role](entry)
        forward = len(tape.operators)
        if out.trains:
            tape.phase = "backward"
            with self._outside_graphs():
                self._gather()
            tape.backward(out)
            self._accumulate()
            with self._outside_graphs():
                self._scatter()
        operators = tape.operators
        return Listed(tuple(operators[:forward]), tuple(operators[forward:]), self._scores, tape.kept_bytes)

    def _trained(self, dtype: str) -> Value:
        """Return all parameters that have a gradient as one tensor."""
        size = sum(one.size for one in self.layer.trained)
        return Value(contiguous((-(-size // self.setting.tensor),), dtype), trains=False)

    def _gather(self) -> None:
        """Copy what was gathered into the parameters (FSDP2's `foreach_all_gather_copy_out`); FSDP1 has views of it."""
        if self.setting.gathered == 2 and self.layer.tensors:
            size = sum(self._gathered_bytes(one) for one in self.layer.tensors)
            whole = Value(contiguous((-(-size // self.setting.tensor),), "uint8"), trains=False)
            self.tape.run("split_with_sizes_copy", (whole,), whole.tensor)

    def _gathered_bytes(self, tensor: Parameter) -> int:
        setting = self.setting
        if setting.quantization is not None and is_quantized(tensor):
            return quantized_bytes(tensor, setting.quantization)
        is_converted = tensor.is_of_adapter and not setting.adapter_autocast
        return tensor.size * ITEM_BYTES[setting.adapter_dtype if is_converted else self.stream]

    def _accumulate(self) -> None:
        """Add gradients to FP32 ones, as products do themselves, tile by tile (`gradient_accumulation_fusion`).

        They read and write FP32 gradients instead of writing those of the stream.
        """
        if self.setting.main_gradients and self.layer.trained:
            self.tape.run("accumulate", (self._trained("float32"),), self._trained(self.stream).tensor)

    def _scatter(self) -> None:
        """Copy gradients into the buffer that is scattered.

        FSDP2 does it at once (`foreach_reduce_scatter_copy_in`). In FSDP1, autograd puts them together, and they are
        converted and divided before (`_reduce_grad` in torch/distributed/fsdp/_runtime_utils.py).
        """
        if not (self.setting.gathered and self.layer.trained):
            return
        tape, whole = self.tape, self._trained(self.stream)
        scattered = self._trained(self.setting.reduction)
        if self.setting.gathered == 2:
            tape.run("chunk_cat", (whole,), scattered.tensor)
            return
        together = tape.run("cat", (whole,), whole.tensor)
        if scattered.dtype != whole.dtype:
            together = tape.run("_to_copy", (together,), scattered.tensor)
        tape.run("div", (together,), scattered.tensor)

    # Parts of blocks.

    def _norm(self, value: Value) -> Value:
        is_saved = any("norm" in name or name.endswith(".after") for name in self.saved)
        with self._parameters(are_frozen=self.tape.is_frozen and not is_saved):
            return self._normed(value)

    @contextmanager
    def _parameters(self, *, are_frozen: bool) -> Iterator[None]:
        """Compute with parameters that have a gradient or have none."""
        before, self.tape.is_frozen = self.tape.is_frozen, are_frozen
        yield
        self.tape.is_frozen = before

    @contextmanager
    def _outside_graphs(self) -> Iterator[None]:
        """Have the host launch operators one by one: those of hooks, and those whose shapes differ between steps."""
        before, self.tape.in_graph = self.tape.in_graph, False
        yield
        self.tape.in_graph = before

    def _normed(self, value: Value) -> Value:
        tape, block = self.tape, self.layer.form.block
        if not self.layer.form.rms:
            return tape.layer_norm(value)
        if self.setting.is_fused:
            return tape.rms_norm(value)
        # transformers' LlamaRMSNorm, and Gemma's, which multiplies in FP32.
        kind = value.dtype
        wide = tape.cast(value, "float32")
        root = tape.inverse_root(tape.shift(tape.mean_of_rows(tape.power(wide))))
        normed = tape.multiply(wide, root)
        weight = tape.parameter((value.shape[-1],), self.stream)
        if block is not None and block.offset:
            normed = tape.multiply(normed, tape.shift(tape.cast(weight, "float32")))
            return tape.cast(normed, kind)
        return tape.multiply(weight, tape.cast(normed, kind))

    def _gathered(self, value: Value) -> Value:
        """Return the rows of all GPUs that share a layer; the exchange is timed elsewhere."""
        return self._of_tokens(value, self.tokens)

    def _scattered(self, value: Value) -> Value:
        return self._of_tokens(value, self.rows)

    def _of_tokens(self, value: Value, tokens: int) -> Value:
        if value.shape[1] == tokens:
            return value
        old = value.shape

        def back(gradient: Value) -> Value:
            return Value(contiguous(old, gradient.dtype), gradient.source)

        return self.tape.view(value, contiguous((old[0], tokens, old[2]), value.dtype), back)

    def _linear(self, value: Value, outer: int, *names: str, bias: bool, is_cast: bool = True) -> Value:
        """Multiply rows by a weight, and by its adapter if it has one.

        Args:
            value: The rows.
            outer: Their width afterwards.
            *names: Of the weight, or of several that are multiplied as one.
            bias: Whether there is one.
            is_cast: With Transformer Engine, whether the kernel before has written 8 bits.
        """
        tape, block, outer = self.tape, self.layer.form.block, max(1, outer)
        is_saved = _is_among(names, self.saved)
        with self._parameters(are_frozen=tape.is_frozen and not is_saved):
            if self.setting.eight_bits:
                out = self._scaled(value, outer, is_cast=is_cast)
            elif self.setting.quantization is not None and not is_saved:
                out = self._dequantized(value, outer, bias=bias)
            else:
                transposed = block is not None and block.transposed
                out = tape.linear(value, outer, bias=bias, transposed=transposed)
        return self._with_adapter(value, out) if _is_among(names, self.adapted) else out

    def _dequantized(self, value: Value, outer: int, *, bias: bool) -> Value:
        """Multiply by a weight that is held in few bits: it is converted before each product of both passes.

        bitsandbytes' `matmul_4bit` and `MatMul8bitLt`, which multiplies forward in 8 bits, and quantizes rows for that.
        AutoGPTQ converts by torch's operators, and autograd keeps the result.
        """
        tape, setting, kind = self.tape, self.setting, value.dtype
        value = tape.cast(value, setting.quantized_dtype or setting.dtype)
        if setting.quantization == "int8":
            # The largest element of each row is sought, and the product converted.
            tape.run("amax", (value,), contiguous(value.shape[:-1], "float32"))
            tape.run("_to_copy", (value,), contiguous(value.shape, "int8"))

        def read(weight: Tensor) -> Value:
            if setting.quantization == "int8" and tape.phase == "forward":
                return Value(weight, trains=False)
            return self._converted(weight)

        is_kept = setting.quantization == "gptq-int4"
        out = tape.linear(value, outer, bias=bias, read=read, is_kept=is_kept)
        if out.dtype != kind:
            return tape.cast(out, kind)
        # int32 becomes 16 bits; a result in 4 bits is copied (`Linear4bit.forward` in peft/tuners/lora/bnb.py).
        return tape.copied(out) if setting.quantization != "gptq-int4" else out

    def _converted(self, weight: Tensor) -> Value:
        """Return a weight that is held in few bits."""
        assert self.setting.quantization is not None
        tape, shape = self.tape, weight.shape
        size = quantized_bytes(Parameter("weight", shape), self.setting.quantization)
        packed = Value(contiguous((size,), "uint8"), trains=False)
        if self.setting.quantization != "gptq-int4":
            return tape.run("dequantize", (packed,), weight)
        # Eight weights of an int32 are shifted apart (auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py).
        apart = tape.run("bitwise_right_shift", (packed,), contiguous(shape, "int32"))
        small = tape.run("_to_copy", (apart,), contiguous(shape, "int8"))
        masked = tape.run("bitwise_and", (small,), contiguous(shape, "int8"))
        return tape.run("mul", (tape.run("sub", (masked,), contiguous(shape, "int8")),), weight)

    def _with_adapter(self, value: Value, result: Value) -> Value:
        """Add the adapter's product to that of a weight (`Linear.forward` in peft/tuners/lora/layer.py)."""
        tape, setting, adapter = self.tape, self.setting, self.setting.adapter
        assert adapter is not None
        inner, outer = value.shape[-1], result.shape[-1]
        base, tape.is_frozen = (tape.is_frozen, tape.autocast), False
        if not (setting.adapter_autocast and setting.quantization in ("nf4", "nf4-double", "int8")):
            value = tape.cast(value, setting.adapter_dtype)
        if adapter.dropout:
            value = tape.dropout(value)
        tape.autocast = setting.dtype if setting.adapter_autocast else ""
        added = tape.linear(tape.linear(value, adapter.rank, bias=False), outer, bias=False)
        if adapter.dora:
            scales = self._scales(inner, outer)
            added = tape.scale(tape.multiply(scales, added))
            added = tape.add(tape.multiply(tape.shift(scales), result), added)
        else:
            added = tape.scale(added)
        total = tape.cast(tape.add(result, added), result.dtype)
        tape.is_frozen, tape.autocast = base
        return total

    def _scales(self, inner: int, outer: int) -> Value:
        """Return what DoRA multiplies outputs by: trained lengths of rows, over those that they have.

        The adapter's matrix is made by its own products of an identity (`DoraLinearLayer` in peft/tuners/lora/dora.py).
        """
        tape, setting, adapter = self.tape, self.setting, self.setting.adapter
        assert adapter is not None
        dtype = setting.dtype if setting.adapter_autocast else setting.adapter_dtype
        narrow, matrix = contiguous((inner, adapter.rank), dtype), contiguous((outer, inner), setting.adapter_dtype)
        identity = tape.cast(tape.run("eye", (), contiguous((inner, inner), setting.adapter_dtype)), dtype)
        middle = tape.run("mm", (identity, Value(contiguous((inner, adapter.rank), dtype))), narrow)
        own = tape.run(
            "mm", (middle, Value(contiguous((adapter.rank, outer), dtype))), contiguous((inner, outer), dtype)
        )
        if setting.quantization is not None:
            weight = self._converted(contiguous((outer, inner), setting.dtype))
        else:
            weight = Value(contiguous((outer, inner), setting.dtype))
        wide = tape.run("_to_copy", (weight,), matrix) if weight.dtype != matrix.dtype else weight
        own = tape.cast(own, matrix.dtype)
        scaled = tape.run("mul", (own,), matrix)
        total = tape.run("add", (wide, scaled), matrix)
        row = contiguous((outer,), setting.adapter_dtype)
        lengths = tape.run("linalg_vector_norm", (total,), row, dim=[1])
        lengths.trains = False
        return tape.multiply(tape.parameter((outer,), setting.adapter_dtype), lengths)

    def _scaled(self, value: Value, outer: int, *, is_cast: bool) -> Value:
        """Multiply in 8 bits: operands of both passes are cast, and transposed for the gradients.

        Transformer Engine's norms and activation functions write both, and weights are cast once for all passes. Other
        libraries look for the largest element of each operand first.
        """
        tape, lead, inner = self.tape, value.shape[:-1], value.shape[-1]
        has_engine = self.setting.kernels == TRANSFORMER_ENGINE
        rows = tape.reshape(value, math.prod(lead), inner)
        m, n, kind = rows.shape[0], outer, value.dtype
        weight = tape.parameter((n, inner), kind)

        def quantized(one: Value, *, is_cast: bool) -> tuple[Value, Value]:
            """Return an operand in 8 bits and its transpose."""
            small = contiguous(one.shape, "float8_e4m3fn")
            turned = contiguous(one.shape[::-1], "float8_e4m3fn")
            if has_engine and is_cast:
                return Value(small, one.source), Value(turned, one.source)
            if not has_engine:
                tape.run("amax", (one,), contiguous((), "float32"))
            first = tape.run("cast_transpose", (one,), small, turned)
            return Value(small, first.source), Value(turned, first.source)

        left, _ = quantized(rows, is_cast=is_cast)
        right, right_t = quantized(weight, is_cast=True)
        out = tape.run("_scaled_mm", (left, right_t), contiguous((m, n), kind))

        def back(gradient: Value) -> None:
            given, given_t = quantized(gradient, is_cast=False)
            if rows.trains:
                tape.give(rows, tape.run("_scaled_mm", (given, right), contiguous((m, inner), kind)))
            if weight.trains:
                tape.give(weight, tape.run("_scaled_mm", (given_t, left), contiguous((n, inner), kind)))

        return tape.reshape(tape.node(out, back, *([left] if weight.trains else [])), *lead, n)

    def _joined(self, value: Value, residual: Value, *, dropout: bool, bias: bool = False) -> Value:
        """Add to the residual stream, after dropout if there is any."""
        tape = self.tape
        if self.setting.is_fused and (dropout or bias):
            more = [dense_like(value.tensor, value.shape, "bool")] if dropout else []
            result = contiguous(residual.shape, residual.dtype)
            return tape.fused("bias_dropout_add", (value, residual), result, *more, kept=())
        if dropout:
            value = tape.dropout(value)
        return tape.add(residual, value)

    def _heads(self, value: Value, heads: int, size: int) -> Value:
        """Return batch x heads x tokens x size."""
        batch, tokens = value.shape[:2]
        return self.tape.transpose(self.tape.reshape(value, batch, tokens, heads, size), 1, 2)

    def _turned(self, value: Value, share: float) -> Value:
        """Apply rotary positions to batch x heads x tokens x size."""
        tape, size = self.tape, value.shape[-1]
        turning = int(size * share) if share < 1 else size
        if self.setting.is_fused:
            return tape.fused("rotary", (value,), dense_like(value.tensor, value.shape, value.dtype), kept=())
        angles = contiguous((1, 1, value.shape[2], turning), self.stream)
        # All layers share them.
        cosines, sines = (Value(angles, trains=False, storage=Storage(angles.bytes, is_held=True)) for _ in range(2))
        rest = tape.narrow(value, size - turning) if turning < size else None
        part = tape.narrow(value, turning) if turning < size else value
        plain = tape.multiply(part, cosines)
        right = tape.narrow(part, turning - turning // 2)
        left = tape.narrow(part, turning // 2)
        halves = self._concatenated(tape.negate(right), left)
        turned = tape.add(plain, tape.multiply(halves, sines))
        return turned if rest is None else self._concatenated(turned, rest)

    def _concatenated(self, *values: Value) -> Value:
        """Put the last dimensions together."""
        tape = self.tape
        sizes = [value.shape[-1] for value in values]
        whole = contiguous((*values[0].shape[:-1], sum(sizes)), values[0].dtype)
        out = tape.run("cat", values, whole, dim=-1)

        def back(gradient: Value) -> None:
            for value, size in zip(values, sizes, strict=True):
                part = Tensor((*gradient.shape[:-1], size), gradient.dtype, gradient.tensor.strides)
                tape.give(value, Value(part, gradient.source))

        return tape.node(out, back)

    # Attention.

    def _attention(self, entry: Value) -> Value:
        block, tape, attention = self.layer.form.block, self.tape, self.layer.attention
        assert block is not None
        if attention is None:
            entry.trains = False
            return entry
        normed = entry if block.post_norm or block.norm == 0 else self._norm(entry)
        whole = self._gathered(normed)
        made = self._latent(whole, block, block.latent) if block.latent else self._projected(whole, block, attention)
        mixed = self._attended(*made, block, attention)
        batch, _, tokens, size = mixed.shape
        together = tape.reshape(tape.transpose(mixed, 1, 2), batch, tokens, mixed.shape[1] * size)
        out = self._scattered(self._linear(together, block.hidden, "out", bias=block.out_bias, is_cast=False))
        if block.after:
            out = self._norm(out)
        out = self._joined(out, entry, dropout=block.dropout, bias=block.out_bias)
        return self._norm(out) if block.post_norm and block.norm else out

    def _projected(self, whole: Value, block: Block, attention: Attention) -> tuple[Value, Value, Value]:
        tape, ways = self.tape, self.setting.tensor
        heads, kv_heads, size = block.heads // ways, max(1, block.kv_heads // ways), block.head_size
        is_cross = self.layer.form.role == "cross-attention"
        if block.one_qkv and not is_cross:
            if block.cached:
                # Queries are made of what is kept, too, and left out.
                whole = self._of_tokens(whole, self.tokens + block.cached)
            merged = self._linear(whole, (heads + 2 * kv_heads) * size, "qkv", bias=block.qkv_bias)
            parts = tape.split(merged, heads * size, kv_heads * size, kv_heads * size)
            if block.qk_norm == "whole":
                parts = [self._norm(parts[0]), self._norm(parts[1]), parts[2]]
            counts = (heads, kv_heads, kv_heads)
            made = [self._heads(part, count, size) for part, count in zip(parts, counts, strict=True)]
            made[0] = self._with_tokens(made[0], self.tokens)
        else:
            keys = self.tokens
            source = whole
            if is_cross:
                keys = -(-attention.keys // self.setting.context)
            elif block.cached:
                keys = self.tokens + block.cached
            if keys != whole.shape[1] or is_cross:
                source = Value(contiguous((whole.shape[0], keys, block.hidden), whole.dtype), trains=is_cross)
            made = []
            for place, (of, count) in enumerate(((whole, heads), (source, kv_heads), (source, kv_heads))):
                one = self._linear(of, count * size, "qkv"[place], bias=block.qkv_bias)
                if block.qk_norm == "whole" and place < 2:
                    one = self._norm(one)
                one = tape.reshape(one, one.shape[0], one.shape[1], count, size)
                if block.qk_norm == "head" and place < 2:
                    one = self._norm(one)
                made.append(tape.transpose(one, 1, 2))
        if block.rotary:
            made[:2] = [self._turned(one, block.rotary) for one in made[:2]]
        return made[0], made[1], made[2]

    def _latent(self, whole: Value, block: Block, latent: Latent) -> tuple[Value, Value, Value]:
        """Make queries, keys and values of narrower vectors (DeepseekV3Attention)."""
        tape, heads = self.tape, block.heads // self.setting.tensor
        size = latent.plain + latent.rotary
        queries = whole
        if latent.q_rank:
            queries = self._norm(self._linear(whole, latent.q_rank, "q_down", bias=block.qkv_bias))
        queries = self._heads(self._linear(queries, heads * size, "q_up", "q", bias=False), heads, size)
        plain, turning = tape.split(queries, latent.plain, latent.rotary)
        down = self._linear(whole, latent.kv_rank + latent.rotary, "kv_down", bias=block.qkv_bias)
        narrow, shared = tape.split(down, latent.kv_rank, latent.rotary)
        up = self._linear(self._norm(narrow), heads * (latent.plain + latent.value), "kv_up", bias=False)
        keys, values = tape.split(self._heads(up, heads, latent.plain + latent.value), latent.plain, latent.value)
        turned = self._turned(self._heads(shared, 1, latent.rotary), 1.0)
        wide = (turned.shape[0], heads, turned.shape[2], latent.rotary)
        strides = turned.tensor.strides
        spread = Tensor(wide, turned.dtype, (strides[0], 0, *strides[2:]))
        of_all = tape.view(turned, spread, lambda gradient: tape.run("sum", (gradient,), turned.tensor, dim=[1]))
        whole_queries = self._concatenated(plain, self._turned(turning, 1.0))
        return whole_queries, self._concatenated(keys, of_all), values

    def _attended(self, query: Value, key: Value, value: Value, block: Block, attention: Attention) -> Value:
        """Return attention's result, batch x heads x tokens x size."""
        if block.relative:
            return self._relative(query, key, value, block)
        if self.setting.attention == "unfused":
            return self._unfused(query, key, value, block, causal=attention.causal)
        tape = self.tape
        query, key, value = (tape.lowered(one) for one in (query, key, value))
        is_padded = self.setting.attention == "efficient"
        # A mask hides what is outside of a window; the kernel computes it all the same.
        keys = max(attention.keys, attention.queries) if is_padded else attention.keys
        key, value = (self._with_tokens(one, keys) for one in (key, value))
        grouped = query.shape[1] != key.shape[1]
        is_cross = self.layer.form.role == "cross-attention"
        has_bias = block.position_bias != "none" and not self.setting.is_fused and not is_cross
        has_mask = has_bias or is_padded
        backend: Backend = "flash"
        if self.setting.architecture != "cpu":
            backend = backend_of(
                capability(self.setting.architecture),
                (query.tensor, key.tensor, value.tensor),
                _DROPOUT if block.attention_dropout else 0.0,
                has_mask=has_mask,
                mask_trains=has_bias and block.position_bias == "learned",
                is_causal=attention.causal and not has_mask,
                enable_gqa=grouped,
                enabled=Enabled(cudnn=not is_padded),
            )
        if (self.setting.flash or self.setting.kernels == "fused") and backend == "cudnn":
            backend = "flash"
        elif self.setting.kernels == TRANSFORMER_ENGINE and backend == "efficient" and not is_padded:
            # Its backends are FlashAttention's, cuDNN's and an unfused one (`get_attention_backend` in
            # transformer_engine/pytorch/attention): cuDNN's has heads whose values are narrower.
            backend = "cudnn"
        if backend == "math":
            return self._unfused(query, key, value, block, causal=attention.causal)
        if backend == "efficient" and grouped:
            key, value = (self._repeated(one, query.shape[1]) for one in (key, value))
        return self._fused_attention(
            backend, query, key, value, block, causal=attention.causal and not has_mask, has_mask=has_mask
        )

    def _with_tokens(self, value: Value, tokens: int) -> Value:
        """Return keys or values of so many tokens: those of a window, or of other GPUs, too."""
        if value.shape[2] == tokens:
            return value
        old = value.shape
        made = dense_like(value.tensor, (*old[:2], tokens, old[3]), value.dtype)
        return self.tape.view(value, made, lambda gradient: Value(dense_like(value.tensor, old, gradient.dtype)))

    def _repeated(self, value: Value, heads: int) -> Value:
        """Copy keys or values for each head that shares them."""
        tape, old = self.tape, value.shape
        out = tape.run("clone", (value,), contiguous((old[0], heads, *old[2:]), value.dtype))

        def back(gradient: Value) -> None:
            tape.give(value, tape.run("sum", (gradient,), contiguous(old, gradient.dtype), dim=[2]))

        return tape.node(out, back)

    def _fused_attention(
        self,
        backend: Backend,
        query: Value,
        key: Value,
        value: Value,
        block: Block,
        *,
        causal: bool,
        has_mask: bool,
    ) -> Value:
        tape = self.tape
        name = f"_scaled_dot_product_{backend}_attention"
        result = dense_like(query.tensor, (*query.shape[:3], value.shape[3]), query.dtype)
        sums = contiguous((*query.shape[:3], 1), "float32")
        attributes: dict[str, object] = {
            "is_causal": causal,
            "dropout_p": _DROPOUT if block.attention_dropout else 0.0,
        }
        if self.setting.flash:
            attributes["version"] = self.setting.flash
        more = []
        if has_mask:
            shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
            more = [Value(Tensor(shape, query.dtype, (0, *contiguous(shape[1:], "").strides)), trains=False)]
        out = tape.run(name, (query, key, value, *more), result, sums, **attributes)
        kept = Value(sums, out.source)

        def back(gradient: Value) -> None:
            made = [dense_like(one.tensor, one.shape, one.dtype) for one in (query, key, value)]
            read = (gradient, query, key, value, *more, out, kept)
            first = tape.run(f"{name}_backward", read, *made, **attributes)
            for one, tensor in zip((query, key, value), made, strict=True):
                tape.give(one, Value(tensor, first.source))

        return tape.node(out, back, query, key, value, out, kept)

    def _unfused(self, query: Value, key: Value, value: Value, block: Block, *, causal: bool) -> Value:
        """Attend by products and a softmax, as transformers' eager attention."""
        tape, begin = self.tape, len(self.tape.operators)
        if query.shape[1] != key.shape[1]:
            key, value = (self._repeated(one, query.shape[1]) for one in (key, value))
        scores = tape.matmul(query, tape.transpose(key, 2, 3))
        shape = scores.shape
        if self.setting.is_fused:
            # Megatron's kernel scales, masks and normalizes.
            weights = tape.fused("scaled_masked_softmax", (scores,), contiguous(shape, scores.dtype))
        else:
            scores = tape.scale(scores)
            if block.capped:
                scores = tape.scale(tape.activation("tanh", tape.scale(scores)))
            mask = Value(Tensor((shape[0], 1, *shape[2:]), scores.dtype, (0, 0, shape[3], 1)), trains=False)
            if causal or block.position_bias != "none" or block.post_norm:
                scores = tape.add(scores, mask)
            weights = tape.cast(tape.softmax(scores, wide=causal), value.dtype)
        if block.attention_dropout:
            weights = tape.dropout(weights)
        out = tape.matmul(weights, value)
        self._scores = (begin, len(tape.operators))
        return out

    def _relative(self, query: Value, key: Value, value: Value, block: Block) -> Value:
        """Attend with encodings of relative positions, as Transformer-XL."""
        tape, begin = self.tape, len(self.tape.operators)
        bias = Value(contiguous((1, query.shape[1], 1, query.shape[3]), query.dtype))
        places = Value(contiguous(key.shape, key.dtype))
        content = tape.matmul(tape.add(query, bias), tape.transpose(key, 2, 3))
        position = tape.matmul(tape.add(query, bias), tape.transpose(places, 2, 3))
        # Rows are shifted by one each: zeros are put before them, and the whole is read otherwise. Scores are held
        # with heads innermost, products with keys: both are copied between them.
        position, content = (self._innermost(one, 1) for one in (position, content))
        position = tape.copied(self._shifted(position))
        scores = tape.scale(tape.add(content, position))
        mask = Value(Tensor(scores.shape, scores.dtype, (0, 0, scores.shape[3], 1)), trains=False)
        weights = tape.softmax(tape.add(scores, mask))
        if block.attention_dropout:
            weights = tape.dropout(weights)
        out = tape.matmul(self._innermost(weights, -1), value)
        self._scores = (begin, len(tape.operators))
        return out

    def _innermost(self, value: Value, dimension: int) -> Value:
        """Return a copy in which a dimension lies innermost in memory."""
        tape, rank = self.tape, len(value.shape)
        turned = tape.transpose(value, dimension % rank, rank - 1)
        return tape.transpose(tape.copied(turned), dimension % rank, rank - 1) if dimension >= 0 else tape.copied(value)

    def _shifted(self, value: Value) -> Value:
        """Put a column of zeros before the others."""
        out = self.tape.run("cat", (value,), dense_like(value.tensor, value.shape, value.dtype), dim=3)
        return self.tape.node(out, lambda gradient: self.tape.give(value, gradient))

    # MLPs.

    def _mlp(self, entry: Value) -> Value:
        block = self.layer.form.block
        assert block is not None
        before = block.norm if block.mlp_norm is None else block.mlp_norm
        normed = self._norm(entry) if before and not block.post_norm else entry
        if block.experts is not None:
            out = self._experts(normed, block, block.experts)
        else:
            out = self._scattered(self._dense(self._gathered(normed), block, block.ffn // self.setting.tensor))
        if block.after:
            out = self._norm(out)
        out = self._joined(out, entry, dropout=block.dropout, bias=block.mlp_bias)
        return self._norm(out) if before and block.post_norm else out

    def _dense(self, value: Value, block: Block, ffn: int) -> Value:
        tape, ffn, bias = self.tape, max(1, ffn), block.mlp_bias
        if not block.gated:
            up = self._linear(value, ffn, "up", bias=bias)
            return self._linear(self._activated(up, block), block.hidden, "down", bias=bias)
        if block.one_gate_up or self.setting.is_fused:
            merged = self._linear(value, 2 * ffn, "gate_up", "gate", "up", bias=bias)
            if self.setting.is_fused:
                wide = tape.fused("gated_activation", (merged,), contiguous((*merged.shape[:-1], ffn), merged.dtype))
            else:
                gate, up = tape.split(merged, ffn, ffn)
                wide = tape.multiply(up, self._activated(gate, block))
        else:
            gate = self._activated(self._linear(value, ffn, "gate", bias=bias), block)
            wide = tape.multiply(gate, self._linear(value, ffn, "up", bias=bias))
        return self._linear(wide, block.hidden, "down", bias=bias)

    def _activated(self, value: Value, block: Block) -> Value:
        tape = self.tape
        if self.setting.is_fused:
            return tape.fused("bias_gelu", (value,), contiguous(value.shape, value.dtype))
        if block.activation == "relu2":
            return tape.power(tape.activation("relu", value))
        if not block.composed:
            return tape.activation(block.activation, value)
        # transformers' NewGELUActivation.
        half = tape.scale(value)
        inner = tape.scale(tape.add(value, tape.scale(tape.power(value))))
        return tape.multiply(half, tape.shift(tape.activation("tanh", inner)))

    def _experts(self, value: Value, block: Block, experts: Experts) -> Value:
        """Route rows to experts (transformers/integrations/moe.py, grouped_mm_experts_forward).

        Megatron's host waits for the numbers of rows (`_maybe_dtoh_and_synchronize` in its token_dispatcher.py). Rows
        that have come from other GPUs are put in the order of experts, and back (`sort_chunks_by_idxs`). DeepEP sends
        each token once to a GPU, which copies it in that order.
        """
        tape, setting = self.tape, self.setting
        hidden, batch = block.hidden, value.shape[0]
        flat = tape.reshape(value, batch * value.shape[1], hidden)
        rows = flat.shape[0]
        logits = tape.linear(flat, experts.count, bias=experts.router_bias)
        shares = tape.softmax(tape.cast(logits, "float32"))
        few = contiguous((rows, experts.routed), "float32")
        weights = tape.run("topk", (shares,), few, contiguous((rows, experts.routed), "int64"))
        weights = tape.node(weights, lambda g: tape.give(shares, tape.run("scatter", (g,), shares.tensor)))
        if setting.is_fused:
            flat = self._dispatched(flat, contiguous((rows, experts.count), "float32"))
        with self._outside_graphs():
            joined = self._by_experts(flat, weights, block, experts)
        if experts.shared:
            joined = tape.add(joined, tape.reshape(self._dense(value, block, experts.shared), rows, block.hidden))
        return tape.reshape(joined, batch, value.shape[1], block.hidden)

    def _by_experts(self, flat: Value, weights: Value, block: Block, experts: Experts) -> Value:
        """Pass rows through their experts, and sum what they make of each, by `weights`."""
        tape, setting, kind = self.tape, self.setting, self.setting.dtype
        rows, hidden = flat.shape
        copies = rows * experts.routed
        if setting.is_fused:
            tape.run(SYNCHRONIZE, ())
        places = contiguous((copies,), "int64")
        order = tape.run("sort", (Value(places, weights.source),), places, places)
        if experts.latent:
            flat, hidden = tape.linear(flat, experts.latent, bias=block.mlp_bias), experts.latent
        routed = self._indexed(flat, (copies, hidden), order)
        groups = max(1, experts.count // setting.expert)
        # Where experts are divided among GPUs, each has whole ones; otherwise a part of each.
        whole = setting.expert > 1
        ffn = block.ffn if whole else max(1, block.ffn // setting.tensor)
        if not whole and setting.tensor > 1:
            tall = contiguous((copies * setting.tensor, hidden), routed.dtype)
            routed = tape.view(routed, tall, lambda g: Value(contiguous((copies, hidden), g.dtype), g.source))
        if whole:
            # That of the GPU that has most rows; the others wait for it.
            most = contiguous((round(copies * constant("experts.imbalance")), hidden), routed.dtype)
            routed = tape.view(routed, most, lambda g: Value(contiguous((copies, hidden), g.dtype), g.source))
        is_sorted = setting.is_fused and setting.dispatch == "alltoall" and whole and groups > 1
        if is_sorted:
            routed = tape.fused("sort_chunks", (routed,), routed.tensor, kept=())
        wide = self._grouped(routed, groups, (2 if block.gated else 1) * ffn, "gate_up" if block.gated else "up")
        if not block.gated:
            inner = self._activated(wide, block)
        elif setting.is_fused:
            inner = tape.fused("gated_activation", (wide,), contiguous((wide.shape[0], ffn), wide.dtype))
        else:
            gate, up = tape.split(wide, ffn, ffn)
            inner = tape.multiply(self._activated(gate, block), up)
        out = self._grouped(inner, groups, hidden, "down")
        if is_sorted:
            out = tape.fused("sort_chunks", (out,), out.tensor, kept=())
        if out.shape[0] != copies:
            made = contiguous((copies, hidden), out.dtype)
            tall = out.tensor
            out = tape.view(out, made, lambda g: Value(contiguous(tall.shape, g.dtype), g.source))
        if setting.is_fused:
            joined = tape.fused("unpermute", (out,), contiguous((rows, hidden), kind))
        else:
            share = Value(contiguous((copies, 1), "float32"), weights.source)
            share = tape.node(share, lambda g: tape.give(weights, Value(weights.tensor, g.source)))
            weighted = tape.multiply(out, share)
            joined = tape.cast(self._summed_copies(weighted, order, rows, experts.routed), kind)
        if experts.latent:
            joined = tape.linear(joined, block.hidden, bias=block.mlp_bias)
        return joined

    def _dispatched(self, value: Value, shares: Tensor) -> Value:
        """Run the small kernels of Megatron's router and dispatcher, over the shares of all experts, in both passes."""
        tape, one_pass = self.tape, round(constant("experts.kernels") / 2)

        def run() -> None:
            for _ in range(one_pass):
                tape.run("mul", (Value(shares, trains=False),), shares)

        def back(gradient: Value) -> None:
            run()
            tape.give(value, gradient)

        run()
        return tape.node(value.seen_as(value.tensor), back)

    def _indexed(self, value: Value, shape: Sequence[int], order: Value) -> Value:
        tape = self.tape
        out = tape.run("index", (value, order), contiguous(shape, value.dtype))

        def back(gradient: Value) -> None:
            zeros = tape.run("new_zeros", (gradient,), contiguous(value.shape, gradient.dtype))
            made = contiguous(value.shape, gradient.dtype)
            tape.give(value, tape.run("index_put", (zeros, order, gradient), made, accumulate=True))

        return tape.node(out, back, order)

    def _summed_copies(self, value: Value, order: Value, rows: int, routed: int) -> Value:
        """Put rows into their order again, and sum those of a token."""
        tape, hidden = self.tape, value.shape[-1]
        sorted_rows = self._indexed(value, value.shape, order)
        out = tape.run("sum", (sorted_rows,), contiguous((rows, hidden), value.dtype), dim=[1])

        def back(gradient: Value) -> None:
            spread = Tensor((rows, routed, hidden), gradient.dtype, (hidden, 0, 1))
            copied = tape.run("clone", (Value(spread, gradient.source),), contiguous(spread.shape, gradient.dtype))
            tape.give(sorted_rows, Value(contiguous(value.shape, gradient.dtype), copied.source))

        return tape.node(out, back)

    def _grouped(self, rows: Value, groups: int, outer: int, name: str) -> Value:
        """Multiply rows by the weights of their experts, and by their adapters if they have some."""
        tape, setting, adapter = self.tape, self.setting, self.setting.adapter
        is_wide = any(one.unquantized for one in self.layer.tensors)
        quantization = None if is_wide else setting.quantization
        out = self._grouped_products(rows, groups, outer, held=self.stream, quantization=quantization)
        if adapter is None or not _is_among((f"experts.{name}",), self.adapted):
            return out
        base, tape.is_frozen = (tape.is_frozen, tape.autocast), False
        own = tape.cast(rows, setting.adapter_dtype)
        tape.autocast = setting.dtype if setting.adapter_autocast else ""
        narrow = self._grouped_products(own, groups, adapter.rank, held=setting.adapter_dtype)
        added = tape.scale(self._grouped_products(narrow, groups, outer, held=setting.adapter_dtype))
        total = tape.cast(tape.add(out, added), out.dtype)
        tape.is_frozen, tape.autocast = base
        return total

    def _grouped_products(
        self, rows: Value, groups: int, outer: int, *, held: str, quantization: names.Quantization | None = None
    ) -> Value:
        """Multiply rows by the matrices of their experts, which are held in a dtype or in few bits.

        Transformer Engine and grouped_gemm launch a product of cuBLAS for each expert, on several streams.
        """
        tape, kind = self.tape, rows.dtype
        rows = tape.lowered(rows)
        count, inner = rows.shape
        name = "_scaled_grouped_mm" if self.setting.eight_bits else "_grouped_mm"
        is_converted = quantization is not None
        if is_converted:
            weight = self._converted(contiguous((groups, outer, inner), rows.dtype))
        else:
            weight = tape.lowered(tape.parameter((groups, outer, inner), held))
        turned = weight.seen_as(Tensor((groups, inner, outer), weight.dtype, (inner * outer, 1, inner)))
        ends = Value(contiguous((groups,), "int32"), trains=False)
        dtype = "float8_e4m3fn" if self.setting.eight_bits else rows.dtype

        def small(value: Value) -> Value:
            if not self.setting.eight_bits:
                return value
            tape.run("amax", (value,), contiguous((), "float32"))
            return tape.run("_to_copy", (value,), dense_like(value.tensor, value.shape, dtype))

        def run(left: Value, right: Value, made: Tensor) -> Value:
            tape.launches = groups if self.setting.is_fused else 1
            product = tape.run(name, (left, right, ends), made)
            tape.launches = 1
            return product

        out = run(small(rows), small(turned), contiguous((count, outer), rows.dtype))

        def back(gradient: Value) -> None:
            given = small(gradient)
            if weight.trains:
                left = Value(Tensor((outer, count), given.dtype, (1, outer)), given.source)
                tape.give(weight, run(left, small(rows), contiguous((groups, outer, inner), rows.dtype)))
            if rows.trains:
                again = self._converted(weight.tensor) if is_converted else weight
                tape.give(rows, run(given, small(again), contiguous((count, inner), rows.dtype)))

        needed = [*([rows] if weight.trains else []), *([weight] if rows.trains and not is_converted else [])]
        out = tape.node(out, back, *needed)
        return tape.cast(out, kind) if is_converted else out

    # Layers by steps.

    def _steps(self, entry: Value) -> Value:
        batch, current, read = self.setting.batch, [entry], entry
        for step in self.layer.form.steps:
            if isinstance(step, Product):
                if not step.again:
                    read = self._fitted(current, (batch, step.rows, step.inner))
                    current = []
                current.append(self._product(read, step))
            elif not isinstance(step, Weight):
                current = [self._step(step, current, entry)]
        out = self._fitted(current, current[0].shape)
        if self.layer.form.selects:
            out.trains = False
        return out

    def _fitted(self, values: Sequence[Value], shape: tuple[int, ...], dtype: str = "") -> Value:
        """Return a value of a shape, and of a type, that stands for others: each of them gets its gradient."""
        dtype = dtype or values[0].dtype
        if len(values) == 1 and values[0].shape == shape and values[0].dtype == dtype:
            return values[0]
        tensor = contiguous(shape, dtype)
        is_view = len(values) == 1 and tensor.bytes == values[0].tensor.bytes
        storage = values[0].storage if is_view else Storage(tensor.bytes)
        out = Value(tensor, values[-1].source, any(value.trains for value in values), storage)

        def back(gradient: Value) -> None:
            for value in values:
                self.tape.give(value, Value(contiguous(value.shape, value.dtype), gradient.source))

        return self.tape.node(out, back)

    def _product(self, read: Value, step: Product) -> Value:
        if step.groups == 1:
            return self._linear(read, step.outer, step.name, bias=step.bias)
        batch, inner, outer = read.shape[0], step.inner // step.groups, step.outer // step.groups
        rows = self._fitted([read], (1, step.groups, batch * step.rows, inner))
        weight = self.tape.parameter((1, step.groups, inner, outer), read.dtype)
        return self._fitted([self.tape.matmul(rows, weight)], (batch, step.rows, step.outer))

    def _step(self, step: Step, current: Sequence[Value], entry: Value) -> Value:
        tape, batch, kind = self.tape, self.setting.batch, entry.dtype

        def fit(*shape: int) -> Value:
            return self._fitted(current, (batch, *shape))

        match step:
            case Norm():
                value = fit(step.rows, step.width)
                return self._norm(value) if step.rms else tape.layer_norm(value)
            case Pointwise(what="mul" | "add"):
                value = fit(step.rows, step.width)
                other = Value(contiguous(value.shape, value.dtype), trains=False)
                return tape.multiply(value, other) if step.what == "mul" else tape.add(value, other)
            case Pointwise(what="softmax"):
                return tape.softmax(fit(step.rows, step.width))
            case Pointwise(what="topk"):
                value = fit(step.rows, step.width)
                return tape.run("topk", (value,), value.tensor, contiguous(value.shape, "int64"))
            case Pointwise():
                return tape.activation(step.what, fit(step.rows, step.width))
            case Attend():
                return self._attend(step, fit(step.heads, step.queries, step.size))
            case Convolve():
                value = fit(step.rows, step.width)
                weight = tape.parameter((step.width, step.kernel), value.dtype)
                return tape.fused("causal_conv1d", (value, weight), contiguous(value.shape, value.dtype))
            case Batched():
                left = self._fitted(current, (batch, step.matrices, step.rows, step.inner))
                other = Value(contiguous((batch, step.matrices, step.inner, step.outer), kind), trains=left.trains)
                return tape.matmul(left, other)
            case Scan():
                states = self._fitted(current, (batch, step.states))
                wide = tape.fused("chunk_scan", (states,), contiguous(states.shape, "float32"))
                # What reads the states converts them as it loads them (mamba-ssm's _chunk_scan_fwd_kernel).
                return self._fitted([wide], states.shape, states.dtype)
            case Add():
                return self._joined(
                    fit(step.rows, step.width), self._fitted([entry], (batch, step.rows, step.width)), dropout=False
                )
        raise AssertionError(step)

    def _attend(self, step: Attend, query: Value) -> Value:
        batch, kv_heads = query.shape[0], step.kv_heads or step.heads
        tensor = contiguous((batch, kv_heads, step.keys, step.size), query.dtype)
        key, value = Value(tensor, trains=False), Value(tensor, trains=False)
        block = Block(self.layer.hidden, step.heads, kv_heads, step.size, 0, step.queries)
        attention = Attention(step.queries, step.keys, step.heads, step.size, step.causal)
        return self._attended(query, key, value, block, attention)

    # Ends of the model.

    def _embedding(self) -> Value:
        tape, layer, setting = self.tape, self.layer, self.setting
        batch, rows, hidden = setting.batch, self.rows, layer.hidden
        tables = [one for one in (*layer.shared, *layer.tensors) if len(one.shape) == 2 and one.shape[1] == hidden]
        # A trained copy is read instead of its original.
        originals = {one.name.replace(f".{SAVED}.", ".") for one in tables if one.is_saved}
        tables = [one for one in tables if one.name not in originals]
        patches = next((one for one in layer.tensors if len(one.shape) == 4), None)
        values: list[Value] = []
        for table in tables:
            is_words = "tokens" in table.name or "types" in table.name
            if patches is not None:
                values.append(tape.parameter((1, rows, hidden), self.stream))
                continue
            shape = (batch if is_words else 1, rows, hidden)
            # A tied table's gradient is that of the head, too; where words are divided, each GPU has a part.
            size = -(-table.shape[0] // setting.tensor) if is_words else table.shape[0]
            with self._parameters(are_frozen=not table.trains):
                values.append(self._looked_up(contiguous(shape, self.stream), size))
        if patches is not None:
            values.insert(0, self._patches(patches.shape))
        if not values:
            values = [Value(contiguous((batch, rows, hidden), self.stream))]
        out = values[0]
        for other in values[1:]:
            out = tape.add(out, other)
        if any("norm" in one.name for one in layer.tensors):
            out = tape.layer_norm(out)
        return tape.dropout(out) if layer.form.dropout else out

    def _looked_up(self, tensor: Tensor, rows: int) -> Value:
        tape = self.tape
        ids = Value(contiguous(tensor.shape[:2], "int64"), trains=False)
        table = contiguous((rows, tensor.shape[2]), tensor.dtype)
        out = tape.run("embedding", (tape.parameter(table.shape, table.dtype), ids), tensor)

        def back(gradient: Value) -> None:
            tape.run("embedding_dense_backward", (gradient, ids), table)

        return tape.node(out, back)

    def _patches(self, shape: tuple[int, ...]) -> Value:
        tape, hidden = self.tape, shape[0]
        side = math.isqrt(self.layer.tokens - 1)
        image = contiguous((self.setting.batch, shape[1], side * shape[2], side * shape[3]), self.setting.dtype)
        weight, bias = tape.parameter(shape, self.setting.dtype), tape.parameter((hidden,), self.setting.dtype)
        made = contiguous((self.setting.batch, hidden, side, side), self.setting.dtype)
        attributes = {
            "stride": list(shape[2:]),
            "padding": [0, 0],
            "dilation": [1, 1],
            "groups": 1,
            "transposed": False,
        }
        pixels = Value(image, trains=False)
        out = tape.run("convolution", (pixels, weight, bias), made, **attributes)

        def back(gradient: Value) -> None:
            read = (Value(made, gradient.source), pixels, weight)
            mask = [False, True, True]
            tape.run("convolution_backward", read, weight.tensor, bias.tensor, **attributes, output_mask=mask)

        whole = contiguous((self.setting.batch, self.rows, hidden), self.stream)
        flat = out.seen_as(contiguous((self.setting.batch, side * side, hidden), self.stream))
        return tape.node(tape.run("cat", (flat,), whole, dim=1), back, pixels)

    def _head(self, entry: Value) -> Value:
        """Return the loss of a head: products over the vocabulary, perhaps after BERT's transform of each row."""
        tape, layer, setting = self.tape, self.layer, self.setting
        value = self._gathered(entry)
        *before, last = layer.matmuls
        rows = max(1, -(-round(last.rows) // setting.context))
        if rows != value.shape[1]:
            value = self._of_tokens(value, rows)
        for one in before:
            value = tape.activation("gelu", tape.linear(value, one.outer, bias=True))
            value = tape.layer_norm(value)
        is_biased = any(tensor.name.endswith("head.bias") for tensor in layer.tensors)
        outer = -(-last.outer // setting.tensor)
        count = value.shape[0] * value.shape[1]
        flat = tape.reshape(value, count, value.shape[2])
        table = contiguous((outer, value.shape[2]), self.stream)
        if layer.form.tied and not tape.is_frozen:
            flat = self._with_sum(flat, table)
        parts = tape.chunked(flat, min(setting.chunks or 1, count))
        # The weight has a gradient of each chunk.
        parts[1:] = parts[1:] if tape.is_frozen else [self._with_sum(part, table) for part in parts[1:]]
        losses = [self._loss(tape.linear(part, outer, bias=is_biased)) for part in parts]
        out = losses[0]
        for loss in losses[1:]:
            out = tape.add(out, loss)
        return out

    def _with_sum(self, value: Value, table: Tensor) -> Value:
        """Return a value before whose gradient two gradients of a table are added."""

        def back(gradient: Value) -> None:
            self.tape.run("add", (Value(table), Value(table)), table, alpha=1)
            self.tape.give(value, gradient)

        return self.tape.node(Value(value.tensor, value.source), back)

    def _plain(self, entry: Value) -> Value:
        """Return the result of products, one after the other, and the loss of what are logits."""
        tape, layer = self.tape, self.layer
        if not layer.matmuls:
            entry.trains = False
            return entry
        value = self._of_tokens(entry, max(1, round(layer.matmuls[0].rows)))
        for place, one in enumerate(layer.matmuls):
            value = tape.linear(value, one.outer, bias=True)
            if place + 1 < len(layer.matmuls):
                value = tape.activation("tanh", value)
        flat = tape.reshape(value, value.shape[0] * value.shape[1], value.shape[2])
        return self._loss(flat) if layer.logits else flat

    def _loss(self, logits: Value) -> Value:
        """Return cross-entropy: in FP32 where logits are upcast, as transformers' losses of decoders do."""
        tape = self.tape
        if self.setting.is_fused or self.setting.chunks is not None:
            sums = contiguous((logits.shape[0],), "float32")
            return tape.fused("cross_entropy", (logits,), sums)
        if self.layer.form.causal if self.setting.wide_loss is None else self.setting.wide_loss:
            logits = tape.cast(logits, "float32")
        logs = tape.softmax(logits, "_log_softmax")
        labels = Value(contiguous(logs.shape[:1], "int64"), trains=False)
        total = contiguous((), logs.dtype)
        loss = tape.run("nll_loss_forward", (logs, labels), total, total)

        def back(gradient: Value) -> None:
            read = (gradient, logs, labels, Value(total))
            tape.give(logs, tape.run("nll_loss_backward", read, contiguous(logs.shape, logs.dtype)))

        return tape.node(loss, back, logs)
