"""Fields of a config.json that a family does not read: named if they may change its layers."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
from paceline.catalog.models.config import Config, built_in_configs
from paceline.catalog.models.families import MODEL_TYPES, model_of

_ANYWHERE = {
    **{"_name_or_path": "org/model", "torch_dtype": "bfloat16", "transformers_version": "5.0.0", "use_cache": True},
    **{"bos_token_id": 1, "eos_token_id": [1, 2], "initializer_range": 0.02, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
    **{"rope_scaling": {"factor": 8.0, "rope_type": "llama3"}, "pretraining_tp": 1, "attention_dropout": 0.1},
    **{"router_aux_loss_coef": 0.001, "norm_topk_prob": True, "top_p": 0.9, "id2label": None, "hidden_act": "silu"},
}


def _notes(fields: dict[str, Any]) -> list[str]:
    config = Config("mine", "config.json", fields)
    return [note for note in model_of(config, 256).notes if note.startswith("Not modeled")]


def _own(name: str) -> dict[str, Any]:
    return dict(built_in_configs()[name].fields)


@pytest.mark.parametrize("name", list(built_in_configs()))
def test_every_field_of_a_built_in_model_is_read_or_has_no_effect(name: str) -> None:
    config = built_in_configs()[name]
    sequence = None if config.kind == "vit" else 64
    notes = model_of(replace(config, source=""), sequence).notes
    assert not [note for note in notes if note.startswith("Not modeled")]


def test_fields_that_change_no_layer_are_not_named() -> None:
    assert not _notes(_own("llama-3-8b") | _ANYWHERE)


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("llama-3-8b", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ("llama-3-8b", {"num_experts": 8, "num_experts_per_tok": 2}, "num_experts, num_experts_per_tok"),
        ("llama-3-8b", {"kv_lora_rank": 512, "cross_layer_sharing": 2}, "cross_layer_sharing, kv_lora_rank"),
        ("gpt2-small", {"sliding_window": 256}, "sliding_window"),
        ("bert-base", {"layer_types": ["full_attention"] * 12}, "layer_types"),
        ("llama-3-8b", {f"new_{letter}": 1 for letter in "abcdefghij"}, "new_a, new_b, new_c"),
    ],
)
def test_fields_that_may_change_layers_are_named(name: str, fields: dict[str, Any], named: str) -> None:
    (note,) = _notes(_own(name) | fields)
    assert note.startswith(f"Not modeled: {named}")
    assert note.endswith(f"{' and 2 others' if len(fields) == 10 else ''} of config.json")


@pytest.mark.parametrize("value", [None, False, 0, [], ""])
def test_a_field_that_says_nothing_is_not_named(value: object) -> None:
    assert not _notes(_own("llama-3-8b") | {"num_experts": value})


def test_fields_of_a_language_model_within_another_are_named() -> None:
    inner = _own("llama-3-8b") | {"model_type": "llama", "num_experts": 4}
    notes = _notes({"model_type": "llava", "vision_config": {"depth": 3}, "text_config": inner})
    assert notes == ["Not modeled: num_experts of config.json"]


_KNOWN = {
    "deepseek_v3": ["num_nextn_predict_layers"],
    "deepseek_v4": ["num_nextn_predict_layers"],
    "llama4_text": ["use_qk_norm"],
    "nemotron_h": ["mtp_layers_block_type"],
}
"""Fields that transformers' defaults have, and that are not modeled."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODEL_TYPES)
def test_transformers_defaults_have_no_unknown_fields(kind: str) -> None:
    pytest.importorskip("transformers")
    known = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if kind not in known or kind == "glm4_moe":  # whose defaults contradict each other
        pytest.skip("transformers has no defaults of it")
    fields = known[kind]().to_dict() | {"model_type": kind}
    config = Config("mine", "config.json", fields)
    notes = model_of(config, None if kind == "vit" else 64).notes
    named = [note.removeprefix("Not modeled: ").partition(" of ")[0] for note in notes if note.startswith("Not mod")]
    assert named == [", ".join(_KNOWN[kind])] if kind in _KNOWN else not named
