"""Token buckets that imitate a NIC: rate, burst and segment size.

The figures were measured (docs/how-to/emulate.md). A bucket smaller than a segment makes tbf segment in software, which
costs two to four times the CPU; a much larger one lets small messages pass for free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from paceline._internal.units import rate
from paceline.errors import InvalidArgumentError

MTU = 9000
LIMIT_BYTES = 1 << 30
"""Long enough that nothing is lost: the windows of 250 senders fit."""
LEAST_BPS, MOST_BPS = 1e6, 20e9

ETHERNET = 14
"""Bytes of each frame that a token bucket counts."""
_HEADERS = 52  # of each packet: IPv4 20, TCP 20, timestamps 12
# bit/s: bytes of a segment, bytes of the bucket. Interpolated linearly, which keeps the bucket larger than a segment.
_MEASURED = (
    (100e6, 16_384, 20_000),
    (200e6, 16_384, 26_000),
    (500e6, 65_536, 80_000),
    (1000e6, 65_536, 100_000),
    (2000e6, 65_536, 200_000),
)


@dataclass(frozen=True)
class Shape:
    """The settings of one direction of a NIC."""

    rate: int
    """Bytes of frames per second."""
    segment: int
    """Bytes that TCP hands to the NIC at once."""
    burst: int
    """Bytes of the bucket, which leave at once after a pause."""


def shape(bandwidth_bps: float) -> Shape:
    """Return the settings for a TCP goodput in bit/s. Raises InvalidArgumentError."""
    if not (math.isfinite(bandwidth_bps) and LEAST_BPS <= bandwidth_bps <= MOST_BPS):
        raise InvalidArgumentError(
            f"bandwidth: must be {rate(LEAST_BPS)}-{rate(MOST_BPS)}, not {bandwidth_bps:g} bit/s",
            remedy="{bandwidth=500Mbps}",
        )
    segment, burst = _bucket(bandwidth_bps)
    return Shape(round(bandwidth_bps / 8 * (MTU + ETHERNET) / (MTU - _HEADERS)), segment, burst)


def _bucket(bandwidth_bps: float) -> tuple[int, int]:
    """Outside the table: the smallest row's bucket, or the largest row's in proportion to the rate."""
    first, last = _MEASURED[0], _MEASURED[-1]
    if bandwidth_bps <= first[0]:
        return first[1], first[2]
    for low, high in pairwise(_MEASURED):
        if bandwidth_bps <= high[0]:
            share = (bandwidth_bps - low[0]) / (high[0] - low[0])
            return round(low[1] + share * (high[1] - low[1])), round(low[2] + share * (high[2] - low[2]))
    return last[1], round(last[2] * bandwidth_bps / last[0])
