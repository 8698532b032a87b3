"""A measurement from a file."""

from __future__ import annotations

from paceline.compare.forecaster import Forecaster
from paceline.compare.measured import Measured, parse


def read(text: str, forecaster: Forecaster) -> Measured:
    """Return what a text or file says was measured. Raises InvalidArgumentError."""
    return parse(text)
