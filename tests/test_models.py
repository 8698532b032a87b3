"""Models from a configuration: counts of parameters, layers, times, memory, and what the commands make of them."""

import json
import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import cli
import paceline
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from paceline import InvalidArgumentError
from paceline.catalog.constants import assuming, checked_constants
from paceline.catalog.gpus import all_hardware, find_hardware, read_hardware
from paceline.catalog.models.config import Config, built_in_configs, find_config, read_config
from paceline.catalog.models.exchanges import all_reduce_s
from paceline.catalog.models.families import MODEL_TYPES, model_of
from paceline.catalog.models.memory import Computation, activation_bytes, memory_of
from paceline.catalog.models.modules import operators_of
from paceline.catalog.models.spec import find_workload, workload_of
from paceline.catalog.models.workload import Workload
from paceline.cli.models import gpus, models
from paceline.cli.simulate import simulate
from paceline.forecast.evidence import coverage_of_models
from paceline.operators.constants import all_constants
from paceline.operators.machine import Machine
from paceline.operators.queues import dispatch_s
from paceline_lab.studies.published.training import forecasts
from paceline_lab.studies.published.transformers import cases, read_rows, spread

# As published with the weights: independent of the fields in models.json.
PUBLISHED = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "mpt-350m": 355_985_408,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
    "falcon-7b": 6_921_720_704,
    "falcon-40b": 41_303_293_952,
    "opt-6.7b": 6_658_473_984,
    "pythia-6.9b": 6_857_302_016,
    "gpt-neox-20b": 20_554_567_680,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "roberta-base": 124_697_433,
    "t5-small": 60_506_624,
    "t5-11b": 11_307_321_344,
    "bart-large": 406_291_456,
    "vit-base": 86_567_656,
    "vit-huge": 632_045_800,
}
WITHOUT_A_BUILT_IN = {
    *("ministral", "granite", "glm4_moe", "falcon_h1", "gemma4_text"),
    *("ministral3", "helium", "hunyuan_v1_dense", "exaone4", "glm", "xlm-roberta", "camembert", "mt5"),
    *("chatglm", "gpt_bigcode", "lfm2"),
}
# B. of parameters in the paper's table 2.1.
GPT3 = {"gpt3-1.3b": 1.3e9, "gpt3-2.7b": 2.7e9, "gpt3-6.7b": 6.7e9, "gpt3-13b": 13e9, "gpt3-175b": 175e9}
TRANSFORMER_ENGINE = [
    # NVIDIA-NeMo/Megatron-Bridge@067f987df docs/performance-summary-archive.md: model, GPU, GPUs, tokens, samples of a
    # microbatch and of all ranks, (tensor-parallel GPUs, stages, parts of each), FSDP, tokens/s of a GPU.
    ("llama-3-8b", "h100", 8, 8192, (1, 128), (1, 1, 1), True, 14_451),
    ("llama-3-8b", "b200", 8, 8192, (2, 128), (1, 1, 1), False, 30_624),
    ("llama-3-70b", "h100", 64, 8192, (1, 128), (4, 8, 5), False, 1_602),
    ("llama-3-70b", "h100", 64, 8192, (1, 256), (4, 8, 5), False, 1_664),
    ("llama-3-70b", "h100", 32, 4096, (1, 32), (4, 4, 5), False, 1_638),
]
MEGATRON = [
    ("22B", (6144, 48, 64), (8, 1, 1), (4, 1), {"selective": 1.10, "full": 1.42}),
    ("175B", (12_288, 96, 96), (8, 8, 3), (1, 64), {"selective": 13.75, "full": 18.13}),
    ("530B", (20_480, 105, 128), (8, 35, 3), (1, 280), {"selective": 37.83, "full": 49.05}),
    ("1T", (25_600, 128, 160), (8, 64, 1), (1, 512), {"selective": 71.49, "full": 94.42}),
]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "max_position_embeddings": 32,
}


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    return path


def workload(name="llama-3-8b", gpu="h100", **options):
    actual = find_workload(f"{name}@{gpu}", **options)
    assert actual is not None
    return actual


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.mark.parametrize("name", built_in_configs())
def test_each_model_has_as_many_parameters_as_published(name):
    config = built_in_configs()[name]
    model = model_of(config)
    assert model.parameters == config.parameters == PUBLISHED.get(name, config.parameters)
    if name in GPT3:
        assert model.parameters == pytest.approx(GPT3[name], rel=0.04)
    assert config.source
    names = [tensor.name for tensor in model.tensors()]
    assert len(names) == len(set(names))
    # Blocks can be found by prefix.
    assert all(layer.name.startswith(f"{layer.block}.") for layer in model.layers if layer.block)


def test_released_mpt_has_no_biases_and_no_positions():
    fields = {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432}
    fields |= {"no_bias": True, "max_seq_len": 2048, "attn_config": {"alibi": True}}
    assert model_of(Config("mpt", "here", fields)).parameters == 6_649_286_656


def test_heads_of_bert_follow_architectures():
    base = dict(find_config("bert-base").fields)
    counts = {"BertModel": 109_482_240, "BertForMaskedLM": 109_514_298, "BertForPreTraining": 110_106_428}
    for name, count in counts.items():
        assert model_of(Config("bert", "here", base | {"architectures": [name]})).parameters == count


def test_a_transformer_xl_attends_to_what_it_remembers():
    """Z. Dai et al., 2019: keys and values of the memory, too, and scores of relative positions."""
    config = built_in_configs()["transformer-xl-large"]
    model = model_of(config)
    plain = model_of(replace(config, fields={**config.fields, "mem_len": 0}))
    assert model.sequence == 384 and model.parameters == plain.parameters
    (own, other) = (next(layer for layer in it.layers if layer.attention is not None) for it in (model, plain))
    assert own.attention.scores == 2 * other.attention.scores == 2 * (2 * 16 * 384 * 384)
    assert own.attention.flops == 6 * 16 * 384 * 768 * 64
    width, inner, words, ends = 1024, 4096, 267_735, [0, 19_997, 39_997, 199_997, 267_735]
    tables = sum((end - first) * (width // 4**it) for it, (first, end) in enumerate(pairwise(ends)))
    projections = sum(width * (width // 4**it) for it in range(4)) + width * width
    block = 5 * width * width + 2 * width * inner + inner + width + 4 * width
    assert model.parameters == tables + projections + 18 * block + 2 * width + words + 3 * (width + 1)
    for wrong in ([5, 5], [7, 3], [267_735], "many", [True]):
        with pytest.raises(InvalidArgumentError, match=r"transformer-xl-large: cutoffs: must be growing whole numbers"):
            model_of(replace(config, fields={**config.fields, "cutoffs": wrong}))
    with pytest.raises(InvalidArgumentError, match="div_val"):
        model_of(replace(config, fields={**config.fields, "div_val": 2000}))


@pytest.mark.parametrize("name", ["gpt2-small", "llama-3-8b", "mixtral-8x7b", "t5-small", "vit-base", "bart-base"])
def test_every_model_is_a_trace_like_others(name):
    made = workload(name)
    trace = made.trace()
    again = paceline.Trace.from_json(trace.to_json().encode(), "again")
    assert again.to_json() == trace.to_json()
    assert again == trace
    assert trace.gradient_bytes == 2 * made.model.parameters
    assert trace.forward_s == pytest.approx(made.forward_s)
    assert trace.backward_s == pytest.approx(made.backward_s)
    result = paceline.simulate(trace, workers=1)
    assert result.iteration_s == pytest.approx(made.compute_s)


def test_gradients_become_ready_from_the_last_layer_to_the_first():
    [worker] = workload("gpt2-small", "a100").trace().workers
    ready = [one.ready_s for one in worker.gradients]
    assert ready == sorted(ready)
    assert worker.gradients[-1].tensor == "model.embed.tokens.weight"  # tied with the head
    assert worker.forward[-1].tensors == ["model.embed.tokens.weight"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("sequence", [512, 1024])
def test_activations_of_a_gpt_layer_are_those_of_korthikanti(batch, sequence):
    model = model_of(find_config("gpt2-xl"), sequence)
    hidden, heads = 1600, 25
    layers = [layer for layer in model.layers if layer.block == "model.layers.0"]

    def kept(attention, checkpointing):
        return batch * sum(
            activation_bytes(layer, Computation(attention=attention, checkpointing=checkpointing)) for layer in layers
        )

    scale = sequence * batch * hidden
    assert kept("unfused", "none") == round(scale * (34 + 5 * heads * sequence / hidden))
    # The scores are recomputed.
    assert kept("unfused", "selective") == scale * 34
    assert kept("unfused", "full") == kept("flash", "full") == 2 * scale
    # A log-sum-exp for every query and head.
    assert kept("flash", "none") == scale * 34 + 4 * batch * heads * sequence
    # Inputs of the block, the output of attention, and products 1, 3 and 5: queries, values and the first of the MLP.
    assert kept("flash", "selective") == scale * 2 * (1 + 1 + 1 + 1 + 4) + 4 * batch * heads * sequence
    assert kept("flash", "full") < kept("flash", "selective") < kept("flash", "none")


@pytest.mark.parametrize("microbatches", [1, 4])
def test_what_only_the_backward_pass_needs(microbatches):
    pipeline = {"pipeline_parallel": 2, "microbatches": microbatches} if microbatches > 1 else {}
    made = workload("gpt2-xl", "a100", checkpointing="full", kernels="eager", **pipeline)
    [worker] = made.trace(made.pipeline - 1).workers
    actual = {one.name: one.backward_bytes or 0 for one in worker.forward}
    # A recomputed block's activations, of which attention's are left when the MLP has been passed.
    again = {
        part: sum(
            activation_bytes(layer, Computation(kernels="eager"))
            - activation_bytes(layer, Computation(checkpointing="full"))
            for layer in made.model.layers
            if layer.name == f"model.layers.40.{part}"
        )
        for part in ("attention", "mlp")
    }
    # Gradients of the block's result, and of attention's result, queries, keys and values, or of the inner width.
    gradients = 2 * 1024 * 1600 * 5
    assert actual["model.layers.40.attention"] == -(-(again["attention"] + gradients) // microbatches)
    assert actual["model.layers.40.mlp"] == -(-(sum(again.values()) + gradients) // microbatches)
    # Two copies of the logits in FP32, less the gradient of the head's matrix, which is made after them.
    assert actual["model.head"] == (8 * 1024 - 2 * 1600) * 50_257 // microbatches
    assert actual["model.norm"] == 0


def test_the_peak_has_copies_of_the_logits():
    def peak(kernels, **options):
        result = paceline.simulate(
            "gpt2-small", gpu="a100", workers=8, sharding="zero3", batch=4, kernels=kernels, **options
        )
        return result.sharded.memory.peak_bytes

    logits, head = 4 * 1024 * 50_257, 2 * 768 * 50_257
    # What is compiled has PyTorch's loss: 12 bytes of a logit, before the gradient of the head's matrix is made.
    assert peak("compiled") - peak("compiled", loss_chunks=1) == 8 * logits - head
    assert peak("compiled", loss_chunks=8) < peak("compiled", loss_chunks=1)
    assert peak("fused") == peak("compiled", loss_chunks=1) + 2 * logits


def test_memory_is_divided_as_the_stage_says():
    model = model_of(find_config("llama-2-7b"))
    count = model.parameters
    none, zero1, zero2, zero3 = (
        memory_of(model, Computation(), batch=1, sharding=sharding, group=8)
        for sharding in ("none", "zero1", "zero2", "zero3")
    )
    # DDP's buckets hold a second copy of the gradients; one rank has none.
    assert (none.parameters, none.gradients, none.optimizer) == (2 * count, 4 * count, 12 * count)
    assert memory_of(model, Computation(), batch=1).gradients == 2 * count
    assert (zero1.gradients, zero1.optimizer) == (2 * count, 12 * count // 8)
    assert (zero2.parameters, zero2.gradients) == (2 * count, 2 * count // 8)
    # FSDP2 keeps shards in FP32 instead of a master copy.
    assert (zero3.parameters, zero3.gradients, zero3.optimizer) == (4 * count // 8, 4 * count // 8, 8 * count // 8)
    assert zero3.gathered > 0
    assert none.activations == zero3.activations
    assert none.total > zero1.total > zero2.total > zero3.total
    assert memory_of(model, Computation("fp32"), batch=1).optimizer == 8 * count
    with pytest.raises(InvalidArgumentError, match="try: one of none, zero1, zero2, zero3"):
        memory_of(model, Computation(), batch=1, sharding="zero4")


def test_mfu_counts_6_flops_per_parameter_and_token_and_attention():
    made = workload("mpt-7b", seq=2048)
    per_token = 6 * 6_658_859_008 + 12 * 32 * 4096 * 2048
    assert made.model.flops == pytest.approx(2048 * per_token)
    # llm-foundry prints 46.44 % for 10,643 tokens/s on an H100.
    assert made.mfu(10_643 / 2048) == pytest.approx(0.4644, abs=2e-4)
    again = workload("mpt-7b", seq=2048, checkpointing="full")
    assert again.model.flops == made.model.flops
    assert again.hardware_flops == pytest.approx(8 / 6 * made.hardware_flops)
    mixed = model_of(find_config("mixtral-8x7b"), 1)
    assert mixed.active_parameters == pytest.approx(12.9e9, rel=0.01)


def test_checkpointing_precision_and_kernels_change_times_as_they_should():
    plain = workload(batch=2)
    full = workload(batch=2, checkpointing="full")
    assert full.forward_s == pytest.approx(plain.forward_s)
    blocks = sum(one.forward_s for one in plain.timed if one.layer.block)
    assert full.backward_s == pytest.approx(plain.backward_s + blocks)
    assert plain.backward_s < workload(batch=2, checkpointing="selective").backward_s < full.backward_s
    assert workload(batch=2, dtype="fp8").compute_s < plain.compute_s < workload(batch=2, dtype="tf32").compute_s
    assert (
        workload(batch=2, kernels="compiled").compute_s < plain.compute_s < workload(batch=2, kernels="eager").compute_s
    )
    assert workload(batch=2, attention="unfused").forward_s > plain.forward_s
    assert workload(batch=4).forward_s < 2 * plain.forward_s < 1.1 * workload(batch=4).forward_s


def test_transformer_engine_casts_where_operands_are_made():
    def made(dtype, kernels, gpu="h100"):
        return workload("llama-3-8b", gpu, seq=8192, dtype=dtype, kernels=kernels)

    own = made("fp8", "transformer-engine")
    assert own.compute_s < made("fp8", "fused").compute_s
    assert made("bf16", "transformer-engine").compute_s < made("bf16", "fused").compute_s
    shared = {
        kernels: workload("llama-3-70b", seq=8192, tensor_parallel=4, kernels=kernels)
        for kernels in ("fused", "transformer-engine")
    }
    # Products hide all pieces of an exchange but one.
    assert shared["transformer-engine"].tensor_parallel_s == pytest.approx(shared["fused"].tensor_parallel_s / 4)
    memory = {kernels: made.memory(sharding="zero1", group=8).total for kernels, made in shared.items()}
    assert memory["transformer-engine"] == memory["fused"]


@pytest.mark.parametrize("row", TRANSFORMER_ENGINE, ids=lambda row: f"{row[0]}-{row[1]}-{row[-1]}")
def test_transformer_engine_is_as_fast_as_published(row):
    model, gpu, gpus, tokens, (batch, samples), (tensor, stages, parts), is_fsdp, published = row
    passes = samples // (batch * gpus // (tensor * stages))
    options = {"accumulate": passes, "sharding": "zero3" if is_fsdp else "zero1"}
    if stages > 1:
        pipeline = {"pipeline_parallel": stages, "virtual_stages": parts, "microbatches": passes}
        options = {**pipeline, "tensor_parallel": tensor, "sharding": "zero1"}
    options |= {"gpu": gpu, "seq": tokens, "batch": batch, "dtype": "fp8", "kernels": "transformer-engine"}
    result = paceline.simulate(model, None, "native", workers=gpus, **options)
    assert result.tokens_per_s_per_gpu == pytest.approx(published, rel=0.1)


def test_small_models_are_bound_by_launches():
    tiny = Workload(model_of(Config("tiny", "here", LLAMA)), find_hardware("h100"), 1)
    machine = Machine(tiny.hardware)
    host = [
        sum(dispatch_s(one, machine) for one in operators_of(layer, tiny.setting).forward)
        for layer in tiny.model.layers
        if layer.block
    ]
    assert sum(one.forward_s for one in tiny.timed if one.layer.block) == pytest.approx(sum(host), rel=0.5)
    larger = workload("llama-3-8b", seq=512)
    assert workload("llama-3-8b", seq=1024).forward_s > 1.5 * larger.forward_s


def test_tensor_parallel_gpus_share_the_work_and_pay_for_all_reduces():
    plain = workload("llama-3-70b", seq=4096)
    shared = workload("llama-3-70b", seq=4096, tensor_parallel=8)
    h100 = find_hardware("h100")
    assert all_reduce_s(h100, 8e9, 1) == 0
    exchange = all_reduce_s(h100, 4096 * 8192 * 2, 8)
    assert exchange == pytest.approx(14 * 3.4e-6 + 14 / 8 * 4096 * 8192 * 2 / 360e9)
    # Narrower matrices reach a smaller share of the peak.
    least = plain.forward_s / 8 + 160 * exchange
    assert least < shared.forward_s < 1.1 * least
    assert shared.memory().total == pytest.approx(plain.memory().total / 8, rel=1e-6)
    assert shared.figures(8.0, 1)["mfu"] == pytest.approx(plain.figures(1.0, 1)["mfu"])


def test_a_pipeline_has_a_bubble_of_its_stages():
    staged = workload("llama-2-70b", seq=4096, pipeline_parallel=4, microbatches=12)
    passes = staged.forward_s + staged.backward_s
    assert staged.compute_s == pytest.approx((12 + 4 - 1) * passes + staged.optimizer_s)
    assert staged.samples == 12
    # The last stage has 20 of 80 blocks, the norm and the head.
    assert {layer.layer.block for layer in staged.timed if layer.layer.block} == {
        f"model.layers.{n}" for n in range(60, 80)
    }
    assert staged.timed[-1].layer.name == "model.head"
    names = [one.layer.name for stage in staged.stages for one in stage]
    assert names == [layer.name for layer in staged.model.layers]
    trace = staged.trace()
    assert trace.batch == 12
    assert trace.workers[0].forward[0].duration_s == pytest.approx(14 * passes)
    # Interleaved: the bubble is that of half a stage, and the last of 8 parts of 10 blocks is the last stage's.
    turns = workload("llama-2-70b", seq=4096, pipeline_parallel=4, microbatches=12, virtual_stages=2)
    passes = turns.forward_s + turns.backward_s
    assert turns.compute_s == pytest.approx((12 + 3 / 2) * passes + turns.optimizer_s)
    owned = [n for start in (30, 70) for n in range(start, start + 10)]
    assert {layer.layer.block for layer in turns.timed if layer.layer.block} == {f"model.layers.{n}" for n in owned}
    # 4 + 3/2 microbatches keep their activations.
    assert turns.memory().activations == pytest.approx(staged.memory().activations * 5.5 / 4, rel=0.01)
    # A tied head of the last stage has its own copy, which the trace leaves out.
    tied = workload("gpt2-xl", pipeline_parallel=4, microbatches=4)
    assert tied.trace().batch == 4


def test_embeddings_and_head_count_as_blocks_where_that_makes_parts_equal():
    """Llama 3.1 405B has 126 blocks: with 16 stages of 8 parts, the first and the last part have none."""
    made = workload("llama-3.1-405b", tensor_parallel=8, pipeline_parallel=16, microbatches=16, virtual_stages=8)
    names = [[one.layer.name for one in part] for part in made.parts]
    assert len(names) == 128
    assert names[0] == ["model.embed"] and names[-1] == ["model.norm", "model.head"]
    assert all(len(part) == 2 for part in names[1:-1])
    # Elsewhere blocks alone are counted.
    four = workload("llama-3-8b", pipeline_parallel=4, microbatches=4)
    assert [len({one.layer.block for one in stage} - {""}) for stage in four.stages] == [8] * 4
    three = workload("llama-3-8b", pipeline_parallel=3, microbatches=3)
    assert [len({one.layer.block for one in stage} - {""}) for stage in three.stages] == [11, 11, 10]


@pytest.mark.parametrize("checkpointing", ["selective", "full"])
@pytest.mark.parametrize("row", MEGATRON, ids=lambda row: row[0])
def test_megatrons_pipelines_take_as_long_as_published(row, checkpointing):
    """V. Korthikanti et al., 2022, table 5: GPT on A100; see docs/results/published.md."""
    _, shape, (tensor, stages, parts), (batch, microbatches), seconds = row
    fields = dict(zip(("n_embd", "n_layer", "n_head"), shape, strict=True))
    config = Config("gpt", "here", {"model_type": "gpt2", "n_positions": 2048, "vocab_size": 51_200, **fields})
    options = {"checkpointing": checkpointing, "attention": "unfused", "tensor_parallel": tensor, "batch": batch}
    if stages > 1:
        options |= {"pipeline_parallel": stages, "virtual_stages": parts, "microbatches": microbatches}
    made = workload_of(config, "a100", **options)
    assert made.compute_s == pytest.approx(seconds[checkpointing], rel=0.11)


def test_a_rank_may_be_several_gpus():
    job = {"gpu": "h100", "seq": 2048, "gpus_per_node": 8, "bandwidth": "400Gbps"}
    parallel = {"tensor_parallel": 4, "pipeline_parallel": 2, "microbatches": 4}
    result = paceline.simulate("llama-2-7b", None, "ring", workers=32, **parallel, **job)
    assert (result.workers, result.gpus_per_worker, result.batch) == (4, 8, 4)
    assert {name: result.to_dict()[name] for name in (*parallel, "virtual_stages", "context_parallel")} == {
        **parallel,
        "virtual_stages": 1,
        "context_parallel": 1,
    }
    assert result.tokens_per_s_per_gpu == pytest.approx(result.samples_per_s * 2048 / 32)
    assert "gpus_per_worker" not in paceline.simulate("llama-2-7b", None, "ring", workers=4, **job).to_dict()
    for change, message in (
        ({"workers": 12}, "tensor_parallel: 12 GPUs are not a multiple of 8"),
        ({"gpus_per_node": 6}, "must divide the GPUs of a node, 6, or be a multiple, not 4"),
        ({"tensor_parallel": 3}, "3 does not divide the 32 attention heads"),
        ({"gpu": "l4"}, "no NVLink"),
        ({"pipeline_parallel": 64}, "64 stages are more than the 32 blocks"),
        ({"microbatches": None}, "needs a number of microbatches"),
        (
            {"pipeline_parallel": None},
            r"try: pipeline_parallel=2, or drop microbatches \(accumulate=4 makes passes without a pipeline\)",
        ),
        ({"pipeline_parallel": None, "microbatches": None, "virtual_stages": 2}, "virtual_stages: needs a pipeline"),
        ({"virtual_stages": 19}, "2 stages of 19 parts are more than the 32 blocks"),
        ({"virtual_stages": 2, "microbatches": 5}, "microbatches must be a multiple of the 2 stages, not 5"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            paceline.simulate("llama-2-7b", None, "ring", **{"workers": 32} | parallel | job | change)


def test_the_interval_is_that_of_other_sources_training_of_transformers():
    actual = coverage_of_models()
    assert actual.known >= 113
    assert actual.share >= 0.75
    assert actual.times <= 1.6
    job = {"gpu": "a100", "workers": 64, "strategy": "native"}
    for sharding in (None, "zero1", "zero3"):
        result = paceline.simulate("gpt2-xl", sharding=sharding, **job)
        own = result.interval
        assert own.low_s < result.iteration_s < own.high_s and not own.clipped
        assert "training in these conditions and the like: " in result.evidence
    one = paceline.simulate("gpt2-xl", **(job | {"workers": 1}))
    assert "training in these conditions and the like: " in one.evidence and one.interval.low_s < one.compute_s
    far = paceline.simulate("gpt2-xl", **(job | {"workers": 4096}), sharding="zero3")
    assert far.interval is None and "published runs, of up to 1,024 (" in far.evidence
    slow = paceline.simulate("gpt2-xl", **job, bandwidth="1Gbps")
    assert slow.interval is None and "published runs, at 10-3,200 Gbps" in slow.evidence
    ring = paceline.simulate("gpt2-xl", **(job | {"strategy": "tree"}))
    assert ring.interval is None and "nobody has published transformers with tree" in ring.evidence
    recorded = paceline.simulate("resnet-50", workers=8, sharding="zero1", strategy="ring")
    assert recorded.interval is None and "of models with a --gpu, not of recordings" in recorded.evidence


def test_gradients_of_earlier_microbatches_are_in_memory():
    """Only the last microbatch exchanges gradients, so those of all others are whole, and units are gathered once."""
    job = {"gpu": "h100", "seq": 2048, "bandwidth": "400Gbps", "pipeline_parallel": 4, "strategy": "native"}
    own, whole = {}, 2 * workload("llama-2-7b").model.parameters // 4
    for sharding in ("zero1", "zero2", "zero3"):
        result = paceline.simulate("llama-2-7b", workers=32, microbatches=8, sharding=sharding, **job)
        own[sharding] = memory = result.sharded.memory
        assert memory.gradients_bytes == pytest.approx(whole, rel=0.1), sharding
        parts = [memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes, memory.activations_bytes]
        assert memory.peak_bytes == sum(parts) + memory.gathered_bytes + memory.communication_bytes
    assert own["zero3"].gathered_bytes == pytest.approx(whole, rel=0.1)
    again = paceline.simulate(
        "llama-2-7b", workers=32, microbatches=8, sharding="zero3", reshard_after_forward="yes", **job
    )
    assert again.sharded.memory.gathered_bytes < own["zero3"].gathered_bytes / 4


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["h100", "a100", "v100", "b200", "l4"]),
    st.sampled_from(["gpt2-small", "bert-base", "llama-3.2-1b"]),
    st.integers(1, 64),
    st.sampled_from(["none", "selective", "full"]),
    st.sampled_from(["flash", "unfused"]),
)
def test_no_model_is_faster_than_the_peak(gpu, name, batch, checkpointing, attention):
    made = workload(name, gpu, batch=batch, seq=512, checkpointing=checkpointing, attention=attention)
    matmuls = sum(6 / 2 * batch * one.flops for layer in made.model.layers for one in layer.matmuls)
    assert made.forward_s + made.backward_s > matmuls / made.hardware.peak(made.precision)
    assert all(one.forward_s > 0 and one.backward_s > 0 for one in made.timed)


def test_each_device_is_complete():
    names = [name for device in all_hardware() for name in (device.name, *device.aliases)]
    assert len(names) == len(set(names))
    for device in all_hardware():
        # A data sheet's GB may be 2^30 bytes; ECC and the driver keep some.
        stated = re.search(r" (\d+) GB", device.title)
        assert device.sources and 0.95e9 < device.memory_bytes / int(stated[1]) <= 2**30
        machine = Machine(device)
        for dtype in ("bfloat16", "float16", "float32"):
            boost = max(1.0, device.boost_hz / device.clock_hz)
            assert 0 < machine.product_rate(dtype) <= boost * max(device.peak_flops.values())
        assert (device.link_bandwidth is None) == (device.bus_bandwidth is None)
        assert device.bus_bandwidth is None or device.bus_bandwidth < device.link_bandwidth
    assert find_hardware("A100 80GB") is find_hardware("a100")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_bandwidth": -1}, "memory_bandwidth: -1 is not a number from"),
        (
            {"memory_bandwidth": 1e-300},
            r"memory_bandwidth: 1e-300 is not a number from 1e\+06 to 1e\+18",
        ),
        ({"memory_bytes": 10**400}, "memory_bytes: 1000.* is not a number from"),
        ({"launch_s": 10**400}, "launch_s: 1000.* is not a number from"),
        ({"peak_flops": {"bf16": 10**400}}, r"peak_flops\.bf16: 10000000000"),
        ({"name": "h\n100"}, "name: is not the name of a device"),
        ({"title": "H\x1b100"}, "title: is not text in one line"),
        ({"peak_flops": {"bf17": 1e12}}, "peak_flops.bf17: unknown precision"),
        ({"architecture": "kepler"}, "architecture: is not a known architecture"),
        ({"sources": []}, 'try: "sources": where the figures come from'),
        ({"color": "green"}, "color: unknown field"),
    ],
)
def test_a_wrong_device_file_names_the_field(tmp_path, change, message):
    [document] = [json.loads(run(gpus, "h100", "--json").output)]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert read_hardware(path) == find_hardware("h100")
    assert find_hardware(str(path)).name == "h100"
    path.write_text(json.dumps(document | change), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        read_hardware(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: is missing"),
        ({"hidden_size": "64"}, 'hidden_size: must be a whole number, 1-2147483648, not "64"'),
        ({"hidden_size": 66}, "num_attention_heads: 4 does not divide hidden_size, 66"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide the 4"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: must be true or false, not 1"),
        ({"model_type": "lama"}, "model_type: 'lama' is not known"),
        ({"model_type": None}, "model_type: is missing"),
        ({"num_hidden_layers": 2**31}, "num_hidden_layers: must be a whole number, 1-2000, not 2147483648"),
        (
            {"model_type": "mixtral", "num_local_experts": 2**31},
            "num_local_experts: must be a whole number, 1-4096, not 2147483648",
        ),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "max_position_embeddings: 2 leaves no position"),
        ({"model_type": "roberta", "max_position_embeddings": 1}, "max_position_embeddings: 1 leaves no position"),
        (
            {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 500},
            "num_kv_heads: 500 does not divide the 4",
        ),
        (
            {"model_type": "mpt", "d_model": 64, "n_heads": 16, "attn_config": {"kv_n_heads": 7}},
            r"attn_config\.kv_n_heads: 7 does not divide the 16",
        ),
        ({"model_type": "gpt_neox", "hidden_dropout": None}, "hidden_dropout: must be at least 0, not null"),
        ({"model_type": "gpt_neox", "hidden_dropout": 10**400}, "hidden_dropout: must be at least 0, not 10000000000"),
        ({"_name_or_path": "a\nb"}, "_name_or_path: has control characters"),
        ({"format": "paceline-trace"}, "format: is a paceline-trace, not a model's configuration"),
    ],
)
def test_a_wrong_configuration_names_file_and_field(config_file, change, message):
    config_file.write_text(json.dumps(LLAMA | change), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        model_of(read_config(config_file))
    assert str(config_file) in str(caught.value)


def test_a_configuration_file_is_a_model(config_file):
    actual = find_workload(str(config_file), gpu="a100")
    assert actual.model.name == "tiny"
    assert paceline.load_trace(f"{config_file}@a100:batch=2").batch == 2
    given = run(simulate, "--config", config_file, "--gpu", "a100", "--workers", 4, "--strategy", "ring", "--json")
    [one] = json.loads(given.stdout)
    assert one["trace"] == "tiny" and 0 < one["mfu"] < 1 and one["tokens_per_s_per_gpu"] > 0
    config_file.write_text(json.dumps(LLAMA | {"format": "x"}), encoding="utf-8")
    assert find_workload(str(config_file), gpu="a100").model == actual.model


def test_an_iteration_of_more_than_a_day_names_what_may_be_wrong():
    with pytest.raises(InvalidArgumentError, match=r"try: another size than batch 1 of 16777216 tokens \(seq\)"):
        workload("llama-3-8b", seq=2**24).trace()


def test_a_file_may_have_an_at_in_its_name(tmp_path):
    path = tmp_path / "gpt2-small@h100"
    path.write_text(paceline.load_trace("resnet-18").to_json(), encoding="utf-8")
    assert paceline.load_trace(str(path)).name == "resnet-18"
    with pytest.raises(InvalidArgumentError, match="no such file"):
        paceline.load_trace(str(tmp_path / "a@b" / "none.json"))


def test_known_families_are_all_reached():
    assert {config.kind for config in built_in_configs().values()} == set(MODEL_TYPES) - WITHOUT_A_BUILT_IN


def test_results_have_tokens_and_mfu_only_for_models():
    options = {"workers": 2, "bandwidth": "100Gbps"}
    result = paceline.simulate("gpt2-small", None, "ring", gpu="a100", seq=512, batch=4, **options)
    assert result.tokens_per_s_per_gpu == pytest.approx(result.samples_per_s / 2 * 512)
    assert result.mfu == pytest.approx(workload("gpt2-small", "a100", seq=512).mfu(result.samples_per_s / 2))
    assert "mfu" in result.to_dict()
    # Without a GPU the name is that of a recording.
    recorded = paceline.simulate("gpt2-small", None, "ring", **options)
    assert recorded.mfu is None and "mfu" not in recorded.to_dict()
    images = paceline.simulate("vit-base", None, "ring", gpu="a100", **options)
    assert images.mfu is not None and images.tokens_per_s_per_gpu is None
    text = run(simulate, "gpt2-small@a100:seq=512", "--workers", 2, "--strategy", "ring").output
    assert "MFU" in text and "tokens/s" in text


@pytest.mark.parametrize(
    ("trace", "options", "message"),
    [
        ("llama-3-8b", {}, "llama-3-8b needs a GPU type"),
        ("llama-3-8b", {"gpu": "h101"}, "try: h100"),
        ("llama-3-8c@h100", {}, "try: llama-3-8b"),
        ("resnet-50", {"gpu": "t4"}, "resnet-50 was recorded without operators to time on another GPU"),
        ("lama-3-8b", {"gpu": "h100"}, "unknown model 'lama-3-8b'"),
        ("resnet-50", {"checkpointing": "full"}, "needs a model, and resnet-50 was recorded"),
        ("resnet-50", {"dtype": "tf32"}, "tf32 is a precision of computation"),
        ("llama-3-8b@v100", {"dtype": "bf16"}, "V100 SXM2 16 GB has no bf16 matrix products"),
        ("llama-3-8b@v100", {"gpu": "h100"}, "'llama-3-8b@v100' says v100, too"),
        ("llama-3-8b@h100", {"device": "A100"}, "has no effect on llama-3-8b, whose times are computed"),
        ("llama-3-8b@h100", {"dtype": "float64"}, "unknown value 'float64'"),
        ("llama-3-8b@h100:seq=0", {}, "seq: '0' must be 1-16777216"),
        ("llama-3-8b@h100:size=3", {}, "unknown option 'size=3'"),
        ("llama-3-8b@h100:seq=8,seq=9", {}, "seq is given twice"),
        ("llama-3-8b@", {}, "has no GPU after @"),
        ("gpt2-small@h100:seq=2048", {}, "learned positions for 1024 tokens"),
        ("vit-base@h100", {"seq": 100}, "needs a model of text, and images of vit-base have 197 patches"),
    ],
)
def test_what_makes_no_sense_is_refused(trace, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        paceline.simulate(trace, None, "ring", workers=2, **options)


@pytest.mark.slow
def test_models_lists_shows_and_computes():
    listed = json.loads(run(models, "--json").output)
    assert [one["name"] for one in listed] == list(built_in_configs())
    assert "llama-3-8b" in run(models).output
    shown = json.loads(run(models, "llama-3-8b", "--gpu", "h100", "--batch", 2, "--gpus", 64, "--json").output)
    made = workload(batch=2)
    assert shown["on_gpu"]["backward_s"] == made.backward_s
    assert [row["sharding"] for row in shown["on_gpu"]["memory"]] == ["none", "zero1", "zero2", "zero3"]
    for row in shown["on_gpu"]["memory"]:
        result = paceline.simulate("llama-3-8b@h100", workers=64, batch=2, sharding=row["sharding"])
        assert row["allocated"] == pytest.approx(result.sharded.memory.peak_bytes, rel=0.01)
        assert row["total"] == pytest.approx(result.sharded.memory.total_bytes, rel=0.01)
        sums = ("sharding", "allocated", "reserved", "total", "fits", "tight")
        assert row["allocated"] == sum(value for kind, value in row.items() if kind not in sums)
    text = run(models, "llama-3-8b", "--gpu", "h100", "--gpus", 8).output
    assert "MFU" in text and "zero3" in text
    constants = json.loads(run(models, "--constants", "--json").output)
    assert [one["name"] for one in constants] == list(all_constants())
    for arguments in (["--batch", 2], ["llama-3-8b", "--batch", 2], ["llama-3-8b", "--gpus", 2], ["x", "--constants"]):
        assert run(models, *arguments).exit_code == 2
    assert "h200" in run(gpus).output and "whitepaper" in run(gpus, "h100").output


ROWS = (Path(__file__).parent / "data" / "transformers_on_one_node.csv").read_text(encoding="utf-8")


def test_rows_on_one_node_are_compared(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(ROWS, encoding="utf-8")
    actual, left_out = cases(read_rows(path))
    assert [case.name for case in actual] == ["A", "B", "C"]
    assert "more than one node" in left_out["D"] and "a collective" in left_out["E"]
    assert [(case.workload.batch, case.accumulate) for case in actual] == [(6, 1), (12, 4), (2, 4)]
    assert [case.sharding for case in actual] == ["zero3", "zero3", "zero1"]
    assert actual[1].workload.checkpointing == "full" and actual[0].workload.checkpointing == "none"
    trained, reasons = forecasts(read_rows(path))
    assert [(it.case.name, it.case.gpus, it.sharding) for it in trained] == [
        ("A", 8, "zero3"),
        ("B", 8, "zero3"),
        ("C", 8, "zero1"),
        ("D", 16, "zero1:8"),
    ]
    assert "a collective" in reasons["E"] and all(abs(it.error) < 0.08 for it in trained)
    mean, worst = spread([case.error for case in actual])
    assert mean < 0.04 and worst < 0.06
    path.write_text(ROWS.replace("seq_len", "length"), encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match="unknown column 'length'"):
        read_rows(path)


def test_a_constant_beyond_a_double_is_named():
    entry = {"name": "a", "value": 10**400, "unit": "s", "uncertainty": 0.1, "source": "here"}
    with pytest.raises(InvalidArgumentError, match=r"mine: a\.value: must be above 0, not 10000000000"):
        checked_constants([entry], "mine", {"a": "s"})


def test_constants_can_be_assumed_for_cross_validation():
    constant = all_constants()["product.issue"]
    plain = workload().compute_s
    with assuming({constant: constant.value / 2}):
        assert workload().compute_s > 1.3 * plain
    assert math.isclose(workload().compute_s, plain)
    for one in all_constants().values():
        assert one.source and (not one.calibrated or one.prior)


def test_a_pipelines_memory_is_that_of_the_stage_that_needs_most():
    question = {"pipeline_parallel": 8, "microbatches": 8, "sharding": "zero1", "workers": 8}
    memory = paceline.simulate("llama-3-8b@h100", None, "ring", **question).sharded.memory
    model = workload("llama-3-8b", pipeline_parallel=8, microbatches=8)
    # The head's logits are on the last stage, with one microbatch; the first one has eight.
    activations = [
        sum(one.activation_bytes for one in stage) * (8 - number) for number, stage in enumerate(model.stages)
    ]
    # Gradients of the gate, of what it multiplies, and of the block's result, in one microbatch.
    gradients = 2 * 8192 * (2 * 14336 + 4096)
    assert memory.activations_bytes == pytest.approx(activations[0] + gradients, rel=1e-6)
    assert activations[0] < sum(one.activation_bytes for one in model.timed) * 8 / 1.5
    state = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    assert memory.peak_bytes == state + memory.activations_bytes


def test_a_pipelines_peak_grows_evenly_with_the_microbatch():
    ways = {"tensor_parallel": 8, "pipeline_parallel": 8, "microbatches": 8, "gpus_per_node": 8}
    question = ways | {"sharding": "zero1", "workers": 512, "checkpointing": "full"}
    memory = [
        paceline.simulate("gpt3-175b@a100", None, "ring", batch=batch, **question).sharded.memory
        for batch in (1, 2, 4, 8)
    ]
    # Those of all parameters, and the largest tensor's, which is being added: a GPU's part of h x 4h in two bytes.
    added = 12288 * 4 * 12288 // 8 * 2
    assert all(one.gradients_bytes == one.parameters_bytes + added for one in memory)
    more = [one.peak_bytes - memory[0].peak_bytes for one in memory]
    assert more == pytest.approx([0, more[1], 3 * more[1], 7 * more[1]], rel=1e-6)


def test_what_relieves_a_gpu_of_a_pipeline_is_said_in_its_options():
    words = run(simulate, "llama-3-8b@h100", "--gpus", 64, "--pipeline-parallel", 8, "--microbatches", 8, "--batch", 4)
    ways = cli.facts(words.output)["Fits with"]
    assert " --checkpointing " in ways and re.search(r" --batch \d --microbatches \d+:", ways)


def test_a_tight_fit_is_no_plain_yes():
    words = ["gpt2-xl", "--gpu", "a100", "--gpus", "8", "--batch"]
    said = {batch: cli.printed("models", *words, batch) for batch in (20, 24, 28)}
    zero3 = {
        batch: next(line for line in text.splitlines() if line.startswith("zero3")) for batch, text in said.items()
    }
    assert [line.split()[-1] for line in zero3.values()] == ["yes", "tightly", "no"]


def test_sweeps_take_the_options_of_models():
    options = {"gpu": "h100", "checkpointing": "full", "batch": 2, "seq": 2048}
    actual = paceline.sweep("llama-3-8b", workers=[8, 16], strategy="native", sharding=["zero2", "zero3"], **options)
    for one in actual:
        own = {"sharding": one.sharded.sharding, "workers": one.workers, "strategy": "native"}
        assert one.iteration_s == paceline.simulate("llama-3-8b", **own, **options).iteration_s
    with pytest.raises(InvalidArgumentError, match="checkpointing: needs a model, and resnet-50 was recorded"):
        paceline.sweep("resnet-50", workers=8, checkpointing="full")


@pytest.mark.parametrize(("checkpointing", "passes"), [("none", 2), ("full", 3)])
def test_all_reduces_of_tensor_parallel_gpus_are_told_apart(checkpointing, passes):
    options = {"gpu": "h100", "tensor_parallel": 8, "checkpointing": checkpointing, "gpus_per_node": 8}
    result = paceline.simulate(
        "llama-3-8b", None, "native", workers=16, sharding="zero1", bandwidth="3.2Tbps", **options
    )
    # Two of 8192 x 4096 in 16 bits a block and pass, of 32 blocks, in a ring of 8 GPUs.
    one = 2 * 7 / 8 * 8192 * 4096 * 2 / find_hardware("h100").bus_bandwidth
    hops = result.tensor_parallel_s / (passes * 64) - one
    assert 0 < hops < 0.2 * one
    assert result.tensor_parallel_s < result.compute_s
    words = ("llama-3-8b@h100", "--gpus", 16, "--tensor-parallel", 8, "--sharding", "zero1")
    words = (*words, "--checkpointing", checkpointing)
    answer = cli.facts(run(simulate, *words).output)
    share = result.tensor_parallel_s / result.compute_s
    assert f", {100 * share:.1f}% of compute: all-reduces between TP GPUs, never hidden" in answer["TP"]
    assert "2x faster compute, including TP all-reduces" in answer["Would help"]
    # Links of twice the rate halve it, but for the hops.
    [inside] = re.findall(r"([\d.]+)x 2x intra-node bandwidth", answer["Would help"])
    assert float(inside) == pytest.approx(1 / (1 - (passes * 64 * one / 2) / result.iteration_s), rel=0.02)
    assert "tensor_parallel_s" not in paceline.simulate("llama-3-8b", None, "native", workers=16, gpu="h100").to_dict()


@pytest.mark.parametrize(
    ("name", "gradients"), [("gpt2-small", 2 + 12 * 12 + 2), ("gpt2-xl", 2 + 48 * 12 + 2), ("llama-3-8b", 291)]
)
def test_models_have_as_many_gradients_as_pytorchs(name, gradients):
    assert len(workload(name).trace().workers[0].gradients) == gradients


def test_gpus_that_a_cluster_does_not_have_are_said():
    def notes(*words):
        given = ("gpt2-small", "--gpus", "8", "--sharding", "zero3", "--seq", "256", *words, "--json")
        [actual] = json.loads(cli.printed("simulate", *given))
        return [note for note in actual["notes"] if "links those of" in note]

    [note] = notes("--gpu", "a100", "--cluster", "dgx-h100")
    assert "of the A100" in note and "links those of dgx-h100, which has the H100" in note
    assert not notes("--gpu", "h100", "--cluster", "dgx-h100") + notes("--gpu", "a100")
    assert not notes("--gpu", "a100", "--cluster", "25g-ethernet")


def test_tables_count_what_was_typed():
    words = ("simulate", "gpt2-small@h100", "--tensor-parallel", "4", "--strategy", "native", "--seq", "128")
    for option, column in (("--gpus", ["8", "16"]), ("--workers", ["2", "4"])):
        header, rows = cli.table(cli.printed(*words, option, "8,16"))
        assert header.startswith(f"{option.removeprefix('--').replace('gpus', 'GPUs')} ")
        assert [row.split()[0] for row in rows] == column


def test_setup_names_accumulation():
    words = ("simulate", "gpt2-small@h100", "--gpus", "8", "--strategy", "native", "--seq", "128")
    assert "batch 1 per GPU, 4 accum steps, " in cli.facts(cli.printed(*words, "--accumulate", "4"))["Setup"]
    assert "accum steps" not in cli.facts(cli.printed(*words))["Setup"]


def test_gpus_are_workers_in_python_too():
    one = paceline.simulate("gpt2-small", gpu="h100", gpus=8, seq=128, tensor_parallel=4, strategy="native")
    assert (one.workers, one.gpus_per_worker) == (2, 4)
    assert [it.workers for it in paceline.sweep("resnet-50", strategy="ring", gpus=[2, 4])] == [2, 4]
    for call in (paceline.simulate, paceline.sweep):
        with pytest.raises(InvalidArgumentError, match=r"workers: needs the numbers? of ranks"):
            call("resnet-50", strategy="ring")
        with pytest.raises(InvalidArgumentError, match="gpus: means the same as workers"):
            call("resnet-50", strategy="ring", gpus=2, workers=2)
