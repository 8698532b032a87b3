"""Whisper: counts, and the lengths of encoder and decoder."""

import json

import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config, built_in_configs
from paceline.catalog.models.families import model_of
from paceline.catalog.models.spec import find_workload

SMALL = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "num_mel_bins": 20},
    **{"max_source_positions": 50, "max_target_positions": 64, "vocab_size": 100},
}


def test_parameters_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    no_ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    config = transformers.WhisperConfig(**SMALL, **no_ids, suppress_tokens=None, begin_suppress_tokens=None)
    with torch.device("meta"):
        theirs = transformers.WhisperForConditionalGeneration(config)
    saved = json.loads(config.to_json_string(use_diff=False)) | {"architectures": None}
    mine = model_of(Config("mine", "here", saved))
    assert sorted(tensor.size for tensor in mine.tensors()) == sorted(one.numel() for one in theirs.parameters())


def test_published_counts():
    # A. Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022, table 1: 244 M and 1,550 M.
    for name, count in (("whisper-small", 241_734_912), ("whisper-large-v3", 1_543_490_560)):
        assert model_of(built_in_configs()[name]).parameters == built_in_configs()[name].parameters == count


def test_the_decoder_attends_to_all_positions_of_the_encoder():
    result = model_of(built_in_configs()["whisper-small"], 128)
    layers = {layer.name: layer for layer in result.layers}
    assert layers["model.encoder.layers.0.attention"].attention.keys == 1500
    assert layers["model.decoder.layers.0.attention"].attention.keys == 128
    cross = layers["model.decoder.layers.0.cross_attention"].attention
    assert (cross.queries, cross.keys, cross.causal) == (128, 1500, False)
    assert "1,500 positions (30 s)" in str(result.notes)
    with pytest.raises(InvalidArgumentError, match="learned positions for 448 tokens"):
        model_of(built_in_configs()["whisper-small"], 512)


def test_more_tokens_and_samples_take_longer_and_keep_more():
    def measures(seq, batch):
        workload = find_workload("whisper-large-v3", gpu="a100", seq=seq, batch=batch)
        return workload.forward_s, workload.backward_s, workload.memory().activations

    one = measures(128, 4)
    for other in (measures(448, 4), measures(128, 16)):
        assert all(a < b for a, b in zip(one, other, strict=True))
