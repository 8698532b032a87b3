"""Operators of configurations: those that transformers' modules dispatch, what divides them, and their times."""

import json
import lzma
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from paceline.catalog.adapters import is_quantized
from paceline.catalog.models.config import Config, find_config
from paceline.catalog.models.exchanges import Links
from paceline.catalog.models.families import model_of
from paceline.catalog.models.modules import Setting, before_of, operators_of
from paceline.catalog.models.spec import workload_of
from paceline.catalog.models.traits import TRANSFORMER_ENGINE as ENGINE
from paceline.catalog.models.updates import update_of
from paceline.catalog.recipes import recipe_of
from paceline.operators.constants import constant
from paceline.operators.operator import SYNCHRONIZE, Operator, Tensor, is_attention
from paceline.operators.queues import Program, Queues

LINKS = Links(8, 44e9)
RECORDED = Path(__file__).parent / "data" / "operators-of-models.json.xz"
"""Made by `scripts/record_operators.py` with torch 2.15 and transformers 5.17."""
FORWARD, BACKWARD = "forward", "backward"
WITHIN = {"t5": 0.22}
"""Bytes of memory-bound operators that may be missing; T5's relative positions and dropout in its MLP are left out."""


@cache
def recorded() -> dict:
    """Return what models dispatched, by their type."""
    return json.loads(lzma.decompress(RECORDED.read_bytes()))


def recorded_operators(kind: str) -> list[Operator]:
    """Return the operators of a step that was recorded, without the optimizer's."""

    def tensors(rows):
        return tuple(Tensor(tuple(shape), dtype, tuple(strides)) for shape, dtype, strides in rows)

    return [
        Operator(name, tensors(read), tensors(written), attributes, phase=phase)
        for name, phase, read, written, attributes in recorded()[kind]["operators"]
        if phase != "update"
    ]


def computed_operators(kind: str) -> list[Operator]:
    """Return those of its configuration."""
    case = recorded()[kind]
    model = model_of(Config(kind, kind, case["config"]), case["sequence"])
    setting = Setting("hopper", case["batch"], "bfloat16")
    listed = [operators_of(layer, setting) for layer in model.layers]
    before = before_of(model.layers[0], setting) if model.layers[1].form.block.causal else ()
    return [
        *before,
        *(one for it in listed for one in it.forward),
        *(one for it in listed[::-1] for one in it.backward),
    ]


def is_product(operator: Operator) -> bool:
    return "mm" in operator.name or "convolution" in operator.name or is_attention(operator.name)


def products(operators: list[Operator]) -> Counter:
    """Return matrix products and attention with the shapes and dtypes of their operands."""
    return Counter(
        (one.name, one.phase, *((tensor.shape, tensor.dtype) for tensor in one.inputs[:3] if len(tensor.shape) > 1))
        for one in operators
        if is_product(one)
    )


def moved(operators: list[Operator], phase: str) -> int:
    """Return the bytes of memory-bound operators."""
    return sum(one.read + one.written for one in operators if one.phase == phase and not is_product(one))


@pytest.mark.parametrize("kind", sorted(recorded()))
def test_configurations_have_the_operators_of_transformers(kind):
    theirs, ours = recorded_operators(kind), computed_operators(kind)
    assert products(ours) == products(theirs)
    for phase in (FORWARD, BACKWARD):
        assert moved(ours, phase) == pytest.approx(moved(theirs, phase), rel=WITHIN.get(kind, 0.08))


@pytest.mark.parametrize("kernels", ["eager", "fused", "transformer-engine", "compiled"])
@pytest.mark.parametrize("name", ["llama-3-8b", "gpt2-medium", "bert-large", "mixtral-8x7b", "vit-base", "t5-large"])
def test_products_have_the_flops_of_the_model(name, kernels):
    from paceline.operators.kernels import work_of
    from paceline.operators.machine import Machine

    config = find_config(name)
    model = model_of(config, None if name.startswith("vit") else 512)
    machine = Machine(workload_of(config, "h100").hardware)
    setting = Setting("hopper", 2, "bfloat16", kernels)
    for layer in model.layers:
        if not layer.matmuls:
            continue
        listed = operators_of(layer, setting)
        for passes, operators in ((1, listed.forward), (2, listed.backward)):
            flops = sum(work.flops for one in operators if (work := work_of(one, machine)).kind == "matmul")
            expected = 2 * passes * sum(one.flops for one in layer.matmuls)
            # A router is small, and images need no gradient.
            assert flops == pytest.approx(expected, rel=0.02) or layer.name == "model.embed"


def test_tensor_parallel_gpus_have_their_parts():
    model = model_of(find_config("llama-3-8b"), 1024)
    whole, part = (
        sum(one.read + one.written for layer in model.layers for one in operators_of(layer, setting).forward)
        for setting in (Setting("hopper", 1, "bfloat16"), Setting("hopper", 1, "bfloat16", tensor=4))
    )
    assert whole / 4 < part < whole / 2


def test_autocast_converts_weights_and_keeps_the_stream_in_fp32():
    model = model_of(find_config("gpt2-small"), 256)
    mlp = next(layer for layer in model.layers if layer.form.role == "mlp")
    pure, auto = (
        operators_of(mlp, replace(Setting("hopper", 1, "bfloat16"), autocast=autocast)) for autocast in (False, True)
    )
    assert products([*pure.forward, *pure.backward]) == products([*auto.forward, *auto.backward])
    casts = [one for one in auto.forward if one.name == "_to_copy"]
    # Two weights with their biases, and what the norm returns.
    assert len(casts) == 5 and not [one for one in pure.forward if one.name == "_to_copy"]
    assert auto.forward[-1].outputs[0].dtype == "float32"


@pytest.mark.parametrize(("impl", "passes"), [("fused", 7), ("foreach", 20), ("loop", 20)])
def test_optimizers_pass_over_their_states(impl, passes):
    parameters = [tensor for layer in model_of(find_config("gpt2-small"), 64).layers for tensor in layer.tensors]
    size = 2 * sum(tensor.size for tensor in parameters)
    operators = list(update_of(parameters, recipe_of("bf16", "bf16"), "adam", impl))
    assert sum(one.read + one.written for one in operators) == passes * size
    assert len(operators) == {"fused": 1, "foreach": 8, "loop": 8 * len(parameters)}[impl]


def test_programs_in_a_row_are_a_program():
    steps = [([1e-5], 7e-6, False), ([], 2e-5, False), ([3e-6, 4e-6], 7e-6, True), ([5e-5], 1e-6, False)]
    one, other, whole = Queues(), Queues(1e-5, 4e-5), Program()
    other.host_s, other.device_s = one.host_s, one.device_s = 1e-5, 4e-5
    for kernels, host_s, waits in steps:
        one.dispatch(kernels, host_s, waits=waits)
        whole = whole.then(Program.of(kernels, host_s, waits=waits))
    whole.run(other)
    assert (other.host_s, other.device_s) == pytest.approx((one.host_s, one.device_s))


def test_checkpointing_computes_blocks_again():
    config = find_config("llama-3-8b")
    plain, full = (
        workload_of(config, "h100", 2048, checkpointing=one, kernels="eager", precision="bf16")
        for one in ("none", "full")
    )
    blocks = sum(one.forward_s for one in plain.timed if one.layer.block)
    assert full.backward_s == pytest.approx(plain.backward_s + blocks, rel=0.01)


@pytest.mark.parametrize(
    ("name", "batch", "tokens", "measured_ms"),
    [("llama-3-8b", 1, 4096, 443.3), ("llama-3.2-1b", 2, 4096, 176.8), ("gpt2-medium", 8, 1024, 86.1)],
)
def test_steps_take_as_long_as_on_a_device(name, batch, tokens, measured_ms):
    """Steps of benches/gpu/steps.py on an H200 (docs/results/compute.md)."""
    made = workload_of(
        find_config(name), "h200", tokens, batch, precision="bf16", optimizer_impl="fused", kernels="eager"
    )
    assert math.isclose(1e3 * made.compute_s, measured_ms, rel_tol=0.05)


def test_experts_are_launched_one_by_one_and_waited_for():
    """Megatron's host waits once a forward pass, and launches a product for each expert that a GPU has."""
    made = workload_of(find_config("qwen3-30b-a3b"), "h100", 4096, links=LINKS, expert_parallel=8, tensor_parallel=2)
    layer = next(one for one in made.own.layers if one.routed)
    listed = operators_of(layer, made.setting)
    assert [one.name for one in listed.forward].count(SYNCHRONIZE) == 1
    assert not any(one.name == SYNCHRONIZE for one in listed.backward)
    products = [one for one in (*listed.forward, *listed.backward) if one.name == "_grouped_mm"]
    assert [one.launches for one in products] == [128 // 8] * 6
    # All of its rows come from other GPUs, a few more than an equal part.
    rows = 4096 // 2 * 8
    assert products[0].inputs[0].shape[0] == round(rows * constant("experts.imbalance"))
    assert [one.name for one in listed.forward].count("sort_chunks") == 2
    # A step of 64 microbatches was seen to launch 463,348 kernels over 48 layers, on a GPU with 8 of their experts.
    made = workload_of(find_config("qwen3-30b-a3b"), "h100", 4096, links=LINKS, expert_parallel=16, kernels=ENGINE)
    block = [operators_of(one, made.setting) for one in made.own.layers if one.block][:2]
    launches = sum(one.launches for listed in block for one in (*listed.forward, *listed.backward))
    assert launches == pytest.approx(463_348 / 64 / 48, rel=0.02)
    # transformers' grouped products are one kernel.
    eager = operators_of(layer, replace(made.setting, kernels="eager", expert=1, tensor=1))
    assert {one.launches for one in eager.forward} == {1}


def test_a_frozen_model_in_fp32_has_its_residual_stream_in_fp32():
    """PEFT's preparation of 4-bit weights: what is not quantized is FP32, and each product converts its rows."""
    options = {"lora": "16", "quantize": "nf4", "kernels": "eager"}
    short = {
        name: workload_of(find_config("llama-3.2-1b"), "a100", 512, precision=name, **options)
        for name in ("amp-bf16", "upcast-bf16")
    }
    adds = {}
    for name, made in short.items():
        layer = next(one for one in made.model.layers if one.name == "model.layers.1.mlp")
        listed = operators_of(layer, made.setting).forward
        adds[name] = listed[-1]
        assert all(one.inputs[0].dtype == "bfloat16" for one in listed if one.name == "mm")
    assert {name: one.outputs[0].dtype for name, one in adds.items()} == {
        "amp-bf16": "bfloat16",
        "upcast-bf16": "float32",
    }
    narrow, wide = (short[name] for name in ("amp-bf16", "upcast-bf16"))
    assert wide.compute_s > narrow.compute_s
    rest = sum(it.size for it in wide.model.tensors() if not it.trains and not is_quantized(it))
    assert wide.memory().parameters - narrow.memory().parameters == 2 * rest
