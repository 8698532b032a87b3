"""Options of fine-tuning have the same effect wherever they are given, or are refused: none is silently without any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import paceline
import pytest
from paceline.catalog.models.config import built_in_configs
from paceline.catalog.models.spec import OPTIONS, find_workload
from paceline.catalog.models.workload import Workload
from paceline.errors import InvalidArgumentError
from paceline.forecast.advisor.job import Job
from paceline.forecast.jobs import spec as jobs
from paceline.forecast.prepare import prepare
from paceline.forecast.request import Sweep
from paceline_lab.cli.explore import _first as first_state
from paceline_lab.report import spec as report

_MODEL, _PLAIN = "qwen3-0.6b", {"seq": 256, "batch": 2, "checkpointing": "full", "gpu": "a100"}
_ADAPTED = _PLAIN | {"lora": "8:attention"}
_VALUES: list[tuple[Mapping[str, Any], str, Any]] = [
    (_PLAIN, "lora", "8"),
    (_ADAPTED, "lora", "8:q_proj,v_proj"),
    (_ADAPTED, "dora", True),
    (_ADAPTED, "lora_dropout", 0.05),
    (_ADAPTED, "quantize", "nf4"),
    (_ADAPTED, "quantize", "int8"),
    (_ADAPTED, "modules_to_save", ["lm_head", "norm"]),
    (_PLAIN, "freeze", ["model.embed", "model.layers.?.*"]),
    (_ADAPTED, "freeze", ["model.layers.?.*"]),
    (_PLAIN, "optimizer", "adamw-8bit"),
    (_ADAPTED, "optimizer", "lion"),
    (_PLAIN, "optimizer_impl", "loop"),
    (_PLAIN, "moment_dtype", "bf16"),
    (_ADAPTED, "moment_dtype", "bf16"),
    (_PLAIN, "offload", "cpu:states"),
    (_PLAIN, "offload", "cpu:activations"),
    (_PLAIN, "loss", "dpo"),
    (_ADAPTED, "loss", "kto"),
    (_PLAIN | {"kernels": "eager"}, "cuda_graphs", True),
    (_ADAPTED, "cuda_graphs", True),
    (_PLAIN, "loss_chunks", 8),
    (_PLAIN | {"kernels": "eager"}, "loss_dtype", "bf16"),
    (_PLAIN, "real_tokens", 0.5),
    (_PLAIN, "precision", "bf16"),
    (_ADAPTED, "precision", "mixed"),
]
_CASES = pytest.mark.parametrize(
    ("base", "name", "value"),
    _VALUES,
    ids=[f"{name}-{'lora' if 'lora' in base else 'full'}" for base, name, _ in _VALUES],
)


def _workload(sweep: Sweep) -> Workload:
    made = sweep.workload(sweep.trace)
    assert made is not None
    return made


def _answer(options: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the figures on which an option may have an effect."""
    made = paceline.simulate(_MODEL, workers=1, strategy="native", **options)
    assert made.sharded is not None
    return made.iteration_s, made.sharded.memory, made.sharded.host, made.real_tokens_per_s_per_gpu


@_CASES
def test_each_option_has_an_effect(base: Mapping[str, Any], name: str, value: object) -> None:
    assert _answer(base) != _answer({**base, name: value})


@pytest.mark.parametrize("name", ["lora", "quantize", "modules_to_save", "freeze", "offload", "loss_chunks"])
def test_none_is_the_default_of_what_can_be_switched_off(name: str) -> None:
    assert _answer(_PLAIN) == _answer({**_PLAIN, name: "none"})


def test_a_recording_has_nothing_to_switch_off() -> None:
    paceline.simulate("resnet-50", workers=2, strategy="ring", offload="none", quantize="none")


def test_weights_that_are_quantized_are_not_switched_off(tmp_path: Path) -> None:
    quantized = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    fields = dict(built_in_configs()["qwen3-0.6b"].fields) | quantized
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(InvalidArgumentError, match="none contradicts"):
        find_workload(tmp_path, gpu="a100", lora="8", quantize="none")


@_CASES
def test_all_ways_to_give_an_option_mean_the_same(
    base: Mapping[str, Any], name: str, value: object, tmp_path: Path
) -> None:
    given = {**base, name: value}
    whole = _workload(Sweep.of(_MODEL, {**given, "workers": 1}, "paceline.simulate"))
    assert _workload(Sweep.of(_MODEL, {**given, "workers": [1]}, "paceline.sweep")) == whole
    assert _workload(Sweep.of(_MODEL, _typed(given) | {"workers": "1"}, "simulate", "flag")) == whole
    # A search chooses batch and recomputation itself.
    searched = Job.of(Sweep.of(_MODEL, _typed(given) | {"workers": "1"}, "advise", "flag")).whole
    assert searched == replace(whole, batch=searched.batch, checkpointing=searched.checkpointing)

    options = ",".join(f"{one}={_in_a_word(it)}" for one, it in given.items() if one != "gpu")
    assert find_workload(f"{_MODEL}@a100:{options}") == whole

    lines = [f"{one} = {_in_toml(it)}" for one, it in given.items()]
    page = tmp_path / "report.toml"
    page.write_text("\n".join(["[[chapter]]", f'trace = "{_MODEL}"', "workers = [1]", 'strategy = "native"', *lines]))
    (chapter,) = report.read(page).chapters
    assert all(scenario.workload == whole for scenario in chapter.prepared.scenarios)

    file = tmp_path / "jobs.toml"
    entry = ["[[job]]", 'name = "one"', f'trace = "{_MODEL}"', "workers = 2", 'strategy = "ring"', *lines]
    file.write_text("\n".join(['cluster = "dgx-a100"', *entry]))
    try:
        (job,) = jobs.read(file).jobs
    except InvalidArgumentError as error:
        assert name in str(error)
    else:
        assert job.scenario.workload == whole


@_CASES
def test_a_recording_refuses_options_of_models(base: Mapping[str, Any], name: str, value: object) -> None:
    if name == "optimizer":
        pytest.skip("it changes the states of a recording")
    with pytest.raises(InvalidArgumentError) as error:
        prepare(Sweep.of("vgg-16", {name: value, "workers": 4}, "paceline.simulate"))
    assert name in str(error.value) or error.value.setting == name


@_CASES
def test_the_page_of_explore_names_options_that_it_has_not(base: Mapping[str, Any], name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        first_state(f"{_MODEL}@a100:{name}={_in_a_word(value)}", None, None)
    assert f"the page has no {name}" in str(error.value)


def test_every_option_of_a_model_that_changes_its_training_is_among_them() -> None:
    of_machine = {"gpu", "power_limit", "microbatches", "virtual_stages"}
    plain = {"seq", "batch", "dtype", "checkpointing", "attention", "kernels"}
    parallel = {name for name in OPTIONS if name.endswith("_parallel")} | {"expert_dispatch"}
    assert {name for _, name, _ in _VALUES} == set(OPTIONS) - of_machine - plain - parallel


def _typed(given: Mapping[str, Any]) -> dict[str, object]:
    """Return values as the command line has them."""
    return {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in given.items()}


def _in_a_word(value: object) -> str:
    if isinstance(value, list):
        return "+".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value).replace(",", "+")


def _in_toml(value: object) -> str:
    if isinstance(value, list):
        return str(value).replace("'", '"')
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
