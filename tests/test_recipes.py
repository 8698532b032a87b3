"""Recipes of precision: types of parameters, gradients and states, and options that contradict each other."""

import paceline
import pytest
from paceline.catalog.models.spec import find_workload
from paceline.catalog.recipes import COMPUTED, dtype_bytes, recipe_of
from paceline.errors import InvalidArgumentError


def workload(word="gpt2-small@h100", **options):
    result = find_workload(word, **options)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("name", "precision", "held", "masters"),
    [
        ("mixed", "bf16", (2, 2, 4), True),
        ("o2", "bf16", (2, 2, 4), True),
        ("megatron", "bf16", (2, 4, 4), True),
        ("fp8", "fp8", (2, 2, 4), True),
        ("fsdp-mixed", "fp16", (4, 4, 4), False),
        ("bf16", "bf16", (2, 2, 2), False),
        ("amp-bf16", "bf16", (4, 4, 4), False),
        ("amp-fp16", "fp16", (4, 4, 4), False),
        ("upcast-bf16", "bf16", (4, 4, 4), False),
        ("fp32", "tf32", (4, 4, 4), False),
    ],
)
def test_a_recipe_has_the_bytes_of_its_trainers(name, precision, held, masters):
    recipe = workload(precision=name, dtype=precision).recipe
    assert recipe == recipe_of(name, precision)
    bytes_each = tuple(dtype_bytes(one) for one in (recipe.parameters, recipe.gradients, recipe.states))
    assert (bytes_each, recipe.masters) == (held, masters)


def test_without_a_recipe_it_is_that_of_the_computation():
    names = {dtype: workload(dtype=dtype).recipe.name for dtype in ("bf16", "fp16", "tf32", "fp32", "fp8")}
    assert names == {"bf16": "mixed", "fp16": "mixed", "tf32": "fp32", "fp32": "fp32", "fp8": "fp8"}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_recipe_computes_in_its_first_precision(name):
    result = workload(precision=name)
    assert result.precision == COMPUTED[name][0]
    assert result.trace().dtype == result.recipe.reduction
    assert workload(f"gpt2-small@h100:precision={name}").recipe == result.recipe


def test_an_older_gpu_computes_in_fp16_where_the_recipe_allows_it():
    assert workload("gpt2-small@v100", precision="fsdp-mixed").precision == "fp16"


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        ("gpt2-small@h100", {"precision": "bf16", "dtype": "fp16"}, "fp16 contradicts bf16, which computes in bf16"),
        ("gpt2-small@h100", {"precision": "fp32", "dtype": "bf16"}, "contradicts fp32, which computes in fp32 or tf32"),
        ("gpt2-small@v100", {"precision": "bf16"}, "bf16 computes in bf16, which V100 SXM2 16 GB lacks"),
        ("gpt2-small@h100", {"precision": "fast"}, "unknown value 'fast'"),
        ("gpt2-small@h100", {"optimizer_impl": "slow"}, "unknown value 'slow'"),
        ("vit-base@h100", {"loss_chunks": 4}, "whose loss is not of tokens"),
        ("gpt2-small@h100", {"loss_chunks": 4096, "seq": 64}, "4096 chunks are more than the 64 tokens"),
        (
            "gpt2-small@h100",
            {"loss_chunks": 1, "kernels": "transformer-engine"},
            "1 has no effect with transformer-engine",
        ),
        ("gpt2-small@h100:precision=bf16", {"precision": "o2"}, "says bf16, too"),
        ("gpt2-small@h100:power_limit=0.5kW", {"power_limit": 600.0}, "says 500 W, too"),
        ("gpt2-small@h100:loss_chunks=0", {}, "must be 1-"),
    ],
)
def test_contradictions_are_refused(word, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        workload(word, **options)


def test_a_recording_has_its_own_precision():
    with pytest.raises(InvalidArgumentError, match="precision"):
        paceline.simulate("resnet-50", workers=8, precision="bf16")


def memory(**options):
    """Return the memory of a model of 1.4 billion parameters, with few tokens: nearly all of it is the state."""
    given = {"gpu": "h100", "workers": 1, "seq": 16, "sharding": "none", "strategy": "native", **options}
    return paceline.simulate("pythia-1.4b", **given).sharded.memory


@pytest.mark.parametrize(
    ("options", "bytes_each"),
    [
        ({"precision": "bf16", "optimizer_impl": "fused"}, 2 + 2 + 4),
        # The second moment's square root.
        ({"precision": "bf16"}, 2 + 2 + 4 + 2),
        ({"precision": "bf16", "optimizer": "sgd"}, 2 + 2),
        ({"precision": "amp-bf16", "optimizer_impl": "fused"}, 4 + 4 + 8),
        ({"precision": "amp-bf16"}, 4 + 4 + 8 + 4),
        ({"precision": "fp32", "optimizer": "momentum"}, 4 + 4 + 4),
        # DeepSpeed's gradients, flattened and in FP32.
        ({"precision": "o2"}, 2 + 2 + 12 + 2 + 4),
        ({"precision": "o2", "sharding": "zero1", "workers": 8}, 2 + 2 + (12 + 2 + 4) / 8),
        ({"precision": "megatron"}, 2 + 4 + 12),
        ({"precision": "fsdp-mixed", "sharding": "zero3", "workers": 8}, (4 + 4 + 8 + 4) / 8),
        ({"precision": "bf16", "sharding": "zero3", "workers": 8}, (2 + 2 + 4 + 2) / 8),
        ({"precision": "o2", "sharding": "zero3", "workers": 8}, (2 + 2 + 12) / 8),
        ({"precision": "megatron", "sharding": "zero1", "workers": 8}, 2 + 4 + 12 / 8),
    ],
)
def test_the_state_in_the_optimizers_step(options, bytes_each):
    result, parameters = memory(**options), 1_414_647_808
    step = result.parameters_bytes + result.gradients_bytes + result.optimizer_bytes
    # With units that are gathered, that may be less than what the backward pass needs.
    if options.get("sharding") == "zero3":
        assert result.peak_bytes >= parameters * bytes_each
    else:
        assert step == pytest.approx(parameters * bytes_each, rel=0.02)
        assert result.peak_bytes == pytest.approx(step, rel=0.03)


def test_a_loop_over_tensors_has_temporaries_of_one():
    whole, largest = memory(precision="bf16", optimizer_impl="loop"), 50_304 * 2048
    fused = memory(precision="bf16", optimizer_impl="fused")
    assert whole.optimizer_bytes - fused.optimizer_bytes in (0, 2 * 2 * largest)
    assert fused.peak_bytes <= whole.peak_bytes <= memory(precision="bf16").peak_bytes


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_autocast_keeps_weights_that_it_has_converted(checkpointing):
    from paceline.catalog.models.memory import cached_bytes, converted_bytes

    made = workload("llama-3.2-1b@h100", precision="amp-bf16", seq=512, checkpointing=checkpointing)
    every = sum(converted_bytes(layer, made.computed) for layer in made.model.layers)
    # All matrices once, the shared embedding as the head's.
    matrices = sum(tensor.size for tensor in made.model.tensors() if len(tensor.shape) > 1)
    assert every == 2 * matrices
    blocks = 2 * (matrices - 128_256 * 2048)
    assert cached_bytes(made.model.layers, made.computed) == (blocks if checkpointing == "full" else 0)


def test_more_chunks_and_more_ranks_never_need_more():
    options = {"precision": "bf16", "seq": 1024, "batch": 8, "kernels": "eager"}
    peaks = [memory(**options, loss_chunks=chunks).peak_bytes for chunks in (None, 1, 2, 8, 64)]
    assert peaks == sorted(peaks, reverse=True)
    for precision in ("bf16", "amp-bf16", "fsdp-mixed", "o2"):
        sharded = [memory(precision=precision, sharding="zero3", workers=ranks).peak_bytes for ranks in (2, 8, 64)]
        assert sharded == sorted(sharded, reverse=True)


def test_temporaries_of_a_recorded_step_are_those_of_its_operators():
    from types import SimpleNamespace

    from paceline.operators.steps import update_bytes

    tensors = [{"dtype": "float32", "shape": [1000]}, {"dtype": "bfloat16", "shape": [10, 10]}]
    kinds = [
        {"name": "mm", "outputs": [0]},
        {"name": "_foreach_mul_", "outputs": [0, 1]},
        {"name": "_foreach_sqrt", "outputs": [0, 1]},
    ]
    made = {"tensors": tensors, "kinds": kinds, "order": [0, 1, 2], "optimizer": [1, 3]}
    assert update_bytes(SimpleNamespace(operators=lambda: made)) == 4000 + 200
    fused = made | {"optimizer": [1, 2]}
    assert update_bytes(SimpleNamespace(operators=lambda: fused)) == 0
    assert update_bytes(SimpleNamespace(operators=lambda: None)) == 0


def test_what_a_process_takes_is_the_sum_of_its_parts():
    for sharding, ranks in [("none", 1), ("none", 8), ("zero1", 8), ("zero3", 8), ("hsdp", 16)]:
        for precision in ("mixed", "bf16", "amp-bf16", "o2"):
            result = memory(precision=precision, sharding=sharding, workers=ranks, seq=512, batch=8)
            kinds = (result.parameters_bytes, result.gradients_bytes, result.optimizer_bytes)
            kinds += (result.gathered_bytes, result.communication_bytes, result.activations_bytes)
            assert result.peak_bytes == sum(kinds) <= result.reserved_bytes
            assert result.total_bytes == result.reserved_bytes + result.context_bytes + result.nccl_bytes
            assert (result.nccl_bytes > 0) == (ranks > 1)


def test_no_more_is_reserved_than_there_is_and_what_fits_leaves_room():
    options = {"precision": "bf16", "seq": 2048, "batch": 4, "checkpointing": "full"}
    small, large = (
        paceline.simulate("llama-3-8b", gpu=gpu, workers=1, sharding="none", strategy="native", **options).sharded
        for gpu in ("a100", "h200")
    )
    # 10 bytes per parameter, as measured on an A100 (fms-acceleration, a100_80gb_foak.csv), which has 84.9 GB.
    assert small.memory.peak_bytes == large.memory.peak_bytes == pytest.approx(80.3e9, rel=0.001)
    assert small.memory.total_bytes <= small.capacity_bytes
    assert small.fits and small.is_tight and large.fits and not large.is_tight


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fsdp-mixed"}, "gathers units, which only zero3 and hsdp do"),
        ({"precision": "fsdp-mixed", "sharding": "zero1"}, "gathers units, which only zero3 and hsdp do"),
        ({"precision": "bf16", "sharding": "none", "param_dtype": "fp32"}, "bf16 has parameters in bfloat16"),
    ],
)
def test_a_recipe_and_a_sharding_that_do_not_agree_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        paceline.simulate("gpt2-small", gpu="h100", workers=8, **options)


def test_offloaded_inputs_of_blocks_are_on_the_cpu():
    full, offloaded = (
        workload("llama-3-8b@h100", checkpointing=kind, batch=4).memory() for kind in ("full", "offload")
    )
    inputs = 2 * 4 * 8192 * 4096
    assert full.activations - offloaded.activations == 32 * inputs
    options = {"gpu": "h100", "workers": 8, "sharding": "zero3", "strategy": "native", "batch": 4}
    result = [paceline.simulate("llama-3-8b", checkpointing=kind, **options) for kind in ("full", "offload")]
    peaks = [one.sharded.memory.peak_bytes for one in result]
    assert peaks[0] > peaks[1] and result[0].iteration_s == result[1].iteration_s
    assert "full checkpointing, offloaded" in result[1].assumed


def test_lightnings_names_are_known():
    result = paceline.simulate("gpt2-small", gpu="h100", workers=1, precision="bf16-mixed", sharding="none")
    assert "recipe amp-bf16" in result.assumed


@pytest.mark.parametrize(("optimizer", "moments"), [("adam", 2), ("momentum", 1), ("muon", 2)])
@pytest.mark.parametrize("precision", ["megatron", "amp-bf16", "o2"])
def test_moments_of_16_bits_are_half_of_those_of_32(optimizer: str, moments: int, precision: str) -> None:
    wide, narrow = (
        workload("qwen3-0.6b@h100", optimizer=optimizer, precision=precision, moment_dtype=it) for it in (None, "bf16")
    )
    assert (wide.recipe.masters, wide.recipe.gradients) == (narrow.recipe.masters, narrow.recipe.gradients)
    saved = (wide.states_each(wide.recipe).total - narrow.states_each(narrow.recipe).total) / 2
    # Muon has two moments of what is no matrix.
    assert saved == pytest.approx(moments, rel=1e-9) if optimizer != "muon" else 1 < saved < 2
    assert narrow.optimizer_s <= wide.optimizer_s
    assert "moments in bfloat16" in narrow.assumed
    peaks = [
        paceline.simulate(
            "qwen3-0.6b@h100", workers=1, strategy="native", seq=64, optimizer_impl="fused", precision=precision, **it
        ).sharded.memory.optimizer_bytes
        for it in ({"optimizer": "adam"}, {"optimizer": "adam", "moment_dtype": "bf16"})
    ]
    assert peaks[0] - peaks[1] == 2 * 2 * wide.model.parameters


@pytest.mark.parametrize("optimizer", ["sgd", "lion", "adafactor", "adamw-8bit", "paged-adamw"])
def test_a_type_of_moments_is_refused_where_there_are_none_of_it(optimizer: str) -> None:
    with pytest.raises(InvalidArgumentError, match="has no effect on") as error:
        workload(optimizer=optimizer, moment_dtype="bf16")
    assert error.value.setting == "moment_dtype"
