"""The built-in traces of models: the parameters of the real model, at a published rate."""

import paceline
import pytest
from paceline.catalog.rates import all_rates, rates_of

# torchvision's documentation; ResNet-200 of He et al. 2016 by its block counts; transformers' configurations.
PARAMETERS = {
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "resnet-200": 64_673_832,
    "vgg-16": 138_357_544,
    "alexnet": 61_100_840,
    "googlenet": 13_004_888,
    "inception-v3": 27_161_264,
    "mobilenet-v1": 4_231_976,
    "mobilenet-v2": 3_504_872,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "gpt2-small": 124_439_808,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_gradients_are_the_models(name):
    assert paceline.load_trace(name).gradient_bytes == 4 * PARAMETERS[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_rate_is_published(name):
    trace = paceline.load_trace(name)
    seconds = trace.forward_s + trace.backward_s + trace.optimizer_s
    rates = [rate.samples_per_s for rate in rates_of(name).values() if rate.batch == trace.batch]
    if rates:
        assert any(trace.batch / seconds == pytest.approx(rate, rel=1e-4) for rate in rates)
    else:  # scaled like a similar model, and says so
        assert "by the factor by which" in trace.provenance
    assert "CPU" in trace.provenance


def test_there_is_a_source_for_every_rate():
    for rate in all_rates():
        assert rate.samples_per_s > 0
        assert rate.batch > 0
        assert rate.source and rate.measured_on
        assert rate.model in PARAMETERS


@pytest.mark.parametrize("name", PARAMETERS)
def test_last_layers_come_first(name):
    worker = paceline.load_trace(name).workers[0]
    ready = [gradient.ready_s for gradient in worker.gradients]
    assert ready == sorted(ready)
    first = {tensor for layer in worker.forward[:3] for tensor in layer.tensors}
    last = {gradient.tensor for gradient in worker.gradients[-5:]}
    assert first & last
