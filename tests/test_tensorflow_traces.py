"""Forecasts of traces that were recorded from TensorFlow: their library, and what a GPU needs."""

import json

import paceline
import pytest
from paceline.catalog.builtin import load_trace
from paceline.errors import InvalidArgumentError

BY_TENSORFLOW = "recorded by paceline 0.3.0 with tensorflow 2.21.0 on AMD EPYC, 2 threads; median of 10 steps"


@pytest.fixture
def recorded(tmp_path):
    """Write a trace with this provenance."""

    def write(provenance, **fields):
        path = tmp_path / "mine.json"
        document = json.loads(load_trace("resnet-50").to_json())
        path.write_text(json.dumps({**document, "name": "mine", "provenance": provenance, **fields}))
        return path

    return write


@pytest.mark.parametrize(
    ("provenance", "library"),
    [
        (BY_TENSORFLOW, "horovod"),
        (f"2 ranks of `paceline run`; rank 0: {BY_TENSORFLOW}", "horovod"),
        (BY_TENSORFLOW.replace("tensorflow", "torch"), "ddp"),
        ("by hand, not with tensorflow", "ddp"),
    ],
)
def test_training_without_a_library_is_forecast_with_one_of_its_framework(recorded, provenance, library):
    forecast = paceline.simulate(recorded(provenance, library=""), workers=4, strategy="ring")
    assert forecast.library == library
    other = paceline.simulate(recorded(provenance, library="byteps"), workers=4, strategy="ring")
    assert other.library == "byteps"


def test_what_forecasts_a_gpu_is_possible_with_the_framework(recorded):
    def remedy(provenance):
        with pytest.raises(InvalidArgumentError, match="no rate of it is published") as raised:
            paceline.simulate(recorded(provenance, library=""), workers=4, gpu="a100-80gb")
        return raised.value.remedy

    assert "import tensorflow" in remedy(BY_TENSORFLOW)
    assert "record" not in remedy(BY_TENSORFLOW)
    assert "paceline record --gpu a100-80gb" in remedy(BY_TENSORFLOW.replace("tensorflow", "torch"))
