"""Losses as multiples of passes, the memory of a reference, and padding."""

import paceline
import pytest
from paceline.catalog.losses import LOSSES
from paceline.catalog.models.spec import find_workload
from paceline.errors import InvalidArgumentError

COUNT = 8_030_261_248


def forecast(word="llama-3-8b@a100", **options):
    given = {
        **{"workers": 8, "strategy": "native", "sharding": "zero3", "precision": "bf16", "checkpointing": "full"},
        **{"batch": 2, "seq": 2048},
        **options,
    }
    return paceline.simulate(word, **given)


@pytest.mark.parametrize("loss", LOSSES)
def test_passes_without_gradients_take_as_long_as_a_forward_pass(loss):
    own = LOSSES[loss]
    plain, result = forecast(), forecast(loss=loss)
    times = own.policy + own.reference
    assert result.forward_s == pytest.approx((1 + times) * plain.forward_s, rel=0.01)
    assert result.backward_s == pytest.approx(plain.backward_s)


def test_a_reference_is_another_model_unless_adapters_are_trained():
    plain, result = forecast().sharded.memory, forecast(loss="dpo").sharded.memory
    assert result.parameters_bytes - plain.parameters_bytes == pytest.approx(2 * COUNT / 8, rel=1e-3)
    assert result.optimizer_bytes == plain.optimizer_bytes
    adapters = [forecast(lora="16", loss=one) for one in (None, "dpo")]
    assert adapters[0].sharded.memory.peak_bytes == adapters[1].sharded.memory.peak_bytes
    assert adapters[0].iteration_s < adapters[1].iteration_s
    assert forecast(loss="orpo").sharded.memory == plain


def test_ranks_gather_a_sharded_reference():
    plain, result = (
        forecast(bandwidth="1Gbps", gpus_per_node=1),
        forecast(bandwidth="1Gbps", gpus_per_node=1, loss="dpo"),
    )
    assert result.sharded.exposed.all_gather_s > 1.3 * plain.sharded.exposed.all_gather_s


@pytest.mark.parametrize("share", [0.25, 0.6, 0.999])
def test_real_tokens_are_a_share_of_all(share):
    plain, result = forecast(), forecast(real_tokens=share)
    assert result.iteration_s == plain.iteration_s and plain.real_tokens_per_s_per_gpu is None
    assert result.real_tokens_per_s_per_gpu == pytest.approx(share * plain.tokens_per_s_per_gpu)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "dpo", "batch": 3}, "dpo compares 2 sequences, of which a batch of 3 is no multiple"),
        ({"loss": "dpo", "batch": 1}, "dpo compares 2 sequences, of which a batch of 1 is no multiple"),
        ({"loss": "PPO"}, "'PPO' generates samples in each step, which is not forecast"),
        ({"loss": "online_dpo"}, r"generates samples .*\n.*lm.*one of lm, dpo, kto"),
        ({"loss": "sft"}, "unknown value 'sft'"),
        ({"loss": "dpo", "pipeline_parallel": 2, "microbatches": 8}, "is not modeled with stages"),
        ({"real_tokens": 1.5}, "must be a share of the tokens"),
        ({"real_tokens": 0}, "must be a share of the tokens.*\n  try: real_tokens=0.6$"),
    ],
)
def test_what_contradicts_itself_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        forecast(**options)


def test_a_pair_is_the_batch_by_default_and_words_say_all():
    words = "llama-3-8b@a100:loss=dpo,real_tokens=0.5,optimizer=lion,offload=cpu:activations"
    result = find_workload(words)
    assert (result.batch, result.loss, result.real_tokens, result.optimizer) == (2, "dpo", 0.5, "lion")
    assert result.offload.named == ("activations",)
    with pytest.raises(InvalidArgumentError, match="'2' is no share"):
        find_workload("llama-3-8b@a100:real_tokens=2")


def test_images_are_not_compared():
    with pytest.raises(InvalidArgumentError, match="compares texts"):
        paceline.simulate("vit-base@a100", workers=1, loss="orpo", batch=2)
