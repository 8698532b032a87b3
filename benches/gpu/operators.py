"""Times single operators on a GPU, forward and backward apart: `operators.py OUT.csv [--seconds N]`.

A line of the CSV is an operator: section, name, shape, dtype, median microseconds, FLOPs, bytes that it has to move,
and how it is run. A buffer larger than the L2 cache is written between calls; times are by CUDA events. `--tiny` is for
a test on the CPU, whose times mean nothing.
"""

import argparse
import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = ("section", "operator", "shape", "dtype", "us", "flops", "bytes", "note")
FLUSHED = 256 << 20
"""Bytes that are written between calls: more than the L2 of any GPU."""
HIDDEN = (768, 1024, 1600, 2048, 4096, 5120, 8192)
"""Widths of models: a product of each with itself, with four times as many and with a quarter."""
VOCABULARIES = (30522, 32000, 50257, 50304, 128256, 151936)
ROWS = (256, 1024, 4096, 16384)
HEADS = ((16, 16, 64), (32, 8, 64), (32, 8, 128), (64, 8, 128), (16, 16, 256))
"""Of queries, of keys and values, and their size."""
TOKENS = (512, 1024, 4096, 8192)
IMAGES = (
    *((3, 224, 64, 7, 2, 1), (64, 56, 64, 1, 1, 1), (64, 56, 64, 3, 1, 1), (256, 56, 64, 1, 1, 1)),
    *((512, 28, 128, 1, 1, 1), (256, 14, 256, 3, 1, 1), (512, 7, 512, 3, 1, 1), (64, 224, 64, 3, 1, 1)),
    *((128, 56, 128, 7, 1, 128), (512, 14, 512, 7, 1, 512), (1024, 7, 1024, 7, 1, 1024), (256, 14, 256, 3, 1, 32)),
)
"""Channels, width, channels of the result, window, stride, groups; the last four are depthwise and grouped."""


@dataclass(frozen=True)
class Case:
    """An operator to time."""

    section: str
    operator: str
    shape: Sequence[int]
    dtype: str
    call: Callable[[], object]
    flops: float = 0.0
    moved: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """Where and how operators are timed."""

    device: str
    tiny: bool

    def some(self, *shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
        """Return random numbers."""
        return torch.randn(*shape, device=self.device, dtype=torch.float32).to(dtype).requires_grad_(grad)

    def median_us(self, call: Callable[[], object], target_s: float = 0.012) -> float:
        """Return the median time of a call in microseconds, of 5 to 30 calls in about `target_s`."""
        call()
        if self.device == "cpu":
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e6
        flushed = torch.empty(FLUSHED, dtype=torch.int8, device=self.device)
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        count = max(5, min(30, int(target_s / max(time.perf_counter() - began, 3e-6))))
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for begin, end in events:
            flushed.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in events) * 1e3


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _backward(result: Tensor, inputs: Sequence[Tensor]) -> Callable[[], object]:
    gradient = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, inputs, gradient, retain_graph=True)


def products(bench: Bench) -> Iterator[Case]:
    """Matrix products in the layouts of the forward pass and of both gradients; FP32 with and without TF32; FP8."""
    widths = [(n, k) for h in HIDDEN for n, k in ((h, h), (4 * h, h), (h, 4 * h), (h // 4, h))]
    widths += [(vocabulary, h) for vocabulary in VOCABULARIES for h in (1024, 4096)]
    for m in (64,) if bench.tiny else ROWS:
        for n, k in widths[:2] if bench.tiny else widths:
            left, right, gradient = bench.some(m, k), bench.some(n, k), bench.some(m, n)
            size = (2.0 * m * n * k, 2.0 * (m * k + n * k + m * n))
            for name, call in (
                ("forward", partial(functional.linear, left, right)),
                ("data", partial(torch.mm, gradient, right)),
                ("weight", partial(torch.mm, gradient.t(), left)),
            ):
                yield Case("products", name, (m, n, k), "bfloat16", call, *size)
    for is_tf32 in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = is_tf32
        for n, k in widths[:2] if bench.tiny else widths[:: len(HIDDEN)]:
            m = 64 if bench.tiny else 4096
            left, right = bench.some(m, k, dtype=torch.float32), bench.some(n, k, dtype=torch.float32)
            size = (2.0 * m * n * k, 4.0 * (m * k + n * k + m * n))
            dtype = "tf32" if is_tf32 else "float32"
            yield Case("products", "forward", (m, n, k), dtype, partial(functional.linear, left, right), *size)


def _attend(query: Tensor, key: Tensor, value: Tensor, kernel: SDPBackend | None, **options: Any) -> Tensor:  # noqa: ANN401
    options["enable_gqa"] = query.shape[1] != key.shape[1]
    if kernel is None:
        return functional.scaled_dot_product_attention(query, key, value, **options)
    with sdpa_kernel(kernel):
        return functional.scaled_dot_product_attention(query, key, value, **options)


def attention(bench: Bench) -> Iterator[Case]:
    """Attention by each kernel that takes the arguments, causal or not, with dropout or without."""
    kernels = (None, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
    for heads, kept, size in HEADS[:1] if bench.tiny else HEADS:
        for tokens in (64,) if bench.tiny else TOKENS:
            batch = 1 if bench.tiny else max(1, 8192 // tokens)
            query, key, value = (bench.some(batch, h, tokens, size, grad=True) for h in (heads, kept, kept))
            for is_causal, dropout, kernel in (
                (is_causal, dropout, kernel)
                for is_causal in (True, False)
                for dropout in (0.0, 0.1)
                for kernel in (kernels[:1] if bench.tiny else kernels)
            ):
                shape = (batch, heads, kept, tokens, size)
                name = "torch's choice" if kernel is None else kernel.name
                note = f"{name}, {'causal' if is_causal else 'full'}, dropout {dropout:g}"
                run = partial(_attend, query, key, value, kernel, is_causal=is_causal, dropout_p=dropout)
                flops = 4.0 * batch * heads * tokens**2 * size * (0.5 if is_causal else 1)
                moved = 4.0 * batch * tokens * size * (heads + kept)
                yield Case("attention", "forward", shape, "bfloat16", run, flops, moved, note)
                back = _backward(run(), (query, key, value))
                yield Case("attention", "backward", shape, "bfloat16", back, 2.5 * flops, 2 * moved, note)


def _loss(logits: Tensor, labels: Tensor, dtype: torch.dtype) -> Tensor:
    return functional.cross_entropy(logits.to(dtype), labels)


def memory_bound(bench: Bench) -> Iterator[Case]:
    """Element-wise operators, norms, softmax, the loss and embeddings; their backward passes."""
    one: dict[str, Callable[[Tensor], Tensor]] = {
        "clone": torch.clone,
        "gelu": functional.gelu,
        "silu": functional.silu,
        "tanh": torch.tanh,
        "dropout": lambda it: functional.dropout(it, 0.1),
        "softmax": lambda it: functional.softmax(it, -1),
        "layer_norm": lambda it: functional.layer_norm(it, it.shape[-1:]),
        "rms_norm": lambda it: functional.rms_norm(it, it.shape[-1:]),
        "transposed copy": lambda it: it.t().contiguous(),
        "sum of columns": lambda it: it.sum(0),
    }
    sizes = ((64, 64),) if bench.tiny else ((4096, 1024), (8192, 4096), (4096, 14336), (65536, 1024), (200704, 96))
    for rows, columns in sizes:
        for dtype in (torch.bfloat16, torch.float32):
            image = bench.some(rows, columns, dtype=dtype, grad=True)
            moved, shape = 2.0 * image.numel() * dtype.itemsize, (rows, columns)
            for name, call in one.items():
                yield Case("memory", name, shape, _named(dtype), partial(call, image), 0, moved)
                back = _backward(call(image), (image,))
                yield Case("memory", f"{name}, backward", shape, _named(dtype), back, 0, 1.5 * moved)
            yield Case("memory", "add", shape, _named(dtype), partial(torch.add, image, image), 0, 1.5 * moved)
    for vocabulary in (100,) if bench.tiny else VOCABULARIES:
        rows = 64 if bench.tiny else 4096
        logits = bench.some(rows, vocabulary, grad=True)
        labels = torch.randint(0, vocabulary, (rows,), device=bench.device)
        moved, shape = 2.0 * logits.numel(), (rows, vocabulary)
        for name, upcast in (("loss", torch.bfloat16), ("loss, in FP32", torch.float32)):
            loss = partial(_loss, logits, labels, upcast)
            yield Case("memory", name, shape, "bfloat16", loss, 0, moved)
            yield Case("memory", f"{name}, backward", shape, "bfloat16", _backward(loss(), (logits,)), 0, 2 * moved)
        table = bench.some(vocabulary, 1024 if not bench.tiny else 16, grad=True)
        result = functional.embedding(labels, table)
        size = (0.0, 2.0 * table.numel())
        yield Case("memory", "embedding, backward", shape, "bfloat16", _backward(result, (table,)), *size)


def convolutions(bench: Bench) -> Iterator[Case]:
    """Convolutions in channels_last: dense, grouped and depthwise; batch norm."""
    torch.backends.cudnn.benchmark = True
    for channels, width, results, window, stride, groups in IMAGES[1:2] if bench.tiny else IMAGES:
        batch = 1 if bench.tiny else 128
        image = bench.some(batch, channels, width, width).to(memory_format=torch.channels_last).requires_grad_()
        weight = bench.some(results, channels // groups, window, window).to(memory_format=torch.channels_last)
        weight.requires_grad_()
        run = partial(functional.conv2d, image, weight, None, stride, window // 2, 1, groups)
        result = run()
        flops = 2.0 * result.numel() * weight[0].numel()
        moved = 2.0 * (image.numel() + result.numel() + weight.numel())
        shape = (batch, channels, width, results, window, stride, groups)
        yield Case("convolutions", "forward", shape, "bfloat16", run, flops, moved)
        yield Case("convolutions", "data", shape, "bfloat16", _backward(result, (image,)), flops, moved)
        yield Case("convolutions", "weight", shape, "bfloat16", _backward(result, (weight,)), flops, moved)
        norm = torch.nn.BatchNorm2d(channels, device=bench.device)
        normal = norm(image)
        size = (0.0, 4.0 * image.numel())
        yield Case("convolutions", "batch norm", shape[:3], "bfloat16", partial(norm, image), *size)
        yield Case("convolutions", "batch norm, backward", shape[:3], "bfloat16", _backward(normal, (image,)), *size)


def optimizers(bench: Bench) -> Iterator[Case]:
    """Steps of optimizers over many tensors, and clipping."""
    for count, size in ((2, 64),) if bench.tiny else ((200, 1 << 20), (290, 1 << 22)):
        for dtype in (torch.bfloat16, torch.float32):
            held = [torch.nn.Parameter(bench.some(size, dtype=dtype)) for _ in range(count)]
            for one in held:
                one.grad = torch.randn_like(one)
            whole = float(count * size * dtype.itemsize)
            for name, passes, step in (
                ("AdamW, fused", 7, torch.optim.AdamW(held, fused=True).step),
                ("AdamW, foreach", 7, torch.optim.AdamW(held, foreach=True).step),
                ("SGD with momentum", 5, torch.optim.SGD(held, lr=0.1, momentum=0.9).step),
                ("clipping", 3, partial(torch.nn.utils.clip_grad_norm_, held, 1.0)),
            ):
                yield Case("optimizers", name, (count, size), _named(dtype), step, 0, passes * whole)


def launches(bench: Bench) -> Iterator[Case]:
    """Operators so small that the host is the limit."""
    image = bench.some(64, 64, dtype=torch.float32, grad=True)
    layer, norm = torch.nn.Linear(64, 64, device=bench.device), torch.nn.LayerNorm(64, device=bench.device)

    def chain() -> None:
        result = image
        for _ in range(100):
            result = norm(layer(result))
        result.sum().backward()

    yield Case("launches", "100 linear layers and norms, both passes", (64, 64), "float32", chain)


SECTIONS = (products, attention, memory_bound, convolutions, optimizers, launches)


def main() -> None:
    """Time what there is time for, each section for its part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    bench = Bench("cpu" if options.tiny else "cuda", options.tiny)
    with options.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for section in SECTIONS:
            ends = time.monotonic() + options.seconds / len(SECTIONS)
            for case in section(bench):
                if time.monotonic() > ends:
                    print(f"{section.__name__}: not all in its part of the time", file=sys.stderr)
                    break
                shape = "x".join(map(str, case.shape))
                try:
                    us, note = f"{bench.median_us(case.call):.2f}", case.note
                except RuntimeError as error:  # No kernel takes these arguments, or there is no memory.
                    us, note = "", f"{case.note} refused: {error!s:.60}"
                own = (case.section, case.operator, shape, case.dtype, us, int(case.flops), int(case.moved), note)
                writer.writerow(own)


if __name__ == "__main__":
    main()
