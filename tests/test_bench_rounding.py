"""Weights of engines differ where batch normalization has few values: rounding does that, and not the engines.

ResNet-101 at 64 pixels normalizes 2x2 positions of 2 images, 8 values a channel, in its last stage. One step in float32
then differs by percents if images change in their last bit. In float64 a change of its last bit does nothing, and
TensorFlow's model computes what torch's does.
"""

import importlib.util

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if importlib.util.find_spec("torchvision") is None:
    pytest.skip("needs torchvision", allow_module_level=True)

from paceline_lab.bench.ranks import data, graph, models  # noqa: E402
from paceline_lab.bench.ranks.rank_spec import RankSpec  # noqa: E402

FEW, MORE = ("resnet18", 32, 2), ("resnet18", 32, 64)
"""Model, pixels and images: batch normalization over 2 values a channel in the last stage, or over 64."""


def spec_of(model, pixels, images, folder="."):
    sizes = {"model": model, "image_size": pixels, "batch": images, "classes": 10, "folder": str(folder)}
    return RankSpec(mode="ddp", batches=1, warmup=0, alone=0, seed=1, learning_rate=0.1, momentum=0.9, **sizes)


def images_of(spec, dtype, bits=0):
    """Images and labels of the first step; `bits`: last bits by which each image's values change."""
    images, labels = data.batch(spec.seed, 0, 0, spec.batch, spec.image_size, spec.classes)
    changed = torch.from_numpy(images).to(dtype)
    signs = torch.from_numpy(np.random.default_rng(5).integers(-1, 2, images.shape)).to(dtype)
    return changed * (1 + bits * torch.finfo(dtype).eps * signs), torch.from_numpy(labels)


def gradients(spec, dtype, bits=0):
    net = models.build(spec).to(dtype)
    images, labels = images_of(spec, dtype, bits)
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    return {name: parameter.grad.double() for name, parameter in net.named_parameters()}


def difference(ours, theirs):
    """Of one step of SGD, as `paceline bench` compares weights."""
    apart = sum(float((ours[name] - theirs[name]).square().sum()) for name in theirs)
    return (apart / sum(float(each.square().sum()) for each in theirs.values())) ** 0.5


def amplified(model, dtype):
    spec = spec_of(*model)
    return difference(gradients(spec, dtype, bits=1), gradients(spec, dtype))


@pytest.mark.slow
def test_the_last_bit_of_images_changes_a_step_where_batch_normalization_has_few_values():
    few, precise = amplified(FEW, torch.float32), amplified(FEW, torch.float64)
    assert few > 1e-3, "float32: far more than the last bit, 1e-7"
    assert precise < 1e-9, "float64: the same formulas, and no such difference"


@pytest.mark.slow
def test_the_last_bit_changes_resnet_101_at_64_pixels_by_percents():
    model = ("resnet101", 64, 2)
    assert 0.01 < amplified(model, torch.float32) < 0.5
    assert amplified(model, torch.float64) < 1e-9


@pytest.mark.slow
def test_more_values_do_not_amplify_the_last_bit_as_much():
    assert amplified(MORE, torch.float32) < amplified(FEW, torch.float32) / 3


@pytest.mark.slow
@pytest.mark.parametrize("model", [("resnet18", 64, 2), ("resnet101", 64, 2)], ids=lambda model: model[0])
def test_tensorflow_computes_the_same_in_float64(model, tmp_path, monkeypatch):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install '.[tensorflow]'")
    from paceline_lab.bench.ranks import tensorflow_layers

    def in_float64(x, scale, offset, epsilon, is_training):
        # The fused operation has no float64: its formula.
        assert is_training
        mean, variance = tf.nn.moments(x, [0, 1, 2])
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, epsilon), mean, variance

    monkeypatch.setattr(tf.compat.v1.nn, "fused_batch_norm", in_float64)
    spec = spec_of(*model, tmp_path)
    graph.export(spec, tmp_path)
    made = tensorflow_layers.Model(str(tmp_path))
    weights = {name: tf.Variable(np.asarray(value, np.float64)) for name, value in made.initial.items()}
    images, labels = images_of(spec, torch.float64)
    with tf.GradientTape() as tape:
        loss = made.loss(weights, images.permute(0, 2, 3, 1).numpy(), labels.numpy())
    result = made.torchs(dict(zip(weights, tape.gradient(loss, list(weights.values())), strict=True)))
    theirs = gradients(spec, torch.float64)
    assert difference({name: torch.from_numpy(value.copy()) for name, value in result.items()}, theirs) < 1e-8
