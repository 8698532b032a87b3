"""Checkpoints whose weights are in few bits: known by name or by `quantization_config`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paceline.catalog.models.config import built_in_configs
from paceline.catalog.models.spec import find_workload
from paceline.errors import InvalidArgumentError

_LLAMA = "Meta-Llama-3.1-8B-Instruct"


def _file(folder: Path, **fields: Any) -> str:
    """Return the path of a config.json with a `quantization_config`."""
    path = folder / "config.json"
    config = dict(built_in_configs()["llama-3.1-8b"].fields)
    path.write_text(json.dumps(config | {"quantization_config": fields}))
    return str(path)


@pytest.mark.parametrize(
    ("name", "held"),
    [
        (f"unsloth/{_LLAMA}-bnb-4bit", "nf4-double"),
        (f"unsloth/{_LLAMA}-unsloth-bnb-4bit", "nf4-double"),
        ("Qwen/Qwen3-8B-AWQ", "nf4-double"),
        (f"org/{_LLAMA}-GPTQ", "gptq-int4"),
        (f"org/{_LLAMA}-GPTQ-Int8", "int8"),
        ("Qwen/Qwen3-8B-FP8", None),
        (f"org/{_LLAMA}", None),
    ],
)
def test_names_say_how_weights_are_held(name: str, held: str | None) -> None:
    made = find_workload(f"{name}@h100", lora="16", seq=512)
    assert made is not None
    assert made.quantization == held
    assert any("training converts to 16 bits" in note for note in made.model.notes) == name.endswith("FP8")
    assert any(f"({held}), as {name} has them" in note for note in made.model.notes) == (held is not None)


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4-double"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "gptq-int4"),
        ({"quant_method": "gptq", "bits": 3}, None),
        ({"quant_method": "awq", "bits": 4}, "nf4-double"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, None),
        ({"quant_method": "mxfp4"}, None),
    ],
)
def test_files_say_how_weights_are_held(fields: dict[str, Any], held: str | None, tmp_path: Path) -> None:
    made = find_workload(_file(tmp_path, **fields), gpu="h100", lora="16", seq=512)
    assert made is not None
    assert made.quantization == held
    assert len([note for note in made.model.notes if note.startswith("Weights ")]) == 1


@pytest.mark.parametrize(
    ("options", "message", "remedy"),
    [
        ({}, "cannot be trained themselves", "or the base model, llama-3.1-8b"),
        ({"lora": "16", "quantize": "int8"}, "int8 contradicts", "or the base model"),
        ({"lora": "16", "tensor_parallel": 2}, "do not divide theirs", "drop tensor_parallel"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        find_workload(f"unsloth/{_LLAMA}-bnb-4bit", gpu="h100", **options)
    assert message in str(error.value)
    assert remedy in (error.value.remedy or "")


def test_the_same_method_with_other_words_is_no_contradiction() -> None:
    made = find_workload(f"unsloth/{_LLAMA}-bnb-4bit@h100", lora="16", quantize="nf4", seq=512)
    assert made is not None
    assert made.quantization == "nf4-double"


def test_weights_in_8_bits_are_trained_in_16(tmp_path: Path) -> None:
    made = find_workload(_file(tmp_path, quant_method="fp8"), gpu="h100", seq=512)
    plain = find_workload("llama-3.1-8b@h100", seq=512)
    assert made is not None
    assert plain is not None
    assert made.memory() == plain.memory()


@pytest.mark.parametrize(("precision", "is_assumed"), [("mixed", True), ("amp-bf16", False), ("bf16", False)])
def test_the_dtype_of_products_is_assumed_without_autocast(precision: str, is_assumed: bool) -> None:
    made = find_workload("llama-3.2-1b@h100", lora="8", quantize="nf4", precision=precision, seq=512)
    assert made is not None
    assert any("bnb_4bit_compute_dtype=bfloat16" in note for note in made.model.notes) == is_assumed
