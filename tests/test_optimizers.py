"""Optimizers: bytes of their states in closed form, temporaries, time, and what contradicts them."""

import math

import paceline
import pytest
from paceline.catalog.models.config import find_config
from paceline.catalog.models.families import model_of
from paceline.catalog.models.spec import find_workload
from paceline.catalog.models.updates import update_of
from paceline.catalog.optimizers import ALIASES, IN_CORE, KINDS, default_impl, states_each, states_of, step_bytes
from paceline.catalog.recipes import recipe_of
from paceline.errors import InvalidArgumentError

PURE, MIXED = recipe_of("bf16", "bf16"), recipe_of("mixed", "bf16")


def forecast(word="gpt2-small@a100", **options):
    given = {"workers": 1, "strategy": "native", "sharding": "none", "precision": "bf16"}
    return paceline.simulate(word, **{**given, **options})


@pytest.mark.parametrize(
    ("optimizer", "shape", "resident", "paged"),
    [
        ("adam", (64, 32), 2 * 2 * 2048, 0),
        ("momentum", (64, 32), 2 * 2048, 0),
        ("sgd", (64, 32), 0, 0),
        # Two bytes, and two scales of 4 for 256 values; small ones are in FP32.
        ("adamw-8bit", (1024, 1000), 2 * 1024 * 1000 + 2 * 4 * 4000, 0),
        ("adamw-8bit", (4095,), 8 * 4095, 0),
        ("adamw-8bit", (4097,), 2 * 4097 + 2 * 4 * 17, 0),
        ("paged-adamw-8bit", (1024, 1000), 2 * 4 * 4000, 2 * 1024 * 1000),
        ("paged-adamw-8bit", (99_999,), 2 * 99_999 + 2 * 4 * 391, 0),
        ("paged-adamw", (1024, 1000), 0, 8 * 1024 * 1000),
        ("lion", (64, 32), 4 * 2048, 0),
        # Rows and columns; a vector has the moment itself.
        ("adafactor", (64, 32), 4 * (64 + 32), 0),
        ("adafactor", (8, 64, 32), 4 * 8 * (64 + 32), 0),
        ("adafactor", (64,), 4 * 64, 0),
        ("muon", (64, 32), 2 * 2048, 0),
        ("muon", (64,), 2 * 2 * 64, 0),
    ],
)
def test_states_of_a_tensor_have_their_closed_form(optimizer, shape, resident, paged):
    states = states_of(optimizer, "h.0.mlp.weight", shape, PURE)
    assert (states.resident, states.paged) == (resident, paged)
    masters = states_of(optimizer, "h.0.mlp.weight", shape, recipe_of("megatron", "bf16"))
    assert masters.resident - 4 * math.prod(shape) >= resident


def test_muon_updates_embeddings_and_heads_as_adamw_does():
    assert states_of("muon", "model.embed.tokens.weight", (50, 64), PURE).total == 4 * 50 * 64
    assert states_of("muon", "lm_head.weight", (50, 64), PURE).total == 4 * 50 * 64


@pytest.mark.parametrize("optimizer", KINDS)
def test_a_plan_has_the_bytes_of_the_states(optimizer):
    workload = find_workload("gpt2-small@a100", precision="bf16", optimizer=optimizer)
    count = workload.model.parameters
    memory = forecast(optimizer=optimizer, batch=64).sharded.memory
    assert memory.optimizer_bytes == math.ceil(count * workload.states_each(PURE).resident)
    sharded = forecast(optimizer=optimizer, batch=64, sharding="zero1", workers=4).sharded.memory
    assert sharded.optimizer_bytes == pytest.approx(memory.optimizer_bytes / 4, rel=1e-3, abs=10)


@pytest.mark.parametrize("recipe", [PURE, MIXED, recipe_of("fp32", "fp32")])
def test_fewer_bits_are_fewer_bytes(recipe):
    tensors = model_of(find_config("gpt2-small"), 64).trained_alike
    total = {optimizer: states_each(optimizer, tensors, recipe).total for optimizer in KINDS}
    assert total["sgd"] <= total["adafactor"] < total["adamw-8bit"] < total["paged-adamw"]
    assert total["adamw-8bit"] == pytest.approx(total["paged-adamw-8bit"])
    assert total["momentum"] <= total["muon"] < total["adam"] <= total["paged-adamw"]


@pytest.mark.parametrize("optimizer", [one for one in KINDS if one not in IN_CORE])
def test_a_recording_takes_every_optimizer(optimizer):
    memory = forecast("resnet50", optimizer=optimizer, precision=None, sharding="zero1", workers=2).sharded.memory
    plain = forecast("resnet50", optimizer="sgd", precision=None, sharding="zero1", workers=2).sharded.memory
    assert memory.peak_bytes >= plain.peak_bytes


@pytest.mark.parametrize("optimizer", ["adamw-8bit", "paged-adamw", "lion"])
def test_a_kernel_for_each_tensor_reads_and_writes_its_states(optimizer):
    parameters = list(model_of(find_config("gpt2-small"), 64).tensors())
    operators = list(update_of(parameters, PURE, optimizer, "loop"))
    assert len(operators) == len(parameters)
    states = sum(
        KINDS[optimizer].moments * one.size * (1 if optimizer == "adamw-8bit" and one.size >= 4096 else 4)
        for one in parameters
    )
    size = sum(one.size for one in parameters)
    assert sum(one.read + one.written for one in operators) == 3 * 2 * size + 2 * states


def test_muon_multiplies_each_matrix_fifteen_times():
    (matrix,) = (
        one for one in model_of(find_config("gpt2-small"), 64).tensors() if one.name.endswith("layers.0.mlp.up.weight")
    )
    products = [one for one in update_of([matrix], PURE, "muon", "loop") if one.name in ("bmm", "baddbmm")]
    assert len(products) == 15
    flops = sum(2 * math.prod(one.outputs[0].shape) * one.inputs[-1].shape[-2] for one in products)
    short, long = sorted(matrix.shape)
    assert flops == 5 * (2 * short * short * long + 2 * short**3 + 2 * short * short * long)


def test_steps_take_as_long_as_what_they_move():
    seconds = {one: find_workload("llama-3-8b@a100", precision="bf16", optimizer=one).optimizer_s for one in KINDS}
    assert seconds["adamw-8bit"] < seconds["lion"] < seconds["paged-adamw"] < seconds["adafactor"] < seconds["muon"]


def test_temporaries_are_of_one_tensor_where_the_step_is_tensor_by_tensor():
    assert step_bytes("adafactor", "loop", PURE) == (0, 16)
    assert step_bytes("adafactor", "loop", recipe_of("fp32", "fp32")) == (0, 8)
    assert step_bytes("muon", "loop", PURE) == (0, 8)
    assert step_bytes("adam", "foreach", PURE) == (2, 0)
    assert all(step_bytes(one, "loop", PURE) == (0, 0) for one in ("adamw-8bit", "lion", "sgd"))
    assert default_impl("lion", PURE) == "loop"


@pytest.mark.parametrize("alias", ALIASES)
def test_names_of_trainers_are_known(alias):
    assert forecast(optimizer=alias).optimizer_s == forecast(optimizer=ALIASES[alias]).optimizer_s
    assert find_workload(f"gpt2-small@a100:optimizer={alias}").optimizer == ALIASES[alias]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamw-4bit"}, "unknown value 'adamw-4bit'"),
        ({"optimizer": "lion", "optimizer_impl": "fused"}, "has no effect on lion, which updates tensor by tensor"),
    ],
)
def test_what_is_no_optimizer_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        forecast(**options)
