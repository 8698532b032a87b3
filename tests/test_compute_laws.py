"""Laws of a workload's time and memory: what is slower takes no less time, what is frozen keeps no more."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
import tiers
from hypothesis import given
from hypothesis import strategies as st
from paceline.catalog.gpus import find_hardware
from paceline.catalog.models.config import Config, find_config
from paceline.catalog.models.spec import workload_of
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError
from paceline.operators.queues import Program, Queues

_EXACT = 1 + 1e-9
_TIMES = st.floats(1e-6, 1e-3)
_STEPS = st.lists(st.tuples(st.lists(_TIMES, max_size=3), _TIMES, st.booleans()), min_size=1, max_size=12)


def _program(steps):
    program = Program()
    for kernels, host_s, waits in steps:
        program = program.then(Program.of(kernels, host_s, waits=waits))
    return program


@given(_STEPS)
def test_a_program_that_starts_in_a_steady_state_takes_its_period(steps):
    program = _program(steps)
    queues = program.steady
    assert queues.done_s == 0
    for count in range(1, 4):
        program.run(queues)
        assert queues.done_s == pytest.approx(count * program.period_s, rel=1e-9)


@given(_STEPS)
def test_a_period_is_what_many_runs_take_each(steps):
    program, queues = _program(steps), Queues()
    for _ in range(1000):
        program.run(queues)
    begun = queues.done_s
    for _ in range(2):
        program.run(queues)
    # Where both queues wait for each other, it is every second run that is alike.
    assert queues.done_s - begun == pytest.approx(2 * program.period_s, rel=1e-6)


@given(_STEPS, st.integers(0, 1000), st.floats(0, 1e-3))
def test_no_operator_that_takes_longer_shortens_a_period(steps, place, more_s):
    kernels, host_s, waits = steps[place % len(steps)]
    longer = list(steps)
    longer[place % len(steps)] = ([one + more_s for one in kernels], host_s, waits)
    assert _program(longer).period_s * _EXACT >= _program(steps).period_s
    longer[place % len(steps)] = (kernels, host_s + more_s, waits)
    assert _program(longer).period_s * _EXACT >= _program(steps).period_s


def _config(name: str) -> Config:
    config = find_config(name)
    assert config is not None
    return config


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("llama-3.2-1b", {"seq": 512, "lora": "8"}),
        ("qwen3-0.6b", {"seq": 512, "lora": "8"}),
        ("qwen3-0.6b", {"seq": 128, "optimizer_impl": "loop"}),
        ("gpt2-small", {"seq": 128, "kernels": "compiled", "optimizer": "adafactor"}),
        ("bert-base", {"precision": "amp-bf16"}),
        ("vit-base", {"kernels": "eager"}),
        ("deepseek-v2-lite", {"seq": 128, "checkpointing": "full"}),
        ("llama-3.2-1b", {"seq": 128, "pipeline_parallel": 2, "microbatches": 4, "virtual_stages": 2}),
    ],
)
@pytest.mark.parametrize("gpu", ["h20", "rtx-4090", "b200"])
def test_more_samples_and_slower_gpus_take_no_less_time(model, options, gpu):
    config, hardware = _config(model), find_hardware(gpu)
    assert hardware.power_w is not None
    small = workload_of(config, hardware, batch=1, **options)
    slower = [
        *(workload_of(config, hardware, batch=batch, **options) for batch in (2, 3, 8)),
        workload_of(config, replace(hardware, memory_bandwidth=hardware.memory_bandwidth / 2), batch=1, **options),
        workload_of(config, hardware, batch=1, power_limit=0.5 * hardware.power_w, **options),
    ]
    for one in slower:
        assert one.compute_s * _EXACT >= small.compute_s
        # A rank of a shard takes its share of the update.
        shard = [made.compute_s - 7 / 8 * made.optimizer_s for made in (one, small)]
        assert shard[0] * _EXACT >= shard[1]
    for few, many in itertools.pairwise(slower[:3]):
        assert many.compute_s * _EXACT >= few.compute_s


def test_durations_of_layers_and_of_the_update_are_an_iteration():
    made = workload_of(_config("llama-3.2-1b"), "a100", 512, 1, lora="8")
    assert min(min(one.forward_s, one.backward_s) for one in made.timed) >= 0
    sums = [math.fsum(getattr(one, name) for one in made.timed) for name in ("forward_s", "backward_s")]
    assert made.compute_s == pytest.approx(sum(sums) + made.optimizer_s, rel=1e-12)


def test_the_host_bounds_adapters_alike_on_gpus_that_are_fast_enough():
    """The host dispatches the same operators to each."""
    seconds = [workload_of(_config("llama-3.2-1b"), gpu, 512, 1, lora="8").compute_s for gpu in ("b200", "h100")]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-6)
    assert seconds[0] <= seconds[1] * _EXACT


def _some_frozen(seed: int) -> tuple[Workload, Workload]:
    """Return a workload, and the same with some layers frozen."""
    chance = random.Random(seed)
    config = _config(chance.choice(["qwen3-0.6b", "gpt2-small", "bert-base", "gpt-oss-20b", "deepseek-v2-lite"]))
    options = {
        "checkpointing": chance.choice(["none", "selective", "full"]),
        "kernels": chance.choice(["eager", "fused", "compiled"]),
        "attention": chance.choice(["flash", "unfused"]),
        "precision": chance.choice(["mixed", "bf16", "megatron", "amp-bf16"]),
    }
    try:
        trained = workload_of(config, "h100", 512, 4, **options)
    except InvalidArgumentError:
        return _some_frozen(seed + 1000)
    names = [layer.name for layer in trained.model.layers]
    frozen = chance.choice(
        [["*embed*"], ["*layers.?.*"], chance.sample(names, 1), chance.sample(names, len(names) // 2)]
    )
    return trained, workload_of(config, "h100", 512, 4, freeze=frozen, **options)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_frozen_keeps_no_more_and_takes_no_longer(seed):
    trained, frozen = _some_frozen(seed)
    assert frozen.memory().activations <= trained.memory().activations
    assert frozen.memory().total <= trained.memory().total
    assert frozen.compute_s <= trained.compute_s * _EXACT


def _least_s(made: Workload) -> float:
    """Return the seconds of a pass whose kernels run at the peak: scores of a causal mask are half of all."""
    peaks, own = made.hardware.peak_flops, made.hardware.peak(made.precision)
    emulated = peaks.get("tf32", 0.0) / 3 if made.precision == "fp32" and made.attention != "unfused" else 0.0
    mixed = [
        (1 + 2 * layer.has_backward) * layer.attention.flops * (0.5 if layer.attention.causal else 1)
        for layer in made.model.layers
        if layer.attention is not None
    ]
    everything = [(1 + 2 * layer.has_backward) * layer.mixing_flops for layer in made.model.layers]
    dense = made.model.flops - math.fsum(everything)
    return made.batch * (dense / own + math.fsum(mixed) / max(own, emulated))


@pytest.mark.parametrize("seed", tiers.some(range(32), 4))
def test_no_gpu_computes_faster_than_its_peaks(seed):
    chance = random.Random(seed)
    model = chance.choice(
        ["llama-3.2-1b", "llama-3-8b", "qwen3-0.6b", "bert-base", "gpt2-small", "t5-base", "vit-base"]
    )
    hardware = find_hardware(chance.choice(["v100", "t4", "a100", "h100", "h20", "b200", "l4", "rtx-4090", "mi300x"]))
    dtype = chance.choice(list(hardware.peak_flops))
    options = {
        "seq": None if model == "vit-base" else chance.choice([512, 4096, 65536]),
        "kernels": chance.choice(["eager", "fused", "compiled"]),
        "attention": chance.choice(["flash", "flash", "flash-2", "unfused"]),
    }
    try:
        made = workload_of(_config(model), hardware, batch=chance.choice([1, 8]), dtype=dtype, **options)
    except InvalidArgumentError:
        pytest.skip("one excludes another")
    boost = max(1.0, (hardware.boost_hz or 0.0) / hardware.clock_hz)
    assert _least_s(made) <= boost * (made.forward_s + made.backward_s)


@pytest.mark.parametrize("gpu", ["a100", "b200", "h100", "v100", "mi300x"])
def test_attention_in_fp32_takes_no_time_of_16_bits(gpu):
    """CUTLASS's kernels took 3.2 to 4.3 times as long as in FP16 on an A100 (facebookresearch/xformers#587)."""
    config, halves = _config("llama-3.2-1b"), find_hardware(gpu).half_peak
    made = workload_of(config, gpu, 131072, 1, dtype="fp32")
    assert made.mfu(1 / made.compute_s) < 1
    attention = math.fsum(3 * one.attention.flops / 2 for one in made.model.layers if one.attention is not None)
    assert made.compute_s > 3.2 * attention / halves
