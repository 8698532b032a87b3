"""Adapters and frozen parts: which parameters are trained, and what that costs."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import paceline
import pytest
import tiers
from paceline.catalog.adapters import parse_adapter
from paceline.catalog.models.config import built_in_configs
from paceline.catalog.models.memory import activation_bytes
from paceline.catalog.models.modules import operators_of
from paceline.catalog.models.spec import find_workload, workload_of
from paceline.catalog.models.workload import Workload
from paceline.catalog.optimizers import states_of
from paceline.catalog.recipes import recipe_of
from paceline.errors import InvalidArgumentError
from paceline.forecast.footprint import FULLEST
from paceline.forecast.wording.sharding import fit

_LLAMA_8B = {"q": (4096, 4096), "k": (4096, 1024), "v": (4096, 1024), "o": (4096, 4096)}
_LLAMA_8B_MLP = {"gate": (4096, 14336), "up": (4096, 14336), "down": (14336, 4096)}


def workload(word: str, **options: object) -> Workload:
    """Return the workload of a word with options."""
    actual = find_workload(word, **options)
    assert actual is not None
    return actual


@pytest.mark.parametrize(
    ("modules", "shapes"),
    [
        ("all-linear", {**_LLAMA_8B, **_LLAMA_8B_MLP}),
        ("attention", _LLAMA_8B),
        ("mlp", _LLAMA_8B_MLP),
        ("q_proj,v_proj", {name: _LLAMA_8B[name] for name in "qv"}),
        ("down_proj", {"down": _LLAMA_8B_MLP["down"]}),
    ],
)
@pytest.mark.parametrize("rank", [1, 16, 64])
def test_an_adapter_has_rank_times_inputs_and_outputs(
    modules: str, shapes: dict[str, tuple[int, int]], rank: int
) -> None:
    model = workload("llama-3-8b@h100", lora=f"{rank}:{modules}").model
    assert model.trained_parameters == 32 * rank * sum(map(sum, shapes.values()))
    assert model.parameters - model.trained_parameters == 8_030_261_248


def test_dora_also_trains_a_value_of_each_output() -> None:
    plain, dora = (workload("llama-3-8b@h100", lora="16:q_proj", dora=it).model for it in (None, True))
    assert dora.trained_parameters - plain.trained_parameters == 32 * 4096


@pytest.mark.parametrize(
    ("word", "lora", "trained"),
    [
        # peft.get_peft_model(...).print_trainable_parameters() of the same models.
        ("gpt2-small@a100", "8:c_attn", 294_912),
        ("bert-base@a100", "8:query,value", 294_912),
        ("t5-small@a100", "8:q,v", 294_912),
        ("mixtral-8x7b@h100", "16:q_proj,k_proj,v_proj,o_proj", 13_631_488),
    ],
)
def test_modules_bear_the_names_of_their_family(word: str, lora: str, trained: int) -> None:
    assert workload(word, lora=lora).model.trained_parameters == trained


def test_frozen_layers_have_no_gradient() -> None:
    trace = workload("gpt2-small@a100", freeze=["model.embed", "model.layers.?.*"]).trace()
    assert not [
        one.tensor for one in trace.workers[0].gradients if one.tensor.startswith(("model.embed", "model.layers.3"))
    ]
    assert "model.layers.9.mlp.up.weight" in dict(trace.frozen)
    assert "model.layers.10.mlp.up.weight" not in dict(trace.frozen)


def test_layers_can_be_without_adapters() -> None:
    every = workload("gpt2-small@a100", lora="8").model.trained_parameters
    some = workload("gpt2-small@a100", lora="8", freeze=["model.layers.?.*"]).model.trained_parameters
    assert some * 12 == every * 2


@pytest.mark.parametrize(
    ("lora", "widths"),
    [
        ("16:experts", (2048 + 2 * 768) + (768 + 2048)),
        ("16:experts.down_proj", 768 + 2048),
        ("16:experts.gate_up_proj", 2048 + 2 * 768),
    ],
)
@pytest.mark.parametrize("ways", [1, 8])
def test_each_expert_has_adapters_of_its_own(lora: str, widths: int, ways: int) -> None:
    made = workload("qwen3-30b-a3b@h100", lora=lora, **({"expert_parallel": ways} if ways > 1 else {}))
    assert made.model.trained_parameters == 48 * 128 * 16 * widths
    assert made.own.trained_parameters * ways == made.model.trained_parameters
    # A token uses 8 of 128 experts, and adapters of these alone.
    plain = workload("qwen3-30b-a3b@h100").model
    assert made.model.active_parameters - plain.active_parameters == 48 * 8 * 16 * widths


@pytest.mark.parametrize("precision", ["amp-bf16", "mixed", "bf16"])
def test_adapters_of_experts_take_time_and_memory(precision: str) -> None:
    options: dict[str, Any] = {"seq": 1024, "precision": precision, "checkpointing": "full"}
    one, two, three = (
        workload("qwen3-30b-a3b@h100", lora=f"8:{modules}", **options)
        for modules in ("attention", "attention,experts.down_proj", "attention,experts")
    )
    assert one.forward_s < two.forward_s < three.forward_s
    assert one.backward_s < two.backward_s < three.backward_s
    assert one.memory().total < two.memory().total < three.memory().total


_TABLE = 128_256 * 4096
"""Of Llama 3's embeddings, and of its head."""


@pytest.mark.parametrize(
    ("saved", "trained"),
    [
        (["embed_tokens"], _TABLE),
        (["lm_head"], _TABLE),
        (["embed_tokens", "lm_head"], 2 * _TABLE),
        (["norm"], 65 * 4096),
        (["input_layernorm"], 32 * 4096),
        (["k_proj"], 32 * 4096 * 1024),
    ],
)
def test_modules_to_save_are_trained_and_kept_twice(saved: list[str], trained: int) -> None:
    plain, made = (workload("llama-3-8b@h100", lora="16:mlp", modules_to_save=it).model for it in (None, saved))
    assert made.trained_parameters - plain.trained_parameters == trained
    assert made.parameters - plain.parameters == trained
    # What is not used is not computed; a trained product has the gradient of its weight besides.
    of_plain, of_made = ({one.name: one for one in it.tensors()} for it in (plain, made))
    originals = {name for name in of_plain if of_plain[name].active > of_made[name].active}
    assert sum(of_plain[name].size for name in originals) == trained


def test_a_saved_head_of_tied_weights_is_no_longer_tied() -> None:
    plain, head, both = (
        workload("qwen3-0.6b@h100", lora="16", modules_to_save=it).model
        for it in (None, ["lm_head"], ["embed_tokens", "lm_head"])
    )
    table = 151_936 * 1024
    assert [one.parameters - plain.parameters for one in (head, both)] == [table, 2 * table]
    assert not head.layers[-1].shared
    # The embeddings still read what the head read.
    assert next(one for one in head.tensors() if one.name == "model.embed.tokens.weight").active == 1


@pytest.mark.parametrize("precision", ["amp-bf16", "mixed", "bf16"])
@pytest.mark.parametrize(("sharding", "gpus"), [("none", 1), ("zero3", 4)])
def test_a_saved_module_has_gradient_and_moments_in_the_type_of_the_weights(
    precision: str, sharding: str, gpus: int
) -> None:
    one: dict[str, Any] = {"lora": "16", "seq": 512, "precision": precision, "optimizer_impl": "fused"}
    plain, saved = (
        workload("llama-3-8b@h100", **one, modules_to_save=it).memory(sharding=sharding, group=gpus)
        for it in (None, ["lm_head"])
    )
    assert saved.parameters - plain.parameters == pytest.approx(2 * _TABLE / gpus, rel=1e-6)
    assert saved.optimizer - plain.optimizer == pytest.approx(4 * _TABLE / gpus, rel=1e-6)
    assert saved.gradients - plain.gradients == pytest.approx(2 * _TABLE / gpus, rel=1e-6)
    peaks = [_peak("llama-3-8b@h100", sharding, gpus, **one, modules_to_save=it) for it in (None, ["lm_head"])]
    # At the optimizer's step, where all of these exist; before it, a loss that is larger than they are.
    assert 0.5 * 6 * _TABLE / gpus < peaks[1] - peaks[0]
    if sharding == "none":
        # Copy, gradient, moments, and the gradient of a microbatch before it is added.
        assert peaks[1] - peaks[0] <= 10 * _TABLE


@pytest.mark.parametrize("optimizer", ["adam", "lion", "adamw-8bit", "paged-adamw-8bit", "adafactor", "muon", "sgd"])
def test_states_of_a_saved_module_are_those_of_its_optimizer(optimizer: Any) -> None:
    one = workload("llama-3-8b@h100", lora="16", modules_to_save=["lm_head"], optimizer=optimizer)
    plain = workload("llama-3-8b@h100", lora="16", optimizer=optimizer)
    own = replace(recipe_of("bf16", "bf16"), name="amp-bf16")
    states = states_of(optimizer, "model.head.modules_to_save.weight", (128_256, 4096), own).total
    both = one.states_each(one.recipe).total * one.trained_elements
    assert both == pytest.approx(plain.states_each(plain.recipe).total * plain.trained_elements + states, rel=1e-9)


def test_a_saved_module_of_a_quantized_base_has_16_bits() -> None:
    one = workload("llama-3-8b@h100", lora="16:mlp", modules_to_save=["q_proj"], quantize="nf4", precision="bf16")
    held = {it.name: one.held_bytes(it) / it.size for it in one.model.tensors()}
    stem = "model.layers.0.attention"
    assert held[f"{stem}.q.weight"] == held[f"{stem}.q.modules_to_save.weight"] == 2
    assert held[f"{stem}.k.weight"] < 1


@pytest.mark.parametrize("name", tiers.some(built_in_configs(), 4))
@pytest.mark.timeout(60)
def test_the_ends_of_every_model_can_be_saved(name: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        workload(f"{name}@h100", lora="4", modules_to_save=["?"])
    choices = (error.value.remedy or "").partition("(of ")[2].rstrip(")").split(", ")
    model = workload(f"{name}@h100", lora="4").model
    for word in choices[:2]:
        made = workload(f"{name}@h100", lora="4", modules_to_save=[word]).model
        assert made.trained_parameters > model.trained_parameters


@pytest.mark.parametrize(
    ("quantize", "bits"), [("nf4", 4.5), ("nf4-double", 4.127), ("int8", 8.0), ("gptq-int4", 4.156)]
)
def test_quantized_weights_have_scales(quantize: str, bits: float) -> None:
    model = workload("llama-3-8b@h100", lora="16", quantize=quantize, precision="bf16")
    matrix = next(one for one in model.model.tensors() if one.name == "model.layers.0.mlp.up.weight")
    assert model.held_bytes(matrix) * 8 / matrix.size == pytest.approx(bits, rel=2e-3)
    norm = next(one for one in model.model.tensors() if one.name == "model.norm.weight")
    assert model.held_bytes(norm) == 2 * norm.size


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({"lora": "16:q_pro"}, "'q_pro' is no linear layer of llama-3-8b", "16:q_proj"),
        ({"lora": "16:c_attn"}, "'c_attn' is no linear layer", "q_proj, k_proj"),
        ({"lora": "16:lm_head"}, "'lm_head' is no linear layer", "modules_to_save"),
        ({"lora": "x"}, "'x' is no rank", "16:attention"),
        ({"lora": "8:q_proj,,v_proj"}, "has an empty module", "8:q_proj,v_proj"),
        ({"quantize": "nf4"}, "quantized weights are not trained themselves", "lora"),
        ({"lora": "16", "quantize": "nf5"}, "unknown value 'nf5'", "nf4"),
        ({"lora": "16", "quantize": "nf4", "precision": "fsdp-mixed"}, "contradicts fsdp-mixed", "bf16"),
        ({"lora_dropout": 0.1}, "needs adapters", "lora"),
        ({"lora": "16", "loss_dtype": "bf16"}, "amp-bf16 computes the loss in FP32", "fp32"),
        ({"loss_dtype": "bf16"}, "fused kernels compute the loss in FP32", "fp32"),
        ({"loss_dtype": "fp16", "kernels": "eager"}, "logits are in bf16", "bf16"),
        ({"loss_dtype": "bf16", "kernels": "eager", "precision": "fp32"}, "logits are in fp32", "drop loss_dtype"),
        ({"dora": True}, "needs adapters", "lora"),
        ({"modules_to_save": ["lm_head"]}, "names modules that are trained beside adapters", "lora"),
        ({"lora": "16", "modules_to_save": ["lm_heads"]}, "'lm_heads' is no module of llama-3-8b", "lm_head"),
        ({"lora": "16:q_proj", "modules_to_save": ["q_proj"]}, "'q_proj' has an adapter", "drop q_proj"),
        ({"freeze": ["model.layer.*"]}, "'model.layer.*' is no layer of llama-3-8b", "model.layers"),
        ({"freeze": ["model.*"]}, "leaves nothing of llama-3-8b to train", "fewer layers"),
        ({"lora": "16", "freeze": ["model.layers.*"]}, "leaves nothing of llama-3-8b to train", "fewer layers"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        workload("llama-3-8b@h100", **options)
    assert message in str(error.value)
    assert remedy in (error.value.remedy or "")


def test_what_a_mixture_has_not_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'experts' is no linear layer of llama-3-8b's blocks"):
        workload("llama-3-8b@h100", lora="8:experts")
    with pytest.raises(InvalidArgumentError, match="is not modeled for the experts") as error:
        workload("qwen3-30b-a3b@h100", lora="8:experts", dora=True)
    assert error.value.setting == "dora"


def test_a_rank_may_exceed_the_outputs_of_a_weight() -> None:
    """As in PEFT: qwen2.5-0.5b has 128 outputs of keys."""
    model = workload("qwen2.5-0.5b@h100", lora="256:k_proj")
    assert model.trained_elements == 24 * 256 * (896 + 128)


def test_words_take_the_options() -> None:
    one = workload("llama-3-8b@h100:lora=16:q_proj+v_proj,dora=true,quantize=nf4,modules_to_save=norm+lm_head,seq=512")
    adapter = parse_adapter("16:q_proj,v_proj", dora=True, saved=("norm", "lm_head"))
    assert (one.adapter, one.quantization) == (adapter, "nf4")


def _peak(word: str, sharding: str = "none", gpus: int = 1, **options: Any) -> int:
    """Return the bytes that a GPU allocates at the peak."""
    made = paceline.simulate(word, workers=gpus, strategy="native", sharding=sharding, accumulate=2, **options)
    assert made.sharded is not None
    return made.sharded.memory.peak_bytes


@pytest.mark.parametrize("options", [{}, {"checkpointing": "full"}, {"precision": "mixed"}, {"precision": "bf16"}])
def test_more_rank_needs_no_less(options: dict[str, str]) -> None:
    made = [workload("llama-3.2-1b@a100", lora=f"{rank}", seq=1024, **options) for rank in (8, 16, 64)]
    peaks = [_peak("llama-3.2-1b@a100", lora=f"{rank}", seq=1024, **options) for rank in (8, 16, 64)]
    assert peaks == sorted(peaks)
    times = [one.compute_s for one in made]
    assert times == sorted(times)


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero2", "zero3"])
def test_fewer_bits_need_no_more_memory_and_no_less_time(sharding: str) -> None:
    one: dict[str, Any] = {"lora": "16", "seq": 2048, "precision": "bf16", "checkpointing": "full"}
    whole, eight, four, double = (
        _peak("llama-3-8b@a100", sharding, 2, **one, quantize=it) for it in (None, "int8", "nf4", "nf4-double")
    )
    assert whole > eight > four > double
    plain, slow = (workload("llama-3-8b@a100", **one, quantize=it) for it in (None, "nf4"))
    assert slow.compute_s > plain.compute_s


def test_what_is_frozen_is_no_slower() -> None:
    options: dict[str, Any] = {"kernels": "eager", "seq": 1024, "batch": 4}
    every = workload("llama-3.2-1b@a100", **options)
    some = workload("llama-3.2-1b@a100", **options, freeze=["model.embed", "model.layers.?.*"])
    lora = workload("llama-3.2-1b@a100", **options, lora="1:k_proj", precision="bf16")
    assert some.compute_s < lora.compute_s < every.compute_s
    assert some.forward_s == pytest.approx(every.forward_s, rel=0.01)
    # Nothing is differentiated before the first layer that is trained.
    assert [one.backward_s for one in some.timed if one.layer.name == "model.layers.3.mlp"] == [0.0]


def test_model_flops_leave_out_gradients_of_frozen_weights() -> None:
    every, lora = (workload("llama-3-8b@h100", lora=it, seq=2048).model for it in (None, "1:k_proj"))
    attention = 32 * 12.0 * 4096 * 2048 * 2048
    assert every.flops == pytest.approx(6 * 2048 * every.parameters + attention)
    embedding = 128_256 * 4096
    assert lora.flops == pytest.approx(2048 * (4 * every.parameters - 2 * embedding) + attention, rel=1e-4)


def test_ranks_exchange_only_what_is_trained() -> None:
    options: dict[str, Any] = {"lora": "16", "seq": 512}
    result = paceline.simulate("llama-3-8b@h100", workers=8, strategy="native", **options)
    trained = workload("llama-3-8b@h100", **options).model.trained_parameters
    assert result.gradient_bytes == 4 * trained
    assert result.trained_parameters == trained


def test_memory_of_a_rank_has_weights_adapters_and_states() -> None:
    options: dict[str, Any] = {"lora": "16", "seq": 512, "precision": "bf16", "quantize": "nf4"}
    made = paceline.simulate("llama-3-8b@h100", workers=1, strategy="native", accumulate=2, **options)
    model = workload("llama-3-8b@h100", **options).model
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    rest = model.parameters - model.trained_parameters - linear
    assert made.sharded is not None
    memory = made.sharded.memory
    assert memory.parameters_bytes == pytest.approx(
        linear * 4.5 / 8 + 2 * rest + 2 * model.trained_parameters, rel=1e-6
    )
    assert memory.optimizer_bytes <= 3 * 2 * model.trained_parameters


@pytest.mark.parametrize(("batch", "layers"), [(1, 4), (2, 2)])
@pytest.mark.parametrize("word", ["llama-3-8b@h100", "gpt2-small@h100"])
def test_values_that_autograd_keeps_are_those_that_the_rules_count(word: str, batch: int, layers: int) -> None:
    """Of blocks in eager PyTorch, which are all trained, both ways to count activations agree."""
    made = workload(word, kernels="eager", seq=512, batch=batch)
    for layer in [one for one in made.model.layers if one.block][:layers]:
        kept = operators_of(layer, made.setting).kept_bytes / batch
        assert kept == pytest.approx(activation_bytes(layer, made.computed), rel=1e-3)


def test_weights_in_few_bits_are_not_divided() -> None:
    with pytest.raises(InvalidArgumentError, match="needs whole weights"):
        workload("llama-3-8b@h100", lora="16", quantize="nf4", tensor_parallel=2)


def test_gptq_keeps_the_weights_that_it_converts_for_the_backward_pass() -> None:
    """AutoGPTQ converts by torch's operators, in the forward pass alone; bitsandbytes converts again."""
    options: dict[str, Any] = {"lora": "8", "seq": 512, "precision": "bf16"}
    kept = {}
    for name in ("nf4", "gptq-int4"):
        made = workload("llama-3.2-1b@a100", quantize=name, **options)
        (mlp,) = (one for one in made.model.layers if one.name == "model.layers.3.mlp")
        kept[name] = operators_of(mlp, made.setting).kept_bytes
        shape = mlp.matmuls[-1]
    assert kept["gptq-int4"] - kept["nf4"] == 3 * 2 * shape.inner * shape.outer


def test_every_adapter_of_every_family_is_multiplied_by() -> None:
    of_kinds = {config.kind: config for config in built_in_configs().values()}
    for kind, config in of_kinds.items():
        has_experts = any(one.is_of_experts for one in workload_of(config, "a100").model.tensors())
        made = workload_of(config, "a100", lora="7:all-linear,experts" if has_experts else "7")
        for layer in {it.kind: it for it in made.model.layers}.values():
            forward = operators_of(layer, made.setting).forward
            products = [it for it in forward if it.name in ("mm", "_grouped_mm")]
            narrow = [it for it in products if it.outputs[0].shape[-1] == 7]
            adapters = [one.name for one in layer.tensors if ".lora_A." in one.name]
            assert len(narrow) == len(adapters), (kind, layer.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options"),
    [
        ((), {"precision": "mixed"}),
        (("--autocast",), {}),
        (("--modules", "q_proj,v_proj", "--checkpointing"), {"precision": "mixed", "checkpointing": "full"}),
        (("--dora", "--autocast"), {"dora": True}),
        (("--quantize", "nf4", "--autocast"), {"quantize": "nf4"}),
        (("--quantize", "nf4-double", "--autocast"), {"quantize": "nf4-double"}),
        (("--quantize", "int8", "--autocast"), {"quantize": "int8"}),
    ],
)
def test_a_recorded_script_agrees_with_the_options(
    tmp_path: Path, words: tuple[str, ...], options: dict[str, Any]
) -> None:
    pytest.importorskip("peft")
    if "--quantize" in words:
        pytest.importorskip("bitsandbytes")
    config = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "vocab_size": 8192},
        **{"intermediate_size": 8192, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    script = Path(__file__).parent.parent / "examples" / "lora.py"
    record = ["record", "--gpu", "a6000", "-o", str(tmp_path / "lora.json"), "--"]
    script_words = [sys.executable, str(script), "--config", str(tmp_path / "config.json"), *words]
    subprocess.run([sys.executable, "-m", "paceline", *record, *script_words], check=True, cwd=tmp_path)
    modules = "q_proj,v_proj" if "--modules" in words else "all-linear"
    given = {"lora": f"16:{modules}", "gpu": "a6000", "seq": 1024, "batch": 2, **options}

    def forecast(workload: Path, **more: Any) -> paceline.Result:
        return paceline.simulate(str(workload), workers=2, strategy="native", sharding="zero1", **more)

    recorded = forecast(tmp_path / "lora.json", gpu="a6000")
    computed = forecast(tmp_path / "config.json", **given)
    assert recorded.sharded is not None and computed.sharded is not None
    assert computed.gradient_bytes == recorded.gradient_bytes
    # bitsandbytes converts 8 bits by two kernels, one after the other.
    off = 0.06 if "int8" in words else 0.04
    for part in ("forward_s", "backward_s", "optimizer_s"):
        assert getattr(computed, part) == pytest.approx(getattr(recorded, part), rel=off)
    assert computed.sharded.memory.peak_bytes == pytest.approx(recorded.sharded.memory.peak_bytes, rel=0.12)


def test_reentrant_checkpoints_keep_blocks_of_fsdp1_until_the_backward_pass_has_ended() -> None:
    """Each block whose backward pass has ended has its input and the gradient of that, if gradients pass it."""
    sizes = {"seq": 4096, "batch": 4, "loss_chunks": 32, "strategy": "native", "lora": "16:attention"}

    def peak(checkpointing: str, sharding: str) -> int:
        options: dict[str, Any] = {**sizes, "checkpointing": checkpointing, "sharding": sharding}
        made = paceline.simulate("llama-3-8b@a100", workers=4, **options)
        assert made.sharded is not None
        return made.sharded.memory.peak_bytes

    tensor = 4 * 4096 * 4096 * 2
    # Without them, the peak is in the last block's pass, when no other has ended; with them in that of the first.
    grown = peak("reentrant", "zero3") - peak("full", "zero3")
    assert 28 * tensor <= grown <= 31 * tensor
    assert peak("reentrant", "zero2") == peak("full", "zero2")


@pytest.mark.parametrize(
    ("options", "bytes_each"),
    [
        ({"kernels": "eager"}, 2),
        ({"kernels": "fused", "loss_chunks": 1}, 6),
        ({"kernels": "eager", "loss_chunks": 32}, 0),
        ({"kernels": "compiled"}, 0),
        ({"kernels": "eager", "lora": None}, 0),
    ],
)
def test_the_loss_beside_adapters_is_reserved_in_blocks_of_its_own(options: dict[str, Any], bytes_each: int) -> None:
    """Logits in 16 bits and three copies in FP32 are 14 bytes each, of which 12, 8 or less are allocated at once."""
    made = workload("llama-3-8b@a100", **{"lora": "16", "seq": 2048, "batch": 2, **options})
    assert made.loss_blocks_bytes == bytes_each * 2 * 2048 * 128256


def test_qwens_own_code_has_a_loss_in_16_bits_without_autocast(tmp_path: Path) -> None:
    config = {"model_type": "qwen", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"kv_channels": 128, "intermediate_size": 2048, "vocab_size": 151936, "seq_length": 8192}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))

    def peak(precision: str) -> int:
        options: dict[str, Any] = {"precision": precision, "dtype": "fp16", "lora": "16", "kernels": "eager"}
        made = paceline.simulate(str(path), gpu="a100", workers=1, seq=8192, strategy="native", **options)
        assert made.sharded is not None
        return made.sharded.memory.peak_bytes

    logits = 8192 * 151936
    assert peak("amp-fp16") - peak("o2") == pytest.approx(6 * logits, rel=0.02)


def test_what_measured_jobs_may_exceed_may_not_fit() -> None:
    """Of a job that fits, the interval of what it allocates may reach beyond what can be allocated."""
    words = {"workers": 1, "strategy": "native", "seq": 2048, "lora": "16", "checkpointing": "full", "kernels": "eager"}
    made = paceline.simulate("llama-3-8b@a100", **words).sharded
    assert made is not None
    assert made.likely
    low, high = made.likely["peak"]
    beside = made.memory.beside_bytes
    for most, may_not in ((low, True), (made.memory.peak_bytes, True), (high, False)):
        # As much as allocates `most`, and a little more for rounding.
        own = dataclasses.replace(made, capacity_bytes=beside + math.ceil(most / FULLEST) + 2)
        assert own.fits == (most >= made.memory.peak_bytes)
        assert own.may_not_fit == (may_not and bool(own.fits))
        assert ("may not fit" in fit(own)) == own.may_not_fit


def test_small_batches_beside_adapters_find_no_blocks_of_gradients() -> None:
    """What is reserved has the loss's own blocks, though a microbatch has fewer tokens than the model is wide."""
    options: dict[str, Any] = {"workers": 1, "strategy": "native", "seq": 512, "kernels": "eager", "lora": "16"}
    made = paceline.simulate("llama-3.2-1b@a100", **options).sharded
    assert made is not None
    assert made.memory.reserved_bytes - made.memory.peak_bytes >= 2 * 512 * 128256


def test_each_adapter_keeps_its_input_after_dropout() -> None:
    tokens, hidden, layers = 512, 4096, 32
    options = {"gpu": "a100", "seq": tokens, "lora": "8:q_proj,v_proj", "precision": "bf16"}
    plain, dropped = (workload("llama-3-8b", **options, lora_dropout=share) for share in (0.0, 0.05))
    kept = dropped.memory().activations - plain.memory().activations
    # Two inputs and masks of a byte instead of one input that both share; the first block's has no gradient, nor masks.
    assert kept == tokens * hidden * (layers * (2 * (2 + 1) - 2) - 2)
    assert dropped.forward_s > plain.forward_s
    assert "dropout of 0.05" in dropped.trained_words[0]


def test_the_type_of_the_loss() -> None:
    options = {"gpu": "a100", "seq": 1024, "precision": "bf16", "kernels": "eager", "checkpointing": "full"}
    usual, wide, narrow = (workload("llama-3-8b", **options, loss_dtype=it) for it in (None, "fp32", "bf16"))
    logits = 1024 * 128_256
    assert usual.memory() == wide.memory()
    more = [it.memory().activations + it.memory().loss for it in (wide, narrow)]
    # 6 bytes a logit instead of 12, less the head's gradient, which exists when copies have been let go.
    assert 4 * logits <= more[0] - more[1] <= 6 * logits
    assert narrow.forward_s < wide.forward_s
    bert = {"gpu": "a100", "kernels": "eager", "precision": "bf16"}
    usual, wide = (workload("bert-base", **bert, loss_dtype=it) for it in (None, "fp32"))
    assert wide.memory().total > usual.memory().total


def test_a_mask_of_padding_takes_all_scores() -> None:
    options = {"seq": 8192, "checkpointing": "full", "kernels": "eager", "precision": "bf16"}
    for gpu in ("a100", "h100"):
        flash, masked = (workload("llama-3-8b", gpu=gpu, **options, attention=it) for it in ("flash-2", "efficient"))
        scores = [sum(spent.attention_s[0] for spent in map(it._spent, it.model.layers)) for it in (flash, masked)]
        assert scores[1] > 2 * scores[0]
        assert masked.memory().activations - flash.memory().activations == 2 * 8192**2
    windowed = workload("mistral-7b", gpu="a100", **options, attention="efficient")
    whole = workload("mistral-7b", gpu="a100", **options)
    assert windowed.forward_s > whole.forward_s


def test_quantized_weights_beside_fp32() -> None:
    options = {"gpu": "a100", "seq": 1024, "lora": "8", "quantize": "nf4", "precision": "fp32", "checkpointing": "full"}
    wide, narrow = (workload("llama-3-8b", **options, dtype=it) for it in (None, "bf16"))
    usual = workload("llama-3-8b", **(options | {"precision": "upcast-bf16"}))
    assert usual.forward_s < narrow.forward_s < wide.forward_s / 3
    assert narrow.memory().total <= wide.memory().total
    assert narrow.peak_flops == usual.peak_flops > wide.peak_flops


def test_scores_of_unfused_attention_are_bounded_where_a_model_says_so() -> None:
    """The square of the sequence grows by one value of tanh for each score, by both ways to count."""
    made = workload("gemma-2-9b", gpu="a100", seq=512, kernels="eager", attention="unfused", precision="bf16")
    layer = next(one for one in made.model.layers if one.block)
    free = replace(layer, form=replace(layer.form, block=replace(layer.form.block, capped=False)))
    kept = [operators_of(one, made.setting).kept_bytes for one in (layer, free)]
    rules = [
        activation_bytes(one, made.computed) for one in (layer, replace(layer, kept=replace(layer.kept, capped=0)))
    ]
    assert kept[0] - kept[1] == rules[0] - rules[1] == 2 * 16 * 512**2
    names = [[it.name for it in operators_of(one, made.setting).forward] for one in (layer, free)]
    assert len(names[0]) - len(names[1]) == 3 and "tanh" in names[0]
    assert not any(it.name == "tanh" for it in operators_of(layer, replace(made.setting, attention="flash")).forward)


@pytest.mark.parametrize("quantize", ["nf4", "nf4-double", "int8"])
def test_bitsandbytes_leaves_experts_in_one_tensor_as_they_are(quantize: str) -> None:
    plain = workload("gpt-oss-20b@h100", lora="16:attention")
    wide = workload("gpt-oss-20b@h100", lora="16:attention", quantize=quantize)
    narrow = workload("unsloth/gpt-oss-20b-unsloth-bnb-4bit@h100", lora="16:attention")
    tensors = {one.name: one for one in wide.model.tensors()}
    assert all(wide.held_bytes(one) == 2 * one.size for one in tensors.values() if one.is_of_experts)
    assert any(wide.held_bytes(one) < 2 * one.size for one in tensors.values() if not one.trains)
    held = [sum(map(one.held_bytes, one.model.tensors())) for one in (plain, wide, narrow)]
    assert held[0] > held[1] > 3 * held[2]
    assert any("experts that are not quantized, 38.2 GB" in note for note in wide.model.notes)
    assert not any("experts" in note for note in (*plain.model.notes, *narrow.model.notes))


def test_experts_that_few_bits_hold_are_converted_and_others_are_not() -> None:
    options = {"lora": "16:attention", "seq": 1024}
    plain, wide, narrow = (
        workload(word, **options, **held)
        for word, held in (
            ("gpt-oss-20b@h100", {}),
            ("gpt-oss-20b@h100", {"quantize": "nf4"}),
            ("unsloth/gpt-oss-20b-unsloth-bnb-4bit@h100", {}),
        )
    )
    assert plain.forward_s < wide.forward_s < narrow.forward_s


def test_what_transformers_5_does_with_experts_is_said() -> None:
    [note] = [one for one in workload("qwen3-30b-a3b@h100", lora="8", quantize="nf4").model.notes if "experts" in one]
    assert "experts in nf4, too, 16.3 GB" in note and note.endswith("does not quantize: 58.0 GB")
    assert not any("experts" in one for one in workload("llama-3-8b@h100", lora="8", quantize="nf4").model.notes)


@pytest.mark.parametrize(
    ("gpu", "options", "words"),
    [
        ("a100", {}, "not on A100"),
        ("h100", {"lora": "8"}, "vllm-flash-attn3"),
        ("h100", {}, ""),
        ("a100", {"attention": "flash"}, ""),
        ("b200", {"kernels": "transformer-engine"}, ""),
    ],
)
def test_attention_with_sinks_is_an_assumption(gpu: str, options: dict[str, object], words: str) -> None:
    result = find_workload(f"gpt-oss-20b@{gpu}", **options)
    assert result is not None
    notes = [one for one in result.model.notes if "attention sinks" in one]
    assert len(notes) == bool(words) and all(words in one for one in notes)
