"""Layers that are given step by step, with the tensors, products and activations that follow from their steps.

Of activations, an operator keeps what its backward pass reads: a product or a norm its argument, a multiplication both,
attention queries, keys, values and its result. A value that two operators read is kept once.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.catalog.models.layers import Activations, Attention, Layer, Matmul, Tensor
from paceline.catalog.models.steps import Attend, Batched, Convolve, Norm, Pointwise, Product, Scan, Step, Weight
from paceline.catalog.models.traits import Form


def layer_of(
    name: str,
    steps: Sequence[Step],
    *,
    tokens: int,
    hidden: int,
    block: str = "",
    trains: bool = True,
    more: tuple[Tensor, ...] = (),
) -> Layer:
    """Return the layer of some steps.

    Args:
        name: Its name, which begins those of its tensors.
        steps: In order.
        tokens: Rows of a sample that pass through its weights.
        hidden: The width of the residual stream.
        block: The block that checkpointing and sharding treat as one.
        trains: Whether a gradient passes it: not where its result chooses keys.
        more: Tensors of other layers' modules that it has.
    """
    attends = [step for step in steps if isinstance(step, Attend)]
    attentions = [Attention(one.queries, one.keys, one.heads, one.size, one.causal) for one in attends]
    # FLOPs of a layer are three times those of its forward pass, but without a backward pass once.
    own = attentions[0] if attentions and trains else None
    mixed = sum(step.flops for step in steps if isinstance(step, Batched))
    mixed += sum(one.flops for one in attentions if one is not own) / (1 if trains else 3)
    return Layer(
        name,
        (*(tensor for step in steps for tensor in _tensors(name, step)), *more),
        tokens,
        hidden,
        tuple(_matmul(step) for step in steps if isinstance(step, Product)),
        own,
        block=block,
        kept=_kept(steps, tokens * hidden) if trains else Activations(),
        mixed_flops=mixed,
        form=Form("steps", steps=tuple(steps), selects=not trains),
    )


def _matmul(step: Product) -> Matmul:
    return Matmul(step.rows, step.inner, step.outer // step.groups)


def _tensors(name: str, step: Step) -> tuple[Tensor, ...]:
    if isinstance(step, Weight):
        return (Tensor(f"{name}.{step.name}", step.shape),)
    if isinstance(step, Norm):
        return tuple(Tensor(f"{name}.{step.name}.{part}", (step.width,)) for part in ("weight", "bias")[: step.vectors])
    if isinstance(step, Product):
        weight = Tensor(f"{name}.{step.name}.weight", (step.outer, step.inner // step.groups))
        return (weight, *((Tensor(f"{name}.{step.name}.bias", (step.outer,)),) * step.bias))
    if isinstance(step, Convolve):
        weight = Tensor(f"{name}.{step.name}.weight", (step.width, 1, step.kernel))
        return (weight, *((Tensor(f"{name}.{step.name}.bias", (step.width,)),) * step.bias))
    return ()


def _kept(steps: Sequence[Step], entry: int) -> Activations:
    inputs = products = pointwise = outs = attended = wide = 0.0
    through, most, source = float(entry), float(entry), "entry"
    separate = 0.0
    for step in steps:
        size = float(entry)
        if isinstance(step, Product):
            size = step.rows * step.inner
            outs += step.rows * step.outer
            most = max(most, size + step.rows * step.outer)
            kept = 0.0 if step.again else size
        elif isinstance(step, Norm):
            kept = step.rows * step.width
            if step.rms:
                separate += kept
                wide += kept
        elif isinstance(step, Pointwise):
            kept = {"mul": 2.0, "add": 0.0, "topk": 0.0}.get(step.what, 1.0) * step.rows * step.width
        elif isinstance(step, Attend):
            kv = step.kv_heads or step.heads
            kept = step.size * (step.queries * step.heads + 2.0 * step.keys * kv)
            attended += step.size * step.queries * step.heads
            most = max(most, 2 * kept)
        elif isinstance(step, Convolve):
            kept = step.rows * step.width
        elif isinstance(step, Batched):
            # One operand; the other is the result of the step before.
            kept = 0.0 if step.again else float(step.matrices) * step.inner * step.outer
        elif isinstance(step, Scan):
            # States are computed again in the backward pass.
            kept = 0.0
        else:
            continue
        if source == "entry" and not isinstance(step, Attend):
            inputs, source = through, "pointwise" if isinstance(step, Norm) else "products"
            pointwise += max(0.0, kept - through)
            continue
        if source == "products" or isinstance(step, Attend | Batched | Scan):
            products += kept
        else:
            pointwise += kept
        source = "pointwise" if isinstance(step, Norm | Pointwise) else "products"
    return Activations(
        inputs=inputs,
        products=products,
        alternate=outs / 2 + attended,
        pointwise=pointwise,
        separate=separate,
        widened=wide,
        stream=through,
        gradients=most,
    )
