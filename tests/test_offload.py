"""Offloading: what the host has instead of the GPU, what copies and the CPU's step take, and contradictions."""

import itertools
import json
import re

import paceline
import pytest
from click.testing import CliRunner
from paceline.catalog.models.spec import find_workload
from paceline.catalog.offload import Offload, parse_offload, rate
from paceline.cli.main import main
from paceline.errors import InvalidArgumentError
from paceline.forecast.kinds import Measure, Resource
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline.forecast.run import result_of
from paceline.forecast.verdict.bottleneck import bottleneck, reliefs
from paceline.settings.table import SIMULATE

COUNT = 8_030_261_248


def forecast(word="llama-3-8b@a100", **options):
    given = {
        **{"workers": 8, "strategy": "native", "sharding": "zero3", "precision": "bf16", "checkpointing": "full"},
        **options,
    }
    return paceline.simulate(word, **given)


EVERYDAY = [("none", "mixed"), ("zero1", "bf16"), ("zero2", "o2"), ("zero3", "fsdp-mixed"), ("zero3", "amp-bf16")]
PRECISIONS = ("bf16", "mixed", "o2", "fsdp-mixed", "amp-bf16")


@pytest.mark.parametrize(
    ("sharding", "precision"),
    [
        pytest.param(*pair, marks=() if pair in EVERYDAY else pytest.mark.slow)
        for pair in itertools.product(("none", "zero1", "zero2", "zero3"), PRECISIONS)
        # FSDP alone has it.
        if pair[1] != "fsdp-mixed" or pair[0] == "zero3"
    ],
)
@pytest.mark.parametrize("offload", ["cpu", "nvme", "cpu:states", "cpu:activations", "cpu:states,activations"])
def test_offloading_never_needs_more_of_the_gpu_and_is_never_faster(sharding, offload, precision):
    options = {"sharding": sharding, "precision": precision, "seq": 1024}
    plain, moved = (forecast("gpt2-xl@a100", **options, offload=one) for one in (None, offload))
    assert moved.sharded.memory.peak_bytes <= plain.sharded.memory.peak_bytes
    assert moved.iteration_s >= plain.iteration_s * (1 - 1e-7)
    assert plain.sharded.host is None


def test_states_and_gradients_on_the_host_are_those_of_the_gpu():
    plain, moved = forecast(), forecast(offload="cpu")
    host = moved.sharded.host
    assert host.memory["optimizer states"] == pytest.approx(plain.sharded.memory.optimizer_bytes, rel=1e-3)
    assert host.memory["parameters"] == pytest.approx(plain.sharded.memory.parameters_bytes, rel=1e-3)
    assert host.memory["gradients"] == pytest.approx(2 * COUNT / 8, rel=1e-6)
    # 2 of parameters, 2 of gradients, 4 of moments: the whole model's, on one node.
    assert host.node_bytes == pytest.approx(8 * COUNT, rel=1e-6)
    memory = moved.sharded.memory
    assert (memory.parameters_bytes, memory.optimizer_bytes) == (0, 0)
    # Of a unit at a time: the largest is the head with its norm.
    assert memory.gradients_bytes <= 2 * (128256 + 1) * 4096


OFFLOADED = [("mixed", "zero3"), ("fsdp-mixed", "hsdp"), ("amp-bf16", "zero3"), ("fp8", "zero3")]


@pytest.mark.parametrize("target", ["cpu", "nvme"])
@pytest.mark.parametrize(
    ("precision", "sharding"),
    [
        pytest.param(*pair, marks=() if pair in OFFLOADED else pytest.mark.slow)
        for pair in itertools.product((*PRECISIONS, "megatron", "fp8", "fp32"), ("zero3", "hsdp"))
    ],
)
@pytest.mark.parametrize(
    "options", [{"workers": 16}, {"workers": 16, "lora": 16}, {"workers": 16, "tensor_parallel": 2}], ids=str
)
def test_the_host_has_what_the_gpu_holds_no_longer(precision, sharding, target, options):
    # A fused step has no temporaries, which would be among the states.
    options = {"seq": 512, "precision": precision, "sharding": sharding, "optimizer_impl": "fused", **options}
    plain, *moved = (
        forecast("gpt2-large@h100", **options, offload=offload).sharded
        for offload in (None, f"{target}:parameters", f"{target}:states")
    )
    for own, kind, name in zip(moved, ("parameters", "optimizer"), ("parameters", "optimizer states"), strict=True):
        held, left = (getattr(one.memory, f"{kind}_bytes") for one in (plain, own))
        assert left == 0
        assert held == pytest.approx(own.host.drives or own.host.memory[name], rel=1e-3)


def test_deepspeed_needs_sixteen_bytes_of_the_host_for_a_parameter():
    host = forecast(sharding="zero2", precision="o2", offload="cpu").sharded.host
    assert host.node_bytes == pytest.approx(16 * COUNT, rel=1e-6)


def test_the_step_is_bound_by_the_memory_of_the_host():
    offloaded = forecast(sharding="zero2", precision="o2", offload="cpu:states")
    # Masters, moments and 16-bit gradients are read; masters, moments and parameters written: 28 bytes a parameter.
    back_s = 2 * COUNT / 8 / rate("pcie-4")
    assert offloaded.optimizer_s == pytest.approx(28 * COUNT / rate("memory") + back_s, rel=1e-3)
    drives = forecast(sharding="zero2", precision="o2", offload="nvme")
    assert drives.optimizer_s == pytest.approx(2 * 12 * COUNT / rate("nvme") + back_s, rel=1e-3)
    assert drives.sharded.host.drives == pytest.approx(12 * COUNT / 8, rel=1e-6)
    assert "optimizer states" not in drives.sharded.host.memory


def test_a_step_operator_by_operator_takes_as_much_longer_as_zero_offload_measured():
    fused, foreach = (
        forecast(precision="fsdp-mixed", offload="cpu", optimizer_impl=one).optimizer_s for one in ("fused", "foreach")
    )
    # J. Ren et al., "ZeRO-Offload", 2021, table 4: 5.1 to 6.4, with what is dispatched.
    assert 5.1 < foreach / fused < 6.4


def test_activations_on_the_host_are_those_of_blocks():
    plain, moved = (forecast(checkpointing=one) for one in ("full", "offload"))
    inputs = 32 * 8192 * 4096 * 2
    assert moved.sharded.host.memory == {"activations": inputs}
    assert plain.sharded.memory.peak_bytes - moved.sharded.memory.peak_bytes <= inputs
    assert moved.iteration_s == pytest.approx(plain.iteration_s, rel=1e-6)
    # Copies of all that a block keeps take longer than to compute it.
    every = forecast(checkpointing="none", offload="cpu:activations")
    assert every.forward_s == pytest.approx(every.sharded.host.memory["activations"] / rate("pcie-4"), rel=1e-6)
    assert every.forward_s > plain.forward_s


def test_a_reference_is_on_the_host_with_the_parameters():
    plain, compared = (forecast(offload="cpu", loss=one, batch=2).sharded for one in ("lm", "dpo"))
    assert compared.host.memory["parameters"] == pytest.approx(2 * plain.host.memory["parameters"], rel=1e-6)
    assert compared.memory.parameters_bytes == 0


def test_a_rented_host_has_enough_memory_or_not():
    result = [forecast(offload="cpu", precision="o2", cluster=one).sharded for one in ("a2-ultra", None)]
    assert result[0].host.fits is True and result[1].host.fits is None
    large = forecast("llama-3.1-405b@a100", offload="cpu", precision="o2", cluster="a2-ultra").sharded
    assert large.host.fits is False and large.fits is False
    assert large.host.node_bytes > large.host.capacity_bytes


def test_states_on_the_host_have_no_interval():
    assert forecast(offload="cpu").interval is None
    assert forecast(offload="cpu:activations").interval is not None


def test_a_superchip_copies_faster_than_a_slot():
    assert find_workload("llama-3-8b@gh200").hardware.host_link == "c2c"
    slot, chip = (forecast(f"gpt2-xl@{gpu}", workers=1, offload="cpu", kernels="compiled") for gpu in ("h100", "gh200"))
    assert chip.forward_s <= slot.forward_s


def test_gradients_that_are_used_in_the_backward_pass_are_let_go():
    plain, own = (forecast(workers=1, sharding="none", optimizer_impl=one) for one in ("foreach", "in-backward"))
    assert own.sharded.memory.gradients_bytes <= 2 * (128256 + 1) * 4096
    assert plain.sharded.memory.peak_bytes - own.sharded.memory.peak_bytes > COUNT
    eight = forecast(workers=1, sharding="none", optimizer="adamw-8bit", optimizer_impl="in-backward")
    assert eight.sharded.memory.peak_bytes < own.sharded.memory.peak_bytes


def test_paged_states_are_of_the_host_at_most():
    host = forecast(optimizer="paged-adamw-8bit").sharded.host
    assert host.memory["paged states"] == pytest.approx(2 * COUNT / 8, rel=1e-2)


def test_the_host_is_in_text_and_json():
    options = ["--gpus", "8", "--sharding", "zero3", "--strategy", "native", "--offload", "cpu"]
    words = ["simulate", "llama-3-8b", "--gpu", "a100", *options]
    text = CliRunner().invoke(main, words).output
    assert "Host memory" in text and "per node" in text
    (row,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)
    host = row["sharded"]["host"]
    own = host["states_bytes"] + host["gradients_bytes"] + host["parameters_bytes"]
    assert host["node_bytes"] == 8 * own and host["nvme_bytes"] == 0
    text = CliRunner().invoke(main, [*words[:-1], "nvme:parameters"]).output
    assert "Host memory  32.1 GB on NVMe per node\n" in text


@pytest.mark.parametrize(
    ("text", "offload"),
    [
        ("cpu", Offload()),
        ("nvme", Offload("nvme")),
        ("cpu:states", Offload("cpu", ("states",))),
        ("cpu:activations+states", Offload("cpu", ("states", "activations"))),
    ],
)
def test_places_and_parts_are_read(text, offload):
    assert parse_offload(text) == offload
    assert offload.parts(gathers=True) == (offload.named or ("parameters", "states"))
    assert "parameters" not in offload.parts(gathers=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offload": "disk"}, "'disk' is no place of a host"),
        ({"offload": "disk"}, "none, cpu:parameters, cpu:states"),
        ({"offload": "cpu"} | {"optimizer": "paged-adamw-8bit"}, "offload='cpu:parameters' with sharding='zero3'"),
        ({"offload": "cpu:"}, "'' is no part of training"),
        ({"offload": "cpu:weights"}, "'weights' is no part of training"),
        ({"offload": "nvme:activations"}, "not on a drive"),
        ({"offload": "cpu:parameters", "sharding": "zero2"}, "which only zero3 and hsdp do"),
        ({"offload": "cpu", "optimizer": "adamw-8bit"}, "adamw-8bit has no kernels for CPUs"),
        ({"offload": "cpu", "optimizer": "muon"}, "muon has no kernels for CPUs"),
        ({"offload": "cpu", "pipeline_parallel": 2, "microbatches": 8}, "is not modeled with stages"),
        ({"optimizer_impl": "in-backward", "accumulate": 2}, "needs every gradient whole after one pass"),
        ({"optimizer_impl": "in-backward", "offload": "cpu"}, "in-backward contradicts states on the host"),
    ],
)
def test_what_contradicts_itself_is_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        forecast(**options)


@pytest.mark.parametrize("impl", ["fused", "foreach", "loop"])
def test_a_step_of_many_small_tensors_is_no_faster_on_the_host(impl):
    options = {"workers": 2, "sharding": "zero1", "seq": 512, "lora": "1", "optimizer_impl": impl}
    plain, moved = (forecast("deepseek-v2-lite@rtx-4090", **options, offload=one) for one in (None, "cpu:states"))
    assert moved.iteration_s >= plain.iteration_s
    assert moved.optimizer_s >= plain.optimizer_s


def called(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def scenario_of(word="llama-3-8b@h100", **options):
    given = {"workers": 4, "strategy": "native", "seq": 2048, **options}
    (scenario,) = prepare(Sweep.of([word], given, SIMULATE, "keyword")).scenarios
    return scenario


WAITING = [
    ({"sharding": "zero3", "offload": "nvme"}, Resource.DRIVE),
    ({"sharding": "zero2", "offload": "cpu"}, Resource.CPU_STEP),
    ({"lora": "16", "offload": "cpu:activations"}, Resource.HOST_LINK),
    ({"sharding": "zero3", "offload": "nvme", "accumulate": 3}, Resource.DRIVE),
    ({"workers": 1, "offload": "cpu:states"}, Resource.CPU_STEP),
]


@pytest.mark.parametrize(("options", "part"), WAITING)
def test_offloading_is_the_bottleneck_by_name_and_its_reliefs_help(options, part):
    scenario = scenario_of(**options)
    result = result_of(scenario)
    assert bottleneck(result) is part
    assert sum(one.seconds for one in result.critical_path) == pytest.approx(result.iteration_s, rel=1e-6)
    assert 0 < result.offload_s < result.compute_s
    gains = {one.measure: one.gain for one in reliefs(scenario, result)}
    assert gains[Measure[part.name]] > 1.3 and gains[Measure.COMPUTE] < 1.2
    # One GPU has no room for all states.
    assert gains.get(Measure.LESS_OFFLOADED, 0.0) > 1.3 or scenario.workers == 1


@pytest.mark.parametrize(("options", "_"), WAITING)
@pytest.mark.parametrize("factor", [0.05, 0.5, 3.0, 100.0])
def test_a_pass_is_the_longer_one_of_computation_and_copies_at_any_speed(options, _, factor):
    scenario = scenario_of(**options)
    own, other = result_of(scenario), result_of(scenario.changed(compute_speedup=factor))
    copies = result_of(scenario.changed(compute_speedup=1e6))
    passes = options.get("accumulate", 1)
    for name in ("forward_s", "backward_s"):
        computed_s = passes * getattr(scenario.trace, name) / factor
        assert getattr(other, name) == pytest.approx(max(computed_s, getattr(copies, name)), rel=1e-6)
    if "activations" not in options["offload"]:
        assert other.optimizer_s == own.optimizer_s


def test_all_that_makes_a_gpu_slower_or_faster_leaves_copies_as_they_are():
    options = {"lora": "16", "offload": "cpu:activations"}
    scenario = scenario_of(**options)
    base = result_of(scenario).iteration_s
    rate = 2 * 4 / (scenario.trace.forward_s + scenario.trace.backward_s + scenario.trace.optimizer_s)
    for change in ({"power_limit": "400W"}, {"stragglers": "0:1.5"}, {"samples_per_s": rate}, {"compute_speedup": 2}):
        assert result_of(scenario_of(**options, **change)).iteration_s == pytest.approx(base, rel=0.01), change
    late = result_of(scenario_of(**options, stragglers="0:6")).iteration_s
    alone = result_of(scenario.changed(compute_speedup=1 / 6)).iteration_s
    assert late == pytest.approx(alone, rel=0.03) and late > 1.5 * base


@pytest.mark.parametrize(("options", "_"), WAITING)
@pytest.mark.parametrize("factor", [1.5, 8.0])
def test_one_slow_gpu_takes_the_path_that_all_would_take(options, _, factor):
    one = result_of(scenario_of(**options, stragglers=f"0:{factor}"))
    every = result_of(scenario_of(**options).changed(compute_speedup=1 / factor))
    assert one.iteration_s == pytest.approx(every.iteration_s, rel=1e-9)
    ours, theirs = ({it.part: it.seconds for it in result.critical_path} for result in (one, every))
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_jitter_multiplies_computation_and_no_copies():
    options = {"sharding": "zero3", "offload": "nvme"}
    clusters = [paceline.load_cluster("dgx-a100").replace(jitter=jitter) for jitter in (None, 0.1)]
    calm, noisy = (result_of(scenario_of(**options, cluster=cluster)) for cluster in clusters)
    assert noisy.iteration_s == pytest.approx(calm.iteration_s, rel=1e-6)


def test_a_measured_time_scales_the_gpu_and_is_not_below_what_is_offloaded():
    words = ("llama-3-8b", "--gpu", "h100", "--gpus", 4, "--seq", 2048, "--strategy", "native", "--lora", 16)
    words = ("simulate", *words, "--offload", "cpu:activations", "--json")
    (row,) = json.loads(called(*words).stdout)
    seconds = 2 * row["iteration_s"]
    (scaled,) = json.loads(called(*words, "--measured", f"{seconds}s@4").stdout)
    assert scaled["iteration_s"] == pytest.approx(seconds, rel=1e-3)
    gpu_s = row["forward_s"] + row["backward_s"] + row["optimizer_s"] - row["offload_s"]
    assert scaled["measured_scale"] == pytest.approx(seconds / gpu_s, rel=0.05)
    refused = called(*words, "--measured", f"{0.5 * row['iteration_s']}s@4")
    assert refused.exit_code != 0 and "of offloading and communication alone" in refused.output


def test_the_answers_name_offloading_and_what_relieves_it():
    words = ("llama-3-8b", "--gpu", "h100", "--seq", 2048, "--sharding", "zero3", "--offload", "nvme")
    text = called("simulate", *words, "--gpus", 4, "--strategy", "native").output
    assert "Bottleneck   offload (NVMe drive)" in text and "2x faster NVMe drive" in text
    assert re.search("x +--offload none", text) and "faster compute" not in text and " with offload" in text
    alone = called("simulate", "llama-3-8b", "--gpu", "h100", "--gpus", 1, "--offload", "cpu").output
    assert "offload (CPU optimizer step)" in alone and "2x faster CPU optimizer step" in alone
    assert "Adam on the CPU (fused)" in alone and "--optimizer-impl" not in alone
    by_operator = called(
        "simulate", *words[:-1], "cpu", "--gpus", 4, "--precision", "fsdp-mixed", "--strategy", "native"
    )
    assert "Adam on the CPU (foreach)" in by_operator.output
    assert re.search("x +--optimizer-impl fused", by_operator.output)
    assert "Bottleneck   offload (NVMe drive)" in called("advise", *words, "--gpus", 8, "--batch", 1).output
