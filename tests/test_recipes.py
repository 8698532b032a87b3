"""Recipes of precision: types of parameters, gradients and states, and options that contradict each other."""

import paceline
import pytest
from paceline.catalog.models.spec import find_workload
from paceline.catalog.recipes import COMPUTED, dtype_bytes, recipe_of
from paceline.errors import InvalidArgumentError


def workload(word="gpt2-small@h100", **options):
    found = find_workload(word, **options)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "precision", "held", "masters"),
    [
        ("o2", "bf16", (2, 2, 4), True),
        ("megatron", "bf16", (2, 4, 4), True),
        ("fp8", "fp8", (2, 2, 4), True),
        ("fsdp-mixed", "fp16", (4, 4, 4), False),
        ("bf16", "bf16", (2, 2, 2), False),
        ("amp-bf16", "bf16", (4, 4, 4), False),
        ("amp-fp16", "fp16", (4, 4, 4), False),
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
    assert names == {"bf16": "o2", "fp16": "o2", "tf32": "fp32", "fp32": "fp32", "fp8": "fp8"}


@pytest.mark.parametrize("name", COMPUTED)
def test_a_recipe_computes_in_its_first_precision(name):
    found = workload(precision=name)
    assert found.precision == COMPUTED[name][0]
    assert found.trace().dtype == found.recipe.reduction
    assert workload(f"gpt2-small@h100:precision={name}").recipe == found.recipe


def test_an_older_gpu_computes_in_fp16_where_the_recipe_allows_it():
    assert workload("gpt2-small@v100", precision="fsdp-mixed").precision == "fp16"


@pytest.mark.parametrize(
    ("word", "options", "message"),
    [
        ("gpt2-small@h100", {"precision": "bf16", "dtype": "fp16"}, "fp16 contradicts bf16, which computes in bf16"),
        ("gpt2-small@h100", {"precision": "fp32", "dtype": "bf16"}, "contradicts fp32, which computes in fp32 or tf32"),
        ("gpt2-small@v100", {"precision": "bf16"}, "bf16 computes in bf16, which this GPU has not"),
        ("gpt2-small@h100", {"precision": "fast"}, "unknown value 'fast'"),
        ("gpt2-small@h100", {"optimizer_impl": "slow"}, "unknown value 'slow'"),
        ("vit-base@h100", {"loss_chunks": 4}, "whose loss is not of tokens"),
        ("gpt2-small@h100", {"loss_chunks": 4096, "seq": 64}, "4096 chunks are more than the 64 tokens"),
        ("gpt2-small@h100:precision=bf16", {"precision": "o2"}, "says bf16, too"),
        ("gpt2-small@h100:loss_chunks=0", {}, "must be 1-"),
    ],
)
def test_contradictions_are_refused(word, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        workload(word, **options)


def test_a_recording_has_its_own_precision():
    with pytest.raises(InvalidArgumentError, match="precision"):
        paceline.simulate("resnet-50", workers=8, precision="bf16")
