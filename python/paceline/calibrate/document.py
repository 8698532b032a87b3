"""The device file of a calibration, which `--gpu` takes."""

from __future__ import annotations

from typing import Any

from paceline.calibrate.device import Device
from paceline.calibrate.measure import Measurements
from paceline.catalog.calibration import Calibration

_DIGITS = 4


def document(name: str, device: Device, measurements: Measurements, conditions: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the file.

    Args:
        name: Of the device, for `--gpu` and headlines.
        device: What was measured.
        measurements: Its operators.
        conditions: Date, versions, load, clocks.
    """
    rates = measurements.rates
    return {
        "format": "paceline-device",
        "version": 1,
        "name": name,
        **device.fields(rates),
        "calibration": Calibration(
            conditions,
            {phase: _short(seconds) for phase, seconds in measurements.dispatch_s.items()},
            tuple((timed.operator, _short(timed.seconds)) for timed in measurements.operators() if timed.seconds > 0),
        ).document(),
    }


def _short(value: float) -> float:
    """Return a number with as many digits as a measurement has."""
    return float(f"{value:.{_DIGITS}g}")
