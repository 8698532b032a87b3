"""Random scenarios come out as they did."""

import json

import pytest
from random_scenarios import KEPT, OUTCOMES, outcomes


@pytest.mark.parametrize("count", [10, pytest.param(KEPT, marks=pytest.mark.slow)])
def test_random_scenarios_come_out_as_they_did(count):
    """`python tests/random_scenarios.py` writes what is expected."""
    expected = json.loads(OUTCOMES.read_text(encoding="utf-8"))[:count]
    for result, wanted in zip(outcomes(count), expected, strict=True):
        assert result == pytest.approx(wanted, rel=1e-9), wanted["scenario"]
