"""Context parallelism: ranks that share samples, what they keep, compute and wait for, and what is refused."""

import cli
import paceline
import pytest
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.config import find_config
from paceline.catalog.models.exchanges import Links, pass_around_s
from paceline.catalog.models.spec import workload_of
from paceline.catalog.models.timing import spent_by
from paceline.errors import InvalidArgumentError
from paceline.forecast.jobs import model as jobs
from paceline.forecast.jobs import spec

LINKS = Links(8, 44e9)
JOB = {"gpu": "h100", "strategy": "native"}
# NVIDIA/NeMo@9c5c5e9709 docs/source/performance/performance_summary.md and NVIDIA-NeMo/Megatron-Bridge@067f987df
# docs/performance-summary-archive.md: model, GPU, GPUs, samples of all ranks, tensor-parallel GPUs, stages, parts of
# each, context-parallel ranks, tokens/s of a GPU; FP8, sequences of 8,192 tokens, microbatches of one sample.
PUBLISHED = [
    ("llama-3-8b", "h100", 8, 128, (1, 1, 1, 2), 12_273),
    ("llama-3-70b", "h100", 64, 128, (4, 4, 5, 2), 1_524),
    ("llama-3.1-405b", "h100", 1024, 512, (8, 8, 8, 2), 302),
    ("llama-3.1-405b", "h100", 1024, 1536, (8, 8, 8, 2), 328),
    ("llama-3.1-405b", "b200", 128, 64, (4, 8, 8, 2), 661),
]


def made(model="llama-3-8b", seq=32_768, **options):
    return workload_of(find_config(model), "h100", seq, links=LINKS, **options)


def forecast(workers=16, model="llama-3-8b", seq=32_768, **options):
    return paceline.simulate(model, None, workers=workers, seq=seq, **JOB, **options)


def test_ranks_share_the_work_and_the_activations_of_a_sample():
    whole, shared = made(), made(context_parallel=4)
    # Products of fewer rows fill the last wave less.
    own, theirs = (one.forward_s + one.backward_s for one in (shared, whole))
    assert theirs / 4 < own < 1.1 * theirs / 4
    assert shared.context_parallel_s == 0  # hidden by attention, which is long
    kept, part = whole.memory(), shared.memory()
    assert part.activations == pytest.approx(kept.activations / 4, rel=1e-6)
    assert part.loss == pytest.approx(kept.loss / 4, rel=1e-6)
    assert (part.parameters, part.optimizer) == (kept.parameters, kept.optimizer)
    assert shared.optimizer_s == pytest.approx(whole.optimizer_s, rel=1e-9)
    # Four ranks with a sample are as one with a sample.
    assert shared.mfu(1.0) == whole.mfu(1.0)
    assert shared.figures(4.0, 4)["tokens_per_s_per_gpu"] == whole.figures(1.0, 4)["tokens_per_s_per_gpu"]


def test_attention_waits_for_what_it_does_not_hide():
    short = made(seq=1024, context_parallel=8)
    [attention] = {one.layer.attention for one in short.timed if one.layer.attention is not None}
    # 8 heads of 128 have keys and values.
    assert attention.exchanged == 2 * 8 * 128
    h100, moved = find_hardware("h100"), 1024 * 2 * 8 * 128 * 2
    seconds = [pass_around_s(h100, times * moved * 7 / 8, 8, LINKS, gpus=8) for times in (1, 2)]
    assert seconds[0] == pytest.approx(7 * 3.4e-6 + moved * 7 / 8 / 360e9)
    [layer] = {id(one.layer): one.layer for one in short.timed if one.layer.name == "model.layers.0.attention"}.values()
    hides = [7 / 8 * one for one in spent_by(layer, h100, short.setting, "none").attention_s]
    waits = sum(max(0.0, whole - hidden) for whole, hidden in zip(seconds, hides, strict=True))
    assert waits > 0 and short.context_parallel_s == pytest.approx(32 * waits)
    # Between nodes they are passed on by the cards.
    assert pass_around_s(h100, moved, 16, LINKS, gpus=16) == pytest.approx(15 * 3.4e-6 + moved / 44e9)
    assert made(seq=1024, context_parallel=16).context_parallel_s > short.context_parallel_s


def test_samples_are_those_of_the_ranks_together():
    alone, shared = forecast(sharding="zero1"), forecast(sharding="zero1", context_parallel=4)
    assert shared.samples_per_s == pytest.approx(16 / 4 * shared.batch / shared.iteration_s)
    assert shared.tokens_per_s_per_gpu == pytest.approx(shared.samples_per_s * 32_768 / 16)
    assert shared.mfu == pytest.approx(alone.mfu * shared.tokens_per_s_per_gpu / alone.tokens_per_s_per_gpu)
    # All ranks exchange gradients, whatever they share.
    assert shared.bytes_sent_per_worker == alone.bytes_sent_per_worker
    memory, whole = shared.sharded.memory, alone.sharded.memory
    assert memory.activations_bytes == pytest.approx(whole.activations_bytes / 4, rel=1e-3)
    assert memory.optimizer_bytes == whole.optimizer_bytes
    given = forecast(sharding="zero1", context_parallel=4, samples_per_s=0.25)
    # Less what it updates of its shard alone.
    assert 0.9 < given.compute_s < 1.0
    assert given.samples_per_s == pytest.approx(16 * 0.25, rel=0.1)
    passes = forecast(sharding="zero1", context_parallel=4, accumulate=2)
    assert passes.samples_per_s == pytest.approx(16 / 4 * 2 / passes.iteration_s)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}-{row[1]}-{row[-1]}")
def test_shared_samples_are_as_fast_as_published(row):
    model, gpu, gpus, samples, (tensor, stages, parts, context), published = row
    passes = samples // (gpus // (tensor * stages * context))
    options = {"gpu": gpu, "seq": 8192, "dtype": "fp8", "kernels": "transformer-engine", "context_parallel": context}
    if stages > 1:
        options |= {
            "pipeline_parallel": stages,
            "virtual_stages": parts,
            "microbatches": passes,
            "tensor_parallel": tensor,
        }
    else:
        options["accumulate"] = passes
    result = paceline.simulate(model, None, "native", workers=gpus, sharding="zero1", **options)
    assert result.tokens_per_s_per_gpu == pytest.approx(published, rel=0.12)
    assert result.interval is None


def test_words_and_json():
    arguments = ["simulate", "llama-3-8b", "--gpu", "h100", "--gpus", "32", "--seq", "2048"]
    arguments += ["--context-parallel", "16", "--strategy", "native"]
    said = cli.printed(*arguments)
    answer = cli.facts(said)
    assert said.startswith("llama-3-8b, DDP (NCCL), 32x H100 (CP 16 x DP 2): ")
    assert "batch 1 per 16 CP ranks" in answer["Setup"]
    assert "attention waits for keys and values" in answer["CP"]
    shared = "16 neighboring ranks share every sample (CP 16), so a batch is theirs together"
    assert shared in cli.notes(said)
    [document] = cli.answer(*arguments)
    assert document["context_parallel_s"] > 0 and shared in document["notes"]
    slow, fast = (forecast(32, seq=2048, context_parallel=16, bandwidth=rate) for rate in ("400Gbps", "3200Gbps"))
    assert slow.context_parallel_s > 2 * fast.context_parallel_s


def test_jobs_may_share_samples():
    given = {"trace": "llama-3-8b@h100:seq=8192", "workers": 16, "strategy": "native", "context_parallel": 4}
    mix = spec.mix({"cluster": "dgx-h100", "iterations": 2, "job": [given | {"sharding": "zero1"}]}, "jobs.toml")
    [result] = jobs.simulate_jobs(mix).jobs
    assert result.samples_per_s == pytest.approx(4 / result.iteration_s)


def test_experts_and_samples_are_divided_together():
    def result(**options):
        return forecast(32, "mixtral-8x7b", 4096, expert_parallel=8, batch=16, sharding="zero1", **options)

    # A rank with a quarter of a sample sends a quarter of its tokens.
    share = result(context_parallel=4).expert_parallel_s / result().expert_parallel_s
    assert 0.25 < share < 0.26


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context_parallel": 3}, "3 does not divide the 32768 tokens"),
        ({"context_parallel": 32}, "16 GPUs are not a multiple of 32, the GPUs that share a sample"),
        ({"context_parallel": 2, "gpu": "l40s"}, "no NVLink"),
        ({"context_parallel": 4, "gpus_per_node": 6}, "groups of 4 GPUs do not divide the 6 of a node"),
        (
            {"context_parallel": 16, "gpus_per_node": 8, "bandwidth": ["1Gbps", "2Gbps"]},
            "16 GPUs are on several nodes, whose exchanges need one bandwidth",
        ),
        (
            {"context_parallel": 2, "trace": "vit-huge", "seq": None},
            "needs text whose attention is within one sequence, unlike vit-huge",
        ),
        (
            {"context_parallel": 2, "trace": "t5-3b", "seq": 512},
            "needs text whose attention is within one sequence, unlike t5-3b",
        ),
        (
            {"context_parallel": 2, "trace": "transformer-xl-large", "seq": None},
            "needs text whose attention is within one sequence, unlike transformer-xl-large",
        ),
        (
            {"context_parallel": 2, "trace": "resnet-50", "seq": None, "gpu": None},
            "needs a model, and resnet-50 was recorded",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused(change, message):
    options = {"workers": 16, "seq": 32_768, **JOB} | change
    named = options.pop("trace", "llama-3-8b")
    options = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(InvalidArgumentError, match=message):
        paceline.sweep(named, None, **options)
