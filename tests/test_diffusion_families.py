"""Diffusion transformers of diffusers: counts, joint attention, and what is refused."""

import json

import cli
import paceline
import pytest
from paceline import InvalidArgumentError
from paceline.catalog.models.config import Config
from paceline.catalog.models.diffusion import FAMILIES
from paceline.catalog.models.families import model_of

HEADS = {"num_attention_heads": 4, "attention_head_dim": 16}
TEXT = {"joint_attention_dim": 40, "pooled_projection_dim": 24}
SD3 = {**HEADS, **TEXT, "sample_size": 16, "num_layers": 3, "caption_projection_dim": 64, "pos_embed_max_size": 16}
FLUX = {**HEADS, **TEXT, "num_layers": 2, "num_single_layers": 3, "in_channels": 8, "axes_dims_rope": [4, 6, 6]}
CASES = [
    ("FluxTransformer2DModel", FLUX),
    ("FluxTransformer2DModel", FLUX | {"guidance_embeds": True}),
    ("SD3Transformer2DModel", SD3),
    ("SD3Transformer2DModel", SD3 | {"qk_norm": "rms_norm", "dual_attention_layers": [0, 1]}),
    (
        "DiTTransformer2DModel",
        {**HEADS, "num_layers": 2, "sample_size": 8, "num_embeds_ada_norm": 10, "norm_elementwise_affine": False},
    ),
]


def model(kind, fields, tokens=None):
    return model_of(Config("mine", "here", {"_class_name": kind, **fields}), tokens)


@pytest.mark.parametrize(("kind", "fields"), CASES)
def test_parameters_are_those_of_diffusers(kind, fields):
    diffusers = pytest.importorskip("diffusers")
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        theirs = getattr(diffusers, kind)(**fields)
    sizes = sorted(parameter.numel() for parameter in theirs.parameters())
    assert sorted(tensor.size for tensor in model(kind, fields).tensors()) == sizes


def test_every_family_has_a_case():
    assert {kind for kind, _ in CASES} == set(FAMILIES)


@pytest.mark.parametrize(
    ("kind", "fields", "count", "patches"),
    [
        ("FluxTransformer2DModel", {"guidance_embeds": True}, 11_901_408_320, 4096),
        ("FluxTransformer2DModel", {}, 11_891_178_560, 4096),
        (
            "SD3Transformer2DModel",
            {"num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536},
            2_028_328_000,
            4096,
        ),
        ("DiTTransformer2DModel", {}, 749_808_016, 256),
    ],
)
def test_published_counts(kind, fields, count, patches):
    result = model(kind, fields)
    assert (result.parameters, result.sequence) == (count, patches)


def test_counts_in_closed_form():
    width = 64

    def linear(inner, outer):
        return (inner + 1) * outer

    stream = 4 * linear(width, width) + 2 * 16 + linear(width, 4 * width) + linear(4 * width, width)
    double = 2 * (linear(width, 6 * width) + stream)
    single = linear(width, 3 * width) + linear(width, 4 * width) + 3 * linear(width, width) + 2 * 16
    single += linear(5 * width, width)
    ends = linear(256, width) + linear(24, width) + 2 * linear(width, width) + linear(40, width) + linear(8, width)
    ends += linear(width, 2 * width) + linear(width, 8)
    assert model("FluxTransformer2DModel", FLUX).parameters == 2 * double + 3 * single + ends


def test_attention_is_over_patches_and_text():
    result = model("FluxTransformer2DModel", FLUX, 1024)
    attentions = [layer.attention for layer in result.layers if layer.attention is not None]
    assert [(one.queries, one.keys, one.causal) for one in attentions] == [(1536, 1536, False)] * 5
    text = next(layer for layer in result.layers if layer.name == "model.layers.0.mlp_text")
    image = next(layer for layer in result.layers if layer.name == "model.layers.0.mlp")
    assert (text.tokens, image.tokens) == (512, 1024)
    assert "512 tokens of text beside 1,024 patches" in result.notes[0]


@pytest.mark.parametrize(("kind", "fields"), [("FluxTransformer2DModel", {}), ("DiTTransformer2DModel", {})])
def test_more_patches_and_samples_take_longer_and_keep_more(kind, fields, tmp_path):
    from paceline.catalog.models.spec import find_workload

    file = tmp_path / "config.json"
    file.write_text(json.dumps({"_class_name": kind, **fields}), encoding="utf-8")

    def measures(seq, batch):
        workload = find_workload(file, gpu="h100", seq=seq, batch=batch)
        return workload.forward_s, workload.backward_s, workload.memory().activations

    one = measures(1024, 1)
    for other in (measures(4096, 1), measures(1024, 4)):
        assert all(a < b for a, b in zip(one, other, strict=True))


def test_a_forecast_has_no_interval_and_a_folder_is_a_pipeline(tmp_path):
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text(json.dumps({"_class_name": "FluxTransformer2DModel"}))
    result = paceline.simulate(str(tmp_path), gpu="h100", workers=8, sharding="zero3", checkpointing="full")
    assert result.interval is None and result.tokens_per_s_per_gpu > 0


def test_other_classes_are_recorded(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"_class_name": "UNet2DConditionModel"}), encoding="utf-8")
    text = cli.said("simulate", file, "--gpu", "h100", "--gpus", "8", code=2)
    assert "_class_name: 'UNet2DConditionModel' is not known" in text and "paceline record --gpu h100" in text


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("SD3Transformer2DModel", {"qk_norm": "layer_norm"}, "qk_norm: 'layer_norm' is not modeled"),
        ("SD3Transformer2DModel", {"patch_size": 3}, "patch_size: 3 does not divide the sample_size, 16"),
        ("SD3Transformer2DModel", {"caption_projection_dim": 65}, "caption_projection_dim: 65 is not the width"),
        ("SD3Transformer2DModel", {"dual_attention_layers": [9]}, "dual_attention_layers: must be whole numbers, 0-2"),
        ("DiTTransformer2DModel", {"norm_type": "layer_norm"}, "norm_type: is not modeled"),
    ],
)
def test_a_wrong_value_is_named(kind, changes, message):
    with pytest.raises(InvalidArgumentError, match=f"here: {message}"):
        model(kind, dict(CASES[2][1]) | changes)
